"""A linear probe on features, its agreement with the class that was asked for, and nearest neighbours."""

from collections import Counter
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from iclr26_tools.statistics import Interval, bootstrap_interval, wilson_interval


@dataclass(frozen=True)
class Probe:
    """A linear classifier of features and its accuracy on samples that it was not fitted on."""

    model: object  # scikit-learn pipeline
    accuracy: Interval
    chance: float
    """Accuracy of always naming the most frequent class of the held-out samples."""

    @property
    def classes(self) -> np.ndarray:
        return self.model.classes_

    def predict(self, features: Tensor | np.ndarray) -> np.ndarray:
        """Class of each sample, (N,)."""
        return self.model.predict(_array(features, "features"))

    def probabilities(self, features: Tensor | np.ndarray) -> np.ndarray:
        """Of each of `classes`, (N, classes)."""
        return self.model.predict_proba(_array(features, "features"))


def _array(features: Tensor | np.ndarray, name: str) -> np.ndarray:
    array = np.asarray(features.cpu() if isinstance(features, Tensor) else features, dtype=np.float64)
    if array.ndim != 2 or not len(array):
        raise ValueError(f"{name}: expected features (N, dim), got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: expected finite numbers")
    return array


def _labels(labels: ArrayLike, n: int, name: str) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.shape != (n,):
        raise ValueError(f"{name}: expected one label per sample, ({n},), got {labels.shape}")
    return labels


def fit_probe(
    features: Tensor | np.ndarray,
    labels: ArrayLike,
    groups: ArrayLike | None = None,
    test_share: float = 0.25,
    regularisation: float = 1.0,
    seed: int = 0,
) -> Probe:
    """Fit a logistic regression on standardised features of real images.

    Args:
        features: (N, dim).
        labels: (N,), any hashable kind.
        groups: (N,) samples of one group (variants of one subject) all go to one side of the split; the interval of the
            accuracy is then a bootstrap over groups, else Wilson's.
        test_share: share of the samples (or groups) held out. The probe is not refitted on them, so that the accuracy
            is that of the probe returned.
        regularisation: L2 penalty, scikit-learn's 1 / C; larger for few samples in many dimensions.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupShuffleSplit, StratifiedShuffleSplit
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    features = _array(features, "features")
    labels = _labels(labels, len(features), "labels")
    counts = Counter(labels.tolist())
    if len(counts) < 2 or min(counts.values()) < 2:
        raise ValueError(f"labels: expected at least two classes of at least two samples, got {dict(counts)}")
    if not 0 < test_share < 1:
        raise ValueError(f"test_share: expected a number between 0 and 1, got {test_share}")
    if groups is None:
        split = StratifiedShuffleSplit(1, test_size=test_share, random_state=seed)
    else:
        groups = _labels(groups, len(features), "groups")
        split = GroupShuffleSplit(1, test_size=test_share, random_state=seed)
    train, test = next(split.split(features, labels, groups))
    if lost := sorted(counts.keys() - set(labels[train].tolist())):
        raise ValueError(
            f"groups: expected every class among the training groups, none is left of {lost}; try another seed"
        )
    model = make_pipeline(StandardScaler(), LogisticRegression(C=1 / regularisation, max_iter=2000))
    model.fit(features[train], labels[train])
    right = model.predict(features[test]) == labels[test]
    if groups is None:
        accuracy = wilson_interval(int(right.sum()), len(right))
    else:
        accuracy = bootstrap_interval(right, groups=groups[test], seed=seed)
    return Probe(model, accuracy, max(Counter(labels[test].tolist()).values()) / len(test))


@dataclass(frozen=True)
class Agreement:
    """How often a probe assigns generated images to the class that was asked for.

    `share` stands beside two kinds of chance: `chance_uniform`, 1 / number of requested classes, and `chance_permuted`,
    the expected share after a random permutation of the requests, which a generator that ignores them reaches.
    `classes` has one {"class", "share", "most_frequent"} per requested class.
    """

    share: Interval
    chance_uniform: float
    chance_permuted: float
    classes: list[dict]

    def as_dict(self) -> dict:
        return asdict(self)


def agreement(probe: Probe, features: Tensor | np.ndarray, requested: ArrayLike) -> Agreement:
    """Compare the probe's class of generated images with the requested one.

    Args:
        features: of generated images, (N, dim), by the extractor that the probe was fitted on.
        requested: (N,) classes.
    """
    predicted = probe.predict(features)
    requested = _labels(requested, len(predicted), "requested")
    names = np.unique(requested)
    if unknown := sorted(set(names.tolist()) - set(probe.classes.tolist())):
        raise ValueError(f"requested: expected classes of the probe, got {unknown}")
    hits = predicted == requested
    # mean over all pairings of a request with a prediction
    permuted = sum(float((requested == c).mean() * (predicted == c).mean()) for c in names)
    rows = []
    for c in names:
        mine = requested == c
        rows.append(
            {
                "class": c.item() if hasattr(c, "item") else c,
                "share": wilson_interval(int(hits[mine].sum()), int(mine.sum())),
                "most_frequent": Counter(predicted[mine].tolist()).most_common(1)[0][0],
            }
        )
    return Agreement(wilson_interval(int(hits.sum()), len(hits)), 1 / len(names), permuted, rows)


def nearest_neighbours(
    query: Tensor, reference: Tensor, k: int = 1, metric: str = "cosine", chunk: int = 1024
) -> tuple[Tensor, Tensor]:
    """The `k` nearest of `reference` to each of `query`: the nearest training images of a sample.

    Args:
        query, reference: (N, …) and (M, …): features, or images, which are flattened.
        metric: "cosine" (1 - cosine similarity, for features) or "l2" (for pixels, in their unit).

    Returns:
        Indices and distances, both (N, k), nearest first.
    """
    query, reference = torch.as_tensor(query), torch.as_tensor(reference)
    if query.ndim < 2 or query.shape[1:] != reference.shape[1:]:
        shapes = f"{tuple(query.shape)} and {tuple(reference.shape)}"
        raise ValueError(f"query, reference: expected (N, …) and (M, …) of the same kind, got {shapes}")
    if not 1 <= k <= len(reference):
        raise ValueError(f"k: expected between 1 and the {len(reference)} references, got {k}")
    query, reference = query.flatten(1).float(), reference.flatten(1).float()
    if metric == "cosine":
        query, reference = (torch.nn.functional.normalize(x, dim=1) for x in (query, reference))

        def distance(x):
            return 1 - x @ reference.T
    elif metric == "l2":

        def distance(x):
            return torch.cdist(x, reference)
    else:
        raise ValueError(f"metric: expected 'cosine' or 'l2', got {metric!r}")

    found = [distance(x).topk(k, largest=False) for x in query.split(chunk)]
    return torch.cat([f.indices for f in found]), torch.cat([f.values for f in found])
