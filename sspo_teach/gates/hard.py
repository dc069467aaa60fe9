"""Gates that cut: the ratio passes inside a band and its gradient is dropped outside, on one side by the sign of A.

A gate maps (log x, advantages, numbers) to the gated ratio f, or to log f where its name starts with ``log_``.
On-policy (log x = 0) every gate has weight 1: ∂f/∂log x = 1, and for the ``log_`` ones f · ∂log f/∂log x = 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sspo_teach.gates import bounds
from sspo_teach.tensors import check_between


def extending(log_x: Tensor, advantages: Tensor, lower: float = 0.0, upper: float = 0.0) -> Tensor:
    """Where a token has moved the way A wants, beyond the bounds: there ``log_clip`` has no gradient; (B, T) bool.

    Without bounds: x > 1 with A > 0, or x < 1 with A ≤ 0. The others are corrective, their gradient brings x back to 1.
    """
    return torch.where(advantages > 0, log_x > upper, log_x < lower)


def log_identity(log_x: Tensor, advantages: Tensor) -> Tensor:
    """log f = log x: no gate at all."""
    return log_x


def identity(log_x: Tensor, advantages: Tensor) -> Tensor:
    """f = x: no gate at all."""
    return log_identity(log_x, advantages).exp()


def log_clip(log_x: Tensor, advantages: Tensor, lower: float | Tensor, upper: float | Tensor) -> Tensor:
    """log f = min(log x, upper) where A > 0, max(log x, lower) elsewhere: the root of all hard clips.

    One-sided, because only a ratio that already moved the way A wants is stopped; the way back stays open.
    """
    check_between(-math.inf, 0, "the band must hold log ρ = 0 (lower is −eps_low for GMPO)", lower=lower)
    check_between(0, math.inf, "the band must hold log ρ = 0 (upper is eps_high for GMPO)", upper=upper)
    lower, upper = (bound.to(log_x.dtype) if isinstance(bound, Tensor) else bound for bound in (lower, upper))
    return torch.where(advantages > 0, log_x.clamp(max=upper), log_x.clamp(min=lower))


def log_dual_clip(
    log_x: Tensor, advantages: Tensor, lower: float | Tensor, upper: float | Tensor, cap: float | Tensor
) -> Tensor:
    """``log_clip`` that also stops log x at ``cap`` where A ≤ 0, where one-sided gates have no bound (1912.09729)."""
    check_between(0, math.inf, "the band must hold log ρ = 0", cap=cap)
    cap = cap.to(log_x.dtype) if isinstance(cap, Tensor) else cap
    return log_clip(torch.where(advantages > 0, log_x, log_x.clamp(max=cap)), advantages, lower, upper)


def clip(log_x: Tensor, advantages: Tensor, eps_low: float, eps_high: float) -> Tensor:
    """f A = min(x A, clip(x, 1 − ε_low, 1 + ε_high) A), PPO's rule (arXiv 1707.06347, eq. 7): exp of ``log_clip``."""
    return log_clip(log_x, advantages, *bounds.constant(eps_low, eps_high)).exp()


def dual_clip(log_x: Tensor, advantages: Tensor, eps_low: float, eps_high: float, ratio_cap: float) -> Tensor:
    """``clip`` that also stops x at ``ratio_cap`` where A ≤ 0, and PPO's weight has no bound (arXiv 1912.09729)."""
    check_between(
        1 + eps_high, math.inf, "it is an absolute ceiling above the band, 3.0 in the paper", ratio_cap=ratio_cap
    )
    return log_dual_clip(log_x, advantages, *bounds.constant(eps_low, eps_high), math.log(ratio_cap)).exp()


def delta_clip(log_x: Tensor, advantages: Tensor, eps_low: float, eps_high: float, delta: float) -> Tensor:
    """f A = min(min(x, δ) A, clip(x, 1 − ε_low, 1 + ε_high) A), a ceiling for either sign (arXiv 2505.07291).

    From δ = 1 + ε_high on this is ``dual_clip``; below, it closes the band early where A > 0 and only the band counts
    where A ≤ 0.
    """
    check_between(1, math.inf, "it is an absolute ceiling on the ratio, 4.0 in INTELLECT-2", delta=delta)
    capped, inside = log_x.clamp(max=math.log(delta)), log_x.clamp(*bounds.constant(eps_low, eps_high))
    return torch.where(advantages > 0, capped.minimum(inside), capped.maximum(inside)).exp()
