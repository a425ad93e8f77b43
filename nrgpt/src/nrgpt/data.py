"""Streams of tokens to train on, and windows of them."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from .errors import first_line
from .files import replacing
from .listops import VOCABULARY, ListOps
from .listops_classic import CLASSIC_VOCABULARY, split_classic
from .text import read_texts, shakespeare, split_texts
from .tokenization import byte_pair_tokenizer, character_tokenizer, encode, listops_tokenizer


@dataclass
class Corpus:
    """What a model is trained and tested on.

    Args:
        train, validation: ids, one stream each.
        tokenizer: that made them.
        characters: of the validation text, for bits per character; None where there is no such thing.
        test: held-out ListOps samples, as tokens; by set, `mixed` and one for each function.
    """

    train: np.ndarray
    validation: np.ndarray
    tokenizer: PreTrainedTokenizerFast
    characters: int | None = None
    test: dict[str, list[list[str]]] = field(default_factory=dict)

    @property
    def vocabulary(self) -> list[str]:
        """Words by id."""
        words = self.tokenizer.get_vocab()
        return sorted(words, key=words.get)


@dataclass
class ListOpsOptions:
    """Of the generator, with the number of samples."""

    functions: list[str] = field(default_factory=lambda: ["max"])
    max_depth: int = 1
    min_children: int = 2
    max_children: int = 3
    function_share: float = 0.25
    held_out_share: float = 0.05
    train_samples: int = 50_000
    test_samples: int = 2_000
    seed: int = 42


def load_corpus(options: Mapping, cache: Path) -> Corpus:
    """What the options of train.py that name data say; what is not among them is as in `ListOpsOptions` and 128 tokens.

    `tokenizer` may be a tokenizer itself. Raises what the functions below do.
    """
    dataset, seed = options["dataset"], options.get("data_seed", 42)
    if dataset == "listops":
        given = {f.name: options[f.name] for f in fields(ListOpsOptions) if f.name in options and f.name != "seed"}
        return load_listops(ListOpsOptions(seed=seed, **given))
    if dataset == "listops-classic":
        numbers = (options.get(name, getattr(ListOpsOptions, name)) for name in ("train_samples", "test_samples"))
        return load_classic(*numbers, options.get("context", 128), seed)
    tokenizer = options.get("tokenizer", "characters")
    return load_text(dataset, tokenizer, options.get("vocab_size", 0), options.get("train_characters"), cache)


def load_listops(options: ListOpsOptions) -> Corpus:
    """Training samples as one stream, of which the last tenth is for validation, and test sets (official code)."""
    numbers = dict(train_samples=options.train_samples, test_samples=options.test_samples)
    for name, value in numbers.items():
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")
    generator = ListOps(**{k: v for k, v in vars(options).items() if k not in numbers})
    train, test = generator.split(options.train_samples, options.test_samples)
    sets = {"mixed": test}
    if len(options.functions) > 1:
        sets |= generator.tests_of_one_function(options.test_samples)
    ids = np.array([VOCABULARY.index(token) for sample in train for token in sample], dtype=np.uint16)
    cut = len(ids) * 9 // 10
    return Corpus(ids[:cut], ids[cut:], listops_tokenizer(), test=sets)


def load_classic(train_samples: int, test_samples: int, context: int, seed: int) -> Corpus:
    """The classic ListOps as one stream, of which the last tenth is for validation, and a test set of other samples."""
    for name, value in dict(train_samples=train_samples, test_samples=test_samples).items():
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")
    train, test = split_classic(train_samples, test_samples, context, seed)
    ids = np.array([CLASSIC_VOCABULARY.index(token) for sample in train for token in sample], dtype=np.uint16)
    cut = len(ids) * 9 // 10
    return Corpus(ids[:cut], ids[cut:], listops_tokenizer(CLASSIC_VOCABULARY), test={"mixed": test})


def load_text(
    source: str,
    tokenizer: str | PreTrainedTokenizerFast,
    vocab_size: int,
    train_characters: int | None,
    cache: Path,
) -> Corpus:
    """A corpus of text.

    Args:
        source: shakespeare; a text file or a folder of them; hf:ID for a data set of the Hub with a column `text`.
        tokenizer: characters; bpe, trained on the training texts; one of the Hub or a folder, such as gpt2; or itself.
        vocab_size: of bpe.
        train_characters: only so many characters of the training text, from its beginning.
        cache: where the ids of a data set of the Hub are kept.

    Raises:
        ValueError, OSError: one of these does not fit or is not there.
    """
    if source.startswith("hf:"):
        return _load_hub(source.removeprefix("hf:"), tokenizer, cache)
    if source != "shakespeare" and not Path(source).exists():
        raise OSError(
            f"dataset: expected listops, shakespeare, a text file, a folder or hf:ID; {source!r} is none of them"
        )
    train, held_out = split_texts(shakespeare() if source == "shakespeare" else read_texts(Path(source)))
    text, validation = "\n".join(train), "\n".join(held_out)
    if train_characters is not None:
        text = text[:train_characters]
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        made = tokenizer
    elif tokenizer == "characters":
        made = character_tokenizer(text + validation)
    elif tokenizer == "bpe":
        if vocab_size < 258:
            raise ValueError(f"vocab_size: expected at least 258, the bytes and two more, got {vocab_size}")
        made = byte_pair_tokenizer([text], vocab_size)
    else:
        made = _load_tokenizer(tokenizer)
    return Corpus(_ids(made, text), _ids(made, validation), made, len(validation))


def _ids(tokenizer: PreTrainedTokenizerFast, text: str) -> np.ndarray:
    return np.array(encode(tokenizer, text), dtype=np.uint16 if len(tokenizer) < 2**16 else np.uint32)


def _load_tokenizer(name: str) -> PreTrainedTokenizerFast:
    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise OSError(
            f"tokenizer: expected characters, bpe, or one that transformers finds; {first_line(error)}"
        ) from error


def _load_hub(name: str, tokenizer: str, cache: Path) -> Corpus:
    """As nanoGPT prepares OpenWebText: 0.05 % held out with seed 2357, every document ended, ids kept in two files."""
    try:
        import datasets
    except ImportError as error:
        raise OSError("dataset: hf:… needs the package datasets; pip install 'iclr26-nrgpt[hub]'") from error
    if tokenizer in ("characters", "bpe"):
        raise ValueError(f"tokenizer: expected one of the Hub, such as gpt2, with hf:…, got {tokenizer}")
    made = _load_tokenizer(tokenizer)
    key = hashlib.sha256(json.dumps([name, tokenizer, len(made)]).encode()).hexdigest()[:16]
    files = {side: cache / f"{key}-{side}.bin" for side in ("train", "test")}
    kind = np.uint16 if len(made) < 2**16 else np.uint32
    if not all(file.exists() for file in files.values()):
        try:
            data = datasets.load_dataset(name, split="train")
        except Exception as error:  # of the Hub, of the file system, of the builder: each has its own kind
            raise OSError(f"dataset: cannot load hf:{name} ({type(error).__name__}: {first_line(error)})") from error
        if "text" not in data.column_names:
            raise ValueError(f"dataset: hf:{name} has no column text, only {', '.join(data.column_names)}")

        def ids(row: dict) -> dict:
            return {"ids": [*made(row["text"], add_special_tokens=False)["input_ids"], made.eos_token_id]}

        split = data.train_test_split(test_size=max(0.0005, 1 / len(data)), seed=2357, shuffle=True)
        split = split.map(ids, remove_columns=data.column_names, num_proc=os.cpu_count() if len(data) > 1000 else None)
        for side, file in files.items():
            _write_ids(split[side], file, kind)
    train, test = (np.memmap(files[side], dtype=kind, mode="r") for side in ("train", "test"))
    return Corpus(train, test, made)


def _write_ids(documents, file: Path, kind: type) -> None:
    with replacing(file) as partial, partial.open("wb") as out:
        for batch in documents.iter(1000):
            out.write(np.concatenate([np.asarray(ids, dtype=kind) for ids in batch["ids"]]).tobytes())


def windows_at(stream: np.ndarray, starts: Iterable[int], length: int) -> Tensor:
    """Windows of `length` tokens, (number, length)."""
    return torch.from_numpy(np.stack([stream[start : start + length].astype(np.int64) for start in starts]))


def spaced_windows(stream: np.ndarray, length: int, number: int) -> Tensor:
    """Evenly spaced windows with the token after each, (number, length + 1)."""
    return windows_at(stream, np.linspace(0, len(stream) - length - 1, number).astype(int), length + 1)


def draw_windows(stream: np.ndarray, length: int, seed: int, step: int, places: range) -> tuple[Tensor, Tensor]:
    """Random windows of `length` tokens and the tokens one place on, both (len(places), length).

    Where a window starts depends on seed, step and its place in the global batch alone, not on the number of processes.
    """
    starts = [
        int(np.random.SeedSequence((seed, step, place)).generate_state(1, np.uint64)[0] % (len(stream) - length))
        for place in places
    ]
    both = windows_at(stream, starts, length + 1)
    return both[:, :-1], both[:, 1:]


def check_length(corpus: Corpus, length: int) -> None:
    """Refuse a context that is longer than a stream.

    Raises:
        ValueError: so it is.
    """
    for name in ("train", "validation"):
        stream = getattr(corpus, name)
        if len(stream) <= length:
            raise ValueError(f"context: expected less than the {len(stream)} tokens of the {name} text, got {length}")


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "iclr26-nrgpt"
