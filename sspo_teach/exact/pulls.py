"""What a method multiplies ∇log π of a token with, over the token's ratio: read off its credit."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import numpy as np
import torch

from sspo_teach.catalog import METHODS, method
from sspo_teach.credit import credit

BY_PROBABILITY = ("bandpo_kl", "bandpo_tv", "bandpo_chi2", "dppo_tv", "dppo_kl", "maspo")
"""They ask for a token's old probability, too: no one curve over the ratio shows them."""
SINGLE = tuple(
    name for name, m in METHODS.items() if not m.needs and m.separable and not m.critic and name not in BY_PROBABILITY
)
"""Methods whose credit of a response depends on its ratios alone."""

ON_RATIO = 0.2
"""The half width that every band on a token's own ratio has by default."""


def pulls(
    name: str, log_r: np.ndarray, *, sign: float = 1.0, length: int = 8, **numbers: float
) -> dict[str, np.ndarray]:
    """Four curves of a method over log-ratios.

    Args:
        name: one of ``SINGLE``, or a preset of one.
        log_r: (n,) increasing, with 0 between its ends.
        sign: of the advantage.
        length: L of the response in "sequence".
        numbers: of the objective; those that it does not have are left out.

    Returns:
        "token": ρf', the weight of ∇log π of a response of one token, (n,); "slope": f', which is that over ρ;
        "f": their integral, with f(1) = 1, so that gates compare whose printed values differ by a constant;
        "sequence": the weight of a token in a response whose L − 1 others stand at ρ = 1.

    Raises:
        ValueError: the method's credit depends on more than the ratios of a response.
    """
    if name.partition(":")[0] not in SINGLE:
        raise ValueError(f"name={name!r}: its credit depends on more than a response's ratios; take one of SINGLE")
    own = method(name)
    own = own.with_numbers(**{key: value for key, value in numbers.items() if key in own.numbers})
    one = np.append(log_r, 0.0)

    def weights(width: int) -> np.ndarray:
        logp = torch.zeros(len(one), width, dtype=torch.float64)
        logp[:, 0] = torch.from_numpy(one)
        A = torch.full((len(one), 1), float(sign), dtype=torch.float64)
        found = credit(own.objective, logp, torch.zeros_like(logp), A, torch.ones_like(logp, dtype=torch.bool))
        return found[:, 0].numpy() * sign * len(one)

    token, among = weights(1), weights(length)
    steps = np.concatenate(
        [[0.0], np.cumsum((token[1:-1] + token[:-2]) / 2 * np.diff(log_r))]
    )  # ∫ f' dρ = ∫ ρf' dlog ρ
    return {
        "f": 1 + steps - np.interp(0.0, log_r, steps),
        "slope": token[:-1] / np.exp(log_r),
        "token": token[:-1],
        "sequence": among[:-1] / among[-1] * token[-1],
    }


def numbers_of(name: str, *, tau_pos: float, tau_neg: float, eps: float) -> Mapping[str, float]:
    """The numbers of a method that temperatures and one half width ``eps`` of the band on a token's ratio stand for.

    Bands in other units, such as GMPO's 0.4 in log ρ or GSPO's 3·10⁻⁴ on a geometric mean, stay the method's own.
    """
    known = inspect.signature(METHODS[name].objective).parameters
    values = {"tau_pos": tau_pos, "tau_neg": tau_neg, "tau": tau_pos, "eps_low": eps, "eps_high": eps, "eps": eps}
    other_units = "eps_low" in known and known["eps_low"].default != ON_RATIO
    return {key: value for key, value in values.items() if key in known and not (other_units and key.startswith("eps"))}
