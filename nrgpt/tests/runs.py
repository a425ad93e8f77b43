"""Small runs of the project's scripts, in this process or as command lines of another."""

import importlib.util
import json
import os
import sys
from pathlib import Path

from accelerate.state import AcceleratorState, GradientState

PROJECT = Path(__file__).parents[1]
SMALL = dict(hidden_size=12, num_attention_heads=2, num_hidden_layers=2, threads=1)


def script(name: str):
    """A script of the project as a module."""
    spec = importlib.util.spec_from_file_location(f"nrgpt_{name}", PROJECT / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


train = script("train")


def options(out: Path, **more) -> dict:
    base = SMALL | dict(context=12, batch_size=4, steps=6, log_every=1, checkpoint_every=2, validate_every=3)
    base |= dict(train_samples=200, test_samples=20, validation_windows=8, report=False)
    return base | dict(output_dir=str(out), tracker="none") | more


def call(values: dict) -> None:
    """What the script does, in this process."""
    train.main(train.TrainConfig(**(values | {"output_dir": Path(values["output_dir"])})))
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


def command(values: dict) -> list[str]:
    return [part for name, value in values.items() for part in (f"--{name}", str(value))]


def environment(**more) -> dict[str, str]:
    path = os.pathsep.join([str(PROJECT / "src"), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"} | more


def log(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
