"""Group statistics against loops, at their edges, and in the libraries' dialects."""

from functools import partial
from statistics import fmean, pstdev, stdev

import pytest
import torch

from sspo_teach import Rollout
from sspo_teach.objectives.advantages import (
    DIALECTS,
    centered,
    group_centered,
    group_leave_one_out,
    group_normalized,
    has_signal,
    leave_one_out,
    normalized,
)

IDS = torch.tensor([7, 3, 7, 3, 7, 9, 9, 3, 7])  # sizes 4, 3, 2, in no order
REWARDS = torch.randn(9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def loops(rule):
    out = []
    for i, group in enumerate(IDS.tolist()):
        members = [REWARDS[j].item() for j, other in enumerate(IDS.tolist()) if other == group]
        rest = [REWARDS[j].item() for j, other in enumerate(IDS.tolist()) if other == group and j != i]
        out.append([rule(REWARDS[i].item(), members, rest)])
    return torch.tensor(out, dtype=torch.float64)


@pytest.mark.parametrize(
    ("estimator", "rule"),
    [
        (normalized, lambda r, all_, rest: (r - fmean(all_)) / (pstdev(all_) + 1e-6)),
        (partial(normalized, **DIALECTS["trl"]), lambda r, all_, rest: (r - fmean(all_)) / (stdev(all_) + 1e-4)),
        (partial(normalized, **DIALECTS["verl"]), lambda r, all_, rest: (r - fmean(all_)) / (stdev(all_) + 1e-6)),
        (centered, lambda r, all_, rest: r - fmean(all_)),
        (leave_one_out, lambda r, all_, rest: r - fmean(rest)),
    ],
)
def test_loops(estimator, rule):
    expected = loops(rule)
    found = estimator(REWARDS, IDS)
    assert found.shape == (9, 1)
    assert (found - expected).abs().max() < 1e-12
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    assert (estimator(REWARDS[order], IDS[order]) - expected[order]).abs().max() < 1e-12


def test_rollout_forms_are_the_tensor_forms():
    rollout = Rollout(
        tokens=torch.zeros(9, 2, dtype=torch.int64),
        prompt_mask=torch.ones(9, 1, dtype=torch.bool),
        mask=torch.ones(9, 1, dtype=torch.bool),
        logp_old=torch.zeros(9, 1),
        rewards=REWARDS.float(),
        group_ids=IDS,
        truncated=torch.zeros(9, dtype=torch.bool),
    )
    assert group_normalized(rollout).equal(normalized(rollout.rewards, IDS))
    assert group_normalized(rollout, ddof=1, eps=1e-4).equal(normalized(rollout.rewards, IDS, ddof=1, eps=1e-4))
    assert group_centered(rollout).equal(centered(rollout.rewards, IDS))
    assert group_leave_one_out(rollout).equal(leave_one_out(rollout.rewards, IDS))
    assert group_normalized(rollout).dtype == torch.float32


@pytest.mark.parametrize("value", [0.1, 0.0, 1.0, -3.3, 1e6, 1 / 3])
@pytest.mark.parametrize("estimator", [normalized, partial(normalized, eps=1e-8), centered, leave_one_out])
def test_equal_rewards_give_exactly_zero(value, estimator):
    """Eight float32 rewards of 0.1 have a mean that is not 0.1: |A| = 0.41 at ε = 1e-8, were it not set to 0."""
    for n in (2, 3, 6, 7, 8, 10, 13):
        for dtype in (torch.float32, torch.float64):
            found = estimator(torch.full((n,), value, dtype=dtype), torch.zeros(n, dtype=torch.int64))
            assert found.equal(torch.zeros(n, 1, dtype=dtype))


def test_the_residue_is_real():
    rewards = torch.full((8,), 0.1)
    gap = rewards - rewards.mean()
    assert (gap / (gap.square().mean().sqrt() + 1e-8)).abs().max() > 0.1


def test_a_dead_group_beside_a_live_one():
    found = normalized(torch.tensor([0.1, 0.1, 0.1, 0.0, 1.0]), torch.tensor([0, 0, 0, 1, 1]))
    assert found[:3].equal(torch.zeros(3, 1))
    assert found[3:].squeeze(1).tolist() == pytest.approx([-1, 1], abs=1e-5)
    signal = has_signal(torch.tensor([0.1, 0.1, 0.1, 0.0, 1.0]), torch.tensor([0, 0, 0, 1, 1]))
    assert signal.tolist() == [False, False, False, True, True]


def test_golden():
    ids = torch.zeros(4, dtype=torch.int64)
    four = torch.tensor([0.0, 1, 1, 0])
    assert normalized(four, ids).squeeze(1).tolist() == pytest.approx([-1, 1, 1, -1], abs=1e-5)
    assert normalized(four, ids, ddof=1).squeeze(1).tolist() == pytest.approx(
        [-0.8660254, 0.8660254] * 1 + [0.8660254, -0.8660254], abs=1e-5
    )
    rare = normalized(torch.tensor([1.0] + [0] * 7), torch.zeros(8, dtype=torch.int64))
    assert rare.squeeze(1).tolist() == pytest.approx([2.64575] + [-0.37796] * 7, abs=2e-5)
    pair = normalized(torch.tensor([0.0, 1]), torch.zeros(2, dtype=torch.int64), ddof=1)
    assert pair.squeeze(1).tolist() == pytest.approx([-0.7071, 0.7071], abs=1e-4)


def test_leave_one_out_is_centered_up_to_a_factor():
    """RLOO = G/(G − 1) · Dr. GRPO."""
    ids = torch.tensor([0, 0, 0, 0, 1, 1])
    found = leave_one_out(REWARDS[:6], ids) / centered(REWARDS[:6], ids)
    assert found.squeeze(1).tolist() == pytest.approx([4 / 3] * 4 + [2] * 2)


@pytest.mark.parametrize("estimator", [normalized, centered, leave_one_out])
def test_a_group_of_one_is_refused(estimator):
    with pytest.raises(ValueError, match=r"group_ids holds 5 only once: .* sample at least 2 responses per prompt"):
        estimator(torch.tensor([1.0, 0.0, 1.0]), torch.tensor([4, 4, 5]))


def test_other_refusals():
    ids = torch.tensor([0, 0])
    with pytest.raises(ValueError, match=r"rewards has shape \(2, 1\) and group_ids \(2,\): both must be \(B,\)"):
        normalized(torch.zeros(2, 1), ids)
    with pytest.raises(ValueError, match=r"rewards is nan at row 1: every response needs a finite reward"):
        normalized(torch.tensor([0.0, float("nan")]), ids)
    with pytest.raises(ValueError, match=r"ddof must lie in \[0, 1\], got 2"):
        normalized(torch.tensor([0.0, 1.0]), ids, ddof=2)
    with pytest.raises(ValueError, match=r"eps must lie in \[0, inf\], got -1"):
        normalized(torch.tensor([0.0, 1.0]), ids, eps=-1)


def test_integer_rewards():
    assert centered(torch.tensor([0, 1]), torch.tensor([0, 0])).squeeze(1).tolist() == [-0.5, 0.5]
