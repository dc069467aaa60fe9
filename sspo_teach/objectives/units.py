"""Units: over which stretch of a response log-ratios are pooled. Each maps (B, T) log-ratios and mask to (B, T).

A unit pools the *value* and keeps each token's *own gradient*, scaled so that ``response_mean`` gives the full
gradient: a pool Σₜ wₜ zₜ carries L·wₜ·zₜ. With one advantage per response this equals differentiating through the pool;
unlike that, it also takes one advantage per token (GSPO-token, arXiv 2507.18071, eq. 13).
"""

from __future__ import annotations

import torch
from torch import Tensor

from sspo_teach.tensors import LIMIT, lengths, limit, masked_mean, masked_sum, promote, with_value


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


def above_group(logp_old: Tensor, mask: Tensor, group_ids: Tensor) -> Tensor:
    """log q − log(Σⱼ qⱼ²/Σⱼ qⱼ), the sum over the group, q the geometric mean of its old probabilities; (B, 1).

    What turns p/q into GEPO's weight, p over the group's expectation of q (arXiv 2508.17850, eqs. 2–3). At most log G.
    Empty responses take no part.
    """
    if group_ids.shape != mask.shape[:1]:
        raise ValueError(
            f"group_ids has shape {tuple(group_ids.shape)} but logp has {tuple(mask.shape)}: "
            f"it must be ({len(mask)},), one id per response"
        )
    live = lengths(mask).squeeze(1) > 0
    log_q = masked_mean(promote(logp_old.detach()), mask).squeeze(1)
    _, group = torch.unique(group_ids[live], return_inverse=True)
    expected = _group_logsumexp(2 * log_q[live], group) - _group_logsumexp(log_q[live], group)
    return torch.zeros_like(log_q).masked_scatter(live, log_q[live] - expected).unsqueeze(1)


def _group_logsumexp(x: Tensor, group: Tensor) -> Tensor:
    """log Σ exp x over each entry's group; (n,)."""
    top = torch.full_like(x, -torch.inf).scatter_reduce(0, group, x, "amax")[group]
    return top + torch.zeros_like(x).index_add(0, group, (x - top).exp())[group].log()


def _pooled(pool: Tensor, own: Tensor) -> Tensor:
    """The pool, limited like a single log-ratio since sums grow with L and log f with 1/τ; zero gradient outside."""
    return with_value(limit(pool), own * (pool.abs() <= LIMIT))
