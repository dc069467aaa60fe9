"""The figures of lessons 06 to 09: what is drawn is what was given."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from sspo_teach.plotting.dashboard import LINES, VITALS, dashboard, staleness

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
