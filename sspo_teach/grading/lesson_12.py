"""Lesson 12, the bug museum: repair what is broken, and break what is weak."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sspo_teach.catalog import METHODS
from sspo_teach.checks import check_objective, sample
from sspo_teach.credit import credit
from sspo_teach.grading.exercise import Exercise
from sspo_teach.objectives.advantages import DIALECTS, normalized
from sspo_teach.objectives.normalize import sequence_sum, token_mean
from sspo_teach.tasks.answers import parse_answer
from sspo_teach.tensors import checked

GRPO = METHODS["grpo"].objective


def _apart(found: Tensor, expected: Tensor) -> bool:
    """Whether two gradients differ by more than rounding, relative to their size."""
    return not bool((found - expected).abs().max() <= 1e-4 * expected.abs().max())


def _two_sided(answer: Callable[..., Tensor]) -> str | None:
    batch = sample(0.4)
    found, expected = (credit(f, *batch.tensors) for f in (answer, GRPO))
    if not _apart(found, expected):
        report = check_objective(checked(answer))
        return None if report else f"nearly: the weights are PPO's, but {report.failures[0]}"
    ratio = (batch.logp - batch.logp_old).exp().where(batch.mask, 1.0)
    A = batch.advantages
    extending = torch.where(A > 0, ratio > 1.2, ratio < 0.8) & batch.mask
    corrective = torch.where(A > 0, ratio < 0.8, ratio > 1.2) & batch.mask
    if (found[corrective] == 0).any():
        return "a token that moved against its advantage still gets no gradient: its way back must stay open"
    if (found[extending] != 0).any():
        return "a token that has moved beyond the band in its advantage's direction still gets a gradient: it must not"
    return "the right tokens are silent, but the others' weights are not ρA under a mean per response"


def _groups(answer: float) -> str | None:
    G = int(answer)
    if answer != G:
        return "G is a number of responses: a whole one"
    if G < 2:
        return f"a group of {G} has no one to be compared with"
    dead = 0.1**G + 0.9**G
    if dead > 0.2:
        return f"at G = {G} a share of {dead:.3f} is dead: all wrong (0.9^G) or all right (0.1^G)"
    if 0.1 ** (G - 1) + 0.9 ** (G - 1) <= 0.2:
        return f"G = {G} is enough ({dead:.3f}), but it is not the smallest"
    return None


def _kl(answer: float) -> str | None:
    p, q = (0.8, 0.2), (0.5, 0.5)
    kl = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    other = sum(b * math.log(b / a) for a, b in zip(p, q, strict=True))
    right = sum(a * a / b for a, b in zip(p, q, strict=True)) - 1 - kl
    value = float(answer)
    if abs(value - right) <= 6e-4:
        return None
    if abs(value - kl) <= 6e-4:
        return "that is KL(p ‖ q), what the right estimator gives; the wrong sign gives something else"
    if abs(value - other) <= 6e-4:
        return "that is KL(q ‖ p); swapping the sign of u on samples of p does not swap the two policies"
    if abs(value - right - kl) <= 6e-4:
        return "that is Σ p (p/q) − 1 alone: subtract KL(p ‖ q)"
    if abs(value - right - 1) <= 6e-4:
        return "the 1 of e^(−u) + u − 1 is missing"
    return f"{value:.4g} is not it: take Σ p · (p/q) over both outcomes, minus 1, minus Σ p · log(p/q)"


def _last_number(text: str) -> int | None:
    """The museum's parser of exhibit 23."""
    found = re.findall(r"\d+", text)
    return int(found[-1]) if found else None


def _parser(answer: str) -> str | None:
    if not isinstance(answer, str):
        raise TypeError("give a text in quotes")
    right, read = parse_answer(answer), _last_number(answer)
    if right is None:
        return "this is no answer for the right parser either: it needs `#### ` and one number after it"
    if read == right:
        return f"both read {right}: find a number whose dress holds other digits, or none"
    return None


def _tolerance(answer: Callable[[Tensor, Tensor], Any]) -> str | None:
    batch = sample(0.4)
    base = credit(GRPO, *batch.tensors)
    for scale in (1.0, 1e-4, 1e4):
        expected = scale * base
        near = expected * (1 + 1e-6)
        if not _true(answer(expected.clone(), expected)) or not _true(answer(near, expected)):
            return f"at gradients of size {expected.abs().max():.1g} it rejects the right one, or its rounding"
        for what, wrong in {
            "a gradient of zeros": torch.zeros_like(expected),
            "a gradient of the other sign": -expected,
            "a gradient twice as large": 2 * expected,
            "a gradient with one wrong entry": torch.where(expected == expected.max(), 0.9 * expected, expected),
        }.items():
            if _true(answer(wrong, expected)):
                return f"at gradients of size {expected.abs().max():.1g} it lets {what} pass"
    return None


def _true(verdict: Any) -> bool:
    if not isinstance(verdict, (bool, int)) and not (isinstance(verdict, Tensor) and verdict.numel() == 1):
        raise TypeError(f"return True or False, not a {type(verdict).__name__}")
    return bool(verdict)


Step = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def _three_bugs(answer: Step) -> str | None:
    batch, stale = sample(0.0), sample(0.4)
    ids = torch.tensor([0, 0, 1, 1, 1, 0])
    rewards = torch.tensor([1.0, 0.0, 0.2, 0.9, 0.4, 0.3], dtype=torch.float64)

    def found(logp: Tensor, rewards: Tensor, mask: Tensor) -> Tensor:
        return credit(lambda logp, old, _, mask: answer(logp, old, rewards, ids, mask), logp, batch.logp_old, A, mask)

    A = normalized(rewards, ids)
    logp, mask = batch.logp_old, batch.mask
    fresh = found(logp, rewards, mask)
    raised = found(logp, torch.where(ids == 1, rewards + 10, rewards), mask)
    if _apart(raised, fresh):
        return "raising all rewards of one group changes the gradient: take mean and std over the group, not the batch"
    moved = stale.logp - stale.logp_old + batch.logp_old
    if not _apart(found(moved, rewards, mask), fresh):
        return "stale data give the gradient of fresh data: the ratio is always 1; compare with logp_old"
    if _matches(found, moved, rewards, ids, mask, GRPO):
        return None
    if any(_matches(found, moved, rewards, ids, mask, GRPO, normalize=n) for n in (token_mean, sequence_sum)):
        return "a token of a long response weighs too much: average each response first, then the responses"
    return "groups, ratio and length are looked after, but the gradient is not that of min(ρA, clip(ρ, 0.8, 1.2)A)"


def _matches(
    found: Callable[..., Tensor],
    logp: Tensor,
    rewards: Tensor,
    ids: Tensor,
    mask: Tensor,
    objective: Callable[..., Tensor],
    **numbers: Any,
) -> bool:
    """Whether the gradient is the objective's, under any of the usual standard deviations."""
    old = sample(0.0).logp_old
    usual: list[Mapping[str, float]] = [{}, *DIALECTS.values(), {"ddof": 0, "eps": 1e-8}, {"ddof": 0, "eps": 1e-4}]
    gradient = found(logp, rewards, mask)
    every = (credit(objective, logp, old, normalized(rewards, ids, **how), mask, **numbers) for how in usual)
    return any(bool((gradient - one).abs().max() <= 1e-3 * one.abs().max()) for one in every)


EXERCISES = {
    "two_sided": Exercise(
        ask="a function (logp, logp_old, advantages, mask) → loss with PPO's clip, ε = 0.2, mean per response",
        judge=_two_sided,
        praise="min keeps the way back open: a clip on both sides would silence every token that went the wrong way",
        hints=(
            "Which of the four cases (sign of A, side of the band) should fall silent? Only two.",
            "min(ρA, clip(ρ)A) takes the clipped branch only where that is the smaller one.",
            "gates.clip(log_r, advantages, 0.2, 0.2) * advantages, or torch.min of the two products.",
        ),
    ),
    "groups": Exercise(
        ask="the smallest group size G, a whole number, with at most 20 % dead groups at 10 % right answers",
        judge=_groups,
        praise="rare successes need large groups; or easier problems, which is what a curriculum buys",
        hints=(
            "A group is dead when all its answers are right, or all are wrong.",
            "0.1^G + 0.9^G ≤ 0.2, and the first term hardly matters: G ≥ log 0.2 / log 0.9.",
        ),
    ),
    "kl": Exercise(
        ask="the expectation under p of the estimator with the wrong sign, to three decimals",
        judge=_kl,
        praise="a positive number that is 0 at p = q, and no KL: it is χ²(p ‖ q) − KL(p ‖ q)",
        hints=(
            "With the wrong sign e^(−u) is p/q, not q/p.",
            "Σ p · p/q = 0.8²/0.5 + 0.2²/0.5 = 1.36, and KL(p ‖ q) = 0.8 log 1.6 + 0.2 log 0.4.",
        ),
    ),
    "parser": Exercise(
        ask="a text with `#### ` and a number that `broken_last_number` reads as another",
        judge=_parser,
        praise="that answer was right and would have been paid nothing; a model learns to avoid what is not paid",
        hints=(
            "What do people put around, before or inside numbers?",
            "Signs, thousands separators, decimals, fractions, a unit that holds a digit.",
        ),
    ),
    "tolerance": Exercise(
        ask="a function (found, expected) → bool that judges two gradients of any scale",
        judge=_tolerance,
        praise="a tolerance is a share of the signal, and you saw it reject what it must",
        hints=(
            "What is 0.01 compared with a gradient of size 1e-4?",
            "Divide the largest difference by the largest expected entry.",
            "A cosine alone does not see a gradient that is twice as large.",
        ),
    ),
    "three_bugs": Exercise(
        ask="a function (logp, logp_old, rewards, group_ids, mask) → loss: GRPO, ε = 0.2, mean per response",
        judge=_three_bugs,
        praise="groups, ratio, length: none of the three ever raised an error, and all three trained",
        hints=(
            "Exhibits 8, 17 and 19.",
            "The library has all three parts: normalized(rewards, group_ids), log_ratio(...), response_mean(x, mask).",
            "Return right_grpo(logp, logp_old, normalized(rewards, group_ids), mask) if you only want to see it pass.",
        ),
    ),
}
