"""The split of token and sequence gates on a minibatch of a run, with scores by projection."""

from __future__ import annotations

import copy

import pytest
import torch

from sspo_teach.exact.minibatch import cosines, projected_scores, split
from sspo_teach.training.trainer import Trainer


@pytest.fixture
def stale(config):
    trainer = Trainer(config(lr=3e-3), quiet=True)
    rollout, advantages = trainer.stale_minibatch()
    return trainer.policy, rollout, advantages


def test_the_minibatch_is_off_policy_and_nothing_is_written(config):
    trainer = Trainer(config(lr=3e-3), quiet=True)
    rollout, advantages = trainer.stale_minibatch()
    with torch.no_grad():
        log_r = trainer.policy.logp(rollout.tokens, rollout.prompt_mask) - rollout.logp_old
    assert log_r[rollout.mask].abs().max() > 1e-3
    assert advantages.shape == (len(rollout.mask), 1)
    assert len(rollout.mask) == trainer.config.rollouts // trainer.config.minibatches
    assert trainer.folder.history() == []


def test_a_score_along_a_direction_is_the_derivative(stale):
    policy, rollout, _ = stale
    scores = projected_scores(policy, rollout, directions=3, seed=5)
    probe = copy.deepcopy(policy).double()
    generator = torch.Generator().manual_seed(5)
    weights = list(probe.parameters())
    for k in range(3):
        ways = [torch.randn(w.shape, generator=generator, dtype=torch.float64) for w in weights]
        for row, t in ((0, 0), (3, 1)):
            logp = probe.logp(rollout.tokens, rollout.prompt_mask)[row, t]
            slope = torch.autograd.grad(logp, weights)
            along = sum((g * v).sum() for g, v in zip(slope, ways, strict=True)) / 3**0.5
            assert scores[row, t, k] == pytest.approx(along.item(), rel=2e-3, abs=2e-3)
    assert (scores[~rollout.mask] == 0).all()


def test_the_policy_is_left_as_it_was(stale):
    policy, rollout, _ = stale
    before = {name: weight.clone() for name, weight in policy.state_dict().items()}
    projected_scores(policy, rollout, directions=1)
    assert all(torch.equal(before[name], weight) for name, weight in policy.state_dict().items())


def test_norms_are_those_of_the_scores_on_average(stale):
    policy, rollout, _ = stale
    scores = projected_scores(policy, rollout, directions=64)
    probe = copy.deepcopy(policy).double()
    logp = probe.logp(rollout.tokens, rollout.prompt_mask)[0, 0]
    norm = sum(g.square().sum() for g in torch.autograd.grad(logp, list(probe.parameters()))).sqrt().item()
    assert scores[0, 0].norm().item() == pytest.approx(norm, rel=0.45)  # √(2/64) is 0.18 of the square


def test_the_split_adds_up_within_its_bounds(stale):
    policy, rollout, advantages = stale
    found, log_r = split(policy, rollout, tau=2.0, directions=8)
    assert torch.allclose(found.token - found.sequence, found.covariance + found.shift, atol=1e-12)
    rows = cosines(found, log_r, rollout.mask, advantages, tau=2.0)
    for row in rows[:-1]:
        assert row["gap"] <= row["gap_bound"] * (1 + 1e-9) + 1e-12
        assert row["covariance"] <= row["covariance_bound"] * (1 + 1e-9) + 1e-12
        assert 0.5 < row["cosine"] <= 1 + 1e-12
    assert rows[-1]["response"] is None
    assert len(rows) == 1 + int(rollout.mask.any(1).sum())
    assert rows[-1]["variance"] > 0


def test_bad_numbers_are_refused(stale):
    policy, rollout, _ = stale
    with pytest.raises(ValueError, match="directions=0: must be at least 1"):
        projected_scores(policy, rollout, directions=0)
    with pytest.raises(ValueError, match="temperature must be a positive"):
        projected_scores(policy, rollout, temperature=0.0)
