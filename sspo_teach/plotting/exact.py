"""Figures of the exact laboratory: bias, scatter, direction, and what a gate takes away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sspo_teach.plotting.redraw import over
from sspo_teach.plotting.style import COLOURS, looks

SIDES = {
    "positive": "A > 0",
    "negative": "A < 0",
    "corrective": "on the way back to ρ = 1",
    "extending": "on the way out",
}

FEW = 6
"""Up to so many curves are drawn broad below and dashed above, so that those on each other are all seen."""
FRAME = 1.1
"""Shares removed beyond ±110 % are named, not drawn to scale."""


def frontier(rows: Sequence[Mapping[str, Any]], *, batch: int) -> Figure:
    """Bias against noise as the policies drift apart: one curve per method, its points marked with KL(old ‖ new).

    Args:
        rows: of one drift, with method, kl, bias_scaled and trace_scaled; a method's in the order of its distances.
        batch: groups in a batch; noise is √(trace/batch).
    """
    figure = Figure(figsize=(7.6, _tall(5.2, rows)), layout="constrained")
    axes = figure.subplots()
    for name, own, look in _drawn(rows):
        noise = [(row["trace_scaled"] / batch) ** 0.5 for row in own]
        bias = [row["bias_scaled"] for row in own]
        axes.plot(noise, bias, **look, label=name)
        axes.annotate(f"{own[-1]['kl']:.2g}", (noise[-1], bias[-1]), fontsize="xx-small", xytext=(3, 3),
                      textcoords="offset points")  # fmt: skip
    axes.set(xscale="log", ylabel="bias of the direction, relative to |∇J|")
    axes.set_title("The further apart the policies, the more bias, or noise, or both", loc="left", fontsize="medium")
    axes.set_xlabel(f"noise of {batch} groups, relative to |∇J|; the number at a curve's end is KL(old ‖ new)")
    return _finished(figure, axes)


def cosine_to_truth(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Cosine of E[ĝ] with ∇J against KL(old ‖ new); one curve per method, rows as in ``frontier`` with cosine."""
    figure = Figure(figsize=(7.6, _tall(4.4, rows)), layout="constrained")
    axes = figure.subplots()
    for name, own, look in _drawn(rows):
        axes.plot([row["kl"] for row in own], [row["cosine"] for row in own], **look, label=name)
    _kl_axis(axes, rows)
    axes.set_ylabel("cosine of the mean gradient with the truth")
    axes.set_title("Mean gradients turn from the truth as policies drift apart", loc="left", fontsize="medium")
    return _finished(figure, axes)


def removed_signal(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """What a method takes of |A|ρ, by sign and side, against KL(old ‖ new); rows with removed_positive and so on."""
    figure = Figure(figsize=(9.6, _tall(6.4, rows)), layout="constrained")
    for axes, side in zip(figure.subplots(2, 2, sharex=True, sharey=True).flat, SIDES, strict=True):
        drawn = list(_drawn(rows))
        for i, (name, own, look) in enumerate(drawn):
            known = [row for row in own if f"removed_{side}" in row]
            axes.plot(
                [row["kl"] for row in known],
                [row[f"removed_{side}"] for row in known],
                **(over(look, i, len(drawn)) if len(drawn) <= FEW else look),
                label=name,
            )
        beyond = sorted({r["method"] for r in rows if not -FRAME <= r.get(f"removed_{side}", 0.0) <= FRAME})
        if beyond:
            named = ", ".join(beyond[:4]) + (", …" if len(beyond) > 4 else "")
            note = axes.text(0.02, 0.02, f"leave the frame: {named}", transform=axes.transAxes, fontsize="x-small",
                             color="0.3")  # fmt: skip
            note.set_in_layout(False)
        axes.axhline(0, color="0.8", lw=0.8, zorder=0)
        axes.set(ylim=_fitted([row[f"removed_{part}"] for row in rows for part in SIDES if f"removed_{part}" in row]))
        axes.set_title(f"{side}: {SIDES[side]}", fontsize="small", loc="left")
        axes.set_ylabel("share removed")
        _kl_axis(axes, rows)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        "What each method takes away, by sign and side (below 0: adds)", x=0.01, ha="left", fontsize="medium"
    )
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", frameon=False, fontsize="small")
    return figure


def _fitted(values: Sequence[float]) -> tuple[float, float]:
    """Room for what lies within the frame, and for 0."""
    within = [0.0, *(value for value in values if -FRAME <= value <= FRAME)]
    margin = 0.06 * max(max(within) - min(within), 0.1)
    return min(within) - margin, max(within) + margin


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
        for gate, own in curves.items():
            above[column].plot(x, own[kind], **looks(curves, dots=False)[gate], label=gate)
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


def _by_method(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    return {name: [row for row in rows if row["method"] == name] for name in dict.fromkeys(r["method"] for r in rows)}


def _drawn(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Mapping[str, Any]], dict[str, Any]]]:
    by_method = _by_method(rows)
    look = looks(by_method)
    return ((name, own, look[name]) for name, own in by_method.items())


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
