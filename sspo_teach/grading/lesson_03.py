"""Soft gates: where the pull peaks, how it fades, which temperature does what, and a gate of one's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sspo_teach.checks import check_gate
from sspo_teach.grading.exercise import Exercise

FADING = ("erf", "sigmoid", "softsign", "arctan")
"""From a Gaussian over an exponential and ρ⁻² to ρ⁻¹."""


def _peak(answer: Any) -> str | None:
    ratio, height = (float(x) for x in answer)
    right = math.sqrt(1 + 1 / 4), (1 + math.sqrt(1 + 1 / 4)) / 2
    if abs(ratio - right[0]) < 2e-3 and abs(height - right[1]) < 2e-3:
        return None
    if abs(ratio - 1) < 1e-3:
        return "at ρ = 1 the slope 1/(1 + τ²(ρ − 1)²) peaks; the pull has a ρ in front, and still rises there"
    if abs(ratio - math.sqrt(2)) < 2e-3:
        return "that is the peak for τ = 1; here τ = 2"
    if abs(ratio - 1.38) < 0.02:
        return "that is where SAPO's pull peaks at τ = 2; here it is SSPO's"
    if abs(ratio - right[0]) < 2e-3:
        return f"the place is right, the height is not: put ρ = {ratio:.4f} into ρ/(1 + 4(ρ − 1)²)"
    return "set the derivative of ρ/(1 + 4(ρ − 1)²) to zero: 1 + 4(ρ − 1)² = 8ρ(ρ − 1)"


def _fading(answer: Any) -> str | None:
    given = tuple(str(name) for name in answer)
    if sorted(given) != sorted(FADING):
        return f"name each of {', '.join(sorted(FADING))} once"
    if given == FADING:
        return None
    if given == FADING[::-1]:
        return "the other way round: the fastest first"
    if given.index("arctan") < given.index("softsign"):
        return "the slopes of arctan and softsign fall like ρ⁻² and ρ⁻³: which pull, times ρ, is smaller far out?"
    return "an exponential beats every power, and a Gaussian beats an exponential"


def _temperature(answer: Any) -> str | None:
    tau = float(answer)
    if abs(tau - math.sqrt(3)) < 5e-3:
        return None
    if abs(tau - 3) < 5e-3:
        return "that is τ²"
    if abs(tau - 1) < 5e-3:
        return "at τ = 1 the slope at ρ = 2 is a half; the pull is ρ times that, 1"
    pull = 2 / (1 + tau**2)
    return f"at τ = {tau:g} the pull at ρ = 2 is {pull:.3g}: solve 2/(1 + τ²) = 1/2"


def _gate(answer: Callable[[Tensor, Tensor], Tensor]) -> str | None:
    if not isinstance(found := answer(torch.zeros(1, 2), torch.ones(1, 1)), Tensor):
        raise TypeError(f"a gate gives a tensor, got {found!r}")
    report = check_gate(answer)
    if not report:
        return str(report.failures[0])
    ratio = torch.tensor([[0.25, 0.8, 1.0, 1.25, 2.0, 4.0, 8.0]], dtype=torch.float64)
    for A in (1.0, -1.0):
        leaf = ratio.log().requires_grad_()
        (pull,) = torch.autograd.grad(answer(leaf, torch.tensor([[A]], dtype=torch.float64)).sum(), leaf)
        slope = (pull / ratio).squeeze(0)
        if slope.max() > 1 + 1e-6:
            at = ratio[0, int(slope.argmax())]
            return f"for A = {A:+g} the slope at ρ = {at:g} is {slope.max():.3g}: nowhere above the 1 it has at ρ = 1"
        if slope[-2] > 0.25 or slope[-1] > slope[-2]:
            return f"for A = {A:+g} the slope at ρ = 4 is still {slope[-2]:.3g}: it should fade to a quarter there"
        if slope[-2] <= 0:
            return f"for A = {A:+g} a token at ρ = 4 is silent: it should fade, not fall silent"
    return None


EXERCISES = {
    "peak": Exercise(
        ask="a pair: the ratio where the pull ρ/(1 + τ²(ρ − 1)²) of SSPO's gate is largest at τ = 2, and that pull",
        judge=_peak,
        praise="The pull peaks at √(1 + τ⁻²), beyond 1: the gate is gentle with what has moved a little.",
        hints=(
            "The pull is ρ times the slope. Where is its derivative zero?",
            "(1 + τ²(ρ − 1)²) − ρ·2τ²(ρ − 1) = 0, which is τ²ρ² = 1 + τ².",
        ),
    ),
    "fading": Exercise(
        ask='the names "arctan", "erf", "sigmoid", "softsign", from the gate whose pull fades fastest to the slowest',
        judge=_fading,
        praise="Gaussian, exponential, ρ⁻², ρ⁻¹: with arctan, SSPO's choice, a token at ρ = 100 still says something.",
        hints=(
            "Look at the slopes for large ρ; the pull is ρ times that.",
            "exp(−τ²ρ²/2), 4 exp(−τρ), (τρ)⁻³ and (τρ)⁻².",
        ),
    ),
    "temperature": Exercise(
        ask="the temperature τ at which SSPO's gate pulls a token at ρ = 2 with weight ½ (the token factor, without S)",
        judge=_temperature,
        praise="√3: so τ = 1 leaves such a token its full weight, and τ = 10 leaves it 2 %.",
        hints=("The token factor is ρ/(1 + τ²(ρ − 1)²).", "At ρ = 2 it is 2/(1 + τ²)."),
    ),
    "gate": Exercise(
        ask="a function (log_x, advantages) → f that keeps the laws of check_gate, whose slope in x is at most 1, and "
        "at x = 4 at most a quarter but not 0, for either sign of A",
        judge=_gate,
        praise="A gate of your own, and the laws hold. One line in METHODS makes a method of it.",
        hints=(
            "Take any bump with height 1 at x = 1 as the slope, and integrate it.",
            "1 + tanh(x − 1) has the slope sech²(x − 1); x is log_x.exp(), and log_x.expm1() is x − 1.",
        ),
    ),
}
