"""An exercise is a question with a check that names the likely mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any


@dataclass(frozen=True)
class Verdict:
    """What a check says of an answer: ``passed``, and a message that names what is wrong and where to look."""

    passed: bool
    message: str

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        return f"{'✓' if self.passed else '✗'} {self.message}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        colour = "#009E73" if self.passed else "#D55E00"
        return f'<span style="color:{colour}">{escape(str(self))}</span>'


@dataclass(frozen=True)
class Exercise:
    """A question of a lesson.

    Attributes:
        ask: what is wanted, in a sentence, with the type of the answer.
        judge: the answer → None if it is right, else what is wrong with it. It may raise: that is a wrong answer too.
        praise: what the right answer shows.
        hints: from a nudge to nearly the solution.
    """

    ask: str
    judge: Callable[[Any], str | None]
    praise: str
    hints: tuple[str, ...]

    def check(self, answer: Any) -> Verdict:
        """Judge an answer; ``None`` and ``...`` are none yet."""
        if answer is None or answer is ...:
            return Verdict(False, f"no answer yet: {self.ask}")
        try:
            wrong = self.judge(answer)
        except Exception as error:
            return Verdict(False, f"the check could not use this answer ({type(error).__name__}: {error}); {self.ask}")
        return Verdict(True, self.praise) if wrong is None else Verdict(False, wrong)
