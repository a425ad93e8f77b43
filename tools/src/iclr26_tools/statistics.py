"""Intervals: bootstrap, Wilson, interquartile mean, paired differences. Mostly scipy, with one return type."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval.

    `n` counts what was averaged (images, seeds, groups); `method` says how the interval was made.
    """

    value: float
    low: float
    high: float
    n: int
    level: float = 0.95
    method: str = ""

    @property
    def sign(self) -> int:
        """1 if the whole interval is above zero, -1 if it is below, else 0."""
        return int(self.low > 0) - int(self.high < 0)

    def as_dict(self) -> dict:
        """The fields as plain data for JSON."""
        return asdict(self)

    def __format__(self, spec: str) -> str:
        return f"{self.value:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"

    def __str__(self) -> str:
        return format(self, ".4g")


def _vector(values: ArrayLike, name: str, least: int) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) < least:
        raise ValueError(f"{name}: expected at least {least} numbers in one dimension, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: expected finite numbers, got {int((~np.isfinite(array)).sum())} that are not")
    return array


def check_level(level: float) -> None:
    """Raise a ValueError unless `level` can be a confidence level."""
    if not 0 < level < 1:
        raise ValueError(f"level: expected a number between 0 and 1, got {level}")


def bootstrap_interval(
    values: ArrayLike,
    statistic: Callable = np.mean,
    level: float = 0.95,
    n: int = 2000,
    seed: int = 0,
    groups: ArrayLike | None = None,
    method: str = "BCa",
) -> Interval:
    """Bootstrap interval of a statistic of independent values (`scipy.stats.bootstrap`).

    Below about ten values it covers too rarely; for the mean over a few seeds use `t_interval`.

    Args:
        values: (N,) finite numbers.
        statistic: of an array, to a number; vectorised when it takes `axis`.
        n: resamples.
        groups: (N,) label of the cluster of each value; whole clusters are drawn (several images of one
            subject, several states of one episode). Then `Interval.n` counts clusters.
        method: "BCa", "percentile" or "basic".
    """
    values = _vector(values, "values", 2)
    check_level(level)
    if groups is None:
        sample, of_sample = values, statistic
    else:
        groups = np.asarray(groups)
        if groups.shape != values.shape:
            raise ValueError(f"groups: expected one label per value, {values.shape}, got {groups.shape}")
        _, inverse = np.unique(groups, return_inverse=True)
        clusters = [values[inverse == g] for g in range(inverse.max() + 1)]
        if len(clusters) < 2:
            raise ValueError("groups: expected at least two clusters, got one")
        sample = np.arange(len(clusters))

        def of_sample(drawn):
            return statistic(np.concatenate([clusters[int(g)] for g in drawn]))

    value = float(statistic(values))
    if len(np.unique(values)) == 1:  # BCa divides by the spread
        return Interval(value, value, value, len(sample), level, "all values are equal")
    interval = stats.bootstrap(
        (sample,), of_sample, n_resamples=n, confidence_level=level, method=method, random_state=seed
    ).confidence_interval
    what = f"{method} bootstrap" + (" over clusters" if groups is not None else "")
    return Interval(value, float(interval.low), float(interval.high), len(sample), level, what)


def t_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """Student's interval of the mean: right for few seeds whose results are about normal."""
    values = _vector(values, "values", 2)
    check_level(level)
    mean = float(values.mean())
    half = float(stats.t.ppf((1 + level) / 2, len(values) - 1) * stats.sem(values))
    return Interval(mean, mean - half, mean + half, len(values), level, "t")


def detectable_effect(values: ArrayLike, level: float = 0.95, power: float = 0.8) -> float:
    """The true mean at which `t_interval` of as many values of this spread excludes zero with probability `power`.

    From the noncentral t distribution, the spread taken as the true one. With it a result that shows nothing says how
    large an effect would have been seen.
    """
    values = _vector(values, "values", 2)
    check_level(level)
    if not 0.5 <= power < 1:
        raise ValueError(f"power: expected a number from 0.5 to 1, got {power}")
    freedom = len(values) - 1
    critical = stats.t.ppf((1 + level) / 2, freedom)
    errors = optimize.brentq(lambda shift: stats.nct.sf(critical, freedom, shift) - power, 0, 10 * critical)
    return float(errors * stats.sem(values))


def wilson_interval(successes: int, n: int, level: float = 0.95) -> Interval:
    """Wilson's score interval of a proportion."""
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"successes, n: expected 0 <= successes <= n and n >= 1, got {successes} and {n}")
    check_level(level)
    interval = stats.binomtest(int(successes), int(n)).proportion_ci(level, method="wilson")
    return Interval(successes / n, float(interval.low), float(interval.high), int(n), level, "Wilson")


def iqm(scores: ArrayLike, level: float = 0.95, n: int = 2000, seed: int = 0) -> Interval:
    """Interquartile mean over all runs and tasks, with a stratified bootstrap (Agarwal et al. 2021, rliable).

    Args:
        scores: (runs,) or (runs, tasks), normalised so that tasks can be averaged. Runs are drawn with
            replacement within each task; tasks are kept, since a benchmark is not a sample of tasks.
    """
    scores = np.asarray(scores, dtype=np.float64)
    scores = scores[:, None] if scores.ndim == 1 else scores
    if scores.ndim != 2 or len(scores) < 2:
        raise ValueError(f"scores: expected (runs >= 2,) or (runs >= 2, tasks), got shape {scores.shape}")
    if not np.isfinite(scores).all():
        raise ValueError("scores: expected finite numbers")
    check_level(level)
    runs, tasks = scores.shape
    rows = np.random.default_rng(seed).integers(runs, size=(n, runs, tasks))
    drawn = scores[rows, np.arange(tasks)].reshape(n, -1)  # (n, runs * tasks)
    low, high = np.quantile(stats.trim_mean(drawn, 0.25, axis=1), [(1 - level) / 2, (1 + level) / 2])
    value = float(stats.trim_mean(scores.ravel(), 0.25))
    return Interval(value, float(low), float(high), runs, level, "stratified percentile bootstrap of the IQM")


def paired_difference(
    a: Sequence[float] | Mapping[int, float],
    b: Sequence[float] | Mapping[int, float],
    level: float = 0.95,
    method: str = "t",
    n: int = 2000,
    seed: int = 0,
) -> Interval:
    """Mean of a - b over seeds that both arms share; `.sign` says whether it excludes zero.

    Args:
        a: result of each seed, in the same order as `b`, or {seed: result}.
        method: "t" (Student's interval of the differences, the default: honest from two seeds on) or
            "bootstrap" (BCa; for about ten seeds and more, when the differences are skewed).
    """
    if isinstance(a, Mapping) != isinstance(b, Mapping):
        raise ValueError("a, b: expected two sequences or two {seed: result}, got one of each")
    if isinstance(a, Mapping):
        if a.keys() != b.keys():
            raise ValueError(f"a, b: expected the same seeds, got {sorted(a)} and {sorted(b)}")
        a, b = list(a.values()), [b[key] for key in a]
    a, b = _vector(a, "a", 2), _vector(b, "b", 2)
    if len(a) != len(b):
        raise ValueError(f"a, b: expected as many results in each, got {len(a)} and {len(b)}")
    if method == "t":
        return t_interval(a - b, level)
    if method == "bootstrap":
        return bootstrap_interval(a - b, level=level, n=n, seed=seed)
    raise ValueError(f"method: expected 't' or 'bootstrap', got {method!r}")
