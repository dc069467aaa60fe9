"""Dashboards of training: what a healthy run looks like, and what happens as its data grow stale."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator, NullLocator

from sspo_teach.plotting.style import COLOURS

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Vital:
    """A panel of the dashboard: columns of history.csv, how to read them, and between which numbers a run is well.

    The limits are rules of thumb for the toy tasks, drawn around the committed run ``arithmetic-sspo``; a reader of
    other runs draws own ones.
    """

    columns: tuple[str, ...]
    title: str
    healthy: str
    low: float
    high: float
    scale: str = "linear"
    shown: tuple[float, float] = (0.0, 1.05)

    def ill(self, history: Sequence[Row]) -> bool:
        """Whether the median of the last third lies outside the healthy range, for any of the columns."""
        late = history[-max(len(history) // 3, 1) :]
        middles = [float(np.median([row[column] for row in late])) for column in self.columns]
        return any(not self.low <= middle <= self.high for middle in middles)


RATIOS = ("ratio_q01", "ratio_q50", "ratio_q99")
VITALS = (
    Vital(("correct",), "solved, training samples", "rises", 0.2, 1.0),
    Vital(("dead_groups",), "groups that teach nothing", "well under 1", 0.0, 0.8),
    Vital(("entropy",), "entropy, nats per token", "sinks, not to 0", 0.02, 1.0),
    Vital(("grad_norm",), "gradient norm", "neither 0 nor growing", 1e-2, 20.0, "log", (1e-4, 60)),
    Vital(RATIOS, "ratio ρ: 1 %, 50 %, 99 %", "opens around 1", 0.5, 2.0, "log", (0.05, 20)),
    Vital(("moved",), "tokens with |ρ − 1| > 0.1", "0.5 to 30 %", 0.005, 0.3, "linear", (0.0, 0.7)),
    Vital(("kl_k3",), "KL(old ‖ new), nats per token", "small, but not 0", 1e-5, 0.03, "log", (1e-7, 1.0)),
    Vital(("ess",), "effective sample size", "near 1", 0.7, 1.0),
)
"""What to look at, in the order in which to look."""


def dashboard(history: Sequence[Row], *, title: str = "") -> Figure:
    """Eight vital signs of a run over its iterations; the healthy range is shaded, a panel outside it has a red title.

    Args:
        history: rows of history.csv as numbers.
        title: stands above all.
    """
    figure = Figure(figsize=(11, 5.6))
    figure.subplots_adjust(left=0.05, right=0.98, bottom=0.09, top=0.83, hspace=0.38, wspace=0.3)
    for axes, vital in zip(figure.subplots(2, 4, sharex=True).flat, VITALS, strict=True):
        _vital(axes, vital, history)
    for axes in figure.axes[4:]:
        axes.set_xlabel("iteration")
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    return figure


def side_by_side(histories: Mapping[str, Sequence[Row]], *, title: str = "") -> Figure:
    """Six vital signs (rows) of several runs (columns); the healthy range is shaded, what ends outside it is orange.

    Args:
        histories: name → rows of history.csv as numbers.
        title: stands above all.
    """
    vitals = [vital for vital in VITALS if vital.columns[0] not in ("entropy", "kl_k3")]
    figure = Figure(figsize=(11, 8.4), layout="constrained")
    grid = figure.subplots(len(vitals), len(histories), sharex=True, sharey="row", squeeze=False)
    for row, vital in zip(grid, vitals, strict=True):
        for axes, (name, history) in zip(row, histories.items(), strict=True):
            _curves(axes, vital, history)
            if vital is vitals[0]:
                axes.set_title(f"run {name}", fontsize=11, fontweight="bold")
            if vital is vitals[-1]:
                axes.set_xlabel("iteration", fontsize=9)
        whole = re.sub(r"\|.*", lambda formula: formula[0].replace(" ", "\N{NO-BREAK SPACE}"), vital.title)
        row[0].set_ylabel(fill(whole, 14), fontsize=9, rotation=0, ha="right", va="center")
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    return figure


def _vital(axes: Axes, vital: Vital, history: Sequence[Row]) -> None:
    _curves(axes, vital, history)
    colour = COLOURS[1] if vital.ill(history) else "black"
    weight = "normal" if colour == "black" else "bold"
    title = axes.set_title(f"{vital.title}\n", fontsize=10, loc="left", color=colour, fontweight=weight)
    note = axes.text(0, 1.03, f"healthy: {vital.healthy}", transform=axes.transAxes, fontsize=9, color="0.35")
    for text in (title, note):
        text.set_in_layout(False)


def _curves(axes: Axes, vital: Vital, history: Sequence[Row]) -> None:
    colour = COLOURS[1 if vital.ill(history) else 0]
    steps = [row["step"] for row in history]
    values = np.array([[row[column] for column in vital.columns] for row in history], dtype=float)
    floor, top = vital.shown
    axes.set_yscale(vital.scale)
    axes.axhspan(vital.low, vital.high, color=COLOURS[2], alpha=0.12, lw=0)
    shown = values.clip(floor, top)  # what leaves the panel runs along its edge
    for i, column in enumerate(shown.T):
        middle = i == len(vital.columns) // 2
        axes.plot(steps, column, color=colour, lw=1.6 if middle else 0.9, ls="-" if middle else "--", clip_on=False)
    axes.set_ylim(floor, top)
    axes.spines[["top", "right"]].set_visible(False)


def staleness(
    figure: Figure, runs: Sequence[Row], ends: Sequence[Row], *, method: str, updates: float, lr: float
) -> None:
    """Draw one run of a grid (updates per batch × learning rate) among the others of its method.

    Args:
        figure: an empty one, or one that this function drew into before, which is brought up to date.
        runs: rows of all histories, with method, updates and lr beside the columns of history.csv.
        ends: one row per run, with greedy_before and greedy_after.
        method, updates, lr: the run to show.

    Raises:
        ValueError: the grid has no such run.
    """
    own = [row for row in ends if row["method"] == method]
    chosen = [row for row in own if (row["updates"], row["lr"]) == (updates, lr)]
    if not chosen:
        raise ValueError(
            f"method={method!r}, updates={updates:g}, lr={lr:g}: no such run; there are methods "
            f"{sorted({row['method'] for row in ends})}, updates {_levels(ends, 'updates')}, lr {_levels(ends, 'lr')}"
        )
    history = [row for row in runs if (row["method"], row["updates"], row["lr"]) == (method, updates, lr)]
    if not figure.axes:
        _begin(figure, _levels(own, "updates"), _levels(own, "lr"), history)
    _fill(figure, own, chosen[0], history)


def _levels(rows: Sequence[Row], name: str) -> list[float]:
    return sorted({row[name] for row in rows})


FRAME = np.array([[-1, 1, 1, -1, -1], [-1, -1, 1, 1, -1]]) * 0.47
LINES = {
    "solved": {"correct": "training samples"},
    "ratios": {"ratio_q99": "99 %", "ratio_q50": "median", "ratio_q01": "1 %"},
    "gate": {
        "moved": "tokens with |ρ − 1| > 0.1",
        "silenced": "tokens silenced",
        "removed_extending": "signal removed on the way out",
    },
}  # fmt: skip


def _begin(figure: Figure, updates: Sequence[float], rates: Sequence[float], history: Sequence[Row]) -> None:
    solved, ratios, gate, grid = figure.subplots(2, 2).flat
    for axes, lines in zip((solved, ratios, gate), LINES.values(), strict=True):
        for label, colour in zip(lines.values(), COLOURS, strict=False):
            axes.plot([], [], color=colour, lw=1.4, label=label)
        axes.set(xlim=(1, max(len(history), 2)), xlabel="iteration")
        for axis in (axes.xaxis, axes.yaxis):  # each tick costs time at every move of a slider
            axis.set_major_locator(MaxNLocator(3))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9, loc="upper left", ncols=1)
    solved.set(ylim=(0, 1), ylabel="share solved")
    ratios.set(yscale="log", ylim=(0.01, 100), ylabel="ratio ρ")
    ratios.set_yticks([0.01, 1, 100], ["0.01", "1", "100"])
    ratios.yaxis.set_minor_locator(NullLocator())
    ratios.axhline(1, color="0.8", lw=0.8, zorder=0)
    gate.set(ylim=(-0.1, 1), ylabel="share")
    gate.axhline(0, color="0.8", lw=0.8, zorder=0)
    for axes, title in zip(
        (solved, ratios, gate), ("Is it learning?", "How stale are the data?", "What does the gate do?"), strict=True
    ):
        axes.set_title(title, fontsize=10, loc="left")
    grid.imshow(np.zeros((len(updates), len(rates))), cmap="cividis", vmin=0, vmax=1, aspect="auto", origin="lower")
    for i in range(len(updates)):
        for j in range(len(rates)):
            grid.text(j, i, "", ha="center", va="center", fontsize=10)
    grid.plot([], [], color=COLOURS[1], lw=3)  # the frame of the chosen run
    grid.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
    grid.set_yticks(range(len(updates)), [f"{count:g}" for count in updates])
    grid.set(xlabel="learning rate", ylabel="updates per batch")
    grid.set_title("Held-out problems solved at the end, greedy, %", fontsize=10, loc="left")


def _fill(figure: Figure, own: Sequence[Row], chosen: Row, history: Sequence[Row]) -> None:
    *curves, grid = figure.axes
    steps = [row["step"] for row in history]
    for axes, lines in zip(curves, LINES.values(), strict=True):
        for line, column in zip(axes.lines, lines, strict=False):
            line.set_data(steps, [row[column] for row in history])
    updates, rates = _levels(own, "updates"), _levels(own, "lr")
    ends = {(row["updates"], row["lr"]): row["greedy_after"] for row in own}
    table = np.array([[ends.get((u, r), math.nan) for r in rates] for u in updates])
    grid.images[0].set_data(table)
    for text, value in zip(grid.texts, table.flat, strict=True):
        text.set_text("" if math.isnan(value) else f"{100 * value:.0f}")
        text.set_color("white" if value < 0.5 else "black")
    x, y = rates.index(chosen["lr"]), updates.index(chosen["updates"])
    grid.lines[0].set_data(x + FRAME[0], y + FRAME[1])
    moved, ess = (float(np.mean([row[name] for row in history])) for name in ("moved", "ess"))
    layout = figure.get_layout_engine()
    if isinstance(layout, ConstrainedLayoutEngine):
        layout.set(rect=(0, 0, 1, 0.97))  # a line of air below the title
    figure.suptitle(
        f"{chosen['method']}, {chosen['updates']:g} updates per batch at lr {chosen['lr']:g}: "
        f"{100 * chosen['greedy_before']:.0f} % → {100 * chosen['greedy_after']:.0f} % solved;\n"
        f"{100 * moved:.0f} % of the tokens moved, effective sample size {ess:.2f}",
        x=0.01, ha="left", fontweight="bold", fontsize=11,
    )  # fmt: skip
