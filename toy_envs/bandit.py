"""A contextual bandit whose arm is a whole response: small enough to write down the reward of every one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from string import ascii_lowercase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toy_envs.episode import TokenEnv, TokenVectorEnv
from toy_envs.text import EOS, PAD, read, to_ids

LETTER = 2  # id of the letter "a"; before it stand padding and EOS

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def copy(context: str, word: str) -> float:
    """Say the context again: the share of letters in their place."""
    return sum(a == b for a, b in zip(context, word, strict=False)) / len(context)


def sort(context: str, word: str) -> float:
    """Say the letters of the context in alphabetical order: the share of letters in their place."""
    return copy("".join(sorted(context)), word)


def count(context: str, word: str) -> float:
    """Say as many letters as the context has a's, whichever they are; each too many or too few costs the same."""
    return 1 - abs(len(word) - context.count("a")) / len(context)


RULES: dict[str, Callable[[str, str], float]] = {"copy": copy, "sort": sort, "count": count}


@dataclass(frozen=True)
class Bandit:
    """C contexts of L-1 letters, responses of at most L tokens over K letters and EOS; a problem is a context's number.

    Every response is either a word of fewer than L letters and EOS, or L letters without; only a finished one is
    paid, between 0 and 1. There is nothing to generalise to: both splits hold the same contexts, and ``held_out``
    lists each once. Padding said inside a response earns 0.

    Attributes:
        rule: "copy", "sort" or "count", or "table" for a uniform random reward of each context and word.
        letters: K, at most 26.
        max_new_tokens: L, at least 2.
        contexts: C, at most K**(L-1).
        seed: draws the contexts, and the rewards of "table".
    """

    rule: str = "table"
    letters: int = 3
    max_new_tokens: int = 4
    contexts: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rule != "table" and self.rule not in RULES:
            raise ValueError(f'rule: {self.rule!r}, expected "table" or one of {", ".join(RULES)}')
        if not 1 <= self.letters <= 26:
            raise ValueError(f"letters: {self.letters}, expected 1 to 26")
        if self.max_new_tokens < 2:
            raise ValueError(f"max_new_tokens: {self.max_new_tokens}, expected at least 2, a letter and EOS")
        most = self.letters**self.prompt_width
        if not 1 <= self.contexts <= most:
            raise ValueError(f"contexts: {self.contexts}, expected 1 to {most}, the words of max_new_tokens-1 letters")
        if self.contexts * self.n_responses > 10**6:
            raise ValueError(
                f"contexts: {self.contexts} times {self.n_responses} responses are too many to enumerate (over 10**6); "
                "take fewer letters, a smaller max_new_tokens or fewer contexts"
            )

    @property
    def alphabet(self) -> str:
        """Padding, EOS and the letters."""
        return " \n" + ascii_lowercase[: self.letters]

    @property
    def prompt_width(self) -> int:
        """Letters of a context, P."""
        return self.max_new_tokens - 1

    @property
    def n_responses(self) -> int:
        """R = 1 + K + K**2 + ... + K**L."""
        return sum(self.letters**length for length in range(self.max_new_tokens + 1))

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The letters of each of the R responses: the short before the long, then in alphabetical order."""
        letters, longest = ascii_lowercase[: self.letters], self.max_new_tokens
        return tuple("".join(word) for length in range(longest + 1) for word in product(letters, repeat=length))

    @cached_property
    def prompts(self) -> tuple[str, ...]:
        """The C contexts."""
        width, rng = self.prompt_width, np.random.default_rng(self.seed)
        chosen = rng.choice(self.letters**width, size=self.contexts, replace=False)
        return tuple(self.words[self._starts[width] + number] for number in chosen)

    @cached_property
    def table(self) -> NDArray[np.float64]:
        """(C, R) the reward of each response in each context."""
        if self.rule == "table":
            table = np.random.default_rng([self.seed, 1]).uniform(size=(self.contexts, self.n_responses))
        else:
            pay = RULES[self.rule]
            table = np.array([[pay(context, word) for word in self.words] for context in self.prompts])
        table[:, self._starts[self.max_new_tokens] :] = 0.0  # never finished
        return table

    def responses(self) -> tuple[Ints, Bools]:
        """All R responses, as tokens (R, L) padded on the right and their mask (R, L), EOS included."""
        ended = [word + "\n" if len(word) < self.max_new_tokens else word for word in self.words]
        tokens = to_ids(ended, self.alphabet, self.max_new_tokens)
        return tokens, tokens != PAD

    def rewards(self, context: int) -> NDArray[np.float64]:
        """(R,) the reward of each response, in the order of ``responses``."""
        return self.table[context]

    def sample(self, rng: np.random.Generator, n: int, split: str = "train", progress: float = 1.0) -> Ints:
        """(n,) contexts with equal chances, the same for both splits and at any progress."""
        if split not in ("train", "test"):
            raise ValueError(f'split: {split!r}, expected "train" or "test"')
        return rng.integers(self.contexts, size=n)

    def held_out(self, n: int, progress: float = 1.0) -> Ints:
        """The first n contexts; all C where n is larger."""
        return np.arange(min(n, self.contexts))

    def encode(self, problems: Ints) -> Ints:
        """(n, P) prompts."""
        return to_ids([self.prompts[context] for context in problems.tolist()], self.alphabet, self.prompt_width)

    def answers(self, problems: Ints) -> list[list[int]]:
        """The first best response in each context, as token ids that end with EOS."""
        best = [self.words[response] for response in self.table[problems].argmax(1)]
        return [[self.alphabet.index(letter) for letter in word] + [EOS] for word in best]

    def score(self, problems: Ints, tokens: Ints, mask: Bools | None = None) -> dict[str, NDArray]:
        """Judge B responses.

        Args:
            problems: (B,) contexts.
            tokens: (B, T); what follows the first EOS, or the L-th token, is not read.
            mask: (B, T), False on positions to ignore.

        Returns:
            Four (B,) arrays. ``correct``: no response to this context earns more. ``format``: letters, then EOS.
            ``finished``: EOS came. ``reward``: the table's. The first three are bool, the last is float32.
        """
        longest = self.max_new_tokens
        words, lengths, finished = read(tokens[:, :longest], None if mask is None else mask[:, :longest])
        clean = ((words >= LETTER).sum(1) == lengths) & (words < len(self.alphabet)).all(1)
        paid = clean & finished
        ranks = np.zeros(len(words), dtype=np.int64)
        for t in range(words.shape[1]):
            ranks = np.where(t < lengths, ranks * self.letters + words[:, t] - LETTER, ranks)
        rewards = self.table[problems, np.where(paid, self._starts[lengths] + ranks, -1)]  # the last is never finished
        correct = paid & (rewards == self.table.max(1)[problems])
        return {"reward": rewards.astype(np.float32), "correct": correct, "format": paid, "finished": finished}

    @cached_property
    def _starts(self) -> Ints:
        """(L+2,) the number of responses with fewer than 0, 1, ..., L+1 letters."""
        return np.concatenate([[0], np.cumsum(self.letters ** np.arange(self.max_new_tokens + 1))])


class TokenBanditEnv(TokenEnv):
    """The bandit token by token; ``numbers`` are those of ``Bandit``, the rest is ``TokenEnv``'s."""

    def __init__(
        self, split: str = "train", progress: float = 1.0, render_mode: str | None = None, **numbers: Any
    ) -> None:
        super().__init__(Bandit(**numbers), split, progress, render_mode)


class TokenBanditVectorEnv(TokenVectorEnv):
    """Bandits side by side; ``numbers`` are those of ``Bandit``, the rest is ``TokenVectorEnv``'s."""

    def __init__(
        self,
        num_envs: int = 1,
        split: str = "train",
        progress: float = 1.0,
        render_mode: str | None = None,
        **numbers: Any,
    ) -> None:
        super().__init__(Bandit(**numbers), num_envs, split, progress, render_mode)
