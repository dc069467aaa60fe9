"""Figures of policy gradients: estimators around the truth, baselines, dead groups, stale data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from sspo_teach.plotting.redraw import curve, level, settled, sheet, upright
from sspo_teach.plotting.style import COLOURS, looks

RATES = np.linspace(0.001, 0.999, 250)
SIZES = (2, 4, 8, 16, 64)


def dead_share(rate: Any, group: Any) -> Any:
    """P(all rewards of a group are equal) = pᴳ + (1 − p)ᴳ for success rate p."""
    return rate**group + (1 - rate) ** group


def group_needed(rate: float, share: float) -> int:
    """The smallest G ≥ 2 with no more than ``share`` dead groups at success rate ``rate`` in (0, 1).

    Raises:
        ValueError: a rate or share that no group reaches.
    """
    for name, value in (("rate", rate), ("share", share)):
        if not 0 < value < 1:
            raise ValueError(f"{name}={value}: must lie strictly between 0 and 1, or every group is dead")
    group = 2
    while dead_share(rate, group) > share:
        group += 1
    return group


def dead_groups(figure: Figure | None = None, *, rate: float = 0.18, group: int = 8, prompts: int = 128) -> Figure:
    """The share of groups without signal over the success rate (left) and the group size (right).

    Args:
        figure: one that this function drew, to change in place.
        rate: p, the chance that a response is right.
        group: G.
        prompts: per batch, to count in.
    """
    figure, (left, right) = sheet(figure, (9.6, 3.8), 1, 2, sharey=True)
    share = dead_share(rate, group)
    for i, size in enumerate(SIZES):
        curve(left, f"{size}", RATES, dead_share(RATES, size), color=COLOURS[i], lw=1.2, label=f"G = {size}")
    curve(left, "group", RATES, dead_share(RATES, group), color="0.15", lw=2.4, ls="--", label="yours")
    curve(left, "here", [rate], [share], color="0.15", marker="o", ms=8, ls="")
    sizes = np.arange(2, 65)
    curve(right, "sizes", sizes, dead_share(rate, sizes), color="0.15", lw=2.4, ls="--")
    curve(right, "here", [group], [share], color="0.15", marker="o", ms=8, ls="")
    level(right, "tenth", 0.1, color="#D55E00", lw=1, ls=":")
    needed = group_needed(rate, 0.1)
    left.set_title(f"p = {rate:.2f}, G = {group}: {share:.0%} dead, {prompts * share:.0f} of {prompts} groups",
                   loc="left", fontsize=11)  # fmt: skip
    right.set_title(f"at p = {rate:.2f}, G = {needed} leaves {dead_share(rate, needed):.1%}", loc="left", fontsize=11)
    left.set(xlabel="success rate p of the prompt", ylabel="share of dead groups", ylim=(0, 1.02), xlim=(0, 1))
    right.set(xlabel="group size G", xlim=(0, 65))
    left.legend(frameon=False, fontsize=9, loc="upper center", ncols=2)
    return settled(figure)


def spread_along(
    figure: Figure | None = None, *, draws: Mapping[str, np.ndarray], chances: np.ndarray, truth: float
) -> Figure:
    """How one sample's gradient scatters along the true one: same mean, other spread.

    Args:
        figure: one that this function drew, to change in place.
        draws: estimator → (n,) projections on the direction of the true gradient, one per response.
        chances: (n,) of the responses, adding up to 1.
        truth: norm of the true gradient, where the mean of an unbiased estimator stands.
    """
    figure, panels = sheet(figure, (8.4, 1.5 * len(draws) + 0.8), len(draws), 1, sharex=True)
    every = np.concatenate(list(draws.values()))
    bins = np.linspace(every.min(), every.max(), 61).tolist()
    for i, (axes, (name, own)) in enumerate(zip(panels, draws.items(), strict=True)):
        mean = float(chances @ own)
        spread = float(chances @ (own - mean) ** 2) ** 0.5
        axes.hist(own, bins, weights=chances, color=COLOURS[i], alpha=0.8)
        upright(axes, "mean", mean, color="0.1", lw=1.5, ls="--")
        axes.set_title(f"{name}: mean {mean:.4f}, standard deviation {spread:.3f}", loc="left", fontsize=11)
        axes.set(yscale="log", ylabel="chance", yticks=[0.001, 0.1], yticklabels=["0.001", "0.1"])
        axes.set_yticks([], minor=True)
    panels[-1].set_xlabel(f"gradient of one response along ∇J; dashed: its mean, |∇J| = {truth:.4f} where unbiased")
    return settled(figure)


def baseline_parabola(
    figure: Figure | None = None, *, baselines: np.ndarray, variance: np.ndarray, marks: Mapping[str, float]
) -> Figure:
    """The variance of (R − b) ∇log π over the baseline b.

    Args:
        figure: one that this function drew, to change in place.
        baselines: (n,) b.
        variance: (n,) trace of the covariance at each.
        marks: name → a baseline to mark.
    """
    figure, (axes,) = sheet(figure, (7.4, 3.6))
    curve(axes, "variance", baselines, variance, color="#0072B2", lw=2)
    for i, (name, at) in enumerate(marks.items()):
        height = float(np.interp(at, baselines, variance))
        curve(axes, name, [at], [height], color=COLOURS[i + 1], marker="o", ms=8, ls="", label=f"{name}: {at:.3f}")
    axes.set_title("Every baseline gives the same mean; one gives the least variance", loc="left", fontsize=11)
    axes.set(xlabel="baseline b", ylabel="variance of one sample", ylim=(0, None))
    axes.legend(frameon=False, fontsize=9)
    return settled(figure)


def bias_and_noise(figure: Figure | None = None, *, rows: Sequence[Mapping[str, Any]], batch: int) -> Figure:
    """Bias and noise of estimators as the data grow stale, both relative to ‖∇J‖.

    Args:
        figure: one that this function drew, to change in place.
        rows: with method, distance, truth, bias and trace.
        batch: groups per batch, for the noise √(trace/batch).
    """
    figure, (left, right) = sheet(figure, (9.6, 3.8), 1, 2)
    names = list(dict.fromkeys(row["method"] for row in rows))
    look = looks(names)
    for name in names:
        own = [row for row in rows if row["method"] == name]
        distance = [row["distance"] for row in own]
        curve(left, name, distance, [row["bias"] / row["truth"] for row in own], **look[name], lw=2, label=name)
        curve(right, name, distance, [(row["trace"] / batch) ** 0.5 / row["truth"] for row in own], **look[name], lw=2)
    left.set_title("Bias: only the whole response's weight stays at 0", loc="left", fontsize=11)
    right.set_title("Noise: and it pays for that", loc="left", fontsize=11)
    left.set_ylabel("|E[ĝ] − ∇J| / |∇J|")
    right.set_ylabel(f"noise of {batch} groups / |∇J|")
    for axes in (left, right):
        axes.set(xlabel="KL(old ‖ new), nats per response", ylim=(0, None))
    left.legend(frameon=False, fontsize=9)
    return settled(figure)


def group_advantages(figure: Figure | None = None, *, advantages: Mapping[str, np.ndarray], right: int) -> Figure:
    """What a convention makes of one group: the advantage of each response, right answers first.

    Args:
        figure: one that this function drew, to change in place.
        advantages: convention → (G,).
        right: how many of the responses are right.
    """
    figure, (axes,) = sheet(figure, (7.8, 3.6))
    for i, (name, own) in enumerate(advantages.items()):
        place = np.arange(1, len(own) + 1) + 0.12 * (i - len(advantages) / 2)
        curve(axes, name, place, own, color=COLOURS[i % 7], marker="os^Dv"[i % 5], ms=6, ls="", label=name)
    level(axes, "zero", 0, color="0.85", lw=0.8, zorder=0)
    axes.set_title(f"{right} right of {len(own)}: one group, {len(advantages)} conventions", loc="left", fontsize=11)
    axes.set(xlabel="response, right ones first", ylabel="advantage")
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    return settled(figure)
