"""The few records that travel between rooms: what is rolled out, what a task says, where a formula was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor


class Verified(Enum):
    """Where a formula was read. Everything but ``RECONSTRUCTION`` may be shown as the paper's."""

    PAPER = "read in the paper"
    CODE = "read in the authors' or a reference implementation"
    NOTES = "read in third-party notes of the paper"
    REVIEW = "read in a review that quotes the paper's equations"
    RECONSTRUCTION = "our reconstruction, not the paper's formula"


@dataclass(frozen=True)
class Prompts:
    """A batch of n prompts, left-padded to width P.

    Attributes:
        tokens: (n, P) int64 token ids.
        mask: (n, P) bool, True on real tokens; padding stands on the left.
        problems: n opaque problems, one per prompt; the task reads the right answer from them.
    """

    tokens: Tensor
    mask: Tensor
    problems: tuple[Any, ...]


@dataclass(frozen=True)
class Scores:
    """What a task says of B responses.

    Attributes:
        rewards: (B,) float32, the number that trains.
        parts: name → (B,) float32. Always holds ``correct`` and ``format`` (0 or 1), reported apart from the reward.
    """

    rewards: Tensor
    parts: Mapping[str, Tensor]


class Task(Protocol):
    """A source of prompts and a judge of responses. Bandit, arithmetic and GSM8K differ in nothing else.

    A task holds no changing state: the same ``rng`` and ``progress`` give the same prompts, so resuming needs none.
    """

    name: str
    vocab_size: int
    eos_id: int
    stop_ids: tuple[int, ...]
    pad_id: int
    max_new_tokens: int

    def prompts(self, n: int, *, rng: np.random.Generator, split: str = "train", progress: float = 1.0) -> Prompts:
        """Draw n prompts.

        Args:
            n: how many; fewer may come from "test" where it holds fewer.
            rng: the only source of chance of "train"; "test" is a fixed list.
            split: "train" or "test", disjoint where there is anything to generalise to.
            progress: in [0, 1], drives a curriculum.
        """
        ...

    def score(self, problems: tuple[Any, ...], tokens: Tensor, mask: Tensor) -> Scores:
        """Score B responses: ``problems`` (B), ``tokens`` and ``mask`` (B, T), 1 up to and including the first EOS."""
        ...

    def answers(self, problems: tuple[Any, ...]) -> list[list[int]]:
        """One right response per problem, as token ids that end with EOS (for the supervised warm-up)."""
        ...

    def decode(self, ids: list[int]) -> str:
        """Token ids as the text a person reads."""
        ...


@dataclass(frozen=True)
class Rollout:
    """B responses to some prompts with all that training needs: prompts of P tokens, responses of up to T.

    Attributes:
        tokens: (B, P+T) int64; prompts left-padded to P, responses right-padded to T.
        prompt_mask: (B, P) bool.
        mask: (B, T) bool, True on response tokens up to and including the first EOS.
        logp_old: (B, T) log-probability of each sampled token under the behaviour policy; stored once, never refreshed.
        rewards: (B,) float32.
        group_ids: (B,) int64, which prompt a response answers.
        truncated: (B,) bool, True where no EOS came within T tokens.
        problems: B problems as the task gave them.
        parts: name → (B,) float32, the reward's parts.
        logp_ref: (B, T) under the frozen reference, where a KL term wants it.
        values: (B,) or (B, T) from a critic, where the method has one.
        logp_sampler: (B, T) as the sampler itself gave them, where a scoring pass made ``logp_old``.
    """

    tokens: Tensor
    prompt_mask: Tensor
    mask: Tensor
    logp_old: Tensor
    rewards: Tensor
    group_ids: Tensor
    truncated: Tensor
    problems: tuple[Any, ...] = ()
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    logp_ref: Tensor | None = None
    values: Tensor | None = None
    logp_sampler: Tensor | None = None

    def select(self, rows: Tensor) -> Rollout:
        """The rollout restricted to ``rows`` ((n,) int64 indices or (B,) bool), in that order."""
        index = rows.nonzero().squeeze(1) if rows.dtype == torch.bool else rows
        return Rollout(
            tokens=self.tokens[index],
            prompt_mask=self.prompt_mask[index],
            mask=self.mask[index],
            logp_old=self.logp_old[index],
            rewards=self.rewards[index],
            group_ids=self.group_ids[index],
            truncated=self.truncated[index],
            problems=tuple(self.problems[i] for i in index.tolist()) if self.problems else (),
            parts={name: part[index] for name, part in self.parts.items()},
            logp_ref=None if self.logp_ref is None else self.logp_ref[index],
            values=None if self.values is None else self.values[index],
            logp_sampler=None if self.logp_sampler is None else self.logp_sampler[index],
        )
