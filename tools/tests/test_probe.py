import numpy as np
import pytest
import torch

from iclr26_tools.probe import agreement, fit_probe, nearest_neighbours


def blobs(n=60, gap=8.0, seed=0):
    """Three classes, `gap` apart."""
    labels = np.repeat(["ant", "bee", "cow"], n)
    centres = np.repeat(np.eye(3) * gap, n, axis=0)
    return centres + np.random.default_rng(seed).normal(size=centres.shape), labels


def test_a_probe_is_perfect_on_separable_classes_and_at_chance_on_noise():
    features, labels = blobs()
    probe = fit_probe(features, labels)
    assert probe.accuracy.value == 1 and probe.accuracy.n == 45 and probe.chance == pytest.approx(1 / 3)
    assert (probe.predict(torch.tensor(features)) == labels).all()
    noise = fit_probe(np.random.default_rng(1).normal(size=(600, 3)), np.arange(600) % 3)
    assert noise.accuracy.low < 1 / 3 < noise.accuracy.high


def test_groups_never_straddle_the_split():
    # every group has a fingerprint and a random label: memory of the group is the only way to be right
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(60), 10)
    features = rng.normal(size=(60, 40))[groups] + 0.01 * rng.normal(size=(600, 40))
    labels = rng.integers(2, size=60)[groups]
    assert fit_probe(features, labels).accuracy.value > 0.9
    honest = fit_probe(features, labels, groups)
    assert honest.accuracy.value < 0.8 and honest.accuracy.n == 15


def test_agreement_counts_hits_beside_both_kinds_of_chance():
    features, labels = blobs()
    probe = fit_probe(features, labels)
    requested = labels.copy()
    requested[:30] = "bee"  # half of the ants were asked to be bees
    found = agreement(probe, features, requested)
    assert found.share.value == pytest.approx(150 / 180) and found.share.low < 150 / 180 < found.share.high
    assert found.chance_uniform == pytest.approx(1 / 3)
    # requested 30, 90, 60 of 180; predicted 60, 60, 60
    assert found.chance_permuted == pytest.approx(1 / 3)
    bee = next(row for row in found.classes if row["class"] == "bee")
    assert bee["share"].value == pytest.approx(60 / 90) and bee["most_frequent"] == "bee"


def test_permuted_chance_is_the_mean_over_permutations():
    features, labels = blobs()
    probe = fit_probe(features, labels)
    features, requested = features[:90], labels[:90]  # 60 ants, 30 bees
    rng = np.random.default_rng(0)
    predicted = probe.predict(features)
    mean = np.mean([(predicted == rng.permutation(requested)).mean() for _ in range(2000)])
    assert agreement(probe, features, requested).chance_permuted == pytest.approx(mean, abs=0.01)
    assert mean > 0.53  # and not one half


def test_nearest_neighbours_by_brute_force():
    query, reference = torch.randn(7, 3, 4, 4), torch.randn(11, 3, 4, 4)
    indices, distances = nearest_neighbours(query, reference, 2, "l2", chunk=3)
    brute = torch.stack([torch.stack([(q - r).square().sum().sqrt() for r in reference]) for q in query])
    assert torch.equal(indices, brute.argsort(1)[:, :2])
    assert torch.allclose(distances, brute.sort(1).values[:, :2], atol=1e-4)
    indices, distances = nearest_neighbours(reference[4:5] * 3, reference, metric="cosine")  # scale is nothing
    assert indices.item() == 4 and distances.item() == pytest.approx(0, abs=1e-5)


def test_bad_input_is_named():
    features, labels = blobs()
    with pytest.raises(ValueError, match="labels: expected one label"):
        fit_probe(features, labels[1:])
    with pytest.raises(ValueError, match="at least two classes"):
        fit_probe(features, np.zeros(180))
    with pytest.raises(ValueError, match=r"none is left of \['cow'\]"):
        for seed in range(20):  # one group holds all cows, and sooner or later is held out
            fit_probe(features, labels, np.where(labels == "cow", 0, 1 + np.arange(180)), seed=seed)
    with pytest.raises(ValueError, match=r"requested: expected classes of the probe, got \['dog'\]"):
        agreement(fit_probe(features, labels), features[:1], ["dog"])
    with pytest.raises(ValueError, match="k: expected"):
        nearest_neighbours(torch.ones(1, 2), torch.ones(1, 2), 2)
    with pytest.raises(ValueError, match="metric: expected"):
        nearest_neighbours(torch.ones(1, 2), torch.ones(1, 2), metric="l1")
