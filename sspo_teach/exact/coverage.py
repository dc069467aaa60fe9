"""How often a band is left: exactly where the law of the scores is known, by simulation where it moves.

A score is a response's mean log-ratio s = 1/L Σ log ρ. Token log-ratios are taken as independent, with mean 0 and one
standard deviation: an idealisation, since tokens of a response and responses of a batch share a policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sspo_teach.gates import bounds
from sspo_teach.tensors import check_between, check_positive


def tail(length: float, lower: float, upper: float, *, sd: float) -> float:
    """P(s < lower or s > upper) of the mean of ``length`` normal log-ratios with standard deviation ``sd``."""
    check_positive(length=length, sd=sd)
    scale = sd / math.sqrt(length) * math.sqrt(2)
    return (math.erfc(-lower / scale) + math.erfc(upper / scale)) / 2


def miss(n: int, alpha: float) -> float:
    """(k_lo + n + 1 − k_hi)/(n + 1): the exact rate at which a fresh score leaves the band of n exchangeable ones.

    At most ``alpha``, whatever their law, if it is continuous.
    """
    low, high = bounds.ranks(n, alpha)
    return (low + n + 1 - high) / (n + 1)


def enough(alpha: float) -> int:
    """⌈2/α⌉ − 1, the fewest scores that bound a band on both sides."""
    check_between(1e-6, 1, "it is the share of scores that may fall outside the band", alpha=alpha)
    return math.ceil(2 / alpha - 1e-9) - 1


@dataclass(frozen=True)
class Drifting:
    """Scores of U updates, n each, whose spread grows, and two bands on them.

    Attributes:
        scores: (U, n).
        calibrated: (U, 2), the band from the last scores *before* each update; ±∞ where there are too few.
        fixed: (2,), the band of the first window, never moved again.
        alpha: miscoverage that both aim at.
        judged: (U,) bool, the updates after the first window.
    """

    scores: NDArray[np.float64]
    calibrated: NDArray[np.float64]
    fixed: NDArray[np.float64]
    alpha: float
    judged: NDArray[np.bool_]

    def missed(self, band: NDArray[np.float64]) -> NDArray[np.float64]:
        """(U,), the share of each update's scores outside ``band``, (2,) or (U, 2)."""
        low, high = band[..., :1], band[..., 1:]
        return ((self.scores < low) | (self.scores > high)).mean(axis=1)


def drifting(
    alpha: float = 0.1,
    *,
    window: int = 512,
    growth: float = 3.0,
    updates: int = 120,
    batch: int = 32,
    length: int = 256,
    sd: float = 0.035,
    seed: int = 0,
) -> Drifting:
    """Scores whose spread grows by the factor ``growth`` over the run, under a band calibrated on the last ``window``.

    The band is CSPO's in our reconstruction (its paper's text is not public): order statistics of earlier scores.

    Args:
        alpha: share of scores that may fall outside.
        window: scores that are kept.
        growth: standard deviation at the end over that at the start; 1 is the exchangeable case.
        updates, batch: how many updates, and responses in each.
        length, sd: a score is the mean of ``length`` log-ratios of standard deviation ``sd``.
        seed: of the scores.
    """
    check_between(enough(alpha), 10**6, "it must hold the scores that a band needs", window=window)
    check_positive(growth=growth, updates=updates, batch=batch, length=length, sd=sd)
    grown = growth ** np.linspace(0, 1, updates)
    scores = np.random.default_rng(seed).normal(size=(updates, batch)) * (sd / math.sqrt(length) * grown)[:, None]
    flat, bands = scores.ravel(), np.empty((updates, 2))
    for u in range(updates):
        bands[u] = bounds.calibrated(flat[max(0, u * batch - window) : u * batch].tolist(), alpha)
    fixed = np.array(bounds.calibrated(flat[:window].tolist(), alpha))
    return Drifting(scores, bands, fixed, alpha, np.arange(updates) * batch >= window)


Mass = Callable[[Tensor, Tensor, float, float], Tensor]


def positive_share(mass: Mass, ratio: Tensor, advantages: Tensor, pairs: Sequence[tuple[float, float]]) -> list[float]:
    """The share of Σ |A| · mass that tokens with A > 0 hold under each pair of bounds (BAPO, arXiv 2510.18927).

    Args:
        mass: ``bounds.active_mass`` or ``bounds.printed_mass``.
        ratio, advantages: of one shape.
        pairs: (low, high) ratios.
    """
    out = []
    for low, high in pairs:
        held = advantages.abs() * mass(ratio, advantages, low, high)
        out.append((held[advantages > 0].sum() / held.sum()).item())
    return out
