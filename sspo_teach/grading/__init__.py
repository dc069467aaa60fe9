"""Checks for the exercises of the lessons: ``check("02.silent", answer)`` in a notebook, a test or a course.

A lesson's exercises stand in ``lesson_NN.EXERCISES``, by name; their full name is ``NN.name``.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from sspo_teach.grading.exercise import Exercise, Verdict
from sspo_teach.tensors import unknown

LESSONS = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name.startswith("lesson_"))


def exercises() -> Mapping[str, Exercise]:
    """Every exercise by its full name."""
    found = {name: import_module(f"{__name__}.{name}").EXERCISES for name in LESSONS}
    return {f"{lesson.removeprefix('lesson_')}.{key}": e for lesson, own in found.items() for key, e in own.items()}


def check(name: str, answer: Any) -> Verdict:
    """Judge the answer to an exercise.

    Args:
        name: full name, such as ``"02.silent"``.
        answer: whatever the exercise asks for: a number, a tensor, a function.

    Returns:
        A verdict, true when the answer is right; a wrong one comes with what is likely wrong.

    Raises:
        ValueError: no exercise has this name.
    """
    return _exercise(name).check(answer)


def hint(name: str, level: int = 1) -> str:
    """The hint of a level, from 1 (a nudge) on; a level beyond the last gives the last."""
    if level < 1:
        raise ValueError(f"level={level}: hints begin at 1")
    hints = _exercise(name).hints
    return hints[min(level, len(hints)) - 1]


def _exercise(name: str) -> Exercise:
    known = exercises()
    if name not in known:
        raise ValueError(unknown("exercise", name, known))
    return known[name]


__all__ = ["LESSONS", "Exercise", "Verdict", "check", "exercises", "hint"]
