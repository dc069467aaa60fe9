"""Objectives whose unit is the response. Order is meaning: GSPO pools and then gates, GMPO and SSPO gate and then pool.

S = exp(mean over the response of log f) is the geometric mean of the gated ratios; L is the response's length.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sspo_teach import gates
from sspo_teach.objectives import units
from sspo_teach.objectives.normalize import Normalizer, response_mean, sequence_sum, token_mean
from sspo_teach.tensors import check_between, check_positive, checked, log_ratio, masked_mean, with_value


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
def gspo_token(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float = 3e-4,
    eps_high: float = 4e-4,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """GSPO written per token, so that each may have an advantage of its own.

    J = 1/R Σᵢ 1/Lᵢ Σₜ min(sᵢₜ Aᵢₜ, clip(sᵢₜ, 1 − ε_low, 1 + ε_high) Aᵢₜ),  sᵢₜ = sg[sᵢ] π_θ(yᵢₜ)/sg[π_θ(yᵢₜ)]

    Parts: sequence in its stop-gradient form, clip, response_mean.
    Weight: s Aₜ, or 0 where s is clipped for the sign of Aₜ.
    Differs: from gspo as printed by the advantage alone; gspo here is built through the same unit, so the two agree to
        rounding for every input, and this row shows the construction.
    Paper: Zheng et al., 2025, arXiv 2507.18071, eqs. 13–14; ε = 3e-4, 4e-4.
    """
    log_r = log_ratio(logp, logp_old, mask)
    log_s = with_value(masked_mean(log_r, mask), log_r)
    return -normalize(gates.clip(log_s, advantages, eps_low, eps_high) * advantages, mask)


@checked
def luspo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float = 2e-3,
    eps_high: float = 2.5e-3,
    normalize: Normalizer = sequence_sum,
) -> Tensor:
    """GSPO whose terms are multiplied by their length: a token weighs the same in a long and in a short response.

    J = 1/R Σᵢ Lᵢ min(sᵢ Aᵢ, clip(sᵢ, 1 − ε_low, 1 + ε_high) Aᵢ)

    Parts: sequence, clip, sequence_sum (L times a term that all tokens share is their sum).
    Weight: s A, or 0 for the whole response where s is clipped.
    Differs: from gspo by the normalizer and a wider band.
    Paper: LUSPO, 2026, arXiv 2602.05261 (read in TRL); ε = 2e-3, 2.5e-3.
    """
    log_s = units.sequence(log_ratio(logp, logp_old, mask), mask)
    return -normalize(gates.clip(log_s, advantages, eps_low, eps_high) * advantages, mask)


@checked
def fspo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    c_low: float = 0.03,
    c_high: float = 0.03,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """PPO's clip on the product of ratios, in a band that widens like √L: short and long responses are clipped alike.

    J = 1/R Σᵢ min(e^Sᵢ Aᵢ, exp(clip(Sᵢ, −c_low √Lᵢ, c_high √Lᵢ)) Aᵢ),  Sᵢ = Σₜ log ρᵢₜ

    Parts: product, log_clip between bounds.by_length, response_mean.
    Weight: L e^S A, so that nothing is left of response_mean's 1/L, or 0 where clipped; for A < 0 it grows to S = 20.
    Differs: from gspo by the product; the clip alone is gspo's at ±c/√L on the mean.
    Paper: Mao et al., 2025, arXiv 2509.09177 (abstract and third-party notes of v3). UNVERIFIED: c (notes say about
        0.03, not equal on both sides), a dual clip of unknown value (left out), and the aggregation.
    """
    log_w = units.product(log_ratio(logp, logp_old, mask), mask)
    log_f = gates.log_clip(log_w, advantages, *gates.bounds.by_length(mask, c_low, c_high))
    return -normalize(log_f.exp() * advantages, mask)


@checked
def vespo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    k_pos: float = 2.0,
    lambda_pos: float = 3.0,
    k_neg: float = 3.0,
    lambda_neg: float = 2.0,
    normalize: Normalizer = token_mean,
) -> Tensor:
    """A smooth hump over the product of ratios in place of any clip, detached: REINFORCE, reweighted.

    J = 1/ΣL Σᵢ sg[φ(Wᵢ)] Aᵢ Σₜ log π_θ(yᵢₜ),  φ(W) = e^λ Wᵏ e^(−λW),  W = Πₜ ρᵢₜ,  (k, λ) by the sign of A

    Parts: product, weight (score), token_mean.
    Weight: φ(W) A, largest at W = k/λ: 1.208 where A > 0, 1.242 where A < 0; 1 on-policy for every k and λ.
    Differs: from cispo by the true sequence weight and by fading on both sides.
    Paper: VESPO, 2026, arXiv 2602.10693 (read in the authors' code); k, λ = 2, 3 where A ≥ 0 and 3, 2 where A < 0.
    """
    check_positive(k_pos=k_pos, lambda_pos=lambda_pos, k_neg=k_neg, lambda_neg=lambda_neg)
    log_r = log_ratio(logp, logp_old, mask)
    log_w = units.product(log_r, mask)
    k = torch.full_like(log_w, k_pos).masked_fill(advantages < 0, k_neg)
    lam = torch.full_like(log_w, lambda_pos).masked_fill(advantages < 0, lambda_neg)
    weight = (k * log_w - lam * log_w.expm1()).exp()
    return -normalize(gates.score(weight, log_r) * advantages, mask)


@checked
def gepo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    group_ids: Tensor,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """The response's ratio with the group's expected old probability below the line: one denominator for all.

    J = 1/R Σᵢ wᵢ Aᵢ,  wᵢ = pᵢ Σⱼ qⱼ/Σⱼ qⱼ² (j over the group),  p, q geometric means of π_θ, π_old over the response

    Parts: sequence and units.above_group, no gate (identity), response_mean.
    Weight: w A; on-policy A only where all q of the group are equal.
    Differs: from gspo by the denominator and by never clipping. Biased, with less variance where p and q are far apart.
    Paper: Zhang et al., 2025, arXiv 2508.17850, eqs. 2–3. Printed with the probability of the whole response, under
        which all but the likeliest response of a group would vanish; the authors' code takes the geometric mean, as
        here, and keeps GRPO's clip, which their text argues against. A = R − mean, as in their §2.1.
    """
    log_w = units.sequence(log_ratio(logp, logp_old, mask), mask) + units.above_group(logp_old, mask, group_ids)
    return -normalize(gates.identity(log_w, advantages) * advantages, mask)


@checked
def cspo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    lower: float = math.log(1 - 3e-4),
    upper: float = math.log(1 + 4e-4),
    normalize: Normalizer = response_mean,
) -> Tensor:
    """GSPO in a band calibrated on recent scores, so that a fresh response falls outside with probability α at most.

    J = 1/R Σᵢ min(Wᵢ Aᵢ, clip(Wᵢ, e^lower, e^upper) Aᵢ),  Wᵢ = (Πₜ ρᵢₜ)^(1/Lᵢ)

    Parts: sequence, log_clip, response_mean. ConformalBand, a controller, sets lower and upper before each update from
        scores of earlier ones; the numbers here, GSPO's, serve until it has seen enough.
    Weight: W A, or 0 for the whole response where clipped.
    Differs: from gspo by a band that moves with training, so that the share it removes stays what it was meant to be.
    Paper: CSPO, 2026 (abstract and tables, no public text or code); everything beyond "conformal clip endpoints from
        recent statistics at budget α" is a reconstruction: score, buffer, two sides of α/2, window, warm-up.
    """
    log_s = units.sequence(log_ratio(logp, logp_old, mask), mask)
    return -normalize(gates.log_clip(log_s, advantages, lower, upper).exp() * advantages, mask)


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
