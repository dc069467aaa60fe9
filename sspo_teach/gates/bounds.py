"""Where a hard gate shuts: pairs (lower, upper) on the log-ratio, as floats or as (B, T) tensors."""

from __future__ import annotations

import math

from sspo_teach.tensors import check_between


def constant(eps_low: float, eps_high: float) -> tuple[float, float]:
    """The band 1 − ε_low ≤ ρ ≤ 1 + ε_high in log space: (log(1 − ε_low), log(1 + ε_high)).

    ``eps_low=1`` leaves the ratio free below, ``eps_high=math.inf`` leaves it free above.
    """
    check_between(0, 1, "the lower edge of the band is 1 − eps_low, a ratio", eps_low=eps_low)
    check_between(0, math.inf, "the upper edge of the band is 1 + eps_high", eps_high=eps_high)
    return (-math.inf if eps_low == 1 else math.log1p(-eps_low)), math.log1p(eps_high)
