"""Loops for the methods whose band moves: by position, length, probability, search; and for products and groups.

Lists and ``math`` only. A response is the list of its tokens' log-ratios z, with one advantage per token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Terms = list[tuple[float, float]]  # per token: value of the objective, weight of ∇log π


def ppo_min(x: float, A: float, low: float, high: float) -> tuple[float, float]:
    """min(xA, clip(x, low, high)A) and what multiplies ∇log x."""
    silent = (A > 0 and x > high) or (A < 0 and x < low)
    return min(x * A, min(max(x, low), high) * A), 0.0 if silent else x * A


def gspo_token(z: list[float], A: list[float], eps_low: float, eps_high: float) -> Terms:
    """Eqs. 13–14: sg[s] π/sg[π] is s in value, and its gradient is s ∇log π."""
    s = math.exp(sum(z) / len(z))
    return [ppo_min(s, A_t, 1 - eps_low, 1 + eps_high) for A_t in A]


def luspo(z: list[float], A: list[float], eps_low: float, eps_high: float) -> Terms:
    """L times GSPO's term."""
    L = len(z)
    return [(L * value, L * weight) for value, weight in gspo_token(z, A, eps_low, eps_high)]


def fspo(z: list[float], A: list[float], c_low: float, c_high: float) -> Terms:
    """min(e^S A, exp(clip(S, ∓c√L)) A); the whole response has e^S A ∇Σ log π, so L times its mean over tokens."""
    L, W = len(z), math.prod(math.exp(z_t) for z_t in z)
    low, high = math.exp(-c_low * math.sqrt(L)), math.exp(c_high * math.sqrt(L))
    terms = [ppo_min(W, A_t, low, high) for A_t in A]
    return [(value, L * weight) for value, weight in terms]


def cspo(z: list[float], A: list[float], lower: float, upper: float) -> Terms:
    W = math.prod(math.exp(z_t) for z_t in z) ** (1 / len(z))
    return [ppo_min(W, A_t, math.exp(lower), math.exp(upper)) for A_t in A]


def vespo(z: list[float], A: list[float], k_pos: float, lambda_pos: float, k_neg: float, lambda_neg: float) -> Terms:
    W = math.prod(math.exp(z_t) for z_t in z)
    terms = []
    for z_t, A_t in zip(z, A, strict=True):
        k, lam = (k_pos, lambda_pos) if A_t >= 0 else (k_neg, lambda_neg)
        phi = math.exp(lam) * W**k * math.exp(-lam * W)
        terms.append((phi * A_t * z_t, phi * A_t))
    return terms


def ctpo(z: list[float], A: list[float], eps_low: float, eps_high: float, power: float, eps_dual: float) -> Terms:
    terms, c = [], 1.0
    for t, (z_t, A_t) in enumerate(zip(z, A, strict=True), start=1):
        c *= math.exp(z_t)
        value, weight = ppo_min(c, A_t, math.exp(-eps_low * t**power), math.exp(eps_high * t**power))
        ceiling = math.exp(eps_dual * t**power)
        terms.append((ceiling * A_t, 0.0) if A_t < 0 and c > ceiling else (value, weight))
    return terms


def ctpo_autodiff(z: list[float], A: list[float], eps_low: float, eps_high: float, power: float) -> Terms:
    """Values as in CTPO; token s collects the weights of all prefixes that contain it."""
    terms = ctpo(z, A, eps_low, eps_high, power, math.inf)
    return [(terms[s][0], sum(weight for _, weight in terms[s:])) for s in range(len(terms))]


def per_response(sizes: list[int]) -> list[float]:
    return [1 / (len(sizes) * size) for size in sizes]


def per_token(sizes: list[int]) -> list[float]:
    return [1 / sum(sizes) for _ in sizes]


ORACLES = {
    "gspo_token": (gspo_token, per_response),
    "luspo": (luspo, per_response),
    "fspo": (fspo, per_response),
    "cspo": (cspo, per_response),
    "vespo": (vespo, per_token),
    "ctpo": (ctpo, per_response),
    "ctpo_autodiff": (ctpo_autodiff, per_response),
}


# ---- methods that see more than one response's ratios ----------------------------------------------------------------

Rows = list[list[tuple[int, float, float, float]]]  # per response: (column, log π_θ, log π_old, A) of each token


def whole(rows_to_terms: Callable[..., list[Terms]], factors_of: Callable[[list[int]], list[float]]):
    """A method that maps all responses, and their group ids, to terms."""

    def loss_and_credit(
        logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, fields: Mapping[str, Tensor], **numbers: float
    ) -> tuple[float, Tensor]:
        live = [i for i in range(len(mask)) if mask[i].any()]
        rows: Rows = []
        for i in live:
            columns = [t for t in range(mask.shape[1]) if mask[i, t]]
            A = [float(advantages[i, t if advantages.shape[1] > 1 else 0]) for t in columns]
            rows.append([(t, float(logp[i, t]), float(logp_old[i, t]), a) for t, a in zip(columns, A, strict=True)])
        ids = [int(fields["group_ids"][i]) for i in live] if "group_ids" in fields else []
        loss, credit = 0.0, torch.zeros(mask.shape, dtype=torch.float64)
        factors = factors_of([len(row) for row in rows])
        for i, row, terms, factor in zip(live, rows, rows_to_terms(rows, ids, **numbers), factors, strict=True):
            for (t, *_), (value, weight) in zip(row, terms, strict=True):
                loss -= factor * value
                credit[i, t] = factor * weight
        return loss, credit

    return loss_and_credit


def gepo(rows: Rows, ids: list[int]) -> list[Terms]:
    """p/Ê[q] with q̂ = q/Σq as the weights of the expectation (eq. 2), geometric means over the response."""
    p = [math.prod(math.exp(new) for _, new, _, _ in row) ** (1 / len(row)) for row in rows]
    q = [math.prod(math.exp(old) for _, _, old, _ in row) ** (1 / len(row)) for row in rows]
    terms = []
    for i, row in enumerate(rows):
        group = [j for j in range(len(rows)) if ids[j] == ids[i]]
        total = sum(q[j] for j in group)
        w = p[i] / sum(q[j] / total * q[j] for j in group)
        terms.append([(w * A, w * A) for *_, A in row])
    return terms


def g_kl(p: float, r: float) -> float:
    return p * -math.log(r) + (1 - p) * -math.log((1 - r * p) / (1 - p))


def g_tv(p: float, r: float) -> float:
    return p * abs(r - 1) / 2 + (1 - p) * abs((1 - r * p) / (1 - p) - 1) / 2


def g_chi2(p: float, r: float) -> float:
    return p * (r - 1) ** 2 + (1 - p) * ((1 - r * p) / (1 - p) - 1) ** 2


def f_bounds(g: Callable[[float, float], float], p: float, delta: float) -> tuple[float, float]:
    """The two roots of g(p, r) = δ by halving [0, 1] and [1, 1/p], each end where g stays below δ."""
    found = []
    for end in (0.0, 1 / p):
        inside, outside = 1.0, end
        for _ in range(200):
            middle = (inside + outside) / 2
            beyond = middle <= 0 or middle * p >= 1 or g(p, middle) > delta
            inside, outside = (inside, middle) if beyond else (middle, outside)
        found.append(inside)
    return found[0], found[1]


def bandpo(g: Callable[[float, float], float]) -> Callable[..., list[Terms]]:
    def terms(rows: Rows, ids: list[int], delta: float, ratio_cap: float) -> list[Terms]:
        out = []
        for row in rows:
            of_row = []
            for _, new, old, A in row:
                rho = math.exp(new - old)
                low, high = f_bounds(g, math.exp(old), delta)
                value, weight = ppo_min(rho, A, low, min(high, ratio_cap))
                of_row.append((ratio_cap * A, 0.0) if A < 0 and rho > ratio_cap else (value, weight))
            out.append(of_row)
        return out

    return terms


def bapo(active: bool) -> Callable[..., list[Terms]]:
    """As notes of the paper give it: raise c_high while it can, else c_low, until the share is reached."""

    def share_of(rows: Rows, low: float, high: float) -> float:
        positive = total = 0.0
        for row in rows:
            for _, new, old, A in row:
                value, weight = ppo_min(math.exp(new - old), A, low, high)
                held = math.exp(old) * abs(weight if active else value)
                total += held
                positive += held if A > 0 else 0.0
        return positive / total if total else -1.0

    def terms(rows: Rows, ids: list[int], share: float, **n: float) -> list[Terms]:
        low, high, raised, lifted = n["low_min"], n["high_min"], 0, 0
        while share_of(rows, low, high) < share:
            if n["high_min"] + (raised + 1) * n["high_step"] <= n["high_max"] + 1e-9:
                raised += 1
                high = n["high_min"] + raised * n["high_step"]
            elif n["low_min"] + (lifted + 1) * n["low_step"] <= n["low_max"] + 1e-9:
                lifted += 1
                low = n["low_min"] + lifted * n["low_step"]
            else:
                break
        return [[ppo_min(math.exp(new - old), A, low, high) for _, new, old, A in row] for row in rows]

    return terms


WHOLE = {
    "gepo": whole(gepo, per_response),
    "bandpo_kl": whole(bandpo(g_kl), per_response),
    "bandpo_tv": whole(bandpo(g_tv), per_response),
    "bandpo_chi2": whole(bandpo(g_chi2), per_response),
    "bapo": whole(bapo(active=True), per_token),
    "bapo_printed": whole(bapo(active=False), per_token),
}

BAPO = {"low_min": 0.5, "low_max": 0.95, "low_step": 0.1, "high_min": 1.1, "high_max": 1.75, "high_step": 0.2}
NUMBERS = {
    "fspo": [{"c_low": 0.2, "c_high": 0.5}],
    "cspo": [{"lower": -0.3, "upper": 0.1}, {"lower": -math.inf, "upper": 0.0}],
    "vespo": [{"k_pos": 1.0, "lambda_pos": 0.5, "k_neg": 2.5, "lambda_neg": 4.0}],
    "ctpo": [
        {"eps_low": 0.025, "eps_high": 0.05, "power": 0.5, "eps_dual": 0.05},
        {"eps_low": 0.4, "eps_high": 0.3, "power": -0.5, "eps_dual": 1.0},
        {"eps_low": 0.5, "eps_high": 0.6, "power": 1.0, "eps_dual": math.inf},
    ],
    "ctpo_autodiff": [{"eps_low": 0.3, "eps_high": 0.3, "power": 0.3}],
    **{
        name: [{"delta": 0.05, "ratio_cap": 10.0}, {"delta": 0.3, "ratio_cap": 1.5}, {"delta": 0.002, "ratio_cap": 3.0}]
        for name in ("bandpo_kl", "bandpo_tv", "bandpo_chi2")
    },
    **{name: [{"share": share, **BAPO} for share in (0.2, 0.45, 0.6, 1.0)] for name in ("bapo", "bapo_printed")},
}
"""Numbers to try besides the defaults."""
