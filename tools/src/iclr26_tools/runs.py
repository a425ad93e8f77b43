"""The list of runs of a reproduce.py: each leaves one JSON as it ends, so that the list can be resumed and shared."""

import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from iclr26_tools.jsonio import non_finite, plain, read_json, write_json


def share(items: Sequence, shard: str) -> Sequence:
    """Every n-th item from the i-th on, for the shard "i/n", i from 1 to n."""
    part, _, parts = shard.partition("/")
    if not (part.isdigit() and parts.isdigit() and 1 <= int(part) <= int(parts)):
        raise ValueError(f"shard: expected i/n with 1 <= i <= n, got {shard!r}")
    return items[int(part) - 1 :: int(parts)]


class RunList:
    """Runs, and the folder in which their results stand.

    Args:
        folder: usually `results/runs`.
        runs: one dict of plain options per run, among them `arm` and `seed`. Its file is `ARM-SEED.json`, or
            `NAME.json` where it has a `name`; names must differ.
        code_hash: from `results.code_hash`, of the code that the runs depend on.
        keep_stale: also count results of other code. A result of other options never counts: it is another run.
    """

    def __init__(self, folder: str | Path, runs: Sequence[dict], code_hash: str, keep_stale: bool = False):
        self.folder, self.code_hash, self.keep_stale = Path(folder), code_hash, keep_stale
        self.runs: dict[str, dict] = {}
        for run in runs:
            if not {"arm", "seed"} <= run.keys():
                raise ValueError(f"runs: expected arm and seed in each, got {run}")
            name = str(run.get("name", f"{run['arm']}-{run['seed']}"))
            if not name or "/" in name or name.startswith("."):
                raise ValueError(f"runs: expected a name that can be a file's, got {name!r}")
            if name in self.runs:
                raise ValueError(f"runs: expected different names, got {name!r} twice; give the runs a name")
            self.runs[name] = plain(run)

    def path(self, name: str) -> Path:
        """The file of a run."""
        return self.folder / f"{name}.json"

    def record(self, name: str) -> dict | None:
        """What a finished run left: options, seconds, code_hash, result, non_finite; None if there is none that counts.

        Raises:
            ValueError: its file is broken; the message names it.
        """
        return self._read(name)[0]

    def result(self, name: str) -> Any:
        """What the function returned for a run, or None."""
        record = self.record(name)
        return record and record["result"]

    def finished(self) -> dict[str, dict]:
        """{name: record} of the runs that count, in the order of the list."""
        return {name: record for name in self.runs if (record := self.record(name))}

    def stale(self) -> dict[str, str]:
        """{name: reason} of results that stand in the folder but come from other options or other code."""
        return {name: reason for name in self.runs if (reason := self._read(name)[1])}

    def pending(self, shard: str = "1/1") -> list[str]:
        """Names of the runs that have no result yet, of one shard.

        Args:
            shard: "i/n", i from 1 to n: every n-th run of the whole list, so that machines share it without talking.
        """
        return [name for name in share(list(self.runs), shard) if self.record(name) is None]

    def execute(self, function: Callable[[dict], Any], shard: str = "1/1", progress: bool = True) -> None:
        """Call `function(run)` for each pending run and write what it returns, which must be plain data.

        A stale result is reported by a warning, then replaced. A number that is not finite (a run that diverged) is
        written as None and listed under `non_finite`. An exception ends the list; finished runs stay.
        """
        pending, stale = self.pending(shard), self.stale()
        for name in stale:
            what = "run again" if name in pending else "kept" if self.keep_stale else "left to another shard"
            warnings.warn(f"{self.path(name)}: {stale[name]}; {what}", stacklevel=2)
        bar = tqdm(pending, desc="runs", disable=not progress)
        for name in bar:
            bar.set_postfix_str(name)
            start = time.perf_counter()
            result = plain(function(dict(self.runs[name])))
            places = non_finite(result)
            write_json(
                self.path(name),
                {
                    "options": self.runs[name],
                    "seconds": round(time.perf_counter() - start, 3),
                    "code_hash": self.code_hash,
                    "result": _without_non_finite(result) if places else result,
                    "non_finite": places,
                },
            )

    def _read(self, name: str) -> tuple[dict | None, str | None]:
        """The record if it counts, and why it is stale if it is."""
        path = self.path(name)
        if not path.exists():
            return None, None
        record = read_json(path)
        keys = {"options", "seconds", "code_hash", "result", "non_finite"}
        if not isinstance(record, dict) or record.keys() != keys:
            raise ValueError(f"{path}: expected an object with {sorted(keys)}; restore or delete it")
        if record["options"] != self.runs[name]:
            return None, f"has other options ({_difference(record['options'], self.runs[name])})"
        if record["code_hash"] != self.code_hash:
            return record if self.keep_stale else None, f"comes from other code ({record['code_hash']})"
        return record, None


def _difference(then: dict, now: dict) -> str:
    keys = [key for key in then | now if then.get(key) != now.get(key) or (key in then) != (key in now)]
    return ", ".join(f"{key}: {then.get(key, 'absent')!r}, now {now.get(key, 'absent')!r}" for key in keys)


def _without_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_non_finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_non_finite(item) for item in value]
    return None if non_finite(value) else value
