"""The toy environments as tasks: the same problems and the same verdicts, in tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sspo_teach.types import Prompts, Scores
from toy_envs.arithmetic import Arithmetic
from toy_envs.bandit import Bandit
from toy_envs.episode import Game
from toy_envs.text import EOS, PAD, to_text


class ToyTask:
    """A game of ``toy_envs`` as a task. Token ids are the places of characters in ``game.alphabet``."""

    eos_id = EOS
    stop_ids = (EOS,)
    pad_id = PAD

    def __init__(self, name: str, game: Game) -> None:
        self.name = name
        self.game = game
        self.vocab_size = len(game.alphabet)
        self.max_new_tokens = game.max_new_tokens

    def prompts(self, n: int, *, rng: np.random.Generator, split: str = "train", progress: float = 1.0) -> Prompts:
        """n prompts, (n, P) and left-padded; P does not depend on ``progress``.

        "train" draws from ``rng``. "test" leaves it alone and gives the first n of a fixed list, no two the same: fewer
        than n where the list is shorter.

        Raises:
            ValueError: n is not positive, the split has another name, or ``progress`` lies outside [0, 1].
        """
        if n < 1:
            raise ValueError(f"n: {n}, expected at least one prompt")
        game = self.game
        problems = game.held_out(n, progress) if split == "test" else game.sample(rng, n, split, progress)
        tokens = torch.from_numpy(game.encode(problems))
        return Prompts(tokens, tokens != PAD, tuple(_hashable(problem) for problem in problems.tolist()))

    def score(self, problems: tuple[Any, ...], tokens: Tensor, mask: Tensor) -> Scores:
        """Score B responses, ``tokens`` and ``mask`` (B, T); the parts are correct, format and finished.

        Raises:
            ValueError: the three do not speak of the same B responses.
        """
        if len(problems) != len(tokens):
            raise ValueError(f"problems: {len(problems)}, expected one for each of the {len(tokens)} responses")
        verdict = self.game.score(np.array(problems), tokens.cpu().numpy(), mask.bool().cpu().numpy())
        parts = {name: torch.from_numpy(part.astype(np.float32)) for name, part in verdict.items()}
        return Scores(parts.pop("reward"), parts)

    def answers(self, problems: tuple[Any, ...]) -> list[list[int]]:
        """A right response to each problem, as token ids that end with EOS."""
        return self.game.answers(np.array(problems))

    def final(self, ids: list[int]) -> tuple[int, ...] | None:
        """What a response answers: all of it, if it has ended."""
        return tuple(ids) if ids and ids[-1] == EOS else None

    def decode(self, ids: list[int]) -> str:
        """The text of some ids, without the padding and the EOS at its ends; padding inside shows as a space."""
        return to_text(ids, self.game.alphabet)


class ArithmeticTask(ToyTask):
    """Arithmetic in characters; ``numbers`` are those of ``toy_envs.Arithmetic``.

    >>> ArithmeticTask(operations="+-", digits=(1, 3)).max_new_tokens
    5
    """

    def __init__(self, **numbers: Any) -> None:
        super().__init__("arithmetic", Arithmetic(**numbers))


class BanditTask(ToyTask):
    """The contextual bandit over whole responses; ``numbers`` are those of ``toy_envs.Bandit``.

    Both splits hold the same contexts: a table has nothing to generalise to. "test" lists each context once.

    >>> BanditTask(rule="copy", letters=3, max_new_tokens=4).vocab_size
    5
    """

    def __init__(self, **numbers: Any) -> None:
        super().__init__("bandit", Bandit(**numbers))


def _hashable(problem: Any) -> Any:
    return tuple(problem) if isinstance(problem, list) else problem
