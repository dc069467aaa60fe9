"""Checks of lesson 09: contrast between right and wrong, and critics of prompts."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sspo_teach.grading.exercise import Exercise
from sspo_teach.objectives.contrastive import conspo


def gap(answer: Any) -> str | None:
    if isinstance(answer, bool):
        return "give a number"
    found, p = float(answer), 3 / 8
    told = {
        p * (1 - p): "that is p(1 − p), what SPPO keeps; GRPO divides by the standard deviation once",
        p: "that is p itself",
        math.sqrt((1 - p) / p): "that is A₊, the advantage of one right response; the gap is weighed by A₊ p",
        math.sqrt(p * (1 - p) * 7 / 8): "that takes the sample's standard deviation (ddof 1), not the population's",
        1.0: "z-scores have unit variance, but the gap between the two means is weighed by less",
    }
    if math.isclose(found, math.sqrt(p * (1 - p)), abs_tol=1e-4):
        return None
    near = next((message for value, message in told.items() if math.isclose(found, value, abs_tol=1e-4)), None)
    return near or f"{found:g} is not it: put A₊ = √((1 − p)/p) and A₋ = −√(p/(1 − p)) into 1/G Σ A s"


def infonce(answer: Any) -> str | None:
    cases = [
        ((-0.9, -1.1), (-0.7, -1.0, -1.3), 0.5, 0.1),
        ((-0.4,), (-0.9, -2.0), 0.3, 0.0),
        ((-400.0, -1.0), (-1.0, -2.0), 0.2, 0.3),
    ]
    for right, wrong, tau, margin in cases:
        a, b = (torch.tensor(s, dtype=torch.float64) for s in (right, wrong))
        expected, found = _conspo(a, b, tau, margin), float(answer(a, b, tau, margin))
        if math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-9):
            continue
        if not math.isfinite(found):
            return "at s = −400 and τ = 0.2 it is not finite: use logsumexp, or logsigmoid of a difference"
        all_in = _infonce(a, b, tau, margin, everybody=True)
        told = {
            all_in: "all right responses stand in your denominator; each is to be set against the wrong ones alone",
            _conspo(a, b, tau, 0.0): "the margin is missing: a right one must lead by m before it is at peace",
            _conspo(a, b, tau, -margin): "the margin has the wrong sign: it makes a right response look worse",
            expected * len(a): "divide by the number of right responses",
            -expected: "the sign: a loss falls when right responses get likelier",
        }
        near = next((message for value, message in told.items() if math.isclose(found, value, rel_tol=1e-6)), None)
        return (
            near or f"on right {right}, wrong {wrong}, τ = {tau}, m = {margin} it gives {found:.6g}, not {expected:.6g}"
        )
    return None


def _conspo(right: Tensor, wrong: Tensor, tau: float, margin: float) -> float:
    s = torch.cat([right, wrong]).unsqueeze(1)
    A = torch.cat([torch.ones_like(right), -torch.ones_like(wrong)]).unsqueeze(1)
    ids = torch.zeros(len(s), dtype=torch.int64)
    if margin < 0:
        return _infonce(right, wrong, tau, margin, everybody=False)
    return conspo(s, s, A, torch.ones_like(s), group_ids=ids, tau=tau, margin=margin).item()


def _infonce(right: Tensor, wrong: Tensor, tau: float, margin: float, *, everybody: bool) -> float:
    own = (right - margin) / tau
    rest = torch.cat([own, wrong / tau]) if everybody else wrong / tau
    with_own = rest.expand(len(own), -1) if everybody else torch.cat([own[:, None], rest.expand(len(own), -1)], dim=1)
    return (with_own.logsumexp(1) - own).mean().item()


def critic(answer: Any) -> str | None:
    rewards, v = torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([0.0, 0.0, 2.0, -3.0])
    found = torch.as_tensor(answer(rewards, v)).float().reshape(-1)
    if found.shape != rewards.shape:
        return f"one advantage per response is wanted, (B,), not {tuple(found.shape)}"
    right = rewards - v.sigmoid()
    if torch.allclose(found, right, atol=1e-6):
        return None
    told = {
        "v is a logit, any number; the success rate is σ(v)": rewards - v,
        "the sign: an answer better than expected has a positive advantage": v.sigmoid() - rewards,
        "do not normalise: with one response per prompt there is no group, and √(p(1 − p)) is kept on purpose": (
            (right - right.mean()) / right.std(correction=0)
        ),
        "that is the group's mean as baseline; the critic is to be asked instead": rewards - rewards.mean(),
    }
    near = next((message for message, value in told.items() if torch.allclose(found, value, atol=1e-3)), None)
    return near or f"at R = 1, v = 0 it should be 0.5; it gives {found[0].item():.4g}"


EXERCISES = {
    "gap": Exercise(
        "a number: a group of G = 8 has three right answers; by which factor does GRPO weigh the gap s̄₊ − s̄₋?",
        gap,
        "√(p(1 − p)) = 0.484: largest for prompts solved half the time, small for easy and hard ones",
        (
            "1/G Σ A s = p A₊ s̄₊ + (1 − p) A₋ s̄₋, and p A₊ = −(1 − p) A₋.",
            "p √((1 − p)/p) = √(p(1 − p)), with p = 3/8.",
        ),
    ),
    "infonce": Exercise(
        "a function of (right, wrong, tau, margin) with scores (P,) and (N,): ConSPO's loss of one group, a number",
        infonce,
        "a softmax in which each right response has the wrong ones as rivals, and no other right one",
        (
            "For each right response, −log of its share of e^((s − m)/τ) among itself and all wrong ones.",
            "−logsigmoid((right − margin)/tau − logsumexp(wrong/tau)), then the mean.",
        ),
    ),
    "critic": Exercise(
        "a function of (rewards, v), both (B,): SPPO's advantages, v the critic's logits",
        critic,
        "one response per prompt is enough: the baseline comes from the prompt",
        (
            "What does the critic guess? A success rate, through a sigmoid.",
            "R − σ(v), not normalised.",
        ),
    ),
}
