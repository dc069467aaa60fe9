"""Loops for the methods of ``token_soft``, ``token_detached`` and ``selection``, and the later ones of ``token_level``.

As in ``oracles``: lists and ``math`` only, a response is the list of its tokens' log-ratios z.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

Terms = list[tuple[float, float]]  # per token: value of the objective, weight of ∇log π


def tokenwise(rule: Callable[..., tuple[float, float]]) -> Callable[..., Terms]:
    """(z, A, numbers) of one token → (value, weight), for every token of a response."""

    def terms(z: list[float], A: list[float], **numbers: float) -> Terms:
        return [rule(z_t, A_t, **numbers) for z_t, A_t in zip(z, A, strict=True)]

    return terms


def clip(rho: float, eps_low: float, eps_high: float) -> float:
    return min(max(rho, 1 - eps_low), 1 + eps_high)


def silent(rho: float, A: float, eps_low: float, eps_high: float) -> bool:
    """PPO's rule."""
    return (A > 0 and rho > 1 + eps_high) or (A < 0 and rho < 1 - eps_low)


def ppo(z: float, A: float, eps_low: float, eps_high: float) -> tuple[float, float]:
    rho = math.exp(z)
    value = min(rho * A, clip(rho, eps_low, eps_high) * A)
    return value, 0.0 if silent(rho, A, eps_low, eps_high) else rho * A


def ppo_dual(z: float, A: float, eps_low: float, eps_high: float, ratio_cap: float) -> tuple[float, float]:
    """arXiv 1912.09729: for A < 0, max(min(ρA, clip(ρ)A), cA)."""
    value, weight = ppo(z, A, eps_low, eps_high)
    if A < 0 and ratio_cap * A > value:
        return ratio_cap * A, 0.0
    return value, weight


def delta_clip(z: float, A: float, eps_low: float, eps_high: float, delta: float) -> tuple[float, float]:
    """As TRL computes it: the smaller of min(ρ, δ)A and clip(ρ)A; the weight is that of the smaller."""
    rho = math.exp(z)
    one, other = min(rho, delta) * A, clip(rho, eps_low, eps_high) * A
    if one < other:
        return one, rho * A if rho < delta else 0.0
    if other < one:
        return other, rho * A if 1 - eps_low < rho < 1 + eps_high else 0.0
    return one, rho * A if rho < delta and 1 - eps_low < rho < 1 + eps_high else 0.0


def ce_gppo(
    z: float, A: float, eps_low: float, eps_high: float, beta_low: float, beta_high: float, ratio_cap: float
) -> tuple[float, float]:
    """The three cases of arXiv 2509.20712, and the code's dual clip."""
    rho = math.exp(z)
    if A < 0 and rho > ratio_cap:
        return ratio_cap * A, 0.0
    if A < 0 and rho < 1 - eps_low:
        return beta_low * (1 - eps_low) * A, beta_low * (1 - eps_low) * A
    if A > 0 and rho > 1 + eps_high:
        return beta_high * (1 + eps_high) * A, beta_high * (1 + eps_high) * A
    return rho * A, rho * A


def gppo(z: float, A: float, eps_low: float, eps_high: float) -> tuple[float, float]:
    """PPO's value; a clipped token's weight is the edge's."""
    value, weight = ppo(z, A, eps_low, eps_high)
    return value, weight if weight else clip(math.exp(z), eps_low, eps_high) * A


def aspo(z: float, A: float, eps_low: float, eps_high: float, ratio_cap: float) -> tuple[float, float]:
    rho = math.exp(z)
    weight = min(1 / rho if A > 0 else rho, ratio_cap) * A
    if silent(rho, A, eps_low, eps_high):
        weight = 0.0
    return weight * z, weight


def topr(z: float, A: float) -> tuple[float, float]:
    weight = A if A > 0 else min(math.exp(z), 1.0) * A
    return weight * z, weight


def gpg(z: float, A: float) -> tuple[float, float]:
    return A * z, A


def dro(z: float, A: float, beta: float) -> tuple[float, float]:
    return A * z - beta / 2 * z * z, A - beta * z


def spo_simple(z: float, A: float, eps: float) -> tuple[float, float]:
    """arXiv 2401.16025: ρA − |A|/(2ε)(ρ − 1)², weight ρ(A − |A|/ε (ρ − 1))."""
    rho = math.exp(z)
    return rho * A - abs(A) / (2 * eps) * (rho - 1) ** 2, rho * (A - abs(A) / eps * (rho - 1))


def pspo(z: float, A: float, alpha: float) -> tuple[float, float]:
    """arXiv 2509.21282: the ratio of the smoothed policy."""
    return ((1 - alpha) * math.exp(z) + alpha) * A, (1 - alpha) * math.exp(z) * A


def sigmoid(u: float) -> float:
    return 1 / (1 + math.exp(-u)) if u > -700 else 0.0


def sech2(u: float) -> float:
    return 1 / math.cosh(u) ** 2 if abs(u) < 300 else 0.0


def scopic(z: float, A: float, tau: float) -> tuple[float, float]:
    rho = math.exp(z)
    return 4 / tau * sigmoid(tau * (rho - 1)) * A, rho * sech2(tau / 2 * (rho - 1)) * A


def studied(
    f: Callable[[float, float], float], slope: Callable[[float, float], float]
) -> Callable[..., tuple[float, float]]:
    """A gate of arXiv 2602.19345: f(x) and f'(x), both of (d = x − 1, τ)."""

    def rule(z: float, A: float, tau_pos: float, tau_neg: float) -> tuple[float, float]:
        tau, d = tau_pos if A > 0 else tau_neg, math.exp(z) - 1
        return f(d, tau) * A, (d + 1) * slope(d, tau) * A

    return rule


sapo_erf = studied(
    lambda d, tau: 1 + math.sqrt(math.pi / (2 * tau**2)) * math.erf(tau * d / math.sqrt(2)),
    lambda d, tau: math.exp(-(tau**2) * d**2 / 2),
)
sapo_arctan = studied(lambda d, tau: 1 + math.atan(tau * d) / tau, lambda d, tau: 1 / (1 + tau**2 * d**2))
sapo_softsign = studied(lambda d, tau: 1 + d / math.sqrt(1 + tau**2 * d**2), lambda d, tau: (1 + tau**2 * d**2) ** -1.5)


def sapo_directional(z: float, A: float, tau_pos: float, tau_neg: float) -> tuple[float, float]:
    """The table of weights: r on the corrective side, r w_τ on the other."""
    tau, rho = tau_pos if A > 0 else tau_neg, math.exp(z)
    if (A > 0 and rho <= 1) or (A < 0 and rho >= 1):
        return rho * A, rho * A
    return (1 + 4 / tau * (sigmoid(tau * (rho - 1)) - 0.5)) * A, rho * sech2(tau / 2 * (rho - 1)) * A


def sapo_gaussian(z: float, A: float, tau_pos: float, tau_neg: float, kappa: float) -> tuple[float, float]:
    tau, d = tau_pos if A > 0 else tau_neg, math.exp(z) - 1
    a = kappa * tau**2
    return (1 + 0.5 * math.sqrt(math.pi / a) * math.erf(math.sqrt(a) * d)) * A, (d + 1) * math.exp(-a * d**2) * A


def sapo_cauchy(z: float, A: float, tau_pos: float, tau_neg: float, kappa: float) -> tuple[float, float]:
    tau, d = tau_pos if A > 0 else tau_neg, math.exp(z) - 1
    a = kappa * tau**2
    return (1 + math.atan(math.sqrt(a) * d) / math.sqrt(a)) * A, (d + 1) / (1 + a * d**2) * A


def maspo(
    z: float, A: float, old: float, chosen: bool, sigma: float, power: float, risk: float, sigma_cap: float
) -> tuple[float, float]:
    """σ₊ = σ π_old^(−power) (1 + risk A), σ₋ = σ π_old^(−power)/(1 + risk |A|), neither beyond the cap."""
    rho, mass = math.exp(z), math.exp(old) ** -power
    width = sigma * mass * (1 + risk * A) if A > 0 else sigma * mass / (1 + risk * abs(A))
    width = min(width, sigma_cap)
    beyond = (A > 0 and rho > 1) or (A < 0 and rho < 1)
    gate = math.exp(-((rho - 1) ** 2) / (2 * width**2)) if beyond else 1.0
    return gate * rho * A, gate * rho * A


def dppo_tv(
    z: float, A: float, old: float, chosen: bool, delta_low: float, delta_high: float, ratio_cap: float
) -> tuple[float, float]:
    """By the signed difference of probabilities, as verl writes it."""
    move = math.exp(old + z) - math.exp(old)
    valid = move <= delta_high if A > 0 else move >= -delta_low
    weight = min(math.exp(z), ratio_cap) * A if valid else 0.0
    return weight * z, weight


def dppo_kl(
    z: float, A: float, old: float, chosen: bool, delta_low: float, delta_high: float, ratio_cap: float
) -> tuple[float, float]:
    mu, pi = math.exp(old), min(math.exp(old + z), 1 - 1e-8)
    kl = mu * math.log(mu / pi) + (1 - mu) * math.log((1 - mu) / (1 - pi))
    blocked = (A > 0 and z > 0 and kl > delta_high) or (A < 0 and z < 0 and kl > delta_low)
    weight = 0.0 if blocked else min(math.exp(z), ratio_cap) * A
    return weight * z, weight


def clip_cov(z: float, A: float, old: float, chosen: bool, eps_low: float, eps_high: float) -> tuple[float, float]:
    return (0.0, 0.0) if chosen else ppo(z, A, eps_low, eps_high)


def kl_cov(z: float, A: float, old: float, chosen: bool, beta: float) -> tuple[float, float]:
    value, weight = math.exp(z) * A, math.exp(z) * A
    if chosen:
        value -= beta * abs(z)
        weight -= beta * (1 if z > 0 else -1 if z < 0 else 0)
    return value, weight


def per_response(sizes: list[int]) -> list[float]:
    return [1 / (len(sizes) * size) for size in sizes]


def per_token(sizes: list[int]) -> list[float]:
    return [1 / sum(sizes)] * len(sizes)


def per_sequence(sizes: list[int]) -> list[float]:
    return [1 / len(sizes)] * len(sizes)


def whole(rule, factors_of):
    """A rule that also looks at log π_old and at whether the token is selected."""

    def oracle(logp, logp_old, advantages, mask, fields, **numbers):
        rows = [i for i in range(len(mask)) if mask[i].any()]
        loss, credit = 0.0, torch.zeros(mask.shape, dtype=torch.float64)
        for i, factor in zip(rows, factors_of([int(mask[i].sum()) for i in rows]), strict=True):
            for t in range(mask.shape[1]):
                if not mask[i, t]:
                    continue
                z, old = float(logp[i, t]) - float(logp_old[i, t]), float(logp_old[i, t])
                A = float(advantages[i, t if advantages.shape[1] > 1 else 0])
                chosen = bool(fields["selected"][i, t]) if "selected" in fields else False
                value, weight = rule(z, A, old, chosen, **numbers)
                loss -= factor * value
                credit[i, t] = factor * weight
        return loss, credit

    return oracle


ORACLES = {
    "ppo_dual": (tokenwise(ppo_dual), per_response),
    "delta_clip": (tokenwise(delta_clip), per_response),
    "bnpo": (tokenwise(ppo), per_token),
    "ce_gppo": (tokenwise(ce_gppo), per_token),
    "gppo": (tokenwise(gppo), per_token),
    "aspo": (tokenwise(aspo), per_token),
    "topr": (tokenwise(topr), per_sequence),
    "gpg": (tokenwise(gpg), per_token),
    "dro": (tokenwise(dro), per_token),
    "spo_simple": (tokenwise(spo_simple), per_response),
    "pspo": (tokenwise(pspo), per_token),
    "scopic": (tokenwise(scopic), per_token),
    "sapo_erf": (tokenwise(sapo_erf), per_response),
    "sapo_arctan": (tokenwise(sapo_arctan), per_response),
    "sapo_softsign": (tokenwise(sapo_softsign), per_response),
    "sapo_directional": (tokenwise(sapo_directional), per_response),
    "sapo_gaussian": (tokenwise(sapo_gaussian), per_response),
    "sapo_cauchy": (tokenwise(sapo_cauchy), per_response),
}

WHOLE = {
    "maspo": whole(maspo, per_response),
    "dppo_tv": whole(dppo_tv, per_token),
    "dppo_kl": whole(dppo_kl, per_token),
    "clip_cov": whole(clip_cov, per_token),
    "kl_cov": whole(kl_cov, per_token),
}

NUMBERS = {
    "ppo_dual": [{"ratio_cap": 1.25}, {"eps_high": 0.5, "ratio_cap": 1.6}],
    "delta_clip": [{"delta": 1.1}, {"delta": 1.5, "eps_high": 0.6}, {"delta": math.inf}],
    "ce_gppo": [{"beta_low": 0.5, "ratio_cap": 1.5}, {"beta_low": 0.0, "beta_high": 0.0, "eps_high": math.inf}],
    "aspo": [{"ratio_cap": 1.1, "eps_low": 1.0}],
    "maspo": [{"sigma": 0.2, "power": 0.5, "risk": 0.4}, {"sigma": 3.0, "sigma_cap": 0.5}],
    "dppo_tv": [{"delta_low": 0.01, "delta_high": 0.05, "ratio_cap": 1.2}],
    "dppo_kl": [{"delta_low": 0.001, "delta_high": 0.01, "ratio_cap": 1.2}],
    "dro": [{"beta": 3.0}],
    "spo_simple": [{"eps": 0.03}],
    "pspo": [{"alpha": 0.7}],
    "scopic": [{"tau": 0.3}],
    "sapo_gaussian": [{"kappa": 2.0}],
    "sapo_cauchy": [{"kappa": 2.0}],
    "kl_cov": [{"beta": 0.1}],
}
