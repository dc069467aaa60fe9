"""When to stop a run that is lost: a rule that stands in its config before it starts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sspo_teach.training.config import Config


def collapsed(history: Sequence[Mapping[str, float]], config: Config) -> dict[str, Any] | None:
    """Whether the run has collapsed at the last row of ``history``, and by what; None while it has not.

    The start of a number is its mean over the first ``collapse_window`` iterations. The run has collapsed when one
    watched number lay below ``collapse_below`` times its start in each of the last ``collapse_window`` iterations. What
    is no number (NaN) lies below. A number that does not start above 0 can never collapse: it has no share to fall to.
    """
    window, share = config.collapse_window, config.collapse_below
    if share == 0 or len(history) < 2 * window:
        return None
    for name in config.collapse_of:
        start = math.fsum(row[name] for row in history[:window]) / window
        last = [row[name] for row in history[-window:]]
        if start > 0 and all(not value >= share * start for value in last):
            return {
                "step": int(history[-1]["step"]),
                "what": name,
                "criterion": f"{name} below {share:g} of its mean over the first {window} iterations, for {window}",
                "start": start,
                "last": last,
            }
    return None
