"""Right answers to the exercises on policy gradients, and the mistakes that people make."""

import torch


def one_hot(logits, action):
    return torch.eye(len(logits), dtype=logits.dtype)[action]


def advantage(rewards):
    if rewards.max() == rewards.min():
        return torch.zeros_like(rewards)
    return (rewards - rewards.mean()) / (rewards.std(correction=0) + 1e-6)


def total(logp, logp_old, mask):
    return torch.where(mask, logp - logp_old, 0).sum(1, keepdim=True)


RIGHT = {
    "score": lambda logits, action: one_hot(logits, action) - logits.softmax(0),
    "baselines": {"zero", "constant", "others"},
    "advantage": advantage,
    "dead": lambda p, G: p**G + (1 - p) ** G,
    "group": 22,
    "stale": lambda *given: total(*given).exp(),
}
WRONG = {
    "score": [
        one_hot,
        lambda logits, action: logits.softmax(0) - one_hot(logits, action),
        lambda logits, action: logits.softmax(0)[action] * (one_hot(logits, action) - logits.softmax(0)),
        lambda logits, action: one_hot(logits, action) * (1 - logits.softmax(0)),
        lambda logits, action: logits.log_softmax(0),
    ],
    "baselines": [
        {"zero", "constant", "others", "group"},
        {"zero", "constant", "others", "own"},
        {"constant"},
        {"mean"},
    ],
    "advantage": [
        lambda rewards: (rewards - rewards.mean()) / (rewards.std() + 1e-6),
        lambda rewards: rewards - rewards.mean(),
        lambda rewards: (rewards - rewards.mean()) / rewards.std(correction=0),
        lambda rewards: (rewards - rewards.mean()) * 8 / 7,
        lambda rewards: (rewards - rewards.mean()) / (rewards.var(correction=0) + 1e-6),
    ],
    "dead": [
        lambda p, G: (1 - p) ** G,
        lambda p, G: p**G,
        lambda p, G: 1 - p**G - (1 - p) ** G,
        lambda p, G: (1 - p) * G,
    ],
    "group": [10, 21, 23, 8],
    "stale": [
        lambda *given: (-total(*given)).exp(),
        lambda logp, logp_old, mask: (logp - logp_old).sum(1, keepdim=True).exp(),
        lambda logp, logp_old, mask: (total(logp, logp_old, mask) / mask.sum(1, keepdim=True)).exp(),
        total,
        lambda *given: total(*given).exp().squeeze(1),
    ],
}
