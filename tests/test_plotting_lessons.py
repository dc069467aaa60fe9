"""The figures of lessons 06 to 09: what is drawn is what was given."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from sspo_teach.exact.coverage import drifting
from sspo_teach.plotting import bands, contrast, laboratory
from sspo_teach.plotting.dashboard import LINES, VITALS, dashboard, side_by_side, staleness
from sspo_teach.widgets.bands import draw_conformal
from sspo_teach.widgets.contrast import draw_pulls

WELL = {
    "correct": 0.5, "dead_groups": 0.1, "entropy": 0.3, "grad_norm": 2.0, "ratio_q01": 0.8, "ratio_q50": 1.0,
    "ratio_q99": 1.3, "moved": 0.1, "kl_k3": 1e-3, "ess": 0.95, "silenced": 0.02, "removed_extending": 0.1,
}  # fmt: skip
HISTORY = [{"step": i, **WELL} for i in range(1, 7)]


def test_the_dashboard_draws_the_history_and_warns_in_the_title():
    figure = dashboard([{**row, "ess": 0.1} for row in HISTORY], title="a run")
    assert [axes.get_title(loc="left").strip() for axes in figure.axes] == [vital.title for vital in VITALS]
    for axes, vital in zip(figure.axes, VITALS, strict=True):
        ill = axes._left_title.get_fontweight() == "bold"
        assert ill == (vital.columns == ("ess",)), vital.title
        if vital.columns != ("ess",):
            assert [list(line.get_ydata()) for line in axes.lines] == [[WELL[c]] * 6 for c in vital.columns]


def test_no_label_breaks_a_formula():
    labels = [axes.get_ylabel() for axes in side_by_side({"A": HISTORY}).axes]
    assert "|ρ − 1| > 0.1" in "\n".join(labels).replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize("height", [0.3, 0.87, 0.99])
def test_each_bar_of_the_laboratory_has_a_number_that_can_be_read(height):
    figure = Figure(figsize=(9, 4), layout="constrained")
    rows = [{"method": "sspo", "distance": 0.0, "noise": 1.0, "bias": 0.5}]
    laboratory.laboratory(figure, rows, {"sspo": height}, distance=0.0, batch=16)
    figure.draw_without_rendering()
    (number,), (bar,) = figure.axes[1].texts, figure.axes[1].patches
    box, edge, frame = number.get_window_extent(), bar.get_window_extent().x1, figure.axes[1].get_window_extent().x1
    assert (box.x1 < edge and number.get_color() == "white") or (edge < box.x0 and number.get_color() == "black")
    assert box.x1 < frame


def test_a_vital_sign_looks_at_the_last_third():
    entropy = next(vital for vital in VITALS if vital.columns == ("entropy",))
    assert not entropy.ill([{"entropy": 0.0}] * 4 + [{"entropy": 0.2}] * 2)
    assert entropy.ill([{"entropy": 0.2}] * 4 + [{"entropy": 0.0}] * 2)


GRID = [
    {"method": name, "updates": u, "lr": lr, "greedy_before": 0.5, "greedy_after": 0.1 * i}
    for name in ("grpo", "sspo")
    for i, (u, lr) in enumerate([(1.0, 1e-4), (1.0, 1e-3), (4.0, 1e-4), (4.0, 1e-3)])
]
RUNS = [
    {**{key: row[key] for key in ("method", "updates", "lr")}, **step, "moved": row["updates"] / 10}
    for row in GRID
    for step in HISTORY
]


def test_staleness_draws_the_chosen_run_and_is_brought_up_to_date():
    figure = Figure(figsize=(9, 5), layout="constrained")
    for updates, lr, place in ((1.0, 1e-4, (0, 0)), (4.0, 1e-3, (1, 1))):
        staleness(figure, RUNS, GRID, method="sspo", updates=updates, lr=lr)
        assert len(figure.axes) == 4
        solved, ratios, gate, grid = figure.axes
        assert list(solved.lines[0].get_ydata()) == [0.5] * 6
        assert [line.get_ydata()[0] for line in ratios.lines[:3]] == [WELL[name] for name in LINES["ratios"]]
        assert list(gate.lines[0].get_ydata()) == [updates / 10] * 6
        assert [text.get_text() for text in grid.texts] == ["0", "10", "20", "30"]
        assert (grid.lines[0].get_xydata()[:4].mean(0) == place).all()
    assert "50 % → 30 % solved" in figure.get_suptitle()
    with pytest.raises(ValueError, match=r"updates=2.*no such run.*1\.0, 4\.0"):
        staleness(figure, RUNS, GRID, method="sspo", updates=2.0, lr=1e-4)


def test_the_conformal_band_is_drawn_and_told():
    figure = Figure(figsize=(9, 5), layout="constrained")
    for growth in (1.0, 4.0):
        draw_conformal(figure, alpha=0.2, window=128, growth=growth)
        seen = drifting(0.2, window=128, growth=growth)
        above, below = figure.axes
        assert above.lines[2].get_ydata()[-1] == pytest.approx(1000 * seen.calibrated[-1, 1])
        assert list(above.lines[3].get_ydata()) == pytest.approx([1000 * seen.fixed[0]] * 120)
        assert list(below.lines[2].get_ydata()) == [0.2, 0.2]
        own = 100 * seen.missed(seen.calibrated)[seen.judged].mean()
        assert figure.get_suptitle().startswith(f"{own:.1f} % of fresh scores leave the calibrated band")


def test_bandpo_draws_the_bounds_of_its_table():
    figure = Figure(figsize=(8, 4), layout="constrained")
    for delta in (0.2, 0.05):
        bands.room_by_probability(figure, delta=delta, eps=0.3)
    (axes,) = figure.axes
    p = axes.lines[0].get_xdata()
    drawn = {f"{name}{i}": axes.lines[2 * k + i].get_ydata() for k, name in enumerate(bands.BANDS) for i in range(2)}
    table = {
        "bandpo_kl0": 0.47594, "bandpo_kl1": 1.71768, "bandpo_tv0": 0.75, "bandpo_tv1": 1.25,
        "bandpo_chi20": 0.55279, "bandpo_chi21": 1.44721,
    }  # fmt: skip
    for name, value in table.items():
        assert np.interp(np.log(0.2), np.log(p), drawn[name]) == pytest.approx(value, rel=0.02)
    assert set(axes.lines[6].get_ydata()) == {0.7}
    assert set(axes.lines[7].get_ydata()) == {1.3}


def test_the_tail_and_the_balance_are_drawn():
    axes = bands.tail_by_length([16, 256], {"gspo": [0.9, 0.8], "fspo": [0.4, 0.4]}).axes[0]
    assert {line.get_label(): list(line.get_ydata()) for line in axes.lines} == {"gspo": [0.9, 0.8], "fspo": [0.4] * 2}
    pairs = [(0.6, 1.2), (0.6, 1.5), (0.8, 1.5)]
    axes = bands.balance(pairs, {"as printed": [0.3, 0.35, 0.3], "by gradient": [0.3, 0.42, 0.5]}, wanted=0.4).axes[0]
    assert [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "o"] == [[1]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["[0.6, 1.2]", "[0.6, 1.5]", "[0.8, 1.5]"]


def test_conspo_pushes_the_likeliest_wrong_response_and_the_figure_says_so():
    figure = Figure(figsize=(9, 5), layout="constrained")
    for rival in (-2.0, -0.7):
        draw_pulls(figure, rival=rival)
    above, below = figure.axes
    heights = np.array([bar.get_height() for bar in above.patches]).reshape(3, 5)
    total = 0.7712158 + 0.8341305  # the golden numbers of ConSPO's weights
    golden = np.array([0.7712158, 0.8341305, -0.8677520, -0.4762324, -0.2613619]) / total
    assert heights[2] == pytest.approx(golden, abs=1e-6)
    assert heights[0] == pytest.approx([1 / 2] * 2 + [-1 / 3] * 3)
    assert below.collections[0].get_offsets()[2].tolist() == [2, -0.7]
    assert "-0.70 takes 54 % of ConSPO's push down, 33 % of GRPO's" in figure.get_suptitle()


def test_the_factor_of_the_gap_and_the_critic_are_drawn():
    rates = np.array([0.0, 0.5, 1.0])
    axes = contrast.push_by_rate(rates, {"grpo": (rates * (1 - rates)) ** 0.5}).axes[0]
    assert list(axes.lines[0].get_ydata()) == [0, 0.5, 0]
    rows = [{"step": i, "reward": 0.1 * i, "explained_variance": 0.2 * i} for i in range(1, 4)]
    plain = [{"step": i, "reward": 0.1, "explained_variance": float("nan")} for i in range(1, 4)]
    left, right = contrast.critic_learns({"sppo": rows, "grpo": plain}).axes
    assert [line.get_label() for line in left.lines] == ["sppo", "grpo"]
    assert list(right.lines[0].get_ydata()) == pytest.approx([0.2, 0.4, 0.6])
    assert len(right.lines) == 2  # one run has no critic; the other line is 0
