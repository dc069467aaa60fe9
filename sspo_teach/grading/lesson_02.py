"""Clipping: which token falls silent, what the others weigh, and what a bound on the ratio allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sspo_teach import METHODS, credit, gates
from sspo_teach.grading.exercise import Exercise
from sspo_teach.tensors import check_positive

SILENT = {("+", 1.5), ("-", 0.6)}
CORRECTIVE = {("+", 0.6), ("-", 1.5)}
INSIDE = {("+", 1.25), ("-", 0.9)}
BAND = gates.bounds.constant(0.2, 0.2)


def _silent(answer: Any) -> str | None:
    given = {(str(sign), float(ratio)) for sign, ratio in answer}
    if other := given - SILENT - CORRECTIVE - INSIDE:
        return f"{min(other)} is none of the six cases: write pairs such as ('+', 1.5)"
    if given == SILENT | CORRECTIVE:
        return "that is every token outside the band; two of the four are on their way back and keep their gradient"
    if given == CORRECTIVE:
        return "the other side: a token falls silent when it has moved the way A wants, not against it"
    if inside := given & INSIDE:
        return f"{min(inside)} is inside the band 0.8 … 1.28, and there every token has a gradient"
    if back := given & CORRECTIVE:
        right = f"{', '.join(map(str, sorted(given & SILENT)))} right, but " if given & SILENT else ""
        return f"{right}{min(back)} has moved against A and is on its way back: it keeps its gradient"
    if not given:
        return "some are silent: draw A·min and A·max over ρ, and look where the curve is flat"
    if given != SILENT:
        return f"{min(given)} is right, and not the only one: what of the other sign?"
    return None


def _weight(answer: Callable[..., Any]) -> str | None:
    ratio = torch.tensor([0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.29, 4.0], dtype=torch.float64)
    for sign in (1.0, -1.0):
        A = torch.full_like(ratio, sign)
        found = torch.as_tensor(answer(ratio, A, 0.2, 0.28)).double()
        if found.shape != ratio.shape:
            return f"the weight of {len(ratio)} tokens must have shape {tuple(ratio.shape)}, got {tuple(found.shape)}"
        right = _ppo_weight(ratio, A, 0.2, 0.28)
        if torch.allclose(found, right):
            continue
        both = ratio.where((ratio >= 0.8) & (ratio <= 1.28), 0.0)
        if torch.allclose(found, both):
            return "you silence both sides; with A > 0 only ρ > 1 + ε_high is silent, with A < 0 only ρ < 1 − ε_low"
        if torch.allclose(found, (right != 0).double()):
            return "right where it is silent, but the weight elsewhere is ρ: ∂ρ/∂log π = ρ"
        if torch.allclose(found, _ppo_weight(ratio, -A, 0.2, 0.28)):
            return "the signs are swapped: a token with A > 0 is stopped above the band"
        if torch.allclose(found, _ppo_weight(ratio, A, 0.2, 0.2)) or torch.allclose(
            found, _ppo_weight(ratio, A, 0.28, 0.28)
        ):
            return "one ε for both edges: the lower edge is 1 − eps_low, the upper 1 + eps_high"
        if torch.allclose(found, right * sign):
            return "that is the weight of ∇log π with A in it: leave A out, it multiplies later"
        k = int((found - right).abs().argmax())
        why = _why(ratio[k].item(), sign)
        return f"at ρ = {ratio[k]:g}, A = {sign:+g} the weight is {right[k] + 0.0:g}, not {found[k] + 0.0:g}: {why}"
    return None


def _why(ratio: float, sign: float) -> str:
    """Where a token of ``_weight`` stands, for a band 0.8 … 1.28."""
    if 0.8 <= ratio <= 1.28:
        return "it is inside the band, where the weight is ρ"
    if (ratio > 1) == (sign > 0):
        return "it left the band the way A wants, and the objective is flat there"
    return "it is on its way back, and keeps its weight ρ"


def _ppo_weight(ratio: Tensor, A: Tensor, eps_low: float, eps_high: float) -> Tensor:
    column = ratio.log().unsqueeze(1)
    found = credit(
        METHODS["ppo"].objective,
        column,
        torch.zeros_like(column),
        A.unsqueeze(1),
        torch.ones_like(column),
        eps_low=eps_low,
        eps_high=eps_high,
    )
    return found.squeeze(1) * len(ratio) / A


def _shares(answer: Callable[..., Any]) -> str | None:
    generator = torch.Generator().manual_seed(7)
    log_r = 0.3 * torch.randn((6, 9), generator=generator, dtype=torch.float64)
    A = torch.tensor([[1.0], [-1.0], [2.0], [-0.5], [1.0], [-1.0]], dtype=torch.float64)
    mask = torch.arange(9) < torch.tensor([[9], [7], [4], [9], [2], [5]])
    ratio = log_r.exp()
    out = (ratio < 0.8) | (ratio > 1.2)
    silent = gates.extending(log_r, A, *BAND)
    log_r = log_r.where(mask, 3.0)  # what stands in the padding must not count
    outside, removed = (float(x) for x in answer(log_r, A, mask))
    wanted = tuple(where[mask].double().mean().item() for where in (out, silent))
    if abs(outside - wanted[1]) + abs(removed - wanted[0]) < 1e-6:
        return "both right, in the other order: first the share outside the band, then the share without gradient"
    for name, found, where in (("outside", outside, out), ("removed", removed, silent)):
        right = where[mask].double().mean().item()
        if abs(found - right) < 1e-6:
            continue
        if (
            abs(found - (where | ~mask).double().mean().item()) < 1e-6
            or abs(found - where.double().mean().item()) < 1e-6
        ):
            return f"{name}: you count padding; average over the tokens where the mask is 1"
        if name == "removed" and abs(found - out[mask].double().mean().item()) < 1e-6:
            return "removed: that is the share outside the band again; corrective tokens outside keep their gradient"
        if name == "removed" and abs(found - gates.extending(log_r, -A, *BAND)[mask].double().mean().item()) < 1e-6:
            return "outside is right; removed: the signs of A are swapped, that is the share on its way back"
        first = "outside is right; " if name == "removed" else ""
        return f"{first}{name}: the share is {right:.4f} on the check's batch, not {found:.4f}"
    return None


def _rounds(answer: Any) -> str | None:
    narrow, wide = (float(x) for x in answer)
    if (narrow, wide) == (15, 11):
        return None
    if (narrow, wide) == (11, 15):
        return "both right, in the other order: first ε = 0.2, the narrow band, which takes longer"
    if (narrow, wide) == (14, 10):
        return "after so many rollouts the probability is still below 0.3: round up"
    if (round(narrow), round(wide)) == (70, 50):
        return "each rollout multiplies the probability: it gains ε of what it *has*, not ε of the first 0.02"
    if narrow == 15 or wide == 11:
        return (
            f"the {'first' if narrow == 15 else 'second'} is right, the {'second' if narrow == 15 else 'first'} is not"
        )
    return "p (1 + ε)ⁿ ≥ 0.3 from p = 0.02: which whole n, for ε = 0.2 and for ε = 0.28?"


def _cap(answer: Any) -> str | None:
    cap = float(answer)
    if abs(cap - 1.28) < 1e-9:
        return None
    if abs(cap - 0.28) < 1e-9:
        return "with 0.28 every weight is cut to 0.28, on-policy tokens too: the ceiling is absolute here"
    if cap < 1:
        return f"a ceiling of {cap:g} cuts the weight of on-policy tokens, whose ratio is 1"
    check_positive(cap=cap)
    return f"a ceiling of {cap:g} is not the one that 1 + ε_high with ε_high = 0.28 describes"


EXERCISES = {
    "silent": Exercise(
        "a set of pairs (sign of A, ρ) out of ('+', 0.6), ('+', 1.25), ('+', 1.5), ('-', 0.6), ('-', 0.9), ('-', 1.5), "
        "for ε_low = 0.2 and ε_high = 0.28",
        _silent,
        "silent are the two that have moved far the way A wants; the two on their way back still learn.",
        (
            "For A > 0 the objective is A·min(ρ, 1 + ε). Where is it flat?",
            "For A < 0 it is A·max(ρ, 1 − ε): flat below the band, sloped everywhere above.",
        ),
    ),
    "weight": Exercise(
        "a function weight(ratio, advantage, eps_low, eps_high) of (n,) tensors that gives (n,) weights of A ∇log π",
        _weight,
        "ρ inside, ρ on the way back, 0 beyond the edge on the way out.",
        (
            "Two cases, by the sign of the advantage; each has one silent side.",
            "torch.where(advantage > 0, ratio > 1 + eps_high, ratio < 1 - eps_low) is where the weight is 0.",
        ),
    ),
    "shares": Exercise(
        "a function shares(log_r, advantages, mask) that gives (share outside 0.8 … 1.2, share without gradient)",
        _shares,
        "two different numbers: a log that shows only one of them has told you half.",
        (
            "log_r is (B, T), advantages (B, 1), mask (B, T); padding holds rubbish.",
            "The first is ((ρ < .8) | (ρ > 1.2))[mask].float().mean(); the second asks for the sign of A.",
        ),
    ),
    "rounds": Exercise(
        "two whole numbers: rollouts from 0.02 to at least 0.3 at the edge of the band, for ε_high = 0.2 and 0.28",
        _rounds,
        "15 against 11: clip-higher buys rare tokens a quarter of the time.",
        ("Growth by a constant factor.", "n = log(15)/log(1 + ε), rounded up."),
    ),
    "cap": Exercise(
        "the absolute ratio_cap that means what another library writes as 1 + ε_high with ε_high = 0.28",
        _cap,
        "1.28: the same word, epsilon_high, is an increment there and a ceiling here.",
        ("What is the largest weight that the other library lets through?", "1 + 0.28."),
    ),
}
