"""Methods with pairs or with a critic, as loops over the formulas of their papers. See ``oracles``."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Terms = list[tuple[float, float]]


def ppo_gae(z: list[float], A: list[float], eps_low: float, eps_high: float) -> Terms:
    terms = []
    for z_t, A_t in zip(z, A, strict=True):
        rho = math.exp(z_t)
        value = min(rho * A_t, min(max(rho, 1 - eps_low), 1 + eps_high) * A_t)
        silent = rho > 1 + eps_high if A_t > 0 else rho < 1 - eps_low
        terms.append((value, 0.0 if silent else rho * A_t))
    return terms


def sppo(z: list[float], A: list[float], eps_low: float, eps_high: float, ratio_cap: float) -> Terms:
    """verl's vanilla loss: for A < 0 the objective is at least c A."""
    terms = []
    for (value, weight), z_t, A_t in zip(ppo_gae(z, A, eps_low, eps_high), z, A, strict=True):
        if A_t < 0 and value < ratio_cap * A_t:
            terms.append((ratio_cap * A_t, 0.0))
        else:
            assert A_t >= 0 or math.exp(z_t) <= ratio_cap
            terms.append((value, weight))
    return terms


def per_token(sizes: list[int]) -> list[float]:
    return [1 / sum(sizes) for _ in sizes]


def groups(advantages: Tensor, mask: Tensor, group_ids: Tensor) -> list[tuple[int, list[int], list[int]]]:
    """Of each group: how many responses it has, the rows that are right, the rows that are wrong."""
    found = []
    for one in sorted(set(group_ids.tolist())):
        rows = [i for i in range(len(mask)) if group_ids[i] == one and mask[i].any()]
        A = {i: float(advantages[i, 0]) for i in rows}
        found.append((len(rows), [i for i in rows if A[i] > 0], [i for i in rows if A[i] < 0]))
    return found


def total(logp: Tensor, mask: Tensor, row: int) -> float:
    return sum(float(logp[row, t]) for t in range(mask.shape[1]) if mask[row, t])


def length(mask: Tensor, row: int) -> int:
    return sum(bool(x) for x in mask[row])


def conspo(logp, logp_old, advantages, mask, fields, tau: float, margin: float) -> tuple[float, Tensor]:
    """InfoNCE of each right response among the wrong ones; the mean over groups weighs each by its responses."""
    loss, credit = 0.0, torch.zeros(mask.shape, dtype=torch.float64)
    whole = sum(length(mask, i) > 0 for i in range(len(mask)))
    for size, right, wrong in groups(advantages, mask, fields["group_ids"]):
        for i in right:
            s = {j: total(logp, mask, j) / length(mask, j) for j in [i, *wrong]}
            e = {j: math.exp((s[j] - (margin if j == i else 0)) / tau) for j in [i, *wrong]}
            p = {j: e[j] / sum(e.values()) for j in e}
            share = size / whole / len(right)
            loss -= share * math.log(p[i])
            for j in p:
                pull = (1 - p[i]) / tau if j == i else -p[j] / tau
                for t in range(mask.shape[1]):
                    if mask[j, t]:
                        credit[j, t] += share * pull / length(mask, j)
    return loss, credit


def click(logp, logp_old, advantages, mask, fields, margin: float) -> tuple[float, Tensor]:
    """A hinge on every pair of a group, as the authors write it for one pair; the mean is over pairs, then groups."""
    loss, credit = 0.0, torch.zeros(mask.shape, dtype=torch.float64)
    whole = sum(length(mask, i) > 0 for i in range(len(mask)))
    for size, right, wrong in groups(advantages, mask, fields["group_ids"]):
        for i in right:
            for j in wrong:
                share = size / whole / len(right) / len(wrong)
                short = margin - total(logp, mask, i) + total(logp, mask, j)
                if short >= 0:
                    loss += share * short
                    for t in range(mask.shape[1]):
                        credit[i, t] += share * bool(mask[i, t])
                        credit[j, t] -= share * bool(mask[j, t])
    return loss, credit


ORACLES: dict[str, tuple[Callable[..., Terms], Callable[[list[int]], list[float]]]] = {
    "ppo_gae": (ppo_gae, per_token),
    "sppo": (sppo, per_token),
}
WHOLE: dict[str, Callable[..., tuple[float, Tensor]]] = {"conspo": conspo, "click": click}

NUMBERS: dict[str, list[dict[str, float]]] = {
    "sppo": [{"ratio_cap": 1.3}, {"eps_low": 0.1, "eps_high": 0.6, "ratio_cap": 2.0}],
    "conspo": [{"tau": 2.0, "margin": 0.0}, {"tau": 0.05, "margin": 1.0}],
    "click": [{"margin": 4.0}, {"margin": 15.0}],
}
"""Numbers to try with a method besides its defaults."""
