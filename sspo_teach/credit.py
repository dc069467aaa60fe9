"""All that an objective ever says to the model, as one matrix."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sspo_teach.tensors import check_shapes, check_values, promote


def credit(
    objective: Callable[..., Tensor],
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    **numbers: object,
) -> Tensor:
    """−∂L/∂logp, the coefficient of each token's ∇log π in the ascent direction; (B, T), at least float32.

    ``numbers`` go to the objective. ``logp`` may or may not require grad and no ``.grad`` is touched:

    >>> credit(METHODS["grpo"].objective, logp, logp_old, advantages, mask, eps_high=0.28)
    """
    return loss_and_credit(objective, logp, logp_old, advantages, mask, **numbers)[1]


def loss_and_credit(
    objective: Callable[..., Tensor],
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    **numbers: object,
) -> tuple[Tensor, Tensor]:
    """The scalar loss, detached, and ``credit``, from one call of the objective."""
    check_shapes(logp=logp, logp_old=logp_old, mask=mask, advantages=advantages)
    check_values(logp=logp, logp_old=logp_old, mask=mask, advantages=advantages)
    with torch.enable_grad():
        leaf = promote(logp.detach()).requires_grad_()
        loss = objective(leaf, logp_old.detach(), advantages.detach(), mask, **numbers)
        if not loss.requires_grad:  # a batch without a single term, or an objective that ignores logp
            return loss.detach(), torch.zeros_like(leaf).detach()
        (gradient,) = torch.autograd.grad(loss, leaf, allow_unused=True)
    return loss.detach(), torch.zeros_like(leaf).detach() if gradient is None else -gradient
