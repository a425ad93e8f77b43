"""Measure a trained PixNerd against what it has not seen: `python evaluate.py --model outputs/demo`."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import yaml
from PIL import Image
from torch import Tensor

from pixnerd import PixNerdPipeline, PixNerdScheduler
from pixnerd.cli import as_dict, run
from pixnerd.data import LabelledImages, load_images, to_float
from pixnerd.flow import draw, interpolate, velocity_loss
from pixnerd.pictures import beside, grid
from pixnerd.sampling import choose_device, sample_many

try:
    from iclr26_tools.features import extract, load_extractor
    from iclr26_tools.image_metrics import kernel_distance_report, precision_recall
    from iclr26_tools.probe import agreement, fit_probe, nearest_neighbours
    from iclr26_tools.results import environment, save, table
    from iclr26_tools.statistics import Interval, bootstrap_interval
except ImportError as error:
    raise SystemExit(f"evaluate.py: error: {error}; it needs iclr26-tools and what its README section names") from error

TIMES = (0.1, 0.3, 0.5, 0.7, 0.9)


@dataclass
class EvaluateConfig:
    """Evaluate a model: kernel distance, precision and recall, a classifier's agreement, nearest training images."""

    model: str = "outputs/demo"
    """Folder of a saved pipeline, or its Hub id."""
    dataset: str | None = None
    """As in train.py (default: what the model was trained on)."""
    cache_dir: Path | None = None
    """Where rendered OpenMoji are kept (default: ~/.cache/iclr26-pixnerd)."""
    extractor: str = "efficientnet-lite0@96"
    """Network whose features are compared: efficientnet-lite0[@side], inception[:file], or a transformers model."""
    images: int = 500
    """Held-out images at most, and as many samples of their classes."""
    train_images: int = 3000
    """Training images at most: for the classifier, the nearest neighbours and the floor."""
    probe_images: int = 240
    """Samples, of all classes equally, whose class the classifier names."""
    steps: int = 25
    """Steps of the solver."""
    solver: Literal["euler", "adams"] = "adams"
    """How a step is taken; adams is of order 2."""
    guidance: float = 2.0
    """Guidance scale; 1 for none (paper: 3.5)."""
    guidance_interval: tuple[float, float] = (0.1, 1.0)
    """Times strictly between which guidance acts."""
    batch_size: int = 64
    """Images at once."""
    seed: int = 0
    """Of samples and subsets."""
    device: str | None = None
    """cuda, mps or cpu (default: the best there is)."""
    output: Path | None = None
    """Folder for evaluation.json and evaluation.png (default: the model's, or outputs for a Hub id)."""
    record: str | None = None
    """Also write results/NAME.json and results/NAME.png here, which the README shows."""


def main(config: EvaluateConfig) -> None:
    start = time.monotonic()
    for name, least in dict(images=3, train_images=3, probe_images=1, batch_size=1).items():
        if getattr(config, name) < least:
            raise ValueError(f"{name}: expected at least {least}, got {getattr(config, name)}")
    device = choose_device(config.device)
    extractor = load_extractor(config.extractor, device)
    pipeline = PixNerdPipeline.from_pretrained(config.model).to(device)
    folder = config.output or (Path(config.model) if Path(config.model).is_dir() else Path("outputs"))
    folder.mkdir(parents=True, exist_ok=True)
    pipeline.scheduler = PixNerdScheduler.from_config(
        pipeline.scheduler.config, solver=config.solver, guidance_interval=config.guidance_interval
    )
    training_file = Path(config.model) / "training.yaml"
    training = yaml.safe_load(training_file.read_text(encoding="utf-8")) if training_file.is_file() else {}
    dataset = config.dataset or training.get("dataset", "openmoji")
    side, classes = pipeline.transformer.config.sample_size, pipeline.transformer.config.num_classes
    train, held_out = (load_images(dataset, side, split, config.cache_dir) for split in ("train", "test"))
    if len(train.class_names) != classes:
        raise ValueError(f"dataset: {dataset} has {len(train.class_names)} classes, the model {classes}")

    # Images: what the model was not trained on, as many samples of the same classes, samples of all classes alike
    rng = np.random.default_rng(config.seed)
    held_out = held_out.subset(np.sort(rng.permutation(len(held_out))[: config.images]))
    train = train.subset(np.sort(rng.permutation(len(train))[: config.train_images]))
    requests = [number % classes for number in range(config.probe_images)]
    wanted = [*held_out.labels.tolist(), *requests]
    options = {"num_inference_steps": config.steps, "guidance_scale": config.guidance}
    samples = sample_many(pipeline, wanted, config.seed, config.batch_size, **options)
    like_held_out, alike = samples[: len(held_out)], samples[len(held_out) :]
    real, known = held_out.all_images(), train.all_images()
    real_f, known_f, like_f, alike_f = (
        extract(extractor, images, config.batch_size) for images in (real, known, like_held_out, alike)
    )

    # Distances, each beside what real images of the same classes reach
    floor = matching(train.labels, held_out.labels, rng)
    kid = kernel_distance_report(like_f, real_f, known_f[floor], extractor.name, seed=config.seed)
    fake, ceiling = precision_recall(like_f, real_f), precision_recall(known_f[floor], real_f)
    loss = held_out_loss(pipeline, held_out, real, config, device)
    classified, agreement_rows = classify(train, held_out, torch.cat([known_f, real_f]), alike_f, requests, config.seed)

    seconds = time.monotonic() - start
    report = {
        "model": config.model,
        "dataset": dataset,
        "kid": kid,
        "precision_recall": {"samples": fake, "real": ceiling},
        "held_out_velocity_loss": loss.as_dict(),
        **classified,
        "seconds": seconds,
        "config": as_dict(config),
    }
    (folder / "evaluation.json").write_text(json.dumps(report, indent=1, default=as_plain) + "\n", encoding="utf-8")
    picture = sheet(train, alike, requests, known)
    picture.save(folder / "evaluation.png")

    rows = [
        [f"KID to held-out images ({extractor.name})", interval(kid["distance"]), interval(kid["floor"])],
        ["precision", fake.precision, ceiling.precision],
        ["recall", fake.recall, ceiling.recall],
        *agreement_rows,
        ["held-out velocity loss", loss, None],
    ]
    for name, samples_value, real_value in rows:
        print(f"{name:60} {shown(samples_value):26} real: {shown(real_value)}")
    print(f"wrote {folder / 'evaluation.json'} and {folder / 'evaluation.png'} ({seconds:.0f} s)")
    if config.record:
        record(config, training, rows, seconds, picture, len(held_out))


def classify(
    train: LabelledImages, held_out: LabelledImages, real: Tensor, samples: Tensor, requests: list[int], seed: int
) -> tuple[dict, list]:
    """What a classifier of real images, one of each group of variants, makes of the samples: report and table rows.

    Args:
        real, samples: features of the training and held-out images, and of samples of `requests`.
    """
    groups = np.concatenate([train.groups, held_out.groups + train.groups.max() + 1])
    labels = np.concatenate([train.labels, held_out.labels])
    one = np.unique(groups, return_index=True)[1]
    try:
        probe = fit_probe(real[one], labels[one], seed=seed)
        agreed = agreement(probe, samples, requests)
    except ValueError as error:  # one class, or too few images of some
        print(f"no classifier: {error}")
        return {}, []
    rows = [
        ["a classifier of real images gives the class asked for", agreed.share, probe.accuracy],
        ["the same, by chance (any class; the most frequent)", agreed.chance_uniform, probe.chance],
    ]
    return {"classifier_accuracy": probe.accuracy.as_dict(), "agreement": agreed.as_dict()}, rows


def matching(labels: np.ndarray, wanted: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Items of `labels` with the classes of `wanted`, as many of each as there are, so that shares do not differ."""
    chosen = []
    for label in np.unique(wanted):
        members = rng.permutation(np.flatnonzero(labels == label))
        chosen.append(members[: (wanted == label).sum()])
    return np.concatenate(chosen)


@torch.no_grad()
def held_out_loss(
    pipeline: PixNerdPipeline, data: LabelledImages, images: Tensor, config: EvaluateConfig, device: str
) -> Interval:
    """Mean squared velocity error on held-out images at five times, with noise that depends on the seed alone.

    Args:
        images: those of `data`, uint8.
    """
    transformer, losses = pipeline.transformer, []
    images, labels = to_float(images), torch.from_numpy(data.labels)
    for start in range(0, len(data), config.batch_size):
        x, y = (v[start : start + config.batch_size].to(device) for v in (images, labels))
        places = range(start, start + len(x))
        noise = draw(config.seed, 0, places, tuple(x.shape[1:]), torch.device("cpu"))["noise"].to(device)
        of_batch = []
        for time_ in TIMES:
            t = torch.full((len(x),), time_, device=device)
            prediction = transformer(interpolate(x, noise, t), t, y).sample
            of_batch.append(velocity_loss(prediction, x, noise, t, pipeline.scheduler.config.prediction_type))
        losses.append(torch.stack(of_batch).mean(0))
    return bootstrap_interval(torch.cat(losses).cpu().numpy(), groups=data.groups, seed=config.seed)


def sheet(data: LabelledImages, samples: Tensor, requests: list[int], known: Tensor) -> Image.Image:
    """Samples, a row for each class, and beside them two of each with the training image nearest to it in pixels."""
    shown = min(12, len(data.class_names), len(requests))
    by_class = [[i for i, label in enumerate(requests) if label == row] for row in range(shown)]
    columns = min(8, *map(len, by_class))
    left = grid(
        torch.cat([samples[rows[:columns]] for rows in by_class]), columns, scale=2, row_names=data.class_names[:shown]
    )
    pairs = [i for rows in by_class for i in rows[:2]]
    nearest = nearest_neighbours(samples[pairs].float(), known.float(), metric="l2")[0][:, 0]
    both = torch.stack([samples[pairs], known[nearest]], dim=1).flatten(0, 1)
    right = grid(both, 2 * len(by_class[0][:2]), scale=2)
    return beside(left, right, ["samples", "sample | nearest training image, twice"])


def record(config, training: dict, rows: list, seconds: float, picture: Image.Image, held_out: int) -> None:
    """results/NAME.json and .png of this project."""
    project = Path(__file__).parent
    caption = f"{training.get('steps', '?')} steps; {held_out} samples of the classes of {held_out} held-out images"
    columns = ["measure", ("samples", ".3f"), ("real images, same number", ".3f")]
    data = {key: value for key, value in training.items() if key not in ("output_dir", "cache_dir", "resume")}
    save(
        project / "results" / f"{config.record}.json",
        title="PixNerd, trained by make demo",
        claim=None,
        metric="KID, precision, recall, agreement, velocity loss",
        arms={"samples": "the averaged weights", "real images": "training images of the same classes"},
        budget="demo",
        seeds=[training.get("seed", 0)],
        config={"train": data, "evaluate": as_dict(config)},
        tables={"evaluation": table(caption, columns, [[n, s, "–" if r is None else r] for n, s, r in rows])},
        verdict=None,
        environment=environment(["torch", "diffusers", "accelerate"], seconds, project),
        code_paths=["src", "train.py", "evaluate.py"],
    )
    picture.save(project / "results" / f"{config.record}.png")
    print(f"wrote {project / 'results' / config.record}.json and .png")


def interval(cell: dict) -> Interval:
    return Interval(**{key: cell[key] for key in ("value", "low", "high", "n")})


def shown(value) -> str:
    return "" if value is None else f"{value:.3f}"


def as_plain(value):
    return value.as_dict() if isinstance(value, Interval) else value.item()


if __name__ == "__main__":
    run(main, EvaluateConfig)
