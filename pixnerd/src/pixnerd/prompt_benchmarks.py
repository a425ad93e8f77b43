"""Images for the scorers of GenEval and DPG-Bench, benchmarks of text to image: four of each prompt.

Both go on where they were interrupted: a prompt whose files are there is skipped, and no file is ever half written.
"""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from .files import replacing
from .pictures import grid

SEEDS = (0, 1, 2, 3)  # of the images of every prompt
Generate = Callable[[list[str], list[int]], Tensor]
"""f(prompts, seeds), an image of each: uint8, (images, 3, height, width)."""


def read_geneval(file: str | Path) -> list[tuple[str, str]]:
    """The prompts of GenEval's `evaluation_metadata.jsonl`, each with its line.

    Raises:
        ValueError: a line is no JSON object with a "prompt", or there is none; with file and line.
        OSError: the file cannot be read.
    """
    prompts = []
    for number, line in enumerate(_text(Path(file)).removesuffix("\n").split("\n"), start=1):
        try:
            prompt = json.loads(line)["prompt"]
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f'{file}, line {number}: expected a JSON object with "prompt", got {line!r:.80}'
            ) from error
        if not isinstance(prompt, str) or not prompt.strip():
            raise ValueError(f"{file}, line {number}: expected a prompt, got {prompt!r}")
        prompts.append((prompt, line))
    return prompts


def write_geneval(
    file: str | Path, output: str | Path, generate: Generate, settings: dict, progress: bool = True
) -> int:
    """Write what GenEval's detectors score: for each prompt a folder, the first being `output/00000`, with its line as
    `metadata.jsonl` and `samples/0000.png` … `0003.png`.

    Args:
        file: as in `read_geneval`.
        generate: called with one prompt, four times, and the seeds 0 to 3.
        settings: all that shapes the images, as plain values; a folder holds those of one.

    Returns:
        Number of prompts whose images were made; those of the others were there.

    Raises:
        ValueError: what is in `output` was made with other settings.
    """
    check_settings(Path(output), settings)
    made = 0
    for number, (prompt, line) in enumerate(tqdm(read_geneval(file), desc="GenEval", disable=not progress)):
        folder = Path(output) / f"{number:05d}"
        images = [folder / "samples" / f"{i:04d}.png" for i in range(len(SEEDS))]
        metadata = folder / "metadata.jsonl"
        whole = all(path.is_file() for path in (*images, metadata))
        if whole and metadata.read_text(encoding="utf-8") == line + "\n":
            continue
        metadata.unlink(missing_ok=True)  # written last: until then the images may be another prompt's
        samples = _four(generate, prompt)
        for path, sample in zip(images, samples, strict=True):
            _save(grid(sample[None], columns=1, gap=0), path)
        with replacing(metadata) as partial:
            partial.write_text(line + "\n", encoding="utf-8")
        made += 1
    return made


def read_dpg(folder: str | Path) -> list[tuple[str, str]]:
    """Name, without suffix, and prompt of each `.txt` file in a folder, sorted.

    Raises:
        ValueError: a file is empty, or there is none.
        OSError: no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise OSError(f"{folder}: expected a folder of prompts, one .txt file each")
    prompts = [(file.stem, _text(file).strip()) for file in sorted(folder.glob("[!.]*.txt"))]
    if not prompts:
        raise ValueError(f"{folder}: expected prompts, one .txt file each, got no such file")
    if empty := [name for name, prompt in prompts if not prompt]:
        raise ValueError(f"{folder / empty[0]}.txt: expected a prompt, got an empty file")
    return prompts


def write_dpg(folder: str | Path, output: str | Path, generate: Generate, settings: dict, progress: bool = True) -> int:
    """Write what DPG-Bench's scorer cuts into four: `output/NAME.png`, 2 x 2 images without gaps, seeds 0 and 1 above 2
    and 3.

    Args:
        folder: as in `read_dpg`.
        generate, settings: as in `write_geneval`; the prompts are among the settings.

    Returns:
        Number of prompts whose images were made; those of the others were there.

    Raises:
        ValueError: what is in `output` was made with other settings.
    """
    prompts = read_dpg(folder)
    check_settings(Path(output), settings | {"prompts": dict(prompts)})
    made = 0
    for name, prompt in tqdm(prompts, desc="DPG-Bench", disable=not progress):
        path = Path(output) / f"{name}.png"
        if not path.is_file():
            _save(grid(_four(generate, prompt), columns=2, gap=0), path)
            made += 1
    return made


def check_settings(output: Path, settings: dict) -> None:
    """Write down with what the images in a folder are made, or refuse what differs from it."""
    file, text = output / ".settings.json", json.dumps(settings, indent=1, sort_keys=True)
    if not file.is_file():
        with replacing(file) as partial:
            partial.write_text(text, encoding="utf-8")
        return
    before, now = json.loads(file.read_text(encoding="utf-8")), json.loads(text)
    other = sorted(key for key in before | now if before.get(key) != now.get(key))
    if other:
        raise ValueError(f"output: {output} holds images made with another {', '.join(other)}; take an empty folder")


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: expected text in UTF-8 ({error})") from error


def _four(generate: Generate, prompt: str) -> Tensor:
    images = generate([prompt] * len(SEEDS), list(SEEDS))
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[:2] != (len(SEEDS), 3):
        raise ValueError(
            f"generate: expected uint8 ({len(SEEDS)}, 3, height, width), got {images.dtype} {tuple(images.shape)}"
        )
    return images


def _save(picture: Image.Image, path: Path) -> None:
    with replacing(path) as partial:
        picture.save(partial, format="PNG")
