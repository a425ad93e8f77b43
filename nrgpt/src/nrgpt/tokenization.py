"""Tokenizers of transformers for the three kinds of text: ListOps, characters, and byte pairs trained on a corpus."""

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from .listops import VOCABULARY


def listops_tokenizer(vocabulary: list[str] = VOCABULARY) -> PreTrainedTokenizerFast:
    """One id for each word, in the official order; reads `max_10(9,1)` and `max_10 ( 9 1 )` alike."""
    core = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary)}, unk_token="<unknown>"))
    core.normalizer = normalizers.Replace(",", " ")
    words = pre_tokenizers.Split(Regex(r"<eos>|\[?\w+|[()=\]]"), "isolated")
    core.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), words])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", clean_up_tokenization_spaces=False)


def character_tokenizer(text: str) -> PreTrainedTokenizerFast:
    """One id for each character of `text`, in order of their code points (nanoGPT's)."""
    core = Tokenizer(models.WordLevel({c: i for i, c in enumerate(sorted(set(text)))}, unk_token="<unknown>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=core, clean_up_tokenization_spaces=False)


def byte_pair_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE as GPT-2's, trained on `texts`; the last id ends a text."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    core.train_from_iterator(texts, trainer)
    core.add_special_tokens(["<|endoftext|>"])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|endoftext|>", clean_up_tokenization_spaces=False)


def encode(tokenizer: PreTrainedTokenizerFast, text: str, name: str = "text") -> list[int]:
    """Ids of `text`.

    Raises:
        ValueError: a piece that the tokenizer does not know.
    """
    try:
        return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    except Exception as error:  # tokenizers has no class of its own for it
        known = tokenizer.get_vocab().keys()
        pieces = text.split() if "=" in known else text
        strange = next((piece for piece in pieces if piece not in known), text)
        raise ValueError(f"{name}: {strange!r} is not in the model's vocabulary") from error
