"""Figures of contrastive objectives and critics: who is pushed how hard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from sspo_teach.plotting.style import looks

Array = NDArray[np.float64]


def pulls(
    figure: Figure,
    scores: Sequence[float],
    right: Sequence[bool],
    weights: Mapping[str, Sequence[float]],
    *,
    title: str,
) -> None:
    """How hard each method pushes each response of one group, as bars above or below the responses' scores.

    Args:
        figure: an empty one, or one drawn by this function before with as many responses and methods.
        scores: of the responses, mean log π per token.
        right: which of them are right.
        weights: method → push on each response; positive raises its likelihood.
        title: says the finding.
    """
    n, width = len(scores), 0.8 / len(weights)
    if not figure.axes:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
        for k, (name, look) in enumerate(looks(weights).items()):
            at = np.arange(n) + (k - (len(weights) - 1) / 2) * width
            above.bar(at, np.zeros(n), width * 0.92, color=look["color"], label=name)
        below.scatter(np.arange(n), np.zeros(n), s=60, c=["#009E73" if good else "#D55E00" for good in right], zorder=3)
        above.axhline(0, color="0.5", lw=0.8)
        above.set(ylim=(-1.05, 1.05), yticks=(-1, -0.5, 0, 0.5, 1), ylabel="push, of the total\nto one side")
        below.set(ylim=(-2.6, 0), yticks=(-2, -1, 0), ylabel="score s,\nnats per token")
        below.grid(axis="y", color="0.92")
        count = {good: iter(range(1, n + 1)) for good in (True, False)}
        names = [f"{'right' if good else 'wrong'} {next(count[bool(good)])}" for good in right]
        below.set_xticks(range(n), names)
        for axes in (above, below):
            axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside lower center", ncols=len(weights), frameon=False, fontsize=9)
    above, below = figure.axes
    bars = iter(above.patches)
    for own in weights.values():
        for weight in own:
            next(bars).set_height(float(weight))  # type: ignore[attr-defined]
    below.collections[0].set_offsets(np.column_stack([np.arange(n), scores]))
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")


def push_by_rate(rates: Array, curves: Mapping[str, Array], *, title: str = "") -> Figure:
    """The size of a prompt's push over its success rate; one curve per method.

    Args:
        rates: (n,) success rates.
        curves: method → (n,), what multiplies the gap between right and wrong.
        title: says the finding.
    """
    figure = Figure(figsize=(7.6, 3.8), layout="constrained")
    axes = figure.subplots()
    for (name, own), look in zip(curves.items(), looks(curves, dots=False).values(), strict=True):
        axes.plot(rates, own, **look, lw=2, label=name)
    axes.set(xlabel="success rate p of the prompt", ylabel="factor of the gap s̄₊ − s̄₋", ylim=(0, 0.6), xlim=(0, 1))
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(curves), frameon=False, fontsize=9)
    return figure


def critic_learns(histories: Mapping[str, Sequence[Mapping[str, Any]]], *, title: str = "") -> Figure:
    """Rewards of several runs (left), and how much of the rewards' variance the critic foresaw (right).

    Args:
        histories: name → rows of history.csv; those without a critic have no explained_variance.
        title: says the finding.
    """
    figure = Figure(figsize=(9.6, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for (name, history), look in zip(histories.items(), looks(histories, dots=False).values(), strict=True):
        steps = [row["step"] for row in history]
        left.plot(steps, [row["reward"] for row in history], **look, label=name)
        told = [row.get("explained_variance", np.nan) for row in history]
        if np.isfinite(told).any():
            right.plot(steps, np.clip(told, -1, 1), **look)
    right.axhline(0, color="0.8", lw=0.8, zorder=0)
    left.set(xlabel="iteration", ylabel="mean reward of the samples", ylim=(0, 1))
    right.set(xlabel="iteration", ylabel="variance foreseen by the critic", ylim=(-0.5, 1))
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, fontsize=9)
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=11)
    return figure
