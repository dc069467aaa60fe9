"""Normalizers: how (B, T) terms become one number. Each maps the terms and the mask to a scalar.

Fully masked rows leave numerator and denominator; with nothing left the result is 0, with zero gradient. The counts may
be fixed from outside, which is how micro-batches and data-parallel frameworks keep the denominator of the whole batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from sspo_teach.tensors import check_positive, lengths, masked_mean, masked_sum

Normalizer = Callable[..., Tensor]
Count = int | float | Tensor


def response_mean(x: Tensor, mask: Tensor, *, responses: Count | None = None) -> Tensor:
    """1/R Σᵢ 1/Lᵢ Σₜ xᵢₜ: every response weighs the same, so a token of a long one weighs less."""
    return masked_mean(_terms(x, mask), mask).sum() / _at_least_one(
        live_responses(mask) if responses is None else responses
    )


def token_mean(x: Tensor, mask: Tensor, *, tokens: Count | None = None) -> Tensor:
    """1/ΣL Σᵢₜ xᵢₜ: every token weighs the same, so a long response weighs more."""
    return masked_sum(_terms(x, mask), mask).sum() / _at_least_one(live_tokens(mask) if tokens is None else tokens)


def sequence_sum(x: Tensor, mask: Tensor, *, responses: Count | None = None) -> Tensor:
    """1/R Σᵢₜ xᵢₜ: the log-probability of a response is a sum, and so is its gradient."""
    return masked_sum(_terms(x, mask), mask).sum() / _at_least_one(
        live_responses(mask) if responses is None else responses
    )


def constant(length: int) -> Normalizer:
    """The normalizer 1/(R · length) Σᵢₜ xᵢₜ: Dr. GRPO's, with the longest length allowed (arXiv 2503.20783)."""
    check_positive(length=length)

    def constant_length(x: Tensor, mask: Tensor, *, responses: Count | None = None) -> Tensor:
        return sequence_sum(x, mask, responses=responses) / length

    return constant_length


def with_counts(normalize: Normalizer, mask: Tensor) -> Normalizer:
    """``normalize`` with its counts fixed to those of ``mask``: the losses of the parts then add up to the whole."""
    return fixed(normalize, counts(mask))


def counts(mask: Tensor) -> dict[str, Tensor]:
    """All that a normalizer may divide by, by the name of its argument; they add up over the parts of a batch."""
    return {"responses": live_responses(mask), "tokens": live_tokens(mask)}


def fixed(normalize: Normalizer, counted: Mapping[str, Count]) -> Normalizer:
    """``normalize`` with those counts that it takes."""
    takes = inspect.signature(normalize).parameters
    return partial(normalize, **{name: count for name, count in counted.items() if name in takes})


def live_responses(mask: Tensor) -> Tensor:
    """How many rows have at least one response token; a scalar."""
    return mask.bool().any(dim=1).sum()


def live_tokens(mask: Tensor) -> Tensor:
    """How many response tokens there are; a scalar."""
    return lengths(mask).sum()


def _terms(x: Tensor, mask: Tensor) -> Tensor:
    if x.shape != mask.shape:  # (B, 1) would broadcast over the mask and be counted L times
        raise ValueError(
            f"x has shape {tuple(x.shape)} but mask has {tuple(mask.shape)}: give one term per token, (B, T)"
        )
    return x


def _at_least_one(count: Count) -> Tensor:
    return torch.as_tensor(count).clamp(min=1)
