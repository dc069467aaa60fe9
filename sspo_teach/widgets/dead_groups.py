"""How many groups of a batch can teach nothing: a calculator."""

from __future__ import annotations

from ipywidgets import FloatSlider, IntSlider

from sspo_teach.plotting.gradients import dead_groups
from sspo_teach.widgets.panel import Panel, panel


def dead_groups_calculator() -> Panel:
    """``plotting.gradients.dead_groups`` under controls: success rate, group size, prompts per batch."""
    controls = {
        "rate": FloatSlider(0.18, min=0.01, max=0.99, step=0.01, description="success p"),
        "group": IntSlider(8, min=2, max=64, description="group G"),
        "prompts": IntSlider(128, min=1, max=512, description="prompts"),
    }
    return panel(dead_groups, controls, size=(9.6, 3.8))
