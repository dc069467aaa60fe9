"""What comes from which part of a method: gate, unit, order, direction, normalizer.

``token_and_sequence`` and ``bounds`` are plain functions of log-ratios and score vectors, for real minibatches too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from sspo_teach import gates
from sspo_teach.catalog import Method
from sspo_teach.exact import moments
from sspo_teach.exact.problem import Problem
from sspo_teach.objectives import units
from sspo_teach.objectives.advantages import group_normalized
from sspo_teach.objectives.normalize import Normalizer, constant, response_mean, sequence_sum, token_mean
from sspo_teach.objectives.regularizers import ESTIMATORS
from sspo_teach.tensors import check_positive, checked, lengths, log_ratio, masked_mean, unknown
from sspo_teach.types import Rollout, Verified

LogGate = Callable[[Tensor, Tensor], Tensor]

GATES: Mapping[str, LogGate] = {
    "none": gates.log_identity,
    "ppo_clip": lambda z, A: gates.log_clip(z, A, *gates.bounds.constant(0.2, 0.2)),
    "gspo_clip": lambda z, A: gates.log_clip(z, A, *gates.bounds.constant(3e-4, 4e-4)),
    "gmpo_clip": lambda z, A: gates.log_clip(z, A, -0.4, 0.4),
    "sapo_sigmoid": lambda z, A: gates.log_sigmoid(z, A, 1.0, 1.05),
    "sspo_arctan": lambda z, A: gates.log_arctan(z, A, 1.0, 1.05),
    "arctan_log_ratio": lambda z, A: gates.log_arctan_log_ratio(z, A, 1.0, 1.05),
}
"""log f by name, with the numbers of the methods they come from."""

UNITS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "arithmetic": units.token,  # tokens' f under the normalizer's mean
    "geometric": units.sequence,
    "product": units.product,
    "prefix": units.prefix,
}
ORDERS = ("gate first", "pool first")


def composed(gate: str, unit: str, order: str) -> Callable[..., Tensor]:
    """The objective −normalize(f A) of a gate, a unit and the order in which they come.

    A gate that does not pass through 1 (the sigmoid's f(1) is 2/τ) enters a product once, not once per token: then
    every sentence of this grammar has weight 1 on-policy.

    >>> composed("sspo_arctan", "geometric", "gate first")  # SSPO
    >>> composed("sapo_sigmoid", "arithmetic", "gate first")  # SAPO
    """
    for kind, name, known in (("gate", gate, GATES), ("unit", unit, UNITS), ("order", order, ORDERS)):
        if name not in known:
            raise ValueError(unknown(kind, name, known))
    log_gate, pool, gate_first = GATES[gate], UNITS[unit], order == ORDERS[0]

    @checked
    def objective(
        logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, *, normalize: Normalizer = response_mean
    ) -> Tensor:
        z = log_ratio(logp, logp_old, mask)
        if gate_first:
            at_one = log_gate(torch.zeros_like(z), advantages)
            log_f = pool(log_gate(z, advantages) - at_one, mask) + at_one
        else:
            log_f = log_gate(pool(z, mask), advantages)
        return -normalize(log_f.exp() * advantages, mask)

    objective.__name__ = f"{gate}, {unit}, {order}"
    return objective


def grid(advantage: Callable[[Rollout], Tensor] = group_normalized) -> dict[tuple[str, str, str], Method]:
    """Every gate under every unit in both orders; arithmetic pooling knows but one order, since it comes last."""
    return {
        (gate, unit, order): Method(composed(gate, unit, order), Verified.RECONSTRUCTION, advantage=advantage)
        for gate in GATES
        for unit in UNITS
        for order in ORDERS
        if (unit, order) != ("arithmetic", ORDERS[1])
    }


# --- which way: directional and bidirectional attenuation ---

KERNELS: Mapping[str, Callable[[Tensor, float], Tensor]] = {
    "sech²": lambda d, tau: (2 * (0.6931471805599453 - tau * d.abs() / 2 - softplus(-tau * d.abs()))).exp(),
    "gaussian": lambda d, tau: (-(tau**2) * d.square() / 4).exp(),
    "cauchy": lambda d, tau: 1 / (1 + tau**2 * d.square() / 4),
}
"""k(ρ − 1), value 1, slope 0 and curvature −τ²/2 at 0."""


def attenuated(
    log_r: Tensor, advantages: Tensor, *, kernel: str = "sech²", directional: bool = False, tau: float = 1.0
) -> Tensor:
    """The weight ρ k(ρ − 1) of a smooth gate, (B, T); ``directional`` fades extending tokens alone, as a clip does."""
    if kernel not in KERNELS:
        raise ValueError(unknown("kernel", kernel, KERNELS))
    check_positive(tau=tau)
    ratio = log_r.exp()
    faded = ratio * KERNELS[kernel](ratio - 1, tau)
    return faded.where(advantages * log_r > 0, ratio) if directional else faded


def hard(log_r: Tensor, advantages: Tensor, *, eps: float = 0.2) -> Tensor:
    """The weight of the directional hard gate, PPO's: ρ, or 0 for an extending token beyond 1 ± ε."""
    ratio = log_r.exp()
    beyond = torch.where(advantages > 0, ratio > 1 + eps, ratio < 1 - eps)
    return ratio.masked_fill(beyond, 0.0)


def directions() -> dict[str, Method]:
    """Directional and bidirectional attenuation as methods that differ in nothing else."""
    kinds: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "directional hard": hard,
        "directional smooth": lambda z, A: attenuated(z, A, directional=True),
        "bidirectional smooth": lambda z, A: attenuated(z, A),
        "bidirectional gaussian": lambda z, A: attenuated(z, A, kernel="gaussian"),
        "bidirectional cauchy": lambda z, A: attenuated(z, A, kernel="cauchy"),
    }
    return {name: Method(_weighted(weight, name), Verified.REVIEW) for name, weight in kinds.items()}


def _weighted(weight: Callable[[Tensor, Tensor], Tensor], name: str) -> Callable[..., Tensor]:
    @checked
    def objective(
        logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, *, normalize: Normalizer = response_mean
    ) -> Tensor:
        z = log_ratio(logp, logp_old, mask)
        return -normalize(gates.score(weight(z, advantages), z) * advantages, mask)

    objective.__name__ = name
    return objective


# --- token gates against one sequence gate ---


def log_gate_of_ratio(log_r: Tensor, tau: float) -> Tensor:
    """log w, w(ρ) = sech²(τ(ρ − 1)/2) = 4σ(u)σ(−u), as log 4 − softplus(u) − softplus(−u): finite for any u."""
    u = tau * log_r.expm1()
    return 2 * 0.6931471805599453 - softplus(u, threshold=40) - softplus(-u, threshold=40)


def gate_of_log_ratio(log_r: Tensor, tau: float) -> Tensor:
    """g(z) = sech²(τz/2), the gate with ρ − 1 replaced by z = log ρ."""
    return KERNELS["sech²"](log_r, tau)


@dataclass(frozen=True)
class Split:
    """1/L Σ gₜhₜ − g(μ)h̄ = covariance + gap · h̄, per response, with what bounds it.

    Attributes:
        exact: (B, D) 1/L Σ ρₜ w(ρₜ) hₜ, SAPO's own direction.
        token: (B, D) 1/L Σ g(zₜ) hₜ, its token gates with ρ w replaced by g(z).
        sequence: (B, D) g(μ) h̄, one gate at the mean log-ratio μ.
        covariance: (B, D) 1/L Σ (gₜ − ḡ) hₜ, what the unit of the gate decides.
        shift: (B, D) (ḡ − g(μ)) h̄.
        gap: (B,) |ḡ − g(μ)|.
        gap_bound: (B,) τ²/4 · Var z, since |g''| ≤ τ²/2.
        covariance_bound: (B,) √(Var g) √(1/L Σ ‖hₜ − h̄‖²), Cauchy and Schwarz.
    """

    exact: Tensor
    token: Tensor
    sequence: Tensor
    covariance: Tensor
    shift: Tensor
    gap: Tensor
    gap_bound: Tensor
    covariance_bound: Tensor


def token_and_sequence(log_r: Tensor, scores: Tensor, mask: Tensor, *, tau: float = 1.0) -> Split:
    """Split the difference of token gates and one sequence gate.

    Args:
        log_r: (B, T) z = log ρ.
        scores: (B, T, D) h = ∇ log π of each token, or projections of it.
        mask: (B, T).
        tau: τ.
    """
    check_positive(tau=tau)
    mask = mask.bool()
    z, h = log_r.where(mask, 0.0), scores.where(mask.unsqueeze(2), 0.0)
    count = lengths(mask).clamp(min=1)

    def mean(weight: Tensor) -> Tensor:
        return (weight.where(mask, 0.0).unsqueeze(2) * h).sum(1) / count

    g, mu = gate_of_log_ratio(z, tau), masked_mean(z, mask)
    g_bar, at_mean, h_bar = masked_mean(g, mask), gate_of_log_ratio(mu, tau), mean(torch.ones_like(z))
    spread = masked_mean((h - h_bar.unsqueeze(1)).square().sum(2), mask)
    return Split(
        exact=mean((z + log_gate_of_ratio(z, tau)).exp()),
        token=mean(g),
        sequence=at_mean * h_bar,
        covariance=mean(g - g_bar),
        shift=(g_bar - at_mean) * h_bar,
        gap=(g_bar - at_mean).abs().squeeze(1),
        gap_bound=(tau**2 / 4 * masked_mean((z - mu).square(), mask)).squeeze(1),
        covariance_bound=(masked_mean((g - g_bar).square(), mask) * spread).sqrt().squeeze(1),
    )


def substitution_bound(log_r: Tensor, tau: float) -> Tensor:
    """|w(ρ) − g(z)| ≤ 2τ/(3√3) · e^|z| z²/2: the price of z in place of ρ − 1, from the slope of sech²(τx/2)."""
    return 2 * tau / (3 * 3**0.5) * log_r.abs().exp() * log_r.square() / 2


# --- length ---

NORMALIZERS: Mapping[str, Callable[[int], Normalizer]] = {
    "response_mean": lambda longest: response_mean,
    "token_mean": lambda longest: token_mean,
    "sequence_sum": lambda longest: sequence_sum,
    "constant": constant,
}


def normalizers(here: Problem, method: Method, group: int = 0) -> list[dict[str, Any]]:
    """The direction of E[ĝ] under each normalizer: cosine with the truth, and the share of each length in ⟨E[ĝ], g⟩."""
    rows = []
    for name, make in NORMALIZERS.items():
        normalize = make(here.tree.length)
        mean = moments.of(here, method, group, normalize=normalize).mean
        row: dict[str, Any] = {"normalizer": name, "cosine": torch.cosine_similarity(mean, here.truth, dim=0).item()}
        if not group:
            draws = moments.population_draws(here)
            coef = moments.coefficients(here, method, draws, normalize=normalize) * draws.share.unsqueeze(1)
            for n in here.tree.lengths.unique().tolist():
                part = coef.where((here.tree.lengths == n).unsqueeze(1), 0.0)
                along = here.new.combine(here.tree.sums(part, draws.response)) @ here.truth
                row[f"length {n}"] = (along / (mean @ here.truth)).item()
        rows.append(row)
    return rows


# --- KL terms ---


def kl_gradient(here: Problem, reference: Tensor, estimator: str, *, per: str = "token") -> Tensor:
    """E over π_θ of an estimator's gradient as a loss, (D,), the mean over prompts.

    ``per`` sequence takes one log-ratio of the whole response: k2 is then ∇KL(π_θ ‖ π_ref), k3 ∇KL(π_ref ‖ π_θ), and k1
    is 0. ``per`` token sums the tokens' own and drops what an early token does to later conditional KLs.
    """
    if estimator not in ESTIMATORS:
        raise ValueError(unknown("KL estimator", estimator, ESTIMATORS))
    if per not in ("token", "sequence"):
        raise ValueError(unknown("per", per, ("token", "sequence")))
    tree, whole = here.tree, per == "sequence"
    leaf = here.logp.sum(1, keepdim=True) if whole else here.logp.clone()
    at = tree.read(reference).sum(1, keepdim=True) if whole else tree.read(reference)
    mask = torch.ones_like(leaf, dtype=torch.bool) if whole else tree.mask
    leaf.requires_grad_()
    (slope,) = torch.autograd.grad(ESTIMATORS[estimator](leaf, at, mask).sum(), leaf)
    chance = here.logp.sum(1, keepdim=True).exp() / tree.prompts
    return here.new.combine(tree.sums((chance * slope).expand_as(here.logp)))


# --- curves ---


def curves(gate: str, log_r: Tensor, *, sign: float = 1.0, length: int = 8) -> dict[str, Tensor]:
    """f, f', ρf' and S·ρℓ' on a grid of log-ratios (n,), by autograd.

    f' is by ρ, ℓ = log f; ρf' is the weight of a token under arithmetic pooling, S·ρℓ' under geometric pooling, with
    S = f^(1/L) of a response whose other tokens stand at ρ = 1 (over its value there, so that gates compare).
    """
    z = log_r.detach().double().view(-1, 1).requires_grad_()
    A = torch.full_like(z, sign)
    log_f = GATES[gate](z, A)
    (slope,) = torch.autograd.grad(log_f.sum(), z, allow_unused=True)
    at_one = GATES[gate](torch.zeros(1, 1, dtype=z.dtype), A[:1])
    f = log_f.exp()
    S = (at_one + (log_f - at_one) / length).exp()
    columns = {"f": f, "f'": slope * f / z.exp(), "ρf'": slope * f, "S·ρℓ'": S * slope}
    return {name: column.detach().squeeze(1) for name, column in columns.items()}


__all__ = [
    "GATES",
    "KERNELS",
    "NORMALIZERS",
    "ORDERS",
    "UNITS",
    "Split",
    "attenuated",
    "composed",
    "curves",
    "directions",
    "gate_of_log_ratio",
    "grid",
    "hard",
    "kl_gradient",
    "log_gate_of_ratio",
    "normalizers",
    "substitution_bound",
    "token_and_sequence",
]
