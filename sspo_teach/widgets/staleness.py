"""Inner updates and learning rate on sliders: what a run's data are worth by the end of an iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import ipywidgets

from sspo_teach.plotting.dashboard import staleness
from sspo_teach.widgets.panel import Panel, panel

SIZE = (9.6, 5.8)


def staleness_panel(runs: Sequence[Mapping[str, Any]], ends: Sequence[Mapping[str, Any]]) -> Panel:
    """The staleness dashboard of a grid of runs, as ``plotting.dashboard.staleness`` takes it."""
    updates, rates = (sorted({row[name] for row in ends}) for name in ("updates", "lr"))
    controls = {
        "method": ipywidgets.Dropdown(options=list(dict.fromkeys(row["method"] for row in ends)), description="method"),
        "updates": ipywidgets.SelectionSlider(
            options=[(f"{n:g}", n) for n in updates], value=updates[len(updates) // 2], description="updates"
        ),
        "lr": ipywidgets.SelectionSlider(
            options=[(f"{rate:g}", rate) for rate in rates], value=rates[len(rates) // 2], description="rate"
        ),
    }
    return panel(partial(staleness, runs=runs, ends=ends), controls, size=SIZE)
