"""Right answers to the exercises on token and sequence gates, and the mistakes that people make."""

import math

import torch


def bound(log_r, mask, tau, less=0):
    count = mask.sum(1, keepdim=True)
    mu = torch.where(mask, log_r, 0).sum(1, keepdim=True) / count
    return tau**2 / 4 * (torch.where(mask, (log_r - mu) ** 2, 0).sum(1, keepdim=True) / (count - less)).squeeze(1)


def covariance(g, h):
    return ((g - g.mean())[:, None] * h).mean(0)


RIGHT = {"bound": bound, "temperature": 2.0, "covariance": covariance, "blind": (1.0, -1.0)}
WRONG = {
    "bound": [
        lambda *given: bound(*given, less=1),
        lambda log_r, mask, tau: tau**2 / 4 * log_r.var(1, correction=0),
        lambda log_r, mask, tau: bound(log_r, mask, tau) / tau,
        lambda *given: 2 * bound(*given),
        lambda log_r, mask, tau: bound(log_r, mask, 2.0),
    ],
    "temperature": [4.0, math.sqrt(2), 1.0],
    "covariance": [
        lambda g, h: (g[:, None] * h).mean(0),
        lambda g, h: g.mean() * h.mean(0),
        lambda g, h: 5 * covariance(g, h),
        lambda g, h: h.mean(0),
    ],
    "blind": [(2.0, 0.5), (0.1, -0.1), (1.0, 1.0), (1.0,)],
}
