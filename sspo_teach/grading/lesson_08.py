"""Checks of lesson 08: bands that adapt to length, probability, balance and recent scores."""

from __future__ import annotations

import math
from typing import Any

import torch

from sspo_teach.exact.coverage import positive_share
from sspo_teach.gates import bounds
from sspo_teach.grading.exercise import Exercise

RATIO, ADVANTAGE = torch.tensor([1.5, 1.0, 0.5, 0.95, 1.1]), torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0])
"""Five tokens on which BAPO's share can be counted by hand."""


def _number(answer: Any) -> float:
    if isinstance(answer, bool):
        raise TypeError("a number is wanted")
    return float(answer)


def length(answer: Any) -> str | None:
    told = {
        1.0: "a band that stays as it is catches fewer of the longer responses: their mean scatters less",
        4.0: "that is for the sum of the log-ratios (FSPO's band on S); here the score is their mean",
        1 / 16: "the variance of a mean falls like 1/L; the standard deviation, which sets the tail, falls slower",
        16.0: "the mean of more tokens scatters less, not more",
    }
    found = _number(answer)
    if math.isclose(found, 0.25, rel_tol=1e-6):
        return None
    near = next((message for value, message in told.items() if math.isclose(found, value, rel_tol=1e-6)), None)
    return near or f"{found:g} is not it: how does the standard deviation of a mean of L terms depend on L?"


def room(answer: Any) -> str | None:
    for p, delta in ((0.01, 0.05), (0.2, 0.05), (0.5, 0.01), (0.99, 0.05), (0.9, 0.3)):
        right = bounds.by_tv(torch.tensor([[p]]).log().double(), torch.ones(1, 1), delta)[1].exp().item()
        found = float(answer(p, delta))
        if abs(found - right) < 1e-4 * right:
            continue
        if math.isclose(found, 1 + delta, rel_tol=1e-4):
            return "that is a fixed clip: it does not know p. The probability may move by δ, the ratio by δ/p"
        if math.isclose(found, 1 + delta / p, rel_tol=1e-4):
            return f"at p = {p}, δ = {delta} this is {found:.3g}: the new probability p·ρ would be more than 1"
        return f"at p = {p}, δ = {delta} it gives {found:.5g}, not {right:.5g}"
    return None


def share(answer: Any) -> str | None:
    found, pair = _number(answer), [(0.6, 1.5)]
    (right,) = positive_share(bounds.active_mass, RATIO, ADVANTAGE, pair)
    (printed,) = positive_share(bounds.printed_mass, RATIO, ADVANTAGE, pair)
    (narrow,) = positive_share(bounds.active_mass, RATIO, ADVANTAGE, [(0.6, 1.2)])
    if abs(found - right) < 5e-4:
        return None
    if abs(found - printed) < 5e-4:
        return "that counts the clipped token as 0.6, as printed; it has no gradient, so here it counts 0"
    if abs(found - narrow) < 5e-4:
        return "that is for the upper bound 1.2, at which the token with ρ = 1.5 has no gradient; it is 1.5 now"
    if abs(found - 0.4) < 5e-4:
        return "that counts tokens; each counts |A| ρ where it has a gradient"
    return f"{found:g} is not it: which of the five tokens has a gradient, and what is ρ there?"


def ranks(answer: Any) -> str | None:
    for n, alpha in ((100, 0.1), (19, 0.1), (512, 0.2), (9, 0.2), (50, 0.4)):
        found = tuple(int(k) for k in answer(n, alpha))
        right = bounds.ranks(n, alpha)
        if found == right:
            continue
        low, high = (n * alpha / 2, n * (1 - alpha / 2))
        if found == (math.floor(low + 1e-9), math.ceil(high - 1e-9)):
            return "these are ranks among n scores; the fresh one is the (n + 1)st, and it counts too"
        wide = (n + 1) * alpha, (n + 1) * (1 - alpha)
        if found == (math.floor(wide[0] + 1e-9), math.ceil(wide[1] - 1e-9)):
            return "α on each side makes 2α in all; each side gets α/2"
        missed = (found[0] + n + 1 - found[1]) / (n + 1)
        more = f": a fresh score would leave it with probability {missed:.4g}" if missed > alpha else ""
        return f"at n = {n}, α = {alpha} it gives {found}, not {right}{more}"
    return None


EXERCISES = {
    "length": Exercise(
        "a number: by which factor must the half-width of a band on s = mean log ρ change when responses get 16 times "
        "as long, so that as many leave it?",
        length,
        "1/√16: a band on the mean must shrink like 1/√L, a band on the sum grows like √L",
        (
            "Tokens independent with standard deviation σ: what is the standard deviation of their mean?",
            "σ/√L. The tail depends on half-width over standard deviation.",
        ),
    ),
    "room": Exercise(
        "a function of (p, delta): the largest ratio ρ that total variation allows, p·(ρ − 1) ≤ δ, and that exists",
        room,
        "rare tokens get room in ratio, because they have little in probability",
        (
            "Solve p(ρ − 1) = δ for ρ. And what is the largest new probability?",
            "The smaller of 1 + δ/p and 1/p.",
        ),
    ),
    "share": Exercise(
        "a number: the share of the positive tokens at the band [0.6, 1.5], counting |A| ρ where there is a gradient, "
        "for ρ = (1.5, 1.0 | 0.5, 0.95, 1.1), A = (1, 1 | −1, −1, −1)",
        share,
        "2.5 of 4.55: the silenced negative token counts nothing",
        (
            "A token with A > 0 is silent above the upper bound, one with A < 0 below the lower.",
            "Positive: 1.5 + 1.0. Negative: 0.95 + 1.1.",
        ),
    ),
    "ranks": Exercise(
        "a function of (n, alpha): the ranks (k_lo, k_hi), from 1, of the two scores among n that bound the band",
        ranks,
        "no assumption on the law of the scores was needed: only that the fresh one is like the others",
        (
            "Put the fresh score among the n others: each of its n + 1 places is equally likely.",
            "⌊(n + 1)α/2⌋ and ⌈(n + 1)(1 − α/2)⌉.",
        ),
    ),
}
