"""Drag one token of a response away and watch what the others still weigh."""

from __future__ import annotations

from ipywidgets import FloatSlider, IntSlider, SelectMultiple, ToggleButtons

from sspo_teach.plotting import sequences
from sspo_teach.widgets.panel import Panel, panel

METHODS = ("grpo", "gspo", "gmpo", "sspo", "sapo", "fspo", "ctpo")


def outlier_dragger() -> Panel:
    """``plotting.sequences.outlier`` under controls: the outlier's log-ratio and place, the sign of A, the length."""
    controls = {
        "names": SelectMultiple(options=METHODS, value=sequences.POOLS, rows=4, description="methods"),
        "log_ratio": FloatSlider(1.0, min=-2.5, max=2.5, step=0.05, description="log ρ"),
        "place": IntSlider(4, min=1, max=24, description="place"),
        "length": IntSlider(8, min=2, max=24, description="length"),
        "sign": ToggleButtons(options=[("A > 0", 1.0), ("A < 0", -1.0)]),
    }
    return panel(sequences.outlier, controls, size=(9.6, 4))
