"""Arithmetic in characters: "47+85=" asks for the tokens of "132" and EOS. All of it works on whole batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toy_envs.episode import TokenEnv, TokenVectorEnv
from toy_envs.text import EOS, PAD, read, to_ids

ALPHABET = " \n0123456789+-*="  # padding, EOS, and what is written
OPERATIONS = "+-*"
ZERO, NINE, MINUS = ALPHABET.index("0"), ALPHABET.index("9"), ALPHABET.index("-")

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Arithmetic:
    """Problems, their split and their verifier; n problems are an (n, 3) int64 array: left, index in "+-*", right.

    A problem belongs to the test split when a hash of it falls under ``test_share``: the same on every machine, for
    every seed. a+b and b+a, a*b and b*a fall on the same side, so that held out means held out.

    Attributes:
        operations: the operations asked for, out of "+-*", drawn with equal chances.
        digits: (fewest, most) digits of an operand; each operand draws its own number of digits, with equal chances.
        carry_rich: ask only for sums and differences in which at least half of the columns carry (or borrow).
            Products are asked as ever. The top column of a difference never borrows and is not counted.
        partial_credit: what a wrong response earns at most, in [0, 1): this number times the share of its characters
            that stand where the right answer has the same one. A right response earns 1.
        test_share: share of the problems that are held out, in (0, 1).
        max_new_tokens: longest response; 0 means the longest possible answer and its EOS.
    """

    operations: str = "+"
    digits: tuple[int, int] = (2, 2)
    carry_rich: bool = False
    partial_credit: float = 0.0
    test_share: float = 0.2
    max_new_tokens: int = 0

    def __post_init__(self) -> None:
        fewest, most = self.digits
        if not self.operations or len(set(self.operations)) < len(self.operations) or set(self.operations) - set("+-*"):
            raise ValueError(f'operations: {self.operations!r}, expected each of some of "+-*" once, such as "+-"')
        if not 1 <= fewest <= most <= 9:
            raise ValueError(f"digits: {self.digits}, expected (fewest, most) with 1 <= fewest <= most <= 9")
        if not 0 <= self.partial_credit < 1:
            raise ValueError(f"partial_credit: {self.partial_credit}, expected 0 <= partial_credit < 1")
        if not 0 < self.test_share < 1:
            raise ValueError(f"test_share: {self.test_share}, expected 0 < test_share < 1")
        if self.max_new_tokens != 0 and self.max_new_tokens < 2:
            raise ValueError(
                f"max_new_tokens: {self.max_new_tokens}, expected at least 2, a digit and EOS, or 0 to derive"
            )
        if self.max_new_tokens == 0:
            object.__setattr__(self, "max_new_tokens", self.longest_answer + 1)

    @property
    def alphabet(self) -> str:
        """Padding, EOS, the digits and the signs."""
        return ALPHABET

    @property
    def longest_answer(self) -> int:
        """Characters of the longest possible answer, its minus included."""
        return 2 * self.digits[1] if "*" in self.operations else self.digits[1] + 1

    @property
    def prompt_width(self) -> int:
        """Tokens of the longest prompt, P."""
        return 2 * self.digits[1] + 2

    def level(self, progress: float) -> int:
        """The most digits asked for at ``progress`` in [0, 1]: the range ``digits``, opened in equal stretches."""
        if not 0 <= progress <= 1:
            raise ValueError(f"progress: {progress}, expected 0 <= progress <= 1")
        fewest, most = self.digits
        return min(fewest + int(progress * (most - fewest + 1)), most)

    def sample(self, rng: np.random.Generator, n: int, split: str = "train", progress: float = 1.0) -> Ints:
        """(n, 3) independent problems of ``split``, "train" or "test"; ``progress`` drives the curriculum by digits."""
        if split not in ("train", "test"):
            raise ValueError(f'split: {split!r}, expected "train" or "test"')
        level = self.level(progress)
        kept = np.empty((0, 3), dtype=np.int64)
        for _ in range(1000):  # far more than any split needs that is not empty
            if len(kept) >= n:
                return kept[:n]
            drawn = self._asked(self._draw(rng, 2 * n + 16, level))
            kept = np.concatenate([kept, drawn[self.is_test(drawn) == (split == "test")]])
        raise ValueError(f"test_share: {self.test_share} leaves no {split} problem; take it nearer to 0.5")

    def held_out(self, n: int, progress: float = 1.0) -> Ints:
        """The first n problems of a fixed list from the test split, no two the same; all of it where it is shorter.

        It is a long draw with fixed seed, repetitions left out, so every run is judged on the same problems. Up to two
        digits, the problems that were never drawn follow, and none is missing.
        """
        level = self.level(progress)
        problems = self._draw(np.random.default_rng(0), 2**16, level)
        if level <= 2:
            problems = np.concatenate([problems, self._every(level)])
        problems = self._asked(problems[self.is_test(problems)])
        _, first = np.unique(_number(problems), return_index=True)
        return problems[np.sort(first)[:n]]

    def is_test(self, problems: Ints) -> Bools:
        """(n,) whether each problem is held out."""
        left, operation, right = problems.T
        swap = (operation != OPERATIONS.index("-")) & (left > right)
        ordered = np.stack([np.where(swap, right, left), operation, np.where(swap, left, right)], axis=1)
        return _uniform(_number(ordered)) < self.test_share

    def texts(self, problems: Ints) -> list[str]:
        """The problems as they are asked, such as "47+85="."""
        return [f"{left}{OPERATIONS[operation]}{right}=" for left, operation, right in problems.tolist()]

    def encode(self, problems: Ints) -> Ints:
        """(n, P) prompts, padded on the left."""
        return to_ids([text.rjust(self.prompt_width) for text in self.texts(problems)], ALPHABET, self.prompt_width)

    def solve(self, problems: Ints) -> Ints:
        """(n,) right answers, as numbers."""
        left, operation, right = problems.T
        return np.choose(operation, [left + right, left - right, left * right])

    def answers(self, problems: Ints) -> list[list[int]]:
        """The right responses as token ids, each ending with EOS."""
        return [[ALPHABET.index(c) for c in str(answer)] + [EOS] for answer in self.solve(problems).tolist()]

    def score(self, problems: Ints, tokens: Ints, mask: Bools | None = None) -> dict[str, NDArray]:
        """Judge B responses.

        Args:
            problems: (B, 3).
            tokens: (B, T); what follows the first EOS is not read.
            mask: (B, T), False on positions to ignore.

        Returns:
            Four (B,) arrays. ``correct``: the right number, then EOS. ``format``: a number in its usual writing (no
            leading zero, no -0, no plus sign), then EOS. ``finished``: EOS came. ``reward``: 1 if correct, else the
            partial credit. The first three are bool, the last is float32.
        """
        words, lengths, finished = read(tokens, mask)
        longest = max(tokens.shape[1], self.longest_answer)
        right = to_ids([str(answer) for answer in self.solve(problems).tolist()], ALPHABET, longest)
        hits = ((words == right[:, : tokens.shape[1]]) & (words != PAD)).sum(1)
        share = hits / np.maximum(lengths, (right != PAD).sum(1))
        correct = finished & (share == 1)
        return {
            "reward": np.where(correct, 1.0, self.partial_credit * share).astype(np.float32),
            "correct": correct,
            "format": finished & _is_number(words, lengths),
            "finished": finished,
        }

    def _draw(self, rng: np.random.Generator, n: int, level: int) -> Ints:
        digits = rng.integers(self.digits[0], level + 1, size=(n, 2))
        left, right = rng.integers(_smallest(digits), 10**digits).T
        operation = np.array([OPERATIONS.index(o) for o in self.operations])[rng.integers(len(self.operations), size=n)]
        return np.stack([left, operation, right], axis=1)

    def _every(self, level: int) -> Ints:
        operands = np.arange(int(_smallest(np.array(self.digits[0]))), 10**level)
        operations = [OPERATIONS.index(operation) for operation in self.operations]
        return np.stack(np.meshgrid(operands, operations, operands, indexing="ij"), axis=-1).reshape(-1, 3)

    def _asked(self, problems: Ints) -> Ints:
        if not self.carry_rich:
            return problems
        carried, columns = carries(problems)
        return problems[2 * carried >= columns]


def carries(problems: Ints) -> tuple[Ints, Ints]:
    """(n,) columns that carry (a sum) or borrow (a difference, the smaller from the larger), and (n,) that could."""
    operands, operation = problems[:, [0, 2]], problems[:, 1]
    columns = _digits(operands.max(1))
    powers = 10 ** np.arange(1, columns.max(initial=1) + 1)
    small, large = operands.min(1)[:, None] % powers, operands.max(1)[:, None] % powers  # (n, columns)
    carried = (small + large >= powers).sum(1)
    borrowed = (small > large).sum(1)
    none = np.zeros_like(columns)
    return np.choose(operation, [carried, borrowed, none]), np.choose(operation, [columns, columns - 1, none])


def _is_number(words: Ints, lengths: Ints) -> Bools:
    words = np.pad(words, ((0, 0), (0, 1)))  # so that a first and a second character exist
    minus = words[:, 0] == MINUS
    digits = ((words >= ZERO) & (words <= NINE)).sum(1)
    leading = np.where(minus, words[:, 1], words[:, 0])
    return (digits > 0) & (digits + minus == lengths) & ((leading != ZERO) | (lengths == 1))


def _digits(numbers: Ints) -> Ints:
    return 1 + np.searchsorted(10 ** np.arange(1, 10), numbers, side="right")


def _smallest(digits: Ints) -> Ints:
    return np.where(digits == 1, 0, 10 ** (digits - 1))


def _number(problems: Ints) -> Ints:
    left, operation, right = problems.T
    return (left * 10**9 + right) * len(OPERATIONS) + operation  # under 2**63: operands have at most nine digits


def _uniform(numbers: Ints) -> NDArray[np.float64]:
    """A hash of each number, uniform in [0, 1): splitmix64, which is the same everywhere and forever."""
    z = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)) / 2.0**53


class ArithmeticEnv(TokenEnv):
    """Arithmetic token by token; ``numbers`` are those of ``Arithmetic``, the rest is ``TokenEnv``'s."""

    def __init__(
        self, split: str = "train", progress: float = 1.0, render_mode: str | None = None, **numbers: Any
    ) -> None:
        super().__init__(Arithmetic(**numbers), split, progress, render_mode)


class ArithmeticVectorEnv(TokenVectorEnv):
    """Sums side by side; ``numbers`` are those of ``Arithmetic``, the rest is ``TokenVectorEnv``'s."""

    def __init__(
        self,
        num_envs: int = 1,
        split: str = "train",
        progress: float = 1.0,
        render_mode: str | None = None,
        **numbers: Any,
    ) -> None:
        super().__init__(Arithmetic(**numbers), num_envs, split, progress, render_mode)
