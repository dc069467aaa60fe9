"""Each method as nested Python loops over the formula of its paper: value of the loss and credit of each token.

Nothing here is shared with the package: lists and ``math`` only. A response is the list of its tokens' log-ratios z.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import oracles_bands
import oracles_contrast
import oracles_tokens
import torch
from torch import Tensor

Terms = list[tuple[float, float]]  # per token: value of the objective, weight of ∇log π


def clipped(z: list[float], A: list[float], eps_low: float, eps_high: float) -> Terms:
    """PPO, GRPO, Dr. GRPO, DAPO: min(ρA, clip(ρ)A)."""
    terms = []
    for z_t, A_t in zip(z, A, strict=True):
        rho = math.exp(z_t)
        inside = min(max(rho, 1 - eps_low), 1 + eps_high)
        silent = (A_t > 0 and rho > 1 + eps_high) or (A_t < 0 and rho < 1 - eps_low)
        terms.append((min(rho * A_t, inside * A_t), 0.0 if silent else rho * A_t))
    return terms


def reinforce(z: list[float], A: list[float]) -> Terms:
    return [(math.exp(z_t) * A_t * z_t, math.exp(z_t) * A_t) for z_t, A_t in zip(z, A, strict=True)]


def rloo(z: list[float], A: list[float]) -> Terms:
    return [(A_t * z_t, A_t) for z_t, A_t in zip(z, A, strict=True)]


def cispo(z: list[float], A: list[float], ratio_cap: float, ratio_floor: float) -> Terms:
    terms = []
    for z_t, A_t in zip(z, A, strict=True):
        weight = min(max(math.exp(z_t), ratio_floor), ratio_cap)
        terms.append((weight * A_t * z_t, weight * A_t))
    return terms


def sapo(z: list[float], A: list[float], tau_pos: float, tau_neg: float) -> Terms:
    terms = []
    for z_t, A_t in zip(z, A, strict=True):
        tau = tau_pos if A_t > 0 else tau_neg
        rho = math.exp(z_t)
        value = 4 / tau / (1 + math.exp(-tau * (rho - 1))) * A_t if tau * rho < 700 else 4 / tau * A_t
        sech = 1 / math.cosh(tau / 2 * (rho - 1)) if tau * rho < 700 else 0.0
        terms.append((value, rho * sech**2 * A_t))
    return terms


def gspo(z: list[float], A: list[float], eps_low: float, eps_high: float) -> Terms:
    """Eq. 5–7, and with one advantage per token GSPO-token, eq. 13–14: the whole response shares s and its clip."""
    s = math.prod(math.exp(z_t) for z_t in z) ** (1 / len(z))
    return clipped([math.log(s)] * len(z), A, eps_low, eps_high)


def gmpo(z: list[float], A: list[float], eps_low: float, eps_high: float) -> Terms:
    """As printed: sgn(A) (Π |min(ρA, clip(ρ)A)|)^(1/L)."""
    (a,) = set(A)
    product, active = 1.0, []
    for z_t in z:
        rho = math.exp(z_t)
        inside = min(max(rho, math.exp(-eps_low)), math.exp(eps_high))
        product *= abs(min(rho * a, inside * a))
        active.append(not (a > 0 and z_t > eps_high) and not (a < 0 and z_t < -eps_low))
    value = math.copysign(product ** (1 / len(z)), a)
    return [(value, value if on else 0.0) for on in active]


def _pooled(z: list[float], A: list[float], f: Callable[[float], float], factor: Callable[[float], float]) -> Terms:
    (a,) = set(A)
    S = math.prod(f(math.exp(z_t)) for z_t in z) ** (1 / len(z))
    return [(S * a, S * factor(math.exp(z_t)) * a) for z_t in z]


def sspo(z: list[float], A: list[float], tau_pos: float, tau_neg: float) -> Terms:
    """Eqs. 13–16: A (Π f)^(1/L) with f(ρ) = exp(arctan(τ(ρ − 1))/τ)."""
    tau = tau_pos if A[0] > 0 else tau_neg
    return _pooled(
        z,
        A,
        lambda rho: math.exp(math.atan(tau * (rho - 1)) / tau),
        lambda rho: rho / (1 + tau**2 * (rho - 1) ** 2),
    )


def sspo_sigmoid(z: list[float], A: list[float], tau_pos: float, tau_neg: float) -> Terms:
    tau = tau_pos if A[0] > 0 else tau_neg

    def sigma(rho: float) -> float:
        return 1 / (1 + math.exp(-tau * (rho - 1)))

    return _pooled(z, A, lambda rho: 4 / tau * sigma(rho), lambda rho: tau * rho * (1 - sigma(rho)))


def sspo_log_ratio(z: list[float], A: list[float], tau_pos: float, tau_neg: float) -> Terms:
    tau = tau_pos if A[0] > 0 else tau_neg
    return _pooled(
        z,
        A,
        lambda rho: math.exp(math.atan(tau * math.log(rho)) / tau),
        lambda rho: 1 / (1 + tau**2 * math.log(rho) ** 2),
    )


def per_response(sizes: list[int]) -> list[float]:
    """response_mean: 1/(R L)."""
    return [1 / (len(sizes) * size) for size in sizes]


def per_token(sizes: list[int]) -> list[float]:
    """token_mean: 1/ΣL."""
    return [1 / sum(sizes) for _ in sizes]


def per_sequence(sizes: list[int]) -> list[float]:
    """sequence_sum: 1/R."""
    return [1 / len(sizes) for _ in sizes]


ORACLES: dict[str, tuple[Callable[..., Terms], Callable[[list[int]], list[float]]]] = {
    "reinforce": (reinforce, per_sequence),
    "rloo": (rloo, per_sequence),
    "ppo": (clipped, per_response),
    "grpo": (clipped, per_response),
    "dr_grpo": (clipped, per_sequence),
    "dapo": (clipped, per_token),
    "cispo": (cispo, per_token),
    "gspo": (gspo, per_response),
    "gmpo": (gmpo, per_response),
    "sapo": (sapo, per_response),
    "sspo": (sspo, per_response),
    "sspo_sigmoid": (sspo_sigmoid, per_response),
    "sspo_log_ratio": (sspo_log_ratio, per_response),
    **oracles_bands.ORACLES,
    **oracles_tokens.ORACLES,
    **oracles_contrast.ORACLES,
}

Whole = Callable[..., tuple[float, Tensor]]

WHOLE: dict[str, Whole] = {
    **oracles_bands.WHOLE,
    **oracles_tokens.WHOLE,
    **oracles_contrast.WHOLE,
}
"""Methods whose responses see each other, or that look at more than ratios: (logp, logp_old, advantages, mask, fields,
**numbers) → loss and credit."""

NUMBERS: dict[str, list[dict[str, float]]] = {
    **oracles_bands.NUMBERS,
    **oracles_tokens.NUMBERS,
    **oracles_contrast.NUMBERS,
}
"""Numbers to try with a method besides its defaults."""


def oracle(
    name: str,
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    fields: Mapping[str, Tensor] | None = None,
    **numbers: float,
) -> tuple[float, Tensor]:
    """Loss and credit of a batch; responses without tokens are left out."""
    if name in WHOLE:
        return WHOLE[name](logp, logp_old, advantages, mask, fields or {}, **numbers)
    terms_of, factors_of = ORACLES[name]
    rows = [i for i in range(len(mask)) if mask[i].any()]
    factors = factors_of([int(mask[i].sum()) for i in rows])
    loss, credit = 0.0, torch.zeros(mask.shape, dtype=torch.float64)
    for i, factor in zip(rows, factors, strict=True):
        where = [t for t in range(mask.shape[1]) if mask[i, t]]
        z = [float(logp[i, t]) - float(logp_old[i, t]) for t in where]
        A = [float(advantages[i, t if advantages.shape[1] > 1 else 0]) for t in where]
        for t, (value, weight) in zip(where, terms_of(z, A, **numbers), strict=True):
            loss -= factor * value
            credit[i, t] = factor * weight
    return loss, credit
