"""Objectives whose unit is the response. Order is meaning: GSPO pools and then gates, GMPO and SSPO gate and then pool.

S = exp(mean over the response of log f) is the geometric mean of the gated ratios; L is the response's length.
"""

from __future__ import annotations

from torch import Tensor

from sspo_teach import gates
from sspo_teach.objectives import units
from sspo_teach.objectives.normalize import Normalizer, response_mean
from sspo_teach.tensors import check_between, checked, log_ratio


@checked
def gspo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float = 3e-4,
    eps_high: float = 4e-4,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """PPO's clip on the ratio of the whole response, its length taken out by the geometric mean.

    J = 1/R Σᵢ min(sᵢ Aᵢ, clip(sᵢ, 1 − ε_low, 1 + ε_high) Aᵢ),  sᵢ = (Πₜ ρᵢₜ)^(1/Lᵢ)

    Parts: sequence, clip, response_mean. With one advantage per token it is GSPO-token.
    Weight: s A for every token of the response, or 0 for all of them where s is clipped.
    Differs: from grpo by the unit; from gmpo by pooling before the gate.
    Paper: Zheng et al., 2025, arXiv 2507.18071, eqs. 5–7 and 13–14; ε = 3e-4, 4e-4.
    """
    log_s = units.sequence(log_ratio(logp, logp_old, mask), mask)
    return -normalize(gates.clip(log_s, advantages, eps_low, eps_high) * advantages, mask)


@checked
def gmpo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float = 0.4,
    eps_high: float = 0.4,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """The geometric mean of clipped ratios: one outlier token moves the response's weight only so far.

    J = 1/R Σᵢ Aᵢ exp(1/Lᵢ Σₜ c(log ρᵢₜ)),  c = min(·, ε_high) where A > 0, max(·, −ε_low) where A < 0

    Parts: log_clip, then sequence, response_mean.
    Weight: S A, or 0 for a clipped token.
    Differs: from gspo by gating before pooling, on the log-ratio; from sspo by the gate, one word.
    Paper: Zhao et al., 2025, arXiv 2507.20673 (read in the authors' code); ε = 0.4, a half-width in log space.
    """
    check_between(0, float("inf"), "it is a half-width in log space", eps_low=eps_low, eps_high=eps_high)
    log_f = gates.log_clip(log_ratio(logp, logp_old, mask), advantages, -eps_low, eps_high)
    return -normalize(units.sequence(log_f, mask).exp() * advantages, mask)


@checked
def sspo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """The geometric mean of softly gated ratios: token-wise caution inside a response-wise weight.

    J = 1/R Σᵢ Aᵢ (Πₜ f(ρᵢₜ))^(1/Lᵢ),  f(ρ) = exp(arctan(τ(ρ − 1))/τ),  τ = τ_pos where A > 0, else τ_neg

    Parts: log_arctan, then sequence, response_mean.
    Weight: S ρ/(1 + τ²(ρ − 1)²) A; the token factor is at most (1 + √(1 + τ⁻²))/2 and fades like 1/(τ²ρ).
    Differs: from gmpo by the gate, one word; from sapo by pooling after it.
    Paper: Soft Sequence Policy Optimization, 2026, arXiv 2602.19327 v3, eqs. 13–16 as quoted by a review. It gives no τ
        but τ_neg ≥ τ_pos: 1.0, 1.05 are SAPO's (preset sapo, the default); 10, 12 were best in the same group's gate
        study (arXiv 2602.19345, preset gate-study).
    """
    log_f = gates.log_arctan(log_ratio(logp, logp_old, mask), advantages, tau_pos, tau_neg)
    return -normalize(units.sequence(log_f, mask).exp() * advantages, mask)


@checked
def sspo_sigmoid(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """SSPO with SAPO's sigmoid under the geometric mean: how a third-party summary reads the paper's first version.

    J = 1/R Σᵢ Aᵢ (Πₜ f(ρᵢₜ))^(1/Lᵢ),  f(ρ) = (4/τ) σ(τ(ρ − 1))

    Parts: log_sigmoid, then sequence, response_mean.
    Weight: S τρ(1 − σ(τ(ρ − 1))) A, with S = 2/τ at ρ = 1; the product is 1 there.
    Differs: from sspo by the gate; on responses of equal ratios its weight is sapo's.
    Paper: a reconstruction after a third-party summary of arXiv 2602.19327 v1, not the paper's formula; τ are SAPO's.
    """
    log_f = gates.log_sigmoid(log_ratio(logp, logp_old, mask), advantages, tau_pos, tau_neg)
    return -normalize(units.sequence(log_f, mask).exp() * advantages, mask)


@checked
def sspo_log_ratio(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """SSPO with the arctan of the log-ratio: another reading of its "arctan gate".

    J = 1/R Σᵢ Aᵢ exp(1/Lᵢ Σₜ arctan(τ log ρᵢₜ)/τ)

    Parts: log_arctan_log_ratio, then sequence, response_mean.
    Weight: S/(1 + τ² log² ρ) A; the token factor peaks at ρ = 1, is even in log ρ, and 1 for τ → 0 (gspo unclipped).
    Differs: from sspo by where the arctan is taken.
    Paper: a reconstruction after third-party notes on arXiv 2602.19327, not the paper's formula; τ are SAPO's.
    """
    log_f = gates.log_arctan_log_ratio(log_ratio(logp, logp_old, mask), advantages, tau_pos, tau_neg)
    return -normalize(units.sequence(log_f, mask).exp() * advantages, mask)
