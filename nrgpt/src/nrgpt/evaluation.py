"""What is measured on a model: the loss of unseen text, answers to ListOps, and what happens to the energies."""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .blocks import EnergyBlock
from .data import spaced_windows
from .listops import VOCABULARY, answer_of, prompt_of
from .modeling_nrgpt import NRGPTForCausalLM


def next_token_loss(model, ids: Tensor, targets: Tensor, **options) -> Tensor:
    """Mean cross-entropy in nats of `targets`, the tokens one place on, both (batch, length)."""
    logits = model(ids, use_cache=False, **options).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@torch.no_grad()
def stream_losses(
    model, stream: np.ndarray, length: int, windows: int, batch_size: int = 64, **options
) -> tuple[np.ndarray, np.ndarray]:
    """Loss of each of `windows` windows of `length` tokens, evenly spaced in the stream, and of each position in them.

    The official code draws 200 batches at random; fixed windows give every model the same ones.
    """
    windows = min(windows, (len(stream) - 1) // length)
    per_window, per_position = [], torch.zeros(length, dtype=torch.float64)
    for both in spaced_windows(stream, length, windows).split(batch_size):
        both = both.to(model.device)
        logits = model(both[:, :-1], use_cache=False, **options).logits
        losses = F.cross_entropy(logits.transpose(1, 2).float(), both[:, 1:], reduction="none").double().cpu()
        per_window.append(losses.mean(1))
        per_position += losses.sum(0)
    return torch.cat(per_window).numpy(), (per_position / windows).numpy()


def bits_per_character(loss: float, tokens: int, characters: int) -> float:
    """From nats a token."""
    return loss / math.log(2) * tokens / characters


@dataclass
class Answer:
    """A ListOps prompt, what the model wrote after it, and whether its last word is right."""

    prompt: list[str]
    written: list[str]
    answer: str
    expected: str

    @property
    def correct(self) -> bool:
        return self.answer == self.expected


@torch.no_grad()
def answer_listops(
    model: NRGPTForCausalLM,
    samples: list[list[str]],
    greedy: bool = True,
    new_tokens: int = 60,
    batch_size: int = 100,
    vocabulary: list[str] = VOCABULARY,
    **options,
) -> list[Answer]:
    """Let the model write on after the first `=` of each sample, until `<eos>`.

    Args:
        greedy: or sampled at temperature 1, as the official decoder does.
        vocabulary: words by id, of which the first is `<eos>`.
        new_tokens: at most, also bounded by the context (official code: the longest test sample, 57 to 60).
        options: of the forward pass, such as num_steps.
    """
    number, answers = {token: i for i, token in enumerate(vocabulary)}, []
    longest_of_all = max(len(prompt_of(sample)) for sample in samples)
    room = min(new_tokens, model.config.max_position_embeddings - longest_of_all)
    if room < 1:
        raise ValueError(f"samples: expected prompts shorter than the context, got one of {longest_of_all} tokens")
    order = sorted(range(len(samples)), key=lambda i: len(prompt_of(samples[i])))  # little padding in a batch
    for chunk in (order[i : i + batch_size] for i in range(0, len(order), batch_size)):
        prompts = [prompt_of(samples[i]) for i in chunk]
        longest = max(map(len, prompts))
        pads = [longest - len(prompt) for prompt in prompts]
        ids = torch.tensor([[0] * pad + [number[t] for t in prompt] for pad, prompt in zip(pads, prompts, strict=True)])
        mask = torch.tensor([[0] * pad + [1] * len(prompt) for pad, prompt in zip(pads, prompts, strict=True)])
        written = model.generate(
            ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=room,
            do_sample=not greedy,
            **({} if greedy else {"temperature": 1.0, "top_k": 0, "top_p": 1.0}),
            eos_token_id=0,
            pad_token_id=0,
            **options,
        )
        for i, prompt, row in zip(chunk, prompts, written[:, longest:].tolist(), strict=True):
            tokens = [vocabulary[n] for n in row]
            end = tokens.index("<eos>") + 1 if "<eos>" in tokens else len(tokens)
            answers.append((i, Answer(prompt, tokens[:end], answer_of(prompt + tokens), answer_of(samples[i]))))
    return [answer for _, answer in sorted(answers, key=lambda pair: pair[0])]


def majority_answer(samples: list[list[str]]) -> tuple[str, float]:
    """The most frequent answer, and its share: what a model that does not read gets."""
    answers = [answer_of(sample) for sample in samples]
    most = max(sorted(set(answers)), key=answers.count)
    return most, answers.count(most) / len(answers)


@torch.no_grad()
def energy_statistics(model: NRGPTForCausalLM, ids: Tensor, num_steps: int | None = None) -> dict[str, Tensor]:
    """What a pass over `ids`, (batch, length), does to energies and states.

    Returns:
        energy: of each token at each state, (batch, T + 1, length); state_norm: |x| there.
        update_norm: |x^(t+1) - x^(t)|, (batch, T, length).
        falling: share of steps in which a token's energy falls, (T,).
        cosine: between a token's step and steepest descent, -dE_A/dx_A with the norm's part, (batch, T, length).
    """
    out = model(ids, num_steps=num_steps, output_energies=True, output_hidden_states=True, use_cache=False)
    states = torch.stack(out.hidden_states, 1)
    energy = out.attention_energy + out.feed_forward_energy
    steps = states.diff(dim=1)
    cosine = []
    for t in range(steps.shape[1]):
        block: EnergyBlock = model.model.blocks[0 if model.config.share_blocks else t]
        descent = -_gradient_by_state(block, states[:, t])
        cosine.append(F.cosine_similarity(steps[:, t], descent, dim=-1))
    return dict(
        energy=energy,
        state_norm=states.norm(dim=-1),
        update_norm=out.update_norm,
        falling=(energy.diff(dim=1) < 0).double().mean((0, 2)),
        cosine=torch.stack(cosine, 1),
    )


def _gradient_by_state(block: EnergyBlock, x: Tensor) -> Tensor:
    """dE_A/dx_A: the gradient by u, pulled back through the norm."""
    with torch.enable_grad():
        state = x.detach().requires_grad_()
        u = block.norm(state)
        gradient = block.gradient(u.detach())
        return torch.autograd.grad(u, state, gradient)[0]


def rate_parts(model: NRGPTForCausalLM) -> dict[str, float]:
    """Frobenius norms of the symmetric and the antisymmetric part of eta, and its least symmetric eigenvalue."""
    block: EnergyBlock = model.model.blocks[0]
    eta = block.rate.matrix(block.gain).double()
    symmetric = (eta + eta.T) / 2
    return dict(
        symmetric=symmetric.norm().item(),
        antisymmetric=(eta - symmetric).norm().item(),
        least_eigenvalue=torch.linalg.eigvalsh(symmetric).min().item(),
    )
