"""Figures of pooling: what one token does to its whole response, and what a length does to a pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from sspo_teach.catalog import method
from sspo_teach.credit import credit
from sspo_teach.plotting.redraw import curve, keep, level, settled, sheet, upright, word
from sspo_teach.plotting.style import looks

POOLS = ("grpo", "gspo", "gmpo", "sspo")
JITTER = 0.03
"""How far the ordinary tokens of the example stand from ρ = 1, in log ρ."""


def response_with_outlier(outlier: float | Tensor, place: int, length: int) -> Tensor:
    """Log-ratios (n, L) of a response whose ordinary tokens move by ±0.03 in turn, and one by ``outlier`` (n,)."""
    outliers = torch.as_tensor(outlier, dtype=torch.float64).view(-1, 1)
    signs = torch.ones(length, dtype=torch.float64)
    signs[1::2] = -1
    at = torch.arange(length) == place - 1
    return torch.where(at, outliers, JITTER * signs)


def relative_weights(name: str, log_r: Tensor, sign: float) -> Tensor:
    """Credit of each token over the same method's on-policy, for A = ``sign`` in each response; (n, L)."""
    row = method(name)
    A, mask = torch.full_like(log_r[:, :1], sign), torch.ones_like(log_r)
    zeros = torch.zeros_like(log_r)
    return credit(row.objective, log_r, zeros, A, mask) / credit(row.objective, zeros, zeros, A, mask)


def outlier(
    figure: Figure | None = None,
    *,
    log_ratio: float = 1.0,
    place: int = 4,
    sign: float = 1.0,
    length: int = 8,
    names: Sequence[str] = POOLS,
) -> Figure:
    """One token far off: what each token of the response still weighs (left), and an ordinary one as it goes (right).

    Weights are over the same method's on-policy.

    Args:
        figure: one that this function drew, to change in place.
        log_ratio: log ρ of the outlier.
        place: its position, from 1.
        sign: of A.
        length: tokens of the response, at least 2 and ``place``.
        names: methods.
    """
    figure, (left, right) = sheet(figure, (9.6, 4), 1, 2, width_ratios=[1.2, 1])
    place = min(place, length)
    reach = torch.linspace(-2.5, 2.5, 81, dtype=torch.float64)
    responses = response_with_outlier(torch.cat([torch.tensor([log_ratio]), reach]), place, length)
    neighbour = 1 if place == 1 else 0
    look = looks(names)
    aside = min(0.16, 0.7 / max(len(names), 1))
    keep(left, [*names, "outlier"])
    keep(right, [*names, *(f"{name} here" for name in names)])
    for i, name in enumerate(names):
        weights, *_ = found = relative_weights(name, responses, sign)
        others = found[1:, neighbour]
        line = {**look[name], "lw": 2.6 - 0.4 * i, "label": name}
        places = np.arange(1, length + 1) + aside * (i - (len(names) - 1) / 2)  # side by side: no dot hides another
        curve(left, name, places, weights, **{**line, "ls": "", "ms": 6})
        curve(right, name, reach, others, **{**line, "marker": ""})
        curve(right, f"{name} here", [log_ratio], [weights[neighbour]], color=look[name]["color"], marker="o", ls="")
    curve(left, "outlier", [place, place], [-0.1, 1.75], color="0.88", lw=24 * 8 / max(length, 8), zorder=0,
          solid_capstyle="butt")  # fmt: skip
    side = "A > 0" if sign > 0 else "A < 0"
    left.set_title(f"{side}, token {place} at ρ = {np.exp(log_ratio):.2f}", loc="left", fontsize=11)
    right.set_title("An ordinary token feels the outlier", loc="left", fontsize=11)
    left.set(xlabel="token", ylabel="weight, 1 on-policy", xlim=(0.5, length + 0.5), ylim=(-0.1, 2))
    left.set_xticks(np.arange(1, length + 1, max(1, length // 8)))
    right.set(xlabel="log ρ of the outlier", ylim=(-0.1, 1.6), xticks=[-2, -1, 0, 1, 2])
    left.legend(frameon=False, fontsize=9, ncols=4, loc="upper center", columnspacing=0.8, handletextpad=0.1)
    return settled(figure)


def pool_spread(figure: Figure | None = None, *, sigma: float = 0.035, longest: int = 4096) -> Figure:
    """Where 90 % of the products and of the geometric means lie, for independent token log-ratios of spread ``sigma``.

    Args:
        figure: one that this function drew, to change in place.
        sigma: standard deviation of a token's log ρ.
        longest: length.
    """
    figure, panels = sheet(figure, (9, 3.6), 1, 2)
    lengths = np.unique(np.geomspace(1, longest, 60).round())
    for axes, power, name in zip(panels, (0.5, -0.5), ("product Πρ", "geometric mean (Πρ)^(1/L)"), strict=True):
        half = 1.645 * sigma * lengths**power
        for key, edge in (("low", -half), ("high", half)):
            curve(axes, key, lengths, np.exp(edge), color="#0072B2", lw=1.5)
        level(axes, "one", 1, color="0.85", lw=0.8, zorder=0)
        words = f"at L = {longest}: {np.exp(-half[-1]):.4g} … {np.exp(half[-1]):.4g}"
        axes.set_title(f"{name}\n{words}", loc="left", fontsize=11)
        axes.set(xscale="log", xlabel="length L")
        axes.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
        axes.set_xticks([], minor=True)
    panels[0].set_yscale("log")
    panels[0].set_yticks([0.01, 0.1, 1, 10, 100], ["0.01", "0.1", "1", "10", "100"])
    panels[0].set_yticks([], minor=True)
    panels[0].set_ylabel("5 % and 95 % of the ratios")
    return settled(figure)


def opposite_pair(figure: Figure | None = None, *, apart: np.ndarray, pools: Mapping[str, np.ndarray]) -> Figure:
    """The weight of a response of two tokens, one at ρ = e^d and one at e^(−d), by how it is pooled.

    Args:
        figure: one that this function drew, to change in place.
        apart: (n,) d.
        pools: name → (n,) weights of the response.
    """
    figure, (axes,) = sheet(figure, (7.4, 3.8))
    look = looks(pools, dots=False)
    for name, weights in pools.items():
        curve(axes, name, apart, weights, **look[name], lw=2, label=name)
    upright(axes, "two", np.log(2), color="0.85", lw=0.8, zorder=0)
    top = max(float(np.max(w)) for w in pools.values())
    word(axes, "two", np.log(2), top, " (2, ½)", fontsize=9, va="top")
    axes.set_title("The geometric mean of (ρ, 1/ρ) is 1 however far both have moved", loc="left", fontsize=11)
    axes.set(xlabel="d: the tokens stand at ρ = e^d and e^(−d)", ylabel="weight of the response")
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    return settled(figure)


def silent_by_length(
    figure: Figure | None = None, *, lengths: Sequence[int], shares: Mapping[str, Sequence[float]], title: str = ""
) -> Figure:
    """The share of tokens without gradient over the response's length, one curve per method.

    Args:
        figure: one that this function drew, to change in place.
        lengths: (n,).
        shares: method → (n,) shares.
        title: what it shows.
    """
    figure, (axes,) = sheet(figure, (7.4, 3.8))
    look = looks(shares)
    for name, own in shares.items():
        curve(axes, name, lengths, own, **look[name], lw=2, label=name)
    axes.set(xscale="log", xlabel="length L", ylabel="share of tokens silenced", ylim=(0, 0.55))
    axes.set_xticks(list(lengths), [str(length) for length in lengths])
    axes.set_xticks([], minor=True)
    axes.set_title(title, loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    return settled(figure)


def prefix_weights(
    figure: Figure | None = None,
    *,
    log_prefix: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    weights: Mapping[str, np.ndarray],
) -> Figure:
    """The running product in its widening band (left), and what each token weighs by either differentiation (right).

    Args:
        figure: one that this function drew, to change in place.
        log_prefix: (L,) log of the product up to each token.
        lower: (L,) the band's lower edge, in log space.
        upper: (L,) its upper edge.
        weights: method → (L,).
    """
    figure, (left, right) = sheet(figure, (9, 3.8), 1, 2)
    positions = np.arange(1, len(log_prefix) + 1)
    out = (log_prefix > upper) | (log_prefix < lower)
    for key, edge in (("lower", lower), ("upper", upper)):
        curve(left, key, positions, edge, color="#0072B2", lw=0.8, ls="--")
    curve(left, "prefix", positions, log_prefix, color="0.3", marker="o", ms=4, lw=1)
    curve(left, "out", positions[out], log_prefix[out], color="#D55E00", marker="o", ms=6, ls="")
    left.set_title(f"{out.sum()} of {len(out)} prefixes outside the √t band", loc="left", fontsize=11)
    left.set(xlabel="position t", ylabel="log of the product up to t")
    look = looks(weights)
    for name, own in weights.items():
        curve(right, name, positions, own, **look[name], lw=2, label=name)
    right.set_title("Full autodiff favours early tokens", loc="left", fontsize=11)
    right.set(xlabel="position t", ylabel="weight")
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.legend(frameon=False, fontsize=9)
    return settled(figure)
