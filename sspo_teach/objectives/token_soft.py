"""Objectives that gate each token's ratio softly: no token falls silent at an edge.

J is maximised and −J returned. ρ = π_θ/π_old per token, A the advantage, L the length, R the number of responses.
"""

from __future__ import annotations

from torch import Tensor

from sspo_teach import gates
from sspo_teach.objectives.normalize import Normalizer, response_mean, token_mean
from sspo_teach.tensors import check_between, check_positive, checked, log_ratio


@checked
def sapo_erf(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    tau_pos: float = 10.0,
    tau_neg: float = 12.0,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """SAPO with a Gaussian slope: far tokens fade fastest.

    J = 1/R Σᵢ 1/Lᵢ Σₜ (1 + √(π/(2τ²)) erf(τ(ρᵢₜ − 1)/√2)) Aᵢ,  τ = τ_pos where A > 0, else τ_neg

    Parts: token, erf, response_mean.
    Weight: ρ exp(−τ²(ρ − 1)²/2) A.
    Differs: from sapo by the gate; the same as sapo_gaussian at κ = ½.
    Paper: the study of SAPO's gate, 2026, arXiv 2602.19345 v2 (full text); τ = 10, 12 were its best for every gate.
    """
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.erf(log_r, advantages, tau_pos, tau_neg) * advantages, mask)


@checked
def sapo_arctan(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    tau_pos: float = 10.0,
    tau_neg: float = 12.0,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """SAPO with a Cauchy slope: far tokens fade slowly.

    J = 1/R Σᵢ 1/Lᵢ Σₜ (1 + arctan(τ(ρᵢₜ − 1))/τ) Aᵢ,  τ = τ_pos where A > 0, else τ_neg

    Parts: token, arctan, response_mean.
    Weight: ρ/(1 + τ²(ρ − 1)²) A, about A/(τ²ρ) far out.
    Differs: from sapo by the gate; from sspo by gating each token without exp and pool. It is sapo_cauchy at κ = 1.
    Paper: the study of SAPO's gate, 2026, arXiv 2602.19345 v2 (full text); τ = 10, 12 were its best for every gate.
    """
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.arctan(log_r, advantages, tau_pos, tau_neg) * advantages, mask)


@checked
def sapo_softsign(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    tau_pos: float = 10.0,
    tau_neg: float = 12.0,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """SAPO with the slope of a softsign: between the Gaussian and the Cauchy.

    J = 1/R Σᵢ 1/Lᵢ Σₜ (1 + (ρᵢₜ − 1)/√(1 + τ²(ρᵢₜ − 1)²)) Aᵢ,  τ = τ_pos where A > 0, else τ_neg

    Parts: token, softsign, response_mean.
    Weight: ρ (1 + τ²(ρ − 1)²)^(−3/2) A.
    Differs: from sapo by the gate.
    Paper: the study of SAPO's gate, 2026, arXiv 2602.19345 v2 (full text); τ = 10, 12 were its best for every gate.
    """
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.softsign(log_r, advantages, tau_pos, tau_neg) * advantages, mask)


@checked
def sapo_directional(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """The clip's side with SAPO's softness: only tokens that moved the way A wants fade.

    J = 1/R Σᵢ 1/Lᵢ Σₜ g(ρᵢₜ) Aᵢ,  g(ρ) = (4/τ)(σ(τ(ρ − 1)) − ½) + 1 where A > 0, ρ > 1 or A < 0, ρ < 1, else ρ

    Parts: token, directional_sigmoid, response_mean.
    Weight: ρ sech²(τ(ρ − 1)/2) A beyond 1 in the direction of A, ρ A on the way back, unbounded for A < 0.
    Differs: from grpo by the softness, from sapo by the side: the second of four gates that change one thing at a time.
    Paper: a reconstruction of an ablation that a review of SAPO (arXiv 2511.20347) asks for; τ are SAPO's.
    """
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.directional_sigmoid(log_r, advantages, tau_pos, tau_neg) * advantages, mask)


@checked
def sapo_gaussian(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    kappa: float = 0.25,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """SAPO with a Gaussian slope that matches its curvature or its width.

    J = 1/R Σᵢ 1/Lᵢ Σₜ (1 + ½√(π/(κτ²)) erf(√κ τ(ρᵢₜ − 1))) Aᵢ,  τ = τ_pos where A > 0, else τ_neg

    Parts: token, gaussian, response_mean.
    Weight: ρ exp(−κτ²(ρ − 1)²) A; at κ = ¼ and τ = 1 the largest is 1.558, at ρ = 2.
    Differs: from sapo by the kernel only; from sapo_erf by κ.
    Paper: a reconstruction of an ablation that a review of SAPO (arXiv 2511.20347) asks for; τ are SAPO's, κ = ¼ shares
        the curvature of its slope at 1, κ = 0.223072 the half width (preset width). No κ shares both.
    """
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.gaussian(log_r, advantages, tau_pos, tau_neg, kappa) * advantages, mask)


@checked
def sapo_cauchy(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    kappa: float = 0.25,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """SAPO with a Cauchy slope that matches its curvature or its width.

    J = 1/R Σᵢ 1/Lᵢ Σₜ (1 + arctan(√κ τ(ρᵢₜ − 1))/(√κ τ)) Aᵢ,  τ = τ_pos where A > 0, else τ_neg

    Parts: token, cauchy, response_mean.
    Weight: ρ/(1 + κτ²(ρ − 1)²) A; at κ = ¼ and τ = 1 the largest is 1.618, at ρ = √5.
    Differs: from sapo by the kernel only; from sapo_arctan by κ.
    Paper: a reconstruction of an ablation that a review of SAPO (arXiv 2511.20347) asks for; τ are SAPO's, κ = ¼ shares
        the curvature of its slope at 1, κ = 0.321825 the half width (preset width). No κ shares both.
    """
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.cauchy(log_r, advantages, tau_pos, tau_neg, kappa) * advantages, mask)


@checked
def scopic(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    tau: float = 4.0,
    normalize: Normalizer = token_mean,
) -> Tensor:
    """The sigmoid gate years before SAPO: one temperature for either sign.

    J = 1/ΣL Σᵢ Σₜ (4/τ) σ(τ(ρᵢₜ − 1)) Aᵢₜ

    Parts: token, sigmoid, token_mean. Its −β KL(π_old ‖ π_θ) and entropy are terms beside the objective.
    Weight: ρ sech²(τ(ρ − 1)/2) A.
    Differs: from sapo by one τ and a mean over tokens.
    Paper: Chen et al., 2022, arXiv 2205.10047 (P3O, read in the authors' code); τ = 4 is that of its MuJoCo runs, 2 of
        Atari (preset atari). It says that τ ≥ 2 keeps the surrogate below the plain one, which SAPO's 1 is not.
    """
    check_positive(tau=tau)
    check_between(1e-6, 1e9, "beyond, float32 shows only the gate's limit", tau=tau)
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.sigmoid(log_r, advantages, tau, tau) * advantages, mask)


@checked
def pspo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    alpha: float = 0.1,
    normalize: Normalizer = token_mean,
) -> Tensor:
    """Smooth the policy instead of clipping the ratio: mix a little of the old one into the new.

    J = 1/ΣL Σᵢ Σₜ ((1 − α) ρᵢₜ + α) Aᵢ

    Parts: token, smoothed, token_mean.
    Weight: (1 − α) ρ A, that of no gate at all up to a constant, which Adam hardly sees.
    Differs: from reinforce by a constant factor and the normalizer.
    Paper: Dwyer et al., 2025, arXiv 2509.21282 (read in the authors' code, which averages over tokens); α = 0.1.
    """
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.smoothed(log_r, advantages, alpha) * advantages, mask)


@checked
def spo_simple(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps: float = 0.2,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """A parabola in place of the clip: beyond the band the gradient turns around.

    J = 1/R Σᵢ 1/Lᵢ Σₜ ρᵢₜ Aᵢₜ − |Aᵢₜ|/(2ε) (ρᵢₜ − 1)²

    Parts: token, no gate but a penalty, response_mean.
    Weight: ρ (A − |A|(ρ − 1)/ε): 0 at ρ = 1 + ε (A > 0) or 1 − ε (A < 0), of the other sign beyond, unbounded.
    Differs: from ppo by pulling a token back to the edge of the band where ppo falls silent.
    Paper: Xie et al., 2024, arXiv 2401.16025 (Simple Policy Optimization, from notes); ε = 0.2 is ppo's.
    """
    check_positive(eps=eps)
    log_r = log_ratio(logp, logp_old, mask)
    penalty = advantages.abs() / (2 * eps) * log_r.expm1() ** 2
    return -normalize(log_r.exp() * advantages - penalty, mask)
