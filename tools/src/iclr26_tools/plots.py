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
    _draw_curves(axes, curves, log)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.legend(frameon=False, labelcolor=INK)
    _write(figure, path)


def plot_panels(
    path: str | Path,
    panels: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[Interval | float]]]],
    *,
    xlabel: str,
    ylabel: str,
    references: Mapping[str, tuple[str, float]] | None = None,
    log: str = "",
) -> None:
    """Panels side by side with one y axis, each with the curves of `plot_curves`; an arm has one colour in all.

    Args:
        panels: {title: {name: (x, y)}}.
        references: {title: (label, value)} of horizontal lines, such as a bound.
        log: "", "x", "y" or "xy": logarithmic axes.
    """
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    figure, first = _canvas((3.2 * len(panels) + 0.6, 3.4), columns=len(panels))
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    for axes, (title, curves) in zip(figure.axes, panels.items(), strict=True):
        _draw_curves(axes, curves, log, dict(zip(names, COLORS * (1 + len(names) // len(COLORS)), strict=False)))
        axes.set_title(title, color=INK, fontweight="bold")
        axes.set_xlabel(xlabel)
        if "y" in log:  # numbers, where powers of ten would stand alone
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        if title in (references or {}):
            label, value = references[title]
            axes.axhline(value, color=INK, linestyle="--", linewidth=1)
            axes.annotate(
                label, (1, value), xycoords=("axes fraction", "data"), color=INK, ha="right", va="bottom", fontsize=8
            )
    first.set_ylabel(ylabel)
    lines = {line.get_label(): line for axes in figure.axes for line in axes.get_lines()}
    figure.legend(
        [lines[name] for name in names],
        names,
        loc="outside upper center",
        ncols=len(names),
        frameon=False,
        labelcolor=INK,
    )
    _write(figure, path)


def _draw_curves(axes, curves: Mapping, log: str, colors: Mapping[str, str] | None = None) -> None:
    if "x" in log:
        axes.set_xscale("log")
    if "y" in log:
        axes.set_yscale("log")
    for i, (name, (x, y)) in enumerate(curves.items()):
        color = colors[name] if colors else COLORS[i % len(COLORS)]
        if len(x) != len(y):
            raise ValueError(f"curves: expected as many y as x for {name!r}, got {len(y)} and {len(x)}")
        axes.plot(x, [p.value if isinstance(p, Interval) else p for p in y], color=color, linewidth=2, label=name)
        if all(isinstance(p, Interval) for p in y):
            axes.fill_between(x, [p.low for p in y], [p.high for p in y], color=color, alpha=0.2, linewidth=0)
    axes.grid(color=INK, alpha=0.25, linewidth=0.6)


def _canvas(size: tuple[float, float], title: str = "", columns: int = 1):
    """A figure, and its first axes of `columns` side by side that share the y axis."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no pyplot: needs no display, leaves no global state
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    for axes in figure.subplots(1, columns, sharey=True, squeeze=False)[0]:
        axes.patch.set_alpha(0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(INK)
        axes.tick_params(colors=INK, which="both")
        axes.xaxis.label.set_color(INK)
        axes.yaxis.label.set_color(INK)
    first = figure.axes[0]
    first.set_title(title, color=INK, pad=18, fontweight="bold") if title else None
    return figure, first


def _write(figure, path: str | Path) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if Path(path).suffix == ".svg" else {"Software": None}  # same numbers, same file
    figure.savefig(path, dpi=200, transparent=True, metadata=metadata)
