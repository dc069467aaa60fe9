"""Right answers to the exercises on sequences, and the mistakes that people make."""

import math

import torch


def geometric(log_r, mask):
    return (torch.where(mask, log_r, 0).sum(1, keepdim=True) / mask.sum(1, keepdim=True)).exp()


def by_product(log_r, mask):
    return torch.where(mask, log_r.exp(), 1).prod(1, keepdim=True) ** (1 / mask.sum(1, keepdim=True))


def own(log_r, tau):
    return log_r.exp() / (1 + tau**2 * (log_r.exp() - 1) ** 2)


def shared(log_r, mask, tau):
    return geometric((tau * (log_r.exp() - 1)).arctan() / tau, mask)


def pool_first(log_r, mask, tau):
    s = geometric(log_r, mask).log()
    return (((tau * (s.exp() - 1)).arctan() / tau).exp() * own(s, tau)).expand_as(log_r)


RIGHT = {
    "geometric": geometric,
    "sspo": lambda log_r, mask, tau: shared(log_r, mask, tau) * own(log_r, tau),
    "outlier": math.exp((math.pi / 2 - math.atan(2)) / 8),
    "band": 0.6,
    "prefix": (0.8, 1.0, 1.1, 0.99),
}
WRONG = {
    "geometric": [
        by_product,
        lambda log_r, mask: ((log_r * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)).exp(),
        lambda log_r, mask: log_r.mean(1, keepdim=True).exp(),
        lambda log_r, mask: torch.where(mask, log_r, 0).mean(1, keepdim=True).exp(),
        lambda log_r, mask: torch.where(mask, log_r, 0).sum(1, keepdim=True).exp(),
        lambda log_r, mask: torch.where(mask, log_r.exp(), 0).sum(1, keepdim=True) / mask.sum(1, keepdim=True),
        lambda log_r, mask: geometric(log_r, mask).squeeze(1),
    ],
    "sspo": [
        lambda log_r, mask, tau: own(log_r, tau),
        lambda log_r, mask, tau: shared(log_r, mask, tau).expand_as(log_r),
        lambda log_r, mask, tau: shared(log_r, mask, tau) * own(log_r, tau) / log_r.exp(),
        pool_first,
    ],
    "outlier": [1.0, math.inf, math.exp(math.pi / 16), math.exp(-math.atan(2) / 8), 1.1229, 1.2609, 1.1920, 2.0],
    "band": [12, 0.0015, 0.03, 0.5],
    "prefix": [
        (3.89, 3.09, 2.09, 0.99),
        (0.99,) * 4,
        (0.8, 1.25, 1.1, 0.9),
        (0.2, 0.25, 0.275, 0.2475),
        (1.0,) * 3,
    ],
}
