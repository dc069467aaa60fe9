"""The toy environments as tasks: the same problems and the same verdicts, in tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sspo_teach.types import Prompts, Scores
from toy_envs.arithmetic import Arithmetic
from toy_envs.text import EOS, PAD, to_text


class ArithmeticTask:
    """Arithmetic in characters; ``numbers`` are those of ``toy_envs.arithmetic.Arithmetic``.

    >>> task = ArithmeticTask(operations="+-", digits=(1, 3))
    """

    name = "arithmetic"
    eos_id = EOS
    pad_id = PAD

    def __init__(self, **numbers: Any) -> None:
        self.game = Arithmetic(**numbers)
        self.vocab_size = len(self.game.alphabet)
        self.max_new_tokens = self.game.max_new_tokens

    def prompts(self, n: int, *, rng: np.random.Generator, split: str = "train", progress: float = 1.0) -> Prompts:
        """n prompts, (n, P) and left-padded; P does not depend on ``progress``.

        "train" draws from ``rng``. "test" leaves it alone and gives the first n of a fixed list of held-out problems,
        no two the same: fewer than n where the list is shorter.
        """
        game = self.game
        problems = game.held_out(n, progress) if split == "test" else game.sample(rng, n, split, progress)
        tokens = torch.from_numpy(game.encode(problems))
        return Prompts(tokens, tokens != PAD, tuple(map(tuple, problems.tolist())))

    def score(self, problems: tuple[Any, ...], tokens: Tensor, mask: Tensor) -> Scores:
        """Score B responses, ``tokens`` and ``mask`` (B, T); the parts are correct, format and finished."""
        verdict = self.game.score(np.array(problems), tokens.cpu().numpy(), mask.bool().cpu().numpy())
        parts = {name: torch.from_numpy(part.astype(np.float32)) for name, part in verdict.items()}
        return Scores(parts.pop("reward"), parts)

    def answers(self, problems: tuple[Any, ...]) -> list[list[int]]:
        """The right response to each problem, as token ids that end with EOS."""
        return self.game.answers(np.array(problems))

    def decode(self, ids: list[int]) -> str:
        """The text of some ids, without the padding and the EOS at its ends; padding inside shows as a space."""
        return to_text(ids, self.game.alphabet)
