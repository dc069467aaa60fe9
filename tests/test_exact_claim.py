"""The paper's claim: the comparison says what the tables say, and both say it of the same problems."""

from __future__ import annotations

import math

import pytest
import torch

from sspo_teach import cli, plotting
from sspo_teach.exact import claim, measures, moments
from sspo_teach.exact.problem import drifted, problem
from sspo_teach.exact.sweep import row_of
from sspo_teach.objectives.advantages import group_leave_one_out
from sspo_teach.objectives.normalize import sequence_sum

KNOB = claim.by_knob(6)


def rows(name, errors, **place):
    at = {"drift": "random", "distance": 0.3, "setting": "all else equal", **place}
    return [{"problem": k, "method": name, **at, **dict.fromkeys(claim.MEASURES, e)} for k, e in enumerate(errors)]


def test_a_row_is_what_the_laboratory_says():
    here = problem(seed=2)
    row = claim.place(here, row_of("sspo"), "random", 0.3, "all else equal", seed=2)
    far = drifted(here, "random", 0.3, seed=2)
    from dataclasses import replace

    method = replace(row_of("sspo"), advantage=group_leave_one_out)
    found = measures.compare(far, moments.of(far, method, 4, normalize=sequence_sum), batch=16)
    assert row["mse_16"] == pytest.approx(found["mse_scaled"])
    assert row["bias"] == pytest.approx((1 - found["cosine"] ** 2) ** 0.5)
    assert row["mse_16"] > row["mse_256"] > row["mse_4096"] > row["bias"] ** 2
    published = claim.place(here, row_of("sspo"), "random", 0.3, "as published", seed=2)
    assert published["bias"] != pytest.approx(row["bias"], rel=1e-3)


def test_without_drift_all_methods_are_one_where_all_else_is_equal():
    here = problem(seed=0)
    found = [claim.place(here, row_of(name), "random", 0.0, "all else equal") for name in claim.METHODS]
    for row in found:
        assert row == pytest.approx(found[0], rel=1e-6, abs=2e-6)
    assert found[0]["bias"] < 2e-6


def test_pairs_are_taken_problem_by_problem():
    """SSPO errs twice the rival's on hard problems and on easy ones: the spread of problems does not hide it."""
    theirs = [0.01, 0.1, 0.2, 0.3, 0.4, 0.45]
    told = claim.paired(rows("sspo", [2 * e for e in theirs]) + rows("grpo", theirs))
    assert {row["measure"] for row in told} == set(claim.MEASURES)
    for row in told:
        assert row["ratio"] == pytest.approx(2)
        assert (row["low"], row["high"], row["wins"], row["verdict"]) == (
            pytest.approx(2),
            pytest.approx(2),
            0,
            "worse",
        )


def test_an_interval_over_problems():
    logs = [0.3, -0.1, 0.2, 0.4, -0.2, 0.1]  # mean 0.11667, standard error 0.09458; t(5) = 2.5706
    (row, *_) = claim.paired(rows("sspo", [math.exp(x) for x in logs]) + rows("gmpo", [1.0] * 6))
    assert row["ratio"] == pytest.approx(math.exp(0.116667), rel=1e-5)
    assert math.log(row["high"]) == pytest.approx(0.116667 + 2.5706 * 0.094575, rel=2e-3)
    assert (row["wins"], row["problems"], row["verdict"]) == (2, 6, "not told apart")
    assert claim.paired(rows("sspo", [1.0] * 5) + rows("gmpo", [2.0] * 5)) == []  # five problems are too few


@pytest.mark.parametrize(("freedom", "t"), [(5, 2.5706), (9, 2.2622), (19, 2.0930), (39, 2.0227)])
def test_student(freedom, t):
    assert claim.student(freedom) == pytest.approx(t, rel=2e-3)


def test_each_method_at_its_best_number():
    told = {(row["rival"], row["measure"]): row for row in claim.tuned(KNOB)}
    assert {rival for rival, _ in told} == set(claim.METHODS) - {"sspo"}
    for (rival, measure), row in told.items():
        for name, key in (("sspo", "number"), (rival, "rival_number")):
            mean = {
                number: sum(r[measure] for r in KNOB if (r["method"], r["number"]) == (name, number))
                for number in {r["number"] for r in KNOB if r["method"] == name}
            }
            assert min(mean, key=mean.__getitem__) == row[key]


def test_a_wider_knob_has_less_bias_and_more_noise():
    for name in claim.METHODS:
        own = {number: [r for r in KNOB if (r["method"], r["number"]) == (name, number)] for number in (0.05, 0.8)}
        if name in ("sapo", "sspo"):
            own = {number: [r for r in KNOB if (r["method"], r["number"]) == (name, number)] for number in (10.0, 1.0)}
        narrow, wide = own.values()
        assert sum(r["bias"] for r in narrow) > sum(r["bias"] for r in wide)
        assert sum(r["noise"] for r in narrow) < sum(r["noise"] for r in wide)


def test_the_command_answers(tmp_path, capsys, monkeypatch):
    few = {"METHODS": ("grpo", "sspo"), "DISTANCES": (0.1,), "TAUS": ((1.0, 1.05), (10.0, 12.0)), "LENGTHS": (2,)}
    for name, value in {**few, "SOLVED": (0.3,), "KNOBS": {k: claim.KNOBS[k][:2] for k in ("grpo", "sspo")}}.items():
        monkeypatch.setattr(claim, name, value)
    threads = torch.get_num_threads()
    assert cli.main(["claim", "--problems", "6", "--out", str(tmp_path)]) == 0
    torch.set_num_threads(threads)
    said, told = capsys.readouterr()
    assert said.startswith("6 problems, 2 methods, 4 drifts, 1 distance: about 33 s of one core\n")
    shares = [int(line.split()[1]) for line in told.splitlines() if line.startswith("claim:")]
    assert len(shares) > 5
    assert shares == sorted(shares)
    assert shares[-1] == 100
    assert "SSPO's squared error over each rival's" in said
    assert "a table of softmaxes is no language model" in said
    for name in ("by-method.csv", "answer-method.csv", "answer-part.csv", "trade-off.png", "error-ratio.png"):
        assert (tmp_path / name).stat().st_size > 100
    assert cli.main(["claim", "--problems", "3"]) == 1
    assert "problems=3: take at least 6" in capsys.readouterr().err


def test_figures_show_what_they_are_given():
    figure = plotting.trade_off(KNOB, batch=100)
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    assert set(lines) == set(claim.METHODS)
    own = [row for row in KNOB if row["method"] == "sspo" and row["number"] == 1.0]
    at = [row["number"] for row in KNOB if row["method"] == "sspo" and row["problem"] == 0].index(1.0)
    x, y = lines["sspo"].get_xydata()[at]
    assert y == pytest.approx(sum(r["bias"] for r in own) / 6)
    assert x == pytest.approx((sum(r["noise"] for r in own) / 600) ** 0.5)
