"""The classic ListOps (Nangia and Bowman, 2018): nested lists with one answer, without steps. Not the paper's task.

[MAX 2 9 [MIN 4 7 ] 0 ] = 9 <eos>
"""

import random
from collections.abc import Callable

OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "MIN": min,
    "MAX": max,
    "MED": lambda values: int(_middle(sorted(values))),
    "SM": lambda values: sum(values) % 10,
}
CLASSIC_VOCABULARY = ["<eos>", "=", "]", *(f"[{name}" for name in OPERATORS), *map(str, range(10))]


def _middle(values: list[int]) -> float:
    """The median, the mean of two where their number is even; its whole part counts."""
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def draw_classic(
    chance: random.Random, max_depth: int = 20, max_arguments: int = 5, operator_share: float = 0.25
) -> tuple[list[str], int]:
    """Tokens of an expression, and its value.

    Args:
        max_depth: of nested lists.
        max_arguments: of a list, from 2 on.
        operator_share: chance that an argument is a list.
    """

    def draw(depth: int) -> tuple[list[str], int]:
        if depth > 1 and not (depth <= max_depth and chance.random() < operator_share):
            digit = chance.randrange(10)
            return [str(digit)], digit
        name = chance.choice(list(OPERATORS))
        parts = [draw(depth + 1) for _ in range(chance.randint(2, max_arguments))]
        value = OPERATORS[name]([value for _, value in parts])
        return [f"[{name}", *(token for tokens, _ in parts for token in tokens), "]"], value

    return draw(1)


def split_classic(train: int, test: int, max_tokens: int, seed: int = 42) -> tuple[list[list[str]], list[list[str]]]:
    """Different samples for training and for the test, each of at most `max_tokens` tokens with its answer.

    Raises:
        ValueError: that many different ones do not come up.
    """
    chance, seen, samples = random.Random(seed), set(), []
    for _ in range(100 * (train + test)):
        expression, value = draw_classic(chance)
        sample = [*expression, "=", str(value), "<eos>"]
        if len(sample) <= max_tokens and tuple(sample) not in seen:
            seen.add(tuple(sample))
            samples.append(sample)
            if len(samples) == train + test:
                return samples[test:], samples[:test]
    raise ValueError(f"train_samples, test_samples: expected fewer, or a longer context than {max_tokens}")
