"""Figures of adaptive bands: by length, by probability, balanced, calibrated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator
from numpy.typing import NDArray

from sspo_teach.gates import bounds
from sspo_teach.plotting.style import COLOURS, looks


def tail_by_length(lengths: Sequence[int], tails: Mapping[str, Sequence[float]], *, title: str = "") -> Figure:
    """The share of responses outside a band over their length; one curve per rule.

    Args:
        lengths: of the responses, in tokens.
        tails: rule → share outside at each length.
        title: says the finding.
    """
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for (name, shares), look in zip(tails.items(), looks(tails).values(), strict=True):
        axes.plot(lengths, shares, **look, label=name)
    axes.set(
        xscale="log", xlabel="response length L, tokens", ylabel="share of responses outside the band", ylim=(0, 1)
    )
    axes.set_xticks(lengths, [str(n) for n in lengths])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="minor", length=0)
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f}%")
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return figure


BANDS = {"bandpo_kl": bounds.by_kl, "bandpo_tv": bounds.by_tv, "bandpo_chi2": bounds.by_chi2}
P = torch.sigmoid(torch.linspace(-6.9, 4.6, 60, dtype=torch.float64))
"""Old probabilities from 0.001 to 0.99."""


def room_by_probability(figure: Figure, *, delta: float = 0.05, eps: float = 0.2) -> None:
    """BandPO's bounds over the token's old probability, beside a fixed clip and the largest ratio there is, 1/p.

    Args:
        figure: an empty one, or one drawn by this function before, which is brought up to date.
        delta: how far the divergence may go.
        eps: of the fixed clip [1 − ε, 1 + ε].
    """
    p, mask = P.numpy(), torch.ones(1, len(P))
    edges = {
        name: [edge.squeeze(0).exp().numpy() for edge in band(P.log().unsqueeze(0), mask, delta)]
        for name, band in BANDS.items()
    }
    if not figure.axes:
        axes = figure.subplots()
        for name, look in looks(BANDS, dots=False).items():
            for i in range(2):
                axes.plot(p, p, **look, lw=1.8, label=name if i else None)
        axes.plot(p, p, color="0.5", ls="--", lw=1.2, label="fixed clip")
        axes.plot(p, p, color="0.5", ls="--", lw=1.2)
        axes.plot(p, 1 / p, color="0.8", lw=1, label="1/p, the largest there is")
        axes.axhline(1, color="0.85", lw=0.8, zorder=0)
        axes.set(xscale="log", yscale="log", ylim=(0.05, 100), xlabel="old probability of the token, p")
        axes.set_ylabel("ratio ρ at which the clip acts")
        axes.set_yticks([0.1, 0.5, 1, 2, 10, 100], ["0.1", "0.5", "1", "2", "10", "100"])
        axes.set_xticks([0.001, 0.01, 0.1, 1], ["0.001", "0.01", "0.1", "1"])
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(NullLocator())
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    (axes,) = figure.axes
    drawn = [edge for pair in edges.values() for edge in pair]
    for line, y in zip(axes.lines, [*drawn, np.full_like(p, 1 - eps), np.full_like(p, 1 + eps)], strict=False):
        line.set_ydata(np.clip(y, 1e-3, None))
    rare, likely = (float(np.interp(at, p, edges["bandpo_kl"][1])) for at in (0.01, 0.9))
    axes.set_title(
        f"δ = {delta:g}: a token at p = 0.01 may grow {rare:.2g} times, one at 0.9 by {100 * (likely - 1):.2g} %",
        loc="left", fontsize=11, fontweight="bold",
    )  # fmt: skip


def balance(pairs: Sequence[tuple[float, float]], shares: Mapping[str, Sequence[float]], *, wanted: float) -> Figure:
    """The positive tokens' share along BAPO's search, for each way to count.

    Args:
        pairs: (low, high) in the order tried.
        shares: way to count → share under each pair.
        wanted: the share at which the search stops.
    """
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    turn = next((i for i, (low, _) in enumerate(pairs) if low != pairs[0][0]), len(pairs))
    for (name, own), colour in zip(shares.items(), COLOURS, strict=False):
        axes.plot(range(len(pairs)), own, color=colour, lw=1.8, label=name)
        stop = next((i for i, share in enumerate(own) if share >= wanted), None)
        if stop is not None:
            axes.plot([stop], [own[stop]], "o", color=colour, ms=7)
    axes.axhline(wanted, color="0.5", ls="--", lw=1)
    axes.text(len(pairs) - 1, wanted, f"wanted: {wanted:g} ", va="bottom", ha="right", fontsize=9, color="0.35")
    axes.axvspan(turn - 0.5, len(pairs) - 1, color="0.95", lw=0)
    low, high = axes.get_ylim()
    axes.set_ylim(low - 0.12 * (high - low), high + 0.05 * (high - low))
    for x, text in ((turn / 2, "upper bound rises"), ((turn + len(pairs)) / 2, "lower bound rises")):
        axes.text(x, 0.02, text, ha="center", fontsize=9, color="0.35", transform=axes.get_xaxis_transform())
    ticks = sorted({0, turn // 2, max(turn - 1, 0), len(pairs) - 1})
    axes.set_xticks(ticks, [f"[{pairs[i][0]:.2g}, {pairs[i][1]:.2g}]" for i in ticks])
    axes.set(xlabel="band of ratios, in the order tried", ylabel="share of the tokens with A > 0")
    axes.set_title("As printed, a higher lower bound loses share; counted by gradient, it gains",
                   loc="left", fontsize=11, fontweight="bold")  # fmt: skip
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def conformal_band(
    figure: Figure,
    scores: NDArray[np.float64],
    calibrated: NDArray[np.float64],
    fixed: NDArray[np.float64],
    missed: tuple[NDArray[np.float64], NDArray[np.float64]],
    judged: NDArray[np.bool_],
    *,
    alpha: float,
) -> None:
    """Scores under a band that follows them and one that does not, above the share that leaves each.

    Args:
        figure: an empty one, or one drawn by this function before with as many updates, which is brought up to date.
        scores: (U, n).
        calibrated: (U, 2); fixed: (2,).
        missed: (U,) shares outside the calibrated and the fixed band.
        judged: (U,) bool, the updates that count.
        alpha: the share that may leave.
    """
    U, n = scores.shape
    x, unit = np.arange(U), 1000.0
    if not figure.axes:
        _begin_conformal(figure, U, n)
    above, below = figure.axes
    dots, *lines = above.lines
    dots.set_data(np.repeat(x, n), unit * scores.ravel())
    edges = np.where(np.isfinite(calibrated), calibrated, np.nan)
    for line, y in zip(lines, (*edges.T, np.full(U, fixed[0]), np.full(U, fixed[1])), strict=True):
        line.set_data(x, unit * y)
    top = 1.1 * unit * float(np.abs(scores).max())
    above.set_ylim(-top, top)
    for line, share in zip(below.lines, missed, strict=False):
        line.set_data(x[judged], _smooth(share[judged]))
    below.lines[2].set_ydata([alpha, alpha])
    own, still = (float(share[judged].mean()) if judged.any() else math.nan for share in missed)
    figure.suptitle(
        f"{100 * own:.1f} % of fresh scores leave the calibrated band, {100 * still:.1f} % the fixed one; "
        f"α is {100 * alpha:g} %",
        x=0.01, ha="left", fontweight="bold", fontsize=11,
    )  # fmt: skip


def _begin_conformal(figure: Figure, U: int, n: int) -> None:
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    above.plot([], [], ".", color="0.75", ms=2.5, label=f"scores, {n} per update")
    for colour, ls, label in (
        (COLOURS[0], "-", "calibrated on recent scores"),
        (COLOURS[1], "--", "fixed at the start"),
    ):
        above.plot([], [], color=colour, ls=ls, lw=1.8, label=label)
        above.plot([], [], color=colour, ls=ls, lw=1.8)
        below.plot([], [], color=colour, ls=ls, lw=1.6)
    below.axhline(0.1, color="0.4", lw=1, ls=":", label="α")
    above.set(ylabel="score s = mean log ρ, 10⁻³", xlim=(0, U - 1))
    below.set(ylim=(0, 0.7), xlabel="update", ylabel="share outside")
    below.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f}%")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)


def _smooth(x: NDArray[np.float64], width: int = 9) -> NDArray[np.float64]:
    """Mean of ``width`` neighbours, of fewer at the ends."""
    if not x.size:
        return x
    kernel = np.ones(width)
    return np.convolve(x, kernel, "same") / np.convolve(np.ones_like(x), kernel, "same")
