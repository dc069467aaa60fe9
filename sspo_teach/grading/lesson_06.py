"""Checks of lesson 06: bias, noise, and what the two cost together."""

from __future__ import annotations

import math
from typing import Any

from sspo_teach.grading.exercise import Exercise


def error(answer: Any) -> str | None:
    for bias, trace, batch in ((0.3, 8.0, 16), (0.0, 2.0, 4), (0.5, 1.0, 256), (1.5, 12.0, 3)):
        found, right = float(answer(bias, trace, batch)), bias**2 + trace / batch
        if math.isclose(found, right, rel_tol=1e-9):
            continue
        told = {
            bias + trace / batch: "squares are added: bias² + variance",
            bias**2 + trace: "that is the error of one group; a batch of N averages N independent ones",
            bias**2 + trace / batch**2: "the variance of a mean of N falls like 1/N; 1/N² is that of its square",
            bias**2 + trace / math.sqrt(batch): "the standard deviation falls like 1/√N, the variance like 1/N",
            (bias**2 + trace) / batch: "a larger batch does nothing against bias: only the variance is divided",
            math.sqrt(right): "that is its root; the squared error is asked for",
        }
        near = next((text for value, text in told.items() if math.isclose(found, value, rel_tol=1e-9)), None)
        return near or f"at bias {bias}, trace {trace}, N = {batch} it gives {found:.6g}, not {right:.6g}"
    return None


def tie(answer: Any) -> str | None:
    if isinstance(answer, bool):
        return "give a number of groups"
    found = float(answer)
    told = {
        20.0: "you set the biases against each other unsquared: 0.2 + 9/N = 0.6 + 1/N; the squares are added",
        9.0: "that is where noise² is 1; set the two errors equal",
        5.0: "you took the standard deviation's 1/√N; it is the variance, 1/N, that is added to bias²",
    }
    if math.isclose(found, 25.0, rel_tol=1e-6):
        return None
    near = next((text for value, text in told.items() if math.isclose(found, value, rel_tol=1e-6)), None)
    return near or f"{found:g} groups: the errors are {0.04 + 9 / found:.3f} and {0.36 + 1 / found:.3f}, not equal"


CANDIDATES = ("reinforce", "grpo", "sspo", "rloo", "sequence_is")


def unbiased(answer: Any) -> str | None:
    chosen = {answer} if isinstance(answer, str) else set(answer)
    strange = sorted(str(name) for name in chosen if name not in CANDIDATES)
    if strange or not chosen:
        return f"choose among {', '.join(CANDIDATES)}"
    if chosen == {"sequence_is"}:
        return None
    told = {
        "rloo": "rloo has no ratio at all: it follows the gradient at the old policy, which is another one",
        "reinforce": "reinforce has token ratios; what came before a token was still drawn by the old policy",
        "sspo": "a gate removes what is far away, and a geometric mean is no importance weight: that is bias",
        "grpo": "a clip removes what is far away: that is bias; and it divides by the group's deviation",
    }
    wrong = next((text for name, text in told.items() if name in chosen), None)
    return wrong or "one of them is missing: which weighs a whole response by its own ratio?"


EXERCISES = {
    "error": Exercise(
        "a function of (bias, trace, batch): the mean squared error ‖E[ĝ] − g‖² + tr Cov/N of a batch of N groups",
        error,
        "samples wash out noise, never bias",
        ("E‖ĝ − g‖² = ‖E[ĝ] − g‖² + tr Cov[ĝ].", "bias² + trace/batch."),
    ),
    "tie": Exercise(
        "a number: one method has bias 0.2 and trace 9 per group, another 0.6 and 1; at how many groups N do they tie?",
        tie,
        "below 25 groups the biased one is better, above them the noisy one: no method is best at every batch size",
        ("Set the two errors equal and solve for N.", "0.04 + 9/N = 0.36 + 1/N."),
    ),
    "unbiased": Exercise(
        f"which of {', '.join(CANDIDATES)} has no bias on stale data? A name, or a set of names",
        unbiased,
        "only the ratio of the whole response is unbiased, and it pays with noise that grows with every token",
        (
            "E_old[w(y) A ∇ log π(y)] must be E_new[A ∇ log π(y)] for every policy.",
            "w(y) = π(y)/π_old(y) = Πₜ ρₜ, not clipped, not averaged.",
        ),
    ),
}
