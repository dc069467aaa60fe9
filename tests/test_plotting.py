"""Figures: what is drawn is what is in the files."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from test_study import RUNS, seed

from sspo_teach import plotting
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


def test_drawing_needs_no_screen_and_leaves_pyplot_alone(tmp_path):
    figure = plotting.learning_curve(HISTORY, EVALUATIONS)
    assert isinstance(figure, Figure)
    path = plotting.save(figure, tmp_path / "a.png")
    picture = mpl.image.imread(path)
    assert picture.shape[:2] == (547, 1382)
    assert np.ptp(picture) > 0.5
