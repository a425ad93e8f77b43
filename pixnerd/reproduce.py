"""Does the gain of the neural field over a linear head grow with the patch size? `python reproduce.py`.

Claim, arms and all that fixes the runs stand in configs/reproduce.yaml. Each run leaves a file in results/runs as it
ends; a second call goes on with the rest. `--shard 1/2` and `--shard 2/2` share the arms between two machines or cores;
then `--only timing`, on a quiet machine, and `--report true`, which writes results/reproduce.json and .png.
"""

import bisect
import contextlib
import dataclasses
import functools
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from pixnerd import PixNerdPipeline, PixNerdScheduler, PixNerdTransformer2DModel, cli, linear_head_baseline, photographs
from pixnerd.data import LabelledImages, StepSampler, load_images, places_of, to_float
from pixnerd.ema import EMA
from pixnerd.flow import draw, interpolate, velocity_loss
from pixnerd.layers import patchify
from pixnerd.objective import Objective
from pixnerd.sampling import choose_device, sample_many

try:
    from iclr26_tools import results
    from iclr26_tools.features import extract, load_extractor
    from iclr26_tools.image_metrics import kernel_distance, spectrum_distance
    from iclr26_tools.runs import RunList, share
    from iclr26_tools.statistics import Interval, detectable_effect, t_interval
    from iclr26_tools.timing import interleaved
except ImportError as error:
    raise SystemExit(
        f"reproduce.py: error: {error}; it needs iclr26-tools and what its README section names"
    ) from error

PROJECT = Path(__file__).parent
MODULES = ("flow", "objective", "layers", "embeddings", "neural_field", "transformer", "ema", "scheduler", "pipeline")
MODULES += ("sampling", "data", "openmoji", "photographs", "alignment")
CODE = [*(f"src/pixnerd/{name}.py" for name in MODULES), "reproduce.py"]

TIMES = (0.1, 0.3, 0.5, 0.7, 0.9)
BATCH = 64  # of what is only evaluated
HEADS = {"neural_field": "neural field", "linear": "linear head", "linear_skip": "linear head with skip"}
COMPARISONS = (("linear", "neural_field"), ("linear", "linear_skip"), ("linear_skip", "neural_field"))
METRICS = {"error": "velocity error", "kid": "KID", "spectrum": "spectrum"}


@dataclass
class ReproduceConfig:
    """Measure what the neural field gains over a linear head, by patch size, at equal steps and equal seconds."""

    claim: str
    """What is tested."""
    metric: str
    """How it is judged."""
    claim_patches: tuple[int, int]
    """The smaller and the larger patch of the claim."""
    core: dict[str, dict[str, Any]]
    """Arms by name, each with the fields of `Arm`; all of one data set and prediction."""
    full: dict[str, dict[str, Any]]
    """Arms that `--budget full` adds."""
    seeds: list[int]
    """Of weights, order, times and noise; the same for every arm."""
    full_seeds: list[int]
    """Those of `--budget full`."""

    resolution: int
    """Side of the images in pixels."""
    width: int
    """Of the transformer."""
    heads: int
    """Attention heads."""
    blocks: int
    """Transformer blocks under the neural field; a linear head has as many more as the field has blocks."""
    field_blocks: int
    """Neural field blocks."""
    head_channels: int
    """Width of the neural field."""
    steps: int
    """Optimiser steps."""
    batch_size: int
    """Images a step; classes, and variants of one thing, equally often."""
    ema_decay: float
    """Of the moving average of the weights, which is what is measured; it warms up."""
    label_drop: float
    """Share of labels replaced by no class."""

    learning_rates: list[float]
    """What every arm is tuned over; constant in a run."""
    tuning_seed: int
    """Seed of the tuning runs."""
    tuning_steps: int
    """Their optimiser steps."""
    validation_share: float
    """Share of the groups of training images by whose velocity error the learning rate is chosen."""

    error_at: list[int]
    """Steps at which the held-out velocity error is measured, the last being the last of all."""
    samples_at: list[int]
    """Steps at which samples are measured, the last being the last of all."""
    samples: int
    """Samples, of the classes of as many held-out images."""
    solver_steps: int
    """Steps of Adams of order 2, without guidance."""
    held_out_images: int | None
    """Held-out images at most."""
    evaluation_seed: int
    """Of the noise of errors and samples and of subsets of images: the same for all runs."""
    extractor: str
    """Network of the kernel distance, as in evaluate.py."""
    stopped_improving: float
    """An arm has stopped improving when its error falls by less than this share between the last two of `error_at`."""
    timing_rounds: int
    """Interleaved rounds in which a training step is timed."""
    timing_threads: int
    """CPU threads while it is."""

    budget: Literal["core", "full"] = "core"
    """core: about two hours on two cores; full: more seeds, patch size, data and parts of the head, days on them."""
    shard: str = "1/1"
    """i/n: only every n-th arm, from the i-th; without `timing` and the report, for which all must be there."""
    only: list[str] | str | None = None
    """Only these runs, by name or pattern: timing, field-8-1, 'field-8-*'."""
    report: bool = False
    """Run nothing, write the results of the runs that exist."""
    keep_stale: bool = False
    """Also count runs of other code, such as before a change of the report."""
    threads: int | None = None
    """CPU threads of the runs (default: the cores divided by the shards)."""
    device: str = "cpu"
    """cpu, cuda or mps."""
    cache_dir: Path | None = None
    """Where rendered OpenMoji are kept (default: ~/.cache/iclr26-pixnerd)."""
    output: Path = PROJECT / "results"
    """Folder of runs/, reproduce.json and reproduce.png; its name is results."""


@dataclass(frozen=True)
class Arm:
    """What a line of `core` or `full` says."""

    head: Literal["neural_field", "linear", "linear_skip"]
    patch: int
    dataset: str = "openmoji"  # photographs, or as in train.py
    prediction_type: Literal["velocity", "sample"] = "velocity"
    options: dict[str, Any] = field(default_factory=dict)  # of the network

    @property
    def group(self) -> tuple[str, str]:
        """Arms of one group are compared."""
        return self.dataset, self.prediction_type


def main(config: ReproduceConfig) -> None:
    check(config)
    arms = read_arms(config)
    shards = int(config.shard.partition("/")[2])
    torch.set_num_threads(config.threads or max(1, (os.cpu_count() or 1) // shards))
    if not config.report:
        execute(config, arms)
    if config.report or (config.shard == "1/1" and config.only is None):
        report(config, arms)


def check(config: ReproduceConfig) -> None:
    """Refuse values outside their ranges, by name, before any work."""
    least = dict(resolution=1, width=1, heads=1, blocks=1, field_blocks=1, head_channels=1, steps=1, batch_size=1)
    least |= dict(tuning_steps=1, samples=3, solver_steps=1, held_out_images=3, timing_rounds=6, timing_threads=1)
    for name, low in (least | dict(threads=1, stopped_improving=0)).items():
        value = getattr(config, name)
        if value is not None and not value >= low:
            raise ValueError(f"{name}: expected at least {low}, got {value}")
    share([], config.shard)  # refuses what is not i/n
    if not config.claim_patches[0] < config.claim_patches[1]:
        raise ValueError(f"claim_patches: expected the smaller and the larger one, got {config.claim_patches}")
    if not 0 < config.validation_share < 1:
        raise ValueError(f"validation_share: expected a share between 0 and 1, got {config.validation_share}")
    for name in ("seeds", "full_seeds"):
        seeds = getattr(config, name)
        if len(set(seeds)) < max(2, len(seeds)) or config.tuning_seed in seeds:
            raise ValueError(
                f"{name}: expected two or more, all different and not tuning_seed {config.tuning_seed}, got {seeds}"
            )
    if not config.learning_rates or not all(lr > 0 for lr in config.learning_rates):
        raise ValueError(f"learning_rates: expected positive numbers, got {config.learning_rates}")
    for name in ("error_at", "samples_at"):
        steps = getattr(config, name)
        if not steps or steps != sorted(set(steps)) or steps[0] < 1 or steps[-1] != config.steps:
            raise ValueError(f"{name}: expected growing steps up to {config.steps}, got {steps}")


def read_arms(config: ReproduceConfig) -> dict[str, Arm]:
    """The arms of the budget, by name; those of core come first."""
    arms = {}
    for name, entry in (config.core | (config.full if config.budget == "full" else {})).items():
        allowed = {f.name for f in dataclasses.fields(Arm)}
        if not {"head", "patch"} <= entry.keys() <= allowed or entry["head"] not in HEADS:
            raise ValueError(
                f"{name}: expected head (one of {', '.join(HEADS)}), patch and maybe "
                f"{', '.join(sorted(allowed - {'head', 'patch'}))}, got {entry}"
            )
        arms[name] = Arm(**entry)
    if len({arms[name].group for name in config.core}) != 1:
        raise ValueError("core: expected arms of one data set and one prediction")
    group = arms[next(iter(config.core))].group
    for head, patch in itertools.product(HEADS, config.claim_patches):
        if find(arms, group, head, patch) is None:
            raise ValueError(f"core: expected an arm with the head {head} at patch {patch}, which the claim is about")
    return arms


def find(arms: Mapping[str, Arm], group: tuple[str, str], head: str, patch: int) -> str | None:
    """Name of the plain arm of a group."""
    wanted = (group, head, patch, {})
    return next((n for n, arm in arms.items() if (arm.group, arm.head, arm.patch, arm.options) == wanted), None)


# The list of runs


def run_of(config: ReproduceConfig, arm_name: str, arm: Arm, seed: int, lr: float, steps: int, **more) -> dict:
    """All that fixes a training, as plain options."""
    shape = dict(patch_size=arm.patch, hidden_size=config.width, num_attention_heads=config.heads)
    shape |= dict(num_layers=config.blocks, head_layers=config.field_blocks, head_channels=config.head_channels)
    if arm.head != "neural_field":
        shape = linear_head_baseline(shape, skip=arm.head == "linear_skip")
    return {
        "arm": arm_name,
        "seed": seed,
        "dataset": arm.dataset,
        "resolution": config.resolution,
        "network": shape | arm.options,
        "prediction_type": arm.prediction_type,
        "lr": lr,
        "steps": steps,
        "batch_size": config.batch_size,
        "ema_decay": config.ema_decay,
        "label_drop": config.label_drop,
    } | more


def tuning_runs(config: ReproduceConfig, arms: Mapping[str, Arm]) -> list[dict]:
    """Every arm with every learning rate."""
    more = dict(validation_share=config.validation_share, evaluation_seed=config.evaluation_seed)
    return [
        run_of(config, name, arm, config.tuning_seed, lr, config.tuning_steps, **more, name=tuning_name(name, lr))
        for lr in config.learning_rates
        for name, arm in arms.items()
    ]


def tuning_name(arm: str, lr: float) -> str:
    return f"{arm}-tune-{lr:g}"


def evaluation(config: ReproduceConfig) -> dict:
    """What measures images."""
    names = ("samples", "held_out_images", "evaluation_seed", "extractor")
    return {name: getattr(config, name) for name in names}


def training_runs(config: ReproduceConfig, arms: Mapping[str, Arm], rates: Mapping[str, float | None]) -> list[dict]:
    """Every seed with every arm whose learning rate is chosen."""
    more = evaluation(config) | {name: getattr(config, name) for name in ("error_at", "samples_at", "solver_steps")}
    return [
        run_of(config, name, arm, seed, rates[name], config.steps, **more)
        for seed in seeds_of(config)
        for name, arm in arms.items()
        if rates.get(name) is not None
    ]


def seeds_of(config: ReproduceConfig) -> list[int]:
    return config.full_seeds if config.budget == "full" else config.seeds


def floor_runs(config: ReproduceConfig, arms: Mapping[str, Arm]) -> list[dict]:
    """What real images reach, for each data set, and what a linear head cannot, for each patch of any budget."""
    patches = sorted({arm["patch"] for arm in (config.core | config.full).values()})
    more = dict(resolution=config.resolution, width=config.width, patches=patches, **evaluation(config))
    datasets = dict.fromkeys(arm.dataset for arm in arms.values())
    return [{"name": floor_name(d), "arm": "real images", "seed": 0, "dataset": d} | more for d in datasets]


def floor_name(dataset: str) -> str:
    return f"floor-{Path(dataset).stem}"


def timing_runs(config: ReproduceConfig, arms: Mapping[str, Arm]) -> list[dict]:
    """One for the arms of core; with full another one for all patch sizes that it adds arms to."""
    groups: dict[tuple, list[str]] = {}
    for name, arm in sorted(arms.items(), key=lambda item: item[1].head != "linear"):  # the reference first
        groups.setdefault((*arm.group, arm.patch), []).append(name)
    core = [[name for name in group if name in config.core] for group in groups.values()]
    added = [group for group in groups.values() if not config.core.keys() >= set(group)]
    runs = []
    for name, compared in (("timing", [group for group in core if group]), ("timing-full", added)):
        if compared:
            members = itertools.chain(*compared)
            options = {n: run_of(config, n, arms[n], 0, config.learning_rates[0], config.steps) for n in members}
            more = dict(groups=compared, arms=options, rounds=config.timing_rounds, threads=config.timing_threads)
            runs.append({"name": name, "arm": "timing", "seed": 0} | more)
    return runs


def run_list(config: ReproduceConfig, runs: Iterable[dict]) -> RunList:
    return RunList(config.output / "runs", list(runs), results.code_hash(CODE, PROJECT), config.keep_stale)


def execute(config: ReproduceConfig, arms: dict[str, Arm]) -> None:
    """The runs of this shard that have no result yet: tuning, training with the rates that it chose, then the others.

    A shard takes whole arms, so that nothing it needs is made by another.
    """
    mine = {name: arms[name] for name in share(list(arms), config.shard)}
    floors, timings = floor_runs(config, arms), timing_runs(config, arms)
    every = tuning_runs(config, arms) + training_runs(config, arms, dict.fromkeys(arms, 0.0)) + floors + timings
    wanted = chooser(config.only, every)
    device = torch.device(choose_device(config.device))
    parts = functools.cache(lambda dataset: Parts(config, dataset))

    def go(runs: list[dict], function: Callable[[dict], dict]) -> None:
        if runs := list(filter(wanted, runs)):
            run_list(config, runs).execute(function)

    go(tuning_runs(config, mine), lambda run: tune(run, parts(run["dataset"]), device))
    rates = chosen_rates(config, mine)
    for run in filter(wanted, training_runs(config, mine, {n: 0.0 for n, rate in rates.items() if rate is None})):
        raise ValueError(
            f"only: {name_of(run)} needs the learning rate that {run['arm']}-tune-* choose; run them first"
        )
    go(training_runs(config, mine, rates), lambda run: train_and_measure(run, parts(run["dataset"]), device))
    go(share(floors, config.shard), lambda run: measure_real(run, parts(run["dataset"])))
    if config.shard == "1/1":
        go(timings, lambda run: time_steps(run, parts, device))


def chooser(only: list[str] | str | None, runs: list[dict]) -> Callable[[dict], bool]:
    """Whether a run is among those that `only` names, all without it."""
    patterns = [only] if isinstance(only, str) else only
    for pattern in patterns or []:
        if not any(fnmatchcase(name_of(run), pattern) for run in runs):
            raise ValueError(
                f"only: expected names of runs, such as {', '.join(map(name_of, runs[:3]))}, got {pattern}"
            )
    return lambda run: patterns is None or any(fnmatchcase(name_of(run), pattern) for pattern in patterns)


def name_of(run: dict) -> str:
    return run.get("name", f"{run['arm']}-{run['seed']}")


def chosen_rates(config: ReproduceConfig, arms: Mapping[str, Arm]) -> dict[str, float | None]:
    """The learning rate of each arm, from the files of its tuning runs; None where one is missing."""
    found = run_list(config, tuning_runs(config, arms))
    rates = {}
    for name in arms:
        tried = {lr: found.result(tuning_name(name, lr)) for lr in config.learning_rates}
        done = all(result is not None for result in tried.values())
        rates[name] = choose({lr: result["validation_error"] for lr, result in tried.items()}, name) if done else None
    return rates


def choose(errors: Mapping[float, float | None], arm: str) -> float:
    """The learning rate of the least validation error; None is the error of a run that diverged."""
    finite = {lr: error for lr, error in errors.items() if error is not None}
    if not finite:
        raise ValueError(f"learning_rates: {arm} diverged with each of {', '.join(f'{lr:g}' for lr in errors)}")
    return min(finite, key=finite.get)


# A run


class Parts:
    """The parts of a data set, each read when it is first needed."""

    def __init__(self, config: ReproduceConfig, dataset: str) -> None:
        self.config, self.dataset = config, dataset

    def _load(self, split: str) -> LabelledImages:
        if self.dataset == "photographs":
            return photographs.crops(self.config.resolution, split)
        return load_images(self.dataset, self.config.resolution, split, self.config.cache_dir)

    @functools.cached_property
    def train(self) -> LabelledImages:
        return self._load("train")

    @functools.cached_property
    def tuning(self) -> tuple[LabelledImages, LabelledImages]:
        """What tuning trains on, and by what it chooses: training images, whole groups of variants on either side."""
        groups = np.random.default_rng(self.config.evaluation_seed).permutation(np.unique(self.train.groups))
        chosen = groups[: math.ceil(self.config.validation_share * len(groups))]
        inside = np.isin(self.train.groups, chosen)
        return self.train.subset(np.flatnonzero(~inside)), self.train.subset(np.flatnonzero(inside))

    @functools.cached_property
    def held_out(self) -> LabelledImages:
        """At most as many as asked for, in an order of chance, so that the first are a sample of all."""
        data = self._load("test")
        order = np.random.default_rng(self.config.evaluation_seed).permutation(len(data))
        return data.subset(order[: self.config.held_out_images])

    @functools.cached_property
    def real(self) -> Tensor:
        return self.held_out.all_images()

    @functools.cached_property
    def extractor(self):
        return load_extractor(self.config.extractor)

    @functools.cached_property
    def real_features(self) -> Tensor:
        return extract(self.extractor, self.real, BATCH, progress=False)

    def distances(self, images: Tensor) -> tuple[Interval, float]:
        """KID and spectrum distance of uint8 images to all that is held out."""
        features = extract(self.extractor, images, BATCH, progress=False)
        return kernel_distance(features, self.real_features), spectrum_distance(images, self.real)


def training(run: dict, data: LabelledImages, device: torch.device) -> Iterator[tuple[int, torch.nn.Module, EMA]]:
    """Train as train.py does, without its plumbing; end early where the loss is not finite.

    Order, times, noise and dropped labels depend on the seed alone, so that all arms see the same.

    Yields:
        After each step its number, from 1, the network and the average of its weights.
    """
    torch.manual_seed(run["seed"])
    classes, side, batch = len(data.class_names), run["resolution"], run["batch_size"]
    transformer = PixNerdTransformer2DModel(sample_size=side, num_classes=classes, **run["network"]).to(device)
    objective = Objective(transformer, prediction_type=run["prediction_type"])
    optimizer = torch.optim.AdamW(transformer.parameters(), lr=run["lr"], weight_decay=0.0)
    ema = EMA(transformer, run["ema_decay"], warmup=True)
    sampler = StepSampler(data, batch, places_of(batch, 1, 0, 1), run["seed"], balanced=True, start=0)
    for step, indices in enumerate(itertools.islice(sampler, run["steps"])):
        items = [data[i] for i in indices]
        x, labels = (torch.stack([item[name] for item in items]).to(device) for name in ("image", "label"))
        chance = draw(run["seed"], step, range(batch), tuple(x.shape[1:]), device)
        labels = torch.where(chance["drop"] < run["label_drop"], classes, labels)
        loss = objective(to_float(x), labels, chance["t"], chance["noise"])["loss"]
        if not loss.isfinite():
            return
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ema.update(step + 1)
        yield step + 1, transformer, ema


def shown(run: dict, steps: Iterator) -> tqdm:
    return tqdm(steps, total=run["steps"], desc=name_of(run), unit="step", leave=False)


def tune(run: dict, parts: Parts, device: torch.device) -> dict:
    """Train on what tuning may use, and measure the velocity error on what it chooses by."""
    data, validation = parts.tuning
    step, errors = 0, []
    for step, transformer, ema in shown(run, training(run, data, device)):
        if step == run["steps"]:
            with ema.applied():
                errors = velocity_errors(transformer, validation, validation.all_images(), run, device)
    return {
        "steps": step,
        "images": len(validation),
        "validation_error": float(np.mean(errors)) if errors else math.nan,
    }


def train_and_measure(run: dict, parts: Parts, device: torch.device) -> dict:
    """Train on all training images, and measure the averaged weights on what is held out as training goes on.

    Returns:
        Curves as [step, value]: `error`, velocity error averaged over `TIMES`; `kid`; `spectrum`. Where the run
        diverged they go on with NaN. `error_by_time`: the last one at each of `TIMES`.
    """
    curves: dict[str, list] = {name: [] for name in METRICS}
    step, parameters, by_time = 0, 0, []
    for step, transformer, ema in shown(run, training(run, parts.train, device)):
        parameters = transformer.num_parameters()
        with ema.applied() if step in {*run["error_at"], *run["samples_at"]} else contextlib.nullcontext():
            if step in run["error_at"]:
                by_time = velocity_errors(transformer, parts.held_out, parts.real, run, device)
                curves["error"].append([step, float(np.mean(by_time))])
            if step in run["samples_at"]:
                kid, spectrum = parts.distances(sample(transformer, parts, run))
                curves["kid"].append([step, kid.value])
                curves["spectrum"].append([step, spectrum])
    for name, points in (("error", "error_at"), ("kid", "samples_at"), ("spectrum", "samples_at")):
        curves[name] += [[at, math.nan] for at in run[points] if at > step]
    threads = torch.get_num_threads()
    return {"parameters": parameters, "steps": step, "threads": threads, **curves, "error_by_time": by_time}


@torch.no_grad()
def velocity_errors(
    transformer: torch.nn.Module, data: LabelledImages, images: Tensor, run: dict, device: torch.device
) -> list[float]:
    """Mean squared velocity error at each of `TIMES`; the noise of an image depends on its place alone.

    Args:
        images: those of `data`, uint8.
    """
    totals = torch.zeros(len(TIMES), dtype=torch.float64)
    images, labels = to_float(images), torch.from_numpy(data.labels)
    for start in range(0, len(data), BATCH):
        x, y = (v[start : start + BATCH].to(device) for v in (images, labels))
        noise = draw(run["evaluation_seed"], 0, range(start, start + len(x)), tuple(x.shape[1:]), device)["noise"]
        for i, time in enumerate(TIMES):
            t = torch.full((len(x),), time, device=device)
            prediction = transformer(interpolate(x, noise, t), t, y).sample
            totals[i] += velocity_loss(prediction, x, noise, t, run["prediction_type"]).sum().item()
    return (totals / len(data)).tolist()


def sample(transformer: torch.nn.Module, parts: Parts, run: dict) -> Tensor:
    """uint8 samples of the classes of the first held-out images, from the same noise in every run."""
    scheduler = PixNerdScheduler("adams", solver_order=2, prediction_type=run["prediction_type"])
    labels = parts.held_out.labels[: run["samples"]].tolist()
    options = {"num_inference_steps": run["solver_steps"], "guidance_scale": 1.0}
    return sample_many(
        PixNerdPipeline(transformer, scheduler), labels, run["evaluation_seed"], BATCH, progress=False, **options
    )


def measure_real(run: dict, parts: Parts) -> dict:
    """What training images of the classes of the samples are away from what is held out, and `rank_bound` by patch."""
    rng, chosen = np.random.default_rng(run["evaluation_seed"]), []
    for label, count in zip(*np.unique(parts.held_out.labels[: run["samples"]], return_counts=True), strict=True):
        chosen.append(rng.permutation(np.flatnonzero(parts.train.labels == label))[:count])
    images = parts.train.subset(np.concatenate(chosen)).all_images()
    kid, spectrum = parts.distances(images)
    bounds = {patch: rank_bound(parts.real, patch, run["width"]) for patch in run["patches"]}
    return {"images": len(images), "held_out": len(parts.real), "kid": kid, "spectrum": spectrum, "rank_bound": bounds}


def rank_bound(images: Tensor, patch: int, width: int) -> float:
    """Least velocity error, at any time, of any network whose head maps a token linearly to a patch.

    All outputs of the head lie in one affine space of `width` dimensions, whatever the tokens. The velocities x − ε of
    these images have the covariance C + 1 about it, C that of the clean patches, because the noise that an error is
    measured with was not there in training: outside of any such space there is at least Σ_{i > width} (1 + λ_i(C)).

    Args:
        images: uint8, (items, channels, side, side), those of which the error is measured.

    Returns:
        That sum over the numbers of a patch; 0 where `width` is not below them.
    """
    patches = patchify(to_float(images).double(), (patch, patch)).flatten(-2).flatten(0, 1)  # (patches, numbers)
    ascending = torch.linalg.eigvalsh(torch.cov(patches.T, correction=0)).clamp(min=0)
    return float((1 + ascending[: max(0, len(ascending) - width)]).sum() / len(ascending))


def time_steps(run: dict, parts: Callable[[str], Parts], device: torch.device) -> dict:
    """Seconds of a training step of every arm, and of each over the linear head of its group, which comes first."""
    threads, seconds, ratios = torch.get_num_threads(), {}, {}
    torch.set_num_threads(run["threads"])
    try:
        for group in run["groups"]:
            arms = {name: run["arms"][name] for name in group}
            steps = {
                n: training(arm | {"steps": 10**9}, parts(arm["dataset"]).train, device) for n, arm in arms.items()
            }
            timings = interleaved(
                {name: functools.partial(next, step) for name, step in steps.items()}, run["rounds"], progress=True
            )
            seconds |= timings.seconds
            if arms[group[0]]["network"].get("head_type") == "linear":
                ratios |= timings.ratios
    finally:
        torch.set_num_threads(threads)
    return {"seconds": seconds, "ratios": ratios, "threads": run["threads"], "device": timings.device}


# The report


def value_at(curve: Sequence[tuple[int, float | None]], step: float) -> float | None:
    """A curve of (step, value) at any step, linear in between; None outside of it, or where a value is None."""
    steps = [at for at, _ in curve]
    if not curve or not steps[0] <= step <= steps[-1]:
        return None
    right = bisect.bisect_left(steps, step)
    if steps[right] == step:
        return curve[right][1]
    (start, before), (end, after) = curve[right - 1 : right + 1]
    return None if before is None or after is None else before + (after - before) * (step - start) / (end - start)


def step_in_time(steps: int, ratio: float) -> float:
    """The step that an arm reaches in the seconds of `steps` steps of the reference, at most that many.

    Args:
        ratio: seconds of its step over the reference's.
    """
    return min(float(steps), steps / ratio)


@dataclass(frozen=True)
class Evidence:
    """What the runs that exist have left."""

    arms: dict[str, Arm]
    seeds: list[int]
    steps: int
    claim_patches: tuple[int, int]
    trained: dict[str, dict[int, dict]]
    """{arm: {seed: what `train_and_measure` returned}}"""
    seconds: dict[str, dict]
    """Of a training step, as an interval."""
    ratios: dict[str, float]
    """Those over the linear head's of the same patch, data and prediction."""

    def values(self, arm: str | None, metric: str, step: float) -> dict[int, float] | None:
        """Of every seed; None where one is missing."""
        found = self.trained.get(arm, {})
        values = {seed: value_at(found[seed][metric], step) for seed in self.seeds if seed in found}
        return values if len(values) == len(self.seeds) and None not in values.values() else None

    def gain(self, group: tuple[str, str], patch: int, baseline: str, head: str, metric: str, at: str) -> dict | None:
        """log(value of the head `baseline` / value of `head`), {seed: gain}, at equal "steps" or "seconds"."""
        sides = []
        for name in (find(self.arms, group, kind, patch) for kind in (baseline, head)):
            if at == "seconds" and name not in self.ratios:
                return None
            step = float(self.steps) if at == "steps" else step_in_time(self.steps, self.ratios[name])
            sides.append(self.values(name, metric, step))
        if None in sides or not all(value > 0 for side in sides for value in side.values()):
            return None
        return {seed: math.log(sides[0][seed] / sides[1][seed]) for seed in self.seeds}

    def growth(self, group: tuple[str, str], baseline: str, head: str, metric: str, at: str) -> dict | None:
        """The gain at the larger patch of the claim minus that at the smaller, {seed: difference}."""
        small, large = (self.gain(group, patch, baseline, head, metric, at) for patch in self.claim_patches)
        return None if small is None or large is None else {seed: large[seed] - small[seed] for seed in self.seeds}

    def improvement(self, arm: str, points: Sequence[int]) -> float | None:
        """Share by which the mean error fell between the last two measured steps."""
        before, after = (self.values(arm, "error", step) for step in points[-2:])
        return None if before is None or after is None else 1 - mean(after) / mean(before)


def mean(values: Mapping[int, float]) -> float:
    return float(np.mean(list(values.values())))


def interval(values: Mapping[int, float] | None) -> Interval | None:
    return None if values is None else t_interval(list(values.values()))


def gain_rows(evidence: Evidence, group: tuple[str, str], metric: str, patches: Sequence[int]) -> list[list]:
    """Each head over each simpler one, by patch size, and how much of the gain over the linear head is the skip's."""
    rows = []
    for at in ("steps", "seconds"):
        cells = {}
        for baseline, head in COMPARISONS:
            gains = [evidence.gain(group, patch, baseline, head, metric, at) for patch in patches]
            cells[baseline, head] = [
                *map(interval, gains),
                interval(evidence.growth(group, baseline, head, metric, at)),
            ]
            rows.append([f"{HEADS[head]} over {HEADS[baseline]}", f"equal {at}", *cells[baseline, head]])
        shares = map(skip_share, cells["linear", "neural_field"], cells["linear", "linear_skip"])
        rows.append(["share of the first that the skip alone gains", f"equal {at}", *shares])
    return rows


def skip_share(whole: Interval | None, part: Interval | None) -> str | None:
    """A share in per cent, where there is a gain to share."""
    if whole is None or part is None:
        return None
    return f"{100 * part.value / whole.value:.0f} %" if whole.sign > 0 else "–"


def gather(config: ReproduceConfig, arms: dict[str, Arm], training: RunList, timing: RunList) -> Evidence:
    """What the training and timing runs left."""
    trained: dict[str, dict[int, dict]] = {name: {} for name in arms}
    for record in training.finished().values():
        trained[record["options"]["arm"]][record["options"]["seed"]] = record["result"]
    seconds, ratios = {}, {}
    for record in reversed(timing.finished().values()):  # that of core counts where both have an arm
        seconds |= record["result"]["seconds"]
        ratios |= {name: ratio["value"] for name, ratio in record["result"]["ratios"].items()}
    return Evidence(arms, seeds_of(config), config.steps, config.claim_patches, trained, seconds, ratios)


def report(config: ReproduceConfig, arms: dict[str, Arm]) -> None:
    """results/reproduce.json and .png from the runs that exist; what is missing shows as missing."""
    rates = chosen_rates(config, arms)
    tuning, training = (
        run_list(config, runs) for runs in (tuning_runs(config, arms), training_runs(config, arms, rates))
    )
    floor, timing = run_list(config, floor_runs(config, arms)), run_list(config, timing_runs(config, arms))
    evidence = gather(config, arms, training, timing)

    first = arms[next(iter(config.core))].group
    tables = {}
    for group in dict.fromkeys(arm.group for arm in arms.values()):
        suffix = "".join(f"-{Path(part).stem}" for part, usual in zip(group, first, strict=True) if part != usual)
        real = floor.result(floor_name(group[0]))
        tables |= {name + suffix: table for name, table in group_tables(config, evidence, group, real, rates).items()}
    bounds = (floor.result(floor_name(first[0])) or {}).get("rank_bound", {})
    bound = bounds.get(str(config.claim_patches[1]))
    tables["control"], fired = control(evidence, first, bound)
    tables["tuning"] = tuning_table(config, arms, tuning, rates)

    growth = evidence.growth(first, "linear", "neural_field", "error", "steps")
    improvements = [evidence.improvement(name, config.error_at) for name in config.core]
    verdict = results.verdict(
        interval(growth),
        "higher",
        stopped_improving=all(i is not None and i < config.stopped_improving for i in improvements),
        equal_budgets=not tuning.pending(),  # every arm with every rate
        control_fired=fired,
        smallest_effect=growth and (detectable_effect(list(growth.values())) or None),
    )
    lists = (tuning, training, floor, timing)
    seconds = sum(record["seconds"] for runs in lists for record in runs.finished().values())
    environment = results.environment(["torch", "diffusers"], seconds, PROJECT)
    threads = [run["threads"] for by_seed in evidence.trained.values() for run in by_seed.values()]
    environment["machine"]["threads"] = max(threads, default=torch.get_num_threads())  # not the report's own
    not_of_the_experiment = ("shard", "only", "report", "threads", "device", "cache_dir", "output")
    data = results.save(
        config.output / "reproduce.json",
        title="Neural field against linear head, by patch size",
        claim=config.claim,
        metric=config.metric,
        arms={name: description(config, arm) for name, arm in arms.items()},
        budget=config.budget,
        seeds=evidence.seeds,
        config={key: value for key, value in cli.as_dict(config).items() if key not in not_of_the_experiment},
        tables=tables,
        verdict=verdict,
        environment=environment,
        code_paths=[os.path.relpath(PROJECT / path, config.output.parent) for path in CODE],
    )
    print(results.markdown(data))
    draw_curves(config, evidence, first, bounds)
    print(f"\nwrote {config.output / 'reproduce.json'} and {config.output / 'reproduce.png'}")


def description(config: ReproduceConfig, arm: Arm) -> str:
    more = [f"{key} = {value}" for key, value in arm.options.items()]
    depth = config.blocks + (0 if arm.head == "neural_field" else config.field_blocks)
    size = f"patch {arm.patch}, {depth} transformer blocks"
    return ", ".join([HEADS[arm.head], size, f"{arm.dataset}, predicts the {arm.prediction_type}", *more])


def group_tables(
    config: ReproduceConfig,
    evidence: Evidence,
    group: tuple[str, str],
    real: dict | None,
    rates: Mapping[str, float | None],
) -> dict[str, dict]:
    """What is compared on one data set with one prediction: gains in velocity error and of samples, and every arm."""
    arms = {name: arm for name, arm in evidence.arms.items() if arm.group == group}
    patches = sorted({arm.patch for arm in arms.values()})
    small, large = config.claim_patches
    columns = [*(f"patch {patch}" for patch in patches), f"patch {large} − patch {small}"]
    columns = [(column, ".3f") for column in columns]
    growth = evidence.growth(group, "linear", "neural_field", "error", "steps")
    seen = (
        f" A growth of {detectable_effect(list(growth.values())):.2g} would be seen four times in five."
        if growth
        else ""
    )
    what = f"on {group[0]}, predicting the {group[1]}, {config.steps} steps"
    caption = (
        f"Gain in held-out velocity error {what}: log(error of the other / error of the first), mean over seeds and "
        "95 % t-interval of the pairs; 0.1 is about a tenth less error. At equal seconds a head is read at the step "
        "that it reaches in the time in which the linear head of its patch takes all steps (run timing, "
        f"{config.timing_threads} threads), linearly between measured steps and at the latest at the end.{seen}"
    )
    tables = {
        "gain": results.table(caption, ["head", "compared at", *columns], gain_rows(evidence, group, "error", patches))
    }
    rows = [
        [METRICS[metric], *row] for metric in ("kid", "spectrum") for row in gain_rows(evidence, group, metric, patches)
    ]
    caption = (
        f"The same gain for samples {what}: {config.samples} without guidance against the held-out images; KID on "
        f"{config.extractor}; spectrum: root mean square difference of the log mean power over radial frequencies"
    )
    tables["samples"] = results.table(caption, ["distance", "head", "compared at", *columns], rows)

    rows = []
    for name, arm in sorted(arms.items(), key=lambda item: (item[1].patch, bool(item[1].options))):
        any_seed = next(iter(evidence.trained[name].values()), None)
        seconds, improvement = evidence.seconds.get(name), evidence.improvement(name, config.error_at)
        rows.append(
            [
                name,
                any_seed and any_seed["parameters"],
                f"{3 * arm.patch**2 / config.width:.2g}",
                with_edge(rates[name], config.learning_rates),
                seconds and {key: 1000 * seconds[key] for key in ("value", "low", "high")},
                *(interval(evidence.values(name, metric, config.steps)) for metric in METRICS),
                None if improvement is None else f"{100 * improvement:.1f} %",
            ]
        )
    floors = [real and Interval(**real["kid"]), real and real["spectrum"]]
    rows.append(["training images of the same classes", "–", "–", "–", "–", "–", *floors, "–"])
    caption = (
        f"Every arm {what}: mean over seeds and 95 % t-interval (real images: of the images); a step with "
        f"{config.timing_threads} threads; still falling: the fall of the error from step {config.error_at[-2:][0]} on"
    )
    columns = ["arm", "parameters", "3p² / width", "learning rate", ("ms a step", ".0f"), ("velocity error", ".4f")]
    columns += [("KID", ".3f"), ("spectrum", ".3f"), "still falling"]
    return tables | {"arms": results.table(caption, columns, rows)}


def with_edge(rate: float | None, grid: Sequence[float]) -> str | None:
    """The learning rate, and whether the best may lie beyond the grid."""
    edge = len(grid) > 1 and rate in (min(grid), max(grid))
    return None if rate is None else f"{rate:g}" + (" (edge of the grid)" if edge else "")


def control(evidence: Evidence, group: tuple[str, str], bound: float | None) -> tuple[dict, bool]:
    """Whether an effect that must be there is seen with these runs and this metric, without the neural field.

    At the larger patch of the claim a linear head cannot be better than `rank_bound`, and the same head with the skip
    can. So the one must stay above it (or the measure leaks), the other fall below it (or nothing could be seen).
    """
    patch, slack = evidence.claim_patches[1], 0.99  # the mean square of the noise drawn is one to about 0.1 %
    values = {head: evidence.values(find(evidence.arms, group, head, patch), "error", evidence.steps) for head in HEADS}
    rows = [[HEADS[head], interval(found), found and bound and mean(found) / bound] for head, found in values.items()]
    gain = interval(evidence.gain(group, patch, "linear", "linear_skip", "error", "steps"))
    fired = bool(
        bound
        and gain
        and gain.sign > 0
        and min(values["linear"].values()) >= slack * bound
        and max(values["linear_skip"].values()) < bound
    )
    known = "not measured" if bound is None else f"{bound:.4f}"
    caption = (
        f"Positive control, patch {patch}: by the rank of its output no linear head can have a velocity error below "
        f"{known}, with the skip it can. For every seed the one stays above and the other falls below: "
        f"{'yes' if fired else 'no'}"
    )
    return results.table(caption, ["head", ("velocity error", ".4f"), ("over the bound", ".3f")], rows), fired


def tuning_table(config: ReproduceConfig, arms: Mapping[str, Arm], tuning: RunList, rates: Mapping) -> dict:
    """The validation errors by which learning rates were chosen."""
    rows = []
    for name in arms:
        found = [tuning.result(tuning_name(name, lr)) for lr in config.learning_rates]
        errors = [
            None if r is None else "diverged" if r["validation_error"] is None else r["validation_error"] for r in found
        ]
        rows.append([name, *errors, with_edge(rates[name], config.learning_rates)])
    caption = (
        f"Tuning: velocity error after {config.tuning_steps} steps on {100 * config.validation_share:.0f} % of the "
        f"groups of training images, seed {config.tuning_seed}; the least is chosen"
    )
    return results.table(caption, ["arm", *((f"{lr:g}", ".4f") for lr in config.learning_rates), "chosen"], rows)


def draw_curves(
    config: ReproduceConfig, evidence: Evidence, group: tuple[str, str], bounds: Mapping[str, float]
) -> None:
    """Held-out velocity error as training goes on, a panel for each patch size of the claim's arms."""
    panels, references = {}, {}
    for patch in sorted({evidence.arms[name].patch for name in config.core}):
        title, curves = f"patch {patch}: 3p² / width = {3 * patch**2 / config.width:.2g}", {}
        for head, label in HEADS.items():
            name = find(evidence.arms, group, head, patch)
            points = [(at, interval(evidence.values(name, "error", at))) for at in config.error_at]
            points = [point for point in points if point[1] is not None]
            curves[label] = tuple(zip(*points, strict=True)) if points else ((), ())
        panels[title] = curves
        if bounds.get(str(patch), 0) > 0:
            references[title] = ("least possible for a linear head", bounds[str(patch)])
    results.plot_panels(
        config.output / "reproduce.png",
        panels,
        xlabel="optimiser steps",
        ylabel="held-out velocity error",
        references=references,
        log="y",
    )


if __name__ == "__main__":
    sys.argv.insert(1, f"--config={PROJECT / 'configs' / 'reproduce.yaml'}")  # another one goes on top of it
    cli.run(main, ReproduceConfig)
