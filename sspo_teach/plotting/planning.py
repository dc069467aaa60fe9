"""Figures of what a run on one GPU needs and what it brings: memory by moment, shares before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sspo_teach.plotting.style import COLOURS, looks
from sspo_teach.tensors import unknown

ITEMS = {
    "weights": COLOURS[0],
    "optimizer": COLOURS[5],
    "reference": COLOURS[3],
    "gradients": COLOURS[2],
    "activations": COLOURS[4],
    "keys and values": COLOURS[6],
    "logits": COLOURS[1],
    "allowance": "0.8",
}
"""What holds memory, in the order in which it is stacked, each in a colour of its own."""
MOMENTS = (
    "generation: prompts",
    "generation: last token",
    "scoring: layer",
    "scoring: projection",
    "training: forward",
    "training: projection",
    "training: last layer",
    "training: first layer",
    "training: embedding",
    "training: optimizer step",
)
GIGA = 1e9


def memory(
    moments: Mapping[str, Mapping[str, int]], *, budget: int, title: str, figure: Figure | None = None
) -> Figure:
    """Bytes by item at each moment of an iteration, stacked, beside what the device has.

    Args:
        moments: of ``MOMENTS`` → item of ``ITEMS`` → bytes; a moment that is missing stays empty.
        budget: bytes of the device.
        title: the finding.
        figure: one that this function has drawn before: its bars are moved.

    Raises:
        ValueError: a moment or an item that has no place in the figure; without it the bars would say too little.
    """
    for moment, items in moments.items():
        for what, name, known in (("moment", moment, MOMENTS), *(("item", item, ITEMS) for item in items)):
            if name not in known:
                raise ValueError(unknown(what, name, known))
    if figure is None or not figure.axes:
        figure = figure or Figure(figsize=(8.6, 4.0), layout="constrained")
        axes = figure.subplots()
        for name, colour in ITEMS.items():
            for bar in axes.barh(range(len(MOMENTS)), [0] * len(MOMENTS), color=colour, label=name, height=0.72):
                bar.set_gid(name)
        axes.axvline(0, color="black", lw=1.6, gid="budget")
        axes.set_yticks(range(len(MOMENTS)), MOMENTS)
        axes.set_ylim(len(MOMENTS) - 0.5, -0.5)
        axes.set_xlabel("memory, GB (10⁹ bytes); the black line is the device")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    axes = figure.axes[0]
    start = np.zeros(len(MOMENTS))
    bars = {name: [bar for bar in axes.patches if bar.get_gid() == name] for name in ITEMS}
    for name in ITEMS:
        for row, moment in enumerate(MOMENTS):
            size = moments.get(moment, {}).get(name, 0) / GIGA
            bars[name][row].set(x=start[row], width=size)
            start[row] += size
    line = next(line for line in axes.get_lines() if line.get_gid() == "budget")
    line.set_xdata([budget / GIGA] * 2)
    axes.set_xlim(0, 1.08 * max(start.max(), budget / GIGA))
    axes.set_title(title, loc="left", fontsize="medium", fontweight="bold")
    return figure


def before_and_after(
    first: Mapping[str, Any], last: Mapping[str, Any], parts: Mapping[str, str], *, title: str
) -> Figure:
    """Shares with their 95 % Wilson intervals before and after training, greedy and sampled.

    Args:
        first, last: evaluations, with ``greedy`` and ``sampled``.
        parts: name of a share in them → what it is called.
        title: the finding.
    """
    figure = Figure(figsize=(8.4, 1.5 + 0.5 * len(parts)), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize="medium", fontweight="bold")
    for axes, way in zip(figure.subplots(1, 2, sharey=True, sharex=True), ("greedy", "sampled"), strict=True):
        for evaluation, colour, shift, label in ((first, "0.55", -0.14, "before"), (last, COLOURS[0], 0.14, "after")):
            shares = [evaluation[way][part] for part in parts]
            middle = np.array([100 * (share["share"] or 0) for share in shares])
            low, high = (np.array([100 * share[end] for share in shares]) for end in ("low", "high"))
            place = np.arange(len(parts)) + shift
            error = np.maximum([middle - low, high - middle], 0)
            axes.errorbar(middle, place, xerr=error, fmt="o", color=colour, capsize=3, label=label)
        axes.set_title(way, loc="left", fontsize="medium")
        axes.set_yticks(range(len(parts)), list(parts.values()))
        axes.set(xlim=(0, 100), ylim=(len(parts) - 0.5, -0.5), xlabel="share of held-out problems, %")
        axes.grid(axis="x", color="0.92")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[1].legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def training_rewards(histories: Mapping[str, Sequence[Mapping[str, float]]], key: str, *, title: str, ylabel: str,
                     window: int = 5) -> Figure:  # fmt: skip
    """One column of several histories over iterations: thin as it was, thick as a running mean.

    Args:
        histories: method → rows of its history.csv.
        key: the column.
        title: the finding.
        ylabel: what the column is, with its unit.
        window: iterations of the running mean.
    """
    figure = Figure(figsize=(7.6, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, rows in histories.items():
        look = {**looks(histories, dots=False)[name]}
        steps, y = (np.array([row[k] for row in rows]) for k in ("step", key))
        axes.plot(steps, y, color=look["color"], alpha=0.25, lw=0.8)
        wide = min(window, len(y))
        smooth = np.convolve(y, np.ones(wide) / wide, mode="valid")
        axes.plot(steps[wide - 1 :], smooth, **look, lw=2, label=name)
    axes.set(xlabel="iteration", ylabel=ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(title, loc="left", fontsize="medium", fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    return figure
