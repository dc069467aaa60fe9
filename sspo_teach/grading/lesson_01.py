"""Policy gradients: the score, baselines, advantages of a group, dead groups, importance ratios."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sspo_teach.grading.exercise import Exercise
from sspo_teach.tensors import masked_mean, masked_sum

UNBIASED = {"zero", "constant", "others"}
BASELINES = {*UNBIASED, "own", "group"}
REWARDS = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)


def _score(answer: Callable[..., Any]) -> str | None:
    logits = torch.tensor([0.3, -1.2, 0.9, 0.1], dtype=torch.float64)
    p = logits.softmax(0)
    for action in (2, 1):
        found = torch.as_tensor(answer(logits, action)).double().flatten()
        if found.shape != (4,):
            return f"one number per logit, 4 here, got {found.numel()}"
        one = torch.eye(4, dtype=torch.float64)[action]
        told = {
            "the sign is turned: the chosen action's own entry is 1 − p, positive": p - one,
            "that is only the chosen action, and it can rise only if others fall: subtract softmax(logits)": one,
            "that is ∇π, not ∇log π: divide by π of the action": p[action] * (one - p),
            "the entry of the chosen action is right, but the others are −p, not 0": one * (1 - p),
        }
        for words, wrong in told.items():
            if torch.allclose(found, wrong):
                return words
        if not torch.allclose(found, one - p):
            return f"for action {action} the score is {[round(x, 4) for x in (one - p).tolist()]}"
    return None


def _baselines(answer: Any) -> str | None:
    given = {str(name) for name in answer}
    if given - BASELINES:
        return f"{min(given - BASELINES)!r} is none of {', '.join(sorted(BASELINES))}"
    if "own" in given:
        return "a baseline that depends on the response itself is not taken out of the expectation: R − R is 0"
    if "group" in given:
        return "the group's mean holds a G-th of the response's own reward: the mean shrinks by (G − 1)/G"
    if given != UNBIASED:
        return f"{len(UNBIASED - given)} more: whatever does not depend on the response itself keeps the mean"
    return None


def _advantage(answer: Callable[..., Any]) -> str | None:
    found = torch.as_tensor(answer(REWARDS)).double().flatten()
    if found.shape != REWARDS.shape:
        return f"one advantage per response, {len(REWARDS)} here, got {found.numel()}"
    gap = REWARDS - REWARDS.mean()
    right = gap / gap.square().mean().sqrt()
    if not torch.allclose(found, right, atol=1e-4):
        if torch.allclose(found, gap / REWARDS.std(), atol=1e-3):
            return "that is the sample standard deviation (ddof = 1), torch's default; asked is the population's"
        if torch.allclose(found, gap, atol=1e-4):
            return "that is R − mean (Dr. GRPO's): the division by the standard deviation is missing"
        if torch.allclose(found, gap * 8 / 7, atol=1e-4):
            return "that is R − mean of the others (RLOO's); asked is GRPO's"
        if torch.allclose(found, gap / gap.square().mean(), atol=1e-3):
            return "you divide by the variance: take its root"
        return f"a right answer gets {right[0].item():.4f}, not {found[0].item():.4f}"
    same = torch.as_tensor(answer(torch.full((8,), 0.1))).double()
    if not same.isfinite().all():
        return "right, but eight equal rewards give NaN: a group without signal must give 0"
    if same.abs().max() > 1e-3:
        return (
            f"right, but eight rewards of 0.1 give {same.abs().max().item():.2g} in float32, by rounding alone: "
            "a group without signal must give 0"
        )
    return None


def _dead(answer: Callable[..., Any]) -> str | None:
    for p, group in ((0.18, 2), (0.18, 8), (0.9, 4)):
        found, right = float(answer(p, group)), p**group + (1 - p) ** group
        if abs(found - right) < 1e-9:
            continue
        if abs(found - (1 - p) ** group) < 1e-9:
            return "that is all wrong; all right teaches nothing either"
        if abs(found - p**group) < 1e-9:
            return "that is all right; all wrong teaches nothing either"
        if abs(found - (1 - right)) < 1e-9:
            return "that is the share of *live* groups"
        return f"at p = {p}, G = {group} the share is {right:.4f}, not {found:.4f}"
    return None


def _group(answer: Any) -> str | None:
    found = float(answer)
    if found == 22:
        return None
    if found == 21:
        return "at G = 21 still 10.9 % are dead: one more"
    if found == 10:
        return "G = 1/p gives one right answer on average, and still (0.9)¹⁰ = 35 % dead groups"
    share = 0.1**found + 0.9**found
    return f"G = {found:g} leaves {share:.1%} dead; the smallest G with at most 10 % is asked"


def _stale(answer: Callable[..., Any]) -> str | None:
    generator = torch.Generator().manual_seed(11)
    logp_old = -torch.rand((3, 5), generator=generator, dtype=torch.float64) * 2
    z = 0.3 * torch.randn((3, 5), generator=generator, dtype=torch.float64)
    mask = torch.arange(5) < torch.tensor([[5], [2], [4]])
    logp, logp_old = (logp_old + z).where(mask, 7.0), logp_old.where(mask, 3.0)
    found = torch.as_tensor(answer(logp, logp_old, mask)).double()
    if found.shape != (3, 1):
        return f"one weight per response: the shape must be (3, 1), got {tuple(found.shape)}"
    right: Tensor = masked_sum(z, mask).exp()
    told = {
        "upside down: it is π_θ over π_old": 1 / right,
        "padding counts in your sum: only tokens where the mask is 1": (logp - logp_old).sum(1, keepdim=True).exp(),
        "that is the geometric mean: without the root it is the probability of the whole response": masked_mean(
            z, mask
        ).exp(),
        "that is the mean of the tokens' ratios": masked_mean(z.exp(), mask),
        "that is the log of it": masked_sum(z, mask),
    }
    for words, wrong in told.items():
        if torch.allclose(found, wrong):
            return words
    return (
        None
        if torch.allclose(found, right)
        else "the weight is exp of the sum of log π_θ − log π_old over the response"
    )


EXERCISES = {
    "score": Exercise(
        "a function score(logits, action) that gives ∂log π(action)/∂logits, as many numbers as logits",
        _score,
        "one up, all down by their probability: the entries of a score add up to 0.",
        (
            "log π(a) = zₐ − log Σ exp z. Differentiate by each z.",
            "The indicator of the action minus softmax(logits).",
        ),
    ),
    "baselines": Exercise(
        "a set of names out of 'zero', 'constant', 'others', 'group', 'own'",
        _baselines,
        "whatever the response itself cannot change may be subtracted.",
        (
            "E[b ∇log π] = b E[∇log π] = 0 needs a b that does not depend on the sampled response.",
            "The mean of the group contains the response's own reward, the mean of the others does not.",
        ),
    ),
    "advantage": Exercise(
        "a function advantage(rewards) of one group, (G,), that gives GRPO's advantages (population deviation)",
        _advantage,
        "centred, of unit size, and 0 where there is nothing to compare.",
        (
            "(R − mean)/(std + ε); torch.std has correction=1 by default.",
            "rewards.std(correction=0); and zeros where rewards.max() == rewards.min().",
        ),
    ),
    "dead": Exercise(
        "a function dead(p, G) that gives the probability that all G rewards are equal",
        _dead,
        "all right or all wrong: either way no one is better than another.",
        ("There are two ways to be equal.", "pᴳ + (1 − p)ᴳ."),
    ),
    "group": Exercise(
        "one whole number: the smallest G with at most 10 % dead groups on prompts that are solved one time in ten",
        _group,
        "22: hard prompts want large groups.",
        ("0.1ᴳ is negligible.", "0.9ᴳ ≤ 0.1: G ≥ log 0.1/log 0.9 = 21.85."),
    ),
    "stale": Exercise(
        "a function weight(logp, logp_old, mask) that gives the unbiased weight of each stale response, (B, 1)",
        _stale,
        "the ratio of the response's probabilities: unbiased, and as noisy as a product.",
        (
            "The response was drawn with π_old(y), and you want an average under π_θ(y).",
            "torch.where(mask, logp - logp_old, 0).sum(1, keepdim=True).exp()",
        ),
    ),
}
