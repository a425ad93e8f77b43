"""Measure the paper's claims at small scale: `python reproduce.py`."""

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from scipy.stats import spearmanr

from nrgpt import MODELS, NRGPTForCausalLM, preset
from nrgpt.cli import run
from nrgpt.configuration_nrgpt import NRGPTConfig
from nrgpt.data import Corpus, default_cache, draw_windows, load_corpus, spaced_windows
from nrgpt.evaluation import (
    answer_listops,
    bits_per_character,
    energy_statistics,
    majority_answer,
    next_token_loss,
    stream_losses,
)
from nrgpt.optimization import learning_rate, parameter_groups
from nrgpt.pictures import plot_energies
from nrgpt.sizes import count_parameters, forward_flops, match

try:
    from iclr26_tools import results
    from iclr26_tools.plots import plot_curves
    from iclr26_tools.runs import RunList, share
    from iclr26_tools.statistics import Interval, detectable_effect, t_interval
    from iclr26_tools.timing import interleaved
except ImportError as error:
    raise SystemExit(f"reproduce.py: error: {error}; it needs iclr26-tools, which the README names") from error

PROJECT = Path(__file__).resolve().parent
CODE = ("src", "reproduce.py")
MEASURES = {
    "accuracy": "share of held-out prompts answered right",
    "loss": "loss of held-out text, nats a token",
    "gap": "loss of held-out text less that of the training text, nats a token",
}


@dataclass
class Experiment:
    """A claim, and the arms that test it."""

    claim: str
    """What is tested."""
    measure: Literal["accuracy", "loss", "gap"]
    """What is compared, at the end of a run."""
    compare: list[list[str]]
    """Pairs of method and baseline, arms whose difference the claim is about."""
    margin: float
    """What the method may be worse by; 0 for a claim that it is better."""
    data: dict[str, Any]
    """Options of train.py that name the data."""
    options: dict[str, Any]
    """Options of train.py that all arms share."""
    batch_size: int
    """Windows a step."""
    decay: Literal["all", "matrices"]
    """What decays."""
    weight_decay: float
    """AdamW's."""
    betas: tuple[float, float]
    """AdamW's."""
    seconds: float
    """Of training on one CPU thread."""
    tuning_seconds: float
    """Of a tuning run."""
    seeds: list[int]
    """Of weights and windows, the same for every arm."""
    core: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Arms by name: model, its options, and maybe `match`."""
    full: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Arms that `--budget full` adds."""


@dataclass
class Descent:
    """Random models whose energies are followed for many steps."""

    hidden_size: int
    """Width d."""
    num_attention_heads: int
    """Heads."""
    tokens: int
    """Of the text, random ones."""
    steps: int
    """On the energy."""
    spread: float
    """Standard deviation of all weights."""
    c: float
    """Of eta = c I."""
    seeds: list[int]
    """Of weights and tokens."""


@dataclass
class ReproduceConfig:
    """Measure NRGPT beside recurrent and ordinary GPTs: ListOps, Shakespeare, overfitting, byte pairs."""

    experiments: dict[str, Experiment]
    """By name, each with a results file of its own."""
    descent: Descent
    """The theorems on random weights, with a results file of its own."""
    learning_rates: list[float]
    """What every arm is tuned over."""
    min_share: float
    """Of the learning rate that is left at the end, after an exponential decay."""
    warmup_share: float
    """Of the steps, linear."""
    clip: float
    """Largest norm of the gradient."""
    tuning_seed: int
    """Of the tuning runs."""
    tuning_share: float
    """Of the training text, its end, on which a learning rate is chosen."""
    measured_at: list[float]
    """Shares of a run at which it is measured, the last being 1."""
    windows: int
    """Of a text, when its loss is measured."""
    prompts: int
    """Of ListOps, when answers are counted."""
    timing_rounds: int
    """Interleaved rounds in which a step is timed."""

    budget: Literal["core", "full"] = "core"
    """core: about an hour and a half on two cores; full: more arms, nested and whole ListOps, half a day."""
    shard: str = "1/1"
    """i/n: only every n-th arm, from the i-th, without the report. The timing must be there: first --only timing."""
    only: list[str] | str | None = None
    """Only these runs, by the beginning of their names: timing, listops, bpe-ff2w-1."""
    report: bool = False
    """Run nothing, write the results of the runs that exist."""
    keep_stale: bool = False
    """Also count runs of other code, such as before a change of the report."""
    device: str = "cpu"
    """cpu or cuda; the seconds are of one CPU thread, or of the GPU."""
    cache_dir: Path | None = None
    """Where ids of data sets of the Hub are kept (default: ~/.cache/iclr26-nrgpt)."""
    output: Path = PROJECT / "results"
    """Folder of runs/ and the results; its name is results."""


def main(config: ReproduceConfig) -> None:
    check(config)
    torch.set_num_threads(1)
    if not config.report:
        execute(config)
    if config.report or (config.shard == "1/1" and config.only is None):
        report_descent(config)
        for name in experiments(config):
            report(config, name)


def check(config: ReproduceConfig) -> None:
    """Refuse values outside their ranges, by name, before any work."""
    least = dict(windows=2, prompts=1, timing_rounds=6, tuning_seed=0)
    for name, low in least.items():
        if getattr(config, name) < low:
            raise ValueError(f"{name}: expected at least {low}, got {getattr(config, name)}")
    for name in ("min_share", "tuning_share"):
        if not 0 < getattr(config, name) < 1:
            raise ValueError(f"{name}: expected a share between 0 and 1, got {getattr(config, name)}")
    if not config.learning_rates or min(config.learning_rates) <= 0:
        raise ValueError(f"learning_rates: expected positive numbers, got {config.learning_rates}")
    at = config.measured_at
    if not at or at != sorted(set(at)) or not at[0] > 0 or at[-1] != 1:
        raise ValueError(f"measured_at: expected growing shares up to 1, got {at}")
    share([], config.shard)  # refuses what is not i/n
    for name, experiment in config.experiments.items():
        arms = experiment.core | experiment.full
        for arm, options in arms.items():
            if options.get("model") not in MODELS:
                raise ValueError(f"{name}: {arm}: expected a model, one of {', '.join(MODELS)}, got {options}")
        for pair in experiment.compare:
            if len(pair) != 2 or not set(pair) <= arms.keys():
                raise ValueError(f"{name}: compare: expected pairs of arms, got {pair}")


def experiments(config: ReproduceConfig) -> dict[str, dict[str, dict[str, Any]]]:
    """Arms by experiment, of the budget."""
    found = {}
    for name, experiment in config.experiments.items():
        arms = experiment.core | (experiment.full if config.budget == "full" else {})
        if arms:
            found[name] = arms
    return found


# The list of runs


CORPORA: dict[str, Corpus] = {}
"""By the options that name them: experiments share some."""


def load(config: ReproduceConfig, experiment: Experiment) -> Corpus:
    key = repr(sorted(experiment.data.items()))
    if key not in CORPORA:
        CORPORA[key] = load_corpus(experiment.data, config.cache_dir or default_cache())
    return CORPORA[key]


def shape_of(config: ReproduceConfig, experiment: Experiment, arm: dict[str, Any]) -> NRGPTConfig:
    """The model of an arm, its width matched where that is asked for."""
    arm = dict(arm)
    wanted = arm.pop("match", None)
    corpus = load(config, experiment)
    options = experiment.options | {key: value for key, value in arm.items() if key != "model"}
    context = options.pop("context")
    ends = corpus.tokenizer.eos_token_id
    options |= dict(vocab_size=len(corpus.tokenizer), max_position_embeddings=context, eos_token_id=ends)
    shape = preset(arm["model"], **options)
    if wanted is None:
        return shape
    ((what, other),) = wanted.items()
    reference = shape_of(config, experiment, (experiment.core | experiment.full)[other])
    size = {"parameters": count_parameters, "flops": partial(forward_flops, length=context)}[what]
    return match(shape, size, size(reference))


def run_of(config: ReproduceConfig, name: str, arm: str, seed: int, lr: float, steps: int, tuning: bool) -> dict:
    """All that fixes a training, as plain options."""
    experiment = config.experiments[name]
    shape = shape_of(config, experiment, (experiment.core | experiment.full)[arm])
    return {
        "name": f"{name}-{arm}-" + (f"tune-{lr:g}" if tuning else str(seed)),
        "experiment": name,
        "arm": arm,
        "seed": seed,
        "lr": lr,
        "steps": steps,
        "tuning": tuning,
        "network": {k: v for k, v in shape.to_diff_dict().items() if k != "transformers_version"},
        "data": experiment.data,
        "training": [experiment.batch_size, experiment.decay, experiment.weight_decay, *experiment.betas]
        + [config.min_share, config.warmup_share, config.clip],
        "measuring": [config.tuning_share, config.measured_at, config.windows, config.prompts, experiment.measure],
    }


def timing_run(config: ReproduceConfig, name: str) -> dict:
    experiment = config.experiments[name]
    arms = experiments(config)[name]
    shapes = {arm: shape_of(config, experiment, options).to_diff_dict() for arm, options in arms.items()}
    budget = "-full" if config.budget == "full" else ""
    options = dict(rounds=config.timing_rounds, batch_size=experiment.batch_size, device=config.device, networks=shapes)
    return {"name": f"timing-{name}{budget}", "arm": "timing", "seed": 0, "experiment": name} | options


def run_list(config: ReproduceConfig, runs: Iterable[dict]) -> RunList:
    return RunList(config.output / "runs", list(runs), code_hash(PROJECT), config.keep_stale)


@cache
def code_hash(project: Path) -> str:
    """Read once: lists are made by the dozen."""
    return results.code_hash(CODE, project)


def timing(config: ReproduceConfig, name: str) -> dict[str, float] | None:
    """Seconds of a step of each arm, if they were measured."""
    one = timing_run(config, name)
    return run_list(config, [one]).result(one["name"])


def tuning_runs(config: ReproduceConfig, name: str, arm: str, step: float) -> list[dict]:
    steps = max(1, round(config.experiments[name].tuning_seconds / step))
    return [run_of(config, name, arm, config.tuning_seed, lr, steps, True) for lr in config.learning_rates]


def chosen_rate(config: ReproduceConfig, name: str, arm: str, step: float) -> float | None:
    """The learning rate of the least loss; None while a tuning run is missing."""
    runs = tuning_runs(config, name, arm, step)
    found = {run["lr"]: run_list(config, runs).result(run["name"]) for run in runs}
    if any(result is None for result in found.values()):
        return None
    finite = {lr: result["loss"] for lr, result in found.items() if result["loss"] is not None}
    if not finite:
        raise ValueError(f"learning_rates: {name}-{arm} diverged with each of {', '.join(f'{lr:g}' for lr in found)}")
    return min(finite, key=finite.get)


def training_runs(config: ReproduceConfig, name: str, arm: str, step: float, lr: float) -> list[dict]:
    experiment = config.experiments[name]
    steps = max(1, round(experiment.seconds / step))
    return [run_of(config, name, arm, seed, lr, steps, False) for seed in experiment.seeds]


def execute(config: ReproduceConfig) -> None:
    """Timing, then for each arm of this shard its tuning and its seeds, of what has no result yet."""
    wanted = [config.only] if isinstance(config.only, str) else config.only

    def go(runs: list[dict], function: Callable[[dict], dict]) -> None:
        chosen = [run for run in runs if wanted is None or any(run["name"].startswith(start) for start in wanted)]
        if chosen:
            run_list(config, chosen).execute(function)

    if config.shard == "1/1":
        go(descent_runs(config), follow)
    for name in experiments(config):
        if config.shard == "1/1":
            go([timing_run(config, name)], partial(time_steps, config))
    arms = [(name, arm) for name, arms in experiments(config).items() for arm in arms]
    for name, arm in share(arms, config.shard):
        steps = timing(config, name)
        if steps is None:
            if wanted is None or any(f"{name}-{arm}".startswith(start) for start in wanted):
                raise ValueError(f"shard: {name} needs its timing; run with --only timing first, on a quiet machine")
            continue
        go(tuning_runs(config, name, arm, steps[arm]), partial(train, config))
        rate = chosen_rate(config, name, arm, steps[arm])
        if rate is not None:
            go(training_runs(config, name, arm, steps[arm], rate), partial(train, config))


# A run


def time_steps(config: ReproduceConfig, options: dict) -> dict[str, float]:
    """Median seconds of a training step of each arm, on one thread, in turns."""
    experiment = config.experiments[options["experiment"]]
    corpus, calls = load(config, experiment), {}
    for arm, shape in options["networks"].items():
        torch.manual_seed(0)
        model = NRGPTForCausalLM(NRGPTConfig(**shape)).to(config.device).train()
        optimizer = torch.optim.AdamW(parameter_groups(model, experiment.weight_decay, experiment.decay))
        context = model.config.max_position_embeddings
        calls[arm] = partial(
            step_once, model, optimizer, corpus.train, context, 0, 0, experiment.batch_size, config.clip
        )
    found = interleaved(calls, options["rounds"], progress=True)
    return {arm: interval.value for arm, interval in found.seconds.items()}


def step_once(model, optimizer, stream, context: int, seed: int, step: int, batch_size: int, clip: float) -> float:
    ids, targets = draw_windows(stream, context, seed, step, range(batch_size))
    loss = next_token_loss(model, ids.to(model.device), targets.to(model.device))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return loss.item()


def train(config: ReproduceConfig, options: dict) -> dict[str, Any]:
    """Train an arm, and measure it on the way and at the end."""
    experiment = config.experiments[options["experiment"]]
    corpus = load(config, experiment)
    cut = len(corpus.train) - int(config.tuning_share * len(corpus.train))
    stream = corpus.train[:cut] if options["tuning"] else corpus.train
    torch.manual_seed(options["seed"])
    model = NRGPTForCausalLM(NRGPTConfig(**options["network"])).to(config.device)
    groups = parameter_groups(model, experiment.weight_decay, experiment.decay)
    optimizer = torch.optim.AdamW(groups, betas=experiment.betas)
    steps, lr = options["steps"], options["lr"]
    at = {max(1, round(part * steps)) for part in config.measured_at}
    curve, context = [], model.config.max_position_embeddings
    for step in range(steps):
        rate = learning_rate(step, lr, config.min_share * lr, steps, round(config.warmup_share * steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        model.train()
        loss = step_once(model, optimizer, stream, context, options["seed"], step, experiment.batch_size, config.clip)
        if not math.isfinite(loss):
            return {"loss": None, "diverged_at": step + 1}
        if step + 1 in at and not options["tuning"]:
            curve.append({"step": step + 1} | measure(config, model.eval(), corpus, experiment))
    model.eval()
    if options["tuning"]:
        losses, _ = stream_losses(model, corpus.train[cut:], context, config.windows)
        return {"loss": float(losses.mean())}
    more = energies(model, corpus) if model.config.block == "energy" else {}
    return {"curve": curve, "parameters": count_parameters(model.config), **curve[-1], **more}


def measure(config: ReproduceConfig, model: NRGPTForCausalLM, corpus: Corpus, experiment: Experiment) -> dict:
    """Losses of held-out and of training text, their gap, and answers."""
    context = model.config.max_position_embeddings
    unseen, seen = (
        float(stream_losses(model, stream, context, config.windows)[0].mean())
        for stream in (corpus.validation, corpus.train)
    )
    found = {"loss": unseen, "training_loss": seen, "gap": unseen - seen}
    if corpus.characters is not None:
        found["bits"] = bits_per_character(unseen, len(corpus.validation), corpus.characters)
    if experiment.measure == "accuracy":
        samples = corpus.test["mixed"][: config.prompts]
        answers = answer_listops(model, samples)
        found["accuracy"] = sum(answer.correct for answer in answers) / len(answers)
    return found


def energies(model: NRGPTForCausalLM, corpus: Corpus) -> dict[str, float]:
    """How often a token's energy falls in a step, and the cosine of steps and steepest descent."""
    length = model.config.max_position_embeddings
    ids = spaced_windows(corpus.validation, length, 32)[:, :-1]
    found = energy_statistics(model, ids.to(model.device))
    return {"falling": float(found["falling"].mean()), "cosine": float(found["cosine"].mean())}


# The theorems

RATES = {"pos_scalar": "c I (Proposition 2.1)", "full": "a random matrix of the same size"}


def descent_runs(config: ReproduceConfig) -> list[dict]:
    """For each energy, rate and seed a random model."""
    rest = {key: value for key, value in vars(config.descent).items() if key != "seeds"}
    kinds = [(energy, eta) for energy in ("ff1", "ff2w") for eta in RATES]
    return [
        {
            "name": f"descent-{energy}-{eta}-{seed}",
            "arm": f"{energy}, {eta}",
            "energy": energy,
            "eta": eta,
            "seed": seed,
        }
        | rest
        for energy, eta in kinds
        for seed in config.descent.seeds
    ]


def follow(options: dict) -> dict[str, Any]:
    """Energies of a random model's tokens, and when each of them rose for the last time and came to rest."""
    torch.manual_seed(options["seed"])
    shape = preset("NRGPT_H_FF2W", vocab_size=64, max_position_embeddings=options["tokens"], mask="strict")
    names = ("hidden_size", "num_attention_heads", "energy", "eta")
    sizes = {name: options[name] for name in names} | {"intermediate_size": 4 * options["hidden_size"]}
    model = NRGPTForCausalLM(NRGPTConfig(**(shape.to_dict() | sizes))).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.copy_(options["spread"] * torch.randn_like(p))
        rate = model.model.blocks[0].rate
        if options["eta"] == "pos_scalar":
            rate.a.fill_(options["c"] ** 0.5)
        else:  # of the same Frobenius norm as c I
            rate.W.mul_(options["c"] * options["hidden_size"] ** 0.5 / rate.W.norm())
    ids = torch.randint(64, (1, options["tokens"]))
    found = energy_statistics(model, ids, num_steps=options["steps"])
    energy, norm = found["energy"][0], found["state_norm"][0]
    rises = energy.diff(dim=0) > 1e-12 * energy[1:].abs()
    last_rise = [int(column.nonzero().max()) + 1 if column.any() else 0 for column in rises.T]
    moving = found["update_norm"][0] / norm[:-1] > 1e-4
    rest = [int(column.nonzero().max()) + 1 if column.any() else 0 for column in moving.T]
    after = [1 - rises[max(rest[:a], default=0) :, a].double().mean().item() for a in range(len(rest))]
    trace = {"energy": energy[::20].tolist(), "update": found["update_norm"][0][::20].tolist()}
    return {
        "falls": 1 - rises.double().mean().item(),
        "first_falls": 1 - rises[:, 0].double().mean().item(),
        "falls_after_rest": float(np.mean([value for value in after if math.isfinite(value)] or [math.nan])),
        "order": float(spearmanr(range(len(rest)), last_rise).statistic) if len(set(last_rise)) > 1 else None,
        "last_rise": last_rise,
        "rest": rest,
        "growth": float((norm[-1] / norm[0]).mean()),
    } | (trace if options["seed"] == 0 else {})


def report_descent(config: ReproduceConfig) -> None:
    """results/descent.json, and a picture of the first model's energies."""
    runs = descent_runs(config)
    listed, rows = run_list(config, runs), []
    columns = {
        "share of steps in which an energy falls": "falls",
        "first token": "first_falls",
        "once the earlier tokens rest": "falls_after_rest",
        "rank correlation of place and last rise": "order",
        "growth of |x|": "growth",
    }
    for arm in dict.fromkeys(options["arm"] for options in runs):
        done = [listed.result(options["name"]) for options in runs if options["arm"] == arm]
        energy, eta = arm.split(", ")
        cells = []
        for key in columns.values():
            values = [None if result is None else result[key] for result in done]
            there = [value for value in values if value is not None]
            cells.append(None if None in done else t_interval(there) if len(there) > 1 else "–")
        rows.append([energy, RATES[eta], *cells])
    options = config.descent
    caption = (
        f"Random weights, {options.tokens} tokens, {options.steps} steps, float64, strict mask: mean over "
        f"{len(options.seeds)} models and 95 % t-interval; at rest: a step changes less than 1e-4 of the state"
    )
    seconds = sum(record["seconds"] for record in listed.finished().values())
    results.save(
        config.output / "descent.json",
        title="NRGPT: descent",
        claim=None,
        metric="share of steps in which the energy of a token falls",
        arms=RATES,
        budget=config.budget,
        seeds=options.seeds,
        config=vars(options),
        tables={"descent": results.table(caption, ["energy", "eta", *((name, ".3f") for name in columns)], rows)},
        verdict=None,
        environment=results.environment(["torch", "transformers"], seconds, PROJECT),
        code_paths=CODE,
    )
    first = listed.result("descent-ff2w-pos_scalar-0") if "descent-ff2w-pos_scalar-0" in listed.runs else None
    if first is not None:
        energy, update = np.array(first["energy"]), np.array(first["update"])
        names = [f"token {a + 1}" for a in range(energy.shape[1])]
        plot_energies(energy, update, names, config.output / "descent.png", every=20)
    print(results.markdown(results.load(config.output / "descent.json")))


# The report


def report(config: ReproduceConfig, name: str) -> None:
    """results/NAME.json and .png from the runs that exist."""
    experiment, arms, steps = config.experiments[name], experiments(config)[name], timing(config, name)
    found: dict[str, SimpleNamespace] = {}
    for arm in arms:
        rate = None if steps is None else chosen_rate(config, name, arm, steps[arm])
        runs = [] if rate is None else training_runs(config, name, arm, steps[arm], rate)
        listed = run_list(config, runs)
        done = [listed.result(run["name"]) for run in runs]
        done = [None if result is None or result.get("loss") is None else result for result in done]
        found[arm] = SimpleNamespace(rate=rate, steps=runs[0]["steps"] if runs else None, runs=done)
    effects = effects_of(experiment, found)
    interval = t_interval(effects) if len(effects) > 1 else None
    chosen = [info.rate for info in found.values()]
    judged = results.verdict(
        interval and (interval.low + experiment.margin, interval.high + experiment.margin),
        "higher",
        stopped_improving=False,  # every run ends with its budget, not with convergence
        equal_budgets=None not in chosen,
        smallest_effect=detectable_effect(effects) if len(effects) > 1 and np.std(effects) > 0 else None,
    )
    tables = {"arms": arms_table(config, name, found, steps), "effect": effect_table(experiment, effects, interval)}
    tables |= {"tuning": tuning_table(config, name, arms, steps)}
    seconds = sum(record["seconds"] for record in all_records(config, name, arms, steps))
    results.save(
        config.output / f"{name}.json",
        title=f"NRGPT: {name}",
        claim=experiment.claim,
        metric=MEASURES[experiment.measure] + (f", margin {experiment.margin:g}" if experiment.margin else ""),
        arms={arm: str(options) for arm, options in arms.items()},
        budget=config.budget,
        seeds=experiment.seeds,
        config=vars(experiment) | {"learning_rates": config.learning_rates},
        tables=tables,
        verdict=judged,
        environment=results.environment(["torch", "transformers"], seconds, PROJECT),
        code_paths=CODE,
    )
    curves = {}
    for arm, info in found.items():
        finished = [run for run in info.runs if run is not None]
        if finished:
            x = [point["step"] * steps[arm] for point in finished[0]["curve"]]
            y = [np.mean([run["curve"][i][experiment.measure] for run in finished]) for i in range(len(x))]
            curves[arm] = (x, y)
    if curves:
        picture = config.output / f"{name}.png"
        label = MEASURES[experiment.measure].replace(" less that of the training text", " less training text")
        plot_curves(picture, curves, xlabel="seconds of training on one thread", ylabel=label)
    print(results.markdown(results.load(config.output / f"{name}.json")))


def all_records(config: ReproduceConfig, name: str, arms: Iterable[str], steps: Mapping[str, float] | None) -> list:
    if steps is None:
        return []
    records = []
    for arm in arms:
        runs = tuning_runs(config, name, arm, steps[arm])
        rate = chosen_rate(config, name, arm, steps[arm])
        runs += [] if rate is None else training_runs(config, name, arm, steps[arm], rate)
        records += run_list(config, runs).finished().values()
    return records


def effects_of(experiment: Experiment, found: Mapping[str, SimpleNamespace]) -> list[float]:
    """For each seed the mean over pairs, method against baseline, better being higher; none while a run is missing."""
    sign = 1 if experiment.measure == "accuracy" else -1
    effects = []
    for number in range(len(experiment.seeds)):
        values = []
        for pair in experiment.compare:
            runs = [found[arm].runs[number] if arm in found and found[arm].runs else None for arm in pair]
            if None in runs:
                return []
            method, baseline = (run[experiment.measure] for run in runs)
            values.append(sign * (method - baseline))
        effects.append(float(np.mean(values)))
    return effects


def arms_table(config: ReproduceConfig, name: str, found: Mapping[str, SimpleNamespace], steps) -> dict:
    """Every arm: its size, its budget, what it reached."""
    experiment = config.experiments[name]
    columns = ["arm", "width", "parameters", ("MFLOP a token", ".2f"), "learning rate", ("ms a step", ".0f"), "steps"]
    answers = experiment.measure == "accuracy"
    columns += [("accuracy", ".3f")] if answers else []
    columns += [("held-out loss", ".3f"), ("training loss", ".3f"), ("gap", ".3f")]
    columns += [("energy falls", ".2f")]
    rows = []
    for arm, info in found.items():
        shape = shape_of(config, experiment, experiments(config)[name][arm])
        flops = forward_flops(shape, shape.max_position_embeddings) / 1e6
        row = [arm, shape.hidden_size, count_parameters(shape), flops, with_edge(info.rate, config.learning_rates)]
        row += [None if steps is None else 1000 * steps[arm], info.steps]
        keys = (["accuracy"] if answers else []) + ["loss", "training_loss", "gap", "falling"]
        row += [over_seeds(info.runs, key) for key in keys]
        rows.append(row)
    caption = f"{experiment.seconds:g} s of training on one thread each: mean over seeds and 95 % t-interval"
    if answers:
        samples = load(config, experiment).test["mixed"][: config.prompts]
        most, part = majority_answer(samples)
        caption += f"; answering always {most} is right in {part:.3f} of the prompts"
    return results.table(caption, columns, rows)


def over_seeds(runs: list, key: str) -> Interval | float | str | None:
    """Interval of the mean; None while a run is missing, a dash where there is no such number."""
    if not runs or None in runs:
        return None
    if key not in runs[0]:
        return "–"
    values = [run[key] for run in runs]
    return t_interval(values) if len(values) > 1 else values[0]


def with_edge(rate: float | None, rates: list[float]) -> str | None:
    """The rate, and whether a better one may lie beyond the grid."""
    return None if rate is None else f"{rate:g}" + (" (edge of the grid)" if rate in (min(rates), max(rates)) else "")


def effect_table(experiment: Experiment, effects: list[float], interval: Interval | None) -> dict:
    pairs = ", ".join(f"{method} against {baseline}" for method, baseline in experiment.compare)
    caption = f"{MEASURES[experiment.measure]}, better being higher: {pairs}; mean over pairs, paired by seed"
    smallest = detectable_effect(effects) if len(effects) > 1 and np.std(effects) > 0 else None
    row = [interval, experiment.margin, smallest]
    columns = [("effect", ".3f"), ("margin", ".2f"), ("effect seen four times in five", ".3f")]
    return results.table(caption, columns, [row])


def tuning_table(config: ReproduceConfig, name: str, arms: Iterable[str], steps) -> dict:
    rows = []
    for arm in arms:
        runs = [] if steps is None else tuning_runs(config, name, arm, steps[arm])
        listed = run_list(config, runs)
        losses = [(listed.result(run["name"]) or {}).get("loss") for run in runs] or [None] * len(config.learning_rates)
        rate = None if steps is None else chosen_rate(config, name, arm, steps[arm])
        rows.append([arm, *losses, with_edge(rate, config.learning_rates)])
    experiment = config.experiments[name]
    caption = (
        f"Tuning: loss on the last {100 * config.tuning_share:g} % of the training text after "
        f"{experiment.tuning_seconds:g} s, seed {config.tuning_seed}; the least is chosen"
    )
    return results.table(caption, ["arm", *((f"{lr:g}", ".4f") for lr in config.learning_rates), "chosen"], rows)


if __name__ == "__main__":
    sys.argv.insert(1, f"--config={PROJECT / 'configs' / 'reproduce.yaml'}")  # another one goes on top of it
    run(main, ReproduceConfig)
