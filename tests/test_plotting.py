"""Figures: what is drawn is what is in the files."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from test_study import RUNS, seed

from sspo_teach import plotting
from sspo_teach.catalog import METHODS
from sspo_teach.training.evaluation import Share

HISTORY = [
    {"step": i, "correct": 0.1 * i, "moved": 0.2, "removed_extending": 0.3, "removed_corrective": -0.1}
    for i in range(1, 5)
]
EVALUATIONS = [
    {
        "step": step,
        **{way: {"correct": Share(k + extra, 10).as_dict()} for way, extra in (("greedy", 2), ("sampled", 0))},
    }
    for step, k in ((0, 1), (4, 5))
]


def lines(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    return {str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()}


def test_learning_curve_draws_the_numbers():
    figure = plotting.learning_curve(HISTORY, EVALUATIONS, title="sspo", temperature=0.8)
    left, right = figure.axes
    drawn = lines(left)
    assert drawn["held out, greedy"] == ([0, 4], [0.3, 0.7])
    assert drawn["held out, sampled (T = 0.8)"] == ([0, 4], [0.1, 0.5])
    assert drawn["training samples"][1] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    greedy, sampled = (band.get_paths()[0].vertices for band in left.collections)
    for band, counts in ((greedy, (3, 7)), (sampled, (1, 5))):
        for x, k in zip((0, 4), counts, strict=True):
            ys = band[band[:, 0] == x][:, 1]
            assert (ys.min(), ys.max()) == pytest.approx(Share(k, 10).interval)
    drawn = lines(right)
    assert drawn["tokens with |ρ − 1| > 0.1"][1] == [0.2] * 4
    assert drawn["signal removed, extending tokens"][1] == [0.3] * 4
    assert drawn["signal removed, corrective tokens"][1] == [-0.1] * 4
    assert figure.get_suptitle() == "sspo"


def test_no_history_yet_is_drawn_too(tmp_path):
    figure = plotting.learning_curve([], EVALUATIONS[:1])
    assert "training samples" not in lines(figure.axes[0])
    assert plotting.save(figure, tmp_path / "curve.png").stat().st_size > 1000


def test_comparison_draws_mean_and_range():
    figure = plotting.comparison({"grpo": RUNS["grpo"], "sspo": [seed(0.2, 0.6), seed(0.4, 1.0)]})
    for axes in figure.axes:
        steps, mean = lines(axes)["sspo"]
        assert steps == [0, 10]
        assert mean == pytest.approx([0.3, 0.8])
        band = axes.collections[1].get_paths()[0].vertices
        assert (band[:, 1].min(), band[:, 1].max()) == (0.2, 1.0)
        assert "2 seeds" in axes.get_title(loc="left")


def test_comparison_draws_every_method_in_a_line_of_its_own():
    names = [f"method {i}" for i in range(15)]
    axes = plotting.comparison({name: [seed(0.1, 0.2)] for name in names}).axes[0]
    assert list(lines(axes)) == names
    looks = {(line.get_color(), line.get_linestyle()) for line in axes.get_lines()}
    assert len(looks) == len(names)


def test_comparison_of_seeds_evaluated_at_other_steps_keeps_the_common_ones():
    figure = plotting.comparison({"sspo": [seed(0.1, 0.2, 0.3), seed(0.1, 0.5, step=20)]})
    steps, mean = lines(figure.axes[0])["sspo"]
    assert steps == [0, 20]
    assert mean == pytest.approx([0.1, 0.4])


def exact_rows(*names):
    return [
        {"method": name, "kl": kl, "distance": kl, "bias_scaled": 0.1 * i + kl, "trace_scaled": 4.0 + kl,
         "cosine": 1 - kl - 0.1 * i, "mse_scaled_16": 0.3 + 0.1 * i * (kl < 0.2) - 0.1 * i * (kl > 0.2),
         **{f"removed_{side}": kl * i for side in plotting.SIDES}}
        for i, name in enumerate(names)
        for kl in (0.0, 0.1, 0.5)
    ]  # fmt: skip


def test_frontier_draws_noise_and_bias():
    axes = plotting.frontier(exact_rows("grpo", "sspo"), batch=4).axes[0]
    noise, bias = lines(axes)["sspo"]
    assert noise == pytest.approx([1, (4.1 / 4) ** 0.5, (4.5 / 4) ** 0.5])
    assert bias == pytest.approx([0.1, 0.2, 0.6])
    assert [text.get_text() for text in axes.texts] == ["0.5", "0.5"]


def test_cosine_and_removed_signal_are_drawn_over_the_distance():
    axes = plotting.cosine_to_truth(exact_rows("grpo", "sspo")).axes[0]
    assert lines(axes)["sspo"] == ([0, 0.1, 0.5], pytest.approx([0.9, 0.8, 0.4]))
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "0.1", "0.5"]
    rows = exact_rows("grpo", "sspo")
    del rows[-1]["removed_positive"]  # a method that was enumerated has no weights
    panels = plotting.removed_signal(rows).axes
    assert [axes.get_title(loc="left").split(":")[0] for axes in panels] == list(plotting.SIDES)
    assert lines(panels[0])["sspo"] == ([0, 0.1], [0, 0.1])
    assert lines(panels[3])["sspo"] == ([0, 0.1, 0.5], [0, 0.1, 0.5])


def test_figures_grow_with_their_legend(tmp_path, recwarn):
    rows = exact_rows(*(f"method {i}" for i in range(50)))
    figures = plotting.frontier(rows, batch=4), plotting.cosine_to_truth(rows), plotting.removed_signal(rows)
    for i, figure in enumerate(figures):
        plotting.save(figure, tmp_path / f"{i}.png")
    assert not recwarn.list


def test_coefficient_curves_stand_above_the_ratios():
    z = np.linspace(-1, 1, 5)
    curves = {"none": {"f": np.exp(z), "f'": np.ones(5)}, "gate": {"f": np.tanh(z), "f'": 1 - np.tanh(z) ** 2}}
    figure = plotting.coefficient_curves(z, curves, np.array([0.5, 1.0, 1.0]), np.array([1.0, 2.0, 3.0]))
    above = figure.axes[0]
    assert lines(above)["gate"][1] == pytest.approx(np.tanh(z))
    assert lines(above)["gate"][0] == pytest.approx(np.exp(z))
    below = figure.axes[2]
    assert sum(bar.get_height() for bar in below.patches) == pytest.approx(6)


def test_which_gate_frames_the_least_error_of_each_column():
    figure = plotting.which_gate(exact_rows("grpo", "sspo"), [16], title="When", limits=["a limit", "another"])
    cells = [(text.get_position(), text.get_text(), text.get_bbox_patch() is not None) for text in figure.axes[0].texts]
    assert [cell for cell in cells if cell[2]] == [
        ((0, 0), "0.30", True),
        ((1, 0), "0.30", True),
        ((2, 1), "0.20", True),
    ]
    assert len(cells) == 6
    assert figure.get_supxlabel() == "a limit\nanother"


def test_drawing_needs_no_screen_and_leaves_pyplot_alone(tmp_path):
    figure = plotting.learning_curve(HISTORY, EVALUATIONS)
    assert isinstance(figure, Figure)
    path = plotting.save(figure, tmp_path / "a.png")
    picture = mpl.image.imread(path)
    assert picture.shape[:2] == (547, 1382)
    assert np.ptp(picture) > 0.5


def test_a_method_looks_the_same_in_every_figure():
    some, more = plotting.looks(["sspo", "ppo"]), plotting.looks(["ppo", "grpo", "sspo"])
    assert {name: more[name] for name in some} == some


def test_no_two_look_alike_with_presets_and_gates_among_them():
    names = [*METHODS, "sspo:gate-study", "sspo:sapo", "sspo_arctan", "nothing"]
    looks = plotting.looks(names)
    assert len({tuple(look.items()) for look in looks.values()}) == len(names)
    pair = plotting.looks(["sspo", "sspo:gate-study"])
    assert pair["sspo"]["color"] == pair["sspo:gate-study"]["color"]


def test_without_dots_no_two_look_alike_either():
    """SAPO and its Gaussian kin differ by their dots alone."""
    names = ["sapo", "sapo_gaussian", "sapo_cauchy", "sapo_directional", "grpo", "none"]
    looks = plotting.looks(names, dots=False)
    assert len({tuple(look.items()) for look in looks.values()}) == len(names)
    assert looks["sapo"] == plotting.looks(["sapo"], dots=False)["sapo"]


def test_more_names_than_looks_still_draw():
    names = [str(i) for i in range(100)]
    assert set(plotting.looks(names)) == set(names)
