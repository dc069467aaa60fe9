"""Sweeps: the tables say what the functions said, and the verdicts what the tables say."""

from __future__ import annotations

import pytest
import torch

from sspo_teach.exact import decompose, measures, moments, sweep
from sspo_teach.exact.problem import drifted, problem

HERE = problem(letters=2, length=2, prompts=2, solved=0.6, seed=1)
NAMES = ["sequence_is", "rloo", "grpo", "dapo", "sspo:gate-study", "bapo"]
TABLES = sweep.sweep(HERE, NAMES, distances=(0.0, 0.1), group=3, batch=8)


def test_a_row_is_what_the_functions_say():
    rows = {(row["method"], row["distance"]): row for row in TABLES.summary}
    assert set(rows) == {(name, d) for name in NAMES for d in (0.0, 0.1)}
    far = drifted(HERE, "random", 0.1)
    for name in NAMES:
        found = moments.of(far, sweep.row_of(name), 3)
        row = rows[name, 0.1]
        assert row.items() >= measures.compare(far, found, batch=8).items() or row["trace"] == pytest.approx(
            found.trace
        )
        assert row["mse_scaled_256"] == pytest.approx(measures.compare(far, found, batch=256)["mse_scaled"])
        assert row["dead"] == far.dead(3)
        assert row["sample_size"] == far.sample_size
    assert rows["sequence_is", 0.1]["bias"] < 1e-12 < rows["rloo", 0.1]["bias"]
    assert rows["sequence_is", 0.0]["bias"] < 1e-12 > rows["rloo", 0.0]["bias"]
    assert "removed_positive" in rows["grpo", 0.1]
    assert "removed_positive" in rows["bapo", 0.1]  # enumerated, and looked at like the rest


def test_eigenvalues_add_up_to_the_trace():
    for row in TABLES.summary:
        own = [
            e["eigenvalue"]
            for e in TABLES.eigenvalues
            if (e["method"], e["distance"]) == (row["method"], row["distance"])
        ]
        assert own == sorted(own, reverse=True)
        assert sum(own) == pytest.approx(row["trace"], rel=1e-6)  # 18 parameters, 20 places


def test_what_is_left_out_is_named():
    tables = sweep.sweep(problem(), ["rloo", "bapo"], drifts=["outlier"], distances=(0.1, 3.0), group=4)
    assert [row["method"] for row in tables.summary] == ["rloo"]
    assert {(name, distance) for name, _, distance, _ in tables.skipped} == {("bapo", 0.1), ("all methods", 3.0)}
    population = sweep.sweep(HERE, ["rloo", "bapo"], distances=(0.1,), group=0)
    assert [name for name, *_ in population.skipped] == ["bapo"]
    assert population.summary[0]["dead"] == 0
    with pytest.raises(ValueError, match="unknown method: 'rlo'"):
        sweep.sweep(HERE, ["rlo"])
    with pytest.raises(ValueError, match="unknown drift: 'randm'"):
        sweep.sweep(HERE, ["rloo"], drifts=["randm"])


def test_verdicts_name_the_least_error_and_its_neighbours():
    rows = [
        {"method": name, "drift": "random", "distance": 0.1, **{f"mse_scaled_{n}": error for n in sweep.BATCHES}}
        for name, error in (("a", 0.33), ("b", 0.31), ("c", 0.5))
    ]
    for verdict in sweep.verdicts(rows):
        assert (verdict["best"], verdict["error"], verdict["near"]) == ("b", 0.31, ["a"])
    assert [v["batch"] for v in sweep.verdicts(rows)] == list(sweep.BATCHES)


def test_the_grid_at_a_distance():
    far = drifted(HERE, "random", 0.1)
    rows = {(row["gate"], row["unit"], row["order"]): row for row in sweep.grid_table(far, group=2, batch=8)}
    assert rows.keys() == decompose.grid().keys()
    sspo = moments.of(far, sweep.row_of("sspo"), 2)
    assert rows["sspo_arctan", "geometric", "gate first"]["trace"] == pytest.approx(sspo.trace)


def test_a_table_is_written_with_all_its_columns(tmp_path):
    path = sweep.write(tmp_path / "t.csv", [{"a": 1 / 3, "b": "x"}, {"a": 2, "c": ["y", "z"]}])
    assert path.read_text().splitlines() == ["a,b,c", "0.333333,x,", "2,,y z"]
    assert torch.get_default_dtype() == torch.float32
