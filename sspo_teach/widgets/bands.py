"""Bands that adapt: calibrated on recent scores, or as wide as the token's probability allows."""

from __future__ import annotations

import ipywidgets
from matplotlib.figure import Figure

from sspo_teach.exact import coverage
from sspo_teach.plotting import bands
from sspo_teach.widgets.panel import Panel, panel

SIZE = (9, 5)


def draw_conformal(figure: Figure, *, alpha: float = 0.1, window: int = 512, growth: float = 3.0) -> None:
    """Simulate drifting scores and draw them under CSPO's band, in our reconstruction of it."""
    seen = coverage.drifting(alpha, window=window, growth=growth)
    missed = seen.missed(seen.calibrated), seen.missed(seen.fixed)
    bands.conformal_band(figure, seen.scores, seen.calibrated, seen.fixed, missed, seen.judged, alpha=alpha)


def conformal_panel() -> Panel:
    """The conformal band: how many may leave, how many scores are remembered, how fast the spread grows."""
    controls = {
        "alpha": ipywidgets.SelectionSlider(options=[0.05, 0.1, 0.2, 0.4], value=0.1, description="α"),
        "window": ipywidgets.SelectionSlider(options=[64, 128, 256, 512, 1024], value=512, description="window"),
        "growth": ipywidgets.FloatSlider(3.0, min=0.5, max=8.0, step=0.5, description="spread ×"),
    }
    return panel(draw_conformal, controls, size=SIZE)


def room_panel() -> Panel:
    """BandPO's room by probability over δ, against a fixed clip over ε."""
    controls = {
        "delta": ipywidgets.FloatLogSlider(0.05, base=10, min=-3, max=-0.3, step=0.05, description="δ"),
        "eps": ipywidgets.FloatSlider(0.2, min=0.05, max=0.9, step=0.05, description="ε"),
    }
    return panel(bands.room_by_probability, controls, size=(8.6, 4.4))
