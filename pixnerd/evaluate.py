"""Measure a trained PixNerd against what it has not seen: `python evaluate.py --model outputs/demo`."""

import json
import textwrap
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

from pixnerd import PixNerdScheduler, PixNerdTextToImagePipeline
from pixnerd.cli import as_dict, run
from pixnerd.data import LabelledImages, load_images, to_float
from pixnerd.files import expect_model
from pixnerd.flow import draw, interpolate, velocity_loss
from pixnerd.pictures import beside, grid
from pixnerd.pipeline import PixelPipeline
from pixnerd.prompt_benchmarks import write_dpg, write_geneval
from pixnerd.sampling import choose_device, load_pipeline, sample_many

try:
    from iclr26_tools.comparison import FeatureSets, compare, split_known
    from iclr26_tools.features import Extractor, extract, load_extractor
    from iclr26_tools.images import NpzWriter
    from iclr26_tools.probe import agreement, fit_probe, nearest_neighbours
    from iclr26_tools.results import environment, save, table
    from iclr26_tools.statistics import Interval, bootstrap_interval
except ImportError as error:
    where = "git+https://github.com/iclr26/papers#subdirectory=tools"
    raise SystemExit(f'evaluate.py: error: {error}; pip install "iclr26-tools @ {where}"') from error

TIMES = (0.1, 0.3, 0.5, 0.7, 0.9)


@dataclass
class EvaluateConfig:
    """Evaluate a model with and without guidance: distances, scores, a classifier's agreement, nearest images."""

    model: str = "outputs/demo"
    """Folder of a saved pipeline, or its Hub id."""
    dataset: str | None = None
    """As in train.py (default: what the model says that it was trained on)."""
    cache_dir: Path | None = None
    """Where rendered OpenMoji are kept (default: ~/.cache/iclr26-pixnerd)."""
    text_encoder: str | None = None
    """Of a text-to-image model, as in train.py (default: what it was trained with)."""
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
    solver: Literal["euler", "adams"] | None = None
    """How a step is taken, if not as saved: adams of order 2 (paper: euler for class-conditional models)."""
    solver_order: int | None = None
    """Order of adams, 1 to 4, if not as saved: 2."""
    shift: float | None = None
    """Time shift of the grid, if not as saved (paper: 1 for class-conditional models, 3 for text to image)."""
    guidance: float = 2.0
    """Guidance scale; 1 for none (paper: 3.5; text to image 4)."""
    guidance_interval: tuple[float, float] | None = None
    """Times strictly between which guidance acts (default: as saved; paper: 0.1, 1; text to image 0, 1)."""
    batch_size: int = 64
    """Images at once."""
    seed: int = 0
    """Of samples and subsets."""
    device: str | None = None
    """cuda, mps or cpu (default: the best there is)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the network and of a text encoder; the state is float32 in any case."""
    output: Path | None = None
    """Folder for evaluation.json and evaluation.png (default: the model's, or outputs for a Hub id)."""
    record: str | None = None
    """Also write results/NAME.json and results/NAME.png here, which the README shows."""
    adm_npz: Path | None = None
    """Only write samples to this .npz, for the ADM evaluator: number i from seed + i, the classes in turn. The same
    command goes on after an interruption."""
    adm_images: int = 50000
    """Samples in it: a multiple of the number of classes has equally many of each."""
    geneval: Path | None = None
    """Only write the images that GenEval scores, from seeds 0 to 3, of the prompts in this evaluation_metadata.jsonl,
    into output (default: outputs/geneval)."""
    dpg: Path | None = None
    """Only write the images that DPG-Bench scores, from seeds 0 to 3, of the .txt prompts in this folder, into output
    (default: outputs/dpg)."""


def main(config: EvaluateConfig) -> None:
    start = time.monotonic()
    for name, least in dict(images=3, train_images=3, probe_images=1, batch_size=1, adm_images=1).items():
        if getattr(config, name) < least:
            raise ValueError(f"{name}: expected at least {least}, got {getattr(config, name)}")
    for name in ("geneval", "dpg"):
        if getattr(config, name) is not None and not getattr(config, name).exists():
            raise OSError(f"{name}: expected the benchmark's prompts, found nothing at {getattr(config, name)}")
    device = choose_device(config.device)
    expect_model(config.model)
    pipeline = load_pipeline(config.model, torch_dtype=getattr(torch, config.dtype)).to(device)
    settings = ("solver", "solver_order", "shift", "guidance_interval")
    changed = {name: getattr(config, name) for name in settings if getattr(config, name) is not None}
    pipeline.scheduler = PixNerdScheduler.from_config(pipeline.scheduler.config, **changed)
    text = isinstance(pipeline, PixNerdTextToImagePipeline)
    sample = partial(sample_many, pipeline, batch_size=config.batch_size, num_inference_steps=config.steps)
    if only_written(config, pipeline, partial(sample, guidance_scale=config.guidance, progress=False), text):
        return
    extractor = load_extractor(config.extractor, device)
    folder = config.output or (Path(config.model) if Path(config.model).is_dir() else Path("outputs"))
    folder.mkdir(parents=True, exist_ok=True)
    training_file = Path(config.model) / "training.yaml"
    training = yaml.safe_load(training_file.read_text(encoding="utf-8")) if training_file.is_file() else {}
    dataset, side = config.dataset or training.get("dataset"), pipeline.transformer.config.sample_size
    if dataset is None:
        raise ValueError(f"dataset: expected one, {config.model} does not say what it was trained on")
    train, held_out = (load_images(dataset, side, split, config.cache_dir, text) for split in ("train", "test"))
    if not text and len(train.class_names) != pipeline.transformer.config.num_classes:
        classes = pipeline.transformer.config.num_classes
        raise ValueError(f"dataset: {dataset} has {len(train.class_names)} classes, the model {classes}")

    # Images: what the model was not trained on, and as many samples of the same classes or captions
    rng = np.random.default_rng(config.seed)
    held_out = held_out.subset(np.sort(rng.permutation(len(held_out))[: config.images]))
    train = train.subset(np.sort(rng.permutation(len(train))[: config.train_images]))
    floor = matching(train.labels, held_out.labels, rng)
    if text:
        told, options = read_captions(pipeline, held_out, config)
        sample = partial(sample, **options)
    else:
        told = torch.from_numpy(held_out.labels)
    arms = {f"guidance {config.guidance:g}": config.guidance} if config.guidance != 1 else {}
    arms["no guidance"] = 1.0
    samples = {arm: sample(told, config.seed, guidance_scale=scale) for arm, scale in arms.items()}
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
    reports, rows = compared.reports, compared.rows
    error = partial(held_out_error, pipeline, to_float(real), config=config, device=device)
    if text:
        add_captions(reports, rows, train, held_out, known_f, sets, partial(error, told), config.seed)
        first = next(iter(samples.values()))
        picture = prompt_sheet(held_out, first, real, known)
    else:
        # samples of all classes alike, with guidance only
        requests = [number % len(train.class_names) for number in range(config.probe_images)]
        alike = sample(requests, config.seed + len(held_out), guidance_scale=config.guidance)
        of_alike = extract(extractor, alike, config.batch_size)
        everything = torch.cat([known_f, sets.held_out])
        add_classes(reports, rows, train, held_out, everything, of_alike, requests, error(told), config.seed)
        picture = sheet(train, alike, requests, known)

    seconds = time.monotonic() - start
    scheduler = {name: value for name, value in pipeline.scheduler.config.items() if not name.startswith("_")}
    report = {"model": config.model, "dataset": dataset, **reports, "seconds": seconds, "config": as_dict(config)}
    report["scheduler"] = scheduler
    (folder / "evaluation.json").write_text(json.dumps(report, indent=1, default=as_plain) + "\n", encoding="utf-8")
    picture.save(folder / "evaluation.png")
    for name, *values in rows:
        cells = zip([*arms, "real images"], values, strict=True)
        print(name, *(f"    {column:16} {value:.3f}" for column, value in cells if value is not None), sep="\n")
    print(f"wrote {folder / 'evaluation.json'} and {folder / 'evaluation.png'} ({seconds:.0f} s)")
    if config.record:
        record(config, training, scheduler, list(arms), rows, seconds, picture, len(held_out))


def only_written(config: EvaluateConfig, pipeline: PixelPipeline, sample: Callable, text: bool) -> bool:
    """Write the images of an evaluator elsewhere, if one is asked for.

    Args:
        sample: f(conditions, seed), uint8 images.
    """
    kinds = {"adm_npz": "class-conditional", "geneval": "text-to-image", "dpg": "text-to-image"}
    asked = [name for name in kinds if getattr(config, name) is not None]
    if not asked:
        return False
    if len(asked) > 1:
        raise ValueError(f"{' and '.join(asked)}: expected one at a time")
    if kinds[asked[0]] != ("text-to-image" if text else "class-conditional"):
        raise ValueError(f"{asked[0]}: expected a {kinds[asked[0]]} model, {config.model} is none")
    weights = [file.stat() for file in sorted(Path(config.model).glob("transformer/*.safetensors"))]
    settings = {name: as_dict(config)[name] for name in ("model", "steps", "guidance", "dtype", "text_encoder")}
    settings |= {"weights": [[s.st_size, s.st_mtime_ns] for s in weights]}  # another model may take this folder
    settings |= {"scheduler": {k: v for k, v in pipeline.scheduler.config.items() if not k.startswith("_")}}
    if not text:
        write_adm_npz(sample, pipeline.transformer.config, config, settings | {"seed": config.seed})
        return True
    pipeline.load_text_encoder(config.text_encoder)
    sample = partial(sample, negative_prompt_embeds=pipeline.encode_prompt(""))  # read once for all prompts
    write, where = (write_geneval, config.geneval) if config.geneval else (write_dpg, config.dpg)
    output = config.output or Path("outputs") / asked[0]
    made = write(where, output, lambda prompts, seeds: sample(prompts, seeds[0]), settings)
    print(f"wrote {output}: {made} prompts, four images each; those of all others were there")
    return True


def write_adm_npz(sample: Callable, network, config: EvaluateConfig, settings: dict) -> None:
    """Samples of all classes alike, as the ADM evaluator reads them; what was begun with other settings is refused."""
    file, count, side, classes = config.adm_npz, config.adm_images, network.sample_size, network.num_classes
    if file.suffix != ".npz" or file.exists():
        raise ValueError(f"adm_npz: expected a new file such as samples.npz, got {file}")
    writer = NpzWriter(file, (count, side, side), settings)
    with tqdm(desc=f"sampling {file.name}", total=count, initial=writer.done, unit="image") as progress:
        while writer.done < count:
            numbers = range(writer.done, min(writer.done + config.batch_size, count))
            writer.append(sample([number % classes for number in numbers], config.seed + writer.done))
            progress.update(len(numbers))
    writer.finish()
    print(f"wrote {file}: {count} samples of {classes} classes")


def read_captions(
    pipeline: PixNerdTextToImagePipeline, data: LabelledImages, config: EvaluateConfig
) -> tuple[Tensor, dict]:
    """Features of the captions, (items, text_length, text_dim), and what sampling needs beside them."""
    pipeline.load_text_encoder(config.text_encoder)
    captions = [data.captions[i] for i in range(len(data))]
    batches = range(0, len(captions), config.batch_size)
    features = [pipeline.encode_prompt(captions[start : start + config.batch_size]).cpu() for start in batches]
    return torch.cat(features), {"negative_prompt_embeds": pipeline.encode_prompt("")}


def add_captions(
    reports: dict,
    rows: list,
    train: LabelledImages,
    held_out: LabelledImages,
    known: Tensor,
    sets: FeatureSets,
    error: Callable,
    seed: int,
) -> None:
    """Do samples follow their captions, and does the network use them? With intervals over groups of variants.

    Args:
        known: features of the training images.
        error: velocity error of each held-out image, told the captions in an order.
    """
    arms, groups = list(sets.samples), held_out.groups
    _, one = np.unique(train.groups, return_index=True)
    try:
        probe = fit_probe(known[one], train.labels[one], seed=seed)
        column = np.searchsorted(probe.classes, held_out.labels)
        if not np.array_equal(probe.classes[np.minimum(column, len(probe.classes) - 1)], held_out.labels):
            raise ValueError("a class of the held-out images has no training image")
    except ValueError as problem:  # one class, or too few images of some
        print(f"no classifier: {problem}")
    else:
        right, shuffled = [], []
        for features in (*sets.samples.values(), sets.held_out):
            chances = probe.probabilities(features)
            right.append(bootstrap_interval(chances[np.arange(len(chances)), column], groups=groups, seed=seed))
            shuffled.append(float(chances.mean(0)[column].mean()))  # mean over all pairings of caption and image
        named = "probability that a classifier of real images gives the caption's kind"
        rows += [[named, *right], ["the same, captions shuffled", *shuffled]]
        every = [*arms, "real images"]
        reports["kind"] = {
            "probability": dict(zip(every, right, strict=True)),
            "shuffled": dict(zip(every, shuffled, strict=True)),
            "classifier_accuracy": probe.accuracy,
        }
    matched, other = error(np.arange(len(held_out))), error(others(groups, np.random.default_rng(seed)))
    losses = {
        "matched": bootstrap_interval(matched, groups=groups, seed=seed),
        "shuffled": bootstrap_interval(other, groups=groups, seed=seed),
        "shuffled_minus_matched": bootstrap_interval(other - matched, groups=groups, seed=seed),
    }
    reports["held_out_velocity_loss"] = losses
    empty = [None] * (len(arms) - 1)  # the loss knows of no guidance
    names = ("held-out velocity loss", "the same, captions shuffled", "shuffled − matched, paired by image")
    rows += [[name, *empty, value, None] for name, value in zip(names, losses.values(), strict=True)]


def others(groups: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For each item another one at random, of another group; each item is taken once.

    Raises:
        ValueError: more than half of the items are of one group.
    """
    names, sizes = np.unique(groups, return_counts=True)
    if 2 * sizes.max() > len(groups):
        raise ValueError(f"groups: expected none with more than half of the items, one has {sizes.max()}")
    rank = rng.permutation(len(names))[np.searchsorted(names, groups)]
    in_order = np.lexsort((rng.permutation(len(groups)), rank))  # groups in random order
    partner = np.empty(len(groups), dtype=np.int64)
    partner[in_order] = np.roll(in_order, sizes.max())
    return partner


def add_classes(
    reports: dict,
    rows: list,
    train: LabelledImages,
    held_out: LabelledImages,
    real: Tensor,
    samples: Tensor,
    requests: list[int],
    errors: np.ndarray,
    seed: int,
) -> None:
    """What a classifier of real images, one of each group of variants, makes of samples; the held-out velocity loss.

    Args:
        real, samples: features of the training and held-out images, and of samples of `requests`, with guidance.
        errors: velocity error of each held-out image.
    """
    groups = np.concatenate([train.groups, held_out.groups + train.groups.max() + 1])
    labels = np.concatenate([train.labels, held_out.labels])
    one = np.unique(groups, return_index=True)[1]
    loss = bootstrap_interval(errors, groups=held_out.groups, seed=seed)
    empty = [None] * (len(rows[0]) - 3)  # the classifier names guided samples only, the loss knows of no guidance
    reports["held_out_velocity_loss"] = loss
    try:
        probe = fit_probe(real[one], labels[one], seed=seed)
        agreed = agreement(probe, samples, requests)
    except ValueError as error:  # one class, or too few images of some
        print(f"no classifier: {error}")
    else:
        named = "a classifier of real images gives the class asked for"
        by_chance = "the same, by chance (any class; the most frequent)"
        rows.append([named, agreed.share, *empty, probe.accuracy])
        rows.append([by_chance, agreed.chance_uniform, *empty, probe.chance])
        reports |= {"classifier_accuracy": probe.accuracy, "agreement": agreed.as_dict()}
    rows.append(["held-out velocity loss", *empty, loss, None])


def matching(labels: np.ndarray, wanted: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Items of `labels` with the classes of `wanted`, as many of each as there are, so that shares do not differ."""
    chosen = []
    for label in np.unique(wanted):
        members = rng.permutation(np.flatnonzero(labels == label))
        chosen.append(members[: (wanted == label).sum()])
    return np.concatenate(chosen)


@torch.no_grad()
def held_out_error(
    pipeline: PixelPipeline,
    images: Tensor,
    told: Tensor,
    order: np.ndarray | None = None,
    *,
    config: EvaluateConfig,
    device: str,
) -> np.ndarray:
    """Mean squared velocity error of each image at five times, with noise that depends on the seed alone.

    Args:
        images: in [-1, 1], (items, channels, height, width).
        told: labels (items,) or text features (items, tokens, dim).
        order: item whose condition each image is told; its own if not given.
    """
    transformer, errors = pipeline.transformer, []
    order = torch.arange(len(images)) if order is None else torch.from_numpy(order)
    for start in range(0, len(images), config.batch_size):
        x = images[start : start + config.batch_size].to(device)
        condition = told[order[start : start + config.batch_size].to(told.device)].to(device)
        condition = condition.to(transformer.dtype) if condition.is_floating_point() else condition
        places = range(start, start + len(x))
        noise = draw(config.seed, 0, places, tuple(x.shape[1:]), torch.device("cpu"))["noise"].to(device)
        of_batch = []
        for time_ in TIMES:
            t = torch.full((len(x),), time_, device=device)
            prediction = transformer(interpolate(x, noise, t).to(transformer.dtype), t, condition).sample.float()
            of_batch.append(velocity_loss(prediction, x, noise, t, pipeline.scheduler.config.prediction_type))
        errors.append(torch.stack(of_batch).mean(0))
    return torch.cat(errors).cpu().numpy()


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


def prompt_sheet(data: LabelledImages, samples: Tensor, real: Tensor, known: Tensor, count: int = 36) -> Image.Image:
    """Held-out captions, one of each group of variants: a sample, the training image nearest to it in pixels, and what
    the caption is of."""
    one = np.unique(data.groups, return_index=True)[1]
    chosen = np.sort(one[np.linspace(0, len(one) - 1, min(count, len(one))).round().astype(int)])
    nearest = nearest_neighbours(samples[chosen].float(), known.float(), metric="l2")[0][:, 0]
    triples = torch.stack([samples[chosen], known[nearest], real[chosen]], dim=1)
    parts = []
    for part in np.array_split(np.arange(len(chosen)), 2):
        names = [textwrap.shorten(data.captions[chosen[i]], 34, placeholder="…") for i in part]
        parts.append(grid(triples[part].flatten(0, 1), 3, scale=2, row_names=names))
    return beside(*parts, ["caption: sample, nearest training image, held-out image"] * 2)


def record(
    config: EvaluateConfig,
    training: dict,
    scheduler: dict,
    arms: list[str],
    rows: list,
    seconds: float,
    picture: Image.Image,
    held_out: int,
) -> None:
    """results/NAME.json and .png of this project."""
    project = Path(__file__).parent
    what = "captions" if training.get("text_encoder") else "classes"
    caption = f"{training.get('steps', '?')} steps; {held_out} samples of the {what} of {held_out} held-out images"
    order = f" of order {scheduler['solver_order']}" if scheduler["solver"] == "adams" else ""
    caption += f"; {config.steps} steps of {scheduler['solver']}{order}"
    if len(arms) > 1:
        caption += "; guidance at times in ({:g}, {:g})".format(*scheduler["guidance_interval"])
    columns = ["measure", *((arm, ".3f") for arm in arms), ("real images, same number", ".3f")]
    data = {key: value for key, value in training.items() if key not in ("output_dir", "cache_dir", "resume")}
    save(
        project / "results" / f"{config.record}.json",
        title=f"PixNerd, trained on the {what} of {training.get('dataset', '?')}",
        claim=None,
        metric="distances, scores, agreement, velocity loss",
        arms=dict.fromkeys(arms, "samples of the averaged weights, the same seeds in every arm")
        | {"real images": "training images of the same classes"},
        budget="demo",
        seeds=[training.get("seed", 0)],
        config={"train": data, "evaluate": as_dict(config), "scheduler": scheduler},
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
