"""Answers to the exercises of lesson 12: right ones, and those that people give."""

import torch

from sspo_teach import METHODS, gates
from sspo_teach.objectives.advantages import normalized
from sspo_teach.objectives.normalize import response_mean, token_mean
from sspo_teach.tensors import log_ratio

GRPO = METHODS["grpo"].objective


def ppo(logp, logp_old, advantages, mask):
    return -response_mean(gates.clip(log_ratio(logp, logp_old, mask), advantages, 0.2, 0.2) * advantages, mask)


def two_sided(logp, logp_old, advantages, mask):
    return -response_mean(log_ratio(logp, logp_old, mask).exp().clamp(0.8, 1.2) * advantages, mask)


def no_clip(logp, logp_old, advantages, mask):
    return -response_mean(log_ratio(logp, logp_old, mask).exp() * advantages, mask)


def largest(logp, logp_old, advantages, mask):
    ratio = log_ratio(logp, logp_old, mask).exp()
    return -response_mean(torch.max(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages), mask)


def over_tokens(logp, logp_old, advantages, mask):
    return -token_mean(gates.clip(log_ratio(logp, logp_old, mask), advantages, 0.2, 0.2) * advantages, mask)


def leaves_padding(logp, logp_old, advantages, mask):
    ratio = ((logp - logp_old) * mask).exp()
    terms = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    return -response_mean(terms, mask)


def near(found, expected):
    return bool((found - expected).abs().max() <= 1e-4 * expected.abs().max())


def cosine(found, expected):
    return bool(torch.cosine_similarity(found.flatten(), expected.flatten(), dim=0) > 0.999)


def step(logp, logp_old, rewards, group_ids, mask):
    return GRPO(logp, logp_old, normalized(rewards, group_ids), mask)


def unbiased(logp, logp_old, rewards, group_ids, mask):
    """With the sample's standard deviation, as most libraries take it."""
    return GRPO(logp, logp_old, normalized(rewards, group_ids, ddof=1, eps=1e-8), mask)


def as_found(logp, logp_old, rewards, group_ids, mask):
    A = ((rewards - rewards.mean()) / (rewards.std() + 1e-6)).unsqueeze(1)
    ratio = torch.where(mask.bool(), logp - logp.detach(), 0.0).exp()
    terms = torch.min(ratio * A, ratio.clamp(0.8, 1.2) * A)
    return -torch.where(mask.bool(), terms, 0.0).sum() / mask.sum()


def groups_only(logp, logp_old, rewards, group_ids, mask):
    A = normalized(rewards, group_ids)
    ratio = torch.where(mask.bool(), logp - logp.detach(), 0.0).exp()
    return -torch.where(mask.bool(), torch.min(ratio * A, ratio.clamp(0.8, 1.2) * A), 0.0).sum() / mask.sum()


def groups_and_ratio(logp, logp_old, rewards, group_ids, mask):
    return over_tokens(logp, logp_old, normalized(rewards, group_ids), mask)


def groups_and_length(logp, logp_old, rewards, group_ids, mask):
    return no_clip(logp, logp_old, normalized(rewards, group_ids), mask)


RIGHT = {
    "two_sided": ppo,
    "groups": 16,
    "kl": 0.167,
    "parser": "That makes #### 1,000",
    "tolerance": near,
    "three_bugs": step,
}

WRONG = {
    "two_sided": [two_sided, no_clip, largest, over_tokens, leaves_padding],
    "groups": [8, 15, 17, 1, 15.3],
    "kl": [0.193, 0.223, 0.36, 1.167, 0.0],
    "parser": ["#### 72", "72 apples", "the answer is 1,000"],
    "tolerance": [
        lambda found, expected: torch.allclose(found, expected, atol=1e-2),
        lambda found, expected: torch.equal(found, expected),
        lambda found, expected: True,
        cosine,
    ],
    "three_bugs": [as_found, groups_only, groups_and_ratio, groups_and_length],
}

ALSO_RIGHT = {"three_bugs": [unbiased], "parser": ["#### -5", "#### 3/4", "#### $2.50"]}
