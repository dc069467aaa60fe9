"""Figures of hard clips: their pieces, what they silence, and what becomes of a token that they stop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from sspo_teach import gates
from sspo_teach.plotting.redraw import band, columns, curve, level, over, settled, sheet, upright, word
from sspo_teach.plotting.style import looks

INSIDE, CORRECTIVE, SILENT = "#56B4E9", "#E69F00", "0.35"
"""A token inside the band, one outside that still has a gradient, and one that has none."""
SIGNS = ((1.0, "A > 0"), (-1.0, "A < 0"))
RATIOS = np.linspace(0.02, 3.6, 359)


def clip_pieces(
    figure: Figure | None = None,
    *,
    ratio: float = 1.3,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    ratio_cap: float = math.inf,
) -> Figure:
    """PPO's clipped objective over ρ for both signs of A = ±1, above the weight of ∇log π, with one token marked.

    Args:
        figure: one that this function drew, to change in place.
        ratio: ρ of the token.
        eps_low: the band's lower edge is 1 − ε_low.
        eps_high: its upper edge is 1 + ε_high.
        ratio_cap: the dual clip's ceiling for A < 0, at least 1 + ε_high.
    """
    figure, panels = sheet(figure, (9, 5.6), 2, 2, sharex=True)
    edges = 1 - eps_low, 1 + eps_high
    for column, (sign, name) in enumerate(SIGNS):
        above, below = panels[column], panels[2 + column]
        value, weight = _clipped(RATIOS, sign, eps_low, eps_high, ratio_cap)
        here, pull = (x.item() for x in _clipped(np.array([ratio]), sign, eps_low, eps_high, ratio_cap))
        for axes, drawn, free, at in ((above, value, sign * RATIOS, here), (below, weight, sign * RATIOS, pull)):
            band(axes, "band", *edges, color="#56B4E9", alpha=0.25, lw=0, label="the band")
            curve(axes, "free", RATIOS, free, color="0.6", ls=":", label="no clip")
            curve(axes, "clip", RATIOS, drawn, **looks(["ppo"], dots=False)["ppo"], lw=2, label="clipped")
            curve(axes, "token", [ratio], [at], color="#D55E00", marker="o", ms=8, ls="", label="one token")
            level(axes, "zero", 0, color="0.85", lw=0.8, zorder=0)
        what = "no gradient" if pull == 0 else f"weight {pull:+.2f}"
        where = "inside" if edges[0] <= ratio <= edges[1] else "outside"
        above.set_title(f"{name}: at ρ = {ratio:.2f}, {where} the band, {what}", loc="left", fontsize=11)
        above.set_ylabel("objective f(ρ) A")
        below.set(ylabel="weight of ∇log π", xlabel="ratio ρ", xlim=(0, 3.6))
        for axes in (above, below):
            axes.set_ylim(*((-0.2, 3.7) if sign > 0 else (-3.7, 0.2)))
            axes.set_yticks([0, sign, 2 * sign, 3 * sign])
        below.set_xticks([0, 1, 2, 3])
    panels[0].legend(frameon=False, fontsize=9, loc="upper left")
    return settled(figure)


def _clipped(ratios: np.ndarray, sign: float, eps_low: float, eps_high: float, cap: float) -> tuple[Tensor, Tensor]:
    """f A and its derivative by log ρ, (n,)."""
    z = torch.as_tensor(ratios).log().view(-1, 1).requires_grad_()
    A = torch.full_like(z, sign)
    if cap < math.inf:
        value = gates.dual_clip(z, A, eps_low, eps_high, cap) * sign
    else:
        value = gates.clip(z, A, eps_low, eps_high) * sign
    (weight,) = torch.autograd.grad(value.sum(), z)
    return value.detach().squeeze(1), weight.squeeze(1)


def token_fates(
    figure: Figure | None = None,
    *,
    log_r: Tensor,
    advantages: Tensor,
    mask: Tensor,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
) -> Figure:
    """Ratios of a minibatch by the sign of A: inside the band, outside with a gradient, outside without.

    Args:
        figure: one that this function drew, to change in place.
        log_r: (B, T) log ρ.
        advantages: (B, 1) or (B, T).
        mask: (B, T).
        eps_low: the band's lower edge is 1 − ε_low.
        eps_high: its upper edge is 1 + ε_high.
    """
    figure, panels = sheet(figure, (9.6, 3.4), 1, 2, sharey=True)
    edges = gates.bounds.constant(eps_low, eps_high)
    A = advantages.expand_as(log_r)
    live = mask.bool() & (A != 0)
    silent = gates.extending(log_r, A, *edges) & live
    outside = ((log_r < edges[0]) | (log_r > edges[1])) & live
    kinds = {"inside": live & ~outside, "outside, on the way back": outside & ~silent, "gradient removed": silent}
    bins = np.linspace(-1, 1, 41)
    middle = (bins[1:] + bins[:-1]) / 2
    tallest = 1.0
    for axes, (sign, name) in zip(panels, SIGNS, strict=True):
        bottom = np.zeros(len(middle))
        side = A * sign > 0
        for (kind, where), colour in zip(kinds.items(), (INSIDE, CORRECTIVE, SILENT), strict=True):
            ratios = log_r[where & side].clamp(-0.999, 0.999).numpy()
            height = np.histogram(ratios, bins)[0]
            columns(axes, kind, middle, height, bottom=bottom, width=bins[1] - bins[0], color=colour, label=kind)
            bottom = bottom + height
        tallest = max(tallest, bottom.max())
        of = max(int((live & side).sum()), 1)
        out, gone = (100 * int((x & side).sum()) / of for x in (outside, silent))
        axes.set_title(f"{name}: {out:.1f} % outside, {gone:.1f} % silenced", loc="left", fontsize=11)
        axes.set(xlabel="log ratio (the outermost bars hold all beyond)", xticks=[-1, -0.5, 0, 0.5, 1])
        axes.set_yscale("symlog")
        for key, edge in zip(("low", "high"), edges, strict=True):
            upright(axes, key, edge, color="0.2", lw=0.8, ls="--")
    panels[0].set_ylabel("tokens")
    panels[0].set_ylim(0, 3 * tallest)
    ticks = [0, *(10**k for k in range(6) if 10**k < 3 * tallest)]
    panels[0].set_yticks(ticks, [f"{tick}" for tick in ticks])
    panels[1].legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    return settled(figure)


def clip_weights(
    figure: Figure | None = None, *, ratios: np.ndarray, weights: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> Figure:
    """What multiplies |A| ∇log π, over ρ, for each rule; left A > 0, right A < 0.

    Args:
        figure: one that this function drew, to change in place.
        ratios: (n,).
        weights: rule → weights for A = 1 and for A = −1, each (n,).
    """
    figure, panels = sheet(figure, (9, 3.8), 1, 2, sharex=True)
    look = looks(weights, dots=False)
    for axes, (sign, name), side in zip(panels, SIGNS, (0, 1), strict=True):
        for i, (rule, both) in enumerate(weights.items()):
            curve(axes, rule, ratios, both[side], **over(look[rule], i, len(weights)), label=rule)
        upright(axes, "one", 1, color="0.85", lw=0.8, zorder=0)
        axes.set(xlabel="ratio ρ", xscale="log")
        axes.set_title(f"{name}: {'the band ends the push up' if sign > 0 else 'only a cap ends the push down'}",
                       loc="left", fontsize=11)  # fmt: skip
        axes.set_xticks([0.25, 0.5, 1, 2, 4, 8], ["¼", "½", "1", "2", "4", "8"])
        axes.set_xticks([], minor=True)
    panels[0].set_ylabel("weight of ∇log π")
    panels[1].legend(frameon=False, fontsize=9, loc="lower left")
    return settled(figure)


def inner_updates(
    figure: Figure | None = None,
    *,
    paths: Mapping[str, Sequence[float]],
    edges: tuple[float, float] = (0.8, 1.2),
    title: str = "",
) -> Figure:
    """The ratio of one token after each update on the same batch, one path per rule, between the band's edges.

    Args:
        figure: one that this function drew, to change in place.
        paths: rule → ratios, from before the first update on.
        edges: of the band, as ratios.
        title: what it shows.
    """
    figure, (axes,) = sheet(figure, (7.4, 3.8))
    for key, edge in zip(("low", "high"), edges, strict=True):
        level(axes, key, edge, color="#0072B2", lw=0.8, ls="--")
    look = looks(paths)
    for i, (rule, ratios) in enumerate(paths.items()):
        curve(axes, rule, range(len(ratios)), ratios, **over(look[rule], i, len(paths)), label=rule)
    axes.set(xlabel="updates on the same batch", ylabel="ratio ρ of the token")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    most = max(len(ratios) for ratios in paths.values()) - 1
    word(axes, "band", most, edges[0], "edges of the band", va="top", ha="right", color="#0072B2", fontsize=9)
    axes.set_title(title, loc="left", fontsize=11)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    return settled(figure)


def probability_rounds(
    figure: Figure | None = None, *, start: float = 0.01, goal: float = 0.5, edges: Sequence[float] = (0.2, 0.28)
) -> Figure:
    """How a rare token climbs when every rollout may raise its probability by the factor 1 + ε and no more.

    Args:
        figure: one that this function drew, to change in place.
        start: probability of the token at first.
        goal: probability that is wanted.
        edges: values of ε, one path each.
    """
    figure, (axes,) = sheet(figure, (7.4, 3.6))
    needed = {eps: math.ceil(math.log(goal / start) / math.log1p(eps) - 1e-9) for eps in edges}
    most = max(needed.values())
    for i, (eps, rounds) in enumerate(needed.items()):
        steps = np.arange(rounds + 1)
        look: dict[str, Any] = {"color": ("#0072B2", "#D55E00", "#009E73")[i % 3], "marker": "o", "ms": 3.5}
        curve(axes, f"{i}", steps, np.minimum(start * (1 + eps) ** steps, 1), **look, label=f"ε_high = {eps:g}")
    curve(axes, "goal", [0, most], [goal, goal], color="0.6", ls=":")
    counted = ", ".join(f"{rounds} at ε = {eps:g}" for eps, rounds in needed.items())
    axes.set_title(f"Rollouts from {start:g} to {goal:g} at the band's edge: {counted}", loc="left", fontsize=11)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="rollouts", ylabel="largest probability", yscale="log", xlim=(0, most))
    axes.set_yticks([start, 0.03, 0.1, 0.3, 1], [f"{start:g}", "0.03", "0.1", "0.3", "1"])
    axes.set_yticks([], minor=True)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    return settled(figure)
