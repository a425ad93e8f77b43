"""Energies over the steps, as a picture."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

GREY = "#7f8792"


def plot_energies(energy: np.ndarray, update: np.ndarray, tokens: Sequence[str], file: Path, trained: int) -> None:
    """Energy of each token after each step, and how far it moved: a line a token, dark to light in their order.

    Args:
        energy: (steps + 1, tokens).
        update: lengths of the moves, (steps, tokens).
        tokens: as words; shown below where they are few.
        file: a picture to write.
        trained: the number of steps of the training, marked where more were taken.
    """
    figure = Figure(figsize=(12, 4.2), layout="constrained", dpi=160)
    left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1, 1.25])
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.92, len(tokens)))
    for a, colour in enumerate(colours):
        left.plot(energy[:, a] - energy[0, a], color=colour, lw=1.6)
        middle.plot(range(1, len(update) + 1), update[:, a], color=colour, lw=1.6)
    left.set(title="energy of a token, less its first", xlabel="step")
    middle.set(title="length of its move", xlabel="step", yscale="log")
    for axes in (left, middle):
        if len(update) > trained:
            axes.axvline(trained, color=GREY, ls="--", lw=1)
            axes.text(trained, 1.01, "as trained", color=GREY, fontsize=8, ha="center", transform=axes.get_xaxis_transform())
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    shown = energy - energy[0]
    bound = max(abs(shown).max(), 1e-12)
    image = right.imshow(shown, aspect="auto", cmap="RdBu_r", vmin=-bound, vmax=bound)
    right.set(title="the same, token by token", ylabel="step")
    if len(tokens) <= 40:
        right.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=7)
    figure.colorbar(image, ax=right)
    figure.savefig(file)
