"""Figures of the bug museum: what is broken beside what is right, and which law rejects which bug."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from sspo_teach.checks import Report
from sspo_teach.credit import credit
from sspo_teach.plotting.style import COLOURS

Objective = Callable[..., Tensor]

BROKEN: dict[str, Any] = {"color": COLOURS[1], "ls": "--", "lw": 2.2}
RIGHT: dict[str, Any] = {"color": COLOURS[0], "ls": "-", "lw": 1.6}
PAPER = "0.88"  # padding
FAR = 2.5  # |log₂ ρ| at the ends of the curves


def credit_tables(tables: Mapping[str, Tensor], mask: Tensor, *, title: str, label: str = "credit −∂L/∂logp") -> Figure:
    """Tables of numbers per response and token, side by side, blue up and red down; padding is grey and empty.

    Args:
        tables: what each is → (B, T).
        mask: (B, T), 1 where there is a token.
        title: the finding.
        label: of what the numbers are.
    """
    real = mask.bool().numpy()
    values = {name: table.detach().double().numpy() for name, table in tables.items()}
    finite = [abs(x[real & np.isfinite(x)]) for x in values.values()]
    most = max((x.max() for x in finite if x.size), default=1.0) or 1.0
    rows, columns = real.shape
    figure = Figure(figsize=(1.2 + len(values) * (0.62 * columns + 0.8), 1.2 + 0.5 * rows), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize="medium", fontweight="bold")
    panels = np.atleast_1d(figure.subplots(1, len(values), sharey=True))
    for axes, (name, table) in zip(panels, values.items(), strict=True):
        axes.set_facecolor(PAPER)
        shown = np.ma.masked_where(~real | ~np.isfinite(table), table)
        axes.imshow(shown, cmap="RdBu", vmin=-1.6 * most, vmax=1.6 * most, aspect="auto")
        for row, token in zip(*real.nonzero(), strict=True):
            axes.text(token, row, _number(table[row, token]), ha="center", va="center", fontsize="small")
        axes.set_title(name, fontsize="medium", loc="left")
        axes.set(xticks=range(columns), yticks=range(rows), xlabel="token")
        axes.set_xticklabels(range(1, columns + 1))
        axes.set_yticklabels(f"response {i + 1}" for i in range(rows))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    figure.supxlabel(label, x=0.99, ha="right", fontsize="small")
    return figure


def _number(x: float) -> str:
    return f"{x:+.2f}" if x and np.isfinite(x) else f"{x + 0.0:g}"  # + 0.0: no "-0"


def weights(objective: Objective, log_r: Tensor, sign: float) -> Tensor:
    """Credit per |A| of a response of one token at each log-ratio, (n,): what multiplies ∇log π."""
    z = log_r.double().unsqueeze(1)
    A = torch.full_like(z, sign)
    return credit(objective, z, torch.zeros_like(z), A, torch.ones_like(z)).squeeze(1) * len(z)


def weight_curves(
    objectives: Mapping[str, Objective], *, title: str, figure: Figure | None = None, mark: float | None = None
) -> Figure:
    """What multiplies ∇log π over the ratio, for A = 1 (left) and A = −1 (right).

    Args:
        objectives: "broken" and "right" → objective of a method without group statistics.
        title: the finding.
        figure: one that this function has drawn before: its curves are moved.
        mark: a ratio to point at, with the weights there in the legend.
    """
    if figure is None or not figure.axes:
        figure = _empty_curves(figure, list(objectives))
    figure.suptitle(title, x=0.01, ha="left", fontsize="medium", fontweight="bold")
    log2 = torch.linspace(-FAR, FAR, 401, dtype=torch.float64)
    for axes, sign in zip(figure.axes, (1.0, -1.0), strict=True):
        lines = {str(line.get_gid()): line for line in axes.get_lines()}
        for name, objective in objectives.items():
            y = weights(objective, log2 * np.log(2), sign)
            lines[name].set_ydata(y.numpy())
            at = "" if mark is None else f": {weights(objective, torch.tensor([mark]).log(), sign).item() + 0.0:+.2f}"
            lines[name].set_label(name + at)
        lines["mark"].set_xdata([np.nan if mark is None else mark] * 2)
        axes.legend(frameon=False, fontsize="small", loc="upper left" if sign > 0 else "lower left", borderaxespad=0)
    return figure


def _empty_curves(figure: Figure | None, names: Sequence[str]) -> Figure:
    if figure is None:
        figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    ratios = 2.0 ** np.linspace(-FAR, FAR, 401)
    for axes, sign in zip(figure.subplots(1, 2), (1, -1), strict=True):
        axes.axhline(0, color="0.8", lw=0.8, zorder=0)
        axes.plot([np.nan] * 2, [0, 1], transform=axes.get_xaxis_transform(), color="0.6", lw=1, gid="mark")
        for name in names:
            axes.plot(ratios, np.full_like(ratios, np.nan), **(RIGHT if name == "right" else BROKEN), gid=name)
        axes.set_xscale("log", base=2)
        axes.set_xlim(ratios[0], ratios[-1])
        axes.set(xlabel="ratio ρ", ylabel="weight of ∇log π", ylim=(-0.35, 4.2) if sign > 0 else (-4.2, 0.35))
        axes.xaxis.set_major_formatter(lambda ratio, _: f"{ratio:g}")
        axes.set_title(
            "a good response, A = 1" if sign > 0 else "a bad response, A = −1", fontsize="medium", loc="left"
        )
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def law_table(reports: Mapping[str, Report], *, title: str = "") -> Figure:
    """Which law rejects which bug: a row per report, a column per law that at least one of them breaks."""
    every = dict.fromkeys(law for report in reports.values() for law in report.laws)
    laws = [law for law in every if any(law in report.broken for report in reports.values())]
    broken = np.array([[law in report.broken for law in laws] for report in reports.values()], dtype=float)
    figure = Figure(figsize=(3.4 + 0.46 * len(laws), 1.5 + 0.29 * len(reports)), layout="constrained")
    axes = figure.subplots()
    axes.set_title(
        title or f"{len(reports)} bugs: each breaks a law, most break only one or two", loc="left", fontsize="medium"
    )
    _crosses(axes, broken)
    axes.set_xticks(range(len(laws)), laws, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(reports)), list(reports))
    return figure


def _crosses(axes: Axes, broken: np.ndarray) -> None:
    rows, columns = broken.shape
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    axes.set_xticks(np.arange(columns - 1) + 0.5, minor=True)
    axes.set_yticks(np.arange(rows - 1) + 0.5, minor=True)
    axes.grid(which="minor", color="0.9")
    axes.tick_params(which="both", length=0)
    at, law = broken.nonzero()
    axes.scatter(law, at, marker="s", s=90, color=BROKEN["color"])
    axes.spines[:].set_visible(False)


def bars(groups: Sequence[str], heights: Mapping[str, Sequence[float]], *, title: str, ylabel: str) -> Figure:
    """Bars side by side, "broken" and "right" in their colours, with the number on each.

    Args:
        groups: what stands below a cluster of bars.
        heights: name of a series → its bars.
        title: the finding.
        ylabel: what the height is, with its unit.
    """
    figure = Figure(figsize=(max(5.0, 1.5 + 1.3 * len(groups)), 3.2), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(heights)
    colours = {"broken": BROKEN["color"], "right": RIGHT["color"]}
    for i, (name, series) in enumerate(heights.items()):
        place = np.arange(len(groups)) + (i - (len(heights) - 1) / 2) * width
        drawn = axes.bar(place, series, width * 0.95, label=name, color=colours.get(name, COLOURS[2 + i]))
        axes.bar_label(drawn, fmt="%.2f", fontsize="small", padding=2)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.axhline(0, color="0.6", lw=0.8)
    axes.margins(y=0.18)
    axes.set_ylabel(ylabel)
    axes.set_title(title, loc="left", fontsize="medium", fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    return figure
