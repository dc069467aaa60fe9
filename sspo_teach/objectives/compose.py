"""Objectives made of objectives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, cast

from torch import Tensor

from sspo_teach.tensors import check_shapes

P = ParamSpec("P")
Factor = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def corrected(objective: Callable[P, Tensor], factor: Factor) -> Callable[P, Tensor]:
    """``objective`` on advantages times ``factor(logp, logp_old, advantages, mask)``, (B, T) and detached.

    >>> corrected(grpo, off_policy_sequence_mask)
    >>> corrected(grpo, lambda logp, logp_old, advantages, mask: tis(logp_old, logp_sampler, mask))

    Numbers, fields and normalizer are the objective's.
    """

    @functools.wraps(objective)
    def on_corrected(logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, **numbers: object) -> Tensor:
        check_shapes(logp=logp, logp_old=logp_old, mask=mask, advantages=advantages)  # (B,) · (B, T) might broadcast
        times = factor(logp.detach(), logp_old.detach(), advantages.detach(), mask)
        call = cast(Callable[..., Tensor], objective)
        return call(logp, logp_old, advantages * times.detach().to(advantages.dtype), mask, **numbers)

    return cast(Callable[P, Tensor], on_corrected)
