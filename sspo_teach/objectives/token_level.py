"""Objectives whose unit is the token. Each is a sentence: ratio, gate, normalizer.

J is maximised and −J returned. ρ = π_θ/π_old per token, A the advantage, L the length, R the number of responses.
"""

from __future__ import annotations

import math

from torch import Tensor

from sspo_teach import gates
from sspo_teach.objectives.normalize import Normalizer, response_mean, sequence_sum, token_mean
from sspo_teach.tensors import check_between, checked, log_ratio


@checked
def reinforce(
    logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, *, normalize: Normalizer = sequence_sum
) -> Tensor:
    """The policy gradient, each token weighted by its importance ratio where the data are stale.

    J = 1/R Σᵢ Σₜ sg[ρᵢₜ] Aᵢ log π_θ(yᵢₜ)

    Parts: token, no gate (weight known, ``score``), sequence_sum.
    Weight: ρ A.
    Differs: from rloo by the ratio; from the surrogate ρ A in value only.
    Paper: Williams, 1992 (read in libraries). The per-token ratio is the common off-policy form, not his, and the group
        mean as baseline is our choice.
    """
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.score(log_r.exp(), log_r) * advantages, mask)


@checked
def rloo(
    logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, *, normalize: Normalizer = sequence_sum
) -> Tensor:
    """REINFORCE whose baseline is the mean reward of the other responses.

    J = 1/R Σᵢ Aᵢ Σₜ log π_θ(yᵢₜ),  Aᵢ = Rᵢ − mean of the others

    Parts: token, no gate and no ratio, sequence_sum.
    Weight: A, however stale the data (until |log ρ| > 20).
    Differs: from reinforce by ignoring the ratio; TRL's trainer of this name clips the product of ratios instead.
    Paper: Ahmadian et al., 2024, arXiv 2402.14740 (formula from notes and libraries).
    """
    log_r = log_ratio(logp, logp_old, mask)  # its gradient is that of log π_θ
    return -normalize(log_r * advantages, mask)


@checked
def ppo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """The clipped surrogate: a token that has moved far enough in its advantage's direction falls silent.

    J = 1/R Σᵢ 1/Lᵢ Σₜ min(ρᵢₜ Aᵢₜ, clip(ρᵢₜ, 1 − ε_low, 1 + ε_high) Aᵢₜ)

    Parts: token, clip, response_mean.
    Weight: ρ A, or 0 where (A > 0, ρ > 1 + ε_high) or (A < 0, ρ < 1 − ε_low); unbounded for A < 0.
    Differs: from reinforce by the clip; from grpo only where advantages come from a critic, one per token.
    Paper: Schulman et al., 2017, arXiv 1707.06347, eq. 7, ε = 0.2; a plain mean over time steps there.
    """
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.clip(log_r, advantages, eps_low, eps_high) * advantages, mask)


@checked
def grpo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """PPO's surrogate without a critic: the group's mean and standard deviation make the advantage.

    J = 1/R Σᵢ 1/Lᵢ Σₜ min(ρᵢₜ Aᵢ, clip(ρᵢₜ, 1 − ε_low, 1 + ε_high) Aᵢ),  Aᵢ = (Rᵢ − mean)/std

    Parts: token, clip, response_mean. The paper's −β KL (k3) is a term beside the objective.
    Weight: ρ A, or 0 where clipped.
    Differs: from ppo by the advantage; from dapo by the normalizer and a symmetric band.
    Paper: Shao et al., 2024, arXiv 2402.03300 (formula as restated by GSPO's authors); ε = 0.2 is the libraries'.
    """
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.clip(log_r, advantages, eps_low, eps_high) * advantages, mask)


@checked
def dr_grpo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    normalize: Normalizer = sequence_sum,
) -> Tensor:
    """GRPO done right: no division by the response's own length, none by the group's standard deviation.

    J = 1/R Σᵢ Σₜ min(ρᵢₜ Aᵢ, clip(ρᵢₜ, 1 − ε_low, 1 + ε_high) Aᵢ),  Aᵢ = Rᵢ − mean

    Parts: token, clip, sequence_sum as printed; the authors' code and the trainer here use constant(max_new_tokens).
    Weight: ρ A, or 0 where clipped.
    Differs: from grpo by the normalizer and the advantage.
    Paper: Liu et al., 2025, arXiv 2503.20783 (read in the authors' code); ε = 0.2 is the libraries'.
    """
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.clip(log_r, advantages, eps_low, eps_high) * advantages, mask)


@checked
def dapo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.28,
    normalize: Normalizer = token_mean,
) -> Tensor:
    """GRPO with a wider upper edge (clip-higher) and one mean over all tokens.

    J = 1/ΣL Σᵢ Σₜ min(ρᵢₜ Aᵢ, clip(ρᵢₜ, 1 − ε_low, 1 + ε_high) Aᵢ)

    Parts: token, clip, token_mean. The mean is over the minibatch, as in the libraries; the paper's is over each group.
        Around the loss, groups without signal are dropped and the soft overlong penalty is added to the reward.
    Weight: ρ A, or 0 where clipped.
    Differs: from grpo by the normalizer, ε_high, and the two rules around the loss.
    Paper: Yu et al., 2025, arXiv 2503.14476 (formula from notes and libraries); ε = 0.2, 0.28.
    """
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.clip(log_r, advantages, eps_low, eps_high) * advantages, mask)


@checked
def bandpo_kl(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    delta: float = 0.05,
    ratio_cap: float = math.inf,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """A clip that knows the token's probability: rare tokens get more room, likely ones less.

    J = 1/R Σᵢ 1/Lᵢ Σₜ min(ρᵢₜ Aᵢ, clip(ρᵢₜ, l(pᵢₜ), u(pᵢₜ)) Aᵢ),  KL((p, 1 − p) ‖ (rp, 1 − rp)) ≤ δ

    Parts: token, log_clip between bounds.by_kl, response_mean.
    Weight: ρ A, or 0 where (A > 0, ρ > u(p)) or (A < 0, ρ < l(p)), p being the old probability; p u → 1 − e^(−δ) for
        p → 0, u → 1 and l → e^(−δ) for p → 1.
    Differs: from grpo by the band; from bandpo_tv and bandpo_chi2 by the divergence, which never gives a bound of 0 or
        1/p.
    Paper: Li et al., 2026, arXiv 2603.04918 (read in the authors' code and in notes); δ = 0.05. The preset code stops
        ρ at 10 for either sign, as their code does; the paper's bounds have no such cap.
    """
    check_between(1, math.inf, "it is an absolute ceiling on the ratio", ratio_cap=ratio_cap)
    log_r = log_ratio(logp, logp_old, mask).clamp(max=math.log(ratio_cap))
    lower, upper = gates.bounds.by_kl(logp_old, mask, delta)
    return -normalize(gates.log_clip(log_r, advantages, lower, upper).exp() * advantages, mask)


@checked
def bandpo_tv(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    delta: float = 0.05,
    ratio_cap: float = math.inf,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """The band of bandpo_kl, with the total variation as its measure: ±δ on the probability itself.

    J = 1/R Σᵢ 1/Lᵢ Σₜ min(ρᵢₜ Aᵢ, clip(ρᵢₜ, l(pᵢₜ), u(pᵢₜ)) Aᵢ),  p |r − 1| ≤ δ, so l, u = 1 ∓ δ/p, cut to [0, 1/p]

    Parts: token, log_clip between bounds.by_tv, response_mean.
    Weight: ρ A, or 0 where (A > 0, ρ > u(p)) or (A < 0, ρ < l(p)), p being the old probability.
    Differs: from bandpo_kl by the divergence; with δ = ε p it is grpo's clip.
    Paper: Li et al., 2026, arXiv 2603.04918 (read in the authors' code and in notes); δ = 0.05. The preset code stops
        ρ at 10 for either sign, as their code does; the paper's bounds have no such cap.
    """
    check_between(1, math.inf, "it is an absolute ceiling on the ratio", ratio_cap=ratio_cap)
    log_r = log_ratio(logp, logp_old, mask).clamp(max=math.log(ratio_cap))
    lower, upper = gates.bounds.by_tv(logp_old, mask, delta)
    return -normalize(gates.log_clip(log_r, advantages, lower, upper).exp() * advantages, mask)


@checked
def bandpo_chi2(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    delta: float = 0.05,
    ratio_cap: float = math.inf,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """The band of bandpo_kl, with the χ² distance as its measure.

    J = 1/R Σᵢ 1/Lᵢ Σₜ min(ρᵢₜ Aᵢ, clip(ρᵢₜ, l(pᵢₜ), u(pᵢₜ)) Aᵢ),  l, u = 1 ∓ √(δ (1 − p)/p), cut to [0, 1/p]

    Parts: token, log_clip between bounds.by_chi2, response_mean.
    Weight: ρ A, or 0 where (A > 0, ρ > u(p)) or (A < 0, ρ < l(p)), p being the old probability.
    Differs: from bandpo_kl by the divergence; tighter than it for rare tokens.
    Paper: Li et al., 2026, arXiv 2603.04918 (read in the authors' code and in notes); δ = 0.05. The preset code stops
        ρ at 10 for either sign, as their code does; the paper's bounds have no such cap.
    """
    check_between(1, math.inf, "it is an absolute ceiling on the ratio", ratio_cap=ratio_cap)
    log_r = log_ratio(logp, logp_old, mask).clamp(max=math.log(ratio_cap))
    lower, upper = gates.bounds.by_chi2(logp_old, mask, delta)
    return -normalize(gates.log_clip(log_r, advantages, lower, upper).exp() * advantages, mask)


@checked
def bapo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    share: float = 0.4,
    low_min: float = 0.6,
    low_max: float = 0.9,
    low_step: float = 0.02,
    high_min: float = 1.2,
    high_max: float = 3.0,
    high_step: float = 0.05,
    normalize: Normalizer = token_mean,
) -> Tensor:
    """The clip opens, step by step on each batch, until tokens with A > 0 hold their share of the gradient.

    J = 1/ΣL Σᵢ Σₜ min(ρᵢₜ Aᵢₜ, clip(ρᵢₜ, c_low, c_high) Aᵢₜ)
    with the first (c_low, c_high) at which Σ_{A>0, unclipped} π_old ρ |A| ≥ share · Σ_{unclipped} π_old ρ |A|: c_high
    rises from high_min to high_max, then c_low from low_min to low_max

    Parts: token, log_clip between bounds.balanced, token_mean.
    Weight: ρ A, or 0 where clipped by bounds that depend on the whole batch.
    Differs: from dapo by the search; from bapo_printed by what counts as a contribution.
    Paper: Xi et al., 2025, arXiv 2510.18927 (procedure and numbers from notes). A reconstruction where clipped tokens
        count nothing: as printed (bapo_printed) raising c_low works against its stated purpose. The presets have the
        numbers of the authors' code, which raises c_low first, leaves π_old out and adds a dual clip at 3.
    """
    pairs = gates.bounds.widening(low_min, low_max, low_step, high_min, high_max, high_step)
    log_r = log_ratio(logp, logp_old, mask)
    lower, upper = gates.bounds.balanced(pairs, gates.bounds.active_mass, log_r, logp_old, advantages, mask, share)
    return -normalize(gates.log_clip(log_r, advantages, lower, upper).exp() * advantages, mask)


@checked
def bapo_printed(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    share: float = 0.4,
    low_min: float = 0.6,
    low_max: float = 0.9,
    low_step: float = 0.02,
    high_min: float = 1.2,
    high_max: float = 3.0,
    high_step: float = 0.05,
    normalize: Normalizer = token_mean,
) -> Tensor:
    """BAPO's search with contributions as printed: clipped tokens count with their clipped value.

    J = 1/ΣL Σᵢ Σₜ min(ρᵢₜ Aᵢₜ, clip(ρᵢₜ, c_low, c_high) Aᵢₜ)
    with the first (c_low, c_high) at which Σ_{A>0} π_old |min(ρA, clip(ρ)A)| ≥ share · Σ π_old |min(ρA, clip(ρ)A)|:
    c_high rises from high_min to high_max, then c_low from low_min to low_max

    Parts: token, log_clip between bounds.balanced, token_mean.
    Weight: ρ A, or 0 where clipped by bounds that depend on the whole batch.
    Differs: from bapo by what counts: raising c_low here adds to the negative side, so only c_high can help.
    Paper: Xi et al., 2025, arXiv 2510.18927 (procedure and numbers from notes); the target share is 0.4 there, 0.5 in
        the authors' README. The mean over tokens is their code's.
    """
    pairs = gates.bounds.widening(low_min, low_max, low_step, high_min, high_max, high_step)
    log_r = log_ratio(logp, logp_old, mask)
    lower, upper = gates.bounds.balanced(pairs, gates.bounds.printed_mass, log_r, logp_old, advantages, mask, share)
    return -normalize(gates.log_clip(log_r, advantages, lower, upper).exp() * advantages, mask)


@checked
def cispo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    ratio_cap: float = 5.0,
    ratio_floor: float = 0.0,
    normalize: Normalizer = token_mean,
) -> Tensor:
    """Clip the importance weight, not the update: no token ever falls silent.

    J = 1/ΣL Σᵢ Σₜ sg[clip(ρᵢₜ, ratio_floor, ratio_cap)] Aᵢ log π_θ(yᵢₜ)

    Parts: token, weight (``score``), token_mean.
    Weight: clip(ρ, ratio_floor, ratio_cap) A, detached.
    Differs: from reinforce by the cap; from dapo by keeping the gradient of tokens beyond the band.
    Paper: MiniMax, 2025, arXiv 2506.13585, §3.1, which gives no value; 5.0 is ScaleRL's. Both numbers are absolute,
        never 1 ± ε.
    """
    check_between(
        1, float("inf"), "it is an absolute ceiling on the ratio, so 1 + ε rather than ε", ratio_cap=ratio_cap
    )
    check_between(0, 1, "it is an absolute floor under the ratio, so 1 − ε rather than ε", ratio_floor=ratio_floor)
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.score(log_r.exp().clamp(ratio_floor, ratio_cap), log_r) * advantages, mask)


@checked
def sapo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """A sigmoid in place of the clip: far tokens fade instead of falling silent, negative ones a little sooner.

    J = 1/R Σᵢ 1/Lᵢ Σₜ (4/τ) σ(τ(ρᵢₜ − 1)) Aᵢ,  τ = τ_pos where A > 0, else τ_neg

    Parts: token, sigmoid, response_mean.
    Weight: ρ sech²(τ(ρ − 1)/2) A, on both sides of 1; the largest is 1.575 at ρ = 2.06 (τ = 1), not at 1.
    Differs: from grpo by the gate; from sspo by gating each token without pooling.
    Paper: Gao et al., 2025, arXiv 2511.20347 (read in libraries and a review); τ = 1.0, 1.05. The preset gate-study
        has 10, 12, the best of arXiv 2602.19345.
    """
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.sigmoid(log_r, advantages, tau_pos, tau_neg) * advantages, mask)


@checked
def ppo_dual(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    ratio_cap: float = 3.0,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """PPO with a second clip: a bad token that became much likelier falls silent too.

    J = 1/R Σᵢ 1/Lᵢ Σₜ min(ρA, clip(ρ, 1 − ε_low, 1 + ε_high)A) where A > 0, max(that, ratio_cap · A) where A < 0

    Parts: token, dual_clip, response_mean.
    Weight: ρ A, or 0 where ppo's is 0 or (A < 0, ρ > ratio_cap); never beyond ratio_cap |A|.
    Differs: from ppo by a bound for A < 0.
    Paper: Ye et al., 2019, arXiv 1912.09729 (read in libraries); ratio_cap = 3. verl has it always on, at 3; ROLL's is
        1 + 2ε (preset roll).
    """
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.dual_clip(log_r, advantages, eps_low, eps_high, ratio_cap) * advantages, mask)


@checked
def delta_clip(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    delta: float = 4.0,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """GRPO with a ceiling δ on every ratio, put on before the clip.

    J = 1/R Σᵢ 1/Lᵢ Σₜ min(min(ρᵢₜ, δ) Aᵢ, clip(ρᵢₜ, 1 − ε_low, 1 + ε_high) Aᵢ)

    Parts: token, delta_clip, response_mean.
    Weight: ρ A, or 0 where grpo's is 0 or (A < 0, ρ > δ).
    Differs: from ppo_dual in nothing for δ ≥ 1 + ε_high; a smaller δ closes the band early where A > 0.
    Paper: Prime Intellect's INTELLECT-2, 2025, arXiv 2505.07291 (read in TRL, whose delta is off unless set); δ = 4,
        ε = 0.2 is the libraries'.
    """
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.delta_clip(log_r, advantages, eps_low, eps_high, delta) * advantages, mask)


@checked
def bnpo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    normalize: Normalizer = token_mean,
) -> Tensor:
    """GRPO's rule under one mean over the tokens at hand.

    J = 1/ΣL Σᵢ Σₜ min(ρᵢₜ Aᵢ, clip(ρᵢₜ, 1 − ε_low, 1 + ε_high) Aᵢ)

    Parts: token, clip, token_mean. TRL's ΣL counts the tokens of one device's micro-batch, which makes the weight of a
        token depend on its company there; here it counts the minibatch, however it is cut.
    Weight: ρ A, or 0 where clipped.
    Differs: from grpo by the normalizer; from dapo by a symmetric band and no rules around the loss.
    Paper: TRL's loss_type of this name, 2025 (read there, no paper); ε = 0.2.
    """
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.clip(log_r, advantages, eps_low, eps_high) * advantages, mask)
