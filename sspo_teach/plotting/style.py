"""One look per method in every figure of the project: colour, line and dot, told apart by any colour vision."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from sspo_teach.catalog import METHODS

# Okabe & Ito's palette: told apart by readers with any colour vision
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", ":")  # for the methods that no colour is left for
DOTS = ("o", "s", "^")  # and for those that no line is left for
LOOKS = len(COLOURS) * len(LINES) * len(DOTS)
FIRST = ("sspo", "grpo", "gmpo", "sapo", "gspo", "cispo", "sequence_is")
"""These have a colour of their own; the others follow in the order of METHODS."""
PLACE = {name: i for i, name in enumerate([*FIRST, *(name for name in METHODS if name not in FIRST)])}


def looks(names: Collection[str], *, dots: bool = True) -> dict[str, dict[str, Any]]:
    """Keyword arguments of ``plot`` for each name, no two alike.

    A method looks the same in all figures, as long as colours and lines (and dots, unless they are off) suffice to tell
    it from the others beside it. What is no method (a gate, a preset beside its method) takes what is free.
    """
    different = LOOKS if dots else len(COLOURS) * len(LINES)
    taken: dict[str, int] = {}
    for name in sorted(names, key=lambda name: PLACE.get(name, LOOKS)):  # those with a place of their own come first
        base = PLACE.get(name.partition(":")[0])
        own = () if base is None or name not in PLACE else (base % different,)
        turns = () if base is None else range(base % len(COLOURS), different, len(COLOURS))
        free = (i for i in (*own, *turns, *range(different)) if i not in taken.values())
        taken[name] = next(free, 0)
    return {name: _look(taken[name], dots=dots) for name in names}


def _look(i: int, *, dots: bool) -> dict[str, Any]:
    around, turn = i % len(COLOURS), i // len(COLOURS)
    dot = {"marker": DOTS[turn // len(LINES) % len(DOTS)], "ms": 3.5} if dots else {}
    return {"color": COLOURS[around], "ls": LINES[turn % len(LINES)], **dot}


def save(figure: Figure, path: str | Path) -> Path:
    """Write a PNG and return its path."""
    path = Path(path)
    figure.savefig(path, dpi=144)
    return path
