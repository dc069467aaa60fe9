"""Objectives whose unit is the token. Each is a sentence: ratio, gate, normalizer.

J is maximised and −J returned. ρ = π_θ/π_old per token, A the advantage, L the length, R the number of responses.
"""

from __future__ import annotations

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
