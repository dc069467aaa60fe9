"""Lesson 10's figures and widgets: the numbers are where they should be."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure
from test_study import RUNS

from sspo_teach import study
from sspo_teach.plotting import comparing
from sspo_teach.training.intervals import interval, power
from sspo_teach.widgets.comparing import seed_counter, seed_picker
from sspo_teach.widgets.panel import still

AFTER = study.final(RUNS)
PAIRS = study.paired(RUNS, "grpo")


def lines(figure: Figure):
    return {str(line.get_gid()): line for line in figure.axes[0].get_lines()}


def test_one_seed_shows_that_seed_in_order():
    draw = seed_picker({name: [seed[:2] for seed in seeds] for name, seeds in RUNS.items()})
    figure = still(draw, seed=0)
    before = figure.axes[0].get_lines()[:]
    assert figure.axes[0].get_title(loc="left") == "Seed 0: sspo > grpo"
    assert list(lines(figure)["sspo"].get_ydata()) == pytest.approx([20, 90])
    draw(figure, seed=1)
    assert figure.axes[0].get_title(loc="left") == "Seed 1: grpo > sspo"
    assert list(lines(figure)["grpo"].get_ydata()) == pytest.approx([30, 70])
    assert figure.axes[0].get_lines()[:] == before
    with pytest.raises(ValueError, match="seed must lie"):
        draw(figure, seed=2)


def test_every_seed_is_a_dot_and_its_label_stands_at_its_height():
    after = {"grpo": [10.0, 50.0], "sspo": [80.0, 30.0]}
    intervals = {name: interval(values) for name, values in after.items()}
    axes = comparing.all_seeds(after, intervals, title="t", problems=100).axes[0]
    labels = {text.get_text(): text.xy[1] for text in axes.texts}
    assert (labels["seed 0"], labels["seed 1"]) == (80.0, 30.0)
    dots = [sorted(line.get_ydata()) for line in axes.get_lines() if line.get_marker() == "o"]
    assert dots == [[10.0, 50.0], [30.0, 80.0]]


def test_labels_that_would_touch_move_apart():
    assert comparing._spread(comparing.np.array([2.0, 1.9, 5.0]), 1.0).tolist() == pytest.approx([2.9, 1.9, 5.0])


def test_differences_are_drawn_with_their_interval():
    figure = comparing.paired_differences(PAIRS, study.differences(RUNS, "grpo"), baseline="grpo", title="t")
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["sspo − grpo"]
    (bar,) = [c for c in axes.collections if hasattr(c, "get_segments")]
    (segment,) = bar.get_segments()
    assert (segment[0][0], segment[1][0]) == (pytest.approx(15 - 12.706 * 5), pytest.approx(15 + 12.706 * 5))


def test_the_counter_shows_power_and_what_80_per_cent_takes():
    figure = still(seed_counter, difference=1.0, sd=1.0, seeds=5)
    title = figure.axes[0].get_title(loc="left")
    assert f"{100 * power(1.0, 1.0, 5):.0f} % of the cases" in title
    assert "80 % takes 10" in title
    assert list(lines(figure)["mark"].get_ydata()) == pytest.approx([100 * power(1.0, 1.0, 5)])
    seed_counter(figure, difference=0.0, sd=1.0, seeds=5)
    assert "more than 40" in figure.axes[0].get_title(loc="left")


def test_two_teams_of_one_method():
    axes = comparing.against_itself([[0.0, 1.0], [0.0, 3.0], [0.0, 5.0], [0.0, 7.0]], [2, 3], title="t").axes[0]
    assert [list(line.get_ydata()) for line in axes.get_lines()] == [[0.0, 6.0], [0.0, 2.0]]
