"""Checks of lesson 07: training on arithmetic, and reading what a run says of itself."""

from __future__ import annotations

from typing import Any

import torch

from sspo_teach.grading.exercise import Exercise

FAULTS = {
    "healthy": "it learns, ratios move, and the gate has work",
    "no signal": "no group has two different rewards, so every advantage is 0",
    "shuffled rewards": "gradients are as large as ever, but they point nowhere, and what was known is lost",
    "rate too small": "there is signal, and yet no ratio moves",
    "one update": "every ratio is exactly 1: it learns, but no gate and no clip can act",
    "too stale": "most tokens have moved far, and the effective sample size is gone",
}
"""What can be the matter with a run, and what shows it."""
CASES = {
    "A": "rate too small",
    "B": "no signal",
    "C": "healthy",
    "D": "shuffled rewards",
    "E": "one update",
    "F": "too stale",
}
LOOK = {
    "A": "compare 'moved' with the gradient norm; and in the table of numbers its ratios are near 1, not exactly 1",
    "B": "look at the groups that teach nothing",
    "C": "look for a panel outside its range",
    "D": "look at 'solved' while the gradient norm is fine",
    "E": "look at its ratios in the table of numbers: not near 1 but exactly 1, while the share solved rises",
    "F": "look at the effective sample size and at the 1 % and 99 % ratios",
}


def diagnosis(answer: Any) -> str | None:
    if not isinstance(answer, dict) or set(answer) != set(CASES):
        return f"give a dict with a fault for each of {', '.join(CASES)}"
    strange = sorted({str(fault) for fault in answer.values() if fault not in FAULTS})
    if strange:
        return f"{strange[0]!r} is none of: {', '.join(FAULTS)}"
    wrong = [case for case in CASES if answer[case] != CASES[case]]
    if not wrong:
        return None
    case = wrong[0]
    return f"{len(CASES) - len(wrong)} of {len(CASES)} are right; run {case} is not {answer[case]!r}: {LOOK[case]}"


def inert(answer: Any) -> str | None:
    if isinstance(answer, bool) or not isinstance(answer, int):
        return "give a whole number of updates"
    told = {
        0: "the first update of an iteration is made where the batch was sampled: there every ratio is 1",
        2: "the second pass begins with a policy that was updated four times: its first ratios are not 1",
        4: "the second minibatch is new, but the policy that trains on it was updated already",
        8: "then no gate could ever act; what changes between the updates of one iteration?",
    }
    return None if answer == 1 else told.get(answer, "count the updates that see the very policy that sampled")


def moved(answer: Any) -> str | None:
    chance = torch.Generator().manual_seed(7)
    logp_old = -torch.rand(6, 9, generator=chance) - 0.1
    logp = logp_old + 0.15 * torch.randn(6, 9, generator=chance)
    logp[0, :3] = logp_old[0, :3] - 0.103  # |log ρ| > 0.1 > |ρ − 1|
    mask = torch.arange(9) < torch.tensor([[9], [7], [5], [4], [2], [1]])
    away = ((logp - logp_old).exp() - 1).abs()
    right = (away > 0.1)[mask].float().mean().item()
    loud = logp.masked_fill(~mask, 5.0)
    found = float(answer(loud, logp_old, mask))
    if abs(found - right) < 1e-6:
        return None
    padded = ((loud - logp_old).exp() - 1).abs() > 0.1
    likely = {
        "padding is counted: select the tokens by the mask before you count": padded.float().mean().item(),
        "padding stays below the line: divide by the number of response tokens": (
            ((away > 0.1) & mask).float().mean().item()
        ),
        "that is |log ρ| > 0.1; the ratio is exp of the difference": (
            ((logp - logp_old).abs() > 0.1)[mask].float().mean().item()
        ),
        "that is ρ > 1.1 alone; a ratio may fall, too": (((logp - logp_old).exp() > 1.1)[mask].float().mean().item()),
    }
    for message, value in likely.items():
        if abs(found - value) < 1e-6:
            return message
    return f"on the test batch it gives {found:.4f}, not {right:.4f}"


EXERCISES = {
    "inert": Exercise(
        "minibatches=4, epochs=2: how many of an iteration's 8 updates see ratios of exactly 1 (an int)?",
        inert,
        "one in eight: the others work on data of an older policy, and there methods differ",
        (
            "Which policy sampled the batch, and after which update is the policy another one?",
            "Only before the first step of the optimizer is π_θ = π_old. New rows do not change that.",
        ),
    ),
    "moved": Exercise(
        "a function of (logp, logp_old, mask), each (B, T), that returns the share of response tokens with "
        "|ρ − 1| > 0.1",
        moved,
        "this is the column `moved`: look at it before you compare two gates",
        (
            "ρ = exp(logp − logp_old); padding holds anything.",
            "((logp - logp_old).exp() - 1).abs()[mask] > 0.1, then the mean as floats.",
        ),
    ),
    "diagnose": Exercise(
        "a dict from run, 'A' to 'F', to what is the matter with it: " + ", ".join(FAULTS),
        diagnosis,
        "you read a run by its dashboard, not by its loss",
        (
            "Each fault fits one run. Begin with the run whose groups teach nothing.",
            "In one run ρ is exactly 1, in one it is nearly 1, in one it is far away. Two are left: one learns.",
        ),
    ),
}
