"""Gates that fade: smooth in the ratio, with a temperature τ that may depend on the sign of A (τ_neg where A ≤ 0)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from sspo_teach.tensors import check_between, check_positive, promote


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
