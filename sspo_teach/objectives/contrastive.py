"""Objectives that set the right responses to a prompt against the wrong ones. No ratio: the data are taken as they are.

Right and wrong are the responses whose (mean) advantage is positive or negative: for rewards of 0 and 1 under any
advantage centred on the group just that, and a group of one kind has no pair, so it says nothing. P and N are their
numbers in a group of G responses. A group's loss weighs G, so that ``response_mean`` is the mean over all groups of
equal size, the silent ones included.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sspo_teach.objectives.normalize import Normalizer, response_mean
from sspo_teach.tensors import (
    check_between,
    check_positive,
    checked,
    log_ratio,
    masked_mean,
    masked_sum,
    promote,
    with_value,
)


@checked
def conspo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    group_ids: Tensor,
    tau: float = 0.5,
    margin: float = 0.1,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """Each right response against all wrong ones to its prompt, by their likelihood per token.

    L = −1/P Σᵢ log[e^((sᵢ − m)/τ) / (e^((sᵢ − m)/τ) + Σⱼ e^(sⱼ/τ))],  s = 1/L Σₜ log π_θ(yₜ)
        for each group, i over the right, j over the wrong

    Parts: sequence (of log π itself), no gate and no ratio, response_mean over groups.
    Weight: (1 − pᵢ₀)/(τP) for a right response, −Σᵢ pᵢⱼ/(τP) for a wrong one, p the softmax; their sum is 0.
    Differs: from click by the mean in place of the sum and the softmax in place of the hinge.
    Paper: Zhang et al., 2026, arXiv 2605.12969 v3, of which only the abstract could be read: a reconstruction. The
        loss, the set in the denominator, aggregation, τ, margin and labels by the sign of the advantage are ours.
    """
    check_positive(tau=tau)
    check_between(0, math.inf, "it is a distance in nats per token that right must keep from wrong", margin=margin)
    s = masked_mean(log_pi(logp, logp_old, mask), mask) / tau
    right, wrong = sides(advantages, mask, group_ids)
    rivals = s.T.where(wrong, -torch.inf).logsumexp(1, keepdim=True)  # −∞ without any, and then no loss
    lost = -torch.nn.functional.logsigmoid(s - margin / tau - rivals)
    return normalize(per_group(lost, right, group_ids, mask), mask)


@checked
def click(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    group_ids: Tensor,
    margin: float = 20.0,
    normalize: Normalizer = response_mean,
) -> Tensor:
    """A hinge that wants every right response to be likelier than every wrong one by a margin.

    L = 1/(PN) Σᵢ Σⱼ max(0, α − log π_θ(yᵢ) + log π_θ(yⱼ)) per group,  i right, j wrong, α the margin

    Parts: product (of π itself), no gate and no ratio, response_mean over groups.
    Weight: the share of active pairs, times 1/P for a right response, −1/N for a wrong one.
    Differs: from conspo by sums, so the margin is in nats per response, and by silence beyond it.
    Paper: Zheng et al., 2023, arXiv 2306.03350 (loss read in the authors' code): α = 20 (detoxification), 15
        (sentiment, repetition). Its pairing by likelihood rank could not be read: all pairs within a group are our
        rule. The language-model term beside it, and γ that weighs the hinge against it, are not part.
    """
    check_between(0, math.inf, "it is a distance in nats per response that right must keep from wrong", margin=margin)
    S = masked_sum(log_pi(logp, logp_old, mask), mask)
    right, wrong = sides(advantages, mask, group_ids)
    short = (margin - S + S.T).clamp(min=0).where(wrong, 0.0)  # (B, B); at the kink PyTorch's clamp is active
    lost = short.sum(1, keepdim=True) / wrong.sum(1, keepdim=True).clamp(min=1)
    return normalize(per_group(lost, right, group_ids, mask), mask)


def log_pi(logp: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
    """log π_θ (B, T), without gradient where |log ρ| > 20: extreme staleness is treated alike by all methods."""
    return with_value(promote(logp), log_ratio(logp, logp_old, mask))


def sides(advantages: Tensor, mask: Tensor, group_ids: Tensor) -> tuple[Tensor, Tensor]:
    """(B, 1) bool, response i is right; (B, B) bool, j is wrong and answers i's prompt. Empty responses are neither."""
    A = masked_mean(advantages, mask)
    return A > 0, same_group(group_ids, mask) & (A < 0).T


def per_group(lost: Tensor, right: Tensor, group_ids: Tensor, mask: Tensor) -> Tensor:
    """The (B, 1) losses of right responses times G/P as (B, T) terms, whose ``response_mean`` is that over groups."""
    same = same_group(group_ids, mask)
    size, P = ((same & who.T).sum(1, keepdim=True) for who in (mask.any(1, keepdim=True), right))
    return (lost * size / P.clamp(min=1)).where(right, 0.0).expand_as(mask)


def same_group(group_ids: Tensor, mask: Tensor) -> Tensor:
    """(B, B) bool, whether two responses answer the same prompt."""
    if group_ids.shape != mask.shape[:1]:
        raise ValueError(
            f"group_ids has shape {tuple(group_ids.shape)} but must be (B,) = ({len(mask)},): "
            "one id per response says which prompt it answers"
        )
    return group_ids.unsqueeze(1) == group_ids
