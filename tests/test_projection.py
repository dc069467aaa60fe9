"""The vocabulary projection in chunks: the same numbers and gradients as all logits at once, and never all logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import left_padded, policy, take_gradient
from torch import Tensor

from sspo_teach.policies.causal_lm import CausalLM

VOCAB = 37


def batch(length: int = 5, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Two prompts of different lengths with three responses each: tokens, prompt mask, group ids."""
    prompts, mask = left_padded([3, 4, 5, 6], [7])
    rows = torch.arange(2).repeat_interleave(3)
    responses = torch.randint(1, VOCAB, (len(rows), length), generator=torch.Generator().manual_seed(seed))
    return torch.cat([prompts[rows], responses], dim=1), mask[rows], rows


def pull_of(logp: Tensor, seed: int = 1) -> Tensor:
    """A credit per token, some of them 0 as padding and clipped tokens have."""
    pull = torch.randn(logp.shape, generator=torch.Generator().manual_seed(seed), dtype=logp.dtype)
    return pull.where(pull > -0.7, 0.0)


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """1e-12 in float64, 1e-6 in float32, of the largest entry."""
    error = (found - expected).abs().max() / expected.abs().max()
    assert found.dtype == expected.dtype
    assert error < (1e-12 if dtype == torch.float64 else 1e-6), error


def scores(one: CausalLM, chunk: int, *, shared: bool = False, temperature: float = 1.0) -> tuple[Tensor, ...]:
    """log-probabilities, their gradient under ``pull_of``, then log-probabilities and entropies without gradient."""
    tokens, mask, groups = batch()
    one.spare(chunk=chunk)
    settings: dict[str, Any] = {"temperature": temperature, "group_ids": groups if shared else None}
    logp = one.logp(tokens, mask, **settings)
    logp.backward(pull_of(logp))
    return logp.detach(), take_gradient(one), *one.logp_and_entropy(tokens, mask, **settings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("chunk", "temperature"), [(1, 1.0), (7, 0.6), (1000, 1.0)])
def test_chunks_change_nothing(dtype, shared, chunk, temperature):
    one = policy(VOCAB, dtype=dtype)
    whole, parts = (scores(one, size, shared=shared, temperature=temperature) for size in (0, chunk))
    for found, expected in zip(parts, whole, strict=True):
        close(found, expected, dtype)
