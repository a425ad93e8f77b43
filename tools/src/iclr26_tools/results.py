"""The results schema: `results/NAME.json` of a project, its verdict, and the README block rendered from it.

A results file holds, besides `schema`:

- `title`; `claim`, one sentence or None; `metric`, name and unit; `arms`, {name: what it is}
- `budget`, such as "core"; `seeds`; `config`, all that fixes the runs
- `tables`, {name: `table(...)`}; `verdict`, from `verdict(...)`, None exactly when there is no claim
- `environment`, from `provenance.environment`; `code_paths` and `code_hash`, from `provenance.code_hash`

A README block `<!-- results: NAME -->` … `<!-- /results -->`, each marker alone on its line, shows all tables of
`results/NAME.json`; `NAME.TABLE` shows one.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from iclr26_tools.jsonio import non_finite, plain, read_json, write_json
from iclr26_tools.plots import plot, plot_curves, plot_panels
from iclr26_tools.provenance import code_hash, environment
from iclr26_tools.statistics import Interval

__all__ = [
    "check",
    "code_hash",
    "environment",
    "load",
    "markdown",
    "plot",
    "plot_curves",
    "plot_panels",
    "render",
    "save",
    "stale",
    "table",
    "validate",
    "verdict",
]

SCHEMA = 1
KINDS: dict[str, tuple[type, ...]] = {
    "schema": (int,),
    "title": (str,),
    "claim": (str, type(None)),
    "metric": (str,),
    "arms": (dict,),
    "budget": (str,),
    "seeds": (list,),
    "config": (dict,),
    "tables": (dict,),
    "verdict": (dict, type(None)),
    "environment": (dict,),
    "code_paths": (list,),
    "code_hash": (str,),
}
VERDICTS = ("shown", "absent", "inconclusive")
BLOCK = re.compile(r"^<!-- results: (?P<name>\S+) -->\n(?P<body>.*?)^<!-- /results -->$", re.MULTILINE | re.DOTALL)
OPENING = re.compile(r"^<!-- results: .*-->$", re.MULTILINE)


def table(caption: str, columns: Sequence[str | tuple[str, str]], rows: Iterable[Sequence[Any]]) -> dict:
    """A table of a results file.

    Args:
        columns: names, or (name, format) with a format such as ".3f" for the numbers below it.
        rows: of cells: number, string, None for a result that is missing, `Interval` (or its dict), or
            {"value", "low", "high", "n"}.
    """
    heads = [{"name": c, "format": ""} if isinstance(c, str) else {"name": c[0], "format": c[1]} for c in columns]
    return {"caption": caption, "columns": heads, "rows": [[_cell(cell) for cell in row] for row in rows]}


def _cell(cell: Any) -> Any:
    cell = plain(cell)
    if isinstance(cell, dict):  # an Interval also says its level and method
        return {key: value for key, value in cell.items() if key not in ("level", "method")}
    return cell


def verdict(
    interval: Interval | tuple[float, float] | None,
    direction: str,
    *,
    stopped_improving: bool = False,
    equal_budgets: bool = False,
    control_fired: bool = False,
    smallest_effect: float | None = None,
) -> dict:
    """Judge a claim: `{"verdict": "shown" | "absent" | "inconclusive", "reason": ...}`.

    Args:
        interval: of the effect (method minus baseline), zero meaning no effect; None when runs are missing.
        direction: "higher" if the claim says that the effect is above zero, "lower" if below.
        stopped_improving: every arm has.
        equal_budgets: all arms had the same tuning budget.
        control_fired: an effect known to be there was seen with the same runs and metric.
        smallest_effect: the smallest effect that these runs could have shown, in the metric's unit.
    """
    if direction not in ("higher", "lower"):
        raise ValueError(f"direction: expected 'higher' or 'lower', got {direction!r}")
    if smallest_effect is not None and not 0 < smallest_effect < float("inf"):
        raise ValueError(f"smallest_effect: expected a positive number, got {smallest_effect}")
    if interval is None:
        return {"verdict": "inconclusive", "reason": "runs are missing"}
    low, high = (interval.low, interval.high) if isinstance(interval, Interval) else interval
    if not float("-inf") < low <= high < float("inf"):
        raise ValueError(f"interval: expected finite low <= high, got {low} and {high}")
    span = f"[{low:.4g}, {high:.4g}]"
    if (low > 0) if direction == "higher" else (high < 0):
        return {"verdict": "shown", "reason": f"the interval of the effect, {span}, excludes zero"}
    seen = "excludes zero against the claim" if low > 0 or high < 0 else "includes zero"
    conditions = {
        "not every arm has stopped improving": stopped_improving,
        "tuning budgets were not equal": equal_budgets,
        "no positive control fired": control_fired,
        "the smallest detectable effect is not stated": smallest_effect is not None,
    }
    missing = [what for what, held in conditions.items() if not held]
    if missing:
        return {
            "verdict": "inconclusive",
            "reason": f"the interval of the effect, {span}, {seen}; {', '.join(missing)}",
        }
    reason = f"the interval of the effect, {span}, {seen}; an effect of {smallest_effect:.4g} would have been seen"
    return {"verdict": "absent", "reason": reason}


def save(
    path: str | Path,
    *,
    title: str,
    claim: str | None,
    metric: str,
    arms: dict[str, str],
    budget: str,
    seeds: Sequence[int],
    config: dict,
    tables: dict[str, dict],
    verdict: dict | None,
    environment: dict,
    code_paths: Sequence[str],
) -> dict:
    """Check and write `PROJECT/results/NAME.json`, atomically, and return what was written.

    Args:
        path: the file; its project is the folder that holds `results`.
        code_paths: what the result depends on, relative to the project: package, script, configs.

    Raises:
        ValueError: a field is wrong; a number is NaN or infinite (use None for a missing result).
    """
    root = _project(path)
    data = {"schema": SCHEMA, "title": title, "claim": claim, "metric": metric, "arms": arms, "budget": budget}
    data |= {"seeds": list(seeds), "config": config, "tables": tables, "verdict": verdict, "environment": environment}
    data |= {"code_paths": [str(p) for p in code_paths], "code_hash": code_hash(code_paths, root)}
    data = plain(data)
    validate(data, path)
    write_json(path, data)
    return data


def load(path: str | Path) -> dict:
    """Read and check a results file."""
    data = read_json(path)
    validate(data, path)
    return data


def validate(data: dict, path: str | Path) -> None:
    """Raise a ValueError that names `path` and the first thing wrong with `data`."""

    def fail(what: str):
        raise ValueError(f"{path}: {what}")

    if not isinstance(data, dict):
        fail(f"expected an object, got {type(data).__name__}")
    if missing := KINDS.keys() - data.keys():
        fail(f"missing keys {sorted(missing)}")
    if unknown := data.keys() - KINDS.keys():
        fail(f"unknown keys {sorted(unknown)}")
    if data["schema"] != SCHEMA:
        fail(f"schema: expected {SCHEMA}, got {data['schema']!r}")
    for key, kinds in KINDS.items():
        if not isinstance(data[key], kinds):
            fail(f"{key}: expected {' or '.join(k.__name__ for k in kinds)}, got {type(data[key]).__name__}")
    if places := non_finite(data):
        fail(f"not a finite number: {', '.join(places[:5])}")
    if (data["claim"] is None) != (data["verdict"] is None):
        fail("claim, verdict: expected both or neither")
    if data["verdict"] and (
        set(data["verdict"]) != {"verdict", "reason"} or data["verdict"]["verdict"] not in VERDICTS
    ):
        fail(f"verdict: expected {{'verdict': one of {VERDICTS}, 'reason': …}}, got {data['verdict']}")
    if not data["tables"]:
        fail("tables: expected at least one")
    if absent := {"python", "packages", "machine", "seconds", "commit", "dirty"} - data["environment"].keys():
        fail(f"environment: missing keys {sorted(absent)}")
    for name, content in data["tables"].items():
        if not isinstance(content, dict) or set(content) != {"caption", "columns", "rows"}:
            fail(f"tables.{name}: expected caption, columns and rows")
        for i, row in enumerate(content["rows"]):
            if len(row) != len(content["columns"]):
                fail(f"tables.{name}.rows[{i}]: expected {len(content['columns'])} cells, got {len(row)}")
            for column, cell in zip(content["columns"], row, strict=True):
                try:
                    _text(cell, column["format"])
                except (ValueError, TypeError, KeyError) as error:
                    fail(f"tables.{name}.rows[{i}], column {column.get('name')!r}: cannot show {cell!r} ({error!r})")


def markdown(data: dict, table: str | None = None) -> str:
    """The tables of a results file (or one of them) as Markdown, and the line that says where they come from."""
    if table is not None and table not in data["tables"]:
        raise ValueError(f"table: expected one of {sorted(data['tables'])}, got {table!r}")
    names = list(data["tables"]) if table is None else [table]
    return "\n\n".join([*(_table_text(data["tables"][name]) for name in names), _origin(data)])


def _table_text(content: dict) -> str:
    columns = content["columns"]
    rows = [[c["name"] for c in columns], ["---" if i == 0 else "---:" for i in range(len(columns))]]
    rows += [[_text(x, c["format"]) for x, c in zip(row, columns, strict=True)] for row in content["rows"]]
    lines = ["| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in row) + " |" for row in rows]
    return "\n".join([f"**{content['caption']}**", "", *lines])


def _text(cell: Any, spec: str) -> str:
    if cell is None:
        return "missing"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, dict):
        if unknown := cell.keys() - {"value", "low", "high", "n"}:
            raise ValueError(f"unknown keys {sorted(unknown)}")
        spec = spec or ".4g"
        return f"{cell['value']:{spec}} [{cell['low']:{spec}}, {cell['high']:{spec}}]"
    if not isinstance(cell, (int, float)):
        raise TypeError(f"expected number, string, None or an interval, got {type(cell).__name__}")
    return f"{cell:{spec}}" if spec else f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def _origin(data: dict) -> str:
    env, machine = data["environment"], data["environment"]["machine"]
    seeds = data["seeds"]
    versions = ", ".join(f"{name} {version}" for name, version in env["packages"].items() if version)
    parts = [
        f"Budget: {data['budget']}",
        f"seeds: {', '.join(map(str, seeds))}" if seeds else "no seeds",
        f"{machine['device']}, {machine['cores']} cores, {machine['threads']} threads, {machine['memory_gib']} GiB",
        f"Python {env['python']}" + (f", {versions}" if versions else ""),
    ]
    if env["seconds"] is not None:
        parts.append(f"{env['seconds']:.0f} s")
    if data["verdict"]:
        parts.append(
            f"claim: {data['claim'].rstrip('.')}: **{data['verdict']['verdict']}** ({data['verdict']['reason']})"
        )
    return "; ".join(parts) + "."


def render(folder: str | Path) -> bool:
    """Fill every results block of `folder/README.md`; True if that changed the file."""
    readme = Path(folder) / "README.md"
    old = readme.read_text(encoding="utf-8")
    new = _filled(old, Path(folder))
    if new != old:
        readme.write_text(new, encoding="utf-8")
    return new != old


def check(folder: str | Path) -> list[str]:
    """What of `folder/README.md` differs from the results files: one message per block, empty when all agrees."""
    readme = Path(folder) / "README.md"
    text = readme.read_text(encoding="utf-8")
    pairs = zip(BLOCK.finditer(text), BLOCK.finditer(_filled(text, Path(folder))), strict=True)
    return [
        f"{readme}: block {old['name']} differs from the results file; run `iclr26-tools results render {folder}`"
        for old, new in pairs
        if old["body"] != new["body"]
    ]


def _filled(text: str, folder: Path) -> str:
    def fill(match: re.Match) -> str:
        name, _, one = match["name"].partition(".")
        try:
            body = markdown(load(folder / "results" / f"{name}.json"), one or None)
        except ValueError as error:
            raise ValueError(f"{folder / 'README.md'}, block {match['name']}: {error}") from error
        return f"<!-- results: {match['name']} -->\n\n{body}\n\n<!-- /results -->"

    whole = list(BLOCK.finditer(text))
    if len(whole) != len(OPENING.findall(text)):
        raise ValueError(
            f"{folder / 'README.md'}: expected every `<!-- results: NAME -->` to have its `<!-- /results -->`"
        )
    return BLOCK.sub(fill, text)


def stale(folder: str | Path) -> list[str]:
    """Results files of a project whose code has changed since, or is gone: one message each, to show as a warning."""
    messages, results = [], Path(folder) / "results"
    for path in sorted(results.rglob("*.json")):
        data = {} if "runs" in path.relative_to(results).parts else read_json(path)
        if not isinstance(data, dict) or "schema" not in data:
            continue
        validate(data, path)
        try:
            current = code_hash(data["code_paths"], folder)
        except FileNotFoundError as error:
            messages.append(f"{path}: {error}")
        else:
            if current != data["code_hash"]:
                messages.append(f"{path}: the code has changed since (now {current}, then {data['code_hash']})")
    return messages


def _project(path: str | Path) -> Path:
    for parent in Path(path).resolve().parents:
        if parent.name == "results":
            return parent.parent
    raise ValueError(f"path: expected a file below a folder named results, got {path}")
