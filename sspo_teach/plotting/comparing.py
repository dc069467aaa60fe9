"""Figures of a fair comparison: one seed against all, paired differences, power, a method against itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sspo_teach.plotting.style import COLOURS, looks

Runs = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]
Interval = tuple[float, float]  # mean, half width


def one_seed(runs: Runs, seed: int, *, way: str = "sampled", figure: Figure | None = None) -> Figure:
    """The curves that somebody with one seed would publish.

    Args:
        runs: method → for each seed, its evaluations.
        seed: which of them, from 0.
        way: greedy or sampled.
        figure: one that this function has drawn before: its curves are moved.
    """
    shares = {name: [100 * entry[way]["correct"]["share"] for entry in seeds[seed]] for name, seeds in runs.items()}
    ranking = sorted(shares, key=lambda name: -shares[name][-1])
    if figure is None or not figure.axes:
        figure = figure or Figure(figsize=(7.6, 3.8), layout="constrained")
        axes = figure.subplots()
        for name, seeds in runs.items():
            axes.plot([entry["step"] for entry in seeds[seed]], shares[name], **looks(runs)[name], lw=1.8, gid=name)
        axes.set(xlabel="iteration", ylabel=f"held-out problems solved, {way}, %")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        every = [100 * e[way]["correct"]["share"] for own in runs.values() for one in own for e in one]
        axes.set_ylim(min(every) - 2, max(every) + 2)
        axes.grid(axis="y", color="0.92")
        axes.spines[["top", "right"]].set_visible(False)
    axes = figure.axes[0]
    lines = {str(line.get_gid()): line for line in axes.get_lines()}
    for name, y in shares.items():
        lines[name].set_ydata(y)
        lines[name].set_label(f"{name} {y[-1]:.1f}")
    axes.set_title(f"Seed {seed}: {' > '.join(ranking)}", loc="left", fontsize="medium", fontweight="bold")
    axes.legend([lines[name] for name in ranking], [str(lines[name].get_label()) for name in ranking],
                frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))  # fmt: skip
    return figure


def all_seeds(
    after: Mapping[str, Sequence[float]], intervals: Mapping[str, Interval], *, title: str, problems: int
) -> Figure:
    """Every seed of every method, joined where they share a start, beside the mean and its 95 % t-interval.

    Args:
        after: method → per cent of each seed.
        intervals: method → mean and half width.
        title: the finding.
        problems: of one evaluation, for the bar that shows how far its own chance reaches.
    """
    figure = Figure(figsize=(7.6, 3.8), layout="constrained")
    axes = figure.subplots()
    table = np.array(list(after.values()))  # (methods, seeds)
    apart = _spread(table[-1], 0.045 * np.ptp(table))
    for j, column in enumerate(table.T):
        axes.plot(range(len(table)), column, color="0.8", lw=1, zorder=1)
        axes.annotate(f"seed {j}", (len(table) - 1, apart[j]), xytext=(22, 0), textcoords="offset points",
                      fontsize="small", va="center", color="0.4")  # fmt: skip
    for i, (name, values) in enumerate(after.items()):
        look = looks(after)[name]
        axes.plot([i] * len(values), values, "o", color=look["color"], ms=5)
        mean, half = intervals[name]
        axes.errorbar(i + 0.14, mean, half, fmt="D", color=look["color"], ms=5, capsize=4, lw=1.6)
    p = table.mean() / 100
    axes.errorbar(-0.45, 100 * p, 196 * (p * (1 - p) / problems) ** 0.5, fmt="none", ecolor="0.5", capsize=3)
    axes.annotate(f"chance of one\nevaluation of\n{problems} problems", (-0.5, 100 * p), fontsize="small", color="0.4",
                  ha="right", va="center", xytext=(-2, 0), textcoords="offset points")  # fmt: skip
    axes.set(xlim=(-1.6, len(table) - 0.2), ylabel="solved after training, %")
    axes.set_xticks(range(len(table)), list(after))
    axes.set_title(title, loc="left", fontsize="medium", fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _spread(heights: np.ndarray, least: float) -> np.ndarray:
    """``heights`` moved up where two would lie nearer than ``least``, so that their labels stay apart."""
    out, below = heights.astype(float), -np.inf
    for i in np.argsort(heights):
        out[i] = below = max(heights[i], below + least)
    return out


def paired_differences(
    pairs: Mapping[str, Sequence[float]],
    intervals: Mapping[str, Interval],
    *,
    baseline: str,
    title: str,
    beside: Mapping[str, Interval] | None = None,
) -> Figure:
    """Each method minus the baseline on the same seed: dots, the 95 % t-interval of their mean, and a line at 0.

    Args:
        pairs: method → one difference per seed, in points.
        intervals: method → mean and half width of the pairs.
        baseline: what was subtracted.
        title: the finding.
        beside: method → another interval of the same mean, drawn in grey below: of runs that were not paired.
    """
    figure = Figure(figsize=(7.6, 1.3 + 0.62 * len(pairs)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color="0.6", lw=1)
    for i, (name, values) in enumerate(pairs.items()):
        colour = looks(pairs)[name]["color"]
        axes.plot(values, [i - 0.22] * len(values), "o", color=colour, ms=4, alpha=0.55)
        mean, half = intervals[name]
        axes.errorbar(mean, i, xerr=half, fmt="D", color=colour, ms=6, capsize=4, lw=2,
                      label="paired by seed" if i == 0 else None)  # fmt: skip
        if beside is not None:
            mean, half = beside[name]
            axes.errorbar(mean, i + 0.24, xerr=half, fmt="none", ecolor="0.6", capsize=3, lw=1.2,
                          label="the same runs, unpaired" if i == 0 else None)  # fmt: skip
    axes.set_yticks(range(len(pairs)), [f"{name} − {baseline}" for name in pairs])
    axes.set_ylim(len(pairs) - 0.45, -0.55)
    axes.set_xlabel("difference after training, percentage points")
    axes.set_title(title, loc="left", fontsize="medium", fontweight="bold")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    if beside is not None:
        axes.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def power_curve(
    seeds: Sequence[int], powers: Sequence[float], *, mark: int, title: str, figure: Figure | None = None
) -> Figure:
    """The chance of telling two methods apart over the number of seeds.

    Args:
        seeds: numbers of seeds.
        powers: the chance at each.
        mark: how many seeds you have.
        title: the finding.
        figure: one that this function has drawn before: its curve is moved.
    """
    if figure is None or not figure.axes:
        figure = figure or Figure(figsize=(7.2, 3.6), layout="constrained")
        axes = figure.subplots()
        axes.axhline(80, color="0.75", lw=1, ls=":")
        axes.axhline(5, color="0.75", lw=1, ls=":")
        axes.annotate("80 %, the usual aim", (seeds[-1], 80), ha="right", va="bottom", fontsize="small", color="0.4")
        axes.annotate("5 %, false alarms", (seeds[-1], 5), ha="right", va="bottom", fontsize="small", color="0.4")
        axes.plot([], [], "-", color=COLOURS[0], lw=2, gid="power")
        axes.plot([], [], "D", color=COLOURS[1], ms=8, gid="mark")
        axes.set(xlim=(1, seeds[-1]), ylim=(0, 102), xlabel="seeds per method", ylabel="chance of telling apart, %")
        axes.spines[["top", "right"]].set_visible(False)
    axes = figure.axes[0]
    lines = {str(line.get_gid()): line for line in axes.get_lines()}
    percent = [100 * p for p in powers]
    lines["power"].set_data(seeds, percent)
    lines["mark"].set_data([mark], [percent[list(seeds).index(mark)]])
    axes.set_title(title, loc="left", fontsize="medium", fontweight="bold")
    return figure


def against_itself(rewards: Sequence[Sequence[float]], better: Sequence[int], *, title: str) -> Figure:
    """Runs of one and the same method in two teams, as if they were two methods.

    Args:
        rewards: for each run, its mean reward per iteration.
        better: which runs make up the first team; the others are the second.
        title: the finding.
    """
    figure = Figure(figsize=(7.6, 3.4), layout="constrained")
    axes = figure.subplots()
    table = np.array(rewards)
    teams = {"“new method”": list(better), "“baseline”": [i for i in range(len(table)) if i not in better]}
    steps = np.arange(1, table.shape[1] + 1)
    for (name, rows), colour in zip(teams.items(), (COLOURS[3], COLOURS[6]), strict=True):
        _band(axes, steps, table[rows], colour, f"{name}: seeds {', '.join(map(str, rows))}")
    axes.set(xlabel="iteration", ylabel="mean reward")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(title, loc="left", fontsize="medium", fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small", loc="upper left")
    return figure


def _band(axes: Axes, steps: np.ndarray, table: np.ndarray, colour: str, label: str) -> None:
    axes.plot(steps, table.mean(0), color=colour, lw=2, label=label)
    axes.fill_between(steps, table.min(0), table.max(0), color=colour, alpha=0.15, lw=0)
