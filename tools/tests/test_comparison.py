import numpy as np
import pytest
import torch

from iclr26_tools.comparison import Comparison, FeatureSets, compare, split_known


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Net:
    """An extractor without a classifier."""

    name, dim = "net", 2


class Classifier(Net):
    def classify(self, features):
        return 1e4 * features


def sets(n=60, dim=2, training=100, **samples):
    real = [normal(k, dim, seed=i) for i, k in enumerate((n, n, training))]
    return FeatureSets({arm: normal(n, dim, seed=9) + shift for arm, shift in samples.items()}, *real)


def test_known_features_are_split_into_the_floor_and_all_others():
    features = torch.arange(6.0)[:, None]
    floor, others = split_known(features, np.array([4, 1]))
    assert floor.flatten().tolist() == [4, 1] and others.flatten().tolist() == [0, 2, 3, 5]


def test_each_arm_has_its_distance_and_real_images_the_floor():
    result = compare(sets(near=0.0, far=10.0), Net())
    rows = {name: values for name, *values in result.rows}
    assert list(rows) == ["KID to held-out images (net)", "Fréchet distance (net)", "precision (net)", "recall (net)"]
    near, far, real = rows["Fréchet distance (net)"]
    assert far == pytest.approx(200, rel=0.1) and near < 1 and real < 1  # the means are (10, 10) apart
    near, far, real = rows["KID to held-out images (net)"]
    assert near.low < 0 < near.high and real.low < 0 < real.high and far.low > near.high
    near, far, real = rows["precision (net)"]
    assert near > 0.8 and far == 0 and real > 0.8
    assert result.reports["frechet"]["far"]["floor"]["value"] == rows["Fréchet distance (net)"][2]
    assert result.reports["precision_recall"]["real images"].precision == real


def test_samples_of_one_spot_are_precise_and_recall_little_and_a_far_floor_is_far():
    held_out, far = normal(60, 2, seed=1), normal(60, 2, seed=2) + 10
    spot = FeatureSets({"spot": 0.01 * normal(60, 2)}, held_out, far, normal(100, 2))
    result = compare(spot, Net())
    rows = {name: values for name, *values in result.rows}
    assert rows["precision (net)"] == [1, 0] and rows["recall (net)"][0] < 0.3
    assert rows["KID to held-out images (net)"][0].high < rows["KID to held-out images (net)"][1].low
    assert result.reports["kid"]["spot"]["floor"]["value"] > 10


def test_one_small_set_is_enough_for_a_pca():
    features = sets(n=360, dim=70, training=90, arm=0.0)
    for small in (dict(floor=features.floor[:340]), dict(samples={"arm": features.samples["arm"][:340]})):
        result = Comparison()
        result.add_frechet("sfid", "sFID", features._replace(**small), "net")
        assert [row[0] for row in result.rows] == ["sFID, PCA to 64 dimensions of 90 training samples (net)"]


def test_below_five_samples_a_dimension_the_frechet_distance_says_that_it_is_after_a_pca():
    features = sets(n=330, dim=70, training=90, arm=0.0)
    result = Comparison()
    result.add_frechet("sfid", "sFID", features, "net")
    assert [row[0] for row in result.rows] == ["sFID, PCA to 64 dimensions of 90 training samples (net)"]
    result = Comparison()
    result.add_frechet("sfid", "sFID", features._replace(training=features.training[:64]), "net")
    assert not result.rows and "fewer than the 64 training samples" in result.missing["sFID"]
    result.add_frechet("sfid", "sFID", features._replace(held_out=features.held_out[:319]), "net")
    assert not result.rows and "at least 5 samples per dimension (320)" in result.missing["sFID"]


def test_the_score_is_that_of_the_extractors_classifier_and_missing_without_one():
    assert "expected one with a classifier" in compare(sets(arm=0.0), Net()).missing["score"]
    certain = torch.eye(2).repeat(30, 1)
    one_class = torch.eye(2)[:1].repeat(60, 1)
    with_noise = FeatureSets({"all": certain, "one": one_class}, one_class, certain, normal(100, 2))
    result = compare(with_noise, Classifier())
    (values,) = (values for name, *values in result.rows if name == "classifier score, 10 splits of 6 (net)")
    assert values[1].value == pytest.approx(1) and 1.5 < values[0].value <= 2 and 1.5 < values[2].value <= 2
    few = FeatureSets({"arm": certain[:19]}, normal(60, 2), certain, normal(100, 2))
    assert "N >= 20" in compare(few, Classifier()).missing["score"]
