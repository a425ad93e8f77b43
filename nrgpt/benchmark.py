"""Time and memory of a training step, of the closed-form block, and of generation: `python benchmark.py`."""

import copy
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import nn
from tqdm import tqdm

from nrgpt import NRGPTConfig, NRGPTForCausalLM, preset
from nrgpt.cli import as_dict, run
from nrgpt.evaluation import next_token_loss
from nrgpt.loading import choose_device
from nrgpt.sizes import count_parameters, forward_flops, match
from tests.plain_block import PlainEnergyBlock

try:
    from iclr26_tools.results import code_hash, environment, save, table
    from iclr26_tools.runs import RunList
    from iclr26_tools.timing import Timings, interleaved, peak_memory
except ImportError as error:
    raise SystemExit(f"benchmark.py: error: {error}; it needs iclr26-tools, which the README names") from error

Table = Literal["step", "compiled", "gradient", "generation"]
Calls = dict[str, Callable[[], object]]

PROJECT = Path(__file__).resolve().parent
CODE = ("src", "benchmark.py", "tests/plain_block.py")
ARMS = {
    "GPT_Rec_parallel": "the recurrent GPT, its heads in one batch, scaled_dot_product_attention",
    "FF1, FF2W": "NRGPT with these feed-forward energies, closed-form gradients; J of rank d // heads",
    "full rank": "with one d x d matrix a head, as the official code has",
    "of …'s FLOPs": "the recurrent GPT as wide as makes a token cost as much",
    "torch.func.grad": "the same parameters, the gradient by differentiating the energy in the forward pass",
}
MIB = 2**20


@dataclass
class BenchmarkConfig:
    """Measure NRGPT beside a recurrent GPT: a training step, compiled too, the closed-form block, generation."""

    tables: list[Table] = field(default_factory=lambda: list(get_args(Table)))
    """What to measure; results/benchmark.json also keeps the other tables that were measured with the same options."""
    models: list[str] | None = None
    """Models of a training step, by their names in the tables (default: all); ratios are to the first."""
    hidden_size: int = 128
    """Width d of all models but those of equal FLOPs."""
    num_attention_heads: int = 4
    """Heads."""
    num_hidden_layers: int = 6
    """Steps T."""
    context: int = 128
    """Tokens of a window."""
    batch_size: int = 8
    """Windows."""
    vocab_size: int = 2048
    """Of the models."""
    mask: Literal["strict", "inclusive"] = "inclusive"
    """Of the energy models."""
    generation_context: int = 512
    """Tokens at the end of the generated text, and context of its model."""
    new_tokens: int = 64
    """Of them generated, the rest is the prompt."""
    rounds: int = 20
    """Rounds in which everything of a table runs once, at least 6."""
    warmup: int = 1
    """Rounds before them, after a first call of each."""
    memory: bool = True
    """Measure peak memory too, each in a process of its own."""
    threads: int | None = None
    """CPU threads (default: the cores)."""
    device: Literal["cuda", "cpu"] | None = None
    """Default: cuda where there is a GPU."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of autocast; weights stay float32."""
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
        chosen = RunList(folder, [runs[name] for name in config.tables], code)
        chosen.execute(lambda options: TABLES[options["arm"]](config))
    finished = RunList(folder, runs.values(), code).finished()
    save(
        PROJECT / "results" / "benchmark.json",
        title="NRGPT: time and memory",
        claim=None,
        metric="seconds; peak memory in MiB; FLOPs of matrix products",
        arms=ARMS,
        budget=f"{config.rounds} rounds",
        seeds=[config.seed],
        config={key: value for key, value in as_dict(config).items() if key != "tables"},
        tables={name: t for record in finished.values() for name, t in record["result"]["tables"].items()},
        verdict=None,
        environment=environment(
            ["torch", "transformers"], sum(record["seconds"] for record in finished.values()), PROJECT
        ),
        code_paths=CODE,
    )
    print(f"wrote {PROJECT / 'results' / 'benchmark.json'}")


def check(config: BenchmarkConfig) -> None:
    """Refuse values outside their ranges, by name, before any work."""
    least = dict(rounds=6, warmup=0, hidden_size=1, num_attention_heads=1, num_hidden_layers=1, context=2, batch_size=1)
    least |= dict(vocab_size=2, new_tokens=1, generation_context=2, threads=1)
    for name, low in least.items():
        value = getattr(config, name)
        if value is not None and value < low:
            raise ValueError(f"{name}: expected at least {low}, got {value}")
    if config.new_tokens >= config.generation_context:
        raise ValueError(f"new_tokens: expected less than generation_context, got {config.new_tokens}")
    if not config.tables:
        raise ValueError("tables: expected at least one")
    known = shapes(config, config.context)
    if config.models is not None and not (config.models and set(config.models) <= known.keys()):
        raise ValueError(f"models: expected some of {', '.join(known)}, got {config.models}")


def run_options(name: str, config: BenchmarkConfig) -> dict:
    """What a table depends on, the machine included."""
    machine = environment([], folder=PROJECT)["machine"]
    options = {key: value for key, value in as_dict(config).items() if key not in ("tables", "seed")}
    where = {"chip": machine["device"], "cores": machine["cores"]}
    return {"name": f"benchmark-{name}", "arm": name, "seed": config.seed, **where, **options}


# Models


def shapes(config: BenchmarkConfig, context: int) -> dict[str, NRGPTConfig]:
    """Each model by its name in the tables; the first is what the others are compared with."""
    size = dict(hidden_size=config.hidden_size, num_attention_heads=config.num_attention_heads)
    size |= dict(num_hidden_layers=config.num_hidden_layers, vocab_size=config.vocab_size, mask=config.mask)
    size |= dict(max_position_embeddings=context)
    gpt, rank = preset("GPT_Rec_parallel", **size), config.hidden_size // config.num_attention_heads
    found = {"GPT_Rec_parallel": gpt}
    for energy in ("FF1", "FF2W"):
        found[energy] = preset(f"NRGPT_H_{energy}", rank=rank, **size)
    for energy in ("FF1", "FF2W"):
        found[f"{energy}, full rank"] = preset(f"NRGPT_H_{energy}", **size)
    flops = partial(forward_flops, length=context)
    for name in ("FF2W", "FF1, full rank", "FF2W, full rank"):
        found[f"GPT of {name}'s FLOPs"] = match(gpt, flops, flops(found[name]))
    return found


def make_model(config: NRGPTConfig, seed: int, device: str) -> NRGPTForCausalLM:
    torch.manual_seed(seed)
    return NRGPTForCausalLM(config).to(device)


def training_step(model, optimizer, ids, config: BenchmarkConfig) -> None:
    with torch.autocast(config.device, getattr(torch, config.dtype), enabled=config.dtype != "float32"):
        loss = next_token_loss(model, ids[:, :-1], ids[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def step_calls(names: Iterable[str], config: BenchmarkConfig, compiled: bool) -> Calls:
    """A training step, AdamW's included."""
    generator, calls = torch.Generator().manual_seed(config.seed), {}
    size = (config.batch_size, config.context + 1)
    ids = torch.randint(config.vocab_size, size, generator=generator).to(config.device)
    for name in names:
        model = make_model(shapes(config, config.context)[name], config.seed, config.device).train()
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        if compiled:
            model.compile(dynamic=False)
        calls[name] = partial(training_step, model, optimizer, ids, config)
    return calls


# Tables


@dataclass
class Measured:
    """Of each name: times; seconds of the first call, which compiles; peak memory in MiB, where it was measured."""

    timings: Timings
    first: dict[str, float]
    memory: dict[str, float]


def measure(make: Callable[..., Calls], names: Iterable[str], config: BenchmarkConfig, *inputs) -> Measured:
    """Time what `make(names, config, *inputs)` returns in turn, then the memory of each in a process of its own."""
    names, first = list(names), {}
    calls = make(names, config, *inputs)
    for name, function in calls.items():
        start = time.perf_counter()
        function()
        first[name] = time.perf_counter() - start
    timings = interleaved(calls, config.rounds, config.warmup, progress=True)
    del calls, function
    torch.compiler.reset()
    memory = {}
    measured = names if config.memory else []
    for name in tqdm(measured, desc="memory", disable=not measured, leave=False):
        memory[name] = peak_memory(call, partial(prepared, make, name, config, *inputs), config.device) / MIB
    return Measured(timings, first, memory)


def prepared(make: Callable[..., Calls], name: str, config: BenchmarkConfig, *inputs) -> Callable[[], object]:
    """One function, called once: libraries have what they keep, and torch.compile is done."""
    function = make([name], config, *inputs)[name]
    function()
    return function


def call(function: Callable[[], object]) -> None:
    function()


def conditions(config: BenchmarkConfig) -> str:
    return (
        f"width {config.hidden_size}, {config.num_attention_heads} heads, {config.num_hidden_layers} steps, "
        f"{config.mask} mask; {config.dtype}, {config.rounds} rounds, {config.threads} CPU threads"
    )


def step_table(config: BenchmarkConfig, compiled: bool = False) -> dict:
    sizes = shapes(config, config.context)
    sizes = {name: sizes[name] for name in config.models or sizes}
    found = measure(step_calls, sizes, config, compiled)
    flops = {name: forward_flops(shape, config.context) for name, shape in sizes.items()}
    reference, rows = next(iter(sizes)), []
    for name, seconds in found.timings.seconds.items():
        ratio, relative = found.timings.ratios[name], flops[name] / flops[reference]
        row = [name, sizes[name].hidden_size, count_parameters(sizes[name]), relative, seconds, ratio]
        compiling = [found.first[name] - seconds.value] if compiled else []
        rows.append([*row, ratio.value / relative, *compiling, found.memory.get(name, "–")])
    caption = (
        f"A training step{', compiled' if compiled else ''}: {config.batch_size} windows of {config.context} tokens, "
        f"vocabulary {config.vocab_size}; {conditions(config)}"
    )
    columns = ["model", "width", "parameters", ("FLOPs, ratio", ".2f"), ("seconds", ".3f"), ("ratio", ".2f")]
    columns += [("ratio at equal FLOPs", ".2f")] + ([("compilation, s", ".0f")] if compiled else [])
    columns += [("peak memory, MiB", ".0f")]
    name = "compiled" if compiled else "step"
    return {"tables": {name: table(caption, columns, rows)}, "times": found.timings.rounds}


def gradient_table(config: BenchmarkConfig) -> dict:
    rows, times = [], {}
    for energy in ("FF1", "FF2W", "FF1, full rank", "FF2W, full rank"):
        found = measure(gradient_calls, ["torch.func.grad", "closed form"], config, energy)
        times |= {f"{energy}: {name}": rounds for name, rounds in found.timings.rounds.items()}
        for name, seconds in found.timings.seconds.items():
            rows.append([energy, name, seconds, found.timings.ratios[name], found.memory.get(name, "–")])
    caption = (
        f"A training step with the gradient of the energy by torch.func.grad, head by head as the official code, and "
        f"in closed form; {config.batch_size} windows of {config.context} tokens; {conditions(config)}"
    )
    columns = ["energy", "gradient", ("seconds", ".3f"), ("ratio", ".2f"), ("peak memory, MiB", ".0f")]
    return {"tables": {"gradient": table(caption, columns, rows)}, "times": times}


def gradient_calls(names: Iterable[str], config: BenchmarkConfig, energy: str) -> Calls:
    calls = step_calls([energy], config, False)
    model, _, ids, _ = calls[energy].args
    found = {}
    for name in names:
        twin = copy.deepcopy(model)
        if name == "torch.func.grad":
            twin.model.blocks = nn.ModuleList(PlainEnergyBlock(block) for block in twin.model.blocks)
        optimizer = torch.optim.AdamW([p for p in twin.parameters() if p.requires_grad])
        found[name] = partial(training_step, twin, optimizer, ids, config)
    return found


def generation_table(config: BenchmarkConfig) -> dict:
    sizes = shapes(config, config.generation_context)
    models = ["GPT_Rec_parallel", "FF1", "FF2W", "FF2W, full rank"]
    rows, times = [], {}
    for use_cache in (True, False):
        found = measure(generation_calls, models, config, use_cache)
        for name, seconds in found.timings.seconds.items():
            rate = config.new_tokens / seconds.value
            how = "cache" if use_cache else "recomputed"
            times[f"{name}: {how}"] = found.timings.rounds[name]
            held = cache_bytes(sizes[name], config.generation_context) / MIB if use_cache else "–"
            rows.append([name, how, seconds, found.timings.ratios[name], rate, held])
    for row in rows:
        cached = next(r for r in rows if r[0] == row[0] and r[1] == "cache")
        row.insert(4, row[2].value / cached[2].value)
    caption = (
        f"Greedy generation of the last {config.new_tokens} of {config.generation_context} tokens, prompt included, "
        f"one text, float32; {conditions(config)}"
    )
    columns = [
        "model",
        "keys",
        ("seconds", ".2f"),
        ("ratio", ".2f"),
        ("ratio to its cache", ".1f"),
        ("tokens/s", ".0f"),
    ]
    return {"tables": {"generation": table(caption, [*columns, ("cache, MiB", ".1f")], rows)}, "times": times}


def generation_calls(names: Iterable[str], config: BenchmarkConfig, use_cache: bool) -> Calls:
    generator, calls = torch.Generator().manual_seed(config.seed), {}
    length = config.generation_context - config.new_tokens
    prompt = torch.randint(config.vocab_size, (1, length), generator=generator).to(config.device)
    for name in names:
        model = make_model(shapes(config, config.generation_context)[name], config.seed, config.device).eval()
        options = dict(max_new_tokens=config.new_tokens, do_sample=False, use_cache=use_cache)
        calls[name] = partial(model.generate, prompt, attention_mask=torch.ones_like(prompt), **options)
    return calls


def cache_bytes(config: NRGPTConfig, tokens: int) -> int:
    """Of the keys, and values where they are others, of one text in float32."""
    heads, steps = config.num_attention_heads, config.num_hidden_layers
    if config.block != "energy":
        return 2 * 4 * tokens * steps * (config.hidden_size // heads * heads)
    return 4 * tokens * steps * heads * (config.rank or config.hidden_size)


TABLES = {
    "step": step_table,
    "compiled": partial(step_table, compiled=True),
    "gradient": gradient_table,
    "generation": generation_table,
}


if __name__ == "__main__":
    run(main, BenchmarkConfig)
