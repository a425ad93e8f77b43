"""Time and memory of PixNerd beside a plain version, a linear head and a latent model: `python benchmark.py`."""

import copy
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from diffusers import AutoencoderKL, DiTTransformer2DModel
from torch import Tensor, nn
from tqdm import tqdm

from pixnerd import PRESETS, PixNerdPipeline, PixNerdScheduler, PixNerdTransformer2DModel, linear_head_baseline
from pixnerd.cli import as_dict, run
from pixnerd.flow import draw
from pixnerd.objective import Objective
from pixnerd.sampling import choose_device
from pixnerd.transformer import PixNerdOutput
from tests.plain_head import PlainHead

try:
    from iclr26_tools.results import code_hash, environment, save, table
    from iclr26_tools.runs import RunList
    from iclr26_tools.timing import Timings, interleaved, median_interval, peak_memory
except ImportError as error:
    raise SystemExit(f"benchmark.py: error: {error}; it needs iclr26-tools, which the README names") from error

Table = Literal["head", "training", "sampling", "guidance", "picture"]
Variant = Literal[
    "plain", "fast", "tiled", "checkpointed", "tiled_checkpointed", "compiled", "plain_compiled", "linear"
]
Calls = dict[str, Callable[[], object]]

PROJECT = Path(__file__).resolve().parent
CODE = ("src", "benchmark.py", "tests/plain_head.py")
ARMS = {
    "plain": "the equations one after the other: unfold, the coordinate code beside every pixel, fold",
    "fast": "the head as it is: the coordinate code is embedded once for all patches",
    "tiled": "fast, so many patches at a time",
    "checkpointed": "fast, each block computed again in the backward pass",
    "tiled_checkpointed": "tiled, each tile computed again in the backward pass",
    "compiled": "fast, with torch.compile",
    "plain_compiled": "plain, with torch.compile",
    "linear": "the baseline: a linear head, and a transformer block for each block of the neural field",
}
STABLE_DIFFUSION = dict(
    latent_channels=4,
    block_out_channels=(128, 256, 512, 512),
    layers_per_block=2,
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
)
"""The autoencoder of Stable Diffusion, and of DiT."""
MIB = 2**20


@dataclass
class BenchmarkConfig:
    """Measure time and memory of the head, a training step, a sampling run, guidance, and a picture of 256 pixels."""

    tables: list[Table] = field(default_factory=lambda: list(get_args(Table)))
    """What to measure; results/benchmark.json also keeps the other tables that were measured with the same options."""
    variants: list[Variant] = field(default_factory=lambda: list(get_args(Variant)))
    """Versions of the head; ratios are to the first. The compiled ones need a C++ compiler on a CPU."""
    rounds: int = 20
    """Rounds in which everything of a table runs once, at least 6."""
    warmup: int = 1
    """Rounds before them, after a first call of each."""
    memory: bool = True
    """Measure peak memory too, each in a process of its own."""
    tile_size: int = 64
    """Patches of a tile of the head."""
    guidance_scale: float = 3.5
    """Guidance of sampling runs (paper: 3.5)."""
    guidance_interval: tuple[float, float] = (0.1, 1.0)
    """Times strictly between which it acts (paper: 0.1, 1)."""
    head_size: tuple[str, int, int] = ("L/16", 256, 2)
    """Of the head alone, forward and backward: preset, side of the images in pixels, images."""
    head_memory_images: int = 8
    """Images when its memory is measured: with few, most of it would be the gradient of the layers that write
    weights, which does not grow with them."""
    training_sizes: list[tuple[str, int, int]] = field(default_factory=lambda: [("S/8", 32, 32), ("B/16", 128, 2)])
    """Of training steps, likewise; the first is the demo's."""
    lr: float = 1e-4
    """Learning rate of AdamW in those steps (paper: 1e-4)."""
    sampling_size: tuple[str, int, int] = ("S/8", 32, 16)
    """Of sampling runs, likewise."""
    sampling_steps: int = 25
    """Euler steps of a sampling run that compares versions of the head."""
    guidance_steps: int = 100
    """Euler steps of a sampling run that compares guidance with and without branches that are thrown away."""
    picture_size: tuple[str, int] = ("L/16", 256)
    """Of a picture: preset, side in pixels. The latent model has the width, heads and depth of the preset."""
    picture_steps: int = 100
    """Euler steps of a picture (paper: 100)."""
    threads: int | None = None
    """CPU threads (default: the cores)."""
    device: Literal["cuda", "cpu"] | None = None
    """Default: cuda where there is a GPU."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of sampling networks; and of autocast around the head and training steps, whose weights stay float32."""
    seed: int = 0
    """Of weights and inputs."""


def main(config: BenchmarkConfig) -> None:
    check(config)
    device = choose_device(config.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    config = replace(config, device=device, threads=config.threads or os.cpu_count() or 1)
    torch.set_num_threads(config.threads)
    folder, code = PROJECT / "results" / "runs", code_hash(CODE, PROJECT)
    runs = {name: run_options(name, config) for name in TABLES}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache  # compilation is measured from scratch
        if any("compiled" in name for name in config.variants):
            torch.compile(torch.sin)(torch.zeros(2, device=device))  # but not the loading of the compiler
        chosen = RunList(folder, [runs[name] for name in config.tables], code)
        chosen.execute(lambda options: TABLES[options["arm"]][0](config))
    finished = RunList(folder, runs.values(), code).finished()
    for name in TABLES:
        where = folder / f"benchmark-{name}.json"
        there = f"benchmark-{name}" in finished
        print(f"{name}: " + (f"{where} (delete it to measure again)" if there else "not measured with these options"))
    save(
        PROJECT / "results" / "benchmark.json",
        title="PixNerd: time and memory",
        claim=None,
        metric="seconds; peak memory in MiB",
        arms=ARMS,
        budget=f"{config.rounds} rounds",
        seeds=[config.seed],
        config={key: value for key, value in as_dict(config).items() if key != "tables"},
        tables={name: t for record in finished.values() for name, t in record["result"]["tables"].items()},
        verdict=None,
        environment=environment(
            ["torch", "diffusers"], sum(record["seconds"] for record in finished.values()), PROJECT
        ),
        code_paths=CODE,
    )
    print(f"wrote {PROJECT / 'results' / 'benchmark.json'}")


def check(config: BenchmarkConfig) -> None:
    """Refuse values outside their ranges, by name, before any work."""
    least = dict(rounds=6, warmup=0, tile_size=1, head_memory_images=1, threads=1)
    least |= dict(sampling_steps=1, guidance_steps=1, picture_steps=1)
    for name, low in least.items():
        value = getattr(config, name)
        if value is not None and value < low:
            raise ValueError(f"{name}: expected at least {low}, got {value}")
    sizes = [("head_size", config.head_size), ("sampling_size", config.sampling_size)]
    sizes += [("picture_size", config.picture_size), *(("training_sizes", size) for size in config.training_sizes)]
    for name, (preset, *numbers) in sizes:
        if preset not in PRESETS:
            raise ValueError(f"{name}: expected a preset, one of {', '.join(PRESETS)}, got {preset!r}")
        if min(numbers) < 1:
            raise ValueError(f"{name}: expected positive numbers, got {tuple(numbers)}")
    for name in ("tables", "variants", "training_sizes"):
        if not getattr(config, name):
            raise ValueError(f"{name}: expected at least one")
    factor = 2 ** (len(STABLE_DIFFUSION["block_out_channels"]) - 1)
    if config.picture_size[1] % (2 * factor):
        raise ValueError(f"picture_size: expected a multiple of {2 * factor} pixels, got {config.picture_size[1]}")


def run_options(name: str, config: BenchmarkConfig) -> dict:
    """What a table depends on: its own options, those of all, and the machine."""
    options, machine = as_dict(config), environment([], folder=PROJECT)["machine"]
    own = ("rounds", "warmup", "memory", "device", "dtype", "threads", *TABLES[name][1])
    where = {"chip": machine["device"], "cores": machine["cores"]}
    return {
        "name": f"benchmark-{name}",
        "arm": name,
        "seed": config.seed,
        **where,
        **{key: options[key] for key in own},
    }


# Measuring


@dataclass
class Measured:
    """Of each name: times; seconds of the first call, which compiles; peak memory in MiB, where it was measured."""

    timings: Timings
    first: dict[str, float]
    memory: dict[str, float]


def measure(
    make: Callable[..., Calls],
    names: Iterable[str],
    config: BenchmarkConfig,
    *inputs,
    in_memory: tuple | None = None,
    big: Iterable[str] | None = None,
) -> Measured:
    """Time what `make(names, config, *inputs)` returns in turn, then the memory of each in a process of its own.

    Args:
        make: a function of this module, so that the other processes find it.
        in_memory: `inputs` when memory is measured, if others.
        big: names whose memory is measured, if not all.
    """
    names, inputs_in_memory = list(names), inputs if in_memory is None else in_memory
    calls = make(names, config, *inputs)
    first = {}
    for name, function in calls.items():
        start = time.perf_counter()
        function()
        first[name] = time.perf_counter() - start
    timings = interleaved(calls, config.rounds, config.warmup, progress=True)
    del calls, function
    torch.compiler.reset()
    memory = {}
    measured = list(names if big is None else big) if config.memory else []
    for name in tqdm(measured, desc="memory", disable=not measured, leave=False):
        prepare = partial(prepared, make, name, config, *inputs_in_memory)
        memory[name] = peak_memory(call, prepare, config.device) / MIB
    return Measured(timings, first, memory)


def prepared(make: Callable[..., Calls], name: str, config: BenchmarkConfig, *inputs) -> Callable[[], object]:
    """One function, called once: libraries have what they keep, and torch.compile is done."""
    function = make([name], config, *inputs)[name]
    function()
    return function


def call(function: Callable[[], object]) -> None:
    function()


def variant_rows(found: Measured, prefix: str = "") -> list[list]:
    """name, seconds, ratio to the first, seconds of compilation, peak memory."""
    rows = []
    for name, seconds in found.timings.seconds.items():
        compiling = found.first[name] - seconds.value if "compiled" in name else "–"
        rows.append([prefix + name, seconds, found.timings.ratios[name], compiling, found.memory.get(name, "–")])
    return rows


def variant_columns(config: BenchmarkConfig) -> list:
    ratio = f"ratio to {config.variants[0]}"
    return ["head", ("seconds", ".3g"), (ratio, ".3f"), ("compilation, s", ".0f"), ("peak memory, MiB", ".0f")]


def conditions(config: BenchmarkConfig) -> str:
    return f"{config.dtype}, {config.rounds} rounds, {config.threads} CPU threads"


# What is measured: networks in versions that share their parameters


def networks(
    variants: Iterable[str], shape: dict, side: int, config: BenchmarkConfig, kind=PixNerdTransformer2DModel
) -> dict[str, PixNerdTransformer2DModel]:
    """A network for each version, on the device; all but the linear one have the same parameters."""
    bases, found = {}, {}
    for name in variants:
        linear = name == "linear"
        if linear not in bases:
            torch.manual_seed(config.seed)
            bases[linear] = kind(sample_size=side, **(linear_head_baseline(shape) if linear else shape))
            bases[linear] = nothing_zero(bases[linear]).to(config.device)
        found[name] = twin(bases[linear])
        if "tiled" in name:
            found[name].enable_head_tiling(config.tile_size)
        if "checkpointed" in name:
            found[name].enable_head_checkpointing()
        if "plain" in name:
            found[name].head = PlainHead(found[name].head)
    return found


def twin(module: nn.Module) -> nn.Module:
    """Another module with the same parameters."""
    return copy.deepcopy(module, {id(p): p for p in module.parameters()})


@torch.no_grad()
def nothing_zero(module: nn.Module) -> nn.Module:
    """Without layers that start at zero, behind which there would be no gradient."""
    for p in module.parameters():
        if not p.any():
            p.normal_(std=0.02)
    return module


def precision(config: BenchmarkConfig) -> torch.autocast:
    return torch.autocast(config.device, getattr(torch, config.dtype), enabled=config.dtype != "float32")


def head_table(config: BenchmarkConfig) -> dict:
    preset, side, images = config.head_size
    found = measure(head_calls, config.variants, config, images, in_memory=(config.head_memory_images,))
    caption = (
        f"The head of {preset} alone, forward and backward: {images} images of {side} pixels, tiles of "
        f"{config.tile_size} patches; {conditions(config)}; memory of {config.head_memory_images} images, beyond the "
        "weights; linear: without the transformer blocks that stand in for those of the field"
    )
    tables = {"head": table(caption, variant_columns(config), variant_rows(found))}
    return {"tables": tables, "times": found.timings.rounds}


def head_calls(variants: Iterable[str], config: BenchmarkConfig, images: int) -> Calls:
    preset, side, _ = config.head_size
    p, dim = PRESETS[preset]["patch_size"], PRESETS[preset]["hidden_size"]
    generator, calls = torch.Generator().manual_seed(config.seed), {}
    shapes = (images, 3, side, side), (images, 3, side, side), (images, (side // p) ** 2, dim), (images, 1, dim)
    pixels, gradient, tokens, condition = (torch.randn(s, generator=generator).to(config.device) for s in shapes)
    tokens.requires_grad_()
    for name, network in networks(variants, PRESETS[preset] | {"num_layers": 1}, side, config).items():
        if "compiled" in name:
            network.head.compile(dynamic=False)
        inputs = (pixels, tokens, condition) if name == "linear" else (pixels, tokens)
        calls[name] = partial(head_step, network.head, (*inputs, (p, p)), gradient, config)
    return calls


def head_step(head: nn.Module, inputs: tuple, gradient: Tensor, config: BenchmarkConfig) -> None:
    with precision(config):
        out = head(*inputs)
    out.backward(gradient.to(out.dtype))
    for tensor in (*head.parameters(), inputs[1]):
        tensor.grad = None


def training_table(config: BenchmarkConfig) -> dict:
    rows, times = [], {}
    for preset, side, images in config.training_sizes:
        found = measure(training_calls, config.variants, config, preset, side, images)
        name = f"{preset}, {images} x {side} px"
        rows += variant_rows(found, f"{name}: ")
        times[name] = found.timings.rounds
    caption = (
        f"A training step: forward, loss, backward, AdamW; tiles of {config.tile_size} patches; {conditions(config)}; "
        "memory beyond the weights and the optimiser's state"
    )
    return {"tables": {"training": table(caption, variant_columns(config), rows)}, "times": times}


def training_calls(variants: Iterable[str], config: BenchmarkConfig, preset: str, side: int, images: int) -> Calls:
    x = torch.rand(images, 3, side, side, generator=torch.Generator().manual_seed(config.seed)) * 2 - 1
    chance = draw(config.seed, 0, range(images), (3, side, side), torch.device("cpu"))
    labels = torch.arange(images)
    batch = [tensor.to(config.device) for tensor in (x, labels, chance["t"], chance["noise"])]
    optimizers, calls = {}, {}
    for name, network in networks(variants, PRESETS[preset], side, config).items():
        if "compiled" in name:
            network.compile(dynamic=False)
        if (linear := name == "linear") not in optimizers:
            optimizers[linear] = torch.optim.AdamW(network.parameters(), lr=config.lr)
        calls[name] = partial(training_step, Objective(network), optimizers[linear], batch, config)
    return calls


def training_step(
    objective: Objective, optimizer: torch.optim.Optimizer, batch: list[Tensor], config: BenchmarkConfig
) -> None:
    with precision(config):
        loss = objective(*batch)["loss"]
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def sampling_table(config: BenchmarkConfig) -> dict:
    preset, side, images = config.sampling_size
    variants = [name for name in config.variants if "checkpointed" not in name]  # there is no backward pass
    found = measure(sampling_calls, variants, config)
    caption = (
        f"A sampling run of {preset}: {images} pictures of {side} pixels, {config.sampling_steps} Euler steps, "
        f"guidance on {tuple(config.guidance_interval)}, tiles of {config.tile_size} patches; {conditions(config)}; "
        "memory beyond the weights"
    )
    tables = {"sampling": table(caption, variant_columns(config), variant_rows(found))}
    return {"tables": tables, "times": found.timings.rounds}


def sampling_calls(variants: Iterable[str], config: BenchmarkConfig) -> Calls:
    calls = {}
    for name, network in networks(variants, PRESETS[config.sampling_size[0]], config.sampling_size[1], config).items():
        if "compiled" in name:
            network.compile(dynamic=False)
        calls[name] = partial(sample, pipeline_of(network, config), config, config.sampling_steps)
    return calls


def pipeline_of(network: PixNerdTransformer2DModel, config: BenchmarkConfig) -> PixNerdPipeline:
    network = network.type(getattr(torch, config.dtype)).eval()
    pipeline = PixNerdPipeline(network, PixNerdScheduler(guidance_interval=config.guidance_interval))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def sample(pipeline: PixNerdPipeline, config: BenchmarkConfig, steps: int) -> Tensor:
    """The states at which the pictures end, (images, channels, side, side)."""
    labels = list(range(config.sampling_size[2]))
    generator = torch.Generator(config.device).manual_seed(config.seed)
    options = dict(num_inference_steps=steps, guidance_scale=config.guidance_scale, output_type="latent")
    return pipeline(labels, generator=generator, **options).images


class BothBranches(PixNerdTransformer2DModel):
    """Evaluates the branch without a class at every step and throws it away where it is not needed (official code)."""

    def forward(self, hidden_states: Tensor, timestep: Tensor, class_labels: Tensor, **options) -> PixNerdOutput:
        no_class = torch.full_like(class_labels, self.config.num_classes)
        if (class_labels == no_class).any():  # a guided step asks for both
            return super().forward(hidden_states, timestep, class_labels, **options)
        twice = (torch.cat([hidden_states] * 2), torch.cat([timestep] * 2), torch.cat([no_class, class_labels]))
        return PixNerdOutput(super().forward(*twice, **options).sample.chunk(2)[1])


BRANCHES = {"skipped": PixNerdTransformer2DModel, "evaluated": BothBranches}


def guidance_table(config: BenchmarkConfig) -> dict:
    preset, side, images = config.sampling_size
    found = measure(guidance_calls, BRANCHES, config, big=())
    runs = {name: counted(function) for name, function in guidance_calls(BRANCHES, config).items()}
    rows = [[n, seen / images, found.timings.seconds[n], found.timings.ratios[n]] for n, (seen, _) in runs.items()]
    skipped, evaluated = (pictures for _, pictures in runs.values())
    difference = (skipped - evaluated).abs().max() / skipped.abs().max()
    caption = (
        f"The branch without a class outside the guidance interval {tuple(config.guidance_interval)}: {preset}, "
        f"{images} pictures of {side} pixels, {config.guidance_steps} Euler steps; {conditions(config)}; the pictures "
        f"differ by {difference.item():.1g} of their largest entry"
    )
    columns = ["branch", ("evaluations a picture", ".0f"), ("seconds", ".3g"), ("ratio", ".3f")]
    return {"tables": {"guidance": table(caption, columns, rows)}, "times": found.timings.rounds}


def counted(run_of_sampling: partial) -> tuple[int, Tensor]:
    """Images that the network sees in a sampling run, and what comes out."""
    seen = []
    network = run_of_sampling.args[0].transformer
    handle = network.time_embed.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    pictures = run_of_sampling()
    handle.remove()
    return sum(seen), pictures


def guidance_calls(branches: Iterable[str], config: BenchmarkConfig) -> Calls:
    preset, side, _ = config.sampling_size
    calls = {}
    for name in branches:
        network = networks(["fast"], PRESETS[preset], side, config, BRANCHES[name])["fast"]
        calls[name] = partial(sample, pipeline_of(network, config), config, config.guidance_steps)
    return calls


# A picture


def latent_transformer(shape: dict, side: int) -> DiTTransformer2DModel:
    """DiT of the width, heads and depth of a preset (DiT-L/2 for L/16), on the latents of `STABLE_DIFFUSION`."""
    channels, heads = STABLE_DIFFUSION["latent_channels"], shape["num_attention_heads"]
    return DiTTransformer2DModel(
        num_attention_heads=heads,
        attention_head_dim=shape["hidden_size"] // heads,
        num_layers=linear_head_baseline(shape)["num_layers"],
        in_channels=channels,
        out_channels=2 * channels,  # mean and variance
        sample_size=latent_side(side),
    )


def latent_side(side: int) -> int:
    return side // 2 ** (len(STABLE_DIFFUSION["block_out_channels"]) - 1)


NETWORKS: dict[str, Callable[[dict, int], nn.Module]] = {
    "PixNerd": lambda shape, side: PixNerdTransformer2DModel(sample_size=side, **shape),
    "linear head": lambda shape, side: PixNerdTransformer2DModel(sample_size=side, **linear_head_baseline(shape)),
    "DiT": latent_transformer,
    "decoder": lambda shape, side: AutoencoderKL(**STABLE_DIFFUSION),
}
PARTS = {
    f"{name}, {images}": (name, images) for name in NETWORKS for images in (1, 2) if (name, images) != ("decoder", 2)
}


def picture_table(config: BenchmarkConfig) -> dict:
    preset, side = config.picture_size
    largest = {name: part for part, (name, _) in PARTS.items()}
    found = measure(picture_calls, PARTS, config, big=largest.values())
    scheduler = PixNerdScheduler(guidance_interval=config.guidance_interval)
    scheduler.set_timesteps(config.picture_steps)
    guided = sum(scheduler.is_guided(t) for t in scheduler.timesteps)
    alone = config.picture_steps - guided

    times = {PARTS[part]: np.array(seconds) for part, seconds in found.timings.rounds.items()}
    whole = {n: guided * times[n, 2] + alone * times[n, 1] for n in NETWORKS if n != "decoder"}
    whole["DiT"] = whole["DiT"] + times["decoder", 1]
    width, rows = getattr(torch, config.dtype).itemsize, []
    for name, of_picture in whole.items():
        held = [name, "decoder"] if name == "DiT" else [name]
        with torch.device("meta"):
            count = sum(p.numel() for n in held for p in NETWORKS[n](PRESETS[preset], side).parameters())
        peak = max(found.memory[largest[n]] for n in held) if config.memory else None
        one, two = (median_interval(times[name, images]) for images in (1, 2))
        rows.append(
            [
                "DiT of that size, and decoder" if name == "DiT" else f"{preset}, {name}",
                count / 1e6,
                one,
                two,
                median_interval(times["decoder", 1]) if name == "DiT" else "–",
                median_interval(of_picture),
                median_interval(of_picture / whole["PixNerd"]),
                "–" if peak is None else count * width / MIB + peak,
            ]
        )
    caption = (
        f"A picture of {side} pixels with random weights; {conditions(config)}. {config.picture_steps} Euler steps "
        f"with guidance on {tuple(config.guidance_interval)} are {guided} evaluations of two images and {alone} of "
        f"one, {2 * guided + alone} in all; the latent model decodes after them. Seconds of a picture are the sum of "
        "these parts, round by round. Memory: all weights, and the highest peak of a part beyond them"
    )
    columns = ["network", ("parameters, M", ".0f"), ("one image, s", ".3g"), ("two images, s", ".3g")]
    columns += [("decode, s", ".3g"), ("a picture, s", ".3g"), ("ratio to PixNerd", ".2f"), ("memory, MiB", ".0f")]
    return {"tables": {"picture": table(caption, columns, rows)}, "times": found.timings.rounds}


def picture_calls(parts: Iterable[str], config: BenchmarkConfig) -> Calls:
    preset, side = config.picture_size
    dtype, held, calls = getattr(torch, config.dtype), {}, {}
    generator = torch.Generator().manual_seed(config.seed)
    for part in parts:
        name, images = PARTS[part]
        if name not in held:
            torch.manual_seed(config.seed)
            network = nothing_zero(NETWORKS[name](PRESETS[preset], side)).eval()
            held[name] = network.type(dtype).to(config.device)
        latent = name in ("DiT", "decoder")
        shape = (STABLE_DIFFUSION["latent_channels"], *(latent_side(side),) * 2) if latent else (3, side, side)
        x = torch.randn(images, *shape, generator=generator).to(config.device, dtype)
        labels = torch.arange(images, device=config.device)
        t = torch.full((images,), 0.5, device=config.device)
        if name == "decoder":
            calls[part] = partial(evaluate, held[name].decode, x)
        else:
            calls[part] = partial(evaluate, held[name], x, t, labels)
    return calls


@torch.no_grad()
def evaluate(network: Callable, *inputs: Tensor) -> None:
    network(*inputs)


TABLES: dict[str, tuple[Callable[[BenchmarkConfig], dict], tuple[str, ...]]] = {
    "head": (head_table, ("variants", "tile_size", "head_size", "head_memory_images")),
    "training": (training_table, ("variants", "tile_size", "training_sizes", "lr")),
    "sampling": (
        sampling_table,
        ("variants", "tile_size", "guidance_scale", "guidance_interval", "sampling_size", "sampling_steps"),
    ),
    "guidance": (guidance_table, ("guidance_scale", "guidance_interval", "sampling_size", "guidance_steps")),
    "picture": (picture_table, ("guidance_interval", "picture_size", "picture_steps")),
}
"""How a table is measured, and the options that it depends on beside those of all."""

if __name__ == "__main__":
    run(main, BenchmarkConfig)
