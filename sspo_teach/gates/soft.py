"""Gates that fade: smooth in the ratio, with a temperature τ that may depend on the sign of A (τ_neg where A ≤ 0)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from sspo_teach.gates.hard import extending
from sspo_teach.tensors import check_between, check_positive, promote, with_value


def temperature(advantages: Tensor, tau_pos: float, tau_neg: float) -> Tensor:
    """τ_pos where A > 0 and τ_neg elsewhere (A = 0 contributes nothing, so its side does not matter); shape of A."""
    check_positive(tau_pos=tau_pos, tau_neg=tau_neg)
    check_between(1e-6, 1e9, "beyond, float32 shows only the gate's limit", tau_pos=tau_pos, tau_neg=tau_neg)
    return torch.full_like(promote(advantages), tau_neg).masked_fill(advantages > 0, tau_pos)


def log_sigmoid(log_x: Tensor, advantages: Tensor, tau_pos: float, tau_neg: float) -> Tensor:
    """log f = log((4/τ) σ(τ(x − 1))); f(1) = 2/τ and (log f)'(1) = τ/2, whose product is the weight on-policy, 1."""
    tau = temperature(advantages, tau_pos, tau_neg)
    # log σ(u) = −softplus(−u); torch's own logsigmoid is 50 times slower on small CPU tensors
    return (4 / tau).log() - softplus(-tau * log_x.expm1(), threshold=40)


def sigmoid(log_x: Tensor, advantages: Tensor, tau_pos: float, tau_neg: float) -> Tensor:
    """f = (4/τ) σ(τ(x − 1)), SAPO's gate (arXiv 2511.20347) and Scopic's (2205.10047); f'(x) = sech²(τ(x − 1)/2).

    Taken as exp(log f): the derivative is then 4 σ(u) σ(−u), while 4 σ(u)(1 − σ(u)) vanishes in float32 from u = 17 on.
    """
    return log_sigmoid(log_x, advantages, tau_pos, tau_neg).exp()


def log_arctan(log_x: Tensor, advantages: Tensor, tau_pos: float, tau_neg: float) -> Tensor:
    """log f = arctan(τ(x − 1))/τ, SSPO's gate (arXiv 2602.19327 v3, eq. 14); (log f)'(x) = 1/(1 + τ²(x − 1)²).

    log f lies in [−arctan(τ)/τ, π/(2τ)), whatever the ratio.
    """
    tau = temperature(advantages, tau_pos, tau_neg)
    return (tau * log_x.expm1()).arctan() / tau


def log_arctan_log_ratio(log_x: Tensor, advantages: Tensor, tau_pos: float, tau_neg: float) -> Tensor:
    """log f = arctan(τ log x)/τ, another reading of "arctan gate"; ∂log f/∂log x = 1/(1 + τ² log² x), even in log x."""
    tau = temperature(advantages, tau_pos, tau_neg)
    return (tau * log_x).arctan() / tau


def directional_sigmoid(log_x: Tensor, advantages: Tensor, tau_pos: float, tau_neg: float) -> Tensor:
    """f = x until the token has moved the way A wants, then ``sigmoid`` shifted to f(1) = 1: the clip's side, softly.

    Its slope in x is 1 on the way back and sech²(τ(x − 1)/2) beyond, continuous at 1.
    """
    half = temperature(advantages, tau_pos, tau_neg) / 2
    shifted = 1 + (half * log_x.expm1()).tanh() / half  # sigmoid − 2/τ would cancel for small τ
    beyond = with_value(shifted, sigmoid(log_x, advantages, tau_pos, tau_neg))
    return torch.where(extending(log_x, advantages), beyond, log_x.exp())


def gaussian(log_x: Tensor, advantages: Tensor, tau_pos: float, tau_neg: float, kappa: float) -> Tensor:
    """f = 1 + ½√(π/(κτ²)) erf(√κ τ(x − 1)), whose slope f'(x) = exp(−κτ²(x − 1)²) is a Gaussian.

    κ chooses what is shared with ``sigmoid`` of the same τ: ¼ the curvature of f' at 1, ln 2/1.76275² = 0.223072 the
    half width at half maximum of f'. No κ shares both.
    """
    check_positive(kappa=kappa)
    scale = math.sqrt(kappa) * temperature(advantages, tau_pos, tau_neg)
    return 1 + math.sqrt(math.pi) / 2 * (scale * log_x.expm1()).erf() / scale


def cauchy(log_x: Tensor, advantages: Tensor, tau_pos: float, tau_neg: float, kappa: float) -> Tensor:
    """f = 1 + arctan(√κ τ(x − 1))/(√κ τ), whose slope f'(x) = 1/(1 + κτ²(x − 1)²) is a Cauchy curve.

    κ as in ``gaussian``: ¼ shares the curvature of f' with ``sigmoid``, 1/1.76275² = 0.321825 the half width.
    """
    check_positive(kappa=kappa)
    scale = math.sqrt(kappa) * temperature(advantages, tau_pos, tau_neg)
    return 1 + (scale * log_x.expm1()).arctan() / scale


def erf(log_x: Tensor, advantages: Tensor, tau_pos: float, tau_neg: float) -> Tensor:
    """f = 1 + √(π/(2τ²)) erf(τ(x − 1)/√2), ``gaussian`` with κ = ½ (arXiv 2602.19345); f'(x) = exp(−τ²(x − 1)²/2)."""
    return gaussian(log_x, advantages, tau_pos, tau_neg, 0.5)


def arctan(log_x: Tensor, advantages: Tensor, tau_pos: float, tau_neg: float) -> Tensor:
    """f = 1 + arctan(τ(x − 1))/τ, ``cauchy`` with κ = 1 (arXiv 2602.19345); f'(x) = 1/(1 + τ²(x − 1)²)."""
    return cauchy(log_x, advantages, tau_pos, tau_neg, 1.0)


def softsign(log_x: Tensor, advantages: Tensor, tau_pos: float, tau_neg: float) -> Tensor:
    """f = 1 + (x − 1)/√(1 + τ²(x − 1)²) (arXiv 2602.19345); f'(x) = (1 + τ²(x − 1)²)^(−3/2)."""
    tau = temperature(advantages, tau_pos, tau_neg)
    # u/√(1 + u²) = tanh(arsinh u), whose slope, unlike the quotient's, never falls below 0 by rounding
    return 1 + (tau * log_x.expm1()).asinh().tanh() / tau


def smoothed(log_x: Tensor, advantages: Tensor, alpha: float) -> Tensor:
    """f = (1 − α) x + α, the ratio of (1 − α) π_θ + α π_old to π_old (arXiv 2509.21282); weight 1 − α on-policy."""
    check_between(0, 1, "it is the share of π_old in the smoothed policy, 0.1 in the paper", alpha=alpha)
    return (1 - alpha) * log_x.exp() + alpha
