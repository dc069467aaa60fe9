"""Right answers to the exercises on clipping, and the mistakes that people make."""

import torch


def weight(ratio, advantage, eps_low, eps_high):
    return ratio.where(torch.where(advantage > 0, ratio <= 1 + eps_high, ratio >= 1 - eps_low), 0.0)


def shares(log_r, advantages, mask):
    ratio = log_r.exp()
    outside = (ratio < 0.8) | (ratio > 1.2)
    removed = torch.where(advantages > 0, ratio > 1.2, ratio < 0.8)
    return outside[mask].float().mean(), removed[mask].float().mean()


def both_sides(ratio, advantage, eps_low, eps_high):
    return ratio.where((ratio <= 1 + eps_high) & (ratio >= 1 - eps_low), 0.0)


RIGHT = {
    "silent": {("+", 1.5), ("-", 0.6)},
    "weight": weight,
    "shares": shares,
    "rounds": (15, 11),
    "cap": 1.28,
}
WRONG = {
    "silent": [
        {("+", 1.5), ("+", 0.6), ("-", 1.5), ("-", 0.6)},
        {("+", 0.6), ("-", 1.5)},
        [("+", 1.5)],
        [("+", 1.5), ("-", 1.5)],
        [("+", 1.5), ("+", 1.25), ("-", 0.6)],
        [("+", 1.2)],
    ],
    "weight": [
        both_sides,
        lambda *given: (weight(*given) != 0).double(),
        lambda ratio, A, low, high: weight(ratio, -A, low, high),
        lambda ratio, A, low, high: weight(ratio, A, low, low),
        lambda ratio, A, low, high: weight(ratio, A, low, high) * A,
        lambda ratio, A, low, high: ratio.clamp(1 - low, 1 + high),
    ],
    "shares": [
        lambda log_r, A, mask: (shares(log_r, A, mask)[0],) * 2,
        lambda log_r, A, mask: shares(log_r, A, torch.ones_like(mask)),
        lambda log_r, A, mask: shares(log_r, -A, mask),
        lambda log_r, A, mask: shares(log_r, A, mask)[::-1],
    ],
    "rounds": [(14, 10), (70, 50), (11, 15), (15, 10)],
    "cap": [0.28, 5.0, 0.72],
}
