"""One group of right and wrong responses: drag a wrong one's score and see whom each method pushes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import ipywidgets
import torch
from matplotlib.figure import Figure
from torch import Tensor

from sspo_teach.credit import credit
from sspo_teach.objectives import click, conspo, grpo
from sspo_teach.objectives.advantages import normalized
from sspo_teach.plotting import contrast
from sspo_teach.widgets.panel import Panel, panel

SIZE = (9, 4.8)
RIGHT = (-0.9, -1.1)
WRONG = (-0.7, -1.0, -1.3)


def pushes(
    right: Sequence[float], wrong: Sequence[float], *, tau: float, margin: float, length: int
) -> dict[str, Tensor]:
    """What GRPO (on-policy), Click and ConSPO push each response of a group with, divided by the push to one side.

    Args:
        right, wrong: scores, mean log π per token.
        tau, margin: ConSPO's.
        length: tokens per response; Click sums over them, and has its own margin of 20 nats per response.
    """
    s = torch.tensor([*right, *wrong], dtype=torch.float64)
    logp = s.unsqueeze(1).expand(-1, length).contiguous()
    rewards = torch.tensor([1.0] * len(right) + [0.0] * len(wrong), dtype=torch.float64)
    ids = torch.zeros(len(s), dtype=torch.int64)
    inputs = (logp, logp, normalized(rewards, ids, eps=0), torch.ones_like(logp))
    found = {
        "grpo": credit(grpo, *inputs),
        "click": credit(click, *inputs, group_ids=ids),
        "conspo": credit(conspo, *inputs, group_ids=ids, tau=tau, margin=margin),
    }
    by_response = {name: pull.sum(1) for name, pull in found.items()}
    return {name: pull / pull.clamp(min=0).sum().clamp(min=1e-30) for name, pull in by_response.items()}


def draw_pulls(
    figure: Figure, *, rival: float = WRONG[0], tau: float = 0.5, margin: float = 0.1, length: int = 20
) -> None:
    """The group of the lesson, whose first wrong response has the score ``rival``."""
    wrong = (rival, *WRONG[1:])
    weights = pushes(RIGHT, wrong, tau=tau, margin=margin, length=length)
    first = len(RIGHT)
    title = (
        f"The wrong response at s = {rival:.2f} takes {-100 * weights['conspo'][first]:.0f} % of ConSPO's push down, "
        f"{-100 * weights['grpo'][first]:.0f} % of GRPO's"
    )
    drawn = {name: weight.tolist() for name, weight in weights.items()}
    right = [True] * len(RIGHT) + [False] * len(WRONG)
    contrast.pulls(figure, [*RIGHT, *wrong], right, drawn, title=title)


def pulls_panel() -> Panel:
    """Drag the likeliest wrong response, ConSPO's temperature and margin, and the length that Click sums over."""
    slider = partial(ipywidgets.FloatSlider, step=0.05)
    controls = {
        "rival": slider(WRONG[0], min=-2.5, max=-0.1, description="wrong s"),
        "tau": slider(0.5, min=0.05, max=2.0, description="τ"),
        "margin": slider(0.1, min=0.0, max=1.0, description="margin"),
        "length": ipywidgets.IntSlider(20, min=1, max=60, description="length"),
    }
    return panel(draw_pulls, controls, size=SIZE)
