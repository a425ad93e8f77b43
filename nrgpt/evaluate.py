"""Measure a trained model on what it has not seen: `python evaluate.py --model outputs/demo`."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
import yaml
from scipy.stats import spearmanr

from nrgpt import NRGPTForCausalLM
from nrgpt.cli import as_dict, run
from nrgpt.data import Corpus, default_cache, load_corpus, spaced_windows
from nrgpt.evaluation import (
    answer_listops,
    bits_per_character,
    energy_statistics,
    majority_answer,
    rate_parts,
    stream_losses,
)
from nrgpt.loading import choose_device, load_model
from nrgpt.reports import plot_first_text, shown

try:
    from iclr26_tools.results import environment, save, table
    from iclr26_tools.statistics import Interval, bootstrap_interval, wilson_interval
except ImportError as error:
    where = "git+https://github.com/iclr26/papers#subdirectory=tools"
    raise SystemExit(f'evaluate.py: error: {error}; pip install "iclr26-tools @ {where}"') from error


@dataclass
class EvaluateConfig:
    """Evaluate a model: loss, bits per character, ListOps answers, energies, more and fewer steps than were trained."""

    model: str = "outputs/demo"
    """Folder of a saved model, or its Hub id."""
    dataset: str | None = None
    """As in train.py (default: what the model says that it was trained on, with the options it was read with)."""
    cache_dir: Path | None = None
    """Where ids of data sets of the Hub are kept (default: ~/.cache/iclr26-nrgpt)."""
    windows: int = 512
    """Windows of the training and of the validation text (paper: 200 batches)."""
    prompts: int = 500
    """Held-out ListOps prompts of each set (paper: 100)."""
    steps: list[int] | None = None
    """Numbers of steps to compare, of shared blocks (default: half, once, twice and four times those trained)."""
    stop_tol: float = 0.1
    """Of the adaptive depth compared with them: a token rests once a step changes it by less than this share."""
    batch_size: int = 64
    """Windows or prompts at once."""
    seed: int = 0
    """Of sampled answers."""
    device: str | None = None
    """cuda, mps or cpu (default: the best there is)."""
    output: Path | None = None
    """Folder for evaluation.json and energies.png (default: the model's, or outputs for a Hub id)."""
    record: str | None = None
    """Also write results/NAME.json and results/NAME.png here, which the README shows."""


def main(config: EvaluateConfig) -> None:
    start = time.monotonic()
    for name in ("windows", "prompts", "batch_size"):
        least = 2 if name == "windows" else 1
        if getattr(config, name) < least:
            raise ValueError(f"{name}: expected at least {least}, got {getattr(config, name)}")
    model, tokenizer = load_model(config.model, choose_device(config.device))
    training_file = Path(config.model) / "training.yaml"
    training = yaml.safe_load(training_file.read_text(encoding="utf-8")) if training_file.is_file() else {}
    corpus = load(config, training, tokenizer)
    folder = config.output or (Path(config.model) if Path(config.model).is_dir() else Path("outputs"))
    folder.mkdir(parents=True, exist_ok=True)

    rows = losses(config, model, corpus)
    if corpus.test:
        rows += listops(config, model, corpus)
    if model.config.share_blocks:
        rows += depths(config, model, corpus)
    if model.config.block == "energy":
        rows += energies(config, model, corpus, folder / "energies.png")

    seconds = time.monotonic() - start
    report = {"model": config.model, "rows": rows, "seconds": seconds, "config": as_dict(config)}
    (folder / "evaluation.json").write_text(json.dumps(report, indent=1, default=vars) + "\n", encoding="utf-8")
    for name, value in rows:
        print(f"{name:72} {value if isinstance(value, (str, Interval)) else f'{value:.3f}'}")
    print(f"wrote {folder / 'evaluation.json'} ({seconds:.0f} s)")
    if config.record:
        record(config, training, model, rows, seconds, folder / "energies.png")


def load(config: EvaluateConfig, training: dict, tokenizer) -> Corpus:
    """What the model was trained on, or the data set given, in the model's tokens."""
    dataset = config.dataset or training.get("dataset")
    if dataset is None:
        raise ValueError(f"dataset: expected one, {config.model} does not say what it was trained on")
    options = training | {"dataset": dataset}
    if dataset != training.get("dataset"):
        options.pop("train_characters", None)
    if not dataset.startswith("hf:"):
        options["tokenizer"] = tokenizer
    options.setdefault("tokenizer", config.model)
    return load_corpus(options, config.cache_dir or default_cache())


def losses(config: EvaluateConfig, model: NRGPTForCausalLM, corpus: Corpus) -> list:
    """Loss on the validation text and on the training text by the same estimator, and their gap."""
    length = model.config.max_position_embeddings
    options = dict(length=length, windows=config.windows, batch_size=config.batch_size)
    unseen, places = stream_losses(model, corpus.validation, **options)
    seen, _ = stream_losses(model, corpus.train, **options)
    rows = [
        ["validation loss, nats a token", bootstrap_interval(unseen)],
        ["training loss, nats a token", bootstrap_interval(seen)],
        ["gap", float(unseen.mean() - seen.mean())],
        ["validation loss of the last quarter of the context", float(places[-max(1, length // 4) :].mean())],
    ]
    if corpus.characters is not None:
        bits = bits_per_character(float(unseen.mean()), len(corpus.validation), corpus.characters)
        rows.append(["validation, bits a character", bits])
    return rows


def listops(config: EvaluateConfig, model: NRGPTForCausalLM, corpus: Corpus) -> list:
    """Answers to held-out prompts, greedy and sampled, beside the most frequent answer."""
    torch.manual_seed(config.seed)
    rows = []
    for name, samples in corpus.test.items():
        samples = samples[: config.prompts]
        label = "held-out prompts" if name == "mixed" else f"of {name} alone"
        for greedy in (True, False):
            options = dict(batch_size=config.batch_size, vocabulary=corpus.vocabulary)
            answers = answer_listops(model, samples, greedy, **options)
            right = wilson_interval(sum(answer.correct for answer in answers), len(answers))
            rows.append([f"{label}: right, {'greedy' if greedy else 'sampled'}", right])
            if greedy and name == "mixed":
                for answer in answers[:4]:
                    print(shown(answer))
        most, share = majority_answer(samples)
        rows.append([f"{label}: always {most}", share])
    return rows


def depths(config: EvaluateConfig, model: NRGPTForCausalLM, corpus: Corpus) -> list:
    """Validation loss with other numbers of steps than were trained, and with tokens that rest."""
    trained, length = model.config.num_hidden_layers, model.config.max_position_embeddings
    rows = []
    for steps in config.steps or sorted({max(1, trained // 2), trained, 2 * trained, 4 * trained}):
        found, _ = stream_losses(model, corpus.validation, length, config.windows, config.batch_size, num_steps=steps)
        rows.append([f"validation loss after {steps} steps (trained: {trained})", bootstrap_interval(found)])
    if model.config.block == "energy":
        options = dict(num_steps=4 * trained, stop_tol=config.stop_tol)
        found, _ = stream_losses(model, corpus.validation, length, config.windows, config.batch_size, **options)
        name = f"validation loss, resting below {config.stop_tol:g}, at most {4 * trained} steps"
        rows.append([name, bootstrap_interval(found)])
        ids = spaced_windows(corpus.validation, length, 32)[:, :-1].to(model.device)
        with torch.no_grad():
            taken = model(ids, use_cache=False, **options).steps
        rows.append(["steps that a token takes so, mean", float(taken.double().mean())])
    return rows


def energies(config: EvaluateConfig, model: NRGPTForCausalLM, corpus: Corpus, file: Path) -> list:
    """Do energies fall, do tokens settle, does a step point downhill, does the energy tell how sure the model is?"""
    ids = spaced_windows(corpus.validation, model.config.max_position_embeddings, 32)[:, :-1].to(model.device)
    found = energy_statistics(model, ids)
    norms = found["state_norm"]
    rows = [
        ["share of steps in which a token's energy falls", float(found["falling"].mean())],
        ["cosine of a step and steepest descent, mean", float(found["cosine"].mean())],
        ["length of the last move over that of the state", float((found["update_norm"][:, -1] / norms[:, -1]).mean())],
        ["length of the last state over that of the first", float((norms[:, -1] / norms[:, 0]).mean())],
    ]
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits.float()
    entropy = torch.distributions.Categorical(logits=logits[:, :-1]).entropy()
    surprise = F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    last = found["energy"][:, -1, :-1]
    for name, other in {"entropy of the prediction": entropy, "loss": surprise}.items():
        # tokens of one window depend on each other: one correlation each
        values = [spearmanr(a.cpu(), b.cpu()).statistic for a, b in zip(last, other)]
        rows.append([f"rank correlation of last energy and {name}", bootstrap_interval(values)])
    parts = rate_parts(model)
    rows.append(["inference rate: norm of its symmetric part", parts["symmetric"]])
    rows.append(["inference rate: norm of its antisymmetric part", parts["antisymmetric"]])
    rows.append(["inference rate: least eigenvalue of the symmetric part", parts["least_eigenvalue"]])
    plot_first_text(model, corpus, file)
    return rows


def record(config: EvaluateConfig, training: dict, model, rows: list, seconds: float, picture: Path) -> None:
    """Write results/NAME.json and .png, which the README shows."""
    count = sum(p.numel() for p in model.parameters())
    title = f"{training.get('model', 'model')}, {count:,} parameters, {training.get('steps', 0):,} steps"
    project = Path(__file__).parent
    training = {key: value for key, value in training.items() if key not in ("output_dir", "cache_dir", "resume")}
    save(
        project / "results" / f"{config.record}.json",
        title=title,
        claim=None,
        metric="as named in each row",
        arms={"model": config.model},
        budget="demo",
        seeds=[training.get("seed", 0)],
        config={"train": training, "evaluate": as_dict(config)},
        tables={config.record: table(title, ["measure", ("value", ".3f")], rows)},
        verdict=None,
        environment=environment(["torch", "transformers", "accelerate"], seconds, project),
        code_paths=["src", "train.py", "evaluate.py"],
    )
    if picture.is_file():
        (project / "results" / f"{config.record}.png").write_bytes(picture.read_bytes())
    print(f"wrote {project / 'results' / config.record}.json")


if __name__ == "__main__":
    run(main, EvaluateConfig)
