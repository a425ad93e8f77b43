"""Measure a trained PixNerd against what it has not seen: `python evaluate.py --model outputs/demo`."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import yaml
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from pixnerd import PixNerdPipeline, PixNerdScheduler
from pixnerd.cli import as_dict, run
from pixnerd.data import LabelledImages, load_images, to_float
from pixnerd.flow import draw, interpolate, velocity_loss
from pixnerd.pictures import beside, grid
from pixnerd.sampling import choose_device, sample_many

try:
    from iclr26_tools.comparison import FeatureSets, compare, split_known
    from iclr26_tools.features import Extractor, extract, load_extractor
    from iclr26_tools.images import NpzWriter
    from iclr26_tools.probe import agreement, fit_probe, nearest_neighbours
    from iclr26_tools.results import environment, save, table
    from iclr26_tools.statistics import Interval, bootstrap_interval
except ImportError as error:
    raise SystemExit(f"evaluate.py: error: {error}; it needs iclr26-tools and what its README section names") from error

TIMES = (0.1, 0.3, 0.5, 0.7, 0.9)


@dataclass
class EvaluateConfig:
    """Evaluate a model with and without guidance: distances, scores, a classifier's agreement, nearest images."""

    model: str = "outputs/demo"
    """Folder of a saved pipeline, or its Hub id."""
    dataset: str | None = None
    """As in train.py (default: what the model was trained on)."""
    cache_dir: Path | None = None
    """Where rendered OpenMoji are kept (default: ~/.cache/iclr26-pixnerd)."""
    extractor: str = "efficientnet-lite0@96"
    """Network whose features are compared: efficientnet-lite0[@side], inception[:file] (sFID and the Inception score
    too), or a transformers model (no score)."""
    images: int = 500
    """Held-out images at most, and as many samples of their classes, with guidance and without, from the same seeds."""
    train_images: int = 3000
    """Training images at most: for the classifier, the nearest neighbours, the floor and the PCA of Fréchet distances,
    which takes over below five images a side and feature."""
    probe_images: int = 240
    """Samples, of all classes equally and with guidance only, whose class the classifier names."""
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
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the network; the state is float32 in any case."""
    output: Path | None = None
    """Folder for evaluation.json and evaluation.png (default: the model's, or outputs for a Hub id)."""
    record: str | None = None
    """Also write results/NAME.json and results/NAME.png here, which the README shows."""
    adm_npz: Path | None = None
    """Only write samples to this .npz, for the ADM evaluator: number i from seed + i, the classes in turn. The same
    command goes on after an interruption."""
    adm_images: int = 50000
    """Samples in it: a multiple of the number of classes has equally many of each."""


def main(config: EvaluateConfig) -> None:
    start = time.monotonic()
    for name, least in dict(images=3, train_images=3, probe_images=1, batch_size=1, adm_images=1).items():
        if getattr(config, name) < least:
            raise ValueError(f"{name}: expected at least {least}, got {getattr(config, name)}")
    device = choose_device(config.device)
    pipeline = PixNerdPipeline.from_pretrained(config.model, torch_dtype=getattr(torch, config.dtype)).to(device)
    pipeline.scheduler = PixNerdScheduler.from_config(
        pipeline.scheduler.config, solver=config.solver, guidance_interval=config.guidance_interval
    )
    sample = partial(sample_many, pipeline, batch_size=config.batch_size, num_inference_steps=config.steps)
    side, classes = pipeline.transformer.config.sample_size, pipeline.transformer.config.num_classes
    if config.adm_npz is not None:
        write_adm_npz(partial(sample, guidance_scale=config.guidance, progress=False), side, classes, config)
        return
    extractor = load_extractor(config.extractor, device)
    folder = config.output or (Path(config.model) if Path(config.model).is_dir() else Path("outputs"))
    folder.mkdir(parents=True, exist_ok=True)
    training_file = Path(config.model) / "training.yaml"
    training = yaml.safe_load(training_file.read_text(encoding="utf-8")) if training_file.is_file() else {}
    dataset = config.dataset or training.get("dataset", "openmoji")
    train, held_out = (load_images(dataset, side, split, config.cache_dir) for split in ("train", "test"))
    if len(train.class_names) != classes:
        raise ValueError(f"dataset: {dataset} has {len(train.class_names)} classes, the model {classes}")

    # Images: what the model was not trained on, as many samples of the same classes, samples of all classes alike
    rng = np.random.default_rng(config.seed)
    held_out = held_out.subset(np.sort(rng.permutation(len(held_out))[: config.images]))
    train = train.subset(np.sort(rng.permutation(len(train))[: config.train_images]))
    floor = matching(train.labels, held_out.labels, rng)
    requests = [number % classes for number in range(config.probe_images)]
    arms = {f"guidance {config.guidance:g}": config.guidance} if config.guidance != 1 else {}
    arms["no guidance"] = 1.0
    samples = {arm: sample(held_out.labels.tolist(), config.seed, guidance_scale=scale) for arm, scale in arms.items()}
    alike = sample(requests, config.seed + len(held_out), guidance_scale=config.guidance)
    real, known = held_out.all_images(), train.all_images()

    def features(network: Extractor) -> tuple[Tensor, FeatureSets]:
        of_samples = {arm: extract(network, images, config.batch_size) for arm, images in samples.items()}
        of_real, of_known = (extract(network, images, config.batch_size) for images in (real, known))
        return of_known, FeatureSets(of_samples, of_real, *split_known(of_known, floor))

    # Distances and scores, each beside what real images of the same classes reach
    known_f, sets = features(extractor)
    compared = compare(sets, extractor, config.seed)
    network, _, weights = config.extractor.partition(":")
    if network == "inception":
        spatial = load_extractor(f"inception-spatial:{weights}", device)
        compared.add_frechet("sfid", "sFID", features(spatial)[1], spatial.name, config.seed)
    for measure, reason in compared.missing.items():
        print(f"no {measure}: {reason}")
    alike_f = extract(extractor, alike, config.batch_size)
    everything = torch.cat([known_f, sets.held_out])
    classified, agreement_rows = classify(train, held_out, everything, alike_f, requests, config.seed)
    loss = held_out_loss(pipeline, held_out, real, config, device)
    others = [None] * (len(arms) - 1)  # the classifier names guided samples only, the loss knows of no guidance
    rows = [*compared.rows, *([name, ours, *others, theirs] for name, ours, theirs in agreement_rows)]
    rows.append(["held-out velocity loss", *others, loss, None])

    seconds = time.monotonic() - start
    report = {
        "model": config.model,
        "dataset": dataset,
        **compared.reports,
        "held_out_velocity_loss": loss.as_dict(),
        **classified,
        "seconds": seconds,
        "config": as_dict(config),
    }
    (folder / "evaluation.json").write_text(json.dumps(report, indent=1, default=as_plain) + "\n", encoding="utf-8")
    picture = sheet(train, alike, requests, known)
    picture.save(folder / "evaluation.png")

    for name, *values in rows:
        cells = zip([*arms, "real images"], values, strict=True)
        print(name, *(f"    {column:16} {value:.3f}" for column, value in cells if value is not None), sep="\n")
    print(f"wrote {folder / 'evaluation.json'} and {folder / 'evaluation.png'} ({seconds:.0f} s)")
    if config.record:
        record(config, training, list(arms), rows, seconds, picture, len(held_out))


def write_adm_npz(sample: Callable, side: int, classes: int, config: EvaluateConfig) -> None:
    """Samples of all classes alike, as the ADM evaluator reads them.

    Args:
        sample: f(conditions, seed), uint8 images.
    """
    file, count = config.adm_npz, config.adm_images
    if file.suffix != ".npz" or file.exists():
        raise ValueError(f"adm_npz: expected a new file such as samples.npz, got {file}")
    names = ("model", "steps", "solver", "guidance", "guidance_interval", "seed", "dtype")
    writer = NpzWriter(file, (count, side, side), {name: as_dict(config)[name] for name in names})
    with tqdm(desc=f"sampling {file.name}", total=count, initial=writer.done, unit="image") as progress:
        while writer.done < count:
            numbers = range(writer.done, min(writer.done + config.batch_size, count))
            writer.append(sample([number % classes for number in numbers], config.seed + writer.done))
            progress.update(len(numbers))
    writer.finish()
    print(f"wrote {file}: {count} samples of {classes} classes")


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
            prediction = transformer(interpolate(x, noise, t).to(transformer.dtype), t, y).sample.float()
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


def record(
    config, training: dict, arms: list[str], rows: list, seconds: float, picture: Image.Image, held_out: int
) -> None:
    """results/NAME.json and .png of this project."""
    project = Path(__file__).parent
    caption = f"{training.get('steps', '?')} steps; {held_out} samples of the classes of {held_out} held-out images"
    if len(arms) > 1:
        caption += "; guidance at times in ({:g}, {:g})".format(*config.guidance_interval)
    columns = ["measure", *((arm, ".3f") for arm in arms), ("real images, same number", ".3f")]
    data = {key: value for key, value in training.items() if key not in ("output_dir", "cache_dir", "resume")}
    save(
        project / "results" / f"{config.record}.json",
        title="PixNerd, trained by make demo",
        claim=None,
        metric="distances, scores, agreement, velocity loss",
        arms=dict.fromkeys(arms, "samples of the averaged weights, the same seeds in every arm")
        | {"real images": "training images of the same classes"},
        budget="demo",
        seeds=[training.get("seed", 0)],
        config={"train": data, "evaluate": as_dict(config)},
        tables={"evaluation": table(caption, columns, [["–" if cell is None else cell for cell in r] for r in rows])},
        verdict=None,
        environment=environment(["torch", "diffusers", "accelerate"], seconds, project),
        code_paths=["src", "train.py", "evaluate.py"],
    )
    picture.save(project / "results" / f"{config.record}.png")
    print(f"wrote {project / 'results' / config.record}.json and .png")


def as_plain(value):
    return value.as_dict() if isinstance(value, Interval) else value.item()


if __name__ == "__main__":
    run(main, EvaluateConfig)
