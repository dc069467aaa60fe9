"""The gradient of a method on the same prompts, again and again: its norm, and how far the prompts disagree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def spread(gradients: Callable[[int], Sequence[Tensor]], n: int) -> tuple[float, float]:
    """Norm of the mean of n gradients, and the exact trace of their covariance, Σᵢ‖gᵢ − ḡ‖²/(n − 1).

    Args:
        gradients: i → the i-th gradient as tensors, which are read before the next is asked for. All n are never held
            at once: by tr Σ = (Σᵢ‖gᵢ‖² − n‖ḡ‖²)/(n − 1) their sum and the sum of their squared norms are enough.
        n: at least 2.

    >>> spread(lambda i: [torch.tensor([3.0, float(i)])], 3)
    (3.1622776601683795, 1.0)
    """
    if n < 2:
        raise ValueError(f"n={n}: a variance needs at least 2 gradients")
    total: list[Tensor] = []
    squares = 0.0
    for i in range(n):
        found = gradients(i)
        squares += _square(found)
        if total:
            torch._foreach_add_(total, list(found))
        else:
            total = [g.detach().clone() for g in found]
    mean = _square(total) / n**2
    return mean**0.5, max(0.0, (squares - n * mean) / (n - 1))


def _square(tensors: Sequence[Tensor]) -> float:
    """Squared norm over all tensors, each in float32 at least."""
    wide = (torch.promote_types(t.dtype, torch.float32) for t in tensors)
    return sum(float(torch.linalg.vector_norm(t, dtype=kind)) ** 2 for t, kind in zip(tensors, wide, strict=True))
