"""Convert an official checkpoint to a pipeline, or back: `python convert.py --checkpoint model.ckpt`."""

import json
from dataclasses import dataclass
from pathlib import Path

from pixnerd.cli import run
from pixnerd.convert import pipeline_from_official, write_official
from pixnerd.files import expect_model
from pixnerd.sampling import load_pipeline


@dataclass
class ConvertConfig:
    """Convert an official checkpoint to a pipeline of diffusers, or back."""

    checkpoint: str
    """Official checkpoint, of which the averaged weights are taken: a .ckpt, .pt or .safetensors file, or
    hf:USER/NAME/FILE on the Hub; with `back`, the file to write."""
    pipeline: Path = Path("outputs/converted")
    """Folder of the pipeline to write; with `back`, the one to read."""
    sample_size: int | None = None
    """Side in pixels of the images that the checkpoint was trained on, which it does not tell: 256 or 512 (default: 512
    for text to image, in which the published one ends)."""
    labels: Path | None = None
    """JSON file of class names, a list or a mapping from ids, for a class-conditional checkpoint."""
    back: bool = False
    """Write the checkpoint from the pipeline."""


def main(config: ConvertConfig) -> None:
    if config.back:
        expect_model(config.pipeline)
        write_official(load_pipeline(config.pipeline), Path(config.checkpoint))
        print(f"wrote {config.checkpoint}")
        return
    if config.sample_size is not None and config.sample_size < 1:
        raise ValueError(f"sample_size: expected at least 1, got {config.sample_size}")
    pipeline = pipeline_from_official(config.checkpoint, config.sample_size, read_labels(config.labels))
    pipeline.save_pretrained(config.pipeline)
    count = sum(p.numel() for p in pipeline.transformer.parameters())
    print(f"wrote {config.pipeline}: {type(pipeline).__name__}, {count:,} parameters")


def read_labels(file: Path | None) -> dict[int, str]:
    """Class names by id from a JSON file."""
    if file is None:
        return {}
    try:
        names = json.loads(file.read_text(encoding="utf-8"))
        pairs = enumerate(names) if isinstance(names, list) else names.items()
        return {int(key): str(name) for key, name in pairs}
    except (ValueError, AttributeError) as error:
        raise ValueError(f"labels: expected a list of names or a mapping from ids in {file} ({error})") from error


if __name__ == "__main__":
    run(main, ConvertConfig)
