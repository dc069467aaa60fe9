"""Corrections: golden factors, both levels, the sampler's own numbers in a run, and KL weighed by the ratio."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
import tiny
import torch
from exceptions import ready

from sspo_teach import METHODS, check_objective, credit
from sspo_teach.checks import sample
from sspo_teach.objectives import grpo, units
from sspo_teach.objectives.compose import corrected
from sspo_teach.objectives.corrections import (
    SAMPLER,
    geo_mask,
    icepop,
    mis,
    off_policy_sequence_mask,
    tis,
)
from sspo_teach.objectives.regularizers import k3, ratio_k3, weighted_k3
from sspo_teach.training.config import Config, method_of, resolve
from sspo_teach.training.rollout import collect
from sspo_teach.training.trainer import Clock

F64 = torch.float64
K = torch.tensor([[0.1, 0.4, 1.0, 1.9, 3.0, 8.0]], dtype=F64)
ONES = torch.ones(1, 6)


def factor(rule, k=K, mask=ONES, **numbers):
    return rule(k.log() - 3, torch.full_like(k, -3.0), mask, **numbers)


@pytest.mark.parametrize(
    ("rule", "numbers", "expected"),
    [
        (tis, {}, [0.1, 0.4, 1, 1.9, 2, 2]),
        (tis, {"cap": 5.0, "floor": 0.5}, [0.5, 0.5, 1, 1.9, 3, 5]),
        (mis, {}, [0, 0, 1, 1.9, 0, 0]),
        (mis, {"low": 0.3, "high": 4.0}, [0, 0.4, 1, 1.9, 3, 0]),
        (icepop, {}, [0, 0, 1, 1.9, 3, 0]),
    ],
)
def test_golden(rule, numbers, expected):
    assert factor(rule, **numbers)[0].tolist() == pytest.approx(expected)


def test_of_the_response():
    """Two responses of ratios (.5, 3) and (1.2, .9): products 1.5 and 1.08, geometric means 1.2247 and 1.0392."""
    k, mask = torch.tensor([[0.5, 3.0], [1.2, 0.9]], dtype=F64), torch.ones(2, 2)
    assert factor(SAMPLER["tis_sequence"], k, mask).tolist() == [pytest.approx([1.5] * 2), pytest.approx([1.08] * 2)]
    assert factor(SAMPLER["tis_sequence"], k, mask, cap=1.2)[0].tolist() == pytest.approx([1.2, 1.2])
    assert factor(SAMPLER["mis_sequence"], k, mask, high=1.2).tolist() == [[0, 0], pytest.approx([1.08] * 2)]
    assert factor(geo_mask, k, mask, low=0.9, high=1.1).tolist() == [[0, 0], [1, 1]]
    assert factor(geo_mask, k, mask).tolist() == [[0, 0], [0, 0]]
    assert factor(geo_mask, k, mask, high=1.5).tolist() == [[1, 1], [1, 1]]
    assert factor(tis, k, mask, unit=units.sequence)[0].tolist() == pytest.approx([math.sqrt(1.5)] * 2)


@pytest.mark.parametrize("name", SAMPLER)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padding_extremes_and_no_gradient(name, dtype):
    batch = sample(0.3)
    mask, logp_old = batch.mask, batch.logp_old.masked_fill(~batch.mask, math.nan).to(dtype)
    leaf = logp_old.clone().requires_grad_()
    for far in (1000.0, -1000.0, 0.0):
        found = SAMPLER[name](leaf, (batch.logp + far).to(dtype), mask)
        assert found.isfinite().all()
        assert not found.requires_grad
        assert found.shape == mask.shape
    same = SAMPLER[name](batch.logp_old, batch.logp_old, mask)
    assert same.equal(torch.ones_like(same))


class TestSequenceMask:
    """A < 0 and a mean of log π_old − log π_θ above δ: dropped."""

    old = torch.full((4, 3), -1.0, dtype=F64)
    logp = old + torch.tensor([[-0.4], [-0.6], [-0.6], [0.6]], dtype=F64)
    A = torch.tensor([[-1.0], [-1], [1], [-1]], dtype=F64)

    def test_by_hand(self):
        found = off_policy_sequence_mask(self.logp, self.old, self.A, torch.ones(4, 3))
        assert found[:, 0].tolist() == [1, 0, 1, 1]
        assert found.equal(found[:, :1].expand(4, 3))
        assert off_policy_sequence_mask(self.logp, self.old, self.A, torch.ones(4, 3), delta=0.3)[:, 0].tolist() == [
            0, 0, 1, 1,
        ]  # fmt: skip

    def test_the_mean_is_over_the_response(self):
        logp = self.old.clone()
        logp[1, 0] -= 0.9
        short = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 1], [1, 1, 1]])
        assert off_policy_sequence_mask(logp, self.old, self.A, torch.ones(4, 3))[1, 0] == 1
        assert off_policy_sequence_mask(logp, self.old, self.A, short)[1, 0] == 0

    def test_in_an_objective(self):
        """The credit of a dropped response is 0, of the others as it was: it still counts in the mean."""
        objective, mask = corrected(grpo, off_policy_sequence_mask), torch.ones(4, 3)
        plain = credit(grpo, self.logp, self.old, self.A, mask, eps_low=0.9)
        found = credit(objective, self.logp, self.old, self.A, mask, eps_low=0.9)
        assert not found[1].any()
        assert found[[0, 2, 3]].equal(plain[[0, 2, 3]])
        assert plain[1].all()


class TestCorrected:
    def test_laws_hold(self):
        for name in ("grpo", "sspo", "dapo"):
            report = check_objective(corrected(METHODS[name].objective, off_policy_sequence_mask))
            assert report, report

    def test_it_is_the_objective_on_other_advantages(self):
        batch = sample(0.4)
        sampler = batch.logp_old + 0.3 * torch.randn(6, 7, generator=torch.Generator().manual_seed(1), dtype=F64)
        k = tis(batch.logp_old, sampler, batch.mask)
        for name in ("grpo", "sspo", "conspo"):
            plain = ready(name, batch.mask, batch)
            expected = credit(plain, batch.logp, batch.logp_old, batch.advantages * k, batch.mask)
            found = credit(corrected(plain, lambda *_: k), *batch.tensors)
            assert found.equal(expected)
        assert not expected.equal(credit(grpo, *batch.tensors))

    def test_a_positive_factor_scales_grpo(self):
        """min(ρA, clip(ρ)A) k = min(ρAk, clip(ρ)Ak) for k ≥ 0: before or after the gate is one."""
        batch = sample(0.4)
        k = torch.rand(6, 7, generator=torch.Generator().manual_seed(1), dtype=F64) * 2
        found = credit(corrected(grpo, lambda *_: k), *batch.tensors)
        torch.testing.assert_close(found, k * credit(grpo, *batch.tensors), rtol=1e-12, atol=0)

    def test_numbers_and_normalizer_stay(self):
        row = dataclasses.replace(
            METHODS["sspo"], objective=corrected(METHODS["sspo"].objective, off_policy_sequence_mask)
        )
        assert row.numbers == METHODS["sspo"].numbers
        assert row.normalize(4) is METHODS["sspo"].normalize(4)
        assert row.with_numbers(tau_pos=3.0).numbers["tau_pos"] == 3.0

    def test_a_bare_advantage_is_refused(self):
        x = torch.zeros(3, 3)
        with pytest.raises(ValueError, match=r"advantages has shape \(3,\)"):
            corrected(grpo, off_policy_sequence_mask)(x, x, torch.ones(3), torch.ones(3, 3))

    def test_no_gradient_through_the_factor(self):
        batch = sample(0.4)
        found = credit(corrected(grpo, lambda logp, *_: logp.exp()), *batch.tensors)
        torch.testing.assert_close(found, batch.logp.exp() * credit(grpo, *batch.tensors), rtol=1e-12, atol=0)


class TestRatioK3:
    """On tokens of π_old: both have the value KL(π‖ref), and the gradients of the two KLs."""

    logits = torch.tensor([0.3, -0.2, 0.5], dtype=F64)
    old = torch.tensor([0.9, 0.1, -0.4], dtype=F64).log_softmax(0)
    ref = torch.tensor([-0.1, 0.4, 0.2], dtype=F64).log_softmax(0)

    def expected(self, estimator):
        leaf = self.logits.clone().requires_grad_()
        logp = leaf.log_softmax(0).unsqueeze(0)
        terms = estimator(logp, self.old.unsqueeze(0), self.ref.unsqueeze(0), torch.ones(1, 3))
        value = (self.old.exp() * terms).sum()
        return value.item(), torch.autograd.grad(value, leaf)[0]

    def exact(self, which):
        leaf = self.logits.clone().requires_grad_()
        log_pi = leaf.log_softmax(0)
        one = (log_pi.exp() * (log_pi - self.ref)).sum()
        kl = one if which == "reverse" else (self.ref.exp() * (self.ref - log_pi)).sum()
        return one.item(), torch.autograd.grad(kl, leaf)[0]

    def test_expectations(self):
        for estimator, which in ((ratio_k3, "reverse"), (weighted_k3, "forward")):
            value, slope = self.expected(estimator)
            truth, gradient = self.exact(which)
            assert value == pytest.approx(truth, rel=1e-12)
            assert (slope - gradient).abs().max() < 1e-15
        assert (self.exact("reverse")[1] - self.exact("forward")[1]).abs().max() > 1e-2
        assert (self.expected(lambda logp, old, *rest: k3(logp, *rest))[1] - gradient).abs().max() > 1e-2

    def test_of_one_token(self):
        u, z = 0.7, 0.4
        for estimator, slope in ((ratio_k3, math.exp(z) * u), (weighted_k3, math.exp(z) * (1 - math.exp(-u)))):
            logp = torch.tensor([[-1.0]], dtype=F64, requires_grad=True)
            out = estimator(logp, torch.tensor([[-1 - z]], dtype=F64), torch.tensor([[-1 - u]], dtype=F64), ONES[:, :1])
            assert out.item() == pytest.approx(math.exp(z) * (math.exp(-u) + u - 1))
            assert torch.autograd.grad(out, logp)[0].item() == pytest.approx(slope)

    def test_extremes_and_padding(self):
        logp = torch.tensor([[-1.0, math.nan, -900.0]], requires_grad=True)
        mask = torch.tensor([[1, 0, 1]])
        for estimator in (ratio_k3, weighted_k3):
            out = estimator(logp, torch.full((1, 3), -1.0), torch.full((1, 3), -2.0), mask)
            (slope,) = torch.autograd.grad(out.sum(), logp)
            assert out.isfinite().all()
            assert slope.isfinite().all()
            assert out[0, 1] == slope[0, 1] == 0


# --- in a run ---------------------------------------------------------------------------------------------------------


def rollout_of(one):
    return collect(one.policy, one.reference, one.task, one.method, one.config, 1, Clock()).rollout


@pytest.mark.parametrize("name", SAMPLER)
def test_with_the_same_weights_the_factor_is_one(trainer, name):
    one = trainer(correction=name, prompts=8, temperature=0.7)
    rollout = rollout_of(one)
    assert rollout.logp_sampler is not None
    assert rollout.select(torch.tensor([3, 1])).logp_sampler.equal(rollout.logp_sampler[[3, 1]])
    found = SAMPLER[name](rollout.logp_old, rollout.logp_sampler, rollout.mask)
    assert (found - 1).abs().max() < 1e-5
    plain = METHODS["sspo"].advantage(rollout)
    torch.testing.assert_close(one.method.advantage(rollout), plain.expand_as(rollout.mask), rtol=1e-5, atol=0)


@pytest.mark.parametrize(("name", "numbers"), [("tis", ("cap=1.1",)), ("mis_sequence", ()), ("icepop", ("low=0.9",))])
def test_a_sampler_of_its_own_changes_credit_as_the_formula_says(trainer, monkeypatch, name, numbers):
    one = trainer(correction=name, correction_numbers=numbers, method="grpo", steps=1)
    generate = one.policy.generate

    def elsewhere(*a, **b):
        made = generate(*a, **b)
        noise = 0.3 * torch.randn(made.logp.shape, generator=torch.Generator().manual_seed(1))
        return dataclasses.replace(made, logp=made.logp + noise)

    monkeypatch.setattr(one.policy, "generate", elsewhere)
    rollout = rollout_of(one)
    k = (rollout.logp_old - rollout.logp_sampler).where(rollout.mask, 0.0)
    expected = {
        "tis": k.exp().clamp(max=1.1),
        "mis_sequence": (e := k.sum(1, keepdim=True).exp()).where((e >= 0.5) & (e <= 2), 0.0),
        "icepop": k.exp().where((k.exp() >= 0.9) & (k.exp() <= 5), 0.0),
    }[name]
    assert (expected - 1).abs()[:, 0].max() > 0.05
    advantages = METHODS["grpo"].advantage(rollout)
    torch.testing.assert_close(one.method.advantage(rollout), (advantages * expected).expand_as(rollout.mask))
    one.config = dataclasses.replace(one.config, max_grad_norm=0.0)
    update = one.update(rollout, one.method.advantage(rollout), torch.arange(len(rollout.mask)))
    plain = credit(grpo, rollout.logp_old, rollout.logp_old, advantages, rollout.mask)
    torch.testing.assert_close(update.credit, (plain * expected).where(rollout.mask, 0.0))


def test_the_sequence_mask_looks_at_the_policy_of_the_moment(trainer):
    one = trainer(
        correction="sequence_mask", correction_numbers=("delta=0.2",), method="grpo", numbers=("eps_low=0.9",)
    )
    rollout = rollout_of(one)
    rollout = dataclasses.replace(rollout, logp_old=rollout.logp_old + 0.3)  # as if all had become less likely
    advantages = one.method.advantage(rollout)
    update = one.update(rollout, advantages, torch.arange(len(rollout.mask)))
    assert not update.credit[(advantages < 0).squeeze(1)].any()
    up = rollout.mask & (advantages > 0)
    assert (update.credit[up] > 0).all()
    assert up.any()


@pytest.mark.parametrize("name", ["mis", "sequence_mask"])
def test_a_run(trainer, name):
    one = trainer(correction=name, steps=2)
    assert float(tiny.history(one.run())[-1]["grad_norm"]) > 0


def test_without_a_scoring_pass_there_is_one_set_of_numbers(trainer):
    one = trainer(reuse_sampler_logp=True)
    assert rollout_of(one).logp_sampler is None


def test_every_name_is_known():
    for name in SAMPLER:
        method_of(Config(task="bandit", correction=name))
    assert method_of(Config(task="bandit")) is METHODS["sspo"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"correction": "tiss"},
            "unknown correction: 'tiss'; did you mean 'tis'? known: none, tis, tis_sequence, mis,",
        ),
        ({"correction_numbers": ("cap=3",)}, "correction_numbers='cap=3': correction='none' takes no numbers"),
        (
            {"correction": "tis", "correction_numbers": ("capp=3",)},
            "unknown name in correction_numbers: 'capp'; did you mean 'cap'? known: cap, floor",
        ),
        ({"correction": "tis", "correction_numbers": ("cap=0.5",)}, "cap must lie in [1, inf], got 0.5: it is a ratio"),
        ({"correction": "mis", "correction_numbers": ("low=1.5",)}, "low must lie in [0, 1], got 1.5: it is a ratio"),
        ({"correction": "icepop", "correction_numbers": ("high=0.5",)}, "high must lie in [1, inf], got 0.5"),
        ({"correction": "geo_mask", "correction_numbers": ("low=-1",)}, "low must lie in [0, 1], got -1.0"),
        (
            {"correction": "sequence_mask", "correction_numbers": ("delta=-1",)},
            "delta must lie in [0, inf], got -1.0: it is a divergence in nats per token",
        ),
        (
            {"correction": "icepop", "reuse_sampler_logp": True},
            "correction='icepop': with reuse_sampler_logp=True the sampler's log-probabilities are the old ones",
        ),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        resolve(Config(task="bandit", **options))
