"""What follows from the idea of a method whose own formula could not be read: derived here, and no paper's.

Nothing of this trains. ``catalog.KNOWN`` says of each method why it has no row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sspo_teach.tensors import check_between, check_positive


def projection(log_new: Tensor, log_old: Tensor, *, epsilon: float = 0.05) -> tuple[Tensor, Tensor]:
    """The distribution nearest to the new one that left the old one by no more than ε (idea of TROLL, 2510.03817).

    min_q KL(q‖π_θ) subject to KL(q‖π_old) ≤ ε is solved by q ∝ exp((η log π_old + log π_θ)/(1 + η)), with η = 0 where
    the new one is near enough and else the η at which the bound is met.

    Args:
        log_new: (…, V) log-probabilities under the new policy.
        log_old: the same under the old one.
        epsilon: in nats.

    Returns:
        q (…, V) as probabilities, and η (…).
    """
    check_positive(epsilon=epsilon)
    new, old = log_new.detach().double().log_softmax(-1), log_old.detach().double().log_softmax(-1)

    def mixed(u: Tensor) -> Tensor:  # u = η/(1 + η), the share of the old one, in [0, 1]
        return (u * old + (1 - u) * new).log_softmax(-1)

    def left(u: Tensor) -> Tensor:
        log_q = mixed(u)
        return (log_q.exp() * (log_q - old)).sum(-1, keepdim=True)

    low, high = torch.zeros_like(new[..., :1]), torch.ones_like(new[..., :1])
    free = left(low) <= epsilon
    for _ in range(60):  # KL(q‖π_old) falls as u rises
        middle = (low + high) / 2
        outside = left(middle) > epsilon
        low, high = torch.where(outside, middle, low), torch.where(outside, high, middle)
    u = high.where(~free, 0.0)
    return mixed(u).exp(), (u / (1 - u)).squeeze(-1)


def rescue(ratio: Tensor, *, eps_high: float = 0.2) -> tuple[Tensor, Tensor]:
    """What uniform noise does to a token above the band (the idea of NSR, 2605.22703, with noise U(0, 1)).

    The ratio is multiplied by U and the token keeps its gradient where Uρ ≤ 1 + ε. For ρ > 1 + ε that happens with
    probability (1 + ε)/ρ, and the mean of ∂(Uρ)/∂ρ over rescued and silent tokens is (1 + ε)²/(2ρ²): in place of the
    clip a tail of ρ⁻² in expectation. Tokens inside the band are left alone: 1 and 1.
    """
    check_between(0, math.inf, "the upper edge of the band is 1 + eps_high", eps_high=eps_high)
    share = (1 + eps_high) / ratio
    inside = share >= 1
    return share.clamp(max=1.0), (share.square() / 2).where(~inside, 1.0)


def entropy_slope(p: Tensor) -> Tensor:
    """dH/dη where the logits of a softmax move by η A (e_a − p), divided by A, for each sampled token a; (…, V).

    −p_a(log p_a + H) + Σ_v p_v²(log p_v + H): reward for the dominant token lowers the entropy, for a rare one raises
    it, and punishment does the opposite. The first-order fact behind covariance clips and entropy polarity.
    """
    surprise = p * (p.log() - (p * p.log()).sum(-1, keepdim=True))  # p (log p + H)
    return (p * surprise).sum(-1, keepdim=True) - surprise
