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
    """The mean over the response, log of the geometric mean of ρ; w = 1/L, so a token carries its own gradient once."""
    return with_value(masked_mean(log_r, mask), log_r)


def product(log_r: Tensor, mask: Tensor) -> Tensor:
    """The sum over the response, log of the product of ρ, limited to ±20; w = 1, so a token carries it L times."""
    total = masked_sum(log_r, mask)
    return with_value(limit(total), log_r * lengths(mask) * (total.abs() <= LIMIT))


def prefix(log_r: Tensor, mask: Tensor) -> Tensor:
    """The running sum, log of the product of ρ up to t, limited to ±20; token t's term touches token t's gradient only.

    Differs by design from differentiating through the sum, where an early token would also collect all later terms.
    """
    total = log_r.where(mask.bool(), 0.0).cumsum(dim=1)
    return with_value(limit(total), log_r * (total.abs() <= LIMIT))
