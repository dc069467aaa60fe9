"""Log-probabilities from hidden states, a few tokens of the vocabulary projection at a time.

The logits of B responses of T tokens are the largest tensor of a training step: 1.24 GB in float32 for 8 × 256 tokens
and 151 936 words, several times over. Here they exist for a chunk of tokens only; going backward each chunk is computed
again. The gradient of the projection is added where it belongs, so that it needs no second copy of the largest weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sspo_teach.tensors import promote

BUDGET = 2**25
"""Logits in a chunk where the caller leaves its size open: 128 MiB in float32, 220 tokens of Qwen2.5."""


def automatic_chunk(vocab_size: int) -> int:
    """Tokens per chunk that keep its logits within ``BUDGET``."""
    return max(1, BUDGET // vocab_size)


def token_logp(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tokens: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """log softmax((h Wᵀ + b)/temperature) at ``tokens``, differentiable once.

    Args:
        hidden: (B, T, D).
        weight: (V, D). Where a backward pass is going to fill its ``.grad``, that is added to in place.
        bias: (V,) or None.
        tokens: (B, T) int64.
        temperature: > 0.
        chunk: tokens whose logits exist together; at least 1.
        dtype: of the matrix products; None is the weight's. The log-softmax takes float32 at least.

    Returns:
        (B, T), at least float32.
    """
    flat = _TokenLogp.apply(
        hidden.flatten(0, 1), weight, bias, tokens.flatten(), temperature, chunk, dtype or weight.dtype
    )
    return flat.view(tokens.shape)


@torch.no_grad()
def token_logp_and_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tokens: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """``token_logp`` without gradient, and the entropy (B, T) in nats of each softmax."""
    flat, ids, dtype = hidden.flatten(0, 1), tokens.flatten(), dtype or weight.dtype
    parts = []
    for rows, logits in _chunks(flat, weight, bias, temperature, chunk, dtype):
        shifted = finite_(logits.sub_(logits.amax(-1, keepdim=True)).clone())
        logp, total = _exponentiate(logits, ids[rows])  # the very steps of ``token_logp``: a ratio of the two is 1
        parts.append((logp, total.log() - logits.mul_(shifted).sum(-1) / total))
    logp, entropy = (torch.cat(column) for column in zip(*parts, strict=True))
    return logp.view(tokens.shape), entropy.view(tokens.shape)


def finite_(x: Tensor) -> Tensor:
    """Write the lowest number over −∞, so that a word that cannot come adds 0 to the entropy and not 0 · ∞."""
    return x.clamp_(min=torch.finfo(x.dtype).min)


class _TokenLogp(torch.autograd.Function):
    """(N, D) hidden states and (N,) tokens → (N,); keeps no logits."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tokens: Tensor,
        temperature: float,
        chunk: int,
        dtype: torch.dtype,
    ) -> Tensor:
        ctx.save_for_backward(hidden, weight, bias, tokens)
        ctx.settings = temperature, chunk, dtype
        pieces = _chunks(hidden, weight, bias, temperature, chunk, dtype)
        return torch.cat([_exponentiate(logits, tokens[rows])[0] for rows, logits in pieces])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, pull: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, tokens = ctx.saved_tensors
        temperature, chunk, dtype = ctx.settings
        of_hidden = torch.zeros_like(hidden)
        of_weight, give_weight = _sum_of(weight, ctx.needs_input_grad[1])
        of_bias = torch.zeros_like(bias) if ctx.needs_input_grad[2] else None
        low = weight.to(dtype)
        heard = pull.nonzero().squeeze(1)  # padding and clipped tokens say nothing, so their logits are not needed
        for rows, logits in _chunks(hidden, low, bias, temperature, chunk, dtype, heard) if len(heard) else ():
            slope = pulled(logits, tokens[rows], pull[rows] / temperature)
            if of_bias is not None:
                of_bias += slope.sum(0).to(of_bias.dtype)
            slope = slope.to(dtype)
            of_hidden[rows] = (slope @ low).to(hidden.dtype)
            if of_weight is not None:
                _add_product(of_weight, slope.T, hidden[rows].to(dtype))
        return of_hidden, of_weight if give_weight else None, of_bias, None, None, None, None


def pulled(logits: Tensor, tokens: Tensor, pull: Tensor) -> Tensor:
    """∂(Σ pull · log softmax(z)[token])/∂z = pull · (onehot − softmax(z)); ``logits`` (n, V) are written over.

    On a GPU liger-kernel's cross-entropy, where it is installed, makes softmax − onehot in one kernel.
    """
    kernel = _liger() if _on_gpu(logits) else None
    if kernel is not None:
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            (slope,) = torch.autograd.grad(kernel(leaf, tokens, reduction="sum"), leaf)
        return slope.mul_(-pull.unsqueeze(1))
    _, total = _exponentiate(logits, tokens)
    slope = logits.mul_((-pull / total).unsqueeze(1))
    slope[torch.arange(len(tokens), device=tokens.device), tokens] += pull
    return slope


def _exponentiate(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Write exp(z − max z) over the logits z (n, V); returns log softmax(z)[token] and the sums of the rows, (n,)."""
    logits.sub_(logits.amax(-1, keepdim=True))
    at = _at(logits, tokens)
    total = logits.exp_().sum(-1)
    return at - total.log(), total


def _chunks(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    temperature: float,
    chunk: int,
    dtype: torch.dtype,
    rows: Tensor | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Row indices (n,) and their logits / temperature (n, V), at least float32, for ``rows`` or all of ``hidden``.

    All chunks share one piece of memory, so each is gone when the next one comes.
    """
    low = weight.to(dtype)
    rows = torch.arange(len(hidden), device=hidden.device) if rows is None else rows
    space = low.new_empty((min(chunk, len(rows)), len(low)))
    for piece in rows.split(chunk):  # of no rows there is one piece, which is empty
        logits = promote(torch.mm(hidden[piece].to(dtype), low.T, out=space[: len(piece)]))
        if bias is not None:
            logits += bias
        yield piece, logits.div_(temperature) if temperature != 1 else logits


def _at(all_logp: Tensor, tokens: Tensor) -> Tensor:
    return all_logp.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def _sum_of(weight: Tensor, needed: bool) -> tuple[Tensor | None, bool]:
    """Where to add up a weight's gradient, and whether autograd must be given it afterwards.

    Autograd's own way holds what it is given beside ``weight.grad`` until all users of a tied weight have reported.
    """
    if not needed:
        return None, False
    if not _fills_grad(weight):
        return torch.zeros_like(weight), True
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    return weight.grad, False


def _fills_grad(weight: Tensor) -> bool:
    """Whether the backward pass that runs now ends in ``weight.grad``, and nobody wants to see what comes before."""
    if not weight.is_leaf or weight._backward_hooks or weight._post_accumulate_grad_hooks:
        return False
    node = torch.autograd.graph.get_gradient_edge(weight).node
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # autograd.grad asks for this very tensor
        return False


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, without a second tensor of that size where the types agree."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def _on_gpu(x: Tensor) -> bool:
    return x.is_cuda


def _liger() -> Callable[..., Tensor] | None:
    try:
        from liger_kernel.transformers.functional import liger_cross_entropy
    except ImportError:
        return None
    return liger_cross_entropy
