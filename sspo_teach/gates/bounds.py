"""Where a hard gate shuts: pairs (lower, upper) on the log-ratio, as floats or as tensors that broadcast to (B, T).

Constant, by position, by length, by probability, searched on the batch, calibrated. No gradient flows through any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

from sspo_teach.tensors import check_between, check_positive, lengths, masked_sum

Bounds = tuple[Tensor, Tensor]


def constant(eps_low: float, eps_high: float) -> tuple[float, float]:
    """The band 1 − ε_low ≤ ρ ≤ 1 + ε_high in log space: (log(1 − ε_low), log(1 + ε_high)).

    ``eps_low=1`` leaves the ratio free below, ``eps_high=math.inf`` leaves it free above.
    """
    check_between(0, 1, "the lower edge of the band is 1 − eps_low, a ratio", eps_low=eps_low)
    check_between(0, math.inf, "the upper edge of the band is 1 + eps_high", eps_high=eps_high)
    return (-math.inf if eps_low == 1 else math.log1p(-eps_low)), math.log1p(eps_high)


def by_position(mask: Tensor, eps_low: float, eps_high: float, power: float) -> Bounds:
    """(−ε_low tᵖ, ε_high tᵖ), t = 1, 2, … counting response tokens: the spread of a running sum grows like √t.

    CTPO's (arXiv 2605.07331); p = −½ suits a running mean.
    """
    check_between(0, math.inf, "it is a half-width in log space at t = 1", eps_low=eps_low, eps_high=eps_high)
    check_between(-1, 1, "0.5 is the spread of a running sum, −0.5 of a running mean", power=power)
    width = mask.cumsum(dim=1).clamp(min=1).double() ** power
    return -eps_low * width, eps_high * width


def by_length(mask: Tensor, c_low: float, c_high: float) -> Bounds:
    """(−c_low √L, c_high √L): a sum of L log-ratios leaves it equally often whatever L. FSPO's (arXiv 2509.09177)."""
    check_between(0, math.inf, "it is a half-width in log space at L = 1", c_low=c_low, c_high=c_high)
    width = lengths(mask).clamp(min=1).double().sqrt()
    return -c_low * width, c_high * width


def by_kl(logp_old: Tensor, mask: Tensor, delta: float) -> Bounds:
    """The two ratios r at which KL((p, 1 − p) ‖ (rp, 1 − rp)) = δ, p the old probability of the token.

    BandPO's (arXiv 2603.04918). No closed form: bisection on the log-odds, the scale on which neither p → 0 nor p → 1
    is special. Towards p = 0, p·u → 1 − e^(−δ); towards p = 1, u → 1 and l → e^(−δ). Below e^(−64) l is not followed.
    """
    p, log_p, log_1mp = _probabilities(logp_old, mask, delta)
    odds, rest = log_p - log_1mp, log_1mp.exp()

    def edge(sign: int) -> Tensor:
        near, far = torch.zeros_like(p), (-sign * odds).clamp(min=0) + 64
        for _ in range(50):
            middle = (near + far) / 2
            new = odds + sign * middle
            log_q = -softplus(-new, threshold=500)  # and log(1 − q) = log q − new
            inside = p * (log_p - log_q) + rest * (log_1mp - log_q + new) <= delta
            near, far = middle.where(inside, near), far.where(inside, middle)
        return -softplus(-odds - sign * near, threshold=500) - log_p

    with torch.no_grad():
        return edge(-1).clamp(max=0), edge(1).clamp(min=0)


def by_tv(logp_old: Tensor, mask: Tensor, delta: float) -> Bounds:
    """log(1 ± δ/p) cut to [0, 1/p]: the total variation p|r − 1| is δ (BandPO, arXiv 2603.04918)."""
    _, log_p, _ = _probabilities(logp_old, mask, delta)
    return _symmetric(math.log(delta) - log_p, log_p)


def by_chi2(logp_old: Tensor, mask: Tensor, delta: float) -> Bounds:
    """log(1 ± √(δ(1 − p)/p)) cut to [0, 1/p]: the χ² distance p/(1 − p)·(r − 1)² is δ (BandPO, arXiv 2603.04918)."""
    _, log_p, log_1mp = _probabilities(logp_old, mask, delta)
    return _symmetric((math.log(delta) + log_1mp - log_p) / 2, log_p)


def _probabilities(logp_old: Tensor, mask: Tensor, delta: float) -> tuple[Tensor, Tensor, Tensor]:
    """p, log p and log(1 − p) in float64; a p that was rounded to 1 is taken as 1 − 1e-30, padding as ½."""
    check_positive(delta=delta)
    log_p = logp_old.detach().double().clamp(max=-1e-30).where(mask.bool(), -math.log(2))
    return log_p.exp(), log_p, (-log_p.expm1()).log()


def _symmetric(log_half: Tensor, log_p: Tensor) -> Bounds:
    """log(1 ± half), between log 0 and log 1/p."""
    upper = torch.logaddexp(log_half, torch.zeros_like(log_half)).minimum(-log_p)
    return (-log_half.exp().clamp(max=1)).log1p(), upper


def widening(
    low_min: float, low_max: float, low_step: float, high_min: float, high_max: float, high_step: float
) -> list[tuple[float, float]]:
    """The pairs of ratios that BAPO's search tries in turn: the upper bound rises to its end, then the lower one.

    With its paper's numbers 1 + 36 + 15 pairs (arXiv 2510.18927), from (0.6, 1.2) to (0.9, 3.0).
    """
    check_between(0, 1, "the band must hold the ratio 1", low_min=low_min)
    check_between(low_min, 1, "the band must hold the ratio 1, and low_min comes first", low_max=low_max)
    check_between(1, 1e6, "the band must hold the ratio 1", high_min=high_min)
    check_between(high_min, 1e6, "high_min comes first, and every step is tried", high_max=high_max)
    check_between(1e-4, math.inf, "every step costs a look at the batch", low_step=low_step, high_step=high_step)

    def rising(first: float, last: float, step: float) -> list[float]:
        return [first + k * step for k in range(math.floor((last - first) / step + 1e-9) + 1)]

    lows, highs = rising(low_min, low_max, low_step), rising(high_min, high_max, high_step)
    return [(low_min, high) for high in highs] + [(low, highs[-1]) for low in lows[1:]]


def balanced(
    pairs: Iterable[tuple[float, float]],
    mass: Callable[[Tensor, Tensor, float, float], Tensor],
    log_r: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    share: float,
) -> tuple[float, float]:
    """The first of ``pairs`` at which tokens with A > 0 hold ``share`` of the mass, else the last one; in log space.

    ``mass`` (``active_mass`` or ``printed_mass``) says what a token counts, and π_old weighs it (arXiv 2510.18927).
    """
    check_between(0, 1, "it is the part of all contributions that positive tokens must hold", share=share)
    ratio, advantages = log_r.detach().exp(), advantages.expand_as(mask)
    weight = logp_old.detach().to(ratio.dtype).exp() * advantages.abs()
    for low, high in pairs:
        held = weight * mass(ratio, advantages, low, high)
        total = masked_sum(held, mask).sum()
        positive = masked_sum(held.where(advantages > 0, 0.0), mask).sum()
        if total > 0 and positive >= share * total:
            break
    return (math.log(low) if low else -math.inf), math.log(high)


def active_mass(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """ρ where the token has a gradient, 0 where it is clipped.

    A higher ``high`` admits positive tokens and a higher ``low`` drops negative ones: both raise the share.
    """
    return ratio.where(torch.where(advantages > 0, ratio <= high, ratio >= low), 0.0)


def printed_mass(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """The clipped ratio, gradient or not, as BAPO prints it: a higher ``low`` adds to the negatives' side."""
    return torch.where(advantages > 0, ratio.clamp(max=high), ratio.clamp(min=low))


def ranks(n: int, alpha: float) -> tuple[int, int]:
    """(⌊(n + 1)α/2⌋, ⌈(n + 1)(1 − α/2)⌉): which order statistics of n scores, from 1, a fresh one misses at ≤ α.

    0 and n + 1 stand for −∞ and ∞. A fresh score exchangeable with the n and without ties leaves the band with
    probability (k_lo + n + 1 − k_hi)/(n + 1) exactly.
    """
    check_between(0, 1, "it is the share of scores that may fall outside the band", alpha=alpha)
    return math.floor((n + 1) * alpha / 2 + 1e-9), math.ceil((n + 1) * (1 - alpha / 2) - 1e-9)


def calibrated(scores: Sequence[float], alpha: float) -> tuple[float, float]:
    """The order statistics of ``scores`` that split-conformal prediction takes as a band of miscoverage ``alpha``.

    No interpolation, so that it commutes with exp. The band is then made to hold 0: one that drifted off would silence
    one sign on-policy.
    """
    ordered = [-math.inf, *sorted(scores), math.inf]
    k_lo, k_hi = ranks(len(scores), alpha)
    return min(ordered[k_lo], 0.0), max(ordered[k_hi], 0.0)
