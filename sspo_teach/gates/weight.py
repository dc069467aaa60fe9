"""Gates known only by their weight: the value means nothing, the gradient is the rule."""

from __future__ import annotations

import torch
from torch import Tensor

from sspo_teach.gates import bounds
from sspo_teach.gates.hard import extending
from sspo_teach.tensors import check_between


def score(weight: Tensor, log_r: Tensor) -> Tensor:
    """stopgrad(weight) · log ρ, whose gradient is weight · ∇log π (CISPO, importance-weighted REINFORCE).

    log ρ and log π differ by the constant log π_old: same gradient.
    The value is no return, on-policy it is 0: do not plot it.
    """
    return weight.detach() * log_r


def kept_clip(
    log_x: Tensor, advantages: Tensor, eps_low: float, eps_high: float, beta_low: float, beta_high: float
) -> Tensor:
    """``clip`` whose tokens outside keep a constant weight: β times the edge that they have passed (arXiv 2509.20712).

    Outside, f is β(1 ∓ ε) · exp(log x − sg[log x]); dividing by sg[x], as printed, is 0 · ∞ once x underflows.
    """
    check_between(0, 1e6, "it scales the weight left outside the band", beta_low=beta_low, beta_high=beta_high)
    lower, upper = bounds.constant(eps_low, eps_high)
    edge = log_x.clamp(lower, upper).exp().detach() * (log_x - log_x.detach()).exp()
    outside = extending(log_x, advantages, lower, upper)
    return torch.where(outside, torch.where(advantages > 0, beta_high * edge, beta_low * edge), log_x.exp())
