"""Ties to a reference policy, per token; (B, T).

With u = log π_θ − log π_ref on tokens sampled from π_θ:

====  ============  ===================  ============================================================================
name  value         gradient by log π_θ  in expectation
====  ============  ===================  ============================================================================
k1    u             1                    value KL(π_θ‖π_ref), single samples may be negative; gradient 0, so no loss
k2    u²/2          u                    value biased; gradient of KL(π_θ‖π_ref)
k3    e⁻ᵘ + u − 1   1 − e⁻ᵘ              value KL(π_θ‖π_ref), never negative; gradient of KL(π_ref‖π_θ), the *other* one
====  ============  ===================  ============================================================================

The gradients hold for a single token, or with u summed over the response; summed token by token they drop the terms of
the prefix. k1 belongs in the reward (RLOO, PPO), k2 and k3 in the loss (GRPO: k3). The names are those of J. Schulman's
note on approximating KL. Like every log-ratio here, u is limited to ±20 with zero gradient outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from sspo_teach.objectives.normalize import Normalizer, response_mean
from sspo_teach.tensors import check_between, log_ratio, unknown


def k1(logp: Tensor, logp_ref: Tensor, mask: Tensor) -> Tensor:
    """u = log π_θ − log π_ref."""
    return log_ratio(logp, logp_ref, mask)


def k2(logp: Tensor, logp_ref: Tensor, mask: Tensor) -> Tensor:
    """u²/2."""
    return log_ratio(logp, logp_ref, mask).square() / 2


def k3(logp: Tensor, logp_ref: Tensor, mask: Tensor) -> Tensor:
    """e⁻ᵘ + u − 1."""
    u = log_ratio(logp, logp_ref, mask)
    return (-u).expm1() + u


def ratio_k3(logp: Tensor, logp_old: Tensor, logp_ref: Tensor, mask: Tensor) -> Tensor:
    """ρ (e⁻ᵘ + u − 1) on tokens sampled from π_old: its value is KL(π_θ‖π_ref) and its gradient that of the same.

    DeepSeek-V3.2 (arXiv 2512.02556, read in TRL, which does not detach ρ either): ∂/∂log π = ρ u, unbiased however old
    the samples, and on-policy k2's gradient in place of k3's.
    """
    return log_ratio(logp, logp_old, mask).exp() * k3(logp, logp_ref, mask)


def weighted_k3(logp: Tensor, logp_old: Tensor, logp_ref: Tensor, mask: Tensor) -> Tensor:
    """sg[ρ] (e⁻ᵘ + u − 1): the same value, but ∂/∂log π = ρ (1 − e⁻ᵘ), the gradient of KL(π_ref‖π_θ), like k3's."""
    return log_ratio(logp, logp_old, mask).exp().detach() * k3(logp, logp_ref, mask)


ESTIMATORS: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}


def kl_penalty(
    logp: Tensor,
    logp_ref: Tensor,
    mask: Tensor,
    *,
    beta: float,
    estimator: str = "k3",
    normalize: Normalizer = response_mean,
) -> Tensor:
    """β · normalize(KL), to be added to the loss with the objective's own normalizer; a scalar."""
    check_between(0, float("inf"), "it is the price of leaving the reference", beta=beta)
    if estimator not in ESTIMATORS:
        raise ValueError(unknown("KL estimator", estimator, ESTIMATORS))
    return beta * normalize(ESTIMATORS[estimator](logp, logp_ref, mask), mask)
