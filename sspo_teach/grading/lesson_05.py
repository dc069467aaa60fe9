"""Token or sequence: the bound on the gap, and the covariance that no bound on the gate removes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from sspo_teach.grading.exercise import Exercise
from sspo_teach.tensors import lengths, masked_mean, masked_sum


def _bound(answer: Callable[..., Any]) -> str | None:
    log_r = 0.5 * torch.randn((3, 6), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    mask = torch.arange(6) < torch.tensor([[6], [3], [5]])
    log_r = log_r.where(mask, 4.0)
    tau = 3.0
    found = torch.as_tensor(answer(log_r, mask, tau)).double().flatten()
    if found.shape != (3,):
        return f"one bound per response, 3 here, got {found.numel()}"
    square = masked_sum((log_r - masked_mean(log_r, mask)).square(), mask)
    right = (tau**2 / 4 * square / lengths(mask)).squeeze(1)
    sample = (tau**2 / 4 * square / (lengths(mask) - 1)).squeeze(1)
    told = {
        "that is the sample variance: divide by L, not by L − 1": sample,
        "padding is in your variance": tau**2 / 4 * log_r.var(1, correction=0),
        "τ enters squared: two derivatives of g(z) = sech²(τz/2) bring it out twice": right / tau,
        "the bound on |g''| is τ²/2, and Taylor's remainder halves it: τ²/4": 2 * right,
        "that is the bound without τ²/4": 4 * right / tau**2,
        "subtract the mean μ first: the bound is about the spread around it": (
            tau**2 / 4 * masked_mean(log_r.square(), mask)
        ).squeeze(1),
    }
    for words, wrong in told.items():
        if torch.allclose(found, wrong):
            return words
    return None if torch.allclose(found, right) else f"the first response's bound is {right[0]:.4f}, not {found[0]:.4f}"


def _temperature(answer: Any) -> str | None:
    found = float(answer)
    if abs(found - 2) < 1e-6:
        return None
    if abs(found - 4) < 1e-6:
        return "τ²V/4 = 0.01 with V = 0.01 gives τ² = 4"
    if abs(found - math.sqrt(2)) < 1e-3:
        return "the bound is τ²V/4, not τ²V/2"
    return f"at τ = {found:g} the bound is {found**2 * 0.01 / 4:.4f}"


def _covariance(answer: Callable[..., Any]) -> str | None:
    generator = torch.Generator().manual_seed(9)
    g = torch.rand(5, generator=generator, dtype=torch.float64)
    h = torch.randn((5, 3), generator=generator, dtype=torch.float64)
    found = torch.as_tensor(answer(g, h)).double()
    if found.shape != (3,):
        return f"a direction in the scores' space, shape (3,), got {tuple(found.shape)}"
    right = ((g - g.mean()).unsqueeze(1) * h).mean(0)
    told = {
        "that is the token-gated direction; subtract ḡ from the gates first": (g.unsqueeze(1) * h).mean(0),
        "that is ḡ h̄, what is left when the covariance is taken away": g.mean() * h.mean(0),
        "a mean over the tokens is asked, not a sum": 5 * right,
        "divide by L, not by L − 1": 5 / 4 * right,
    }
    for words, wrong in told.items():
        if torch.allclose(found, wrong):
            return words
    return None if torch.allclose(found, right) else "1/L Σ (gₜ − ḡ) hₜ, where hₜ is the score of token t"


def _blind(answer: Any) -> str | None:
    pair = [float(x) for x in answer]
    if len(pair) != 2:
        return f"two log-ratios, got {len(pair)}"
    a, b = pair
    if not (math.isfinite(a) and math.isfinite(b)):
        return "two finite log-ratios"
    if abs(a + b) > 1e-9:
        if a > 0 and b > 0 and abs(math.log(a) + math.log(b)) < 1e-9:
            return "those are ratios whose product is 1: give their logarithms"
        return f"their mean is {(a + b) / 2:g}: the sequence gate moves; it must stay exactly at g(0) = 1"
    g = [1 / math.cosh(x / 2) ** 2 for x in pair]
    if g[0] > 0.9:
        return f"the sequence gate is blind to these, but the token gates are {g[0]:.3f}: they hardly close at all"
    return None


EXERCISES = {
    "bound": Exercise(
        "a function bound(log_r, mask, tau) that gives τ²V/4 of each response, (B,), V the variance over its tokens",
        _bound,
        "two derivatives, one Taylor remainder, one variance.",
        (
            "V = 1/L Σ (zₜ − μ)², over the tokens where the mask is 1.",
            "torch.where(mask, (log_r - mu) ** 2, 0).sum(1) / mask.sum(1) · τ²/4.",
        ),
    ),
    "temperature": Exercise(
        "one number: the largest τ at which the bound on the gap is at most 0.01, for V = 0.01",
        _temperature,
        "2: the sharper the gate, the less a sequence gate can stand for token gates.",
        ("τ²V/4 ≤ 0.01.", "τ² = 4."),
    ),
    "covariance": Exercise(
        "a function covariance(g, h) of gates (L,) and scores (L, D) that gives 1/L Σ (gₜ − ḡ) hₜ, (D,)",
        _covariance,
        "zero if all gates are equal or all scores are: only then is a token gate a sequence gate.",
        ("Centre the gates.", "((g - g.mean())[:, None] * h).mean(0)"),
    ),
    "blind": Exercise(
        "two log-ratios whose sequence gate is exactly open (1) while both token gates are below 0.9 (τ = 1)",
        _blind,
        "a mean of 0 hides any spread: that is what a token gate is for.",
        ("The sequence gate is g(μ). For which μ is it 1?", "(d, −d) with sech²(d/2) < 0.9: d ≥ 0.66."),
    ),
}
