"""Train NRGPT or a baseline: `accelerate launch -q train.py [--config configs/NAME.yaml] [--option value]`."""

import importlib.util
import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import huggingface_hub
import torch
from accelerate import Accelerator, DistributedType
from torch import Tensor
from tqdm import tqdm

from nrgpt import MODELS, NRGPTForCausalLM, preset
from nrgpt.card import model_card
from nrgpt.checkpointing import Checkpoints, StopSignal
from nrgpt.cli import as_dict, run, save_config
from nrgpt.data import Corpus, check_length, default_cache, draw_windows, load_corpus
from nrgpt.evaluation import next_token_loss, stream_losses
from nrgpt.listops import prompt_of
from nrgpt.optimization import learning_rate, parameter_groups
from nrgpt.reports import report_energies, report_listops


@dataclass
class TrainConfig:
    """Train NRGPT. The defaults are the demo: the greatest of some digits, from examples, on two CPU cores."""

    model: str = "NRGPT_H_FF2W"
    """NRGPT_H_FF1, NRGPT_H_FF2, NRGPT_H_FF2W, or a baseline: GPT, GPT_Rec, GPT_Rec_parallel (the paper's names)."""
    hidden_size: int = 64
    """Width d (paper: 768 for OpenWebText, 32 to 768 for Shakespeare, 8 to 256 for ListOps)."""
    num_attention_heads: int = 2
    """Heads (paper: 1 to 12; 1 for ListOps)."""
    num_hidden_layers: int = 5
    """Steps T, or blocks of GPT (paper: 12 for OpenWebText, 3 to 8 for Shakespeare, 5 for ListOps)."""
    context: int = 32
    """Tokens of a window (paper: 1,024, 256, 128)."""
    mask: Literal["strict", "inclusive"] = "strict"
    """Which tokens a token attends to: earlier ones (paper's formula; official code for ListOps), or itself too
    (official code for text). Baselines are inclusive."""
    exact_self: bool = False
    """With the inclusive mask, differentiate through the token's own key too (official code: no)."""
    rank: int | None = None
    """Rank of the attention matrices J; none for full ones (official code)."""
    beta: float = 1.0
    """Inverse temperature of the attention energy."""
    learn_alpha: bool = False
    """Learn the weights of the heads in the energy."""
    eta: Literal["full", "identity", "pos_scalar", "diag_pos", "psd", "psd_skew", "dual"] = "full"
    """Inference rate (paper: full; pos_scalar promises descent)."""
    eta_per_step: bool = False
    """An inference rate for each step."""
    norm: Literal["layernorm", "rmsnorm", "none"] = "layernorm"
    """Of the energy block (paper: layernorm)."""
    norm_gain: bool = False
    """Learn its gain (official code: no)."""
    activation: Literal["relu", "gelu"] = "relu"
    """Of a baseline's feed-forward layers (official code: relu)."""
    dropout: float = 0.0
    """Share of attention weights and outputs dropped (paper: 0.1 for Shakespeare, else 0)."""
    tie_word_embeddings: bool = False
    """One matrix for embedding and head (official code: no)."""

    dataset: str = "listops"
    """listops, shakespeare, a text file or a folder of them, or hf:ID for a data set of the Hub (paper:
    hf:Skylion007/openwebtext); listops-classic: nested lists with an answer and no steps, of at most context tokens."""
    tokenizer: str = "characters"
    """Of text: characters, bpe (trained on it), or one of the Hub (paper: gpt2 for OpenWebText)."""
    vocab_size: int = 2048
    """Of bpe."""
    train_characters: int | None = None
    """Train on so many characters only, from the beginning."""
    functions: list[str] = field(default_factory=lambda: ["max"])
    """Of ListOps: some of min, max, median, add, prod, nadd (paper: max, median, add)."""
    max_depth: int = 1
    """Of nested functions (paper: 2)."""
    max_children: int = 3
    """Arguments of a function, from 2 on; tuples of so many digits are held out (paper: 3)."""
    function_share: float = 0.25
    """Chance that an argument is a function (paper: 0.25)."""
    train_samples: int = 50_000
    """ListOps samples (paper: 50,000)."""
    test_samples: int = 2_000
    """Held-out ListOps samples (paper: 2,000)."""
    data_seed: int = 42
    """Of the ListOps generator (paper: 42)."""
    cache_dir: Path | None = None
    """Where ids of data sets of the Hub are kept (default: ~/.cache/iclr26-nrgpt)."""

    steps: int = 1500
    """Optimiser steps (paper: 40,000 for Shakespeare, else 100,000)."""
    batch_size: int = 64
    """Windows a step, of all processes together (paper: 64; 384 for OpenWebText)."""
    gradient_accumulation: int = 1
    """Parts into which each process cuts its share of the batch, to save memory."""
    lr: float = 3e-3
    """Largest learning rate (paper: 5e-4 for ListOps; 1e-3, 1e-4, 5e-5 for Shakespeare; 1e-5 to 1e-3)."""
    min_lr: float = 2e-5
    """Learning rate at the end (paper: 2e-5 for ListOps, else lr / 10 and others)."""
    warmup: int = 0
    """Steps of linear warm-up (paper: 0 for ListOps, 100, 2,000)."""
    decay_steps: int | None = None
    """Step at which it reaches min_lr (default: steps; official code for text: one before the last)."""
    schedule: Literal["exponential", "cosine", "constant"] = "exponential"
    """Of the learning rate after it (paper: exponential; cosine in the OpenWebText config)."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's (paper: 0.9, 0.999 for ListOps; 0.9, 0.95 or 0.99 for text)."""
    weight_decay: float = 0.01
    """AdamW's (paper: 0.01 for ListOps, 0.1 or 0.01 for text)."""
    decay: Literal["all", "matrices"] = "all"
    """What decays: every parameter (official ListOps loop), or those of two or more dimensions (that for text)."""
    clip: float | None = 1.0
    """Largest norm of the gradient (official code: 1)."""
    mixed_precision: Literal["no", "bf16"] | None = None
    """Precision (paper: bf16 for text); None takes accelerate's configuration."""
    gradient_checkpointing: bool = False
    """Recompute each step of the block in the backward pass: less memory, about a third more time."""
    compile: bool = False
    """Compile the model with torch.compile."""
    threads: int | None = None
    """CPU threads of each process (default: the cores divided by the processes on this machine)."""

    seed: int = 0
    """Of weights and windows."""
    output_dir: Path = Path("outputs/demo")
    """Where the model, checkpoints and logs go."""
    resume: str | None = None
    """`latest`, or a checkpoint folder, to go on from."""
    overwrite: bool = False
    """Start anew although output_dir holds checkpoints of an earlier run, and delete those."""
    checkpoint_every: int = 500
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """Checkpoints to keep."""
    validate_every: int = 250
    """Steps between losses of the validation text (paper: 250 for Shakespeare, 100 for ListOps, else 1,000)."""
    validation_windows: int = 256
    """Windows of it (paper: 200 batches)."""
    report: bool = True
    """In the end answer 500 held-out ListOps prompts, show some, and plot the energies of one."""
    log_every: int = 10
    """Steps between lines of log.jsonl and of the tracker."""
    tracker: Literal["tensorboard", "wandb", "trackio", "none"] = "tensorboard"
    """Where accelerate sends losses; wandb and trackio are installed apart."""
    push_to_hub: bool = False
    """Upload the final model."""
    hub_model_id: str | None = None
    """Repository to upload to, user/name."""
    hub_private: bool = False
    """Make the repository private, if it is a new one."""


def main(config: TrainConfig) -> None:
    check(config)
    accelerator = Accelerator(
        mixed_precision=config.mixed_precision,
        gradient_accumulation_steps=config.gradient_accumulation,
        log_with=None if config.tracker == "none" else config.tracker,
        project_dir=config.output_dir,
    )
    set_up_device(config, accelerator)
    checkpoints = Checkpoints(config.output_dir / "checkpoints", config.keep_checkpoints)
    found = checkpoints.find(config.resume, overwrite=config.overwrite)
    check_hub(config, accelerator)
    with accelerator.local_main_process_first():
        corpus = load(config)
    torch.manual_seed(config.seed)
    model = build(config, corpus)
    groups = parameter_groups(model, config.weight_decay, config.decay)
    optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas)
    model, optimizer = accelerator.prepare(model, optimizer)
    bare = accelerator.unwrap_model(model)
    state = {"model": bare, "optimizer": optimizer.optimizer}
    start = resume(config, accelerator, checkpoints, found, state, groups) if found else 0
    if config.resume and not found:
        accelerator.print(f"no checkpoint in {checkpoints.folder}: a new run")

    log = Log(config, accelerator, start)
    slices = places_of(config, accelerator)
    decay_steps = config.decay_steps or config.steps
    progress = tqdm(range(start, config.steps), initial=start, total=config.steps, unit="step", disable=not log.shown)
    with StopSignal() as stop:
        for step in progress:
            rate = learning_rate(step, config.lr, config.min_lr, decay_steps, config.warmup, config.schedule)
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = torch.zeros((), device=accelerator.device)
            for places in slices:
                ids, targets = draw_windows(corpus.train, config.context, config.seed, step, places)
                ids, targets = ids.to(accelerator.device), targets.to(accelerator.device)
                with accelerator.accumulate(model):
                    with accelerator.autocast():
                        part = next_token_loss(model, ids, targets)
                    accelerator.backward(part)
                    loss += part.detach() / len(slices)
                    if accelerator.sync_gradients:
                        mean, stopping = across_processes(accelerator, loss, stop.received is not None)
                        require_finite(mean, step + 1)
                        if config.clip is not None:
                            accelerator.clip_grad_norm_(model.parameters(), config.clip)
                    optimizer.step()
                    optimizer.zero_grad()
            done = step + 1
            measures = {"loss": mean, "lr": rate}
            if done % config.validate_every == 0 or done == config.steps:
                measures["validation"] = validate(config, model, corpus)
            log.write(done, measures, progress)
            if stopping or done % config.checkpoint_every == 0 or done == config.steps:
                checkpoints.save(done, **state, info={"config": as_dict(config)})
            if stopping:
                accelerator.end_training()
                raise SystemExit(f"stopped at step {done} and saved; go on with --resume latest")
    finish(config, accelerator, bare, corpus)


def check(config: TrainConfig) -> None:
    """Refuse values outside their ranges, by name, before any work."""
    if config.model not in MODELS:
        raise ValueError(f"model: expected one of {', '.join(MODELS)}, got {config.model!r}")
    least = dict(context=2, steps=1, batch_size=1, gradient_accumulation=1, checkpoint_every=1, keep_checkpoints=1)
    least |= dict(
        validate_every=1,
        validation_windows=1,
        log_every=1,
        threads=1,
        train_characters=1,
        decay_steps=1,
        warmup=0,
        seed=0,
    )
    least |= dict(weight_decay=0, hidden_size=1, num_attention_heads=1, num_hidden_layers=1)
    for name, low in least.items():
        value = getattr(config, name)
        if value is not None and not value >= low:
            raise ValueError(f"{name}: expected at least {low}, got {value}")
    for name in ("lr", "min_lr", "clip"):
        value = getattr(config, name)
        if value is not None and not value > 0:
            raise ValueError(f"{name}: expected a positive number, got {value}")
    if not all(0 <= beta < 1 for beta in config.betas):
        raise ValueError(f"betas: expected 0 <= value < 1, got {config.betas}")
    if config.min_lr > config.lr:
        raise ValueError(f"min_lr: expected at most lr, {config.lr}, got {config.min_lr}")
    if config.tracker != "none" and importlib.util.find_spec(config.tracker) is None:
        raise ValueError(f"tracker: {config.tracker} is not installed; pip install {config.tracker}, or take none")


def set_up_device(config: TrainConfig, accelerator: Accelerator) -> None:
    """Threads on a CPU, of which accelerate leaves one."""
    if accelerator.mixed_precision == "fp16":
        raise ValueError("mixed_precision: expected no or bf16, got fp16 (its loss scaling would not be resumed)")
    if accelerator.device.type == "cpu":
        local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        torch.set_num_threads(config.threads or max(1, (os.cpu_count() or 1) // local))
    if accelerator.distributed_type == DistributedType.FSDP:
        # FSDP's own policy would cast inputs to bfloat16 as well: autocast alone decides, as with replicas.
        accelerator.state.fsdp_plugin.mixed_precision_policy = None


def load(config: TrainConfig) -> Corpus:
    corpus = load_corpus(vars(config), config.cache_dir or default_cache())
    check_length(corpus, config.context)
    return corpus


def build(config: TrainConfig, corpus: Corpus) -> NRGPTForCausalLM:
    names = ["hidden_size", "num_attention_heads", "num_hidden_layers", "dropout", "tie_word_embeddings"]
    if MODELS[config.model]["block"] == "energy":
        names += ["mask", "exact_self", "rank", "beta", "learn_alpha", "eta", "eta_per_step", "norm", "norm_gain"]
    else:
        names += ["activation"]
    options = {name: getattr(config, name) for name in names}
    ends = corpus.tokenizer.eos_token_id
    options |= dict(max_position_embeddings=config.context, eos_token_id=ends, pad_token_id=ends)
    model = NRGPTForCausalLM(preset(config.model, vocab_size=len(corpus.tokenizer), **options))
    if config.gradient_checkpointing:
        model.activation_checkpointing_enable()
    if config.compile:
        model.compile()  # in place, so that names of parameters stay
    return model


MAY_CHANGE = {"output_dir", "cache_dir", "threads", "resume", "overwrite", "checkpoint_every", "keep_checkpoints"}
MAY_CHANGE |= {"validate_every", "validation_windows", "report", "log_every", "tracker", "push_to_hub"}
MAY_CHANGE |= {"hub_model_id", "hub_private", "gradient_accumulation", "gradient_checkpointing", "compile"}


def resume(config: TrainConfig, accelerator: Accelerator, checkpoints: Checkpoints, found: Path, state, groups) -> int:
    """Load a checkpoint and say which options that shape the run are others than before; returns its step."""
    saved = checkpoints.load(found, **state)
    if saved["step"] > config.steps:
        raise ValueError(f"steps: {found} has done {saved['step']} already, more than {config.steps}")
    for group, now in zip(state["optimizer"].param_groups, groups, strict=True):
        group.update(betas=config.betas, weight_decay=now["weight_decay"])  # the checkpoint's would win otherwise
    before, now = saved["config"], as_dict(config)
    changed = [f"{k} {before[k]} -> {v}" for k, v in now.items() if k not in MAY_CHANGE and before.get(k, v) != v]
    accelerator.print(f"resumed from {found}" + (f"; changed since: {', '.join(changed)}" if changed else ""))
    return saved["step"]


def places_of(config: TrainConfig, accelerator: Accelerator) -> list[range]:
    """The places in the global batch that this process draws, a range for each part."""
    parts = accelerator.num_processes * config.gradient_accumulation
    if config.batch_size % parts:
        raise ValueError(
            f"batch_size: expected a multiple of {parts} (processes x accumulation), got {config.batch_size}"
        )
    size, first = config.batch_size // parts, accelerator.process_index * config.gradient_accumulation
    return [range((first + i) * size, (first + i + 1) * size) for i in range(config.gradient_accumulation)]


def across_processes(accelerator: Accelerator, loss: Tensor, stop: bool) -> tuple[float, bool]:
    """Mean loss of all processes, and whether any of them was told to stop: one message, one wait for the device."""
    values = torch.stack([loss, torch.tensor(float(stop), device=accelerator.device)])
    mean, stopping = accelerator.reduce(values, reduction="mean").tolist()
    return mean, stopping > 0


def require_finite(loss: float, step: int) -> None:
    if not math.isfinite(loss):
        raise ValueError(
            f"loss: expected a finite number, got {loss} at step {step}; nothing was saved after the last checkpoint. "
            "Lower lr"
        )


def validate(config: TrainConfig, model, corpus: Corpus) -> float:
    """Loss of fixed windows of the validation text; every process computes the same."""
    model.eval()
    losses, _ = stream_losses(model, corpus.validation, config.context, config.validation_windows)
    model.train()
    return float(losses.mean())


def check_hub(config: TrainConfig, accelerator: Accelerator) -> None:
    """Token and repository, before the first step."""
    if not config.push_to_hub:
        return
    if not config.hub_model_id:
        raise ValueError("hub_model_id: expected user/name with push_to_hub")
    if accelerator.is_main_process:
        huggingface_hub.create_repo(config.hub_model_id, exist_ok=True, private=config.hub_private)


def finish(config: TrainConfig, accelerator: Accelerator, model: NRGPTForCausalLM, corpus: Corpus) -> None:
    """Save the model with its tokenizer and card, upload it if asked to, and show what it can do."""
    weights = {name: full(tensor) for name, tensor in model.state_dict().items()}  # every process helps to gather
    if accelerator.is_main_process:
        whole = NRGPTForCausalLM(model.config).eval()
        whole.load_state_dict(weights)
        whole.save_pretrained(config.output_dir)
        corpus.tokenizer.save_pretrained(config.output_dir)
        save_config(config, config.output_dir / "training.yaml")
        local = not config.dataset.startswith("hf:")
        dataset = Path(config.dataset).name if local else config.dataset  # a card does not tell where things lie
        ids = corpus.validation[:8].tolist()
        start = " ".join(prompt_of(corpus.test["mixed"][0])) if corpus.test else corpus.tokenizer.decode(ids)
        name = config.hub_model_id or str(config.output_dir)
        model_card(whole, name, dataset, config.steps, start).save(config.output_dir / "README.md")
        print(f"saved {config.output_dir}")
        if config.push_to_hub:
            huggingface_hub.upload_folder(
                repo_id=config.hub_model_id,
                folder_path=config.output_dir,
                # the options hold local paths
                ignore_patterns=["checkpoints/*", "logs/*", "*.jsonl", "training.yaml"],
            )
        if config.report and corpus.test:
            report_listops(whole, corpus, 500)
        if config.report and whole.config.block == "energy":
            report_energies(whole, corpus, config.output_dir / "energies.png")
    accelerator.end_training()


def full(tensor: Tensor) -> Tensor:
    """A whole tensor on the CPU, from a plain or a sharded one."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).cpu()


class Log:
    """Losses to log.jsonl, to accelerate's tracker and to the progress bar."""

    def __init__(self, config: TrainConfig, accelerator: Accelerator, start: int) -> None:
        self.every, self.accelerator, self.shown = config.log_every, accelerator, accelerator.is_main_process
        self.file, self.validation = config.output_dir / "log.jsonl", None
        if accelerator.is_main_process:
            lines = self.file.read_text(encoding="utf-8").splitlines() if start and self.file.is_file() else []
            whole = [line for line in lines if line.endswith("}")]  # a kill may have cut the last one
            kept = [line for line in whole if json.loads(line)["step"] <= start]  # the rest is written anew
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        accelerator.init_trackers("logs", config={k: str(v) for k, v in as_dict(config).items()})

    def write(self, step: int, measures: dict[str, float], progress: tqdm) -> None:
        self.validation = measures.get("validation", self.validation)
        if step % self.every and "validation" not in measures:
            return
        shown = {"loss": f"{measures['loss']:.4f}"}
        if self.validation is not None:
            shown["validation"] = f"{self.validation:.4f}"
        progress.set_postfix(shown, refresh=False)
        self.accelerator.log(measures, step=step)
        if self.accelerator.is_main_process:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **measures}) + "\n")


if __name__ == "__main__":
    run(main, TrainConfig)
