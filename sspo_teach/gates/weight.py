"""Gates known only by their weight: the value means nothing, the gradient is the rule."""

from __future__ import annotations

from torch import Tensor


def score(weight: Tensor, log_r: Tensor) -> Tensor:
    """stopgrad(weight) · log ρ, whose gradient is weight · ∇log π (CISPO, importance-weighted REINFORCE).

    log ρ and log π differ by the constant log π_old: same gradient.
    The value is no return, on-policy it is 0: do not plot it.
    """
    return weight.detach() * log_r
