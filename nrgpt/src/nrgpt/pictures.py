"""Energies over the steps, as a picture."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

GREY = "#7f8792"


def plot_energies(
    energy: np.ndarray,
    update: np.ndarray,
    tokens: Sequence[str],
    file: Path,
    trained: int | None = None,
    every: int = 1,
) -> None:
    """Energy of each token after each step, less its first, and how far it moved: dark to light in their order.

    Args:
        energy: (states, tokens), from the first state on.
        update: lengths of the moves, (moves, tokens).
        tokens: as words.
        file: a picture to write.
        trained: the number of steps of the training, marked where more were taken.
        every: steps from one of these states to the next.
    """
    figure = Figure(figsize=(12, 4.2), layout="constrained", dpi=160)
    left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1, 1.25])
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.92, len(tokens)))
    fallen = energy - energy[0]
    for a, colour in enumerate(colours):
        left.plot(every * np.arange(len(energy)), fallen[:, a], color=colour, lw=1.6)
        middle.plot(every * np.arange(len(update)) + 1, update[:, a], color=colour, lw=1.6)
    left.set(title="energy of a token, less its first", xlabel="step")
    middle.set(title="length of its move", xlabel="step", yscale="log")
    for axes in (left, middle):
        if trained is not None and every * (len(energy) - 1) > trained:
            axes.axvline(trained, color=GREY, ls="--", lw=1)
            axes.text(trained, 0.02, " as trained", color=GREY, fontsize=8, transform=axes.get_xaxis_transform())
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    bound = max(abs(fallen).max(), 1e-12)
    extent = (-0.5, len(tokens) - 0.5, every * (len(energy) - 0.5), -0.5 * every)
    image = right.imshow(fallen, aspect="auto", cmap="RdBu_r", vmin=-bound, vmax=bound, extent=extent)
    right.set(title="the same, token by token", ylabel="step")
    if len(tokens) <= 40:
        right.set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=7)
    figure.colorbar(image, ax=right)
    figure.savefig(file)
