"""Objectives that treat a chosen few tokens otherwise, and the choosing: it looks at the whole minibatch.

High covariance of advantage and log-probability is what makes entropy fall: likely tokens that do well, unlikely ones
that do badly (arXiv 2505.22617). J is maximised and −J returned.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from sspo_teach import gates
from sspo_teach.objectives.normalize import Normalizer, token_mean
from sspo_teach.tensors import check_between, checked, lengths, log_ratio, masked_sum, promote
from sspo_teach.types import Rollout


def covariance(logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """(A − mean A)(log π − mean log π), means over all response tokens; (B, T), 0 on padding."""
    logp, advantages = promote(logp.detach()), promote(advantages).expand_as(mask)
    return (_gap(logp, mask) * _gap(advantages, mask)).where(mask, 0.0)


def banded(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    generator: Generator,
    *,
    fraction: float = 2e-4,
    low: float = 1.0,
    high: float = 5.0,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
) -> Tensor:
    """Clip-Cov's choice: tokens drawn among the unclipped ones with low < covariance < high; (B, T) bool.

    At most ``fraction`` of the response tokens, rounded down, but one where there is any.
    """
    check_between(0, 1, "it is a share of the response tokens", fraction=fraction)
    lower, upper = gates.bounds.constant(eps_low, eps_high)
    log_r, mask = log_ratio(logp.detach(), logp_old, mask), mask.bool()
    clipped = gates.extending(log_r, advantages, lower, upper) & (advantages != 0)
    found = covariance(logp, advantages, mask)
    candidates = (mask & ~clipped & (found > low) & (found < high)).flatten().nonzero().squeeze(1)
    order = torch.randperm(len(candidates), generator=generator).to(candidates.device)
    return _marked(candidates[order[: _count(mask, fraction)]], mask)


def topmost(logp: Tensor, advantages: Tensor, mask: Tensor, *, fraction: float = 2e-4) -> Tensor:
    """KL-Cov's choice: the tokens of largest covariance; (B, T) bool.

    ``fraction`` of the response tokens, rounded down, but one at least.
    """
    check_between(0, 1, "it is a share of the response tokens", fraction=fraction)
    mask = mask.bool()
    found = covariance(logp, advantages, mask).masked_fill(~mask, -torch.inf).flatten()
    return _marked(found.topk(min(_count(mask, fraction), int(mask.sum()))).indices, mask)


def banded_tokens(
    rollout: Rollout,
    advantages: Tensor,
    logp: Tensor,
    generator: Generator,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
) -> dict[str, Tensor]:
    """``banded`` as a ``Method`` asks for it."""
    chosen = banded(logp, rollout.logp_old, advantages, rollout.mask, generator, eps_low=eps_low, eps_high=eps_high)
    return {"selected": chosen}


def topmost_tokens(rollout: Rollout, advantages: Tensor, logp: Tensor, generator: Generator) -> dict[str, Tensor]:
    """``topmost`` as a ``Method`` asks for it."""
    return {"selected": topmost(logp, advantages, rollout.mask)}


@checked
def clip_cov(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    selected: Tensor,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    normalize: Normalizer = token_mean,
) -> Tensor:
    """GRPO without the few tokens that would cost most entropy.

    J = 1/ΣL Σᵢ Σₜ min(ρᵢₜ Aᵢ, clip(ρᵢₜ, 1 − ε_low, 1 + ε_high) Aᵢ), over the tokens not selected

    Parts: token, clip, token_mean, which still counts the selected ones. ``banded`` selects: 2e-4 of all tokens, at
        random among the unclipped whose covariance of A and log π lies between 1 and 5.
    Weight: ρ A, or 0 where clipped or selected.
    Differs: from bnpo by the selection; from kl_cov by silencing instead of holding back.
    Paper: Cui et al., 2025, arXiv 2505.22617 (read in verl); 2e-4, 1 and 5 are verl's, ε = 0.2.
    """
    log_r = log_ratio(logp, logp_old, mask)
    gated = gates.clip(log_r, advantages, eps_low, eps_high) * advantages
    return -normalize(gated.masked_fill(selected, 0.0), mask)


@checked
def kl_cov(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    selected: Tensor,
    beta: float = 1.0,
    normalize: Normalizer = token_mean,
) -> Tensor:
    """The plain surrogate, with a penalty on the few tokens that would cost most entropy.

    J = 1/ΣL Σᵢ Σₜ ρᵢₜ Aᵢ − β |log ρᵢₜ| on selected tokens

    Parts: token, identity, token_mean. ``topmost`` selects: 2e-4 of all tokens, by covariance of A and log π.
    Weight: ρ A, less β sgn(log ρ) where selected.
    Differs: from clip_cov by the penalty and by clipping nothing else.
    Paper: Cui et al., 2025, arXiv 2505.22617 (read in verl, whose function has β = 1 and whose configuration has 0.1,
        preset verl).
    """
    check_between(0, 1e6, "it is the strength of the pull to the old policy", beta=beta)
    log_r = log_ratio(logp, logp_old, mask)
    penalty = beta * log_r.abs().where(selected, 0.0)
    return -normalize(gates.identity(log_r, advantages) * advantages - penalty, mask)


def _gap(x: Tensor, mask: Tensor) -> Tensor:
    return x - masked_sum(x, mask).sum() / lengths(mask).sum().clamp(min=1)


def _count(mask: Tensor, fraction: float) -> int:
    return max(int(fraction * int(mask.sum())), 1)


def _marked(index: Tensor, mask: Tensor) -> Tensor:
    return torch.zeros_like(mask).flatten().index_fill(0, index, True).view_as(mask)
