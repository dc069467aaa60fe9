"""Sequences: pooling in log space, what comes first, and how far one token carries."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sspo_teach import METHODS, credit
from sspo_teach.grading.exercise import Exercise
from sspo_teach.tensors import lengths, masked_mean, masked_sum

RATIOS = torch.tensor([0.8, 1.25, 1.1, 0.9], dtype=torch.float64)


def _batch(long: int = 6) -> tuple[Tensor, Tensor]:
    """Log-ratios (4, T) with rubbish in the padding, and the mask."""
    log_r = 0.4 * torch.randn((4, long), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    mask = torch.arange(long) < torch.tensor([[long], [4], [1], [3]])
    return log_r.where(mask, 9.0), mask


def _geometric(answer: Callable[..., Any]) -> str | None:
    log_r, mask = _batch()
    found = _column(answer(log_r, mask), 4)
    right = masked_mean(log_r, mask).exp()
    if not torch.allclose(found, right):
        if torch.allclose(found, log_r.mean(1, keepdim=True).exp()):
            return "you average over padding too: only the tokens where the mask is 1 count"
        if torch.allclose(found, (masked_sum(log_r, mask) / mask.shape[1]).exp()):
            return "the sum is right, but you divide by T, the width of the batch, and not by the response's length"
        if torch.allclose(found, masked_sum(log_r, mask).exp()):
            return "that is the product: take the root 1/L, in log space a mean"
        if torch.allclose(found, masked_mean(log_r.exp(), mask)):
            return "that is the arithmetic mean of the ratios"
        return f"the first response has the geometric mean {right[0].item():.4f}, not {found[0].item():.4f}"
    if not torch.allclose(_column(answer(log_r.where(mask, math.nan), mask), 4), right):
        return "NaN in the padding spoils it: NaN · 0 is NaN. Take torch.where(mask, log_r, 0), not log_r * mask"
    far, all_of_it = torch.full((1, 900), -1.0), torch.ones(1, 900, dtype=torch.bool)
    if not torch.allclose(_column(answer(far, all_of_it), 1), torch.tensor([[math.exp(-1)]], dtype=torch.float64)):
        return "a response of 900 tokens at ρ = 1/e gives 0: the product underflows before the root; stay in log space"
    return None


def _sspo(answer: Callable[..., Any]) -> str | None:
    log_r, mask = _batch()
    log_r = log_r.where(mask, 0.0)
    tau = 2.0
    found = torch.as_tensor(answer(log_r, mask, tau)).double()
    if found.shape != log_r.shape:
        return f"one weight per token: the shape must be {tuple(log_r.shape)}, got {tuple(found.shape)}"
    found = found.where(mask, 0.0)
    ones = torch.ones_like(log_r[:, :1])
    right = credit(METHODS["sspo"].objective, log_r, torch.zeros_like(log_r), ones, mask, tau_pos=tau, tau_neg=tau) * (
        4 * lengths(mask)
    )
    if torch.allclose(found, right):
        return None
    ratio = log_r.exp()
    slope = 1 / (1 + tau**2 * (ratio - 1).square())
    S = masked_mean((tau * (ratio - 1)).arctan() / tau, mask).exp()
    told = {
        "S, the weight of the whole response, is missing": ratio * slope,
        "the factor ρ is missing: the slope of log f is by ρ, and ∂ρ/∂log π = ρ": S * slope,
        "that is S alone: the token's own factor ρ/(1 + τ²(ρ − 1)²) is missing": S.expand_as(ratio),
    }
    for words, wrong in told.items():
        if torch.allclose(found, wrong.where(mask, 0.0)):
            return words
    pooled = masked_mean(log_r, mask).exp()
    if torch.allclose(found, _pool_first(pooled, tau).expand_as(ratio).where(mask, 0.0)):
        return "you pool first and gate then: SSPO gates each ratio and pools the gated ones"
    return f"the first token weighs {right[0, 0].item():.4f}, not {found[0, 0].item():.4f}"


def _pool_first(s: Tensor, tau: float) -> Tensor:
    return ((tau * (s - 1)).arctan() / tau).exp() * s / (1 + tau**2 * (s - 1).square())


def _outlier(answer: Any) -> str | None:
    found, up, down = float(answer), math.pi / 2, -math.atan(2)
    if abs(found - math.exp((up + down) / 8)) < 1e-3:
        return None
    if math.isinf(found) or found == 0:
        return "log f = arctan(τ(ρ − 1))/τ is bounded: by what, for ρ → ∞ and for ρ → 0?"
    told = {
        1.0: "they do not cancel: log f tends to π/(2τ) for ρ → ∞, but only to −arctan(τ)/τ for ρ → 0",
        math.exp(up / 8): "that is the upper outlier alone: the one at ρ → 0 pulls S down by exp(−arctan(τ)/(τL))",
        math.exp(down / 8): "that is the lower outlier alone: the one at ρ → ∞ lifts S by exp(π/(2τL))",
        math.exp((up + down) / 4): "the gate's 1/τ is missing: log f is arctan(τ(ρ − 1)) divided by τ = 2",
        math.exp((up + down) / 2): "the exponent is a mean over the response: divide by L = 4",
        (2 + math.exp(up / 2) + math.exp(down / 2)) / 4: "the mean is taken of log f, not of f",
    }
    near = [words for value, words in told.items() if abs(found - value) < 1e-3]
    return near[0] if near else "S = exp(1/L Σ log f): two tokens give log f = 0; what do the other two give at most?"


def _band(answer: Any) -> str | None:
    found = float(answer)
    if abs(found - 0.6) < 1e-6:
        return None
    if abs(found - 12) < 1e-6:
        return "c·L grows with the length like a drift; a sum of independent terms spreads like √L"
    if abs(found - 0.0015) < 1e-9:
        return "c/√L is the same band on the *mean*; asked is the one on the sum"
    if abs(found - 0.03) < 1e-9:
        return "that is the band of a single token"
    return "the half-width is c √L"


def _prefix(answer: Any) -> str | None:
    found = torch.as_tensor(answer).double().flatten()
    if found.shape != (4,):
        return f"four numbers, one per token, got {found.numel()}"
    right = RATIOS.cumprod(0)
    if torch.allclose(found, right, atol=2e-3):
        return None
    if torch.allclose(found, right.flip(0).cumsum(0).flip(0), atol=2e-3):
        return "that is full autodiff: the stop-gradient keeps later prefixes from touching an early token"
    if torch.allclose(found, right[-1].expand(4), atol=2e-3):
        return "that is the product of the whole response for every token; a prefix ends at its token"
    if torch.allclose(found, RATIOS, atol=2e-3):
        return "those are the tokens' own ratios; multiply up to and including the token"
    if torch.allclose(found, right / 4, atol=2e-3):
        return "right but for 1/L: the weight is asked before the mean over the response"
    return "the weight of token t is ρ₁ρ₂…ρₜ"


def _column(x: Any, rows: int) -> Tensor:
    column = torch.as_tensor(x).double()
    if column.shape != (rows, 1):
        raise ValueError(f"one number per response: the shape must be ({rows}, 1), got {tuple(column.shape)}")
    return column


EXERCISES = {
    "geometric": Exercise(
        "a function geometric(log_r, mask) of (B, T) tensors that gives the geometric mean of the ratios, (B, 1)",
        _geometric,
        "exp of a masked mean: no length over- or underflows it.",
        (
            "log of a geometric mean is a mean of logs.",
            "torch.where(mask, log_r, 0).sum(1, keepdim=True) / mask.sum(1, keepdim=True), then exp.",
        ),
    ),
    "sspo": Exercise(
        "a function sspo_weight(log_r, mask, tau) that gives the weight of A/L ∇log π of every token, (B, T)",
        _sspo,
        "S ρ/(1 + τ²(ρ − 1)²): one factor that the response shares, one of the token's own.",
        (
            "Differentiate exp(1/L Σ log f(ρₜ)) by log πₜ: the chain rule gives S · (log f)'(ρ) · ρ.",
            "(log f)'(ρ) = 1/(1 + τ²(ρ − 1)²), and S is exp of the masked mean of arctan(τ(ρ − 1))/τ.",
        ),
    ),
    "outlier": Exercise(
        "one number: what S tends to for L = 4, τ = 2, when one ρ goes to infinity, another to 0, and two stay at 1",
        _outlier,
        "exp((π/2 − arctan 2)/8) ≈ 1.060: two tokens as far off as can be move their response by 6 %.",
        ("How large can arctan(τ(ρ − 1)) be, and how small at ρ = 0?", "exp((π/2 − arctan τ)/(τL))."),
    ),
    "band": Exercise(
        "one number: the half-width of FSPO's band on the sum of log-ratios for L = 400 and c = 0.03",
        _band,
        "0.6 on the sum, 0.0015 on the mean: it is one band in two units.",
        ("How does the spread of a sum of L independent terms grow?", "c √L."),
    ),
    "prefix": Exercise(
        "four numbers: CTPO's weights of A ∇log π (without clip) for the ratios 0.8, 1.25, 1.1, 0.9",
        _prefix,
        "the running product: a token answers for what came before it.",
        ("cᵢₜ is the product of the ratios up to t.", "0.8, 0.8·1.25, …"),
    ),
}
