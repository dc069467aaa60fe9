"""Advantages: how much better a response did than the others to its prompt. Each gives (B, 1).

Every estimator comes twice: on tensors, as ``normalized(rewards, group_ids)``, and on a rollout, as
``group_normalized(rollout)``. Groups are given by id, so order and group sizes are free. A group whose rewards are all
equal gets exactly 0: rounding would leave a residue that the division by std + ε can blow up (eight rewards of 0.1 in
float32 give |A| = 0.4 at ε = 1e-8).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sspo_teach.tensors import check_between
from sspo_teach.types import Rollout

DIALECTS: Mapping[str, Mapping[str, float]] = {"trl": {"ddof": 1, "eps": 1e-4}, "verl": {"ddof": 1, "eps": 1e-6}}
"""Numbers under which ``normalized`` is a library's: both take the sample standard deviation; the papers do not say."""


def normalized(rewards: Tensor, group_ids: Tensor, *, ddof: float = 0, eps: float = 1e-6) -> Tensor:
    """A = (R − mean)/(std + ε) over the group (GRPO, arXiv 2402.03300); population std unless ``ddof=1``."""
    check_between(0, 1, "0 is the population standard deviation, 1 the sample's", ddof=ddof)
    check_between(0, float("inf"), "it only keeps the division safe", eps=eps)
    gap, group, size = _gaps(rewards, group_ids)
    variance = _group_sum(gap.square(), group, size) / (size - ddof)
    return _column((gap / (variance.sqrt() + eps)[group]).where(gap != 0, 0.0), rewards)


def centered(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """A = R − mean over the group (Dr. GRPO, arXiv 2503.20783)."""
    gap, _, _ = _gaps(rewards, group_ids)
    return _column(gap, rewards)


def leave_one_out(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """A = R − mean of the *other* rewards of the group = G/(G − 1) · (R − mean) (RLOO, arXiv 2402.14740)."""
    gap, group, size = _gaps(rewards, group_ids)
    return _column(gap * (size / (size - 1))[group], rewards)


def group_normalized(rollout: Rollout, *, ddof: float = 0, eps: float = 1e-6) -> Tensor:
    """``normalized`` on a rollout; a dialect is ``partial(group_normalized, **DIALECTS["trl"])``."""
    return normalized(rollout.rewards, rollout.group_ids, ddof=ddof, eps=eps)


def group_centered(rollout: Rollout) -> Tensor:
    """``centered`` on a rollout."""
    return centered(rollout.rewards, rollout.group_ids)


def group_leave_one_out(rollout: Rollout) -> Tensor:
    """``leave_one_out`` on a rollout."""
    return leave_one_out(rollout.rewards, rollout.group_ids)


def has_signal(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """Whether a response's group holds unequal rewards; (B,) bool. A group without signal teaches nothing."""
    _, group, size = _groups(rewards, group_ids)
    return (_group_extreme(rewards, group, size, "amax") != _group_extreme(rewards, group, size, "amin"))[group]


def _gaps(rewards: Tensor, group_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """R − group mean in float64, exactly 0 in groups without signal; with the groups' index (B,) and sizes (N,)."""
    ids, group, size = _groups(rewards, group_ids)
    if (size < 2).any():
        alone = int(ids[size < 2][0])
        raise ValueError(
            f"group_ids holds {alone} only once: a group of G = 1 has no one to be compared with; "
            f"sample at least 2 responses per prompt"
        )
    mean = _group_sum(rewards.double(), group, size) / size
    return (rewards.double() - mean[group]).where(has_signal(rewards, group_ids), 0.0), group, size


def _groups(rewards: Tensor, group_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if rewards.ndim != 1 or group_ids.shape != rewards.shape:
        raise ValueError(
            f"rewards has shape {tuple(rewards.shape)} and group_ids {tuple(group_ids.shape)}: "
            f"both must be (B,), one entry per response"
        )
    if not rewards.isfinite().all():
        row = int((~rewards.isfinite()).nonzero()[0])
        raise ValueError(f"rewards is {rewards[row].item()} at row {row}: every response needs a finite reward")
    ids, group, size = torch.unique(group_ids, return_inverse=True, return_counts=True)
    return ids, group, size.double()  # so that size / (size − 1) is not a float32


def _group_sum(x: Tensor, group: Tensor, size: Tensor) -> Tensor:
    return torch.zeros_like(size, dtype=x.dtype).index_add(0, group, x)


def _group_extreme(x: Tensor, group: Tensor, size: Tensor, reduce: str) -> Tensor:
    return torch.zeros_like(size, dtype=x.dtype).scatter_reduce(0, group, x, reduce, include_self=False)


def _column(x: Tensor, rewards: Tensor) -> Tensor:
    return x.to(torch.promote_types(rewards.dtype, torch.float32)).unsqueeze(1)
