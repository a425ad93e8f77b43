import numpy as np
import pytest
from scipy import stats

from iclr26_tools import statistics as st


def test_bootstrap_covers_the_mean_of_a_skewed_sample_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(300):
        interval = st.bootstrap_interval(rng.exponential(size=60), n=400)
        inside += interval.low <= 1 <= interval.high
    assert 0.90 <= inside / 300 <= 0.98  # three standard errors around 0.94


def test_bootstrap_over_clusters_sees_that_copies_are_no_new_information():
    values = np.random.default_rng(0).normal(size=40)
    alone = st.bootstrap_interval(values, method="percentile")
    copies = st.bootstrap_interval(np.repeat(values, 10), groups=np.repeat(np.arange(40), 10), method="percentile")
    blind = st.bootstrap_interval(np.repeat(values, 10), method="percentile")
    width = alone.high - alone.low
    assert copies.n == 40
    assert copies.high - copies.low == pytest.approx(width, rel=0.1)
    assert blind.high - blind.low == pytest.approx(width / np.sqrt(10), rel=0.1)


def test_bootstrap_takes_a_statistic_and_repeats_itself():
    values = np.random.default_rng(0).normal(size=101)
    one, two = (st.bootstrap_interval(values, np.median, seed=3) for _ in range(2))
    assert one == two and one.value == np.median(values)
    assert one.low < one.value < one.high


def test_equal_values_have_an_interval_without_width():
    interval = st.bootstrap_interval([2.0, 2.0, 2.0])
    assert (interval.low, interval.high) == (2.0, 2.0)


@pytest.mark.parametrize("n", [3, 5, 12])
def test_the_detectable_effect_is_detected_four_times_in_five(n):
    values = np.random.default_rng(0).normal(size=(40_000, n))
    one = (values[0] - values[0].mean()) / values[0].std(ddof=1)  # its spread is the true one
    shifted = values + st.detectable_effect(one)
    low = shifted.mean(1) - stats.t.ppf(0.975, n - 1) * stats.sem(shifted, axis=1)
    assert (low > 0).mean() == pytest.approx(0.8, abs=0.01)
    assert st.detectable_effect([2.0, 2.0, 2.0]) == 0
    with pytest.raises(ValueError, match="power: expected"):
        st.detectable_effect(one, power=0.2)


def test_t_interval_is_the_textbook_one():
    # mean 3, standard deviation sqrt(2.5), t(0.975, 4) = 2.7764451
    interval = st.t_interval([1, 2, 3, 4, 5])
    assert interval.high == pytest.approx(3 + 2.7764451 * np.sqrt(2.5 / 5), abs=1e-6)
    assert interval.low == pytest.approx(6 - interval.high)


def test_wilson_is_the_textbook_formula():
    k, n, z = 7, 20, stats.norm.ppf(0.975)
    p = k / n
    centre, half = p + z**2 / (2 * n), z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    interval = st.wilson_interval(k, n)
    assert interval.low == pytest.approx((centre - half) / (1 + z**2 / n))
    assert interval.high == pytest.approx((centre + half) / (1 + z**2 / n))
    assert st.wilson_interval(0, 5).low == 0 and st.wilson_interval(5, 5).high == 1


def test_iqm_is_the_mean_of_the_middle_half():
    scores = np.array([[0.0, 100.0], [3.0, 4.0], [5.0, 6.0], [-50.0, 1000.0]])  # middle half: 3, 4, 5, 6 … of eight
    assert st.iqm(scores).value == pytest.approx(np.mean([0, 3, 4, 5, 6, 100][1:-1]))
    assert st.iqm([1, 2, 3, 4]).value == 2.5


def test_iqm_resamples_runs_within_a_task_and_never_across_tasks():
    scores = np.tile([0.0, 1.0, 2.0, 3.0], (5, 1))  # runs agree exactly; only the tasks differ
    interval = st.iqm(scores)
    assert interval.low == interval.value == interval.high == 1.5


def test_paired_difference_uses_the_pairs():
    noise = np.array([5.0, -3.0, 8.0, 1.0, -6.0])
    interval = st.paired_difference(noise + [1.1, 0.9, 1.0, 1.2, 0.8], noise)
    assert interval.value == pytest.approx(1.0) and interval.sign == 1
    half = stats.t.ppf(0.975, 4) * np.sqrt(0.025 / 5)  # variance of the differences: 0.1 / 4
    assert interval.high == pytest.approx(1 + half)
    assert st.paired_difference(noise, noise + [1.1, 0.9, 1.0, 1.2, 0.8]).sign == -1
    assert st.paired_difference({1: 2.0, 2: 3.0}, {2: 3.0, 1: 1.0}).value == 0.5
    assert st.paired_difference([1.0, -1.0, 0.5], [0, 0, 0], method="bootstrap").sign == 0


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: st.bootstrap_interval([1.0]), "values: expected at least 2"),
        (lambda: st.bootstrap_interval([1.0, np.nan]), "values: expected finite"),
        (lambda: st.bootstrap_interval([1.0, 2.0], groups=[0]), "groups: expected one label per value"),
        (lambda: st.bootstrap_interval([1.0, 2.0], groups=[0, 0]), "groups: expected at least two"),
        (lambda: st.bootstrap_interval([1.0, 2.0], level=95), "level: expected"),
        (lambda: st.wilson_interval(3, 2), "successes, n: expected"),
        (lambda: st.iqm([[[1.0]]]), "scores: expected"),
        (lambda: st.paired_difference({1: 0.0, 2: 1.0}, {1: 0.0, 3: 1.0}), "same seeds"),
        (lambda: st.paired_difference([1.0, 2.0], [1.0, 2.0, 3.0]), "as many results"),
        (lambda: st.paired_difference([1.0, 2.0], [1.0, 2.0], method="z"), "method: expected"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
