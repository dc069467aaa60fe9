"""Measures, parts and spectra of the exact laboratory."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from sspo_teach import METHODS
from sspo_teach.catalog import Method
from sspo_teach.exact import measures, moments
from sspo_teach.exact.problem import drifted, problem, sequence_is
from sspo_teach.objectives.normalize import sequence_sum
from sspo_teach.types import Verified

HERE = problem(letters=2, length=3, prompts=2, levels=3, solved=0.6, seed=3)
FAR = drifted(HERE, "random", 0.2)
IDEAL = Method(sequence_is, Verified.NOTES)


def taken(here, row, group=0, normalize=None):
    draws = moments.group_draws(here, row, group) if group else moments.population_draws(here)
    coef = moments.coefficients(here, row, draws, normalize=normalize)
    return draws, coef, moments.expected(here, draws, coef)


def test_the_yardstick_measures_nothing_but_noise():
    found = measures.compare(FAR, moments.of(FAR, IDEAL), batch=8)
    assert found["bias"] == pytest.approx(0, abs=1e-12)
    assert (found["cosine"], found["scale"]) == (pytest.approx(1), pytest.approx(1))
    assert found["mse"] == pytest.approx(found["trace"] / 8)
    assert found["bias_scaled"] < 1e-6


@pytest.mark.parametrize("name", ["grpo", "sspo", "dapo"])
def test_the_best_multiples_are_the_best(name):
    found = moments.of(FAR, METHODS[name], 3)
    report = measures.compare(FAR, found, batch=16)
    g, m, gg = FAR.truth, found.mean, FAR.truth.square().sum()

    def bias(a):
        return float((a * m - g).norm() / gg.sqrt())

    def mse(a):
        return float(((a * m - g).square().sum() + a**2 * found.trace / 16) / gg)

    around = [report["scale"] * x for x in (0.99, 1, 1.01)]
    assert report["bias_scaled"] == pytest.approx(bias(around[1]))
    assert bias(around[0]) > bias(around[1]) < bias(around[2])
    grid = torch.linspace(0, 2 * report["scale"], 4001, dtype=torch.float64)
    assert report["mse_scaled"] == pytest.approx(min(mse(float(a)) for a in grid), abs=1e-6)
    assert report["trace_scaled"] == pytest.approx(report["scale"] ** 2 * found.trace / float(gg))
    doubled = replace(found, mean=2 * found.mean, trace=4 * found.trace)
    again = measures.compare(FAR, doubled, batch=16)
    for key in ("cosine", "bias_scaled", "trace_scaled", "mse_scaled"):
        assert again[key] == pytest.approx(report[key])
    assert again["bias"] != pytest.approx(report["bias"])


@pytest.mark.parametrize(("name", "group"), [("grpo", 0), ("dapo", 3), ("rloo", 2)])
def test_weights_are_the_methods_weights(name, group):
    draws, coef, _ = taken(FAR, METHODS[name], group)
    weight = measures.weights(draws, coef, FAR, moments.normalizer_of(METHODS[name], FAR))
    ratio = (FAR.logp - FAR.logp_old)[draws.response].exp()
    real = ~weight.isnan()
    A = draws.advantage.expand(ratio.shape)
    low, high = {"grpo": (0.8, 1.2), "dapo": (0.8, 1.28), "rloo": (0, math.inf)}[name]
    silent = ((A > 0) & (ratio > high)) | ((A < 0) & (ratio < low))
    wanted = torch.ones_like(ratio) if name == "rloo" else ratio.masked_fill(silent, 0.0)
    assert torch.allclose(weight[real], wanted[real], rtol=0, atol=1e-9)
    assert draws.chance.sum().item() == pytest.approx(1)


def test_removed_signal_is_the_definition():
    row = METHODS["grpo"]
    draws, coef, _ = taken(FAR, row)
    found = measures.removed(FAR, draws, measures.weights(draws, coef, FAR, moments.normalizer_of(row, FAR)))
    sums = {name: [0.0, 0.0] for name in ("positive", "negative", "corrective", "extending")}
    for y in range(FAR.tree.size):
        for t in range(int(FAR.tree.lengths[y])):
            A, r = draws.advantage[y].item(), (FAR.logp - FAR.logp_old)[y, t].exp().item()
            kept = 0.0 if (A > 0 and r > 1.2) or (A < 0 and r < 0.8) else r
            mass = FAR.chances[y].item() / 2 * abs(A)
            for name in ("positive" if A > 0 else "negative", "corrective" if A * (r - 1) < 0 else "extending"):
                sums[name][0] += mass * kept
                sums[name][1] += mass * r
    for name, (kept, whole) in sums.items():
        assert found[f"removed_{name}"] == pytest.approx(1 - kept / whole, abs=1e-9)
    assert found["removed_corrective"] == pytest.approx(0, abs=1e-12)
    assert found["removed_extending"] > 0.05


def test_a_method_that_removes_nothing_removes_nothing():
    draws, coef, _ = taken(FAR, METHODS["reinforce"])
    found = measures.removed(FAR, draws, measures.weights(draws, coef, FAR, sequence_sum))
    assert found == pytest.approx(dict.fromkeys(found, 0.0), abs=1e-12)


def test_used_is_the_effective_share():
    draws, coef, _ = taken(FAR, METHODS["rloo"])
    assert measures.used(draws, measures.weights(draws, coef, FAR, sequence_sum)) == pytest.approx(1)
    draws, coef, _ = taken(FAR, IDEAL)
    weight = measures.weights(draws, coef, FAR, sequence_sum)
    assert 0.3 < measures.used(draws, weight) < 0.9
    assert FAR.sample_size == pytest.approx(2 / (FAR.chances * FAR.ratio**2).sum().item())


@pytest.mark.parametrize("group", [0, 3])
def test_parts_add_up(group):
    draws, coef, found = taken(FAR, METHODS["sspo"], group)
    rows = {row["part"]: row for row in measures.parts(FAR, draws, coef)}
    gg = float(FAR.truth @ FAR.truth)
    for names in (("positive", "negative"), [f"length {n}" for n in (1, 2, 3)]):
        assert sum(rows[n]["along"] for n in names) == pytest.approx(float(found.mean @ FAR.truth) / gg)
    if not group:
        assert rows["positive"]["ideal"] + rows["negative"]["ideal"] == pytest.approx(1)
    for row in measures.parts(FAR, *taken(FAR, IDEAL, group)[:2]):
        assert row["along"] == pytest.approx(row["ideal"])
        assert row["bias"] < 1e-12
        assert row["trace"] > 0


def test_parts_of_their_own_scale():
    draws, coef, _ = taken(FAR, METHODS["sspo"])
    for one, two in zip(measures.parts(FAR, draws, coef, scale=2.0), measures.parts(FAR, draws, 2 * coef), strict=True):
        assert one == pytest.approx({**two})


def test_eigenvalues_are_the_covariances():
    found = moments.of(FAR, METHODS["sspo"], 3, spread=True)
    matrix = moments.covariance(FAR, found)
    wanted = torch.linalg.eigvalsh(matrix).flip(0)[:20]
    assert torch.allclose(moments.eigenvalues(FAR, found), wanted, atol=1e-12)
    assert moments.eigenvalues(FAR, found, 500).sum().item() == pytest.approx(found.trace)
    with pytest.raises(ValueError, match="take them with spread=True"):
        moments.eigenvalues(FAR, replace(found, spread=None))


@pytest.mark.parametrize("group", [2, 3, 4])
def test_dead_groups(group):
    sums = []
    for p in range(2):
        rows = HERE.tree.prompt == p
        sums.append(
            sum(HERE.chances[rows & (HERE.rewards == r)].sum().item() ** group for r in HERE.rewards.unique().tolist())
        )
    assert HERE.dead(group) == pytest.approx(sum(sums) / 2)


@pytest.mark.parametrize("name", ["rloo", "grpo", "sspo", "dapo"])
def test_parts_do_not_depend_on_how_groups_are_counted(name):
    """By classes, or every group by itself: dapo's 1/tokens changes from group to group."""
    here = drifted(problem(letters=2, length=2, prompts=2, solved=0.6, seed=1), "random", 0.2)
    row = METHODS[name]
    by_class = moments.group_draws(here, row, 3)
    two = [(by_class, moments.coefficients(here, row, by_class)), moments.every_group(here, row, 3)]
    normalize = moments.normalizer_of(row, here)
    for a, b in zip(*(measures.parts(here, draws, coef, scale=1.3) for draws, coef in two), strict=True):
        assert a.pop("part") == b.pop("part")
        assert a == pytest.approx(b, rel=1e-9, abs=1e-12)
    weights = [measures.weights(draws, coef, here, normalize) for draws, coef in two]
    if name != "dapo":  # there a class fixes 1/tokens by the group that holds it, here a row has its own
        assert weights[0][~weights[0].isnan()].sort().values[0] == pytest.approx(
            weights[1][~weights[1].isnan()].min().item()
        )
    taken = [measures.removed(here, draws, w) for (draws, _), w in zip(two, weights, strict=True)]
    assert taken[0] == pytest.approx(taken[1], abs=1e-12)
    used = [measures.used(draws, w) for (draws, _), w in zip(two, weights, strict=True)]
    assert used[0] == pytest.approx(used[1])


def test_parts_of_a_coupled_method_add_up():
    here = drifted(problem(letters=2, length=2, prompts=2, solved=0.6, seed=1), "random", 0.2)
    draws, coef = moments.every_group(here, METHODS["bapo"], 3)
    found = {row["part"]: row for row in measures.parts(here, draws, coef)}
    whole = float(moments.enumerated(here, METHODS["bapo"], 3).mean @ here.truth / (here.truth @ here.truth))
    assert found["positive"]["along"] + found["negative"]["along"] == pytest.approx(whole)
    lengths = [row["along"] for name, row in found.items() if name.startswith("length")]
    assert sum(lengths) == pytest.approx(whole)
