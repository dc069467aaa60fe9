"""Pairs, critics, trackers and derived facts: numbers by hand or by another program, limits, identities, bad input."""

import math
import re
from functools import partial

import pytest
import torch
from oracles import oracle

from sspo_teach import METHODS, credit, method
from sspo_teach.catalog import KNOWN
from sspo_teach.checks import sample
from sspo_teach.controllers import MarginSchedule
from sspo_teach.critics import SuccessTracker
from sspo_teach.objectives import click, conspo, grpo, ppo, ppo_gae, sppo
from sspo_teach.objectives.advantages import normalized
from sspo_teach.objectives.derived import entropy_slope, projection, rescue
from sspo_teach.objectives.normalize import sequence_sum, token_mean

F64 = torch.float64
S = torch.tensor([-0.9, -1.1, -0.7, -1.0, -1.3], dtype=F64)
SIDES = torch.tensor([[1.0], [1], [-1], [-1], [-1]], dtype=F64)


def spread(s, sizes):
    """Responses whose mean log-probability is s."""
    mask = torch.arange(max(sizes)) < torch.tensor(sizes).unsqueeze(1)
    wave = torch.where(
        mask, torch.randn(len(sizes), max(sizes), generator=torch.Generator().manual_seed(0)).double(), 0
    )
    return torch.where(mask, wave - wave.sum(1, keepdim=True) / mask.sum(1, keepdim=True) + s.unsqueeze(1), 0), mask


class TestConspo:
    @pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (3, 1, 4, 2, 2)])
    def test_golden(self, sizes):
        """s = (−.9, −1.1 | −.7, −1, −1.3), m = .1, τ = .5, whatever the lengths."""
        logp, mask = spread(S, sizes)
        numbers = {"group_ids": torch.zeros(5, dtype=torch.int64), "tau": 0.5, "margin": 0.1}
        assert conspo(logp, logp, SIDES, mask, **numbers).item() == pytest.approx(1.6357650, abs=1e-7)
        by_s = credit(conspo, logp, logp, SIDES, mask, **numbers).sum(1)  # −∂L/∂s: each token carries 1/L of it
        expected = [0.7712158, 0.8341305, -0.8677520, -0.4762324, -0.2613619]
        assert by_s.tolist() == pytest.approx(expected, abs=1e-7)
        assert by_s.sum().item() == pytest.approx(0, abs=1e-15)

    @pytest.mark.parametrize(("tau", "margin"), [(0.5, 0.1), (2.0, 0.0), (0.05, 1.0)])
    @pytest.mark.parametrize("drift", [0.5, 2.0])
    def test_loops_and_no_group_gains(self, drift, tau, margin):
        batch = sample(drift, seed=3)
        ids = {"group_ids": batch.fields["group_ids"]}
        loss, expected = oracle("conspo", *batch.tensors, ids, tau=tau, margin=margin)
        found = credit(conspo, *batch.tensors, **ids, tau=tau, margin=margin)
        assert (found - expected).abs().max() < 1e-12 * expected.abs().max()
        assert conspo(*batch.tensors, **ids, tau=tau, margin=margin).item() == pytest.approx(loss, rel=1e-12)
        by_s = found.where(batch.mask, 0.0).sum(1)
        for group in range(3):
            assert by_s[batch.fields["group_ids"] == group].sum().abs() < 1e-14

    @pytest.mark.parametrize("objective", [conspo, click])
    @pytest.mark.parametrize("A", [1.0, -1.0, 0.0])
    def test_a_group_of_one_kind_says_nothing(self, objective, A):
        batch = sample(0.5)
        ids = batch.fields["group_ids"]
        advantages = torch.where((ids == 1).unsqueeze(1), A, batch.advantages)
        found = credit(objective, batch.logp, batch.logp_old, advantages, batch.mask, group_ids=ids)
        assert not found[ids == 1].any()
        assert (found[ids != 1].where(batch.mask[ids != 1], 1.0) != 0).all()
        all_of_one = torch.full_like(advantages, A)
        loss = objective(batch.logp, batch.logp_old, all_of_one, batch.mask, group_ids=ids)
        assert loss.item() == 0
        assert not credit(objective, batch.logp, batch.logp_old, all_of_one, batch.mask, group_ids=ids).any()

    def test_a_pair_is_the_logistic_loss(self):
        logp, A = torch.tensor([[-0.9], [-0.4]], dtype=F64), torch.tensor([[1.0], [-1]], dtype=F64)
        loss = conspo(logp, logp, A, logp < 0, group_ids=torch.zeros(2), tau=0.3, margin=0.2)
        assert loss.item() == pytest.approx(math.log1p(math.exp((-0.4 + 0.9 + 0.2) / 0.3)))

    def test_binary_advantages_are_labels(self):
        """Any centred advantage of rewards 0 and 1 gives the same pairs; so do their tokens."""
        batch, ids = sample(0.5), sample(0.5).fields["group_ids"]
        plain = credit(conspo, batch.logp, batch.logp_old, batch.advantages.sign(), batch.mask, group_ids=ids)
        assert credit(conspo, *batch.tensors, group_ids=ids).equal(plain)

    def test_the_identity_behind_it(self):
        """GRPO on rewards 0 and 1: 1/G Σ A s = √(p(1 − p)) (s̄₊ − s̄₋), s the clipped ratios (also DisCO, 2505.12366)."""
        rewards = torch.tensor([1.0, 0, 0, 1, 0, 0, 1, 0], dtype=F64)
        A = normalized(rewards, torch.zeros(8, dtype=torch.int64), eps=0)
        assert sorted(set(A.squeeze(1).tolist())) == pytest.approx([-0.774597, 1.29099], abs=1e-5)
        logp = 0.5 * torch.randn(8, 4, generator=torch.Generator().manual_seed(2), dtype=F64)
        ratio, right = logp.exp(), rewards == 1
        gap = ratio.clamp(max=1.2).mean(1)[right].mean() - ratio.clamp(min=0.8).mean(1)[~right].mean()
        value = -grpo(logp, 0 * logp, A, torch.ones(8, 4)).item()
        assert value == pytest.approx((math.sqrt(3 / 8 * 5 / 8) * gap).item(), rel=1e-12)


class TestClick:
    def pair(self, right, wrong, **numbers):
        logp = torch.tensor([[right / 2] * 2, [wrong / 2] * 2], dtype=F64)
        A, ids = torch.tensor([[1.0], [-1]], dtype=F64), torch.zeros(2)
        inputs = (logp, logp, A, torch.ones(2, 2))
        return click(*inputs, group_ids=ids, **numbers).item(), credit(click, *inputs, group_ids=ids, **numbers)

    def test_golden(self):
        """log P⁺ = −30, log P⁻ = −35, α = 20: 15, and every token moves by one; log P⁻ = −80: 0, and none."""
        loss, pull = self.pair(-30.0, -35.0)
        assert loss == pytest.approx(15)
        assert pull.tolist() == [[1, 1], [-1, -1]]
        loss, pull = self.pair(-30.0, -80.0)
        assert loss == 0
        assert not pull.any()

    def test_at_the_kink_it_is_active_as_pytorch_s_clamp(self):
        loss, pull = self.pair(-30.0, -50.0)
        assert loss == 0
        assert pull.tolist() == [[1, 1], [-1, -1]]

    @pytest.mark.parametrize("margin", [0.0, 1.0, 4.0, 100.0])
    def test_loops_with_some_pairs_at_peace(self, margin):
        batch = sample(2.0, seed=3)
        ids = {"group_ids": torch.tensor([0, 0, 0, 0, 1, 1])}
        loss, expected = oracle("click", *batch.tensors, ids, margin=margin)
        found = credit(click, *batch.tensors, **ids, margin=margin)
        assert (found - expected).abs().max() <= 1e-12 * expected.abs().max()
        assert click(*batch.tensors, **ids, margin=margin).item() == pytest.approx(loss, rel=1e-12)
        assert (found == 0)[batch.mask].any() == (margin < 100)

    def test_presets(self):
        assert method("click:sentiment").numbers == {"margin": 15.0}
        assert method("click:detox").numbers == METHODS["click"].numbers


class TestMargin:
    def test_it_rises_with_updates_and_is_saved(self):
        for ramp, half in (("cosine", 0.5), ("linear", 0.5)):
            one = MarginSchedule(0.4, warmup=4, ramp=ramp)
            seen = []
            for _ in range(6):
                seen.append(one.hyper()["margin"])
                one.observe(None, None)
            assert seen[0] == 0
            assert seen[2] == pytest.approx(0.4 * half)
            assert seen[4] == seen[5] == pytest.approx(0.4)
            assert seen == sorted(seen)
            again = MarginSchedule(0.4, warmup=4, ramp=ramp)
            again.load_state_dict(one.state_dict())
            assert again.hyper() == one.hyper()
        assert MarginSchedule(0.4, warmup=4, ramp="linear").hyper()["margin"] == 0
        assert seen[1] == pytest.approx(0.1)  # linear
        assert MarginSchedule(0.4, warmup=0).hyper() == {"margin": 0.4}

    def test_cosine(self):
        one = MarginSchedule(1.0, warmup=4)
        one.observe(None, None)
        assert one.hyper()["margin"] == pytest.approx((1 - math.cos(math.pi / 4)) / 2)

    def test_the_margin_of_the_method_is_the_one_it_rises_to(self):
        assert METHODS["conspo"].controller().margin == METHODS["conspo"].numbers["margin"]
        assert METHODS["conspo"].with_numbers(margin=0.7, tau=1.0).controller().margin == 0.7

    def test_in_a_run(self, trainer):
        one = trainer(method="conspo", numbers=("margin=0.3",), steps=2)
        one.run()
        assert one.controller.updates == 4
        assert one.controller.hyper()["margin"] == pytest.approx(0.3 * (1 - math.cos(math.pi * 4 / 100)) / 2)


class TestPpo:
    def test_gae_s_objective_is_ppo_under_another_normalizer(self):
        batch = sample(0.5)
        plain = credit(ppo, *batch.tensors, normalize=token_mean)
        assert credit(ppo_gae, *batch.tensors).equal(plain)

    @pytest.mark.parametrize(
        ("ratio", "A", "weight"), [(2.9, -1, 2.9), (3.1, -1, 0), (0.5, -1, 0), (1.3, 1, 0), (4, 1, 0)]
    )
    def test_dual_clip(self, ratio, A, weight):
        logp, one = torch.tensor([[math.log(ratio)]], dtype=F64), torch.ones(1, 1, dtype=F64)
        found = credit(sppo, logp, 0 * logp, A * one, one, normalize=sequence_sum).item()
        assert found == pytest.approx(A * weight)

    def test_without_a_reachable_cap_it_is_ppo(self):
        batch = sample(0.5)
        assert credit(sppo, *batch.tensors, ratio_cap=1e9).equal(credit(ppo_gae, *batch.tensors))


def test_a_tracker():
    """From (4, 4), d = .9, R = 1, 1, 0."""
    tracker, seen = SuccessTracker(decay=0.9), []
    for reward in (1, 1, 0):
        tracker.observe("x", reward)
        seen.append((*tracker.counts["x"], tracker.rate("x")))
    assert seen[0] == pytest.approx((4.6, 3.6, 0.56098), abs=1e-5)
    assert seen[1] == pytest.approx((5.14, 3.24, 0.61337), abs=1e-5)
    assert seen[2] == pytest.approx((4.626, 3.916, 0.54156), abs=1e-5)
    assert tracker.rate("another") == 0.5
    for decay, mass in ((0.875, 8), (0.96, 25)):
        tracker = SuccessTracker(decay=decay)
        for _ in range(1000):
            tracker.observe("x", 1)
        assert sum(tracker.counts["x"]) == pytest.approx(mass)
    with pytest.raises(ValueError, match=re.escape("reward must lie in [0, 1], got 2: it counts as a success")):
        tracker.observe("x", 2)


class TestProjection:
    old, new = torch.tensor([0.5, 0.3, 0.15, 0.05]).double(), torch.tensor([0.1, 0.2, 0.1, 0.6]).double()

    def test_golden(self):
        q, eta = projection(self.new.log(), self.old.log(), epsilon=0.05)
        assert eta.item() == pytest.approx(2.63764, abs=1e-5)
        assert q.tolist() == pytest.approx([0.39043, 0.32616, 0.16308, 0.12033], abs=1e-5)
        assert (q * (q / self.old).log()).sum().item() == pytest.approx(0.05)

    def test_what_is_near_enough_stays(self):
        q, eta = projection(self.new.log(), self.old.log(), epsilon=3.0)
        assert eta.item() == 0
        assert q.tolist() == pytest.approx(self.new.tolist())

    def test_no_other_distribution_within_the_bound_is_nearer(self):
        q, _ = projection(self.new.log(), self.old.log(), epsilon=0.05)
        best = (q * (q / self.new).log()).sum()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            p = torch.distributions.Dirichlet(40 * q).sample((20_000,))
        inside = (p * (p / self.old).log()).sum(1) <= 0.05
        assert inside.sum() > 1000
        assert ((p * (p / self.new).log()).sum(1)[inside] >= best).all()

    def test_batches(self):
        old = torch.stack([self.old, self.new]).log()
        q, eta = projection(torch.stack([self.new, self.new]).log(), old)
        assert eta.tolist() == pytest.approx([2.63764, 0], abs=1e-5)
        assert q[1].tolist() == pytest.approx(self.new.tolist())


def test_rescue_by_noise():
    """U(0, 1) on ρ above 1 + ε, against a grid of its quantiles."""
    ratio = torch.tensor([0.5, 1.1, 1.3, 2.0, 5.0], dtype=F64)
    share, slope = rescue(ratio, eps_high=0.2)
    noise = (torch.arange(100_000, dtype=F64) + 0.5) / 100_000
    inside = noise.unsqueeze(1) * ratio <= 1.2
    found = (noise.unsqueeze(1) * inside).mean(0)
    assert share[2:].tolist() == pytest.approx(inside.double().mean(0)[2:].tolist(), abs=1e-4)
    assert slope[2:].tolist() == pytest.approx(found[2:].tolist(), abs=1e-4)
    assert share[3].item() == pytest.approx(0.6)
    assert slope[3].item() == pytest.approx(0.18)
    assert share[:2].tolist() == slope[:2].tolist() == [1, 1]


def test_entropy():
    """p = (.6, .3, .1): reward for the first lowers entropy, for the others raises it."""
    p = torch.tensor([0.6, 0.3, 0.1], dtype=F64)
    assert entropy_slope(p).tolist() == pytest.approx([-0.13450, 0.18958, 0.23824], abs=1e-5)

    def entropy(logits):
        return -(logits.softmax(0) * logits.log_softmax(0)).sum()

    for a in range(3):
        step = 1e-6 * (torch.eye(3, dtype=F64)[a] - p)
        slope = (entropy(p.log() + step) - entropy(p.log() - step)) / 2e-6
        assert entropy_slope(p)[a].item() == pytest.approx(slope.item(), abs=1e-8)


def test_known_methods_have_no_row_and_a_number():
    assert not set(KNOWN) & set(METHODS)
    assert all(re.match(r"arXiv \d{4}\.\d{5}: .{20,}", reason) for reason in KNOWN.values())


BATCH = sample(0.3)
IDS = BATCH.fields["group_ids"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(conspo, group_ids=IDS, tau=0.0), "tau must be a positive finite number, got 0.0: try tau=1.0"),
        (
            partial(conspo, group_ids=IDS, margin=-0.1),
            "margin must lie in [0, inf], got -0.1: it is a distance in nats per token that right must keep from wrong",
        ),
        (partial(conspo, group_ids=IDS[:3]), "group_ids has shape (3,) but must be (B,) = (6,): one id per response"),
        (
            partial(click, group_ids=IDS, margin=-1.0),
            "margin must lie in [0, inf], got -1.0: it is a distance in nats per response",
        ),
        (partial(click, group_ids=IDS.unsqueeze(1)), "group_ids has shape (6, 1) but must be (B,) = (6,)"),
        (partial(sppo, ratio_cap=1.1), "ratio_cap must lie in [1.2, inf], got 1.1: it is an absolute ceiling"),
        (partial(sppo, eps_low=1.5), "eps_low must lie in [0, 1], got 1.5"),
        (partial(ppo_gae, eps_high=-0.1), "eps_high must lie in [0, inf], got -0.1"),
        (lambda *_: MarginSchedule(-0.1), "margin must lie in [0, inf], got -0.1: it is a distance"),
        (lambda *_: MarginSchedule(warmup=-1), "warmup must lie in [0, inf], got -1: it counts updates"),
        (
            lambda *_: MarginSchedule(ramp="cosin"),
            "unknown ramp: 'cosin'; did you mean 'cosine'? known: cosine, linear",
        ),
        (
            lambda *_: MarginSchedule().load_state_dict({}),
            "state must hold updates for MarginSchedule, got []: the checkpoint is of another method",
        ),
        (
            lambda *_: projection(torch.zeros(3), torch.zeros(3), epsilon=0.0),
            "epsilon must be a positive finite number",
        ),
        (lambda *_: rescue(torch.ones(1), eps_high=-1.0), "eps_high must lie in [0, inf], got -1.0: the upper edge"),
        (
            lambda *_: SuccessTracker(decay=2.0),
            "decay must lie in [0, 1], got 2.0: it is what a step leaves of the counts",
        ),
        (lambda *_: SuccessTracker(alpha=0.0), "alpha must be a positive finite number, got 0.0"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call(*BATCH.tensors)
