"""Arithmetic in words, for pretrained models: "What is 17 + 5?"."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from sspo_teach.tasks.answers import MAX_DIGITS
from sspo_teach.tasks.text import TextProblem, TextTask
from toy_envs.arithmetic import OPERATIONS, Arithmetic

_COMPUTE = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_NUMBER = re.compile(r"(?<![0-9A-Za-z.])-?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?")
_TERSE = re.compile(r"\s*-?[0-9]+\.?\s*")


class ArithmeticTextTask(TextTask):
    """Sums of small numbers through the chat template; the *last* number of the response is its answer.

    Three parts tell what was learnt apart. ``correct``: the last number is right. ``format``: the response is a number
    and nothing else, but for a full stop. ``finished``: it ended by itself. A model that learns to be brief gains
    format and finished; one that learns to add gains correct among the finished. The reward is ``correct``: saying more
    costs nothing, except where it ends with another number or never reaches one.

    Every problem is known and lies in one split by a hash that is the same everywhere; a+b and b+a share a side.
    """

    name = "arithmetic-text"

    def __init__(
        self,
        tokenizer: Any,
        *,
        operands: tuple[int, int] = (1, 19),
        operation: str = "+",
        test_share: float = 0.25,
        system: str = "",
        prompt_format: str = "auto",
        shots: int = 0,
        max_new_tokens: int = 12,
        format_reward: float = 0.0,
        stop_ids: Sequence[int] = (),
    ) -> None:
        least, most = operands
        if operation not in _COMPUTE:
            raise ValueError(f'operation must be one of "+", "-" and "*", got {operation!r}')
        if not 0 <= least <= most < 10**9 or most - least >= 1000:
            raise ValueError(
                f"operands must be (least, most), 0 <= least <= most and at most 1000 numbers, got {operands}"
            )
        numbers = np.arange(least, most + 1)
        pairs = np.stack(np.meshgrid(numbers, [OPERATIONS.index(operation)], numbers, indexing="ij"), -1).reshape(-1, 3)
        held_out = Arithmetic(operations=operation, test_share=test_share).is_test(pairs)
        # the test list is read from its start, so it must not be in order of size
        test = np.random.default_rng(0).permutation(pairs[held_out])
        problems = {
            split: [_problem(left, operation, right) for left, _, right in rows.tolist()]
            for split, rows in {"train": pairs[~held_out], "test": test}.items()
        }
        if not all(problems.values()):
            raise ValueError(
                f"test_share={test_share} leaves a split of {operands} empty; take more operands or another share"
            )
        super().__init__(
            tokenizer,
            problems,
            system=system,
            prompt_format=prompt_format,
            shots=shots,
            max_new_tokens=max_new_tokens,
            format_reward=format_reward,
            stop_ids=stop_ids,
        )

    def judge(self, problem: TextProblem, text: str) -> tuple[bool, bool]:
        """(the last number is right, the text is a number alone)."""
        return self.final_of(text) == problem.answer, _TERSE.fullmatch(text.replace("−", "-")) is not None

    def final_of(self, text: str) -> Fraction | None:
        """The last number in the text."""
        numbers = _NUMBER.findall(text.replace("−", "-"))
        return Fraction(numbers[-1].replace(",", "")) if numbers and len(numbers[-1]) <= MAX_DIGITS else None


def _problem(left: int, operation: str, right: int) -> TextProblem:
    answer = _COMPUTE[operation](left, right)
    return TextProblem(f"What is {left} {operation} {right}?", Fraction(answer), str(answer))
