"""How sure a few seeds make us: t-intervals, the chance of seeing a difference, and how many seeds that takes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import combinations

import torch

from sspo_teach.tensors import check_between, check_positive

# 97.5 % points of Student's t for 1 … 9 degrees of freedom
T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
MOST = 1000  # seeds
CELLS = 4000  # of the integral over s


def interval(values: Sequence[float], *, questions: int = 1) -> tuple[float, float]:
    """Mean and half width of its 95 % t-interval; NaN for the width of a single value.

    Args:
        values: one per seed.
        questions: how many such intervals are read together; each then takes its share of the 5 % (Bonferroni).
    """
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, math.nan
    freedom = len(values) - 1
    t = t975(freedom) if questions == 1 else t_point(freedom, 0.05 / questions)
    return mean, t * statistics.stdev(values) / math.sqrt(len(values))


def unpaired(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Mean difference of two equally long lists that have nothing to do with each other, and its half width at 95 %.

    Student's, with 2n − 2 degrees of freedom and a pooled variance.
    """
    n = len(one)
    if n != len(other) or n < 2:
        raise ValueError(f"one has {n} values and other {len(other)}: give as many of both, at least 2")
    error = math.sqrt((statistics.variance(one) + statistics.variance(other)) / n)
    return statistics.mean(one) - statistics.mean(other), t975(2 * n - 2) * error


def t975(freedom: int) -> float:
    """The 97.5 % point of Student's t; beyond the table by two terms of its expansion, right to 0.2 %."""
    if freedom <= len(T975):
        return T975[freedom - 1]
    z = statistics.NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def power(difference: float, sd: float, seeds: int) -> float:
    """The probability that the 95 % t-interval of ``seeds`` paired differences leaves out 0.

    P(|x̄| > t s/√n) for x ~ N(difference, sd²), by integrating over s (χ with n − 1 degrees of freedom).

    Args:
        difference: the true mean difference, in the unit of ``sd``.
        sd: standard deviation of the difference of one seed.
        seeds: n; with one there is no interval, and the answer is 0.
    """
    check_positive(sd=sd)
    check_between(1, MOST, "it is a number of seeds", seeds=seeds)
    if seeds < 2:
        return 0.0
    return _beyond(t975(seeds - 1), seeds - 1, difference * math.sqrt(seeds) / sd)


def t_point(freedom: int, outside: float) -> float:
    """The t that |T| exceeds with probability ``outside``, by bisection."""
    check_between(1e-4, 0.999, "it is a probability", outside=outside)
    low, high = 0.0, 1e4
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _beyond(middle, freedom, 0.0) > outside else (low, middle)
    return high


def _beyond(t: float, freedom: int, shift: float) -> float:
    """P(|N + shift| > t χ/√freedom), N standard normal and χ with so many degrees of freedom."""
    width = (1 + 8 / math.sqrt(freedom)) / CELLS
    u = (torch.arange(CELLS, dtype=torch.float64) + 0.5) * width  # s/σ
    log_density = (freedom - 1) * u.log() - freedom * u**2 / 2
    density = (log_density - log_density.max()).exp()
    ndtr = torch.special.ndtr
    outside = ndtr(shift - t * u) + ndtr(-shift - t * u)
    return ((density * outside).sum() / density.sum()).item()


def seeds_needed(difference: float, sd: float, *, chance: float = 0.8) -> int:
    """The fewest seeds whose ``power`` is at least ``chance``.

    Raises:
        ValueError: it would take more than a thousand.
    """
    check_between(0.05, 0.999, "it is the probability of telling the methods apart", chance=chance)
    low, high = 1, 2
    while power(difference, sd, high) < chance:
        low, high = high, 2 * high
        if high > MOST:
            raise ValueError(
                f"difference={difference}: with sd={sd} it takes more than {MOST} seeds; look for a larger one"
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(difference, sd, middle) >= chance else (middle, high)
    return high


def luckiest_split(values: Sequence[float]) -> tuple[tuple[int, ...], tuple[int, ...], float]:
    """Two halves of the same runs whose means lie furthest apart: positions of the better and the other half, the gap.

    Raises:
        ValueError: an odd number of values, or more than sixteen.
    """
    n = len(values)
    if n % 2 or not 2 <= n <= 16:
        raise ValueError(f"values has {n} entries: give an even number from 2 to 16, so that the halves are equal")
    best: tuple[int, ...] = max(
        combinations(range(n), n // 2), key=lambda half: statistics.mean(values[i] for i in half)
    )
    rest = tuple(i for i in range(n) if i not in best)
    gap = statistics.mean(values[i] for i in best) - statistics.mean(values[i] for i in rest)
    return best, rest, gap
