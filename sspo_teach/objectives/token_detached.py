"""Objectives whose weight on a token is detached from the graph, or that have no ratio to weigh it by.

J is maximised and −J returned, sg is a stopped gradient. The value of such a loss is no return, only its gradient means
something. ρ = π_θ/π_old per token, A the advantage, L the length, R the number of responses.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sspo_teach import gates
from sspo_teach.objectives.normalize import Normalizer, response_mean, sequence_sum, token_mean
from sspo_teach.tensors import check_between, check_positive, checked, log_ratio, promote

CAP = "it is an absolute ceiling on the weight, so 1 + ε rather than ε"


@checked
def ce_gppo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    beta_low: float = 0.75,
    beta_high: float = 1.0,
    ratio_cap: float = math.inf,
    normalize: Normalizer = token_mean,
) -> Tensor:
    """PPO whose clipped tokens keep a constant part of their gradient, each side by its own β.

    J = 1/ΣL Σᵢ Σₜ f(ρᵢₜ) Aᵢ,  f = β_high (1 + ε_high) ρ/sg[ρ] where A > 0, ρ > 1 + ε_high,
    β_low (1 − ε_low) ρ/sg[ρ] where A < 0, ρ < 1 − ε_low, ρ elsewhere

    Parts: token, kept_clip, token_mean. Finite ratio_cap: silent where (A < 0, ρ > ratio_cap), as in ppo_dual.
    Weight: β_low (1 − ε_low) A or β_high (1 + ε_high) A outside the band, ρ A inside.
    Differs: from ppo by what clipped tokens keep: β = 0 is ppo's gradient, β = 1 is gppo.
    Paper: Su et al., 2025, arXiv 2509.20712 (read in the authors' code); β = 0.75, 1 are its 7B's, 0.5, 1 its 1.5B's
        (preset 1.5b). Its scripts add a dual clip at 10 that is not printed (preset scripts).
    """
    check_between(1 + eps_high, math.inf, CAP, ratio_cap=ratio_cap)
    log_r = log_ratio(logp, logp_old, mask)
    log_r = torch.where(advantages > 0, log_r, log_r.clamp(max=math.log(ratio_cap)))
    return -normalize(gates.kept_clip(log_r, advantages, eps_low, eps_high, beta_low, beta_high) * advantages, mask)


@checked
def gppo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    normalize: Normalizer = token_mean,
) -> Tensor:
    """PPO whose clipped tokens keep the gradient of the edge: clipped in value, not in gradient.

    J = 1/ΣL Σᵢ Σₜ min(ρA, clip(ρ, 1 − ε_low, 1 + ε_high)A) with the clipped ratio's gradient alive

    Parts: token, kept_clip with β = 1, token_mean.
    Weight: ρ A inside, (1 − ε_low) A or (1 + ε_high) A outside the band: continuous in ρ.
    Differs: from cispo by the side: the weight is held at the edge only where ppo clips.
    Paper: Su et al., 2025, arXiv 2508.07629 (Klear-Reasoner, read in the authors' code); ε = 0.2.
    """
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.kept_clip(log_r, advantages, eps_low, eps_high, 1, 1) * advantages, mask)


@checked
def aspo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    ratio_cap: float = 3.0,
    normalize: Normalizer = token_mean,
) -> Tensor:
    """Turn the ratio of good tokens around: the rarer one has become, the more it is pushed.

    J = 1/ΣL Σᵢ Σₜ sg[wᵢₜ] Aᵢ log π_θ(yᵢₜ),  w = min(1/ρ, ratio_cap) where A > 0, min(ρ, ratio_cap) where A < 0,
    0 where ppo clips

    Parts: token, weight (``score``), token_mean.
    Weight: w A, detached.
    Differs: from ppo by 1/ρ for A > 0, and by a ceiling that stops the weight but not the gradient.
    Paper: Wang et al., 2025, arXiv 2510.06062 (from notes and a port of the authors' code, which for A < 0
        differentiates ρ itself: same gradient); ε = 0.2, ratio_cap = 3. The code can also widen ε by entropy.
    """
    check_between(1, math.inf, CAP, ratio_cap=ratio_cap)
    lower, upper = gates.bounds.constant(eps_low, eps_high)
    log_r = log_ratio(logp, logp_old, mask)
    silent = gates.extending(log_r, advantages, lower, upper)
    weight = torch.where(advantages > 0, -log_r, log_r).exp().clamp(max=ratio_cap).masked_fill(silent, 0.0)
    return -normalize(gates.score(weight, log_r) * advantages, mask)


@checked
def maspo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    sigma: float = 1.0,
    power: float = 0.3,
    risk: float = 0.03,
    sigma_cap: float = 10.0,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """A Gaussian in place of the clip, wider for tokens that were rare and for good responses.

    J = 1/R Σᵢ 1/Lᵢ Σₜ sg[g(ρᵢₜ)] ρᵢₜ Aᵢ,  g(ρ) = exp(−(ρ − 1)²/(2s²)) where A > 0, ρ > 1 or A < 0, ρ < 1, else 1,
    s = min(σ π_old^(−power) (1 + risk |A|)^sgn(A), sigma_cap)

    Parts: token, a detached gate on the extending side, response_mean.
    Weight: ρ g(ρ) A.
    Differs: from sapo_directional by the kernel, and by a width of the token's own.
    Paper: Fu et al., 2026, arXiv 2602.17550 (from notes); σ = 1, power 0.3, risk 0.03, cap 10. Whether its gate is
        detached could not be verified: it is here, as the weight in the notes has it. The normalizer is GRPO's.
    """
    check_positive(sigma=sigma, sigma_cap=sigma_cap)
    check_between(0, math.inf, "rarer tokens get the wider gate", power=power, risk=risk)
    log_r = log_ratio(logp, logp_old, mask)
    log_old = torch.where(mask, promote(logp_old), 0.0)
    log_width = math.log(sigma) - power * log_old + (risk * advantages.abs()).log1p() * advantages.sign()
    gate = (-((log_r.expm1() / log_width.clamp(max=math.log(sigma_cap)).exp()) ** 2) / 2).exp()
    gate = torch.where(gates.extending(log_r, advantages), gate, 1.0)
    return -normalize(gate.detach() * log_r.exp() * advantages, mask)


@checked
def topr(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    normalize: Normalizer = sequence_sum,
) -> Tensor:
    """Learn from good responses however stale, from bad ones only while they are still likely.

    J = 1/R Σᵢ Σₜ sg[wᵢₜ] Aᵢ log π_θ(yᵢₜ),  w = 1 where A > 0, min(ρ, 1) elsewhere

    Parts: token, weight (``score``), sequence_sum.
    Weight: A where A > 0, min(ρ, 1) A where A < 0, detached.
    Differs: from cispo by no ratio at all for A > 0. The paper's ratio is that of the whole response (units.product).
    Paper: Le Roux et al., 2025, arXiv 2503.14286; by tokens as in ROLL, where it was read. ROLL's sides are those of
        the reward; here they are those of the advantage, which is reward minus baseline.
    """
    log_r = log_ratio(logp, logp_old, mask)
    weight = torch.where(advantages > 0, 0.0, log_r.clamp(max=0)).exp()
    return -normalize(gates.score(weight, log_r) * advantages, mask)


@checked
def gpg(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    normalize: Normalizer = token_mean,
) -> Tensor:
    """The policy gradient as it stands: no ratio, no clip, one mean over all tokens.

    J = 1/ΣL Σᵢ Σₜ Aᵢ log π_θ(yᵢₜ),  Aᵢ = Rᵢ − mean

    Parts: token, no gate and no ratio, token_mean.
    Weight: A, however stale the data (until |log ρ| > 20).
    Differs: from rloo by the normalizer and the group's own mean as baseline.
    Paper: Chu et al., 2025, arXiv 2504.02546 (read in verl, whose estimator also multiplies A by the batch size over
        the number of rewards that are not 0).
    """
    log_r = log_ratio(logp, logp_old, mask)  # its gradient is that of log π_θ
    return -normalize(log_r * advantages, mask)


@checked
def dro(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    beta: float = 0.1,
    normalize: Normalizer = token_mean,
) -> Tensor:
    """The policy gradient held back by a parabola in the log-ratio.

    J = 1/ΣL Σᵢ Σₜ Aᵢ log π_θ(yᵢₜ) − β/2 log² ρᵢₜ

    Parts: token, no gate but a penalty, token_mean.
    Weight: A − β log ρ: what A asks for is reached at log ρ = A/β.
    Differs: from gpg by the penalty, which is the only thing that knows the old policy.
    Paper: verl's loss_mode of this name, 2026 (read there, after Richemond et al., 2024, arXiv 2405.19107). verl asks
        for β and gives none; 0.1 is ours.
    """
    check_between(0, 1e6, "it is the strength of the pull to the old policy", beta=beta)
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(log_r * advantages - beta / 2 * log_r**2, mask)


def binary_tv(log_r: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
    """|π_θ − π_old| of the sampled token, the total variation of (token, all others); (B, T), no gradient."""
    log_old = torch.where(mask, promote(logp_old), 0.0)
    return (log_old.exp() * log_r.expm1()).abs().detach()


def binary_kl(log_r: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
    """KL(π_old ‖ π_θ) of (token, all others); (B, T), no gradient. A probability within 1e-8 of 1 is taken as that."""
    log_old = torch.where(mask, promote(logp_old), 0.0)
    p, q = (x.clamp(max=-1e-8) for x in (log_old, log_old + log_r))
    rest_p, rest_q = (-p.expm1()).log(), (-q.expm1()).log()
    return (p.exp() * (p - q) + rest_p.exp() * (rest_p - rest_q)).detach()


@checked
def dppo_tv(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    delta_low: float = 0.15,
    delta_high: float = 0.15,
    ratio_cap: float = math.inf,
    normalize: Normalizer = token_mean,
) -> Tensor:
    """The trust region in probabilities: a rare token may grow a hundredfold, a likely one hardly.

    J = 1/ΣL Σᵢ Σₜ sg[Mᵢₜ min(ρᵢₜ, ratio_cap)] Aᵢ log π_θ(yᵢₜ),
    M = 0 where D > δ_high (A > 0, ρ > 1) or D > δ_low (A < 0, ρ < 1), else 1;  D = |π_old − π_θ|

    Parts: token, weight (``score``) cut on the extending side, token_mean. The paper prints a sum, its code a mean.
    Weight: min(ρ, ratio_cap) A, or 0 where the probability has moved too far the way A wants.
    Differs: from ppo by measuring π_θ − π_old instead of π_θ/π_old.
    Paper: DPPO, 2026, arXiv 2602.04879 (read there); δ = 0.15 and no cap are those of its stability runs, 0.2 and
        5 of its scaling runs (preset scaling). verl's configuration has 0.2 and a cap of 3 (preset verl). The paper's
        advantages have no standard deviation.
    """
    check_between(0, 1, "it is a difference of probabilities", delta_low=delta_low, delta_high=delta_high)
    check_between(1, math.inf, CAP, ratio_cap=ratio_cap)
    log_r = log_ratio(logp, logp_old, mask)
    moved = binary_tv(log_r, logp_old, mask)
    silent = torch.where(advantages > 0, moved > delta_high, moved > delta_low) & gates.extending(log_r, advantages)
    weight = log_r.exp().clamp(max=ratio_cap).masked_fill(silent, 0.0)
    return -normalize(gates.score(weight, log_r) * advantages, mask)


@checked
def dppo_kl(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    delta_low: float = 0.05,
    delta_high: float = 0.05,
    ratio_cap: float = math.inf,
    normalize: Normalizer = token_mean,
) -> Tensor:
    """The trust region in nats: the KL of a token against all others.

    J = 1/ΣL Σᵢ Σₜ sg[Mᵢₜ min(ρᵢₜ, ratio_cap)] Aᵢ log π_θ(yᵢₜ),
    M = 0 where D > δ_high (A > 0, ρ > 1) or D > δ_low (A < 0, ρ < 1), else 1,
    D = p log(p/q) + (1 − p) log((1 − p)/(1 − q)), p = π_old, q = π_θ

    Parts: token, weight (``score``) cut on the extending side, token_mean. The paper prints a sum, its code a mean.
    Weight: min(ρ, ratio_cap) A, or 0 where the probability has moved too far the way A wants.
    Differs: from dppo_tv by the distance, which also feels rare tokens.
    Paper: DPPO, 2026, arXiv 2602.04879 (read there); δ = 0.05 and no cap are those of its stability runs, a cap
        of 5 that of its scaling runs (preset scaling). verl's configuration has 0.2 and a cap of 3 (preset verl). The
        paper's advantages have no standard deviation.
    """
    check_between(0, math.inf, "it is a KL divergence", delta_low=delta_low, delta_high=delta_high)
    check_between(1, math.inf, CAP, ratio_cap=ratio_cap)
    log_r = log_ratio(logp, logp_old, mask)
    moved = binary_kl(log_r, logp_old, mask)
    silent = torch.where(advantages > 0, moved > delta_high, moved > delta_low) & gates.extending(log_r, advantages)
    weight = log_r.exp().clamp(max=ratio_cap).masked_fill(silent, 0.0)
    return -normalize(gates.score(weight, log_r) * advantages, mask)
