"""What the scripts show of a model: answers, step by step, and energies."""

from pathlib import Path

import torch
from torch import Tensor

from .data import Corpus
from .evaluation import Answer, answer_listops, energy_statistics, majority_answer
from .listops import prompt_of
from .modeling_nrgpt import NRGPTForCausalLM


def report_listops(model: NRGPTForCausalLM, corpus: Corpus, number: int, examples: int = 4) -> None:
    """Print the accuracy on held-out samples, beside the majority answer, and the first few of them."""
    samples = corpus.test["mixed"][:number]
    answers = answer_listops(model, samples, vocabulary=corpus.vocabulary)
    right = sum(answer.correct for answer in answers)
    most, share = majority_answer(samples)
    print(f"{right / len(answers):.3f} of {len(answers)} held-out prompts answered right; always {most}: {share:.3f}")
    for answer in answers[:examples]:
        print(f"  {shown(answer)}")


def shown(answer: Answer) -> str:
    """The prompt, what was written after it, and what should have been."""
    verdict = "right" if answer.correct else f"wrong, {answer.expected}"
    return f"{' '.join([*answer.prompt, *answer.written])}   ({verdict})"


def report_energies(model: NRGPTForCausalLM, corpus: Corpus, file: Path) -> None:
    """`plot_first_text`, and say so."""
    words = plot_first_text(model, corpus, file)
    print(f"wrote {file}: energies of the tokens of {' '.join(words) if corpus.test else 'the first held-out text'}")


def plot_first_text(model: NRGPTForCausalLM, corpus: Corpus, file: Path) -> list[str]:
    """Plot the energies of the tokens of the first held-out text, over three times as many steps as were trained."""
    ids, words = first_text(model, corpus)
    plot_trace(model, ids, words, file, (3 if model.config.share_blocks else 1) * model.config.num_hidden_layers)
    return words


def plot_trace(model: NRGPTForCausalLM, ids: Tensor, words: list[str], file: Path, num_steps: int | None) -> None:
    """Plot the energies of one text's tokens, (1, length), over so many steps."""
    from .pictures import plot_energies  # matplotlib takes its time

    found = energy_statistics(model, ids, num_steps=num_steps)
    energy, update = (found[name][0].float().cpu().numpy() for name in ("energy", "update_norm"))
    plot_energies(energy, update, words, file, model.config.num_hidden_layers)


def words_of(tokenizer, ids: list[int]) -> list[str]:
    """Each token as it reads, line breaks as signs."""
    return [repr(tokenizer.decode([i]))[1:-1] for i in ids]


def first_text(model: NRGPTForCausalLM, corpus: Corpus) -> tuple[Tensor, list[str]]:
    """The first held-out prompt, or the beginning of the validation text, (1, length), and its tokens as words."""
    if corpus.test:
        words = prompt_of(corpus.test["mixed"][0])
        ids = corpus.tokenizer.convert_tokens_to_ids(words)
    else:
        ids = corpus.validation[: min(model.config.max_position_embeddings, 32)].tolist()
        words = words_of(corpus.tokenizer, ids)
    return torch.tensor([ids], device=model.device), words
