"""Bands that move: their properties, what they make equal, the controller that calibrates one, and its state."""

import dataclasses
import json
import math
import re
from functools import partial
from itertools import pairwise

import oracles_bands
import pytest
import tiny
import torch
from exceptions import fields, ready

from sspo_teach import METHODS, Rollout, check_objective, credit, gates
from sspo_teach.checks import sample
from sspo_teach.controllers import ConformalBand
from sspo_teach.gates import bounds
from sspo_teach.objectives import units
from sspo_teach.objectives.normalize import response_mean, sequence_sum, token_mean
from sspo_teach.tensors import log_ratio, masked_mean
from sspo_teach.training import checkpoint
from sspo_teach.training.trainer import Trainer

F64 = torch.float64
DIVERGENCES = {
    "by_kl": oracles_bands.g_kl,
    "by_tv": oracles_bands.g_tv,
    "by_chi2": oracles_bands.g_chi2,
}


def differ(found, expected):
    return ((found - expected).abs().max() / expected.abs().max()).item()


class TestByProbability:
    p = torch.cat([torch.logspace(-7, -2, 60, dtype=F64), torch.linspace(0.011, 0.9999, 400, dtype=F64)])

    @pytest.mark.parametrize("delta", [0.001, 0.05, 0.4])
    @pytest.mark.parametrize("name", DIVERGENCES)
    def test_bounds(self, name, delta):
        """g(p, u) = g(p, l) = δ unless at 0 or 1/p; l ≤ 1 ≤ u; a likelier token has less room on both sides."""
        log_p = self.p.log().unsqueeze(0)
        lower, upper = (edge.exp().squeeze(0) for edge in getattr(bounds, name)(log_p, torch.ones_like(log_p), delta))
        g = DIVERGENCES[name]
        for p, low, high in zip(self.p.tolist(), lower.tolist(), upper.tolist(), strict=True):
            assert 0 <= low <= 1 <= high <= 1 / p * (1 + 1e-12)
            if high * p < 1 - 1e-9:
                assert g(p, high) == pytest.approx(delta, abs=1e-6)
            if low > 1e-20:
                assert g(p, low) == pytest.approx(delta, abs=1e-6)
            elif name != "by_kl":
                assert g(p, 1e-12) <= delta + 1e-6
        assert all(b >= a - 1e-12 for a, b in pairwise(lower.tolist()))
        assert all(b <= a + 1e-9 * a for a, b in pairwise(upper.tolist()))

    @pytest.mark.parametrize("name", DIVERGENCES)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, F64])
    def test_every_float_is_a_probability(self, name, dtype):
        """From one that underflowed to one that was rounded to 1, or above it by a sampler's rounding."""
        log_p = torch.tensor([[0.0, 1e-3, -1e-30, -1e-8, -1e-3, -20.0, -800.0, -1e4]]).to(dtype)
        lower, upper = getattr(bounds, name)(log_p, torch.ones_like(log_p), 0.05)
        assert not (lower.isnan() | upper.isnan()).any()
        assert (lower <= 0).all()
        assert (upper >= 0).all()

    @pytest.mark.parametrize("name", DIVERGENCES)
    def test_no_gradient_flows_through_the_solver(self, name):
        log_p = torch.full((1, 3), -1.0, requires_grad=True)
        assert not any(edge.requires_grad for edge in getattr(bounds, name)(log_p, torch.ones(1, 3), 0.05))

    def test_total_variation_is_the_fixed_clip_scaled_by_p(self):
        batch = sample(0.4)
        for p in (0.5, 0.05):
            old = torch.full_like(batch.logp, math.log(p))
            inputs = (old + batch.logp - batch.logp_old, old, batch.advantages, batch.mask)
            found = credit(METHODS["bandpo_tv"].objective, *inputs, delta=0.2 * p)
            assert differ(found, credit(METHODS["grpo"].objective, *inputs)) < 1e-12

    @pytest.mark.parametrize("divergence", ["kl", "tv", "chi2"])
    def test_rare_and_likely_tokens(self, divergence):
        """The same ratio of 1.25: silent for a likely token, alive for a rare one."""
        old = torch.tensor([[math.log(0.05), math.log(0.79)]], dtype=F64)
        one = torch.ones(1, 2, dtype=F64)
        found = credit(METHODS[f"bandpo_{divergence}"].objective, old + math.log(1.25), old, one, one)
        assert [x > 0 for x in found[0].tolist()] == [True, False]

    @pytest.mark.parametrize("delta", [1e-6, 5.0])
    @pytest.mark.parametrize("name", ["bandpo_kl", "bandpo_tv", "bandpo_chi2"])
    def test_laws_at_other_numbers(self, name, delta):
        assert check_objective(METHODS[name].objective, delta=delta, without=("stale",) if delta < 1e-3 else ())


class TestSingleTokens:
    """Responses of one token: products, prefixes and means are the token itself, only the bands differ."""

    one = sample(0.2).map(lambda x: x[:, :1] if x.ndim == 2 else x)

    def credit(self, name, **numbers):
        return credit(METHODS[name].objective, *self.one.tensors, **numbers)

    @pytest.mark.parametrize(
        ("name", "numbers", "low", "high"),
        [
            ("fspo", {}, -0.03, 0.03),
            ("fspo", {"c_low": 0.1, "c_high": 0.2}, -0.1, 0.2),
            ("ctpo", {}, -0.025, 0.05),
            ("ctpo_autodiff", {}, -0.025, 0.05),
            ("cspo", {"lower": -0.07, "upper": 0.11}, -0.07, 0.11),
            ("gspo_token", {"eps_low": 0.2, "eps_high": 0.3}, math.log(0.8), math.log(1.3)),
            ("luspo", {"eps_low": 0.2, "eps_high": 0.3}, math.log(0.8), math.log(1.3)),
        ],
    )
    def test_ppo(self, name, numbers, low, high):
        ppo = self.credit("ppo", eps_low=-math.expm1(low), eps_high=math.expm1(high))
        assert differ(self.credit(name, **numbers), ppo) < 1e-12
        assert (ppo == 0).any()
        assert (ppo != 0).any()


class TestIdentities:
    batch = sample(0.4, seed=9)

    def credit(self, name, batch=None, **numbers):
        batch = batch or self.batch
        return credit(METHODS[name].objective, *batch.tensors, **{**fields(name, batch.mask, batch), **numbers})

    @pytest.mark.parametrize("drift", [0.4, 2e-4])
    def test_gspo_token_is_gspo(self, drift):
        """As built here, for one advantage per response and for one per token."""
        batch = sample(drift, seed=9)
        per_token = dataclasses.replace(batch, advantages=batch.advantages * torch.linspace(-1, 1, 7, dtype=F64))
        for one in (batch, per_token):
            assert differ(self.credit("gspo_token", one), self.credit("gspo", one)) < 1e-12

    def test_luspo_is_gspo_times_the_length(self):
        eps = {"eps_low": 0.2, "eps_high": 0.3}
        L = self.batch.mask.sum(1, keepdim=True)
        assert differ(self.credit("luspo", **eps), L * self.credit("gspo", **eps)) < 1e-12
        gspo = METHODS["gspo"].objective(*self.batch.tensors, **eps, normalize=sequence_sum)
        assert METHODS["luspo"].objective(*self.batch.tensors, **eps).equal(gspo)

    def test_fspo_silences_what_a_band_of_c_over_sqrt_l_on_the_mean_silences(self):
        c, L = 0.3, self.batch.mask.sum(1, keepdim=True)
        silent = (self.credit("fspo", c_low=c, c_high=c) == 0) & self.batch.mask
        log_s = units.sequence(log_ratio(self.batch.logp, self.batch.logp_old, self.batch.mask), self.batch.mask)
        A = self.batch.advantages
        assert silent.equal(
            self.batch.mask & (((A > 0) & (log_s > c / L.sqrt())) | ((A < 0) & (log_s < -c / L.sqrt())))
        )
        assert silent.any()

    def test_fspo_in_an_open_band_is_differentiating_through_the_product(self):
        def through(logp, logp_old, advantages, mask):
            return -((logp - logp_old).where(mask, 0.0).sum(1).exp() * advantages[:, 0]).mean()

        found = self.credit("fspo", c_low=math.inf, c_high=math.inf)
        assert differ(found, credit(through, *self.batch.tensors)) < 1e-12

    def test_vespo_at_k_one_is_the_sequence_weight_and_at_zero_none(self):
        W = (self.batch.logp - self.batch.logp_old).where(self.batch.mask, 0.0).sum(1, keepdim=True).exp()
        plain = credit(METHODS["rloo"].objective, *self.batch.tensors, normalize=token_mean)
        tiny = {"lambda_pos": 1e-9, "lambda_neg": 1e-9}
        assert differ(self.credit("vespo", k_pos=1.0, k_neg=1.0, **tiny), W * plain) < 1e-6
        assert differ(self.credit("vespo", k_pos=1e-9, k_neg=1e-9, **tiny), plain) < 1e-6

    @pytest.mark.parametrize("k", [1e-3, 300.0])
    def test_vespo_is_finite_at_any_number(self, k):
        without = () if k < 1 else ("way back", "stale")  # a hump of width 1/√k leaves nothing away from W = k/λ
        assert check_objective(
            METHODS["vespo"].objective, k_pos=k, k_neg=k, lambda_pos=1.0, lambda_neg=k, without=without
        )

    def test_gepo_of_equal_old_probabilities_is_gspo_without_its_clip(self):
        even = torch.full_like(self.batch.logp_old, -0.7)
        batch = dataclasses.replace(self.batch, logp=even + self.batch.logp - self.batch.logp_old, logp_old=even)
        assert differ(self.credit("gepo", batch), self.credit("gspo", batch, eps_low=1.0, eps_high=math.inf)) < 1e-12

    def test_gepo_has_one_denominator_per_group(self):
        """w_i/p_i is one number in a group, and it does not fall below 1/max q nor rise above G/max q."""
        ids, mask = self.batch.fields["group_ids"], self.batch.mask
        p, q = (masked_mean(x, mask).squeeze(1).exp() for x in (self.batch.logp, self.batch.logp_old))
        w = (self.credit("gepo").sum(1) * 6 / self.batch.advantages.squeeze(1)) / p
        for group in range(3):
            own = ids == group
            assert differ(w[own], w[own].mean().expand(2)) < 1e-12
            assert 1 / q[own].max() <= w[own][0] <= 2 / q[own].max()

    def test_autodiff_collects_what_ctpo_leaves_with_each_token(self):
        stopped = self.credit("ctpo")
        collected = stopped.flip(1).cumsum(1).flip(1).where(self.batch.mask, 0.0)
        assert differ(self.credit("ctpo_autodiff"), collected) < 1e-12
        values = [METHODS[name].objective(*self.batch.tensors) for name in ("ctpo", "ctpo_autodiff")]
        assert values[0].item() == pytest.approx(values[1].item(), rel=1e-14)

    def test_ctpo_is_causal(self):
        """What comes later does not change the credit of an earlier token; in its autodiff form it does."""
        later = self.batch.logp.clone()
        later[2, 4:] += 0.02
        moved = dataclasses.replace(self.batch, logp=later)
        assert self.credit("ctpo", moved)[2, :4].equal(self.credit("ctpo")[2, :4])
        assert not self.credit("ctpo_autodiff", moved)[2, :4].equal(self.credit("ctpo_autodiff")[2, :4])

    def test_cspo_at_gspo_s_numbers_is_gspo(self):
        for drift in (0.4, 2e-4):
            batch = sample(drift, seed=9)
            assert differ(self.credit("cspo", batch), self.credit("gspo", batch)) < 1e-12

    @pytest.mark.parametrize("preset", [None, "code", "script"])
    @pytest.mark.parametrize("name", ["bapo", "bapo_printed"])
    def test_bapo_is_dapo_in_the_band_it_found(self, name, preset):
        """The share is reached, or both bounds stand at their limits."""
        numbers = {**METHODS[name].numbers, **(METHODS[name].presets[preset].numbers if preset else {})}
        share, *steps = numbers.values()
        mass = bounds.active_mass if name == "bapo" else bounds.printed_mass
        ends = set()
        for seed in range(20):
            batch = sample(0.4, seed=seed)
            log_r = log_ratio(batch.logp, batch.logp_old, batch.mask)
            pairs = bounds.widening(*steps)
            edges = bounds.balanced(pairs, mass, log_r, *batch.tensors[1:], share)
            low, high = (math.exp(edge) for edge in edges)
            held = (mass(log_r.exp(), batch.advantages, low, high) * batch.logp_old.exp()).where(batch.mask, 0.0)
            held = held * batch.advantages.abs()
            reached = (held.sum(1)[batch.advantages[:, 0] > 0].sum() / held.sum()).item()
            assert reached >= share - 1e-9 or (low, high) == pytest.approx(pairs[-1])
            dapo = self.credit("dapo", batch, eps_low=1 - low, eps_high=high - 1)
            assert differ(self.credit(name, batch, **numbers), dapo) < 1e-12
            ends.add(round(high, 6))
        assert len(ends) > 1

    def test_bapo_without_positive_tokens_runs_to_its_limits_and_without_negative_ones_not_at_all(self):
        batch = sample(0.4)
        log_r = log_ratio(batch.logp, batch.logp_old, batch.mask)
        for sign, expected in ((-1, (0.9, 3.0)), (1, (0.6, 1.2))):
            A = sign * batch.advantages.abs()
            pairs = bounds.widening(0.6, 0.9, 0.02, 1.2, 3.0, 0.05)
            for mass in (bounds.active_mass, bounds.printed_mass):
                found = bounds.balanced(pairs, mass, log_r, batch.logp_old, A, batch.mask, 0.4)
                assert tuple(map(math.exp, found)) == pytest.approx(expected)


BAD = [
    ("fspo", {"c_low": -0.1}, "c_low must lie in [0, inf], got -0.1: it is a half-width in log space at L = 1"),
    ("ctpo", {"eps_low": -0.1}, "eps_low must lie in [0, inf], got -0.1: it is a half-width in log space at t = 1"),
    ("ctpo", {"power": 2.0}, "power must lie in [-1, 1], got 2.0: 0.5 is the spread of a running sum, −0.5 of a"),
    ("ctpo", {"eps_dual": -1}, "eps_dual must lie in [0, inf], got -1: it is a half-width in log space at t = 1"),
    ("bandpo_kl", {"delta": 0.0}, "delta must be a positive finite number, got 0.0: try delta=1.0"),
    ("bandpo_tv", {"delta": float("nan")}, "delta must be a positive finite number, got nan"),
    ("bandpo_chi2", {"ratio_cap": 0.5}, "ratio_cap must lie in [1, inf], got 0.5: it is an absolute ceiling on the"),
    ("bapo", {"share": 1.5}, "share must lie in [0, 1], got 1.5: it is the part of all contributions that positive"),
    ("bapo", {"low_min": 0.95}, "low_max must lie in [0.95, 1], got 0.9: the band must hold the ratio 1, and low_min"),
    ("bapo", {"high_min": 0.9}, "high_min must lie in [1, 1e+06], got 0.9: the band must hold the ratio 1"),
    ("bapo_printed", {"high_max": 1.1}, "high_max must lie in [1.2, 1e+06], got 1.1: high_min comes first, and every"),
    ("bapo_printed", {"low_step": 0.0}, "low_step must lie in [0.0001, inf], got 0.0: every step costs a look at the"),
    ("vespo", {"k_neg": 0.0}, "k_neg must be a positive finite number, got 0.0: try k_neg=1.0"),
    ("cspo", {"lower": 0.1}, "lower must lie in [-inf, 0], got 0.1: the band must hold log ρ = 0"),
    ("gepo", {"group_ids": torch.zeros(3)}, "group_ids has shape (3,) but logp has (6, 7): it must be (6,), one id"),
]


@pytest.mark.parametrize(("name", "numbers", "message"), BAD)
def test_bad_numbers(name, numbers, message):
    batch = sample(0.3)
    with pytest.raises(ValueError, match=re.escape(message)):
        METHODS[name].objective(*batch.tensors, **{**fields(name, batch.mask, batch), **numbers})


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"alpha": 0.0}, "alpha must lie in [1e-06, 1], got 0.0: it is the share of scores that may fall outside"),
        ({"window": 5}, "window must lie in [19, inf], got 5: it must hold the 19 scores a band needs"),
        ({"minimum": 0}, "minimum must be a positive finite number, got 0"),
        ({"upper": -1.0}, "upper must lie in [0, inf], got -1.0: the band must hold log ρ = 0"),
    ],
)
def test_bad_bands(numbers, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ConformalBand(**numbers)


def rollout(scores, sizes=None):
    """Responses whose mean log-ratio is ``scores``: the rollout, and the log-probabilities of its update."""
    n, width = len(scores), 3
    sizes = torch.tensor(sizes or [width] * n).unsqueeze(1)
    mask = torch.arange(width) < sizes
    logp_old = torch.full((n, width), -1.0, dtype=F64)
    return Rollout(
        tokens=torch.zeros(n, width + 1, dtype=torch.int64),
        prompt_mask=torch.ones(n, 1, dtype=torch.bool),
        mask=mask,
        logp_old=logp_old.where(mask, math.nan),
        rewards=torch.zeros(n),
        group_ids=torch.zeros(n, dtype=torch.int64),
        truncated=torch.zeros(n, dtype=torch.bool),
    ), (logp_old + torch.tensor(scores, dtype=F64).unsqueeze(1)).where(mask, math.nan)


def trained(controller, *batches):
    """Each batch: the scores of its updates in turn. Returns the bands they were clipped in."""
    seen = []
    for batch in batches:
        controller.begin()
        for scores in batch:
            seen.append(dict(controller.hyper()))
            controller.observe(*rollout(scores))
    return seen


GSPO = {"lower": math.log(1 - 3e-4), "upper": math.log(1 + 4e-4)}


class TestConformalBand:
    def test_warm_up_then_order_statistics(self):
        scores = [k / 100 for k in range(-12, 8)]
        seen = trained(ConformalBand(), [[0.0], scores[:10]], [[0.0], scores[10:]], [[0.0], scores])
        assert seen[:5] == [GSPO] * 5
        band = ConformalBand()
        trained(band, [[0.0], scores])
        band.begin()
        assert band.hyper() == GSPO  # the first update of a batch is on-policy
        band.observe(*rollout([0.0]))
        assert band.hyper() == pytest.approx({"lower": -0.12, "upper": 0.07})  # ranks 1 and 20 of 20

    def test_a_step_s_own_data_never_sets_its_own_bound(self):
        scores = [k / 100 for k in range(-12, 12)]
        one, other = ConformalBand(), ConformalBand()
        same = trained(one, [[0.0], scores], [[0.0], scores])
        assert same == trained(other, [[0.0], scores], [[0.0], [9.0] * 24])
        assert one.state_dict() != other.state_dict()

    def test_updates_are_kept_apart_by_their_place(self):
        """A later update has drifted further; scores of the first are all 0 and would shut the band."""
        near, far = [k / 1000 for k in range(-12, 12)], [k / 10 for k in range(-12, 12)]
        band = ConformalBand()
        trained(band, *[[[0.0] * 24, near, far]] * 3)
        seen = trained(band, [[0.0] * 24, near, far])
        assert seen[0] == GSPO
        assert 0.008 < seen[1]["upper"] < 0.012
        assert 0.8 < seen[2]["upper"] < 1.2

    def test_the_window_forgets(self):
        band = ConformalBand(window=30)
        trained(band, *[[[0.0], [5.0] * 10]] * 3, *[[[0.0], [-0.2, 0.1] * 5]] * 3)
        assert band.scores == {1: pytest.approx([-0.2, 0.1] * 15)}
        assert trained(band, [[0.0], [1.0]])[1] == pytest.approx({"lower": -0.2, "upper": 0.1})

    def test_the_band_holds_zero(self):
        band = ConformalBand(minimum=4)
        trained(band, [[0.0], [0.3, 0.4, 0.5, 0.6] * 10])
        assert trained(band, [[0.0], [0.3]])[1] == pytest.approx({"lower": 0.0, "upper": 0.6})
        few = ConformalBand(minimum=4)
        trained(few, [[0.0], [0.3, -0.4, 0.5, 0.6]])
        assert trained(few, [[0.0], [0.3]])[1] == {"lower": -math.inf, "upper": math.inf}

    def test_nothing_that_is_not_a_score_enters(self):
        band = ConformalBand()
        band.begin()
        band.observe(*rollout([0.0]))
        batch, logp = rollout([0.1, math.nan, 0.2, math.inf, -math.inf, 0.3], [3, 2, 0, 1, 3, 1])
        band.observe(batch, logp)
        assert band.scores == {1: pytest.approx([0.1, 0.3])}
        band.observe(*rollout([0.1], [0]))
        assert band.scores[2] == []

    @pytest.mark.parametrize("alpha", [0.1, 0.2, 0.4])
    def test_fresh_exchangeable_scores_miss_at_most_alpha(self, alpha):
        draw = torch.Generator().manual_seed(0)
        band, missed, steps = ConformalBand(alpha, window=200), [], 400
        for _ in range(steps):
            band.begin()
            band.observe(*rollout([0.0]))
            scores = (0.02 * torch.randn(16, generator=draw).exp() - 0.03).tolist()  # skewed, as no normal is
            hyper = band.hyper()
            if hyper != GSPO:
                missed.append(sum(not hyper["lower"] <= s <= hyper["upper"] for s in scores) / 16)
            band.observe(*rollout(scores))
        k_lo, k_hi = bounds.ranks(200, alpha)
        miss, noise = sum(missed) / len(missed), 4 * math.sqrt(alpha / (16 * steps))
        assert (k_lo + 201 - k_hi) / 201 <= alpha
        assert (k_lo + 201 - k_hi) / 201 - 3 * noise < miss < alpha + noise

    def test_state_goes_through_json(self):
        draw = torch.Generator().manual_seed(1)
        batches = [[torch.randn(24, generator=draw).tolist() for _ in range(3)] for _ in range(4)]
        whole, half = ConformalBand(), ConformalBand()
        trained(whole, *batches[:2])
        trained(half, *batches[:2])
        again = ConformalBand()
        again.load_state_dict(json.loads(json.dumps(half.state_dict())))
        assert trained(again, *batches[2:]) == trained(whole, *batches[2:])
        assert again.state_dict() == whole.state_dict()
        with pytest.raises(ValueError, match="state must hold update and scores for ConformalBand, got \\['margin'\\]"):
            again.load_state_dict({"margin": 1})

    def test_a_killed_run_goes_on_to_the_same_end(self, config, tmp_path):
        """Two updates per batch of 16 responses: from the fourth batch on the second of them is calibrated."""
        row = METHODS["cspo"]
        bands = []

        def watching(*tensors, lower, upper, **rest):
            bands.append((lower, upper))
            return row.objective(*tensors, lower=lower, upper=upper, **rest)

        def run(name, **other):
            one = Trainer(config(method="cspo", out=str(tmp_path / name), lr=1e-2, **other), quiet=True)
            one.method = dataclasses.replace(one.method, objective=watching)
            return one

        run("whole").run()
        gspo = tuple(GSPO.values())
        assert bands[::2] == [gspo] * 6
        assert bands[1:7:2] == [gspo] * 3
        assert all(band != gspo and band[0] <= 0 <= band[1] for band in bands[7::2])
        first = run("half")
        first.on_step = lambda row, one: setattr(one, "stop", one.step == 4)
        first.run()
        kept = checkpoint.load(tmp_path / "half" / "checkpoints").state["controller"]
        assert len(kept["scores"]["1"]) == 4 * 8
        run("half", resume=True).run()
        assert tiny.outcome(tmp_path / "half") == tiny.outcome(tmp_path / "whole")


@pytest.mark.parametrize("name", ["gepo", "bapo", "bapo_printed"])
def test_why_they_are_not_separable(name):
    """Split between micro-batches that share the counts, they say something else: the trainer takes credit first."""
    found = False
    for seed in range(10):
        batch = sample(0.4, seed=seed)
        fixed = partial(response_mean, responses=6) if name == "gepo" else partial(token_mean, tokens=22)
        whole = credit(ready(name, batch.mask, batch), *batch.tensors, normalize=fixed)
        parts = []
        for rows in (torch.arange(0, 3), torch.arange(3, 6)):
            part = batch.map(lambda x, rows=rows: x[rows])
            parts.append(credit(ready(name, part.mask, part), *part.tensors, normalize=fixed))
        found |= differ(torch.cat(parts), whole) > 1e-3
    assert found


def test_a_dual_clip_may_be_a_band_as_well():
    z, A = torch.tensor([[0.4, 1.5, -0.6]], dtype=F64), torch.tensor([[-1.0]], dtype=F64)
    cap = torch.tensor([[0.5, 0.5, 0.5]], dtype=F64)
    assert gates.log_dual_clip(z, A, -0.3, 0.3, cap).tolist() == [[0.4, 0.5, -0.3]]
    assert gates.log_dual_clip(z, -A, -0.3, 0.3, cap).tolist() == [[0.3, 0.3, -0.6]]
    found = gates.dual_clip(z, A, 0.2, 0.2, 3.0)
    assert found.tolist() == [pytest.approx([math.exp(0.4), 3.0, 0.8])]
    with pytest.raises(ValueError, match=re.escape("cap must lie in [0, inf], got -1.0: the band must hold log ρ = 0")):
        gates.log_dual_clip(z, A, -0.3, 0.3, -1.0)
