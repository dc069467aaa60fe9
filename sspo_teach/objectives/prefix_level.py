"""Objectives whose unit is the prefix: a token answers for what came before it and not for what comes after."""

from __future__ import annotations

import math

from torch import Tensor

from sspo_teach import gates
from sspo_teach.objectives import units
from sspo_teach.objectives.normalize import Normalizer, response_mean
from sspo_teach.tensors import check_between, checked, limit, log_ratio


@checked
def ctpo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float = 0.025,
    eps_high: float = 0.05,
    power: float = 0.5,
    eps_dual: float = math.inf,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """PPO's clip on the product of ratios up to the token, in a band that widens like the square root of its position.

    J = 1/R Σᵢ 1/Lᵢ Σₜ min(cᵢₜ Aᵢ, clip(cᵢₜ, e^(−ε_low tᵖ), e^(ε_high tᵖ)) Aᵢ),  cᵢₜ = sg[Πₛ≤ₜ ρᵢₛ] πᵢₜ/sg[πᵢₜ]

    Parts: prefix, log_clip (log_dual_clip) between bounds.by_position, response_mean.
    Weight: A times the product up to t, or 0 where that is clipped; the term of a token touches that token only.
    Differs: from grpo by the prefix, from fspo by stopping at the token; from ctpo_autodiff by the stop-gradient.
    Paper: Zhang et al., 2026, arXiv 2605.07331 (read in the authors' code, and in notes); p = ½, ε = 0.025, 0.05. The
        preset code has their dual clip, ε_dual = 0.05: for A < 0 silent above the same edge, which the paper does not
        print; their code also means over tokens.
    """
    log_c = units.prefix(log_ratio(logp, logp_old, mask), mask)
    lower, upper = gates.bounds.by_position(mask, eps_low, eps_high, power)
    check_between(0, math.inf, "it is a half-width in log space at t = 1", eps_dual=eps_dual)
    _, cap = gates.bounds.by_position(mask, 0.0, eps_dual, power)
    return -normalize(gates.log_dual_clip(log_c, advantages, lower, upper, cap).exp() * advantages, mask)


@checked
def ctpo_autodiff(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float = 0.025,
    eps_high: float = 0.05,
    power: float = 0.5,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """CTPO differentiated as printed: an early token also collects what all later prefixes say.

    J = 1/R Σᵢ 1/Lᵢ Σₜ min(cᵢₜ Aᵢ, clip(cᵢₜ, e^(−ε_low tᵖ), e^(ε_high tᵖ)) Aᵢ),  cᵢₜ = Πₛ≤ₜ ρᵢₛ

    Parts: prefix without its stop-gradient, log_clip between bounds.by_position, response_mean.
    Weight: A Σₛ≥ₜ cₛ over the positions s that are not clipped; on-policy (L − t + 1) A, so the start weighs most.
    Differs: from ctpo by the stop-gradient alone; values agree, credits do not.
    Paper: a reconstruction from the printed objective of arXiv 2605.07331, whose authors' code does not do this: kept
        to show what the stop-gradient is for. Numbers as in ctpo.
    """
    log_c = limit(log_ratio(logp, logp_old, mask).cumsum(dim=1)).where(mask, 0.0)
    lower, upper = gates.bounds.by_position(mask, eps_low, eps_high, power)
    return -normalize(gates.log_clip(log_c, advantages, lower, upper).exp() * advantages, mask)
