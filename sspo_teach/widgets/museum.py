"""The bug museum's guide: choose an exhibit, move a ratio, and see what the bug does to the weight there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from sspo_teach.checks import check_objective
from sspo_teach.plotting.museum import weight_curves
from sspo_teach.tensors import unknown

Objective = Callable[..., Tensor]


def guide(exhibits: Mapping[str, tuple[Objective, Objective]]) -> Callable[..., Any]:
    """``draw(figure, *, exhibit, log2_ratio)`` for ``panel``.

    Args:
        exhibits: name → (broken objective, right objective); the laws that the broken one breaks stand in the title.
    """

    @cache
    def verdict(exhibit: str) -> str:
        broken = check_objective(exhibits[exhibit][0]).broken
        return ", ".join(f"“{law}”" for law in broken) or "none: these laws do not see it"

    def draw(figure: Figure, *, exhibit: str, log2_ratio: float) -> None:
        if exhibit not in exhibits:
            raise ValueError(unknown("exhibit", exhibit, exhibits))
        broken, right = exhibits[exhibit]
        weight_curves(
            {"broken": broken, "right": right},
            title=f"{exhibit} – laws broken: {verdict(exhibit)}",
            figure=figure,
            mark=2.0**log2_ratio,
        )

    return draw
