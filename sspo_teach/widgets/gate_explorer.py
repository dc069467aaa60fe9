"""The gate explorer: any set of methods, their temperatures and band, and what they do to one token's pull."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import ipywidgets
import numpy as np
from matplotlib.figure import Figure

from sspo_teach.exact.pulls import SINGLE, numbers_of, pulls
from sspo_teach.plotting.gates import LOG_RATIO, gate_curves
from sspo_teach.widgets.panel import Panel, panel

START = ("grpo", "sapo", "sspo")
SIZE = (10, 6.2)


def draw(
    figure: Figure,
    *,
    methods: Sequence[str] = START,
    sign: str = "A > 0",
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
    eps: float = 0.2,
    marker: float = 2.0,
    length: int = 8,
    ratios: np.ndarray | None = None,
) -> None:
    """The curves of ``methods`` at these numbers.

    Args:
        figure: empty, or drawn by this function.
        methods: names in ``SINGLE``.
        sign: "A > 0" or "A < 0".
        tau_pos: temperature where A > 0, for all that have one.
        tau_neg: temperature where A < 0.
        eps: half width of the band on a token's ratio, for all that have one; bands in other units stay as they are.
        marker: ratio of the token that the legend reads.
        length: L of the response in the last panel.
        ratios: (m,) log-ratios of real tokens.
    """
    side = 1.0 if sign == "A > 0" else -1.0
    curves = {}
    for name in methods:
        numbers = numbers_of(name, tau_pos=tau_pos, tau_neg=tau_neg, eps=eps)
        curves[name] = pulls(name, LOG_RATIO, sign=side, length=length, **numbers)
    gate_curves(figure, curves, marker=float(np.log(marker)), ratios=ratios)


def gate_explorer(ratios: np.ndarray | None = None, methods: Sequence[str] = START) -> Panel:
    """Choose methods, sign, temperatures, band and a token's ratio; see f, f', ρf' and the pull within a response.

    Args:
        ratios: (m,) log-ratios of a minibatch's tokens, drawn as a hill under the curves.
        methods: chosen at first.
    """

    def slider(value: float, low: float, high: float, step: float, label: str) -> ipywidgets.FloatSlider:
        return ipywidgets.FloatSlider(value, min=low, max=high, step=step, description=label)

    controls = {
        "methods": ipywidgets.SelectMultiple(value=tuple(methods), options=SINGLE, rows=4, description="methods"),
        "sign": ipywidgets.ToggleButtons(options=("A > 0", "A < 0")),
        "tau_pos": slider(1.0, 0.1, 12, 0.05, "τ, A > 0"),
        "tau_neg": slider(1.05, 0.1, 12, 0.05, "τ, A < 0"),
        "eps": slider(0.2, 0.01, 0.9, 0.01, "ε"),
        "marker": slider(2.0, 0.15, 7, 0.05, "ratio ρ"),
        "length": ipywidgets.IntSlider(8, min=1, max=64, description="length L"),
    }
    return panel(partial(draw, ratios=ratios), controls, size=SIZE)
