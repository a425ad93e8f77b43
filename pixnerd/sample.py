"""Sample a grid of pictures from a trained PixNerd: `python sample.py --model outputs/demo`."""

import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from PIL import Image

from pixnerd import PixNerdScheduler, PixNerdTextToImagePipeline
from pixnerd.cli import run
from pixnerd.files import expect_model
from pixnerd.pictures import grid
from pixnerd.pipeline import PixelPipeline
from pixnerd.sampling import choose_device, load_pipeline, sample_many


@dataclass
class SampleConfig:
    """Sample a grid of pictures, a row for each class or prompt."""

    model: str = "outputs/demo"
    """Folder of a saved pipeline, or its Hub id."""
    classes: list[int | str] | int | str = field(default_factory=list)
    """Class names or ids, one or a list; none for all (the first twelve where there are more)."""
    prompts: list[str] | str = field(default_factory=list)
    """What to show, for a text-to-image model: a prompt, or a list such as ["red apple", "a cat, asleep"]."""
    negative_prompt: str | None = None
    """What guidance leads away from, for a text-to-image model."""
    text_encoder: str | None = None
    """Of a text-to-image model, as in train.py (default: what it was trained with)."""
    per_class: int = 8
    """Samples of each class or prompt."""
    steps: int = 25
    """Steps of the solver (paper: 100 with Euler)."""
    solver: Literal["euler", "adams", "sde", "sde_mean", "sde_preserve"] | None = None
    """How a step is taken, if not as saved: adams (paper: euler for class-conditional models)."""
    solver_order: int | None = None
    """Order of adams, 1 to 4, if not as saved: 2."""
    shift: float | None = None
    """Time shift of the grid, if not as saved (paper: 1 for class-conditional models, 3 for text to image)."""
    guidance: float = 2.0
    """Guidance scale; 1 for none (paper: 3.5; text to image 4)."""
    guidance_interval: tuple[float, float] | None = None
    """Times strictly between which guidance acts, if not as saved (paper: 0.1, 1; text to image 0, 1)."""
    height: int | None = None
    """Of the pictures in pixels (default: as trained)."""
    width: int | None = None
    """Of the pictures in pixels (default: as trained)."""
    encoder_size: int | None = None
    """Side at which the transformer sees the pictures: its tokens are decoded to height x width (default: the same; for
    text to image as trained)."""
    head_tile_size: int | None = None
    """Compute the neural field for so many patches at a time: less memory."""
    seed: int = 0
    """Picture number i has a generator of its own, seeded with seed + i."""
    batch_size: int = 64
    """Pictures sampled at once; it does not change them, beyond rounding."""
    scale: int | None = None
    """Factor by which the sheet enlarges the pictures (default: 2 up to 64 pixels, else 1)."""
    output: Path = Path("outputs/samples.png")
    """The sheet to write; single pictures too if this is a folder name (no suffix)."""
    device: str | None = None
    """cuda, mps or cpu (default: the best there is)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the network; the state is float32 in any case."""


def main(config: SampleConfig) -> None:
    if config.per_class < 1 or config.batch_size < 1:
        raise ValueError(f"per_class, batch_size: expected at least 1, got {config.per_class}, {config.batch_size}")
    device, file = choose_device(config.device), config.output
    if file.suffix and file.suffix.lower() not in Image.registered_extensions():
        raise ValueError(f"output: expected a picture such as samples.png, or a folder without suffix, got {file}")
    (file.parent if file.suffix else file).mkdir(parents=True, exist_ok=True)
    if config.scale is not None and config.scale < 1:
        raise ValueError(f"scale: expected at least 1, got {config.scale}")
    expect_model(config.model)
    pipeline = load_pipeline(config.model, torch_dtype=getattr(torch, config.dtype)).to(device)
    settings = ("solver", "solver_order", "shift", "guidance_interval")
    changed = {name: getattr(config, name) for name in settings if getattr(config, name) is not None}
    pipeline.scheduler = PixNerdScheduler.from_config(pipeline.scheduler.config, **changed)
    if config.head_tile_size is not None:
        if config.head_tile_size < 1:
            raise ValueError(f"head_tile_size: expected at least 1, got {config.head_tile_size}")
        pipeline.transformer.enable_head_tiling(config.head_tile_size)
    rows, names, options = conditions(pipeline, config)
    images = sample_many(
        pipeline,
        [row for row in rows for _ in range(config.per_class)],
        config.seed,
        config.batch_size,
        height=config.height,
        width=config.width,
        encoder_size=config.encoder_size,
        num_inference_steps=config.steps,
        guidance_scale=config.guidance,
        **options,
    )
    sheet = grid(
        images,
        columns=config.per_class,
        scale=config.scale or (2 if images.shape[-1] <= 64 else 1),
        row_names=names,
    )
    if not file.suffix:
        for number, image in enumerate(images):
            grid(image[None], columns=1, gap=0).save(file / f"{number:05d}.png")
        file = file / "sheet.png"
    sheet.save(file)
    print(f"wrote {file}: {len(rows)} rows x {config.per_class}")


def conditions(pipeline: PixelPipeline, config: SampleConfig) -> tuple[list[int | str], list[str], dict]:
    """Classes or prompts, a row of the sheet each; what is written beside them; options of the pipeline's kind."""
    if isinstance(pipeline, PixNerdTextToImagePipeline):
        prompts = [config.prompts] if isinstance(config.prompts, str) else config.prompts
        if config.classes != [] or not prompts:
            raise ValueError(f"prompts: expected at least one, and no classes: {config.model} is a text-to-image model")
        pipeline.load_text_encoder(config.text_encoder)
        names = [textwrap.shorten(prompt, 50, placeholder="…") for prompt in prompts]
        return prompts, names, {"negative_prompt": config.negative_prompt}
    if config.prompts or config.negative_prompt is not None or config.text_encoder is not None:
        given = "prompts, negative_prompt, text_encoder"
        raise ValueError(f"{given}: expected classes instead, {config.model} is a class-conditional model")
    by_id = {number: name for name, number in reversed(pipeline.labels.items())}
    classes = config.classes if isinstance(config.classes, list) else [config.classes]
    classes = classes or list(range(min(12, pipeline.transformer.config.num_classes)))
    return classes, [by_id.get(c, str(c)) if isinstance(c, int) else c for c in classes], {}


if __name__ == "__main__":
    run(main, SampleConfig)
