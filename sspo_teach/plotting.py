"""Figures from histories and evaluations. A function draws into given axes, or makes its own and returns the figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

# Okabe & Ito's palette: told apart by readers with any colour vision
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", ":")  # for the methods that no colour is left for
DOTS = ("o", "s", "^")  # and for those that no line is left for
SIDES = {
    "positive": "A > 0",
    "negative": "A < 0",
    "corrective": "on the way back to ρ = 1",
    "extending": "on the way out",
}
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
    for axes, (way, label) in zip(figure.subplots(1, 2, sharey=True), WAYS.items(), strict=True):
        for i, (name, seeds) in enumerate(runs.items()):
            look = _look(i)
            solved = [{entry["step"]: entry[way]["correct"]["share"] for entry in seed} for seed in seeds]
            steps = [step for step in solved[0] if all(step in seed for seed in solved)]
            shares = np.array([[seed[step] for step in steps] for seed in solved])
            axes.plot(steps, shares.mean(0), **look, label=name)
            axes.fill_between(steps, shares.min(0), shares.max(0), color=look["color"], alpha=0.15, lw=0)
        n = len(next(iter(runs.values())))
        _share_axis(axes, "held-out problems solved")
        axes.set_title(label.format(temperature=1.0) + f", mean and range of {n} seeds", fontsize="medium", loc="left")
    return figure


def frontier(rows: Sequence[Mapping[str, Any]], *, batch: int) -> Figure:
    """Bias against noise as the policies drift apart: one curve per method, its points marked with KL(old ‖ new).

    Args:
        rows: of one drift, with method, kl, bias_scaled and trace_scaled; a method's in the order of its distances.
        batch: groups in a batch; noise is √(trace/batch).
    """
    figure = Figure(figsize=(7.6, _tall(5.2, rows)), layout="constrained")
    axes = figure.subplots()
    for i, (name, own) in enumerate(_by_method(rows).items()):
        noise = [(row["trace_scaled"] / batch) ** 0.5 for row in own]
        bias = [row["bias_scaled"] for row in own]
        axes.plot(noise, bias, **_look(i), label=name)
        axes.annotate(f"{own[-1]['kl']:.2g}", (noise[-1], bias[-1]), fontsize="xx-small", xytext=(3, 3),
                      textcoords="offset points")  # fmt: skip
    axes.set(xscale="log", ylabel="bias of the direction, relative to |∇J|")
    axes.set_xlabel(f"noise of {batch} groups, relative to |∇J|; the number at a curve's end is KL(old ‖ new)")
    return _finished(figure, axes)


def cosine_to_truth(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Cosine of E[ĝ] with ∇J against KL(old ‖ new); one curve per method, rows as in ``frontier`` with cosine."""
    figure = Figure(figsize=(7.6, _tall(4.4, rows)), layout="constrained")
    axes = figure.subplots()
    for i, (name, own) in enumerate(_by_method(rows).items()):
        axes.plot([row["kl"] for row in own], [row["cosine"] for row in own], **_look(i), label=name)
    _kl_axis(axes, rows)
    axes.set_ylabel("cosine of the mean gradient with the truth")
    return _finished(figure, axes)


def removed_signal(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """What a method takes of |A|ρ, by sign and side, against KL(old ‖ new); rows with removed_positive and so on."""
    figure = Figure(figsize=(9.6, _tall(6.4, rows)), layout="constrained")
    for axes, side in zip(figure.subplots(2, 2, sharex=True, sharey=True).flat, SIDES, strict=True):
        for i, (name, own) in enumerate(_by_method(rows).items()):
            known = [row for row in own if f"removed_{side}" in row]
            axes.plot([row["kl"] for row in known], [row[f"removed_{side}"] for row in known], **_look(i), label=name)
        axes.axhline(0, color="0.8", lw=0.8, zorder=0)
        axes.set_title(f"{side}: {SIDES[side]}", fontsize="small", loc="left")
        axes.set_ylabel("share removed")
        _kl_axis(axes, rows)
        axes.spines[["top", "right"]].set_visible(False)
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", frameon=False, fontsize="small")
    return figure


def coefficient_curves(
    log_ratio: np.ndarray,
    curves: Mapping[str, Mapping[str, np.ndarray]],
    ratios: np.ndarray,
    weights: np.ndarray,
) -> Figure:
    """f, f', ρf' and S·ρℓ' of each gate over ρ, above the ratios that occur.

    Args:
        log_ratio: (n,) where the curves are taken.
        curves: gate → curve → (n,).
        ratios: (m,) ratios of a problem or a run.
        weights: (m,) how often each occurs.
    """
    kinds = list(next(iter(curves.values())))
    figure = Figure(figsize=(3.2 * len(kinds), 4.8), layout="constrained")
    above, below = figure.subplots(2, len(kinds), sharex=True, height_ratios=[3, 1])
    x = np.exp(log_ratio)
    for column, kind in enumerate(kinds):
        for i, (gate, own) in enumerate(curves.items()):
            above[column].plot(x, own[kind], **_look(i, dots=False), label=gate)
        above[column].set_title(kind, fontsize="medium", loc="left")
        below[column].hist(ratios, bins=np.exp(np.linspace(log_ratio[0], log_ratio[-1], 41)), weights=weights,
                           color="0.7")  # fmt: skip
        below[column].set(xscale="log", xlabel="ratio ρ", yticks=[])
        for axes in (above[column], below[column]):
            axes.axvline(1, color="0.85", lw=0.8, zorder=0)
            axes.spines[["top", "right"]].set_visible(False)
    below[0].set_ylabel("tokens")
    handles, names = above[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(curves), frameon=False, fontsize="small")
    return figure


def which_gate(
    rows: Sequence[Mapping[str, Any]], batches: Sequence[int], *, title: str = "", limits: Sequence[str] = ()
) -> Figure:
    """One page: error of each method (row) at each distance (column) for each batch size, the least one framed.

    Args:
        rows: of one drift, with method, distance and mse_scaled_<batch>.
        batches: one panel each.
        title: of the page.
        limits: what the page cannot say, printed beneath.
    """
    methods = list(_by_method(rows))
    distances = list(dict.fromkeys(row["distance"] for row in rows))
    figure = Figure(figsize=(4.2 * len(batches) + 1.6, 2.6 + 0.24 * len(methods)), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(batches), sharey=True))
    for axes, batch in zip(panels, batches, strict=True):
        error = np.full((len(methods), len(distances)), np.nan)
        for row in rows:
            error[methods.index(row["method"]), distances.index(row["distance"])] = row[f"mse_scaled_{batch}"]
        image = axes.imshow(error, cmap="viridis_r", vmin=0, vmax=1, aspect="auto")
        for j, column in enumerate(error.T):
            for i, value in enumerate(column):
                best = value == np.nanmin(column)
                frame = {"boxstyle": "square,pad=0.15", "fill": False, "ec": COLOURS[1]} if best else None
                colour = "white" if value > 0.55 else "black"
                axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize="x-small", color=colour, bbox=frame)
        axes.set_title(f"{batch} groups", fontsize="medium", loc="left")
        axes.set_xticks(range(len(distances)), [f"{distance:g}" for distance in distances])
        axes.set_yticks(range(len(methods)), methods, fontsize="small")
        axes.set_xlabel("KL(old ‖ new)")
    figure.colorbar(image, ax=panels, label="error of the step, 0 exact, 1 none", shrink=0.8)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    if limits:
        figure.supxlabel("\n".join(limits), x=0.01, ha="left", fontsize="x-small", color="0.3")
    return figure


def save(figure: Figure, path: str | Path) -> Path:
    """Write a PNG and return its path."""
    path = Path(path)
    figure.savefig(path, dpi=144)
    return path


def _look(i: int, *, dots: bool = True) -> dict[str, Any]:
    """Colour, line and dot of the i-th curve: no two alike among as many as there are of all three together."""
    around, turn = i % len(COLOURS), i // len(COLOURS)
    dot = {"marker": DOTS[turn // len(LINES) % len(DOTS)], "ms": 3.5} if dots else {}
    return {"color": COLOURS[around], "ls": LINES[turn % len(LINES)], **dot}


def _by_method(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    return {name: [row for row in rows if row["method"] == name] for name in dict.fromkeys(r["method"] for r in rows)}


def _tall(least: float, rows: Sequence[Mapping[str, Any]]) -> float:
    """Height of a figure whose legend has a line for every method, in inches."""
    return max(least, 0.5 + 0.21 * len(_by_method(rows)))


def _kl_axis(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    least = min((row["kl"] for row in rows if row["kl"] > 1e-9), default=1.0)
    axes.set_xscale("symlog", linthresh=least)
    ticks = sorted({0.0 if row["kl"] < 1e-9 else float(f"{row['kl']:.3g}") for row in rows})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("KL(old ‖ new), nats per response")


def _finished(figure: Figure, axes: Axes) -> Figure:
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _share_axis(axes: Axes, label: str) -> None:
    axes.set_xlabel("iteration")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel(label)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(axis="y", color="0.92")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small")
