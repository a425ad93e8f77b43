"""ListOps as in the paper: expressions on digits, solved step by step in the text, with triples of digits held out.

    median_10 ( max_10 ( 9 9 ) 1 4 ) = median_10 ( 9 1 4 ) = 4 <eos>

With the same seed the draws are the official generator's, token for token.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

MODULUS = 10


def _alternating(values: list[int]) -> int:
    return sum(value if i % 2 == 0 else -value for i, value in enumerate(values))


def _product(values: list[int]) -> int:
    product = 1
    for value in values:
        product *= value
    return product


FUNCTIONS: dict[str, Callable[[list[int]], int]] = {
    "min": min,
    "max": max,
    "median": lambda values: sorted(values)[len(values) // 2],  # the upper one
    "add": sum,
    "prod": _product,
    "nadd": _alternating,  # a - b + c - …
}
VOCABULARY = ["<eos>", "(", ")", "=", *(f"{name}_{MODULUS}" for name in FUNCTIONS), *map(str, range(MODULUS))]


def apply(function: str, values: list[int]) -> int:
    """Value of a function of digits, modulo 10."""
    return FUNCTIONS[function](values) % MODULUS


@dataclass
class Node:
    """A function of digits and of further nodes."""

    function: str
    children: list["Node | int"]

    def tokens(self) -> list[str]:
        inner = [t for child in self.children for t in (child.tokens() if isinstance(child, Node) else [str(child)])]
        return [f"{self.function}_{MODULUS}", "(", *inner, ")"]

    def reduce(self) -> "Node | int":
        """The expression after one step: the left-most function is followed down until its arguments are digits."""
        for i, child in enumerate(self.children):
            if isinstance(child, Node):
                return Node(self.function, [*self.children[:i], child.reduce(), *self.children[i + 1 :]])
        return apply(self.function, self.children)


def solve(expression: Node) -> list[str]:
    """Tokens of the expression, of each step, of its value, with `=` between, and `<eos>`."""
    tokens, now = [], expression
    while isinstance(now, Node):
        tokens += [*now.tokens(), "="]
        now = now.reduce()
    return [*tokens, str(now), "<eos>"]


@dataclass
class ListOps:
    """The generator.

    Args:
        functions: that occur; the root is one of them.
        max_depth: of nested functions; 1 is a function of digits alone.
        min_children, max_children: number of arguments.
        function_share: chance that an argument is a function.
        held_out_share: share of all tuples of `max_children` digits that no training sample contains, in the prompt or
            in a later step; every test sample contains one.
        seed: of all draws.

    Raises:
        ValueError: a value outside its range, an unknown function.
    """

    functions: list[str] = field(default_factory=lambda: ["max", "median", "add"])
    max_depth: int = 2
    min_children: int = 2
    max_children: int = 3
    function_share: float = 0.25
    held_out_share: float = 0.05
    seed: int = 42

    def __post_init__(self) -> None:
        for name in self.functions:
            if name not in FUNCTIONS:
                raise ValueError(f"functions: expected some of {', '.join(FUNCTIONS)}, got {name!r}")
        if not self.functions:
            raise ValueError(f"functions: expected some of {', '.join(FUNCTIONS)}, got none")
        if self.max_depth < 1:
            raise ValueError(f"max_depth: expected at least 1, got {self.max_depth}")
        if not 2 <= self.min_children <= self.max_children <= MODULUS:
            raise ValueError(
                "min_children, max_children: expected 2 <= min <= max <= 10, got "
                f"{self.min_children} and {self.max_children}"
            )
        for name in ("function_share", "held_out_share"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}: expected 0 <= value < 1, got {getattr(self, name)}")
        self.random = random.Random(self.seed)
        number = int(self.held_out_share * MODULUS**self.max_children)
        digits = range(MODULUS)
        self.held_out = {tuple(map(str, self.random.sample(digits, self.max_children))) for _ in range(number)}

    def draw(self, functions: list[str] | None = None) -> list[str]:
        """Tokens of the next sample."""
        functions = functions or self.functions
        return solve(self._node(self.random.choice(functions), functions, 0))

    def _node(self, function: str, functions: list[str], depth: int) -> Node:
        children: list[Node | int] = []
        for _ in range(self.random.randint(self.min_children, self.max_children)):
            nested = self.random.random() < self.function_share  # drawn at the last level too
            if nested and depth < self.max_depth - 1:
                children.append(self._node(self.random.choice(functions), functions, depth + 1))
            else:
                children.append(self.random.choice(range(MODULUS)))
        return Node(function, children)

    def is_held_out(self, tokens: list[str]) -> bool:
        """Whether a held-out tuple stands anywhere in the text."""
        m = self.max_children
        return any(tuple(tokens[i : i + m]) in self.held_out for i in range(len(tokens) - m + 1))

    def split(self, train: int, test: int) -> tuple[list[list[str]], list[list[str]]]:
        """That many samples for training and for the test; draws until both are full.

        Raises:
            ValueError: no test sample can come up.
        """
        if test and not self.held_out:
            raise ValueError("held_out_share: expected more than 0 where a test set is wanted")
        kept: dict[bool, list[list[str]]] = {False: [], True: []}
        wanted = {False: train, True: test}
        while any(len(kept[side]) < wanted[side] for side in kept):
            tokens = self.draw()
            side = self.is_held_out(tokens)
            if len(kept[side]) < wanted[side]:
                kept[side].append(tokens)
        return kept[False], kept[True]

    def tests_of_one_function(self, number: int) -> dict[str, list[list[str]]]:
        """For each function, held-out samples in which it is the only one; drawn after `split`."""
        return {name: self._held_out(name, number) for name in self.functions}

    def _held_out(self, function: str, number: int) -> list[list[str]]:
        samples: list[list[str]] = []
        while len(samples) < number:
            tokens = self.draw([function])
            if self.is_held_out(tokens):
                samples.append(tokens)
        return samples


def prompt_of(tokens: list[str]) -> list[str]:
    """Up to and with the first `=`."""
    return tokens[: tokens.index("=") + 1]


def answer_of(tokens: list[str], start: int = 0) -> str:
    """The token before the first `<eos>` from `start` on, the last one where there is none (official code).

    Args:
        tokens: padding, prompt and continuation.
        start: where the padding ends.
    """
    tokens = tokens[start:]
    end = tokens.index("<eos>") if "<eos>" in tokens else len(tokens)
    return tokens[end - 1]
