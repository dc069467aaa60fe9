"""Lesson 11's figures: the planner's bars are the planner's numbers."""

from __future__ import annotations

import pytest

from sspo_teach.memory import allowance, moments, needed, peak
from sspo_teach.plotting import planning
from sspo_teach.training.hardware import hardware
from sspo_teach.widgets.panel import still
from sspo_teach.widgets.planning import planner, preset_load, verdict


def ends(figure):
    """Where each moment's stack ends, in GB."""
    found = dict.fromkeys(planning.MOMENTS, 0.0)
    for name in planning.ITEMS:
        for moment, bar in zip(
            planning.MOMENTS, [p for p in figure.axes[0].patches if p.get_gid() == name], strict=True
        ):
            assert bar.get_width() == 0 or bar.get_x() == pytest.approx(found[moment])
            found[moment] += bar.get_width()
    return found


def test_the_longest_stack_is_what_the_run_needs():
    figure = still(planner, hardware_preset="24gb", micro_batch=4, autocast="bf16")
    load = preset_load("24gb", micro_batch=4)
    stacks = ends(figure)
    assert max(stacks.values()) == pytest.approx(needed(load) / 1e9)
    assert max(stacks, key=lambda moment: stacks[moment]) == peak(load)[0]
    scoring = sum(moments(load)["scoring: layer"].values())
    assert stacks["scoring: layer"] == pytest.approx((scoring + allowance(scoring)) / 1e9)


def test_no_moment_and_no_item_is_left_out_in_silence():
    for found, said in (({"training: nap": {}}, "unknown moment"), ({"training: forward": {"tea": 1}}, "unknown item")):
        with pytest.raises(ValueError, match=said):
            planning.memory(found, budget=1, title="")


def test_bars_move_in_place_and_the_line_is_the_device():
    figure = still(planner)
    before, first = list(figure.axes[0].patches), ends(figure)
    planner(figure, gradient_checkpointing=False, micro_batch=32)
    assert list(figure.axes[0].patches) == before
    second = ends(figure)
    assert second["training: forward"] == 0 < first["training: forward"]
    assert second["training: last layer"] > 2 * first["training: last layer"]
    assert "does not fit 15.8 GB" in figure.axes[0].get_title(loc="left")
    line = next(line for line in figure.axes[0].get_lines() if line.get_gid() == "budget")
    assert line.get_xdata()[0] == pytest.approx(15.8)


def test_every_preset_fits_its_own_device():
    for name in ("12gb", "t4", "24gb", "40gb", "80gb"):
        assert "does not" not in verdict(preset_load(name), hardware(name).bytes)
    assert "largest micro-batch none" in verdict(preset_load("12gb", "Qwen2.5-7B"), hardware("12gb").bytes)


def test_before_and_after_draws_shares_with_their_intervals():
    share = {"share": 0.5, "low": 0.25, "high": 0.75}
    one = {way: {"correct": {"share": None, "low": 0.0, "high": 1.0}} for way in ("greedy", "sampled")}
    two = {way: {"correct": share} for way in ("greedy", "sampled")}
    figure = planning.before_and_after(one, two, {"correct": "right"}, title="t")
    segments = [c.get_segments()[0] for c in figure.axes[0].collections if hasattr(c, "get_segments")]
    assert [(segment[0][0], segment[1][0]) for segment in segments] == [(0.0, 100.0), (25.0, 75.0)]


def test_a_column_is_drawn_as_it_was_and_smoothed():
    rows = [{"step": i, "reward": float(i)} for i in range(1, 7)]
    axes = planning.training_rewards({"sspo": rows}, "reward", title="t", ylabel="mean reward", window=3).axes[0]
    thin, thick = axes.get_lines()
    assert list(thin.get_ydata()) == [1, 2, 3, 4, 5, 6]
    assert (list(thick.get_xdata()), list(thick.get_ydata())) == ([3, 4, 5, 6], pytest.approx([2, 3, 4, 5]))
