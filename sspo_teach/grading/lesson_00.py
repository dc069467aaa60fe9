"""GRPO on one page: advantages of a group, a loss of zero, groups that teach nothing."""

from __future__ import annotations

from typing import Any

import torch

from sspo_teach.grading.exercise import Exercise


def _advantages(answer: Any) -> str | None:
    found = torch.as_tensor(answer).double().flatten()
    right = torch.tensor([1.0, -1, -1, 1], dtype=torch.float64)
    if found.shape != right.shape:
        return f"four responses have four advantages, not {len(found)}"
    if torch.allclose(found, right, atol=1e-3):
        return None
    if torch.allclose(found, -right, atol=1e-3):
        return "the signs are swapped: what was paid more than the mean is pushed up"
    if torch.allclose(found, torch.tensor([1.0, 0, 0, 1], dtype=torch.float64)):
        return "those are the rewards: subtract the group's mean, ½"
    if torch.allclose(found, right / 2, atol=1e-3):
        return "centred, but not divided by the standard deviation, which is ½, too"
    if torch.allclose(found, right * 0.8660, atol=1e-3):
        return "that is with the sample standard deviation (n − 1); the page takes the population's, correction=0"
    return "the mean of the rewards is ½ and so is their standard deviation"


def _zero_loss(answer: Any) -> str | None:
    loss, weight = (float(x) for x in answer)
    if (loss, weight) == (0.0, 1.0):
        return None
    if (loss, weight) == (0.0, 0.0):
        return "the loss is 0, its gradient is not: the terms cancel in value, each pulls on tokens of its own"
    if loss != 0:
        return "at ρ = 1 the loss is minus the mean of the advantages, and those of a group sum to 0"
    return "at ρ = 1 the weight of ∇log π of a token is ρA = A"


def _teaching(answer: Any) -> str | None:
    count = int(answer)
    if count != answer:
        return "count groups: a whole number"
    if count == 1:
        return None
    if count == 2:
        return "a group that is all right teaches as little as one that is all wrong: no reward differs from the mean"
    if count == 3:
        return "in two of the groups every advantage is 0"
    return "which groups hold two different rewards?"


EXERCISES = {
    "advantages": Exercise(
        ask="the advantages of four responses to one prompt whose rewards are 1, 0, 0, 1, as a list of four numbers",
        judge=_advantages,
        praise="Half of the group up, half down, and they sum to 0: the group is its own yardstick.",
        hints=("(reward − mean)/std, over the group.", "The mean is ½; the mean squared distance from it is ¼."),
    ),
    "zero_loss": Exercise(
        ask="a pair, for the first update on a batch: the loss, and the weight of ∇log π of a token with A = 1",
        judge=_zero_loss,
        praise="Zero loss, full gradient. Never watch the loss of a policy gradient; watch rewards.",
        hints=("What is ρ before the first update?", "ρ = 1: the loss is −mean(A), the weight is ρA."),
    ),
    "teaching": Exercise(
        ask="how many of the groups with rewards (1, 1, 1), (0, 1, 0), (0, 0, 0) teach anything, a whole number",
        judge=_teaching,
        praise="One. Too easy and too hard prompts cost sampling and give nothing.",
        hints=("Compute the advantages of each group.", "Where all rewards are equal, reward − mean is 0."),
    ),
}
