import functools
import time

import numpy as np
import pytest

from iclr26_tools.timing import interleaved, peak_memory


def test_every_round_calls_each_function_once_in_alternating_order():
    calls = []
    found = interleaved({name: functools.partial(calls.append, name) for name in "abc"}, pairs=6, warmup=2)
    assert calls == list("abccba") * 4
    assert [len(times) for times in found.rounds.values()] == [6, 6, 6]


def test_a_sleep_is_timed_and_its_ratio_is_known():
    sleeps = {"one": functools.partial(time.sleep, 0.01), "three": functools.partial(time.sleep, 0.03)}
    found = interleaved(sleeps, pairs=10, warmup=1)
    assert found.seconds["one"].value >= 0.01 and found.seconds["three"].value >= 0.03  # a sleep is never shorter
    assert found.ratios["one"].value == 1
    ratio, rounds = found.ratios["three"], np.array(found.rounds["three"]) / np.array(found.rounds["one"])
    assert ratio.value == pytest.approx(np.median(rounds))
    # ten values: the order statistics 2 and 9 make the 95 % interval of a median (97.9 % by the binomial)
    assert (ratio.low, ratio.high) == (np.sort(rounds)[1], np.sort(rounds)[8])


def test_too_few_rounds_are_refused():
    with pytest.raises(ValueError, match="at least 6"):
        interleaved({"a": int}, pairs=5)
    with pytest.raises(ValueError, match="fns"):
        interleaved({})


def test_peak_memory_counts_what_a_function_holds_and_not_what_was_there():
    ballast = np.ones(30_000_000)  # 240 MB in this process must not count
    touched = functools.partial(np.ones, 12_500_000)  # 100 MB
    assert 95e6 < peak_memory(touched) < 130e6
    # the batch of 100 MB is there before; its negative is new
    assert 95e6 < peak_memory(np.negative, setup=touched) < 130e6
    assert len(ballast) == 30_000_000


def test_peak_memory_forgets_a_higher_peak_before():
    # the set-up holds 200 MB for a moment and returns the size of an array of 100 MB
    setup = functools.partial(eval, "int(__import__('numpy').ones(25_000_000).sum()) // 2")
    assert 95e6 < peak_memory(np.ones, setup) < 130e6


def test_peak_memory_counts_what_takes_the_place_of_what_the_setup_freed():
    # 100 MB in blocks that the C library keeps when they are freed: the last one lies above them
    code = "import sys, numpy; blocks = [*map(numpy.ones, [6250] * 2000)]; sys.last = blocks.pop(); del blocks"
    blocks = functools.partial(exec, code)
    assert peak_memory(blocks, setup=blocks) > 90e6


def test_peak_memory_names_what_it_cannot_do():
    with pytest.raises(ValueError, match="fn: expected a function of a module"):
        peak_memory(lambda: 0)
    with pytest.raises(ValueError, match="device: expected"):
        peak_memory(int, device="tpu")
