"""Several runs side by side: what is checked first, what is taken again, and the statistics over seeds."""

from __future__ import annotations

import csv
import dataclasses
import math

import pytest

from sspo_teach import study
from sspo_teach.training.intervals import interval
from sspo_teach.training.trainer import Trainer


def seed(*shares: float, step: int = 10):
    """A run's evaluations, greedily as sampled."""
    return [
        {"step": step * i, **{way: {"correct": {"share": share}} for way in ("greedy", "sampled")}}
        for i, share in enumerate(shares)
    ]


RUNS = {"grpo": [seed(0.2, 0.5), seed(0.3, 0.7)], "sspo": [seed(0.2, 0.9, 0.6), seed(0.3, 0.0, 0.9)]}


@pytest.mark.parametrize(
    ("seeds", "t"),
    [(2, 12.706), (3, 4.303), (6, 2.571), (10, 2.262), (11, 2.228), (12, 2.201), (21, 2.086), (61, 2.000)],
)
def test_interval_is_student_s(seeds, t):
    """0 and 1 by turns; the 97.5 % points are those of any printed table."""
    values = [float(i % 2) for i in range(seeds)]
    mean = sum(values) / seeds
    error = math.sqrt(sum((x - mean) ** 2 for x in values) / (seeds - 1) / seeds)
    assert interval(values) == pytest.approx((mean, t * error), rel=2e-3)


def test_one_seed_has_no_interval():
    mean, half = interval([3.0])
    assert mean == 3.0
    assert math.isnan(half)


def test_summary_takes_the_first_and_the_last_evaluation():
    rows = {(row["method"], row["way"]): row for row in study.summarize(RUNS)}
    assert len(rows) == 4
    row = rows["sspo", "sampled"]
    assert (row["seeds"], row["before"], row["after"]) == (2, pytest.approx(25), pytest.approx(75))
    assert row["gain"] == pytest.approx(50)
    assert row["half_width"] == pytest.approx(12.706 * 10)  # gains 40 and 60: sd 14.14, over root 2


def test_differences_are_paired_by_seed():
    ((name, (mean, half)),) = study.differences(RUNS, "grpo").items()
    assert (name, mean) == ("sspo", pytest.approx(15))  # 10 and 20
    assert half == pytest.approx(12.706 * 5)


def test_table_has_a_line_per_row_and_says_when_one_seed_cannot_tell():
    lines = study.table(study.summarize({name: seeds[:1] for name, seeds in RUNS.items()})).splitlines()
    assert len(lines) == 5
    assert all("one seed: unknown" in line for line in lines[1:])
    assert "-77.1 … +177.1" in study.table(study.summarize(RUNS))
    known = [{**row, "tokens": 12345.0} for row in study.summarize(RUNS)]
    assert "tokens" in study.table(known).splitlines()[0]
    assert "12,345" in study.table(known)
    assert "nan" not in study.table([{**row, "tokens": math.nan} for row in known])


def test_nothing_is_trained_before_all_is_checked(config, tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "__init__", lambda *_, **__: pytest.fail("a run began"))
    for methods, numbers, words in (
        (["sspo", "grpo"], ("tau_pos=2",), "unknown name in numbers"),
        (["sspo", "gmop"], (), "did you mean 'gmpo'"),
        (["sspo"], (), "name at least two"),
        (["sspo", "grpo", "sspo"], (), "different ones"),
    ):
        with pytest.raises(ValueError, match=words):
            study.compare(config(numbers=numbers), methods, 2, tmp_path / "cmp")
    with pytest.raises(ValueError, match="seeds=0"):
        study.compare(config(), ["sspo", "grpo"], 0, tmp_path / "cmp")


def test_runs_share_start_and_problems_and_are_taken_again(config, tmp_path, monkeypatch):
    base, folder = config(steps=2, seed=4), tmp_path / "cmp"
    runs = study.compare(base, ["sspo", "grpo"], 2, folder, quiet=True)
    assert sorted(path.name for path in folder.iterdir()) == ["grpo-s4", "grpo-s5", "sspo-s4", "sspo-s5"]
    for one, other in zip(runs["sspo"], runs["grpo"], strict=True):
        assert one[0] == other[0]  # the same start
    assert runs["sspo"][0][0] != runs["sspo"][1][0]
    first = {name: (folder / name / "history.csv").read_text().splitlines()[1] for name in ("sspo-s4", "grpo-s4")}
    tokens = {name: line.split(",")[:3] for name, line in first.items()}
    assert tokens["sspo-s4"] == tokens["grpo-s4"]  # the same samples, as long as the weights are the same
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "iterate", lambda *_: pytest.fail("it was complete"))
        assert study.compare(base, ["sspo", "grpo"], 2, folder, quiet=True) == runs
    more = study.compare(base, ["sspo", "grpo", "gspo"], 2, folder, quiet=True)
    assert {name: more[name] for name in runs} == runs
    with pytest.raises(ValueError, match=r"lr=0\.5: the run in .* was started with lr="):
        study.compare(dataclasses.replace(base, lr=0.5), ["sspo", "grpo"], 2, folder, quiet=True)
    assert study.compare(dataclasses.replace(base, lr=0.5), ["sspo", "grpo"], 1, folder, quiet=True, fresh=True) != runs


def test_a_comparison_broken_off_goes_on(config, tmp_path, monkeypatch):
    base, iterate = config(steps=2), Trainer.iterate

    def stopping(one: Trainer):
        one.stop = one.config.method == "grpo" and one.step == 0
        return iterate(one)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "iterate", stopping)
        with pytest.raises(KeyboardInterrupt):
            study.compare(base, ["sspo", "grpo"], 1, tmp_path / "cmp", quiet=True)
    resumed = study.compare(base, ["sspo", "grpo"], 1, tmp_path / "cmp", quiet=True)
    assert resumed == study.compare(base, ["sspo", "grpo"], 1, tmp_path / "other", quiet=True)


def test_files(tmp_path):
    path = study.write(RUNS, tmp_path, "sspo-teach compare")
    assert path == tmp_path / "comparison.png"
    with (tmp_path / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["after"]) for row in rows] == pytest.approx([row["after"] for row in study.summarize(RUNS)])


def test_what_was_written_is_read_again(tmp_path):
    study.write(RUNS, tmp_path, "sspo-teach compare --seeds 2")
    assert study.read(tmp_path) == (RUNS, "sspo-teach compare --seeds 2")
    with pytest.raises(ValueError, match=r"comparison\.json is missing"):
        study.read(tmp_path / "nowhere")


def test_pairs_are_seed_by_seed():
    assert study.paired(RUNS, "grpo") == {"sspo": [pytest.approx(10), pytest.approx(20)]}
    with pytest.raises(ValueError, match="did you mean 'grpo'"):
        study.paired(RUNS, "grop")


def test_reruns_differ_by_seed_alone(config):
    first, second = study.reruns(config(steps=2, seed=4), 2)
    assert [row["step"] for row in first] == [1, 2]
    assert first[0]["reward"] != second[0]["reward"] or first[1]["grad_norm"] != second[1]["grad_norm"]
    assert str(study.reruns(config(steps=2, seed=5), 1)) == str([second])  # as text, since NaN is not NaN
