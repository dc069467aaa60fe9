"""The bug museum: its figures show what objectives do, and its guide names the laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from sspo_teach import METHODS, check_objective
from sspo_teach.objectives.normalize import response_mean
from sspo_teach.plotting import museum
from sspo_teach.tensors import checked, log_ratio
from sspo_teach.widgets.museum import guide
from sspo_teach.widgets.panel import still

GRPO = METHODS["grpo"].objective


@checked
def two_sided(logp, logp_old, advantages, mask):
    return -response_mean(log_ratio(logp, logp_old, mask).exp().clamp(0.8, 1.2) * advantages, mask)


def test_weights_are_credit_per_advantage():
    z = torch.tensor([0.5, 1.0, 1.15, 1.5, 3.0], dtype=torch.float64).log()
    assert museum.weights(GRPO, z, 1.0).tolist() == pytest.approx([0.5, 1.0, 1.15, 0.0, 0.0])
    assert museum.weights(GRPO, z, -1.0).tolist() == pytest.approx([0.0, -1.0, -1.15, -1.5, -3.0])
    assert museum.weights(two_sided, z, 1.0).tolist() == pytest.approx([0.0, 1.0, 1.15, 0.0, 0.0])


def test_curves_are_updated_in_place():
    figure = museum.weight_curves({"broken": two_sided, "right": GRPO}, title="one", mark=2.0)
    before = [line for axes in figure.axes for line in axes.get_lines()]
    museum.weight_curves({"broken": GRPO, "right": two_sided}, title="two", figure=figure, mark=0.5)
    assert [line for axes in figure.axes for line in axes.get_lines()] == before
    assert figure.get_suptitle() == "two"
    good = {str(line.get_gid()): line for line in figure.axes[0].get_lines()}
    x, y = good["broken"].get_data()
    assert y == pytest.approx(np.where(x > 1.2, 0.0, x))
    assert good["broken"].get_label() == "broken: +0.50"
    assert good["right"].get_label() == "right: +0.00"
    assert good["mark"].get_xdata()[0] == 0.5


def test_tables_show_each_number_once_and_leave_padding_empty():
    mask = torch.tensor([[1, 0], [1, 1]])
    table = torch.tensor([[0.5, 7.0], [math.nan, -0.0]])
    figure = museum.credit_tables({"a": table, "b": -table}, mask, title="what")
    shown = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert shown == [["+0.50", "nan", "0"], ["-0.50", "nan", "0"]]


def test_law_table_crosses_what_is_broken():
    reports = {"two": check_objective(two_sided), "none": check_objective(GRPO)}
    assert reports["two"].broken == ("way back",)
    axes = museum.law_table(reports).axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["way back"]
    assert axes.collections[0].get_offsets().tolist() == [[0.0, 0.0]]


def test_bars_carry_their_numbers():
    axes = museum.bars(["x", "y"], {"broken": [0.5, 0.25], "right": [1.0, 0.0]}, title="t", ylabel="p").axes[0]
    assert [text.get_text() for text in axes.texts] == ["0.50", "0.25", "1.00", "0.00"]


def test_the_guide_names_the_laws_and_refuses_what_it_does_not_show():
    draw = guide({"clamp": (two_sided, GRPO)})
    figure = still(draw, exhibit="clamp", log2_ratio=1.0)
    assert "“way back”" in figure.get_suptitle()
    bad = {str(line.get_gid()): line for line in figure.axes[1].get_lines()}
    assert bad["broken"].get_label() == "broken: +0.00"
    assert bad["right"].get_label() == "right: -2.00"
    with pytest.raises(ValueError, match="did you mean 'clamp'"):
        draw(Figure(), exhibit="clam", log2_ratio=0.0)
