import json
import subprocess

import pytest
from PIL import Image

from iclr26_tools import results
from iclr26_tools.jsonio import write_json
from iclr26_tools.statistics import Interval

INTERVAL = Interval(0.12345, 0.11, 0.14, 5)


def project(tmp_path, name="reproduce", readme="<!-- results: reproduce -->\n<!-- /results -->\n", **changes):
    """A project with one results file; returns its folder."""
    (tmp_path / "src").mkdir(exist_ok=True)
    (tmp_path / "src/method.py").write_text('"""Doc."""\n\ndef f(x):\n    return x + 1\n')
    (tmp_path / "README.md").write_text(f"# Title\n\n{readme}\nend\n")
    rows = [["ours", INTERVAL, 7], ["a|b", None, 2.5]]
    fields = {
        "title": "A title",
        "claim": "Ours is higher.",
        "metric": "score",
        "arms": {"ours": "the method", "a|b": "the baseline"},
        "budget": "core",
        "seeds": [0, 1, 2],
        "config": {"steps": 10},
        "tables": {
            "main": results.table("Scores.", ["Arm", ("Score", ".3f"), "Images"], rows),
            "other": results.table("Other.", ["x"], [[True]]),
        },
        "verdict": results.verdict((0.1, 0.2), "higher"),
        "environment": results.environment(["torch", "no-such-package"], seconds=12.3, folder=tmp_path),
        "code_paths": ["src"],
    }
    results.save(tmp_path / f"results/{name}.json", **(fields | changes))
    return tmp_path


# Verdict

FULL = {"stopped_improving": True, "equal_budgets": True, "control_fired": True, "smallest_effect": 0.05}


@pytest.mark.parametrize(
    "interval, direction, held, expected",
    [
        ((0.1, 0.2), "higher", {}, "shown"),
        (Interval(-0.15, -0.2, -0.1, 3), "lower", {}, "shown"),
        ((0.0, 0.2), "higher", {}, "inconclusive"),
        ((0.1, 0.2), "lower", {}, "inconclusive"),
        ((-0.1, 0.2), "higher", FULL, "absent"),
        ((-0.2, -0.1), "higher", FULL, "absent"),
        ((-0.1, 0.2), "higher", FULL | {"stopped_improving": False}, "inconclusive"),
        ((-0.1, 0.2), "higher", FULL | {"equal_budgets": False}, "inconclusive"),
        ((-0.1, 0.2), "higher", FULL | {"control_fired": False}, "inconclusive"),
        ((-0.1, 0.2), "higher", FULL | {"smallest_effect": None}, "inconclusive"),
        (None, "higher", FULL, "inconclusive"),
    ],
)
def test_verdict(interval, direction, held, expected):
    assert results.verdict(interval, direction, **held)["verdict"] == expected


def test_verdict_says_why():
    reason = results.verdict((-0.1, 0.2), "higher", equal_budgets=True, smallest_effect=1)["reason"]
    assert "stopped improving" in reason and "control" in reason and "budgets" not in reason
    assert "against the claim" in results.verdict((-0.2, -0.1), "higher")["reason"]
    assert "0.05" in results.verdict((-0.1, 0.2), "higher", **FULL)["reason"]
    for bad in ((float("nan"), 1), (2, 1)):
        with pytest.raises(ValueError, match="interval: expected"):
            results.verdict(bad, "higher")
    with pytest.raises(ValueError, match="direction"):
        results.verdict((0, 1), "up")
    with pytest.raises(ValueError, match="smallest_effect"):
        results.verdict((0, 1), "higher", smallest_effect=0)


# README


def test_render_fills_the_block_and_check_agrees(tmp_path):
    folder = project(tmp_path)
    assert results.check(folder)
    assert results.render(folder) and not results.render(folder)
    assert results.check(folder) == []
    text = (folder / "README.md").read_text()
    assert "| ours | 0.123 [0.110, 0.140] | 7 |\n| a\\|b | missing | 2.5 |" in text
    assert text.startswith("# Title\n\n<!-- results: reproduce -->\n\n**Scores.**\n\n| Arm | Score | Images |\n| --- |")
    assert text.endswith("<!-- /results -->\n\nend\n") and "**Other.**" in text and "| yes |" in text
    origin = next(line for line in text.splitlines() if line.startswith("Budget"))
    for part in ("core", "seeds: 0, 1, 2", "threads", "GiB", "torch ", "12 s", "**shown**", "Ours is higher"):
        assert part in origin
    assert "no-such-package" not in origin


def test_check_fails_on_an_edited_number(tmp_path):
    folder = project(tmp_path)
    results.render(folder)
    readme = folder / "README.md"
    readme.write_text(readme.read_text().replace("0.123", "0.124"))
    (message,) = results.check(folder)
    assert "block reproduce differs" in message and "results render" in message


def test_a_block_may_show_one_table(tmp_path):
    folder = project(tmp_path, readme="<!-- results: reproduce.other -->\nold\n<!-- /results -->\n")
    results.render(folder)
    text = (folder / "README.md").read_text()
    assert "Other." in text and "Scores." not in text and "old" not in text


@pytest.mark.parametrize(
    "readme, error, words",
    [
        ("<!-- results: nothing -->\n<!-- /results -->", FileNotFoundError, "nothing.json"),
        ("<!-- results: reproduce.nothing -->\n<!-- /results -->", ValueError, r"expected one of \['main', 'other'\]"),
        ("<!-- results: reproduce -->\n", ValueError, "/results"),
    ],
)
def test_bad_blocks_are_named(tmp_path, readme, error, words):
    with pytest.raises(error, match=words):
        results.check(project(tmp_path, readme=readme))


# Files


def test_a_file_comes_back_as_it_was_saved(tmp_path):
    data = results.load(project(tmp_path) / "results/reproduce.json")
    assert data["tables"]["main"]["rows"][0][1] == {"value": 0.12345, "low": 0.11, "high": 0.14, "n": 5}
    assert data["environment"]["packages"]["no-such-package"] is None
    both = results.table("", ["x"], [[INTERVAL], [INTERVAL.as_dict()]])["rows"]
    assert both[0] == both[1]


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda d: d.pop("claim"), r"missing keys \['claim'\]"),
        (lambda d: d.update(extra=1), r"unknown keys \['extra'\]"),
        (lambda d: d.update(schema=99), "schema: expected 1, got 99"),
        (lambda d: d.update(seeds="0"), "seeds: expected list, got str"),
        (lambda d: d.update(claim=None), "claim, verdict"),
        (lambda d: d["verdict"].update(verdict="proved"), "verdict: expected"),
        (lambda d: d["tables"]["main"]["rows"][0].pop(), r"tables.main.rows\[0\]: expected 3 cells, got 2"),
        (lambda d: d["tables"]["main"]["rows"][0].__setitem__(1, {"value": 1}), "column 'Score'"),
        (lambda d: d["tables"]["main"]["columns"][1].update(format=".3q"), "column 'Score'"),
        (lambda d: d["tables"]["main"]["rows"][0].__setitem__(2, float("nan")), r"tables.main.rows\[0\]\[2\]"),
        (lambda d: d.update(tables={}), "tables: expected"),
        (lambda d: d["environment"].pop("commit"), "environment: missing"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(tmp_path, change, words):
    path = project(tmp_path) / "results/reproduce.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=f"reproduce.json: .*{words}"):
        results.load(path)


def test_save_refuses_nan_and_leaves_the_old_file(tmp_path):
    path = project(tmp_path) / "results/reproduce.json"
    before = path.read_text()
    with pytest.raises(ValueError, match="config.lr"):
        project(tmp_path, config={"lr": float("inf")})
    assert path.read_text() == before and len(list(path.parent.iterdir())) == 1


def test_no_file_is_written_that_is_not_json(tmp_path):
    with pytest.raises(ValueError, match="x.json"):
        write_json(tmp_path / "x.json", [float("nan")])
    assert not list(tmp_path.iterdir())


def test_a_broken_file_is_named(tmp_path):
    (tmp_path / "x.json").write_text('{"a": ')
    with pytest.raises(ValueError, match="x.json is not valid JSON"):
        results.load(tmp_path / "x.json")


def test_a_benchmark_needs_no_claim(tmp_path):
    folder = project(tmp_path, claim=None, verdict=None, seeds=[])
    results.render(folder)
    text = (folder / "README.md").read_text()
    assert "no seeds" in text and "claim" not in text


# Code hash


def code(tmp_path, text, config="a: 1\nb: [2, 3]\n"):
    (tmp_path / "pkg").mkdir(exist_ok=True)
    (tmp_path / "pkg/m.py").write_text(text)
    (tmp_path / "pkg/c.yaml").write_text(config)
    return results.code_hash(["pkg"], tmp_path)


SOURCE = (
    "class A:\n    '''doc'''\n    x: int = 3\n    '''of x'''\n    def f(self, y):\n        return (self.x + y)  # why\n"
)


def test_code_hash_ignores_comments_docstrings_formatting_and_key_order(tmp_path):
    plain = "class A:\n  x:int=3\n\n  def f(self,y): return self.x+y"
    assert code(tmp_path, SOURCE) == code(tmp_path, plain)
    assert code(tmp_path, SOURCE) == code(tmp_path, SOURCE, "# why\nb: [2,\n  3]\na: 1")
    (tmp_path / "pkg/notes.txt").write_text("not code")
    assert code(tmp_path, SOURCE) == code(tmp_path, plain)


@pytest.mark.parametrize(
    "old, new",
    [("+", "-"), ("x: int = 3", "x: int = 4"), ("return (self.x + y)", "(self.x + y)"), ("self.x + y", "y + self.x"),
     ("x: int = 3", "x: int = 3.0"), ("self.x", "'self.x'")],
)  # fmt: skip
def test_code_hash_sees_a_change_of_meaning(tmp_path, old, new):
    assert old in SOURCE
    assert code(tmp_path, SOURCE) != code(tmp_path, SOURCE.replace(old, new))


def test_code_hash_sees_configs_names_and_missing_files(tmp_path):
    before = code(tmp_path, SOURCE)
    assert code(tmp_path, SOURCE, "a: 1\nb: [2, 4]\n") != before
    (tmp_path / "pkg/m.py").rename(tmp_path / "pkg/n.py")
    (tmp_path / "pkg/c.yaml").write_text("a: 1\nb: [2, 3]\n")
    assert results.code_hash(["pkg"], tmp_path) != before
    with pytest.raises(FileNotFoundError, match="gone"):
        results.code_hash(["gone"], tmp_path)
    with pytest.raises(ValueError, match="m.py does not parse"):
        code(tmp_path, "def")


def test_stale_lists_results_of_older_code(tmp_path):
    folder = project(tmp_path)
    assert results.stale(folder) == []
    source = folder / "src/method.py"
    source.write_text(source.read_text() + "# a comment\n")
    assert results.stale(folder) == []
    source.write_text(source.read_text().replace("x + 1", "x + 2"))
    (message,) = results.stale(folder)
    assert "reproduce.json: the code has changed" in message
    source.unlink()
    source.parent.rmdir()
    assert "no file or folder" in results.stale(folder)[0]


# Environment


def test_environment_tells_the_commit_and_changes_outside_results(tmp_path):
    assert results.environment([], folder=tmp_path)["commit"] is None

    def git(*arguments):
        command = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    folder = project(tmp_path)
    git("add", ".")
    git("commit", "-qm", "m")
    env = results.environment(["torch"], folder=folder)
    assert env["commit"] == git("rev-parse", "HEAD") and env["dirty"] is False
    (folder / "results/reproduce.json").write_text("")
    results_only = results.environment([], folder=folder)
    (folder / "src/new.py").write_text("")
    assert not results_only["dirty"] and results.environment([], folder=folder)["dirty"]
    assert set(env["machine"]) == {"cores", "threads", "memory_gib", "device"} and env["machine"]["cores"] >= 1


# Charts


def test_charts_are_pictures_on_a_transparent_ground_with_the_interval_where_it_belongs(tmp_path):
    results.plot(tmp_path / "p/a.png", {"a": Interval(1, 0, 2, 3), "b": 1.5, "c": None}, xlabel="x", title="t",
                 reference=("chance", 0.5))  # fmt: skip
    results.plot_curves(tmp_path / "b.svg", {"a": ([1, 2], [1.0, 2.0]), "b": ([1, 2], [Interval(1, 0, 2, 3)] * 2)},
                        xlabel="x", ylabel="y", log="x")  # fmt: skip
    picture = Image.open(tmp_path / "p/a.png")
    assert picture.mode == "RGBA" and picture.getpixel((0, 0))[3] == 0
    drawn = [n for n, pixel in picture.getcolors(10**6) if pixel == (0x2F, 0x81, 0xF7, 255)]
    assert drawn and drawn[0] > 500  # the first arm's colour
    assert "<svg" in (tmp_path / "b.svg").read_text()
    curves = {"a": ([1, 2], [1.0, 2.0]), "b": ([1, 2], [Interval(1, 0.5, 2, 3)] * 2)}
    results.plot_panels(tmp_path / "c.png", {"one": {"b": curves["b"]}, "two": curves}, xlabel="x", ylabel="y", log="y",
                        references={"two": ("bound", 0.75)})  # fmt: skip
    colors = [set(), set()]
    picture = Image.open(tmp_path / "c.png")
    for i in (0, 1):
        half = picture.crop((i * picture.width // 2, 200, (i + 1) * picture.width // 2, picture.height))
        colors[i] = {pixel for n, pixel in half.getcolors(10**6) if n > 300 and pixel[3] == 255}
    first, second = (0x2F, 0x81, 0xF7, 255), (0xDB, 0x6D, 0x28, 255)
    assert first in colors[0] and second not in colors[0]  # b has the same colour in both panels
    assert {first, second} <= colors[1]
    with pytest.raises(ValueError, match="as many y as x for 'a'"):
        results.plot_curves(tmp_path / "b.svg", {"a": ([1, 2], [1.0])}, xlabel="x", ylabel="y")
