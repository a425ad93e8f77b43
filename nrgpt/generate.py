"""Let a trained model write on: `python generate.py --model outputs/demo --prompts "[max_10(3 9 1) =]"`."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoTokenizer

from nrgpt import NRGPTForCausalLM
from nrgpt.cli import run
from nrgpt.loading import choose_device, load_model
from nrgpt.reports import plot_trace, words_of
from nrgpt.tokenization import encode


@dataclass
class GenerateConfig:
    """Write on from prompts."""

    model: str = "outputs/demo"
    """Folder of a saved model, or its Hub id."""
    prompts: list[str] | str = field(default_factory=lambda: ["max_10(3 9 1) =", "max_10(4 2 7) =", "max_10(8 0) ="])
    """What to go on from: a prompt, or a list."""
    new_tokens: int = 60
    """At most; ends before where the model says so."""
    greedy: bool = False
    """Take the likeliest token each time, instead of drawing (official code: draws at temperature 1)."""
    temperature: float = 1.0
    """Of the draw."""
    top_k: int | None = None
    """Draw among so many."""
    top_p: float | None = None
    """Draw among the likeliest with so much probability together."""
    sliding: bool = False
    """Beyond the context recompute the last window for each token (official code); otherwise that is an error."""
    num_steps: int | None = None
    """Steps on the energy (default: as trained)."""
    stop_tol: float | None = None
    """Let a token rest once a step changes it by less than this share of its length (default: as saved)."""
    energies: Path | None = None
    """Also plot the energies of the first text's tokens into this picture."""
    output: Path | None = None
    """Also write texts to this .json."""
    seed: int = 0
    """Of the draws."""
    device: str | None = None
    """cuda, mps or cpu (default: the best there is)."""


def main(config: GenerateConfig) -> None:
    prompts = [config.prompts] if isinstance(config.prompts, str) else config.prompts
    if not prompts or not all(prompts):
        raise ValueError(f"prompts: expected at least one, and none empty, got {prompts}")
    for name in ("new_tokens", "num_steps", "top_k"):
        if getattr(config, name) is not None and getattr(config, name) < 1:
            raise ValueError(f"{name}: expected at least 1, got {getattr(config, name)}")
    if not config.temperature > 0:
        raise ValueError(
            f"temperature: expected a positive number, got {config.temperature}; greedy true takes the best"
        )
    if config.top_p is not None and not 0 < config.top_p <= 1:
        raise ValueError(f"top_p: expected 0 < value <= 1, got {config.top_p}")
    model, tokenizer = load_model(config.model, choose_device(config.device))
    torch.manual_seed(config.seed)
    texts = []
    for prompt in prompts:
        ids = torch.tensor([encode(tokenizer, prompt, "prompts")], device=model.device)
        room = model.config.max_position_embeddings - ids.shape[1]
        if room < 1 and not config.sliding:
            context = model.config.max_position_embeddings
            raise ValueError(
                f"prompts: expected fewer tokens than the context, {context}, got {ids.shape[1]}; or sliding true"
            )
        drawn = {"temperature": config.temperature, "top_k": config.top_k or 0, "top_p": config.top_p or 1.0}
        steps = {"num_steps": config.num_steps, "stop_tol": config.stop_tol}
        written = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=config.new_tokens if config.sliding else min(config.new_tokens, room),
            do_sample=not config.greedy,
            sliding=config.sliding,
            **({} if config.greedy else drawn),
            **{name: value for name, value in steps.items() if value is not None},
        )
        texts.append({"prompt": prompt, "text": tokenizer.decode(written[0])})
        print(texts[-1]["text"], end="\n\n" if "\n" in texts[-1]["text"] else "\n")
        if config.energies is not None and len(texts) == 1:
            plot(config, model, tokenizer, written[:, : model.config.max_position_embeddings])
    if config.output is not None:
        config.output.parent.mkdir(parents=True, exist_ok=True)
        config.output.write_text(json.dumps(texts, indent=1, ensure_ascii=False), encoding="utf-8")
        print(f"wrote {config.output}")


def plot(config: GenerateConfig, model: NRGPTForCausalLM, tokenizer: AutoTokenizer, ids: torch.Tensor) -> None:
    if model.config.block != "energy":
        raise ValueError(f"energies: expected an energy model, {config.model} has {model.config.block} blocks")
    config.energies.parent.mkdir(parents=True, exist_ok=True)
    plot_trace(model, ids, words_of(tokenizer, ids[0].tolist()), config.energies, config.num_steps)
    print(f"wrote {config.energies}")


if __name__ == "__main__":
    run(main, GenerateConfig)
