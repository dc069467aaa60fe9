"""The figure of the first lesson: what a loop has learnt, and how far its data had aged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sspo_teach.plotting.style import COLOURS


def one_page(rewards: Mapping[str, Sequence[float]], moved: Sequence[float], figure: Figure | None = None) -> Figure:
    """Mean reward over the batches of one or more runs; beside it, |ρ − 1| at each update of a batch.

    Args:
        rewards: name of a run → mean reward of each batch.
        moved: mean |ρ − 1| of the tokens just before each update of a batch, of the first run.
        figure: empty, to draw in; a new one by default.
    """
    figure = figure or Figure(figsize=(8.4, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    for (name, own), colour in zip(rewards.items(), COLOURS, strict=False):
        left.plot(range(1, len(own) + 1), own, color=colour, label=name)
    first = next(iter(rewards.values()))
    left.set_title(f"Reward rises from {first[0]:.2f} to {first[-1]:.2f}", loc="left", fontsize=11)
    left.set(xlabel="batch", ylabel="mean reward of the samples", ylim=(0, 1.02))
    if len(rewards) > 1:
        left.legend(frameon=False, fontsize=9, loc="lower right")
    right.bar(range(1, len(moved) + 1), moved, color=COLOURS[0], width=0.6)
    right.set_title("The first update is on-policy, the last is not", loc="left", fontsize=11)
    right.set(xlabel="update on the same batch", ylabel="mean |ρ − 1|")
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure
