"""Figures of lesson 06: the frontier of bias and noise at one place, for a few methods or for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from sspo_teach.plotting.style import FIRST, looks

Rows = Sequence[Mapping[str, Any]]


def laboratory(figure: Figure, rows: Rows, errors: Mapping[str, float], *, distance: float, batch: int) -> None:
    """Where each method stands between bias and noise at one distance (left), and what the two cost together (right).

    Args:
        figure: an empty one, or one drawn by this function before with the same methods, which is brought up to date.
        rows: of one drift, with method, distance, bias and noise, in the order of the distances.
        errors: method → squared error of the step at this distance and batch.
        distance: KL(old ‖ new), the place that is marked; the way to it is a line.
        batch: groups in a batch; noise is √(noise/batch).
    """
    names = list(errors)
    if not figure.axes:
        _begin(figure, names)
    left, right = figure.axes
    for name, way, here in zip(names, left.lines[::2], left.lines[1::2], strict=True):
        own = [row for row in rows if row["method"] == name and row["distance"] <= distance]
        x, y = [(row["noise"] / batch) ** 0.5 for row in own], [row["bias"] for row in own]
        way.set_data(x, y)
        here.set_data(x[-1:], y[-1:])
    for bar, name in zip(right.patches, names, strict=True):
        bar.set_width(errors[name])  # type: ignore[attr-defined]
    for text, name in zip(right.texts, names, strict=True):
        inside = errors[name] > 0.86
        text.set(
            x=min(errors[name], 1.0) + (-0.02 if inside else 0.02), ha="right" if inside else "left",
            color="white" if inside else "black", text=f"{errors[name]:.2f}",
        )  # fmt: skip
    least = min(errors.values())
    best = [name for name in names if errors[name] <= 1.01 * least]
    who = f"{best[0]} has" if len(best) == 1 else f"{len(best)} methods share"
    figure.suptitle(
        f"KL(old ‖ new) = {distance:g}, {batch} groups: {who} the least error, {least:.2f}",
        x=0.01, ha="left", fontsize=11, fontweight="bold",
    )  # fmt: skip


def _begin(figure: Figure, names: Sequence[str]) -> None:
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    for look in looks(names, dots=False).values():
        left.plot([], [], **look, lw=1.3, alpha=0.6)
        left.plot([], [], "o", color=look["color"], ms=8)
    right.barh(range(len(names)), [0.0] * len(names), color=[look["color"] for look in looks(names).values()])
    for i in range(len(names)):
        right.text(0, i, "", va="center", fontsize=9)
    right.set_yticks(range(len(names)), names)
    right.invert_yaxis()
    right.set(xlim=(0, 1), xlabel="squared error of the step: 0 exact, 1 none")
    left.set(xscale="log", xlim=(0.03, 12), ylim=(-0.03, 1.05))
    left.set_xticks([0.1, 1, 10], ["0.1", "1", "10"])
    left.xaxis.set_minor_locator(NullLocator())
    left.set(xlabel="noise, relative to |∇J|", ylabel="bias of the direction, relative to |∇J|")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)


def all_methods(rows: Rows, *, batch: int, title: str = "") -> Figure:
    """Every method at one place; those that no other beats in both bias and noise are joined, and named where it fits.

    Args:
        rows: of one drift and distance, with method, bias and noise.
        batch: groups in a batch.
        title: says the finding.
    """
    figure = Figure(figsize=(8.6, 5), layout="constrained")
    axes = figure.subplots()
    at = {row["method"]: ((row["noise"] / batch) ** 0.5, row["bias"]) for row in rows}
    front = sorted(unbeaten(at), key=lambda name: at[name])
    colours = looks(FIRST)
    for name, (x, y) in at.items():
        colour = colours[name]["color"] if name in colours else "0.65"
        axes.plot([x], [y], "o", color=colour, ms=8 if name in colours else 5, zorder=3 if name in colours else 2)
    axes.plot(*zip(*(at[name] for name in front), strict=True), color="0.4", lw=1, ls="--", zorder=1)
    axes.set(xscale="log", ylim=(-0.03, 1.03))
    for name in dict.fromkeys([*(name for name in FIRST if name in at), *front]):
        if name in CLOSE:  # they stand close together: names to the left, each with a line
            colour = colours[name]["color"]
            line = {"arrowstyle": "-", "color": colour, "lw": 0.8}
            axes.annotate(
                name, at[name], (-52, CLOSE[name]), textcoords="offset points", fontsize=9, ha="right", va="center",
                color=colour, arrowprops=line,
            )  # fmt: skip
        elif name in colours or _has_room(name, at):
            colour = colours[name]["color"] if name in colours else "0.3"
            axes.annotate(name, at[name], (8, 3), textcoords="offset points", fontsize=9, color=colour)
    axes.set_xlabel(f"noise of {batch} groups, relative to |∇J|")
    axes.set_ylabel("bias of the direction, relative to |∇J|")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.xaxis.set_minor_formatter(lambda x, _: f"{x:.2g}" if f"{x:.1e}"[0] in "235" else "")
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


CLOSE = {"gspo": 6, "gmpo": -14, "grpo": -40}
"""How far above (below where negative) a dot its name stands, in points."""


def _has_room(name: str, at: Mapping[str, tuple[float, float]]) -> bool:
    """Whether no point lies where the name would stand, to the right of its own."""
    x, y = np.log10(at[name][0]), at[name][1]
    others = [(np.log10(noise) - x, bias - y) for other, (noise, bias) in at.items() if other != name]
    return not any(-0.01 < right < 0.03 + 0.01 * len(name) and -0.03 < up < 0.06 for right, up in others)


def unbeaten(at: Mapping[str, tuple[float, float]]) -> list[str]:
    """Names whose two numbers no other name has both smaller (one of them equal at most)."""
    points = {name: np.array(point) for name, point in at.items()}
    return [
        name
        for name, own in points.items()
        if not any((other <= own).all() and (other < own).any() for other in points.values())
    ]
