"""Figures of token gates against one gate at the mean: the gap, its bound, and the direction that is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from sspo_teach.plotting.redraw import curve, level, settled, sheet
from sspo_teach.plotting.style import COLOURS

Rows = Sequence[Mapping[str, Any]]


def gate(z: Any, tau: float) -> Any:
    """g(z) = sech²(τz/2)."""
    return np.cosh(tau * np.asarray(z, dtype=float) / 2) ** -2


def gate_gap(figure: Figure | None = None, *, mean: float = 0.0, spread: float = 0.4, tau: float = 1.0) -> Figure:
    """Two tokens at μ ± d: their gates and the gate at μ (left), the gap and its bound τ²V/4 over d (right).

    Args:
        figure: one that this function drew, to change in place.
        mean: μ of the log-ratios.
        spread: d.
        tau: τ.
    """
    figure, (left, right) = sheet(figure, (9.6, 3.8), 1, 2)
    z, two = np.linspace(-4, 4, 161), np.array([mean - spread, mean + spread])
    average, at_mean = gate(two, tau).mean(), float(gate(mean, tau))
    curve(left, "gate", z, gate(z, tau), color="0.5", lw=1.5, label="g(z)")
    curve(left, "chord", two, gate(two, tau), color="#0072B2", marker="o", ms=6, lw=1, label="two tokens")
    curve(left, "average", [mean], [average], color="#0072B2", marker="s", ms=8, ls="", label="mean of their gates")
    curve(left, "one", [mean], [at_mean], color="#D55E00", marker="D", ms=7, ls="", label="gate at the mean")
    d = np.linspace(0.01, 2, 100)
    gaps = np.abs((gate(mean - d, tau) + gate(mean + d, tau)) / 2 - at_mean)
    gap, bound = abs(average - at_mean), tau**2 * spread**2 / 4
    curve(right, "bound", d, tau**2 * d**2 / 4, color="#D55E00", ls="--", lw=1.5, label="bound τ²V/4")
    curve(right, "gap", d, gaps, color="#0072B2", lw=2, label="gap")
    curve(right, "here", [spread], [gap], color="#0072B2", marker="o", ms=8, ls="")
    left.set_title(f"z = {two[0]:.2f}, {two[1]:.2f}: gates {average:.3f} and {at_mean:.3f}", loc="left", fontsize=11)
    right.set_title(f"gap {gap:.4f}, bound {bound:.4f}", loc="left", fontsize=11)
    left.set(xlabel="log ratio z", ylabel="gate", ylim=(0, 1.05))
    right.set(xlabel="d, half the distance of the two", ylim=(0, 1), xlim=(0, 2))
    left.legend(frameon=False, fontsize=9, loc="lower center")
    right.legend(frameon=False, fontsize=9, loc="upper left")
    return settled(figure)


def gap_against_bound(figure: Figure | None = None, *, settings: Mapping[str, Rows]) -> Figure:
    """Measured gaps |ḡ − g(μ)| of real responses against τ²V/4, on logarithmic axes; above the line is impossible.

    Args:
        figure: one that this function drew, to change in place.
        settings: name → rows with gap and gap_bound, one per response.
    """
    figure, (axes,) = sheet(figure, (7.2, 4))
    for i, (name, rows) in enumerate(settings.items()):
        own = [row for row in rows if row.get("gap_bound", 0) > 1e-8]
        x, y = [row["gap_bound"] for row in own], [max(row["gap"], 1e-9) for row in own]
        curve(axes, name, x, y, color=COLOURS[i], marker="osD^"[i % 4], ms=4, ls="", label=name)
    line = np.array([1e-7, 10])
    curve(axes, "line", line, line, color="0.3", lw=1)
    axes.set(xscale="log", yscale="log", xlabel="bound τ²V/4", ylabel="gap |ḡ − g(μ)|", xlim=(1e-6, 3), ylim=(1e-7, 3))
    axes.set_title("No response above the line; tight where the variance is small", loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    return settled(figure)


def cosine_by_variance(figure: Figure | None = None, *, settings: Mapping[str, Rows]) -> Figure:
    """Cosine of token-gated and sequence-gated directions over the variance of log ρ; one dot per response.

    Left SAPO's own direction, right the same with ρ w(ρ) replaced by g(log ρ), which is all that the bound speaks of.

    Args:
        figure: one that this function drew, to change in place.
        settings: name → rows with variance, cosine and cosine_in_log.
    """
    figure, panels = sheet(figure, (9.6, 3.8), 1, 2, sharey=True)
    titles = {"cosine": "SAPO's ρ w(ρ) against one gate", "cosine_in_log": "g(log ρ) against one gate"}
    for axes, (key, title) in zip(panels, titles.items(), strict=True):
        for i, (name, rows) in enumerate(settings.items()):
            own = [row for row in rows if row["variance"] > 1e-8]
            x, y = [row["variance"] for row in own], [row[key] for row in own]
            curve(axes, name, x, y, color=COLOURS[i], marker="osD^"[i % 4], ms=4, ls="", label=name)
        level(axes, "one", 1, color="0.7", lw=0.8, zorder=0)
        axes.set_title(title, loc="left", fontsize=11)
        axes.set(xscale="log", xlabel="variance V of log ρ within the response")
    panels[0].set_ylabel("cosine of the two directions")
    panels[0].legend(frameon=False, fontsize=9, loc="lower left")
    return settled(figure)
