"""Units: over which stretch of a response log-ratios are pooled. Each maps (B, T) log-ratios and mask to (B, T).

A unit pools the *value* and keeps each token's *own gradient*, scaled so that ``response_mean`` gives the full
gradient: a pool Σₜ wₜ zₜ carries L·wₜ·zₜ. With one advantage per response this equals differentiating through the pool;
unlike that, it also takes one advantage per token (GSPO-token, arXiv 2507.18071, eq. 13).
"""

from __future__ import annotations

from torch import Tensor

from sspo_teach.tensors import LIMIT, lengths, limit, masked_mean, masked_sum, with_value


def token(log_r: Tensor, mask: Tensor) -> Tensor:
    """No pooling: log ρₜ."""
    return log_r


def sequence(log_r: Tensor, mask: Tensor) -> Tensor:
    """The mean over the response, log of the geometric mean; w = 1/L, so a token carries its own gradient once."""
    return _pooled(masked_mean(log_r, mask), log_r)


def product(log_r: Tensor, mask: Tensor) -> Tensor:
    """The sum over the response, log of the product; w = 1, so a token carries its own gradient L times."""
    return _pooled(masked_sum(log_r, mask), log_r * lengths(mask))


def prefix(log_r: Tensor, mask: Tensor) -> Tensor:
    """The running sum, log of the product up to t; the term of token t touches the gradient of token t only.

    Differs by design from differentiating through the sum, where an early token would also collect all later terms.
    """
    return _pooled(log_r.where(mask.bool(), 0.0).cumsum(dim=1), log_r)


def _pooled(pool: Tensor, own: Tensor) -> Tensor:
    """The pool, limited like a single log-ratio since sums grow with L and log f with 1/τ; zero gradient outside."""
    return with_value(limit(pool), own * (pool.abs() <= LIMIT))
