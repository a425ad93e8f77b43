"""Speed and memory for benchmarks: interleaved medians with intervals, and peak memory in a process of its own."""

import ctypes
import gc
import multiprocessing
import os
import pickle
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import stats
from tqdm import tqdm

from iclr26_tools.statistics import Interval, check_level


@dataclass(frozen=True)
class Timings:
    """Seconds of each function (median), and its ratio to the first (median over rounds; below 1 is faster)."""

    seconds: dict[str, Interval]
    ratios: dict[str, Interval]
    rounds: dict[str, list[float]]
    threads: int
    device: str


def interleaved(
    fns: Mapping[str, Callable[[], object]],
    pairs: int = 20,
    warmup: int = 3,
    level: float = 0.95,
    progress: bool = False,
) -> Timings:
    """Time functions in turn, so that a slow minute of the machine meets all of them.

    Every round calls each function once, in an order that is reversed from round to round. The intervals are the
    distribution-free ones of a median (`scipy.stats.quantile_test`). A GPU's queue is empty before and after each call.

    Args:
        fns: {name: function without arguments}; ratios are to the first.
        pairs: rounds that count, at least 6: with fewer, a median has no 95 % interval.
        warmup: rounds before them.
    """
    if not fns:
        raise ValueError("fns: expected at least one function")
    if pairs < 6 or warmup < 0:
        raise ValueError(f"pairs, warmup: expected at least 6 and 0, got {pairs} and {warmup}")
    check_level(level)
    names, times = list(fns), {name: [] for name in fns}
    for i in tqdm(range(warmup + pairs), desc="rounds", disable=not progress, leave=False):
        for name in names if i % 2 == 0 else reversed(names):
            seconds = _seconds(fns[name])
            if i >= warmup:
                times[name].append(seconds)
    first = np.array(times[names[0]])
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return Timings(
        {name: median_interval(times[name], level) for name in names},
        {name: median_interval(np.array(times[name]) / first, level) for name in names},
        times,
        torch.get_num_threads(),
        device,
    )


def _seconds(fn: Callable[[], object]) -> float:
    _synchronize()
    start = time.perf_counter()
    fn()
    _synchronize()
    return time.perf_counter() - start


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def median_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """Median with its distribution-free interval, two order statistics; below 6 values there is none at 95 %."""
    values = np.asarray(values, dtype=np.float64)
    median = float(np.median(values))
    interval = stats.quantile_test(values, q=median, p=0.5).confidence_interval(level)
    return Interval(median, float(interval.low), float(interval.high), len(values), level, "order statistics")


def peak_memory(fn: Callable, setup: Callable[[], object] | None = None, device: str = "cpu") -> int:
    """Bytes that `fn` needs at its peak, beyond what was held before it, measured in a fresh process.

    Args:
        fn: called without arguments, or with what `setup` returned. It must be importable from the new process: a
            function of a module, or `functools.partial` of one; not a lambda.
        setup: makes what counts as held before (a model, a batch).
        device: "cpu" (resident memory) or "cuda" (PyTorch's allocator).

    Raises:
        ValueError: `fn` cannot be sent to another process.
        OSError: the process died, most likely for want of memory.
    """
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device: expected 'cpu' or 'cuda', got {device!r}")
    try:
        pickle.dumps((fn, setup))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"fn: expected a function of a module (it runs in a process of its own), got {fn!r}"
        ) from error
    # spawned, not forked: a forked child shares the parent's pages and can hang in OpenMP
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_peak, fn, setup, device, torch.get_num_threads()).result()
        except BrokenProcessPool as error:
            raise OSError(f"the process that measures {fn!r} died; is there enough memory?") from error


def _peak(fn: Callable, setup: Callable[[], object] | None, device: str, threads: int) -> int:
    torch.set_num_threads(threads)
    arguments = () if setup is None else (setup(),)
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        fn(*arguments)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    before = _resident()
    fn(*arguments)
    return max(_highest() - before, 0)


def _resident() -> int:
    """Resident bytes now; also puts the recorded peak back to them where the system can (Linux)."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what the set-up freed is no longer held: glibc keeps it for the next caller
    except (AttributeError, OSError, TypeError):
        pass  # another C library
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return _highest()


def _highest() -> int:
    """Peak resident bytes. On Linux not `ru_maxrss`, which a spawned process inherits from its parent."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
