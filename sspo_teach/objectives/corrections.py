"""Corrections for data that another program sampled, or that have grown old: (B, T) factors on the advantages.

The sampler (an inference engine, another precision) and the scoring pass may disagree about the same weights. With
k = π_old/π_sampler of a token these factors weigh or silence what the sampler drew too seldom or too often. None is
learnt from, and log k is limited to ±20 like every log-ratio. A ``unit`` lifts a rule from the token to the response:
``units.product`` takes k of the whole response, ``units.sequence`` its geometric mean.

A silenced token stays in the normalizer's count, which makes a step smaller; verl's rejection takes it out of there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from sspo_teach.objectives import units
from sspo_teach.tensors import check_between, log_ratio

Unit = Callable[[Tensor, Tensor], Tensor]


@torch.no_grad()
def tis(
    logp_old: Tensor,
    logp_sampler: Tensor,
    mask: Tensor,
    *,
    unit: Unit = units.token,
    cap: float = 2.0,
    floor: float = 0.0,
) -> Tensor:
    """Truncated importance sampling: clip(k, floor, cap); cap = 2 is verl's."""
    _check(floor, cap, "floor", "cap")
    return unit(log_ratio(logp_old, logp_sampler, mask), mask).exp().clamp(floor, cap)


@torch.no_grad()
def mis(
    logp_old: Tensor,
    logp_sampler: Tensor,
    mask: Tensor,
    *,
    unit: Unit = units.token,
    low: float = 0.5,
    high: float = 2.0,
) -> Tensor:
    """Masked importance sampling: k where low ≤ k ≤ high, else 0; 0.5 and 2 are TRL's example."""
    _check(low, high, "low", "high")
    k = unit(log_ratio(logp_old, logp_sampler, mask), mask).exp()
    return k.where((k >= low) & (k <= high), 0.0)


def icepop(logp_old: Tensor, logp_sampler: Tensor, mask: Tensor, *, low: float = 0.5, high: float = 5.0) -> Tensor:
    """``mis`` per token between 0.5 and 5 (Ring-1T, 2025, arXiv 2510.18855: α and β)."""
    return mis(logp_old, logp_sampler, mask, low=low, high=high)


@torch.no_grad()
def geo_mask(
    logp_old: Tensor, logp_sampler: Tensor, mask: Tensor, *, low: float = 0.999, high: float = 1.001
) -> Tensor:
    """1 where the geometric mean of k over the response lies in [low, high], else 0: a verdict, no weight.

    Rule from notes; 0.999 and 1.001 are verl's preset for a sampler of the same precision.
    """
    _check(low, high, "low", "high")
    k = units.sequence(log_ratio(logp_old, logp_sampler, mask), mask).exp()
    return ((k >= low) & (k <= high)).to(k)


SAMPLER: Mapping[str, Callable[..., Tensor]] = {
    "tis": tis,
    "tis_sequence": partial(tis, unit=units.product),
    "mis": mis,
    "mis_sequence": partial(mis, unit=units.product),
    "icepop": icepop,
    "geo_mask": geo_mask,
}
"""Factors made of the sampler's log-probabilities, by name: (logp_old, logp_sampler, mask, *, numbers) → (B, T)."""


@torch.no_grad()
def off_policy_sequence_mask(
    logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, *, delta: float = 0.5
) -> Tensor:
    """0 for a response with A < 0 that the policy has left, 1/L Σₜ log(π_old/π_θ) > δ; else 1.

    DeepSeek-V3.2, 2025, arXiv 2512.02556 (read in TRL, whose suggestion δ = 0.5 is; the paper gives none).
    """
    check_between(0, math.inf, "it is a divergence in nats per token", delta=delta)
    left = -units.sequence(log_ratio(logp, logp_old, mask), mask)
    return (~((advantages < 0) & (left > delta))).to(left)


def _check(low: float, high: float, name_low: str, name_high: str) -> None:
    check_between(0, 1, "it is a ratio, and 1 must pass", **{name_low: low})
    check_between(1, math.inf, "it is a ratio, and 1 must pass", **{name_high: high})
