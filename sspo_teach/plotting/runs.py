"""Figures of training runs: what was learnt, and whether the gate was tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from sspo_teach.plotting.style import COLOURS, looks

WAYS = {"greedy": "greedy", "sampled": "sampled (T = {temperature:g})"}


def learning_curve(
    history: Sequence[Mapping[str, float]],
    evaluations: Sequence[Mapping[str, Any]],
    *,
    title: str = "",
    temperature: float = 1.0,
) -> Figure:
    """What was learnt (left), and whether the gate was tested while learning it (right).

    Args:
        history: rows of history.csv as numbers.
        evaluations: entries of evaluation.json: step, greedy, sampled.
        title: stands above both.
        temperature: of the sampled evaluation, for its label.
    """
    figure = Figure(figsize=(9.6, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    accuracy(left, history, evaluations, temperature=temperature)
    gate_activity(right, history)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    return figure


def accuracy(
    axes: Axes,
    history: Sequence[Mapping[str, float]],
    evaluations: Sequence[Mapping[str, Any]],
    *,
    temperature: float = 1.0,
) -> None:
    """Share of held-out problems solved, with 95 % Wilson bands, over the training samples' own share."""
    if history:
        steps = [row["step"] for row in history]
        axes.plot(steps, [row["correct"] for row in history], color="0.78", lw=1, label="training samples", zorder=1)
    steps = [entry["step"] for entry in evaluations]
    for (way, label), colour in zip(WAYS.items(), COLOURS, strict=False):
        shares = [entry[way]["correct"] for entry in evaluations]
        low, high = ([share[end] for share in shares] for end in ("low", "high"))
        axes.plot(
            steps, [share["share"] for share in shares], "o-", ms=3.5, color=colour,
            label=f"held out, {label.format(temperature=temperature)}",
        )  # fmt: skip
        axes.fill_between(steps, low, high, color=colour, alpha=0.15, lw=0)
    _share_axis(axes, "solved")


def gate_activity(axes: Axes, history: Sequence[Mapping[str, float]]) -> None:
    """How far ratios moved within an iteration, and how much signal the gate took away."""
    steps = [row["step"] for row in history]
    lines = {
        "moved": "tokens with |ρ − 1| > 0.1",
        "removed_extending": "signal removed, extending tokens",
        "removed_corrective": "signal removed, corrective tokens",
    }
    for (name, label), colour in zip(lines.items(), COLOURS[2:], strict=False):
        axes.plot(steps, [row[name] for row in history], color=colour, lw=1.2, label=label)
    axes.axhline(0, color="0.8", lw=0.8, zorder=0)
    axes.set_xlabel("iteration")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("share")
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.3g}%")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small")


def comparison(runs: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> Figure:
    """Methods side by side: mean over seeds as a line, the range of the seeds as a band.

    Args:
        runs: method → for each seed, its evaluations.
    """
    figure = Figure(figsize=(9.6, 3.8), layout="constrained")
    last = [seed[-1] for seeds in runs.values() for seed in seeds]
    by_tokens = len({entry["step"] for entry in last}) > 1 and all("tokens" in entry for entry in last)
    for axes, (way, label) in zip(figure.subplots(1, 2, sharey=True), WAYS.items(), strict=True):
        for name, seeds in runs.items():
            look = looks(runs)[name]
            least = min(map(len, seeds))
            met = [[*seed[: least - 1], seed[-1]] for seed in seeds]  # each ends with its last evaluation
            x = np.array([[entry["tokens" if by_tokens else "step"] for entry in seed] for seed in met]).mean(0)
            shares = np.array([[entry[way]["correct"]["share"] for entry in seed] for seed in met])
            axes.plot(x, shares.mean(0), **look, label=name)
            axes.fill_between(x, shares.min(0), shares.max(0), color=look["color"], alpha=0.15, lw=0)
        n = len(next(iter(runs.values())))
        _share_axis(axes, "held-out problems solved")
        if by_tokens:
            _token_axis(axes)
        axes.set_title(label.format(temperature=1.0) + f", mean and range of {n} seeds", fontsize="medium", loc="left")
    return figure


def probed(histories: Mapping[str, Sequence[Sequence[Mapping[str, float]]]]) -> Figure:
    """Norm of the gradient on fixed prompts, and how far those prompts disagree, against the tokens spent.

    Args:
        histories: method → for each seed, the rows of its history; rows without a look at the gradient are passed over.
            A line is the mean over seeds, a band their range.
    """
    figure = Figure(figsize=(9.6, 3.8), layout="constrained")
    panels = {"probe_norm": "norm of the mean gradient", "probe_noise": "variance over squared norm"}
    for axes, (column, label) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for name, seeds in histories.items():
            seen = [[row for row in seed if np.isfinite(row[column])] for seed in seeds]
            least = min(map(len, seen))
            if not least:
                continue
            x, y = (np.array([[row[c] for row in seed[:least]] for seed in seen]) for c in ("tokens", column))
            look = looks(histories)[name]
            axes.plot(x.mean(0), y.mean(0), **look, label=name)
            axes.fill_between(x.mean(0), y.min(0), y.max(0), color=look["color"], alpha=0.15, lw=0)
        axes.set_ylabel(label)
        axes.set_yscale("log")
        axes.grid(axis="y", color="0.92")
        axes.spines[["top", "right"]].set_visible(False)
        _token_axis(axes)
    axes.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    figure.suptitle("The gradient on the same prompts, right after the updates", x=0.01, ha="left", fontweight="bold")
    return figure


def _token_axis(axes: Axes) -> None:
    axes.set_xlabel("sampled tokens")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(lambda n, _: f"{n:,.0f}")


def _share_axis(axes: Axes, label: str) -> None:
    axes.set_xlabel("iteration")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel(label)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(axis="y", color="0.92")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small")
