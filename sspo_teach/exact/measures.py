"""From moments to a comparison: bias, scatter and what they cost together, with and without a method's own scale.

Methods differ by a constant factor even on-policy, and Adam does not feel one; so each measure comes twice, as it is
and after the best scalar multiple.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sspo_teach.exact.moments import Draws, Moments, expected
from sspo_teach.exact.problem import Problem
from sspo_teach.objectives.normalize import Normalizer


def compare(here: Problem, found: Moments, *, batch: int = 64) -> dict[str, float]:
    """How far ĝ is from the truth g = ∇J, on average over ``batch`` groups.

    With m = E[ĝ], C = tr Cov[ĝ]/batch: bias ‖m − g‖, mse = bias² + C. The best multiple of m is a = ⟨m, g⟩/‖m‖², what
    it leaves is ‖g‖ √(1 − cos²); the best multiple of a batch's ĝ shrinks, a' = ⟨m, g⟩/(‖m‖² + C), and leaves
    ‖g‖² − ⟨m, g⟩²/(‖m‖² + C). The names that end in _scaled are relative to ‖g‖ or ‖g‖²: 0 is the truth, 1 no step.
    """
    g, m, scatter = here.truth, found.mean, found.trace / batch
    gg, mm, mg = (float(x @ y) for x, y in ((g, g), (m, m), (m, g)))
    bias = float((m - g).norm())
    scale = mg / mm if mm else 0.0
    cosine = mg / (mm * gg) ** 0.5 if mm and gg else 0.0
    return {
        "truth": gg**0.5,
        "norm": mm**0.5,
        "bias": bias,
        "cosine": cosine,
        "trace": found.trace,
        "mse": bias**2 + scatter,
        "scale": scale,
        "bias_scaled": max(0.0, 1 - cosine**2) ** 0.5,
        "trace_scaled": scale**2 * found.trace / gg if gg else 0.0,
        "mse_scaled": 1 - mg**2 / ((mm + scatter) * gg) if gg and mm + scatter else 1.0,
    }


def weights(draws: Draws, coef: Tensor, here: Problem, normalize: Normalizer) -> Tensor:
    """What multiplies A ∇log π of each token, (n, T): credit over the normalizer's factor and A; NaN where A = 0."""
    mask = here.tree.mask[draws.response]
    if draws.together:
        factor = _factor_of_groups(mask.view(-1, draws.together, mask.shape[1]), normalize)
    else:
        factor = _factor(mask, normalize, draws.counts)
    return (coef / (factor * draws.advantage)).where(mask & (draws.advantage != 0), torch.nan)


def _factor(mask: Tensor, normalize: Normalizer, counts: Mapping[str, Any]) -> Tensor:
    """What a normalizer multiplies each token by; (n, T)."""
    takes = inspect.signature(normalize).parameters
    with torch.enable_grad():
        x = torch.ones(mask.shape, dtype=torch.float64).requires_grad_()
        given = {name: count for name, count in counts.items() if name in takes}
        (factor,) = torch.autograd.grad(normalize(x, mask, **given), x)
    return factor


def _factor_of_groups(mask: Tensor, normalize: Normalizer) -> Tensor:
    """The same where each group (k, G, T) is a batch of its own; (k·G, T)."""
    kinds, kind = torch.unique(mask, dim=0, return_inverse=True)
    return torch.stack([_factor(own, normalize, {}) for own in kinds])[kind].flatten(0, 1)


def ideal_weights(here: Problem, draws: Draws) -> Tensor:
    """W A of each token, (n, T): what importance weights of whole responses give with the same advantages."""
    mask = here.tree.mask[draws.response]
    return (here.ratio[draws.response].unsqueeze(1) * draws.advantage).expand(mask.shape).where(mask, 0.0)


def sides(here: Problem, draws: Draws) -> dict[str, Tensor]:
    """Tokens by the sign of A, and by whether their ratio comes back to 1 or goes on: masks (n, T)."""
    mask = here.tree.mask[draws.response]
    log_r = (here.logp - here.logp_old)[draws.response]
    A = draws.advantage.expand(mask.shape)
    return {
        "positive": mask & (A > 0),
        "negative": mask & (A < 0),
        "corrective": mask & (A * log_r < 0),
        "extending": mask & (A * log_r > 0),
    }


def removed(here: Problem, draws: Draws, weight: Tensor) -> dict[str, float]:
    """Share of the signal |A| ρ that a method takes away, by sign and side; negative where it adds.

    1 − E[Σ |A| weight]/E[Σ |A| ρ] over the tokens of a side; 0 where there are none.
    """
    ratio = (here.logp - here.logp_old)[draws.response].exp()
    mass = draws.chance.unsqueeze(1) * draws.advantage.abs()
    out = {}
    for name, side in sides(here, draws).items():
        whole = (mass * ratio)[side].sum()
        out[f"removed_{name}"] = (1 - (mass * weight)[side].sum() / whole).item() if whole else 0.0
    return out


def used(draws: Draws, weight: Tensor) -> float:
    """Effective share of the tokens that carry the update: E[w]²/E[w²] over tokens with an advantage."""
    real = ~weight.isnan()
    w, chance = weight[real], draws.chance.unsqueeze(1).expand(weight.shape)[real]
    square = (chance * w.square()).sum() * chance.sum()
    return ((chance * w).sum().square() / square).item() if square else 0.0


def parts(here: Problem, draws: Draws, coef: Tensor, *, scale: float = 1.0) -> list[dict[str, Any]]:
    """Bias and scatter of each part of the gradient: by sign of A, by side, and by response length.

    ``scale`` multiplies the method's gradient first (``compare``'s, for a comparison without a method's own factor).
    A part's yardstick is the same part under importance weights of whole responses with the same advantages, whose
    sum is the truth for population advantages. All is relative to ‖g‖ or ‖g‖².
    """
    gg = float(here.truth @ here.truth)
    ideal = ideal_weights(here, draws) * draws.chance.unsqueeze(1)
    lengths = here.tree.lengths[draws.response].unsqueeze(1)
    longs = {f"length {n}": (lengths == n) & here.tree.mask[draws.response] for n in lengths.unique().tolist()}
    rows = []
    for name, part in {**sides(here, draws), **longs}.items():
        found = expected(here, draws, coef.where(part, 0.0))
        yard = here.new.combine(here.tree.sums(ideal.where(part, 0.0), draws.response))
        rows.append(
            {
                "part": name,
                "along": scale * float(found.mean @ here.truth) / gg,
                "ideal": float(yard @ here.truth) / gg,
                "bias": float((scale * found.mean - yard).norm()) / gg**0.5,
                "trace": scale**2 * found.trace / gg,
            }
        )
    return rows
