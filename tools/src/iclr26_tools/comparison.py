"""Several sets of samples beside real images: the measures of `image_metrics` as one table."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from torch import Tensor

from iclr26_tools.features import Extractor, class_logits
from iclr26_tools.image_metrics import (
    frechet_distance_report,
    inception_score_report,
    kernel_distance_report,
    pca_if_few,
    precision_recall,
)
from iclr26_tools.statistics import Interval


class FeatureSets(NamedTuple):
    """Features by one network, (N, dim) each."""

    samples: dict[str, Tensor]
    """By arm."""
    held_out: Tensor
    """Of real images that no arm was trained on."""
    floor: Tensor
    """Of other real images, which are compared with the held-out ones as the samples are."""
    training: Tensor
    """Of training images in none of the other sets, on which a PCA is fitted."""


def split_known(features: Tensor, floor: np.ndarray) -> tuple[Tensor, Tensor]:
    """Features of known images, (N, dim), as those of the items `floor` and those of all others."""
    return features[floor], features[np.setdiff1d(np.arange(len(features)), floor)]


@dataclass
class Comparison:
    """What `compare` found."""

    reports: dict[str, dict] = field(default_factory=dict)
    """{measure: {arm: report}}, for JSON."""
    rows: list[list] = field(default_factory=list)
    """[name, value of each arm, value of real images], for `results.table`."""
    missing: dict[str, str] = field(default_factory=dict)
    """{measure: why it is not there}."""

    def add(self, key: str, name: str, reports: dict[str, dict], ours: str, theirs: str) -> None:
        """Add the reports of all arms, with what each reached under `ours` and what real images did under `theirs`."""
        first, *_ = reports.values()
        values = [*(report[ours] for report in reports.values()), first[theirs]]
        self.reports[key] = reports
        self.rows.append([f"{name} ({first['network']})", *map(_cell, values)])

    def add_frechet(self, key: str, name: str, sets: FeatureSets, network: str, seed: int = 0) -> None:
        """Add the Fréchet distance: of whole features where there are five images a side and feature, else after a PCA
        to 64 dimensions, as the row's name then says; missing where images are too few for that too."""
        samples, held_out, floor, training = sets
        try:
            pca = pca_if_few(training, min(len(x) for x in (held_out, floor, *samples.values())))
            reports = {
                arm: frechet_distance_report(x, held_out, floor, network, pca, seed) for arm, x in samples.items()
            }
        except ValueError as error:
            self.missing[name] = str(error)
        else:
            self.add(key, f"{name}, {pca.name}" if pca else name, reports, "distance", "floor")


def compare(sets: FeatureSets, extractor: Extractor, seed: int = 0) -> Comparison:
    """KID, Fréchet distance, score of the extractor's classifier, precision and recall of every arm.

    Distances are those to the held-out images; the column of real images has those of `sets.floor`, and its score.

    Args:
        sets: features by `extractor`.
        seed: of the order of samples.
    """
    samples, held_out, floor, _ = sets
    network, result = extractor.name, Comparison()
    kid = {arm: kernel_distance_report(x, held_out, floor, network, seed=seed) for arm, x in samples.items()}
    result.add("kid", "KID to held-out images", kid, "distance", "floor")
    result.add_frechet("frechet", "Fréchet distance", sets, network, seed)
    try:
        real = class_logits(extractor, floor)
        scores = {
            arm: inception_score_report(class_logits(extractor, x), real, network, seed=seed)
            for arm, x in samples.items()
        }
    except ValueError as error:  # no classifier, or too few images
        result.missing["score"] = str(error)
    else:
        result.add("score", next(iter(scores.values()))["metric"], scores, "score", "real")
    covered = [precision_recall(x, held_out) for x in (*samples.values(), floor)]
    result.reports["precision_recall"] = dict(zip([*samples, "real images"], covered, strict=True))
    for measure in ("precision", "recall"):
        result.rows.append([f"{measure} ({network})", *(getattr(pair, measure) for pair in covered)])
    return result


def _cell(value: dict) -> Interval | float:
    return Interval(**value) if "low" in value else value["value"]
