"""Plain charts of arms with intervals, on a transparent ground, readable on light and dark pages."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from iclr26_tools.statistics import Interval

INK = "#7d8590"  # about the same contrast on GitHub's white and its near-black
COLORS = ("#2f81f7", "#db6d28", "#3fb950", "#bf5fd6", "#d29922", "#e5534b", "#2aa198", "#8b949e")


def plot(
    path: str | Path,
    arms: Mapping[str, Interval | float | None],
    *,
    xlabel: str,
    title: str = "",
    reference: tuple[str, float] | None = None,
) -> None:
    """One row per arm: a dot with its interval.

    Args:
        path: .png or .svg file.
        arms: {name: result}, drawn from top to bottom; None is written as "missing".
        xlabel: the metric, its unit, and which way is better.
        reference: (label, value) of a vertical line, such as chance or the real-real floor.
    """
    figure, axes = _canvas((6.4, 0.9 + 0.42 * len(arms)), title)
    for row, arm in enumerate(arms.values()):
        color = COLORS[row % len(COLORS)]
        if arm is None:
            axes.annotate(
                "missing", (0.5, row), xycoords=("axes fraction", "data"), color=INK, ha="center", va="center"
            )
            continue
        value = arm.value if isinstance(arm, Interval) else arm
        if isinstance(arm, Interval):
            axes.plot([arm.low, arm.high], [row, row], color=color, linewidth=2.5, solid_capstyle="round")
        axes.plot([value], [row], "o", color=color, markersize=7)
    if reference:
        axes.axvline(reference[1], color=INK, linestyle="--", linewidth=1)
        axes.annotate(
            reference[0], (reference[1], 1), xycoords=("data", "axes fraction"), color=INK, ha="center", va="bottom"
        )
    axes.set_yticks(range(len(arms)), list(arms))
    axes.set_ylim(len(arms) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(xlabel)
    axes.grid(axis="x", color=INK, alpha=0.25, linewidth=0.6)
    _write(figure, path)


def plot_curves(
    path: str | Path,
    curves: Mapping[str, tuple[Sequence[float], Sequence[Interval | float]]],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    log: str = "",
) -> None:
    """One line per arm with the interval as a band.

    Args:
        path: .png or .svg file.
        curves: {name: (x, y)}.
        log: "", "x", "y" or "xy": logarithmic axes.
    """
    figure, axes = _canvas((6.4, 3.6), title)
    for (name, (x, y)), color in zip(curves.items(), COLORS * (1 + len(curves) // len(COLORS)), strict=False):
        if len(x) != len(y):
            raise ValueError(f"curves: expected as many y as x for {name!r}, got {len(y)} and {len(x)}")
        axes.plot(x, [p.value if isinstance(p, Interval) else p for p in y], color=color, linewidth=2, label=name)
        if all(isinstance(p, Interval) for p in y):
            axes.fill_between(x, [p.low for p in y], [p.high for p in y], color=color, alpha=0.2, linewidth=0)
    if "x" in log:
        axes.set_xscale("log")
    if "y" in log:
        axes.set_yscale("log")
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(color=INK, alpha=0.25, linewidth=0.6)
    axes.legend(frameon=False, labelcolor=INK)
    _write(figure, path)


def _canvas(size: tuple[float, float], title: str):
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no pyplot: needs no display, leaves no global state
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.tick_params(colors=INK, which="both")
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.set_title(title, color=INK, pad=18, fontweight="bold") if title else None
    return figure, axes


def _write(figure, path: str | Path) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if Path(path).suffix == ".svg" else {"Software": None}  # same numbers, same file
    figure.savefig(path, dpi=200, transparent=True, metadata=metadata)
