"""Figures of the lessons on gradients, clips, sequences: the numbers drawn, and that a slider moves what was drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sspo_teach import METHODS, credit
from sspo_teach.plotting import clipping, gradients, redraw, sequences, token_or_sequence
from sspo_teach.widgets.dead_groups import dead_groups_calculator
from sspo_teach.widgets.outlier import outlier_dragger


def line(axes, key):
    return next(own for own in axes.lines if own.get_gid() == key)


def at(axes, key, x):
    own = line(axes, key)
    return np.interp(x, own.get_xdata(), own.get_ydata())


def artists(figure):
    return sum(len(axes.get_children()) for axes in figure.axes)


def title(axes):
    return axes.get_title(loc="left")


# --- clipping ---


@pytest.mark.parametrize(("ratio", "weights"), [(1.3, (0, -1.3)), (0.7, (0.7, 0)), (1.1, (1.1, -1.1))])
def test_the_four_cases_are_drawn(ratio, weights):
    figure = clipping.clip_pieces(ratio=ratio)
    for axes, weight in zip(figure.axes[2:], weights, strict=True):
        (drawn,) = line(axes, "token").get_ydata()
        assert drawn == pytest.approx(weight, abs=1e-6)
    for axes, weight in zip(figure.axes, weights, strict=False):
        assert ("no gradient" in title(axes)) == (weight == 0)


def test_the_dual_clip_ends_the_push_down():
    figure = clipping.clip_pieces(ratio_cap=3.0)
    assert at(figure.axes[3], "clip", 3.4) == 0
    assert at(clipping.clip_pieces().axes[3], "clip", 3.4) == pytest.approx(-3.4)


def test_tokens_are_told_apart_by_their_fate():
    log_r = torch.tensor([[0.5, -0.5, 0.0, 0.1], [0.5, -0.5, 0.0, 9.0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    figure = clipping.token_fates(log_r=log_r, advantages=torch.tensor([[1.0], [-1.0]]), mask=mask)
    assert title(figure.axes[0]) == "A > 0: 50.0 % outside, 25.0 % silenced"
    assert title(figure.axes[1]) == "A < 0: 66.7 % outside, 33.3 % silenced"
    for axes, counts in zip(figure.axes, ((2, 1, 1), (1, 1, 1)), strict=True):
        kinds = ("inside", "outside, on the way back", "gradient removed")
        drawn = [sum(p.get_height() for p in axes.patches if p.get_gid() == kind) for kind in kinds]
        assert drawn == list(counts)


def test_rounds_are_counted_in_the_title():
    axes = clipping.probability_rounds(start=0.01, goal=0.5, edges=(0.2, 0.28)).axes[0]
    assert "22 at ε = 0.2, 16 at ε = 0.28" in title(axes)
    assert len(line(axes, "0").get_xdata()) == 23


# --- sequences ---


def test_an_outlier_weighs_what_the_objective_says():
    figure = sequences.outlier(log_ratio=1.0, place=4, sign=1.0, length=8)
    left, right = figure.axes
    z = torch.tensor([[0.03, -0.03, 0.03, 1.0, 0.03, -0.03, 0.03, -0.03]], dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    for name in sequences.POOLS:
        wanted = 8 * credit(METHODS[name].objective, z, torch.zeros_like(z), one, torch.ones_like(z))[0]
        assert line(left, name).get_ydata() == pytest.approx(wanted.numpy(), abs=1e-9)
        assert line(right, f"{name} here").get_ydata()[0] == pytest.approx(wanted[0].item(), abs=1e-9)
    grpo, gspo = (line(left, name) for name in ("grpo", "gspo"))
    assert gspo.get_ydata()[0] == 0
    assert grpo.get_ydata()[0] > 1 > grpo.get_ydata()[3] == 0
    assert grpo.get_linestyle() == "None"  # tokens are apart: nothing joins them
    assert np.round(grpo.get_xdata()).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert not set(grpo.get_xdata()) & set(gspo.get_xdata()), "one dot would hide the other"


def test_paths_on_each_other_are_both_seen():
    axes = clipping.inner_updates(paths={"reinforce": [1, 2], "cispo": [1, 2]}).axes[0]
    below, above = line(axes, "reinforce"), line(axes, "cispo")
    assert below.get_linewidth() > above.get_linewidth() + 0.8
    assert above.get_linestyle() == "--"


def test_a_product_is_taken_relative_to_its_own_on_policy_weight():
    log_r = sequences.response_with_outlier(0.0, 1, 5) * 0
    for name in ("fspo", "grpo", "sspo"):
        assert sequences.relative_weights(name, log_r, -1.0) == pytest.approx(torch.ones(1, 5).double(), abs=1e-12)


def test_the_outlier_stays_in_a_response_that_became_shorter():
    assert "token 3" in title(sequences.outlier(place=9, length=3).axes[0])


def test_pools_spread_like_root_l():
    product, mean = sequences.pool_spread(sigma=0.05, longest=400).axes
    assert at(product, "high", 400) == pytest.approx(math.exp(1.645 * 0.05 * 20))
    assert at(mean, "high", 400) == pytest.approx(math.exp(1.645 * 0.05 / 20))


def test_prefixes_outside_their_band_are_counted():
    z = np.array([0.1, -0.01, 0.2])
    figure = sequences.prefix_weights(
        log_prefix=z, lower=np.full(3, -0.05), upper=np.full(3, 0.05), weights={"ctpo": np.ones(3)}
    )
    assert title(figure.axes[0]).startswith("2 of 3")


# --- gradients ---


def test_dead_groups_and_how_many_are_needed():
    assert gradients.dead_share(0.18, 2) == pytest.approx(0.7048)
    assert gradients.group_needed(0.1, 0.1) == 22
    assert gradients.dead_share(0.1, 21) > 0.1 >= gradients.dead_share(0.1, 22)
    figure = gradients.dead_groups(rate=0.18, group=8, prompts=100)
    assert "20% dead, 20 of 100 groups" in title(figure.axes[0])
    for wrong in (0.0, 1.0):
        with pytest.raises(ValueError, match="rate="):
            gradients.group_needed(wrong, 0.1)


def test_spread_is_weighed_by_chances():
    chances, draws = np.array([0.25, 0.75]), {"one": np.array([0.0, 4.0])}
    axes = gradients.spread_along(draws=draws, chances=chances, truth=3.0).axes[0]
    assert title(axes) == "one: mean 3.0000, standard deviation 1.732"
    assert sum(patch.get_height() for patch in axes.patches) == pytest.approx(1)


def test_bias_and_noise_are_relative_to_the_truth():
    rows = [{"method": "rloo", "distance": d, "truth": 2.0, "bias": d, "trace": 16.0} for d in (0.0, 1.0)]
    left, right = gradients.bias_and_noise(rows=rows, batch=4).axes
    assert list(line(left, "rloo").get_ydata()) == [0, 0.5]
    assert list(line(right, "rloo").get_ydata()) == [1, 1]


# --- token or sequence ---


def test_the_gap_of_two_tokens_and_its_bound():
    figure = token_or_sequence.gate_gap(mean=0.0, spread=0.4, tau=1.0)
    assert title(figure.axes[1]) == "gap 0.0390, bound 0.0400"
    gap, bound = (line(figure.axes[1], key).get_ydata() for key in ("gap", "bound"))
    assert (gap <= bound).all()


def test_rows_of_one_token_have_no_place_on_a_logarithmic_axis():
    rows = [
        {"gap": 0.0, "gap_bound": 0.0, "variance": 0.0, "cosine": 1.0, "cosine_in_log": 1.0},
        {"gap": 0.1, "gap_bound": 0.2, "variance": 0.8, "cosine": 0.5, "cosine_in_log": 0.9},
    ]
    axes = token_or_sequence.gap_against_bound(settings={"a": rows}).axes[0]
    assert list(line(axes, "a").get_xdata()) == [0.2]
    left, right = token_or_sequence.cosine_by_variance(settings={"a": rows}).axes
    assert (list(line(left, "a").get_ydata()), list(line(right, "a").get_ydata())) == ([0.5], [0.9])


# --- moving what was drawn ---


@pytest.mark.parametrize(
    ("draw", "first", "then"),
    [
        (clipping.clip_pieces, {"ratio": 1.3}, {"ratio": 0.6, "eps_low": 0.3, "ratio_cap": 3.0}),
        (sequences.outlier, {"log_ratio": 1.0}, {"log_ratio": -1.0, "sign": -1.0, "length": 12}),
        (gradients.dead_groups, {"rate": 0.2}, {"rate": 0.7, "group": 3}),
        (token_or_sequence.gate_gap, {"spread": 0.4}, {"spread": 1.4, "tau": 3.0}),
    ],
)
def test_a_second_call_moves_the_artists_of_the_first(draw, first, then):
    figure = draw(**first)
    count = artists(figure)
    assert draw(figure, **then) is figure
    assert artists(figure) == count
    fresh = draw(**then)
    for moved, wanted in zip(figure.axes, fresh.axes, strict=True):
        assert title(moved) == title(wanted)
        for own in wanted.lines:
            if own.get_gid() and own.get_gid() != "band":
                assert line(moved, own.get_gid()).get_xydata() == pytest.approx(own.get_xydata(), nan_ok=True)


def test_a_method_that_is_no_longer_wanted_leaves_picture_and_legend():
    figure = sequences.outlier(names=("grpo", "gspo"))
    sequences.outlier(figure, names=("sspo",))
    left, right = figure.axes
    assert [own.get_gid() for own in right.lines] == ["sspo", "sspo here"]
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["sspo"]


def test_bars_and_words_move_too():
    _, (axes,) = redraw.sheet(None, (3, 2))
    for height, x in ((1.0, 0.1), (3.0, 0.2)):
        redraw.columns(axes, "bars", [0, 1], [height, 2], bottom=[1, 0])
        redraw.word(axes, "word", x, 0.5, f"{height:g}")
        redraw.band(axes, "band", x, 2 * x)
    bars = [patch for patch in axes.patches if patch.get_gid() == "bars"]
    assert [(bar.get_y(), bar.get_height()) for bar in bars] == [(1, 3), (0, 2)]
    assert [(word.get_text(), word.get_position()) for word in axes.texts] == [("3", (0.2, 0.5))]
    shaded = next(patch for patch in axes.patches if patch.get_gid() == "band")
    assert (shaded.get_x(), shaded.get_width()) == (0.2, 0.2)


@pytest.mark.parametrize(
    ("widget", "change"),
    [(outlier_dragger, {"log_ratio": -1.0, "names": ("sspo", "ctpo")}), (dead_groups_calculator, {"group": 2})],
)
def test_a_control_changes_the_picture(widget, change):
    panel = widget()
    before = panel.png
    for name, value in change.items():
        panel.controls[name].value = value
        assert panel.png != before
        before = panel.png
    assert panel.message.value == ""
