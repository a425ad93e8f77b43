"""Photographs that come inside of pip packages, cut into small images: scikit-learn's and some of scikit-image's."""

import importlib.util
import itertools
from pathlib import Path

import numpy as np

from .data import LabelledImages, read_image

PHOTOGRAPHS = (
    ("sklearn", "scikit-learn", ("datasets/images/china.jpg", "datasets/images/flower.jpg")),
    ("skimage", "scikit-image", ("data/coffee.png", "data/hubble_deep_field.jpg", "data/rocket.jpg")),
)


def crops(resolution: int, split: str) -> LabelledImages:
    """Crops of the photographs in scikit-learn and scikit-image, at half their size; the class is the photograph.

    The left three quarters are for training. Both parts are cut into tiles of two crops a side, and a tile is a group:
    crops overlap inside of a tile only.
    """
    images, labels, groups, names = [], [], [], []
    side, step = 2 * resolution, max(1, resolution // 4)
    for file in files():
        pixels = np.asarray(read_image(file).reduce(2))  # (height, width, 3)
        border = pixels.shape[1] * 3 // 4
        pixels = pixels[:, :border] if split == "train" else pixels[:, border:]
        corners = [range(0, size - side + 1, side) for size in pixels.shape[:2]]
        for top, left in itertools.product(*corners):
            for y, x in itertools.product(range(0, side - resolution + 1, step), repeat=2):
                images.append(pixels[top + y : top + y + resolution, left + x : left + x + resolution])
                labels.append(len(names))
                groups.append((len(names), top, left))
        names.append(file.stem)
    if not images:
        raise ValueError(f"resolution: expected photographs to have a tile of {side} pixels in each part")
    _, groups = np.unique(groups, axis=0, return_inverse=True)
    return LabelledImages(np.stack(images), labels, names, resolution, groups)


def files() -> list[Path]:
    """Where the photographs are, which come inside of two packages."""
    paths = []
    for module, package, names in PHOTOGRAPHS:
        found = importlib.util.find_spec(module)
        if found is None:
            raise OSError(
                f"dataset photographs: the package {package} is missing; pip install 'iclr26-pixnerd[photographs]'"
            )
        folder = Path(found.submodule_search_locations[0])
        paths += [folder / name for name in names]
    if missing := next((file for file in paths if not file.is_file()), None):
        raise OSError(f"dataset photographs: no {missing}; install another version of the package that should hold it")
    return paths
