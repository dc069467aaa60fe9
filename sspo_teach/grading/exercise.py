"""An exercise is a question with a check that names the likely mistake."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from html import escape
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent.parent
LONGEST = 80
"""Characters of an answer, or of an error that it raised, that a message quotes."""


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
        function = self.ask.startswith("a function")
        if function is not callable(answer):
            what = f"{short(answer)} is not a function" if function else "this is a function: give what it returns"
            return Verdict(False, f"{what}; wanted: {self.ask}")
        try:
            wrong = self.judge(answer)
        except Exception as error:
            what = self._failing(answer, error) if function else _unusable(answer, error)
            return Verdict(False, f"{what}; wanted: {self.ask}")
        return Verdict(True, self.praise) if wrong is None else Verdict(False, wrong)

    def _failing(self, function: Callable[..., Any], error: Exception) -> str:
        """What went wrong with a function, which is judged again to see what it returns."""
        returned: list[Any] = []

        @wraps(function)
        def recorded(*given: Any, **named: Any) -> Any:
            returned.append(found := function(*given, **named))
            return found

        if _raised_in(function, error):
            return f"your function fails with {type(error).__name__}: {short(error)}"
        with suppress(Exception):
            self.judge(recorded)
        if not returned:
            return f"your function cannot be called as the check does: {short(error)}"
        if returned[-1] is None or returned[-1] is ...:
            return "your function returned nothing: does it end in a return?"
        if _on_purpose(error):
            return short(error)
        return f"your function returned {short(repr(returned[-1]))}, which the check cannot use"


def short(thing: Any) -> str:
    """``thing`` in at most 80 characters, its middle left out."""
    text = " ".join(str(thing).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2 - 1]} … {text[-LONGEST // 2 + 2 :]}"


def _unusable(answer: Any, error: Exception) -> str:
    """What keeps a check from using an answer, in words for someone who did not write the check."""
    if _on_purpose(error):
        return str(error)
    if isinstance(answer, str):
        return f"{short(repr(answer))} is text"
    if isinstance(answer, float) and not math.isfinite(answer):
        return f"{answer} is no number to count with"
    if isinstance(answer, int | float):
        return f"{short(answer)} is one number"
    try:
        count = len(answer)
    except TypeError:
        return f"an answer of type {type(answer).__name__} cannot be judged"
    return f"this answer, {short(answer)}, holds {count} value{'s' * (count != 1)}, and not those asked for"


def _on_purpose(error: Exception) -> bool:
    """Whether the package raised it, for a reader, and not Python while it handled the answer."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return Path(last.filename).is_relative_to(PACKAGE) and (last.line or "").startswith("raise")


def _raised_in(function: Callable[..., Any], error: Exception) -> bool:
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is getattr(function, "__code__", None) for frame, _ in frames)
