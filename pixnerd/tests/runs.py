"""Small runs of the project's scripts, in this process or as command lines of another."""

import importlib.util
import json
import os
import sys
from pathlib import Path

from accelerate.state import AcceleratorState, GradientState

PROJECT = Path(__file__).parents[1]
SMALL = dict(
    preset="S/8", hidden_size=24, num_attention_heads=2, num_layers=1, head_layers=1, head_channels=8, threads=1
)


def script(name: str):
    """A script of the project as a module."""
    spec = importlib.util.spec_from_file_location(f"pixnerd_{name}", PROJECT / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


train = script("train")


def options(data: Path, out: Path, **more) -> dict:
    base = SMALL | dict(dataset=str(data), resolution=16, batch_size=4, steps=6, log_every=1, checkpoint_every=2)
    return base | dict(preview_every=0, output_dir=str(out), tracker="none") | more


def call(config_class_options: dict) -> None:
    """What the script does, in this process."""
    values = dict(config_class_options)
    values["output_dir"] = Path(values["output_dir"])
    train.main(train.TrainConfig(**values))
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


def command(values: dict) -> list[str]:
    return [part for name, value in values.items() for part in (f"--{name}", str(value))]


def environment(**more) -> dict[str, str]:
    path = os.pathsep.join([str(PROJECT / "src"), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"} | more


def losses(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
