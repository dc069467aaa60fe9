"""Attention for models so small that the score matrix costs nothing and every kernel call does.

``scaled_dot_product_attention`` cuts its work into tiles for long sequences; at 30 tokens and heads of 32 numbers the
tiles cost more than the arithmetic. Two batched products with the queries of one key head stacked take half the time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

NAME = "stacked"
SMALL = 256
"""The largest hidden size of a model that attends this way."""


def stacked(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:
    """softmax(scaling · q kᵀ + mask) v.

    Args:
        query: (B, H, N, D).
        key, value: (B, K, M, D), each shared by H/K heads of queries.
        attention_mask: (B, 1, N, M), added to the scores; None where every key is seen.

    Returns:
        (B, N, H, D), and None for the weights that nobody asked for.
    """
    (batch, heads, queries, width), kv_heads = query.shape, key.shape[1]
    scores = query.reshape(batch, kv_heads, -1, width) @ key.transpose(-1, -2)
    by_head = scores.view(batch, kv_heads, heads // kv_heads, queries, -1)
    by_head = by_head * scaling if attention_mask is None else attention_mask.unsqueeze(1).add(by_head, alpha=scaling)
    out = by_head.softmax(-1).view_as(scores) @ value
    return out.view(batch, heads, queries, width).transpose(1, 2).contiguous(), None


def mask_of(*, q_length: int, attention_mask: Tensor | None, allow_is_causal_skip: bool, **rest: Any) -> Tensor | None:
    """transformers' mask of an own attention: additive, and none for a single query that sees all keys."""
    if q_length == 1 and attention_mask is None and allow_is_causal_skip:
        return None
    return eager_mask(q_length=q_length, attention_mask=attention_mask, **rest)


AttentionInterface.register(NAME, stacked)
AttentionMaskInterface.register(NAME, mask_of)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A bool mask as what is added to the scores: 0 where it is True, the lowest number elsewhere."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)
