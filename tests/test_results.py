"""The committed runs, and what the README says of them."""

from __future__ import annotations

import csv
import dataclasses
import re
from pathlib import Path

import pytest

from sspo_teach import study
from sspo_teach.catalog import METHODS
from sspo_teach.grading.lesson_07 import CASES
from sspo_teach.plotting.dashboard import VITALS
from sspo_teach.plotting.tables import read_table
from sspo_teach.training.diagnostics import COLUMNS
from sspo_teach.training.folder import RunFolder, read_config

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "notebooks" / "results"
RUNS = sorted(path.parent.name for path in RESULTS.glob("*/config.json"))
RUNS += sorted(f"gsm8k-smollm2/{path.parent.name}" for path in RESULTS.glob("gsm8k-smollm2/*/config.json"))


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_whole(name: str):
    run = RunFolder(RESULTS / name)
    config, history, evaluations = read_config(run.path), run.history(), run.evaluations()
    steps = len(history) if config.token_budget else config.steps
    assert [row["step"] for row in history] == list(range(1, steps + 1))
    assert config.token_budget == 0 or history[-1]["tokens"] >= config.token_budget > history[-1]["tokens"] - 5000
    assert set(history[0]) <= set(COLUMNS)
    assert (evaluations[0]["step"], evaluations[-1]["step"]) == (0, steps)
    assert all(row["ratio_error"] == 0 for row in history)
    assert config.minibatches * config.epochs > 1
    assert (run.path / "curve.png").exists()
    assert name.partition("/")[0] in (RESULTS / "README.md").read_text()


def test_no_text_of_gsm8k_is_committed():
    """Its licence would allow it; a test set that lies about in repositories ends up in training data."""
    assert not list(RESULTS.glob("gsm8k*/**/*.jsonl"))


def test_the_comparison_is_whole():
    folder = RESULTS / "compare-arithmetic"
    runs, command = study.read(folder)
    assert command in " ".join((RESULTS / "README.md").read_text().split())
    assert {name: len(seeds) for name, seeds in runs.items()} == dict.fromkeys(
        ("grpo", "gmpo", "gspo", "sapo", "sspo"), 5
    )
    with (folder / "comparison.csv").open(newline="") as file:
        written = [
            {key: float(row[key]) for key in ("before", "after", "gain", "half_width")} for row in csv.DictReader(file)
        ]
    assert written == [pytest.approx({key: row[key] for key in written[0]}) for row in study.summarize(runs)]
    settings = []
    for name in runs:
        for seed in range(5):
            run = RunFolder(folder / f"{name}-s{seed}")
            config, history = read_config(run.path), run.history()
            assert (config.method, config.seed, len(history)) == (name, seed, config.steps)
            assert all(row["ratio_error"] == 0 for row in history)
            settings.append(dataclasses.replace(config, method="", seed=0, out=""))
    assert settings == settings[:1] * 25


@pytest.mark.parametrize("task", ["bandit", "arithmetic"])
def test_every_method_has_its_short_runs(task: str):
    with (RESULTS / "smoke" / f"{task}.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["method"], row["seed"]) for row in rows} == {(name, seed) for name in METHODS for seed in "012"}
    assert all(row["finite"] == "True" and float(row["grad_norm"]) > 0 for row in rows)
    if task == "bandit":  # easy enough to show within 20 iterations that every method learns
        assert all(float(row["reward_last"]) > float(row["reward_first"]) + 0.1 for row in rows)


def test_the_readme_tells_what_the_real_model_did():
    evaluations = RunFolder(RESULTS / "arithmetic-text-sspo").evaluations()
    text = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| (correct|finished|correct among the finished), (greedy|sampled)[^|]*\|(.*)\|$", text, re.M)
    assert len(rows) == 6
    for what, way, cells in rows:
        part = {"correct among the finished": "correct_given_finished"}.get(what, what)
        shares = [evaluations[i][way][part] for i in (0, -1)]
        told = [list(map(int, re.findall(r"\d+", cell))) for cell in cells.split("|")]
        assert told == [[round(100 * share[key]) for key in ("share", "low", "high")] for share in shares]


def test_the_readme_tells_what_the_first_command_did():
    evaluations = RunFolder(RESULTS / "arithmetic-sspo").evaluations()
    text = (ROOT / "README.md").read_text()
    (told,) = re.findall(r"^\| 0 \| ([\d.]+) → ([\d.]+) \| ([\d.]+) → ([\d.]+) \|", text, re.M)
    found = [evaluations[i][way]["correct"]["share"] for way in ("sampled", "greedy") for i in (0, -1)]
    assert list(map(float, told)) == [round(100 * share, 1) for share in found]


def test_the_runs_of_lesson_07_are_whole_and_show_their_faults():
    runs, ends, cases = (read_table(RESULTS / "staleness" / f"{name}.csv") for name in ("grid", "grid_ends", "cases"))
    found = {(row["method"], row["updates"], row["lr"]): row for row in ends}
    assert len(found) == 36
    for key in found:
        steps = [row["step"] for row in runs if (row["method"], row["updates"], row["lr"]) == key]
        assert steps == list(range(1, 31))
    assert all(row["moved"] == 0 for row in runs if row["updates"] == 1)
    for updates, lr in ((4, 3e-5), (16, 3e-4)):
        assert max(row["moved"] for row in runs if (row["updates"], row["lr"]) == (updates, lr)) > 0.005
    late = {case: [row for row in cases if row["case"] == case] for case in CASES}
    ill = {case: {vital.columns[0] for vital in VITALS if vital.ill(rows)} for case, rows in late.items()}
    assert ill["C"] == set()
    assert ill["A"] == ill["E"] == {"moved", "kl_k3"}
    assert all(row["ratio_q99"] == 1 for row in late["E"])
    assert all(row["dead_groups"] == 1 for row in late["B"])
    assert {"correct", "dead_groups"} <= ill["D"]
    assert late["F"][1]["ess"] < 0.1
