"""Images and labels: OpenMoji, a folder, an array file, or a data set of the Hub; and who sees which sample when."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from . import openmoji
from .errors import first_line

TEXT_COLUMNS = ("caption", "text", "txt", "prompt")
"""Names under which data sets of the Hub have captions, the first one found is taken."""
CAPTIONS = {
    "folder": "NAME.txt beside each image",
    "npz": "an array `captions`",
    "hf": f"a column {', '.join(TEXT_COLUMNS)}",
}
IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"}


def to_float(images: Tensor) -> Tensor:
    """uint8 → float32 in [-1, 1]: (u / 255 − 0.5) / 0.5."""
    return (images.float() - 127.5) / 127.5


def center_crop(image: Image.Image, size: int) -> Image.Image:
    """The centre square of `size` pixels, as ADM makes it: halve by boxes while possible, then bicubic, then crop."""
    while min(image.size) >= 2 * size:
        image = image.resize((image.width // 2, image.height // 2), Image.Resampling.BOX)
    scale = size / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    left, top = (image.width - size) // 2, (image.height - size) // 2
    return image.crop((left, top, left + size, top + size))


class LabelledImages(Dataset):
    """Square uint8 images with class ids.

    Args:
        images: what `__getitem__` reads: arrays (height, width, 3), paths, or PIL images by index.
        labels: class ids, (items,).
        class_names: by id.
        groups: which items are variants of one thing, (items,); each its own if not given.
        captions: texts by index, or None.
        resolution: side of the images, in pixels.
    """

    def __init__(
        self,
        images,
        labels,
        class_names: list[str],
        resolution: int,
        groups=None,
        captions: Sequence[str] | None = None,
    ) -> None:
        self.images, self.class_names, self.resolution = images, list(class_names), resolution
        self.captions = captions
        if len(images) == 0:
            raise ValueError("dataset: expected at least one image, found none")
        self.labels = _class_ids(labels, len(images))
        self.groups = np.arange(len(self.labels)) if groups is None else np.asarray(groups)
        wrong = np.flatnonzero((self.labels < 0) | (self.labels >= len(self.class_names)))
        if len(wrong):
            raise ValueError(
                f"labels: expected class ids 0..{len(self.class_names) - 1}, got {self.labels[wrong[0]]} "
                f"for item {wrong[0]} ({len(wrong)} such)"
            )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """`image` (3, resolution, resolution) uint8, `label`, and `caption` where there are captions."""
        item = self.images[index]
        if isinstance(item, Path):
            item = read_image(item)
        if isinstance(item, Image.Image):
            item = np.array(center_crop(as_rgb(item), self.resolution))
        found = {"image": torch.from_numpy(item).permute(2, 0, 1), "label": torch.tensor(self.labels[index])}
        return found if self.captions is None else found | {"caption": self.captions[index]}

    def subset(self, indices: np.ndarray) -> "LabelledImages":
        """Some of the items, read when they are needed."""
        return LabelledImages(
            _Some(self.images, indices),
            self.labels[indices],
            self.class_names,
            self.resolution,
            self.groups[indices],
            None if self.captions is None else _Some(self.captions, indices),
        )

    def all_images(self) -> Tensor:
        """(items, 3, resolution, resolution) uint8; for sets that fit into memory."""
        return torch.stack([self[i]["image"] for i in range(len(self))])


def _class_ids(labels, count: int) -> np.ndarray:
    """Labels as (count,) int64, if they are that many whole numbers."""
    labels = np.asarray(labels)
    if labels.ndim == 1 and len(labels) != count:
        raise ValueError(f"labels: expected {count}, one an image, got {len(labels)}")
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(f"labels: expected whole numbers (items,), got {labels.dtype} of shape {labels.shape}")
    return labels.astype(np.int64)


class _Some:
    """Items of a sequence by a second index."""

    def __init__(self, items, indices: np.ndarray) -> None:
        self.items, self.indices = items, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int):
        return self.items[int(self.indices[index])]


def as_rgb(image: Image.Image) -> Image.Image:
    """An image upright, as its EXIF data say, with what is transparent on white."""
    image = ImageOps.exif_transpose(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def read_image(path: Path) -> Image.Image:
    """An image file in RGB, by `as_rgb`.

    Raises:
        OSError: the file is empty, broken or too large, with its name.
    """
    try:
        with Image.open(path) as image:
            return as_rgb(image)
    except Exception as error:  # Pillow raises a dozen kinds here
        raise OSError(f"{path}: not readable as an image ({error}); mend it or take it out of the folder") from error


def load_images(
    source: str, resolution: int, split: str = "train", cache_dir: Path | None = None, captioned: bool = False
) -> LabelledImages:
    """A data set by name.

    Args:
        source: `openmoji`; a folder; an `.npz` file; or `hf:ID` for a data set of the Hugging Face Hub.
        resolution: side of the images, in pixels.
        split: `"train"` or `"test"` (what is held out).
        cache_dir: where rendered OpenMoji are kept, `default_cache()` if not given.
        captioned: only with captions: the names of the emoji (those without one are left out), the text of the `.txt`
            file with an image's name, an array `captions`, or the text column of a data set of the Hub.

    Raises:
        ValueError, OSError: what was looked for, where, and what to do.
    """
    data = _load(source, resolution, split, cache_dir)
    if not captioned:
        data.captions = None
        return data
    if data.captions is None:
        kind = "hf" if source.startswith("hf:") else "npz" if source.endswith(".npz") else "folder"
        raise ValueError(f"dataset: {source} has no captions; expected {CAPTIONS[kind]}")
    if source == "openmoji":
        data = data.subset(np.flatnonzero([text is not None for text in data.captions]))
    return data


def default_cache() -> Path:
    """`iclr26-pixnerd` in the user's folder of caches."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "iclr26-pixnerd"


def _load(source: str, resolution: int, split: str, cache_dir: Path | None) -> LabelledImages:
    if split not in ("train", "test"):
        raise ValueError(f'split: expected "train" or "test", got {split!r}')
    if resolution < 1:
        raise ValueError(f"resolution: expected at least 1, got {resolution}")
    source = str(source)
    if not source:
        raise ValueError("dataset: expected openmoji, a folder, an .npz file or hf:ID, got an empty name")
    path = Path(source).expanduser()
    if source == "openmoji":
        return _openmoji(resolution, split, cache_dir)
    if source.startswith("hf:"):
        return _hub(source.removeprefix("hf:"), resolution, split)
    if path.is_dir():
        return _folder(path, resolution, split)
    if path.suffix == ".npz" and path.is_file():
        return _arrays(path, resolution, split)
    raise OSError(f"dataset: expected openmoji, a folder, an .npz file or hf:ID; {source!r} is none of them")


def _openmoji(resolution: int, split: str, cache_dir: Path | None) -> LabelledImages:
    items = openmoji.files()
    cache = Path(cache_dir or default_cache()) / f"openmoji-{len(items)}-{resolution}px.npy"
    if cache.is_file():
        images = np.load(cache)
    else:
        images = np.stack([openmoji.render(item.path, resolution) for item in items])
        cache.parent.mkdir(parents=True, exist_ok=True)
        partial = cache.with_name(f"{cache.stem}.{os.getpid()}.npy")
        np.save(partial, images)
        partial.rename(cache)
    chosen = openmoji.held_out(items) == (split == "test")
    names = {base: number for number, base in enumerate(sorted({item.base for item in items}))}
    return LabelledImages(
        images[chosen],
        np.array([openmoji.KINDS.index(item.kind) for item in items])[chosen],
        list(openmoji.KINDS),
        resolution,
        groups=np.array([names[item.base] for item in items])[chosen],
        captions=[item.caption() for item, c in zip(items, chosen, strict=True) if c],
    )


def _folder(folder: Path, resolution: int, split: str) -> LabelledImages:
    """`folder/CLASS/*.png`, `folder/*.png` for a single class, either below `train` and `test` (or `val`) if there.

    Without such folders a tenth of the files is held out, chosen by their names.
    """
    own_split = {"train": ["train"], "test": ["test", "val", "validation"]}
    inside = [folder / name for name in own_split[split] if (folder / name).is_dir()]
    has_splits = (folder / "train").is_dir()
    if has_splits and not inside:
        raise OSError(f"dataset: {folder} has a train folder, but none of test, val, validation")
    root = inside[0] if has_splits else folder
    paths = _images_below(root)
    class_of = [_class_folder(p, root) for p in paths]
    classes = sorted(set(class_of))
    if has_splits and split == "test":  # ids are those of the training classes, also where this part lacks some
        classes = sorted({_class_folder(p, folder / "train") for p in _images_below(folder / "train")})
    if "" in classes and len(classes) > 1:
        raise ValueError(f"dataset: {root} has images beside its class folders; move them into folders of their own")
    if unknown := set(class_of) - set(classes):
        raise ValueError(f"dataset: {root} has a class {min(unknown)!r} that the train folder lacks")
    class_names = [name or folder.name for name in classes]
    ids = {name: number for number, name in enumerate(classes)}
    labels = [ids[name] for name in class_of]
    if not has_splits:
        chosen = [_in_test(str(p.relative_to(root))) == (split == "test") for p in paths]
        paths = [p for p, c in zip(paths, chosen, strict=True) if c]
        labels = [label for label, c in zip(labels, chosen, strict=True) if c]
        if not paths:
            raise ValueError(f"dataset: too few images in {root} to have a {split} part; make train and test folders")
    captions = _TextFiles(paths) if paths[0].with_suffix(".txt").is_file() else None
    return LabelledImages(paths, labels, class_names, resolution, captions=captions)


class _TextFiles:
    """The texts of the `.txt` files with the images' names, read when they are needed."""

    def __init__(self, images: list[Path]) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> str:
        file = self.images[index].with_suffix(".txt")
        try:
            return file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise OSError(f"dataset: expected the caption of {self.images[index].name} in {file}: {error}") from error


def _images_below(root: Path) -> list[Path]:
    paths = sorted(p for p in root.rglob("[!.]*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
    if not paths:
        suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
        raise OSError(f"dataset: no image in {root} (looked for {suffixes}, in subfolders too)")
    return paths


def _class_folder(path: Path, root: Path) -> str:
    """Name of the class folder of an image; empty where it lies in none."""
    parts = path.relative_to(root).parts
    return parts[0] if len(parts) > 1 else ""


def _arrays(path: Path, resolution: int, split: str) -> LabelledImages:
    """An `.npz` with `images` (items, height, width, 3), uint8 or floats in [0, 1], and maybe `labels`, `class_names`
    and `captions`; a tenth is held out."""
    try:
        with np.load(path, allow_pickle=False) as file:
            names = ("images", "labels", "class_names", "captions")
            arrays = {name: file[name] for name in names if name in file}
            found = ", ".join(file) or "nothing"
    except Exception as error:  # zip, pickle and format errors, each of its own kind
        raise OSError(f"dataset: {path} is not readable as an .npz file ({first_line(error)})") from error
    if "images" not in arrays:
        raise ValueError(f"dataset: expected an array `images` in {path}, found {found}")
    images = arrays["images"]
    labels = arrays.get("labels", np.zeros(len(images), dtype=np.int64))
    names = [str(name) for name in arrays["class_names"]] if "class_names" in arrays else None
    if images.ndim != 4 or images.shape[1:] != (resolution, resolution, 3):
        raise ValueError(f"images: expected (items, {resolution}, {resolution}, 3), got {images.shape} in {path}")
    if images.dtype != np.uint8:
        bad = np.flatnonzero(~((images >= 0) & (images <= 1)).all(axis=(1, 2, 3)))  # NaN is neither
        if len(bad):
            raise ValueError(f"images: expected uint8, or finite floats in [0, 1]; item {bad[0]} of {path} is not")
        images = np.round(images * 255).astype(np.uint8)
    labels = _class_ids(labels, len(images))
    names = names or [str(n) for n in range(labels.max(initial=0) + 1)]
    captions = arrays.get("captions")
    if captions is not None and len(captions) != len(images):
        raise ValueError(f"captions: expected {len(images)}, one an image, got {len(captions)} in {path}")
    chosen = np.array([_in_test(str(i)) for i in range(len(images))]) == (split == "test")
    captions = None if captions is None else [str(text) for text in captions[chosen]]
    return LabelledImages(images[chosen], labels[chosen], names, resolution, captions=captions)


def _in_test(name: str) -> bool:
    return hashlib.sha256(name.encode()).digest()[0] < 26  # about a tenth


class _Column:
    """A column of a `datasets.Dataset`, by index."""

    def __init__(self, dataset, column: str) -> None:
        self.dataset, self.column = dataset, column

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Image.Image | str:
        return self.dataset[int(index)][self.column]


def _hub(name: str, resolution: int, split: str) -> LabelledImages:
    try:
        import datasets
    except ImportError as error:
        raise OSError("dataset: hf:… needs the package datasets; pip install 'iclr26-pixnerd[hub]'") from error
    try:
        splits = datasets.load_dataset(name)
    except Exception as error:  # network, access and layout each raise their own kinds
        raise OSError(f"dataset: cannot load hf:{name} ({type(error).__name__}: {first_line(error)})") from error
    tests = [s for s in ("validation", "valid", "val", "test") if s in splits]
    if "train" not in splits:
        raise ValueError(f"dataset: hf:{name} has the splits {', '.join(splits)}, but no train")
    data = splits["train" if split == "train" or not tests else tests[0]]
    if not tests:  # a tenth is held out
        data = data.select([i for i in range(len(data)) if _in_test(str(i)) == (split == "test")])
    images = [c for c, f in data.features.items() if isinstance(f, datasets.Image)]
    classes = [c for c, f in data.features.items() if isinstance(f, datasets.ClassLabel)]
    if not images:
        raise ValueError(f"dataset: hf:{name} has no image column, only {', '.join(data.features)}")
    texts = [c for c in TEXT_COLUMNS if c in data.features]
    captions = _Column(data.select_columns(texts[:1]), texts[0]) if texts else None
    pictures = _Column(data.select_columns(images[:1]), images[0])
    labels, names = [0] * len(data), [name]
    if classes:
        labels, names = data[classes[0]][:], data.features[classes[0]].names
    return LabelledImages(pictures, labels, names, resolution, captions=captions)


class StepSampler(Sampler[list[int]]):
    """Indices of each micro-batch of one process, from `start` on without end.

    Which sample stands at which place of which global batch depends on the seed alone: not on the number of
    processes, and an interrupted run goes on where it stood without reading what it has seen.

    Args:
        dataset: gives the number of items, and classes and groups when `balanced`.
        batch_size: of the global batch.
        micro_batches: places of this process in the global batch, from `places_of`.
        balanced: draw a class, then a group of variants in it, then a variant, each uniformly, instead of epochs.
    """

    def __init__(
        self,
        dataset: LabelledImages,
        batch_size: int,
        micro_batches: list[range],
        seed: int,
        balanced: bool,
        start: int,
    ) -> None:
        self.dataset, self.batch_size, self.micro_batches = dataset, batch_size, micro_batches
        self.seed, self.balanced, self.start = seed, balanced, start
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0))
        if balanced:
            self._tree = _by_class_and_group(dataset.labels, dataset.groups)

    def __iter__(self) -> Iterator[list[int]]:
        step = self.start
        while True:
            for places in self.micro_batches:
                yield [self._index(step, place) for place in places]
            step += 1

    def _index(self, step: int, place: int) -> int:
        if self.balanced:
            choice = np.random.default_rng((self.seed, step, place))
            groups = self._tree[choice.integers(len(self._tree))]
            variants = groups[choice.integers(len(groups))]
            return int(variants[choice.integers(len(variants))])
        epoch, position = divmod(step * self.batch_size + place, len(self.dataset))
        if self._order[0] != epoch:
            self._order = (epoch, np.random.default_rng((self.seed, epoch)).permutation(len(self.dataset)))
        return int(self._order[1][position])


def _by_class_and_group(labels: np.ndarray, groups: np.ndarray) -> list[list[np.ndarray]]:
    """Item numbers by class, then by group; classes without items are left out."""

    def split(items: np.ndarray, keys: np.ndarray) -> list[np.ndarray]:
        return np.split(items, np.flatnonzero(np.diff(keys[items])) + 1)

    by_class = np.lexsort((groups, labels))  # in a class by group, in a group by number
    return [split(members, groups) for members in split(by_class, labels)]


def places_of(batch_size: int, processes: int, rank: int, accumulation: int) -> list[range]:
    """Places in the global batch of each micro-batch of process `rank`; together all processes cover it once."""
    if batch_size % (processes * accumulation):
        raise ValueError(
            f"batch_size: expected a multiple of processes x gradient_accumulation = {processes} x {accumulation}, "
            f"got {batch_size}"
        )
    size = batch_size // (processes * accumulation)
    return [range(start, start + size) for start in ((m * processes + rank) * size for m in range(accumulation))]
