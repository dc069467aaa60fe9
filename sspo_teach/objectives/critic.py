"""Objectives whose advantage comes from a critic, and what the critic is taught. See ``sspo_teach.critics``."""

from __future__ import annotations

import torch
from torch import Tensor

from sspo_teach import gates
from sspo_teach.objectives.normalize import Normalizer, token_mean
from sspo_teach.tensors import check_between, checked, lengths, log_ratio
from sspo_teach.types import Rollout


@checked
def ppo_gae(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    normalize: Normalizer = token_mean,
) -> Tensor:
    """PPO as it was first: a critic values every prefix, and each token gets an advantage of its own.

    J = 1/ΣL Σᵢ Σₜ min(ρᵢₜ Aᵢₜ, clip(ρᵢₜ, 1 − ε_low, 1 + ε_high) Aᵢₜ),  Aᵢₜ = Σₖ (γλ)ᵏ δᵢ,ₜ₊ₖ,  δₜ = rₜ + γ Vₜ₊₁ − Vₜ

    Parts: token, clip, token_mean. Advantages are ``gae`` of the critic's values; they are not whitened.
    Weight: ρ A, or 0 where (A > 0, ρ > 1 + ε_high) or (A < 0, ρ < 1 − ε_low); unbounded for A < 0.
    Differs: from ppo by the advantage and by its plain mean over tokens; from sppo by one value per token.
    Paper: Schulman et al., 2017, arXiv 1707.06347, eqs. 7 and 11, ε = 0.2, λ = 0.95 (in its robot tasks, with
        γ = 0.99); γ = 1 is verl's (with λ = 1). Libraries whiten the advantages over the batch; here they stay as is.
    """
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.clip(log_r, advantages, eps_low, eps_high) * advantages, mask)


@checked
def sppo(
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
    """PPO with the response as one action: the critic sees the prompt alone and guesses how often it is answered right.

    J = 1/ΣL Σᵢ Σₜ max(min(ρᵢₜ Aᵢ, clip(ρᵢₜ, 1 − ε_low, 1 + ε_high) Aᵢ), c Aᵢ where Aᵢ < 0),  Aᵢ = Rᵢ − σ(v(xᵢ))

    Parts: token, dual_clip, token_mean. The ratio is the token's, whatever the name says.
    Weight: ρ A, or 0 where clipped, for A < 0 also where ρ > ratio_cap.
    Differs: from ppo_gae by one advantage per response, unnormalised; from grpo by a baseline that needs no group.
    Paper: Sequence-Level PPO, Wang et al., 2026, arXiv 2604.08865 (read in the authors' code, which is verl's vanilla
        loss): ε = 0.2, c = 3. Not the Self-Play Preference Optimization of the same name.
    """
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.dual_clip(log_r, advantages, eps_low, eps_high, ratio_cap) * advantages, mask)


GAMMA, LAMBDA = 1.0, 0.95
"""verl's γ, since the one reward comes at the end; arXiv 1707.06347's λ, which takes some bias for less variance."""


def gae(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    gamma: float = GAMMA,
    lam: float = LAMBDA,
    last_values: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation (Schulman et al., 2016, arXiv 1506.02438): Aₜ = δₜ + γλ Aₜ₊₁; ((B, T), (B, T)).

    Args:
        rewards: (B, T), what each token earned; here all of it at the last one.
        values: (B, T), the critic's value of the prefix *before* token t.
        mask: (B, T); masked tokens are stepped over, and get 0.
        last_values: (B,), the value after the last token, for a response that was cut off but whose episode went on.
            None is 0: the task judges a response that found no end as it stands, so nothing comes after it.

    Returns:
        Advantages, and returns A + V, which is what the critic is taught.
    """
    check_between(0, 1, "it discounts what lies a token further", gamma=gamma)
    check_between(0, 1, "0 trusts the next value alone, 1 the reward alone", lam=lam)
    real, out = mask.bool(), torch.zeros_like(values)
    following = torch.zeros_like(values[:, 0]) if last_values is None else last_values
    advantage = torch.zeros_like(following)
    for t in reversed(range(mask.shape[1])):
        delta = rewards[:, t] + gamma * following - values[:, t]
        advantage = torch.where(real[:, t], delta + gamma * lam * advantage, advantage)
        following = torch.where(real[:, t], values[:, t], following)
        out[:, t] = advantage
    out = out.where(real, 0.0)
    return out, (out + values).where(real, 0.0)


def gae_of(rollout: Rollout, *, gamma: float = GAMMA, lam: float = LAMBDA) -> tuple[Tensor, Tensor]:
    """``gae`` on a rollout whose reward is earned at the last token of each response."""
    values, mask = filled(rollout), rollout.mask.bool()
    if values.shape != mask.shape:
        raise ValueError(f"rollout.values has shape {tuple(values.shape)} but GAE needs one per token, (B, T)")
    last = torch.arange(mask.shape[1], device=mask.device) == lengths(mask) - 1
    return gae(rollout.rewards.to(values).unsqueeze(1).where(last, 0.0), values, mask, gamma=gamma, lam=lam)


def gae_advantage(rollout: Rollout, *, gamma: float = GAMMA, lam: float = LAMBDA) -> Tensor:
    """The advantages of ``gae_of``; (B, T)."""
    return gae_of(rollout, gamma=gamma, lam=lam)[0]


def success_advantage(rollout: Rollout) -> Tensor:
    """A = R − σ(v(x)) (SPPO, arXiv 2604.08865); (B, 1). At σ(v) = p it is 1 − p or −p: mean 0, variance p(1 − p)."""
    values = filled(rollout)
    if values.ndim != 1:
        raise ValueError(f"rollout.values has shape {tuple(values.shape)} but SPPO needs one per response, (B,)")
    return (rollout.rewards.to(values) - values.sigmoid()).unsqueeze(1)


def filled(rollout: Rollout) -> Tensor:
    """``rollout.values``, or an error that says who fills them."""
    if rollout.values is None:
        raise ValueError("rollout.values is None: a critic fills it, replace(rollout, values=critic.values(rollout))")
    return rollout.values


def value_loss(values: Tensor, returns: Tensor, values_old: Tensor, *, clip: float | None = None) -> Tensor:
    """½ (V − return)² per entry; with ``clip`` the larger of that and the same of V held within ±clip of its old self.

    The clip is of OpenAI's implementation, not of the paper's text; verl takes 0.5.
    """
    if clip is None:
        return (values - returns).square() / 2
    near = values_old + (values - values_old).clamp(-clip, clip)
    return torch.maximum((values - returns).square(), (near - returns).square()) / 2
