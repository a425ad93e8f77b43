"""Train PixNerd: `accelerate launch -q train.py [--config configs/NAME.yaml] [--option value]`."""

import importlib.util
import json
import math
import os
import warnings
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

import huggingface_hub
import torch
from accelerate import Accelerator, DistributedType, InitProcessGroupKwargs
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm import tqdm

from pixnerd import (
    PRESETS,
    TEXT_PRESETS,
    PixNerdPipeline,
    PixNerdScheduler,
    PixNerdTextToImagePipeline,
    PixNerdTextTransformer2DModel,
    PixNerdTransformer2DModel,
    linear_head_baseline,
)
from pixnerd.alignment import Projector
from pixnerd.card import model_card
from pixnerd.checkpointing import Checkpoints, StopSignal, leave_group
from pixnerd.cli import as_dict, run, save_config
from pixnerd.conditioning import Captions, Labels
from pixnerd.data import LabelledImages, StepSampler, default_cache, load_images, places_of, to_float
from pixnerd.ema import EMA
from pixnerd.flow import draw, shift_time
from pixnerd.objective import Objective
from pixnerd.pictures import grid
from pixnerd.sampling import load_pipeline, sample_many
from pixnerd.teacher import Teacher
from pixnerd.text_encoder import PACKAGED, KeptPrompts, PromptReader
from pixnerd.transformer import PixelTransformer


@dataclass
class TrainConfig:
    """Train PixNerd. The defaults are the demo: OpenMoji at 32 pixels on two CPU cores."""

    preset: str = "S/8"
    """Size of the network and of its patches in pixels: S/8, S/4 (ours), B/16, L/16, XL/16, XL/8 (paper); with a text
    encoder S/8 (ours), XXL/16 (paper)."""
    hidden_size: int | None = None
    """Width of the transformer, if not the preset's."""
    num_attention_heads: int | None = None
    """Attention heads, if not the preset's."""
    num_layers: int | None = None
    """Transformer blocks, if not the preset's."""
    head_layers: int | None = None
    """Neural field blocks, if not the preset's."""
    head_channels: int | None = None
    """Width of the neural field, if not the preset's (paper: 64)."""
    head_type: Literal["neural_field", "linear", "linear_skip"] = "neural_field"
    """The paper's head, or its baseline, a linear head with as many blocks in all; or that with a scalar skip."""
    head_code: Literal["dct", "cosine", "sine"] | None = None
    """Coordinate code of the neural field, if not the paper's, dct."""
    head_normalize: Literal["both", "first", "none"] | None = None
    """Which of its generated matrices are normalised, if not the paper's, both."""
    head_output_norm: bool | None = None
    """Normalise its last features (paper: yes)."""
    head_pixel_input: bool | None = None
    """Let it see the noisy pixel (paper: yes)."""

    text_encoder: str | None = None
    """Train on captions: the language model that reads them, a Hub id (paper: Qwen/Qwen3-1.7B), a folder, a .gguf file,
    or smollm2 of requirements-data.txt; none: train on classes."""
    text_length: int = 128
    """Tokens a caption, padding included (paper: 128)."""
    text_layers: int | None = None
    """Transformer blocks of the text, if not the preset's."""
    keep_text: bool = False
    """Read each caption once, before training, and keep its features in memory: text_length x width x 2 bytes a
    caption, half a MiB with Qwen3-1.7B."""

    dataset: str = "openmoji"
    """openmoji, a folder (with or without class folders), an .npz file, or hf:ID for a data set of the Hub; captions
    are emoji names, NAME.txt beside each image, an array, or the text column."""
    resolution: int = 32
    """Side of the images in pixels (paper: 256 and 512)."""
    balanced: bool | None = None
    """Draw classes, and variants of one thing, equally often; false: epochs over all files, as in the paper (default:
    true for openmoji, where half of the files are variants of one another)."""
    flip: bool = False
    """Mirror half of the images (the released configurations do not)."""
    cache_dir: Path | None = None
    """Where rendered OpenMoji and kept text features are (default: ~/.cache/iclr26-pixnerd)."""
    workers: int = 0
    """Processes that read images, for each training process."""

    steps: int = 4000
    """Optimiser steps (paper: 800,000 at 256 pixels; text to image 200,000, then 80,000 at 512)."""
    batch_size: int = 32
    """Images a step, of all processes together (paper: 256; text to image 1,536, then 512)."""
    gradient_accumulation: int = 1
    """Parts into which each process cuts its share of the batch, to save memory."""
    lr: float = 1e-3
    """Learning rate of AdamW, constant (paper: 1e-4; text to image 2e-4, 1e-4, 1e-5 by stage)."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's (paper: 0.9, 0.999; text to image 0.9, 0.95 before the last stage)."""
    weight_decay: float = 0.0
    """AdamW's (paper: 0)."""
    clip: float | None = None
    """Largest norm of the gradient (paper: none for class-conditional models, 1 for text to image)."""
    ema_decay: float = 0.998
    """Decay of the moving average of the weights at each step (paper: 0.9999)."""
    ema_warmup: bool = True
    """Let the decay grow from 0.1 over the first steps: for short runs, the paper has none."""
    ema_every: int = 1
    """Average at steps divisible by this."""

    time: Literal["lognormal", "uniform"] = "lognormal"
    """Distribution of the time before the shift (paper: the sigmoid of a normal)."""
    shift: float = 1.0
    """Time shift; above 1 towards noise (paper: 1 for class-conditional models; text to image 2 at 256 pixels, 4 at
    512)."""
    sample_shift: float = 1.0
    """Time shift of the sampler that is saved with the model (paper: 1 for class-conditional models, else 3)."""
    label_drop: float = 0.1
    """Share of labels or captions replaced by none, for guidance (paper: 0.1)."""
    prediction_type: Literal["velocity", "sample"] = "sample"
    """What the network answers: the velocity (paper), or the clean image, with the loss still on the velocity, as in
    JiT: the demo's choice, whose pictures are cleaner after so few steps."""
    loss_weight: Literal["constant", "inverse_sigma", "snr", "minsnr", "maxsnr"] = "constant"
    """Weight of a sample by its time (paper: constant)."""
    teacher: str | None = None
    """REPA's teacher, a Hub id or a folder (paper: facebook/dinov2-base); none: no alignment."""
    repa_weight: float = 0.5
    """Weight of the alignment loss (paper: 0.5)."""
    feature_layer: int = 8
    """Block whose tokens are aligned or dispersed, from 1 (paper: 8; text to image 6)."""
    dispersive_weight: float = 0.0
    """Weight of the dispersive loss (official code: 0.5 where it is used; not in the paper's recipe)."""

    init_from: str | None = None
    """Saved model to start from, a folder or a Hub id: 512 pixels are trained on from 256."""
    mixed_precision: Literal["no", "bf16"] | None = None
    """Precision of the network (paper: bf16); None takes accelerate's configuration."""
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """Of float32 products on a GPU (official code: medium)."""
    compile: bool = False
    """Compile the network with torch.compile (official code does)."""
    gradient_checkpointing: bool = False
    """Recompute the blocks in the backward pass: less memory, about a third more time."""
    head_checkpointing: bool = False
    """Recompute only the neural field's blocks, which take most of the memory beyond a linear head's."""
    head_tile_size: int | None = None
    """Compute the neural field for so many patches at a time: less memory."""
    threads: int | None = None
    """CPU threads of each process (default: the cores divided by the processes on this machine)."""

    seed: int = 0
    """Of weights, order, times and noise."""
    output_dir: Path = Path("outputs/demo")
    """Where the model, checkpoints, previews and logs go."""
    resume: str | None = None
    """`latest`, or a checkpoint folder, to go on from."""
    overwrite: bool = False
    """Start anew although output_dir holds checkpoints of an earlier run, and delete those."""
    checkpoint_every: int = 500
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """Checkpoints to keep."""
    preview_every: int = 500
    """Steps between preview pictures, one more at the end; 0 for none (none either where the network is sharded)."""
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
        # the other processes wait while one fetches a data set or reads captions
        kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(hours=12))],
    )
    set_up_device(config, accelerator)
    checkpoints = Checkpoints(config.output_dir / "checkpoints", config.keep_checkpoints)
    found = checkpoints.find(config.resume, overwrite=config.overwrite)
    check_hub(config, accelerator)
    with accelerator.local_main_process_first():
        captioned = config.text_encoder is not None
        data = load_images(config.dataset, config.resolution, "train", config.cache_dir, captioned)
        condition = conditioning(config, accelerator, data)
    torch.manual_seed(config.seed)
    objective, teacher = build(config, accelerator, condition, resumed=found is not None)
    groups = {"lr": config.lr, "betas": config.betas, "weight_decay": config.weight_decay}
    optimizer = torch.optim.AdamW(objective.parameters(), **groups)
    objective, optimizer = accelerator.prepare(objective, optimizer)
    bare = accelerator.unwrap_model(objective)
    ema = EMA(bare.transformer, config.ema_decay, warmup=config.ema_warmup, every=config.ema_every)
    state = {"model": bare, "optimizer": optimizer.optimizer, "ema": ema}
    start = resume(config, accelerator, checkpoints, found, state, groups) if found else 0
    if config.resume and not found:
        accelerator.print(f"no checkpoint in {checkpoints.folder}: a new run")

    log = Log(config, accelerator, start)
    processes, rank = accelerator.num_processes, accelerator.process_index
    slices = places_of(config.batch_size, processes, rank, config.gradient_accumulation)
    balanced = config.dataset == "openmoji" if config.balanced is None else config.balanced
    sampler = StepSampler(data, config.batch_size, slices, config.seed, balanced, start)
    on_gpu = accelerator.device.type == "cuda"
    loader = DataLoader(
        data, batch_sampler=sampler, num_workers=config.workers, worker_init_fn=leave_group, pin_memory=on_gpu
    )
    batches = iter(loader)
    progress = tqdm(range(start, config.steps), initial=start, total=config.steps, unit="step", disable=not log.shown)
    with StopSignal() as stop:
        for step in progress:
            totals: dict[str, Tensor] = {}
            for places in slices:
                x, told, t, noise = prepare(config, next(batches), step, places, accelerator.device, condition)
                with accelerator.accumulate(objective):
                    with accelerator.autocast():
                        tokens = teacher((x + 1) / 2) if teacher else None
                        losses = objective(x, told, t, noise, tokens)
                    accelerator.backward(losses["loss"])
                    for name, value in losses.items():
                        totals[name] = totals.get(name, 0) + value.detach() / len(slices)
                    if accelerator.sync_gradients:
                        means, stopping = across_processes(accelerator, totals, stop.received is not None)
                        require_finite(means["loss"], step + 1)
                        if config.clip is not None:
                            accelerator.clip_grad_norm_(objective.parameters(), config.clip)
                    optimizer.step()
                    optimizer.zero_grad()
            done = step + 1
            ema.update(done)
            log.write(done, means, progress)
            if stopping or done % config.checkpoint_every == 0 or done == config.steps:
                checkpoints.save(done, **state, info={"config": as_dict(config)})
            if stopping:
                accelerator.end_training()
                raise SystemExit(f"stopped at step {done} and saved; go on with --resume latest")
            due = config.preview_every and (done % config.preview_every == 0 or done == config.steps)
            if due and log.shown and not is_sharded(accelerator):
                preview(config, bare.transformer, ema, data, condition, done)
    finish(config, accelerator, bare.transformer, ema, data)


def check(config: TrainConfig) -> None:
    """Refuse values outside their ranges, by name, before any work."""
    least = dict(steps=1, batch_size=1, gradient_accumulation=1, resolution=1, checkpoint_every=1, keep_checkpoints=1)
    least |= dict(log_every=1, ema_every=1, feature_layer=1, threads=1, num_layers=1, head_layers=1, head_channels=1)
    least |= dict(hidden_size=1, num_attention_heads=1, preview_every=0, workers=0, seed=0)
    least |= dict(text_length=1, text_layers=0, head_tile_size=1)
    least |= dict(weight_decay=0, repa_weight=0, dispersive_weight=0, ema_decay=0, label_drop=0)
    for name, low in least.items():
        value = getattr(config, name)
        if value is not None and not value >= low:
            raise ValueError(f"{name}: expected at least {low}, got {value}")
    for name in ("lr", "shift", "sample_shift", "clip"):
        value = getattr(config, name)
        if value is not None and not value > 0:
            raise ValueError(f"{name}: expected a positive number, got {value}")
    if config.text_encoder is None and (config.keep_text or config.text_layers is not None):
        raise ValueError("keep_text, text_layers: expected only with text_encoder, which is not given")
    for name, values in {"ema_decay": [config.ema_decay], "betas": config.betas}.items():
        if not all(0 <= value < 1 for value in values):
            raise ValueError(f"{name}: expected 0 <= value < 1, got {getattr(config, name)}")
    if config.label_drop > 1:
        raise ValueError(f"label_drop: expected a share from 0 to 1, got {config.label_drop}")
    if config.tracker != "none" and importlib.util.find_spec(config.tracker) is None:
        raise ValueError(f"tracker: {config.tracker} is not installed; pip install {config.tracker}, or take none")


def prepare(
    config: TrainConfig, batch: dict, step: int, places: range, device: torch.device, condition: Labels | Captions
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Clean images in [-1, 1], labels or text features after the drop, times after the shift, and noise."""
    image = batch["image"].to(device, non_blocking=True)
    chance = draw(config.seed, step, places, tuple(image.shape[1:]), device, config.time)
    x = to_float(image)
    if config.flip:
        x = torch.where(chance["flip"].view(-1, 1, 1, 1) < 0.5, x.flip(-1), x)
    told = condition(batch, chance["drop"] < config.label_drop)
    return x, told, shift_time(chance["t"], config.shift), chance["noise"]


def set_up_device(config: TrainConfig, accelerator: Accelerator) -> None:
    """Threads on a CPU (accelerate leaves one), precision of products on a GPU, and of shards."""
    if accelerator.mixed_precision == "fp16":
        raise ValueError("mixed_precision: expected no or bf16, got fp16 (its loss scaling would not be resumed)")
    if accelerator.device.type == "cpu":
        local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        torch.set_num_threads(config.threads or max(1, (os.cpu_count() or 1) // local))
    torch.set_float32_matmul_precision(config.matmul_precision)
    if is_sharded(accelerator):
        # FSDP's own policy would cast images and times to bfloat16 as well: autocast alone decides, as with replicas.
        accelerator.state.fsdp_plugin.mixed_precision_policy = None


def is_sharded(accelerator: Accelerator) -> bool:
    return accelerator.distributed_type == DistributedType.FSDP


def conditioning(config: TrainConfig, accelerator: Accelerator, data: LabelledImages) -> Labels | Captions:
    """What the network is told: classes, or captions through the text encoder."""
    if config.text_encoder is None:
        return Labels(len(data.class_names))
    name, length, device = config.text_encoder, config.text_length, accelerator.device
    dtype = torch.bfloat16 if accelerator.mixed_precision == "bf16" else torch.float32
    if not config.keep_text:
        return Captions(PromptReader(name, length, device, dtype))
    prompts = [data.captions[i] for i in range(len(data))]
    return Captions(KeptPrompts(name, length, prompts, config.cache_dir or default_cache(), device, dtype))


def build(
    config: TrainConfig, accelerator: Accelerator, condition: Labels | Captions, resumed: bool
) -> tuple[Objective, Teacher | None]:
    """The network of the preset and its loss; REPA's teacher, if there is one."""
    transformer = build_transformer(config, condition)
    if config.init_from and not resumed:
        start_from(config, transformer)
    teacher, projector = None, None
    if config.teacher:
        teacher = Teacher(config.teacher, transformer.config.patch_size).to(accelerator.device)
        projector = Projector(transformer.config.hidden_size, teacher.dim)
    objective = Objective(
        transformer,
        projector,
        prediction_type=config.prediction_type,
        loss_weight=config.loss_weight,
        feature_layer=config.feature_layer,
        repa_weight=config.repa_weight,
        dispersive_weight=config.dispersive_weight,
    )
    return objective, teacher


ABLATIONS = ("head_code", "head_normalize", "head_output_norm", "head_pixel_input")


def build_transformer(config: TrainConfig, condition: Labels | Captions) -> PixelTransformer:
    """The preset with the options that override it."""
    captions = isinstance(condition, Captions)
    presets = TEXT_PRESETS if captions else PRESETS
    if config.preset not in presets:
        which = "with" if captions else "without"
        raise ValueError(f"preset: expected one of {', '.join(presets)} {which} text_encoder, got {config.preset!r}")
    names = ["hidden_size", "num_attention_heads", "num_layers", "head_layers", "head_channels"]
    names += ["text_layers"] if captions else []
    shape = presets[config.preset] | {n: getattr(config, n) for n in names if getattr(config, n) is not None}
    if captions and config.head_type != "neural_field":
        raise ValueError(f"head_type: expected neural_field with text_encoder, got {config.head_type}")
    ablated = {n: getattr(config, n) for n in ABLATIONS if getattr(config, n) is not None}
    if ablated and (captions or config.head_type != "neural_field"):
        raise ValueError(f"{', '.join(ablated)}: expected only with the neural field of a class-conditional model")
    shape |= ablated
    if config.head_type != "neural_field":
        shape = linear_head_baseline(shape, skip=config.head_type == "linear_skip")
    if captions:
        text = dict(text_dim=condition.features.dim, text_length=condition.features.length)
        transformer = PixNerdTextTransformer2DModel(sample_size=config.resolution, **shape, **text)
    else:
        transformer = PixNerdTransformer2DModel(sample_size=config.resolution, num_classes=condition.no_class, **shape)
    if config.gradient_checkpointing:
        transformer.enable_gradient_checkpointing()
    if config.head_checkpointing:
        transformer.enable_head_checkpointing()
    if config.head_tile_size is not None:
        transformer.enable_head_tiling(config.head_tile_size)
    if config.compile:
        transformer.compile()  # in place, so that names of parameters stay
    return transformer


def start_from(config: TrainConfig, transformer: PixelTransformer) -> None:
    """Load the weights of a saved model of the same size and kind."""
    saved = load_pipeline(config.init_from)
    kind = saved.scheduler.config.prediction_type
    if kind != config.prediction_type:
        raise ValueError(
            f"init_from: {config.init_from} predicts the {kind}, prediction_type is {config.prediction_type}"
        )
    now, then = transformer.config, saved.transformer.config
    other = [f"{key} {then.get(key)}, not {value}" for key, value in now.items() if then.get(key) != value]
    other = [text for text in other if not text.startswith(("sample_size", "_"))]
    if other:
        raise ValueError(f"init_from: {config.init_from} is another network: {', '.join(other)}")
    encoder = saved.config.get("text_encoder_name")
    if encoder != config.text_encoder:
        warnings.warn(
            f"init_from: {config.init_from} was trained with {encoder}, not {config.text_encoder}", stacklevel=2
        )
    transformer.load_state_dict(saved.transformer.state_dict())


MAY_CHANGE = {"steps", "output_dir", "cache_dir", "workers", "threads", "resume", "overwrite", "init_from"}
MAY_CHANGE |= {"checkpoint_every", "keep_checkpoints", "preview_every", "log_every", "tracker", "push_to_hub"}
MAY_CHANGE |= {"hub_model_id", "gradient_accumulation", "gradient_checkpointing", "compile"}
MAY_CHANGE |= {"head_checkpointing", "head_tile_size", "keep_text", "sample_shift", "hub_private"}


def resume(config: TrainConfig, accelerator: Accelerator, checkpoints: Checkpoints, found: Path, state, groups) -> int:
    """Load a checkpoint and say which options that shape the run are others than before; returns its step."""
    saved = checkpoints.load(found, **state)
    if saved["step"] > config.steps:
        raise ValueError(f"steps: {found} has done {saved['step']} already, more than {config.steps}")
    for group in state["optimizer"].param_groups:
        group.update(groups)  # the checkpoint's would win over the command line
    before, now = saved["config"], as_dict(config)
    changed = [f"{k} {before[k]} -> {v}" for k, v in now.items() if k not in MAY_CHANGE and before.get(k, v) != v]
    accelerator.print(f"resumed from {found}" + (f"; changed since: {', '.join(changed)}" if changed else ""))
    return saved["step"]


def across_processes(accelerator: Accelerator, parts: dict[str, Tensor], stop: bool) -> tuple[dict[str, float], bool]:
    """Mean losses of all processes, and whether any of them was told to stop: one message, one wait for the device."""
    values = torch.stack([*parts.values(), torch.tensor(float(stop), device=accelerator.device)])
    *means, stopping = accelerator.reduce(values, reduction="mean").tolist()
    return dict(zip(parts, means, strict=True)), stopping > 0


def require_finite(loss: float, step: int) -> None:
    if not math.isfinite(loss):
        raise ValueError(
            f"loss: expected a finite number, got {loss} at step {step}; nothing was saved after the last checkpoint. "
            "Look at the data, or lower lr"
        )


def pipeline_for(config: TrainConfig, transformer: PixelTransformer, data: LabelledImages):
    """The model as it is sampled and saved: with two-step Adams, good with few steps."""
    captions = config.text_encoder is not None
    scheduler = PixNerdScheduler(
        solver="adams",
        solver_order=2,
        shift=config.sample_shift,
        guidance_interval=(0.0, 1.0) if captions else (0.1, 1.0),
        prediction_type=config.prediction_type,
    )
    if captions:  # not with the text encoder itself, which is larger than many a network
        return PixNerdTextToImagePipeline(transformer, scheduler, text_encoder_name=config.text_encoder)
    return PixNerdPipeline(transformer, scheduler, id2label=dict(enumerate(data.class_names)))


def preview(config: TrainConfig, transformer, ema: EMA, data: LabelledImages, condition, step: int) -> None:
    """A picture of the averaged model so far: a few classes or captions, two samples of each, from the same noise."""
    pipeline = pipeline_for(config, transformer, data)
    options = {"num_inference_steps": 25}
    if isinstance(condition, Captions):
        chosen = [data.captions[i] for i in range(0, len(data), max(1, len(data) // 12))][:12]
        shown = condition.features(chosen * 2)
        options["negative_prompt_embeds"] = condition.features([""])
    else:
        chosen = list(range(min(12, len(data.class_names))))
        shown = chosen * 2
    with ema.applied():
        images = sample_many(pipeline, shown, config.seed, len(chosen), False, **options)
    file = config.output_dir / "previews" / f"step-{step:06d}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    grid(images, columns=len(chosen), scale=2).save(file)


def check_hub(config: TrainConfig, accelerator: Accelerator) -> None:
    """Token and repository, before the first step."""
    if not config.push_to_hub:
        return
    if not config.hub_model_id:
        raise ValueError("hub_model_id: expected user/name with push_to_hub")
    if accelerator.is_main_process:
        huggingface_hub.create_repo(config.hub_model_id, exist_ok=True, private=config.hub_private)
        if config.text_encoder and (Path(config.text_encoder).exists() or config.text_encoder in PACKAGED):
            print(f"text_encoder: {config.text_encoder} is named in what is uploaded; elsewhere it may not be found")


def finish(config: TrainConfig, accelerator: Accelerator, transformer, ema: EMA, data: LabelledImages) -> None:
    """Save the averaged model as a pipeline with its card, and upload it if asked to."""
    weights = {name: full(tensor) for name, tensor in ema.state_dict().items()}  # every process helps to gather
    if accelerator.is_main_process:
        kind = PixNerdTextTransformer2DModel if config.text_encoder else PixNerdTransformer2DModel
        averaged = kind.from_config(transformer.config)
        averaged.load_state_dict(weights)
        pipeline = pipeline_for(config, averaged, data)
        pipeline.save_pretrained(config.output_dir)
        save_config(config, config.output_dir / "training.yaml")
        name = config.hub_model_id or str(config.output_dir)
        local = not config.dataset.startswith("hf:")
        dataset = Path(config.dataset).name if local else config.dataset  # a card does not tell where things lie
        model_card(pipeline, name, dataset, config.steps).save(config.output_dir / "README.md")
        print(f"saved {config.output_dir}")
        if config.push_to_hub:
            huggingface_hub.upload_folder(
                repo_id=config.hub_model_id,
                folder_path=config.output_dir,
                # the options hold local paths
                ignore_patterns=["checkpoints/*", "previews/*", "logs/*", "*.jsonl", "training.yaml"],
            )
    accelerator.end_training()


def full(tensor: Tensor) -> Tensor:
    """A whole tensor on the CPU, from a plain or a sharded one."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).cpu()


class Log:
    """Losses to log.jsonl, to accelerate's tracker and to the progress bar."""

    def __init__(self, config: TrainConfig, accelerator: Accelerator, start: int) -> None:
        self.every, self.accelerator, self.shown = config.log_every, accelerator, accelerator.is_main_process
        self.file = config.output_dir / "log.jsonl"
        if accelerator.is_main_process:
            lines = self.file.read_text(encoding="utf-8").splitlines() if start and self.file.is_file() else []
            whole = [line for line in lines if line.endswith("}")]  # a kill may have cut the last one
            kept = [line for line in whole if json.loads(line)["step"] <= start]  # the rest is written anew
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        accelerator.init_trackers("logs", config={k: str(v) for k, v in as_dict(config).items()})

    def write(self, step: int, losses: dict[str, float], progress: tqdm) -> None:
        if step % self.every:
            return
        progress.set_postfix(loss=f"{losses['loss']:.4f}", refresh=False)
        self.accelerator.log(losses, step=step)
        if self.accelerator.is_main_process:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **losses}) + "\n")


if __name__ == "__main__":
    run(main, TrainConfig)
