"""The token-level relatives: numbers worked out by hand or by another program, limits, identities, refused input."""

import inspect
import math
import re
from dataclasses import replace

import pytest
import torch
from exceptions import ready

from sspo_teach import METHODS, check_gate, credit, gates, method
from sspo_teach.checks import sample
from sspo_teach.objectives.normalize import response_mean, sequence_sum, token_mean
from sspo_teach.objectives.selection import banded, covariance, topmost, topmost_tokens
from sspo_teach.objectives.token_detached import binary_kl, binary_tv
from sspo_teach.tensors import log_ratio

F64 = torch.float64
BATCH = sample(0.5, seed=41)
SOFT = ["sapo", "sapo_erf", "sapo_arctan", "sapo_softsign", "sapo_directional", "sapo_gaussian", "sapo_cauchy"]


def weight(name, ratio, A=1.0, old=0.0, **numbers):
    """The weight of a one-token response, divided by A."""
    logp_old, one = torch.full((1, 1), old, dtype=F64), torch.ones(1, 1)
    objective = ready(name, one, normalize=sequence_sum, **numbers)
    return credit(objective, logp_old + math.log(ratio), logp_old, torch.full_like(logp_old, A), one).item() / A


def of(name, batch=BATCH, **numbers):
    return credit(ready(name, batch.mask, batch, **numbers), *batch.tensors)


def same(a, b, tolerance=1e-12):
    return ((a - b).abs().max() / b.abs().max()).item() < tolerance


@pytest.mark.parametrize(
    ("ratio", "hard", "directional", "sigmoid", "gauss"),
    [
        (0.5, (0.5, 0.0), (0.5, 0.4700), 0.4700, 0.4697),
        (1.2 - 1e-9, (1.2, 1.2), (1.1881, 1.2), 1.1881, None),
        (2.0, (0.0, 2.0), (1.5729, 2.0), 1.5729, 1.5576),
        (4.0, (0.0, 4.0), (0.7228, 4.0), 0.7228, 0.4216),
    ],
)
def test_four_gates_that_change_one_thing_at_a_time(ratio, hard, directional, sigmoid, gauss):
    """ε = 0.2, τ = 1 for either sign: hard, smooth on the same side, smooth on both, another kernel."""
    tau = {"tau_pos": 1.0, "tau_neg": 1.0}
    for A, side in ((1.0, 0), (-1.0, 1)):
        assert weight("grpo", ratio, A) == pytest.approx(hard[side], abs=5e-5)
        assert weight("sapo_directional", ratio, A, **tau) == pytest.approx(directional[side], abs=5e-5)
        assert weight("sapo", ratio, A, **tau) == pytest.approx(sigmoid, abs=5e-5)
        if gauss is not None:
            assert weight("sapo_gaussian", ratio, A, **tau) == pytest.approx(gauss, abs=5e-5)


@pytest.mark.parametrize(
    ("name", "largest", "peak"),
    [("sapo", 1.57467, 2.06009), ("sapo_gaussian", 1.55760, 2.0), ("sapo_cauchy", (1 + 5**0.5) / 2, 5**0.5)],
)
def test_where_the_weight_is_largest(name, largest, peak):
    assert weight(name, peak) == pytest.approx(largest, abs=5e-6)
    assert all(weight(name, peak * k) < weight(name, peak) for k in (0.99, 1.01))


class TestKernels:
    """Slopes f'(x) of the gates, by their d = x − 1."""

    def slope(self, name, d, A=1.0, **numbers):
        return weight(name, 1 + d, A, **numbers) / (1 + d)

    @pytest.mark.parametrize(
        ("name", "kernel"),
        [
            ("sapo_erf", lambda d, tau: math.exp(-(tau**2) * d**2 / 2)),
            ("sapo_arctan", lambda d, tau: 1 / (1 + tau**2 * d**2)),
            ("sapo_softsign", lambda d, tau: (1 + tau**2 * d**2) ** -1.5),
            ("sapo_gaussian", lambda d, tau: math.exp(-(tau**2) * d**2 / 4)),
            ("sapo_cauchy", lambda d, tau: 1 / (1 + tau**2 * d**2 / 4)),
        ],
    )
    @pytest.mark.parametrize("d", [-0.9, -0.2, 0.0, 0.3, 2.0])
    def test_slopes(self, name, kernel, d):
        for A, tau in ((1.0, 1.5), (-1.0, 0.7)):
            assert self.slope(name, d, A, tau_pos=1.5, tau_neg=0.7) == pytest.approx(kernel(d, tau), rel=1e-12)

    @pytest.mark.parametrize(("name", "half"), [("sapo", 1.76275), ("sapo_gaussian", 1.66511), ("sapo_cauchy", 2.0)])
    @pytest.mark.parametrize("tau", [1.0, 1.05, 2.0])
    def test_matched_curvature(self, name, half, tau):
        """Value 1, slope 0, curvature −τ²/2 at 1; the half widths then differ."""
        at = {"tau_pos": tau, "tau_neg": tau}
        h = 1e-3
        assert self.slope(name, 0.0, **at) == pytest.approx(1, abs=1e-14)
        around = [self.slope(name, d, **at) for d in (-h, h)]
        assert around[0] == pytest.approx(around[1], abs=1e-12)
        assert (sum(around) - 2) / h**2 == pytest.approx(-(tau**2) / 2, rel=1e-5)
        assert self.slope(name, half / tau, **at) == pytest.approx(0.5, abs=3e-6)

    @pytest.mark.parametrize(("name", "kappa"), [("sapo_gaussian", 0.223072), ("sapo_cauchy", 0.321825)])
    def test_matched_width(self, name, kappa):
        """At half its height every kernel has SAPO's width; the curvatures then differ."""
        row = method(f"{name}:width")
        assert row.numbers["kappa"] == pytest.approx(kappa, abs=5e-7)
        at = dict(row.numbers, tau_neg=1.0)
        half = 2 * math.acosh(2**0.5)
        for d in (half, half * 1.0 - 1e-9):
            assert self.slope(name, d, **at) == pytest.approx(0.5, abs=1e-8)
            assert self.slope("sapo", d) == pytest.approx(0.5, abs=1e-8)
        curvature = (2 * self.slope(name, 1e-3, **at) - 2) / 1e-6
        assert abs(curvature + 0.5) > 0.05

    @pytest.mark.parametrize("name", ["sapo", "sapo_erf", "sapo_arctan", "sapo_softsign"])
    def test_admissible(self, name):
        """arXiv 2602.19345: f' is largest at x = 1, where it is 1, falls away from it, and x f'(x) → 0."""
        tau = {"tau_pos": 10.0, "tau_neg": 12.0}
        for A in (1.0, -1.0):
            up = [self.slope(name, d, A, **tau) for d in (0.0, 0.05, 0.1, 0.3, 1.0, 3.0)]
            down = [self.slope(name, d, A, **tau) for d in (0.0, -0.05, -0.1, -0.3, -0.9)]
            for slopes in (up, down):
                assert slopes[0] == pytest.approx(1)
                assert slopes == sorted(slopes, reverse=True)
            assert weight(name, 1e6, A, **tau) < 1e-7

    @pytest.mark.parametrize("name", ["erf", "arctan", "softsign", "gaussian", "cauchy", "directional_sigmoid"])
    def test_gates_pass_through_one(self, name):
        more = {"kappa": 0.25} if name in ("gaussian", "cauchy") else {}
        value = getattr(gates, name)(torch.zeros(2, 1, dtype=F64), torch.tensor([[1.0], [-1.0]]), 1.0, 1.05, **more)
        assert value.flatten().tolist() == pytest.approx([1, 1], abs=1e-15)

    def test_centred_surrogates(self):
        """F(r) of the four variants at τ = 1, r = 2: f_τ(r) − 2/τ, √π/τ erf(τd/2), 2/τ arctan(τd/2)."""
        x, A = torch.tensor([[math.log(2)]], dtype=F64), torch.ones(1, 1)
        sigmoid = gates.sigmoid(x, A, 1.0, 1.0).item() - 2
        assert sigmoid == pytest.approx(4 / (1 + math.exp(-1)) - 2)
        assert gates.directional_sigmoid(x, A, 1.0, 1.0).item() - 1 == pytest.approx(sigmoid)
        assert gates.directional_sigmoid(x, -A, 1.0, 1.0).item() - 1 == pytest.approx(1.0)
        gaussian = math.sqrt(math.pi) * math.erf(0.5)
        assert gates.gaussian(x, A, 1.0, 1.0, 0.25).item() - 1 == pytest.approx(gaussian)
        assert gates.cauchy(x, A, 1.0, 1.0, 0.25).item() - 1 == pytest.approx(2 * math.atan(0.5))

    def test_the_gate_of_sspo_is_the_exponential_of_arctan(self):
        x = torch.linspace(-3, 3, 25, dtype=F64).repeat(2, 1)
        A = torch.tensor([[1.0], [-1.0]], dtype=F64)
        assert torch.allclose(gates.log_arctan(x, A, 10.0, 12.0), gates.arctan(x, A, 10.0, 12.0) - 1, atol=1e-14)

    @pytest.mark.parametrize("tau", [1.0, 30.0, 1e6])
    def test_slopes_stay_above_zero_in_float32(self, tau):
        for name in ("erf", "arctan", "softsign"):
            report = check_gate(getattr(gates, name), tau_pos=tau, tau_neg=tau)
            assert not {"increasing", "finite"} & set(report.broken)
            x = torch.linspace(0, 20, 400).requires_grad_()
            out = getattr(gates, name)(x.unsqueeze(0), torch.ones(1, 1), tau, tau)
            (slope,) = torch.autograd.grad(out.sum(), x)
            assert (slope >= 0).all()


class TestKeptGradients:
    @pytest.mark.parametrize(
        ("ratio", "A", "expected"),
        [
            (0.5, -1, -0.6),
            (0.79, -1, -0.6),
            (0.8 + 1e-12, -1, -0.8),  # the edge itself counts as inside
            (1.5, 1, 1.2),
            (1.3, -1, -1.3),
            (0.5, 1, 0.5),
        ],
    )
    def test_ce_gppo(self, ratio, A, expected):
        """ε = 0.2, β = (0.75, 1)."""
        assert weight("ce_gppo", ratio, A) * A == pytest.approx(expected, abs=1e-9)

    def test_the_edge_is_inside(self):
        lower = math.log1p(-0.2)
        x = torch.tensor([[lower]], dtype=F64, requires_grad=True)
        out = gates.kept_clip(x, -torch.ones(1, 1), 0.2, 0.2, 0.75, 1.0)
        (slope,) = torch.autograd.grad(out.sum(), x)
        assert slope.item() == pytest.approx(0.8)

    def test_a_ratio_that_underflows(self):
        """As printed, (1 − ε)/sg[ρ] · ρ is NaN in float32 from log ρ = −104 on; e^(log π − sg[log π]) is not."""
        z = torch.tensor([-105.0], requires_grad=True)
        assert ((1 - 0.2) / z.exp().detach() * z.exp()).isnan()
        out = gates.kept_clip(z.unsqueeze(0), -torch.ones(1, 1), 0.2, 0.2, 0.75, 1.0)
        (slope,) = torch.autograd.grad(out.sum(), z)
        assert out.item() == pytest.approx(0.6)
        assert slope.item() == pytest.approx(0.6)

    def test_beta_zero_is_ppo_and_one_is_gppo(self):
        none = of("ce_gppo", beta_low=0.0, beta_high=0.0)
        assert same(none, of("bnpo"))
        assert same(of("ce_gppo", beta_low=1.0), of("gppo"))
        assert not same(of("gppo"), of("bnpo"), 1e-2)

    def test_the_value_jumps_unless_beta_is_one(self):
        def value(name, z, **numbers):
            x, A, one = torch.tensor([[z]], dtype=F64), -torch.ones(1, 1, dtype=F64), torch.ones(1, 1)
            return METHODS[name].objective(x, 0 * x, A, one, **numbers).item()

        edge = math.log(0.8)
        assert value("ce_gppo", edge - 1e-9) == pytest.approx(0.75 * value("ce_gppo", edge + 1e-9))
        assert value("gppo", edge - 1e-9) == pytest.approx(value("gppo", edge + 1e-9))

    def test_gppo_has_ppo_s_value(self):
        losses = [ready(name, BATCH.mask)(*BATCH.tensors).item() for name in ("gppo", "bnpo")]
        assert losses[0] == pytest.approx(losses[1], rel=1e-14)

    def test_the_scripts_dual_clip(self):
        scripts = method("ce_gppo:scripts")
        assert scripts.numbers["ratio_cap"] == 10
        assert weight("ce_gppo", 9.9, -1, **scripts.numbers) == pytest.approx(9.9)
        assert weight("ce_gppo", 10.1, -1, **scripts.numbers) == 0
        assert method("ce_gppo:1.5b").numbers["beta_low"] == 0.5

    def test_outside_the_band_gppo_is_cispo(self):
        """Where PPO clips, both hold the weight at the edge; on the way back only CISPO does."""
        cap = {"ratio_cap": 1.2, "ratio_floor": 0.8}
        for ratio, A in ((1.5, 1), (0.5, -1), (1.1, 1)):
            assert weight("gppo", ratio, A) == pytest.approx(weight("cispo", ratio, A, **cap))
        assert weight("gppo", 1.5, -1) == pytest.approx(1.5)
        assert weight("cispo", 1.5, -1, **cap) == pytest.approx(1.2)


class TestSecondClips:
    @pytest.mark.parametrize(
        ("ratio", "A", "expected"),
        [(2.9, -1, 2.9), (3.1, -1, 0.0), (0.5, -1, 0.0), (50.0, 1, 0.0), (1.1, 1, 1.1), (0.1, 1, 0.1)],
    )
    def test_dual_clip(self, ratio, A, expected):
        assert weight("ppo_dual", ratio, A) == pytest.approx(expected)

    def test_without_a_cap_it_is_ppo(self):
        assert same(of("ppo_dual", ratio_cap=math.inf), of("ppo"))

    @pytest.mark.parametrize("delta", [1.2, 2.0, 4.0])
    def test_from_the_band_on_delta_is_the_dual_clip(self, delta):
        batch = sample(1.5, seed=43)
        assert same(of("delta_clip", batch, delta=delta), of("ppo_dual", batch, ratio_cap=delta))

    def test_a_smaller_delta_closes_the_band_early_for_good_tokens_only(self):
        assert weight("delta_clip", 1.15, 1, delta=1.1) == 0
        assert weight("ppo", 1.15, 1) == pytest.approx(1.15)
        assert weight("delta_clip", 1.15, -1, delta=1.1) == pytest.approx(1.15)
        assert weight("delta_clip", 1.25, -1, delta=1.1) == 0

    def test_roll_s_constant(self):
        assert method("ppo_dual:roll").numbers == {"eps_low": 0.2, "eps_high": 0.2, "ratio_cap": 1.4}

    def test_bnpo_is_dapo_without_the_wider_edge(self):
        assert same(of("bnpo"), of("dapo", eps_high=0.2))
        assert same(of("bnpo", normalize=response_mean), of("grpo"))


class TestProbabilities:
    @pytest.mark.parametrize(
        ("old", "new", "ratio", "tv", "kl"),
        [(0.0001, 0.01, 100, 0.0099, 0.0095), (0.99, 0.80, 0.808, 0.19, 0.181)],
    )
    def test_the_examples_of_dppo(self, old, new, ratio, tv, kl):
        z, log_old = (torch.tensor([[math.log(x)]], dtype=F64) for x in (new / old, old))
        ones = torch.ones(1, 1, dtype=torch.bool)
        assert z.exp().item() == pytest.approx(ratio, rel=1e-3)
        assert binary_tv(z, log_old, ones).item() == pytest.approx(tv, rel=1e-9)
        assert binary_kl(z, log_old, ones).item() == pytest.approx(kl, abs=5e-4)

    def test_who_is_cut(self):
        """δ = 0.2 cuts neither token of the example, 0.15 the second one (A < 0); PPO cuts both."""
        rare, likely = (100.0, 1.0, math.log(1e-4)), (0.8 / 0.99, -1.0, math.log(0.99))
        wide = {"delta_low": 0.2, "delta_high": 0.2}
        assert weight("dppo_tv", *rare, **wide) == pytest.approx(100)
        assert weight("dppo_tv", *rare) == pytest.approx(100)
        assert weight("dppo_tv", *rare, ratio_cap=5.0) == 5
        assert weight("dppo_tv", *likely, **wide) == pytest.approx(0.808, abs=1e-3)
        assert weight("dppo_tv", *likely) == 0
        assert weight("dppo_kl", *rare) == pytest.approx(100)
        assert weight("dppo_kl", *likely) == 0
        assert weight("dppo_tv", likely[0], 1.0, likely[2]) == pytest.approx(0.808, abs=1e-3)  # the way back
        assert weight("ppo", rare[0], 1.0) == 0

    def test_the_tv_region_is_a_band_by_probability(self):
        """|π_θ − π_old| ≤ δ is |ρ − 1| ≤ δ/π_old: the token's own band, in PPO's rule."""
        band = 0.05 / BATCH.logp_old.exp()

        def by_probability(logp, logp_old, advantages, mask):
            log_r = log_ratio(logp, logp_old, mask)
            lower, upper = (-band.clamp(max=1 - 1e-12)).log1p(), band.log1p()
            return -token_mean(gates.log_clip(log_r, advantages, lower, upper).exp() * advantages, mask)

        assert same(of("dppo_tv", delta_low=0.05, delta_high=0.05), credit(by_probability, *BATCH.tensors))

    def test_without_a_region_it_is_the_plain_weight(self):
        proper = replace(BATCH, logp=BATCH.logp.clamp(max=-0.01))  # else π_θ − π_old may exceed 1
        free = {"delta_low": 1.0, "delta_high": 1.0}
        assert same(of("dppo_tv", proper, **free), of("reinforce", proper, normalize=token_mean))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_a_probability_rounded_to_one(self, dtype):
        zero, A, ones = torch.zeros(1, 3, dtype=dtype), torch.tensor([[-1.0]], dtype=dtype), torch.ones(1, 3)
        logp = torch.tensor([[0.0, -1e-4, -30.0]], dtype=dtype)
        found = credit(METHODS["dppo_kl"].objective, logp, zero, A, ones)
        assert found.isfinite().all()
        assert (3 * found)[0].tolist() == pytest.approx([-1.0, -0.9999, 0.0], abs=1e-5)


class TestOthers:
    @pytest.mark.parametrize(
        ("ratio", "A", "expected"),
        [
            (0.5, 1, 2.0),
            (1.1, 1, 1 / 1.1),
            (1.3, 1, 0.0),
            (0.2, 1, 3.0),
            (2.0, -1, 2.0),
            (5.0, -1, 3.0),
            (0.7, -1, 0.0),
        ],
    )
    def test_aspo(self, ratio, A, expected):
        """1/ρ for A > 0, ρ for A < 0, none beyond 3, PPO's mask first."""
        assert weight("aspo", ratio, A) == pytest.approx(expected)

    @pytest.mark.parametrize(("ratio", "A", "expected"), [(0.01, 1, 1), (9.0, 1, 1), (0.3, -1, 0.3), (9.0, -1, 1)])
    def test_topr(self, ratio, A, expected):
        assert weight("topr", ratio, A) == pytest.approx(expected)

    def test_gpg_and_rloo_are_one_but_for_the_normalizer(self):
        assert same(of("gpg", normalize=sequence_sum), of("rloo"))

    def test_dro(self):
        """β = 0 is gpg; what A asks for is reached at log ρ = A/β."""
        assert same(of("dro", beta=0.0), of("gpg"))
        assert weight("dro", math.exp(0.7 / 2), 0.7, beta=2.0) == pytest.approx(0, abs=1e-12)
        assert weight("dro", math.exp(-0.7 / 2), -0.7, beta=2.0) == pytest.approx(0, abs=1e-12)

    @pytest.mark.parametrize("eps", [0.1, 0.2])
    def test_spo_turns_around_at_the_edge(self, eps):
        for A in (1.0, -2.0):
            edge = 1 + math.copysign(eps, A)
            assert weight("spo_simple", edge, A, eps=eps) == pytest.approx(0, abs=1e-12)
            assert weight("spo_simple", 1 + math.copysign(1.5 * eps, A), A, eps=eps) < 0
            ratio = 1 + math.copysign(0.5 * eps, A)
            assert weight("spo_simple", ratio, A, eps=eps) == pytest.approx(ratio / 2)

    def test_pspo_is_no_gate_but_for_a_constant(self):
        assert weight("pspo", 3.0, 1) == pytest.approx(2.7)
        assert weight("pspo", 3.0, -1, alpha=0.5) == pytest.approx(1.5)
        plain = of("reinforce", normalize=token_mean)
        assert same(of("pspo"), 0.9 * plain)
        assert same(of("pspo", alpha=0.0), plain)

    def test_pspo_is_the_ratio_of_a_mixture(self):
        mixed = (0.9 * BATCH.logp.exp() + 0.1 * BATCH.logp_old.exp()) / BATCH.logp_old.exp()
        log_r = BATCH.logp - BATCH.logp_old
        assert torch.allclose(gates.smoothed(log_r, BATCH.advantages, 0.1), mixed, rtol=1e-12)

    def test_scopic_is_sapo_with_one_temperature(self):
        for tau in (2.0, 4.0):
            both = {"tau_pos": tau, "tau_neg": tau}
            assert same(of("scopic", tau=tau, normalize=response_mean), of("sapo", **both))
        assert method("scopic:atari").numbers == {"tau": 2.0}

    def test_maspo(self):
        """σ = 1, π_old = 1/2, A = ±1: s = 2^0.3 · 1.03 and 2^0.3/1.03."""
        old = math.log(0.5)
        for A, ratio, s in ((1.0, 2.0, 2**0.3 * 1.03), (-1.0, 0.5, 2**0.3 / 1.03)):
            expected = ratio * math.exp(-((ratio - 1) ** 2) / (2 * s**2))
            assert weight("maspo", ratio, A, old) == pytest.approx(expected)
        assert weight("maspo", 2.0, -1.0, old) == pytest.approx(2)
        assert weight("maspo", 0.5, 1.0, old) == pytest.approx(0.5)
        rare = weight("maspo", 3.0, 1.0, -50.0)  # π_old^(−0.3) = 3.3e6: the cap of 10 holds
        assert rare == pytest.approx(3 * math.exp(-4 / 200))

    def test_maspo_of_one_width_is_a_directional_gaussian(self):
        plain = {"sigma": 0.5, "power": 0.0, "risk": 0.0}
        kernel = {"tau_pos": 2.0, "tau_neg": 2.0, "kappa": 0.5}  # κτ² = 1/(2σ²)
        log_r = (BATCH.logp - BATCH.logp_old).where(BATCH.mask, 0.0)
        beyond = gates.extending(log_r, BATCH.advantages)
        both, none = of("sapo_gaussian", **kernel), of("reinforce", normalize=response_mean)
        assert same(of("maspo", **plain), both.where(beyond, none))

    def test_directional_is_sapo_beyond_and_nothing_on_the_way_back(self):
        log_r = (BATCH.logp - BATCH.logp_old).where(BATCH.mask, 0.0)
        beyond = gates.extending(log_r, BATCH.advantages)
        none = of("reinforce", normalize=response_mean)
        assert same(of("sapo_directional"), of("sapo").where(beyond, none))

    def test_the_study_s_gates_are_kernels_of_other_widths(self):
        assert same(of("sapo_erf"), of("sapo_gaussian", tau_pos=10.0, tau_neg=12.0, kappa=0.5))
        assert same(of("sapo_arctan"), of("sapo_cauchy", tau_pos=10.0, tau_neg=12.0, kappa=1.0))
        for name in ("sapo_erf", "sapo_arctan", "sapo_softsign"):
            assert METHODS[name].numbers == {"tau_pos": 10.0, "tau_neg": 12.0} == method(f"{name}:gate-study").numbers

    @pytest.mark.parametrize("name", SOFT)
    def test_temperature_to_zero_and_to_infinity(self, name):
        none = of("reinforce", normalize=response_mean)
        assert same(of(name, tau_pos=1e-6, tau_neg=1e-6), none, 1e-9)
        huge = of(name, tau_pos=1e8, tau_neg=1e8)
        log_r = (BATCH.logp - BATCH.logp_old).where(BATCH.mask, 0.0)
        left = gates.extending(log_r, BATCH.advantages) if name == "sapo_directional" else BATCH.mask
        assert huge[left].abs().max() < 1e-6 * none.abs().max()

    @pytest.mark.parametrize("name", ["scopic", "sapo_arctan", "pspo", "gppo", "dppo_tv"])
    def test_one_ratio_in_a_response(self, name):
        """Token-level rules see one token: where all share a ratio, all share the weight of a response of one."""
        z = torch.tensor([[0.3], [-0.4], [0.1], [0.5], [-0.2], [0.2]], dtype=F64)
        logp_old = torch.full((6, 7), -1.0, dtype=F64)
        long = credit(ready(name, BATCH.mask, normalize=sequence_sum), logp_old + z, logp_old, *BATCH.tensors[2:])
        one = torch.ones(6, 1)
        short = (logp_old[:, :1] + z, logp_old[:, :1], BATCH.advantages, one)
        assert same(long, credit(ready(name, one, normalize=sequence_sum), *short).where(BATCH.mask, 0.0))


class TestSelection:
    def loops(self, batch):
        tokens = [(i, t) for i in range(6) for t in range(7) if batch.mask[i, t]]
        a = [batch.advantages[i, 0].item() for i, t in tokens]
        lp = [batch.logp[i, t].item() for i, t in tokens]
        gap = [x - sum(a) / len(a) for x in a], [x - sum(lp) / len(lp) for x in lp]
        return {token: x * y for token, x, y in zip(tokens, *gap, strict=True)}

    def test_covariance(self):
        found, expected = covariance(*(getattr(BATCH, x) for x in ("logp", "advantages", "mask"))), self.loops(BATCH)
        for i in range(6):
            for t in range(7):
                assert found[i, t].item() == pytest.approx(expected.get((i, t), 0.0), abs=1e-12)
        assert found.sum().item() != 0  # an average of it is the covariance

    @pytest.mark.parametrize("fraction", [2e-4, 0.1, 0.5, 1.0])
    def test_topmost(self, fraction):
        ranked = sorted(self.loops(BATCH).items(), key=lambda item: -item[1])
        n = max(int(fraction * len(ranked)), 1)
        chosen = topmost(BATCH.logp, BATCH.advantages, BATCH.mask, fraction=fraction)
        assert {tuple(index) for index in chosen.nonzero().tolist()} == {token for token, _ in ranked[:n]}

    def test_banded(self):
        """Only tokens inside the covariance's band that PPO leaves alone; as many as asked for; by the generator."""
        expected = {
            (i, t)
            for (i, t), cov in self.loops(BATCH).items()
            if 0.05 < cov < 0.8
            and not (BATCH.advantages[i] > 0 and BATCH.logp[i, t] - BATCH.logp_old[i, t] > math.log(1.2))
            and not (BATCH.advantages[i] < 0 and BATCH.logp[i, t] - BATCH.logp_old[i, t] < math.log(0.8))
        }
        assert 2 < len(expected) < 15

        def draw(fraction, seed=0):
            chance = torch.Generator().manual_seed(seed)
            return banded(*BATCH.tensors, chance, fraction=fraction, low=0.05, high=0.8)

        everything = draw(1.0)
        assert {tuple(index) for index in everything.nonzero().tolist()} == expected
        assert draw(2e-4).sum() == 1
        some = draw(0.1)
        assert some.sum() == 2  # of 22 tokens
        assert not (some & ~everything).any()
        assert draw(0.1).equal(some)
        assert any(not draw(0.1, seed).equal(some) for seed in range(1, 5))

    def test_nothing_to_select(self):
        chance = torch.Generator().manual_seed(0)
        assert not banded(*BATCH.tensors, chance, low=100.0, high=200.0).any()
        empty = torch.zeros_like(BATCH.mask)
        assert not banded(*BATCH.tensors[:3], empty, chance).any()
        assert not topmost(BATCH.logp, BATCH.advantages, empty).any()

    def test_padding_is_not_seen(self):
        dirty = torch.where(BATCH.mask, BATCH.logp, float("nan"))
        old = torch.where(BATCH.mask, BATCH.logp_old, float("inf"))
        A = torch.where(BATCH.mask, BATCH.advantages, float("nan"))
        clean = covariance(BATCH.logp, BATCH.advantages, BATCH.mask)
        assert covariance(dirty, A, BATCH.mask).equal(clean)
        assert topmost(dirty, A, BATCH.mask).equal(topmost(BATCH.logp, BATCH.advantages, BATCH.mask))
        numbers = {"fraction": 0.2, "low": 0.05, "high": 0.8}
        draws = [
            banded(*tensors, BATCH.mask, torch.Generator().manual_seed(1), **numbers)
            for tensors in ((dirty, old, A), (BATCH.logp, BATCH.logp_old, BATCH.advantages))
        ]
        assert draws[0].equal(draws[1])

    def test_nothing_selected(self):
        none = torch.zeros_like(BATCH.mask)
        assert same(credit(METHODS["clip_cov"].objective, *BATCH.tensors, selected=none), of("bnpo"))
        plain = of("reinforce", normalize=token_mean)
        assert same(credit(METHODS["kl_cov"].objective, *BATCH.tensors, selected=none), plain)
        assert same(of("kl_cov", beta=0.0), plain)

    def test_selected_tokens(self):
        """Clip-Cov silences them, KL-Cov pulls them to π_old; their neighbours keep their denominators."""
        chosen = BATCH.fields["selected"] & BATCH.mask
        clip, plain = of("clip_cov"), of("bnpo")
        assert not clip[chosen].any()
        assert clip[~chosen].equal(plain[~chosen])
        sign = (BATCH.logp - BATCH.logp_old).sign().where(chosen, 0.0)
        pulled = of("reinforce", normalize=token_mean) - 1.0 * sign / BATCH.mask.sum()
        assert same(of("kl_cov"), pulled)

    def test_the_hook_of_a_row_takes_its_numbers(self):
        """What ε clips, Clip-Cov leaves out of its choice: a changed ε must reach it."""
        row = METHODS["clip_cov"].with_numbers(eps_low=0.05, eps_high=0.05)
        assert row.fields.keywords == {"eps_low": 0.05, "eps_high": 0.05}
        assert METHODS["kl_cov"].with_numbers(beta=0.3).fields is topmost_tokens
        assert "selected" in inspect.signature(METHODS["clip_cov"].objective).parameters
        assert method("kl_cov:verl").numbers == {"beta": 0.1}


GOOD = {
    "logp": torch.zeros(2, 3),
    "logp_old": torch.zeros(2, 3),
    "advantages": torch.ones(2, 1),
    "mask": torch.ones(2, 3),
}


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        (
            "ppo_dual",
            {"ratio_cap": 1.1},
            "ratio_cap must lie in [1.2, inf], got 1.1: it is an absolute ceiling above the band, 3.0 in the paper",
        ),
        ("delta_clip", {"delta": 0.2}, "delta must lie in [1, inf], got 0.2: it is an absolute ceiling on the ratio"),
        ("delta_clip", {"eps_low": 1.5}, "eps_low must lie in [0, 1], got 1.5: the lower edge"),
        ("bnpo", {"eps_high": -0.1}, "eps_high must lie in [0, inf], got -0.1"),
        ("ce_gppo", {"beta_low": -0.5}, "beta_low must lie in [0, 1e+06], got -0.5: it scales the weight left outside"),
        ("ce_gppo", {"beta_high": math.inf}, "beta_high must lie in [0, 1e+06], got inf"),
        ("ce_gppo", {"ratio_cap": 1.0}, "ratio_cap must lie in [1.2, inf], got 1.0: it is an absolute ceiling"),
        ("gppo", {"eps_low": -1}, "eps_low must lie in [0, 1], got -1"),
        (
            "aspo",
            {"ratio_cap": 0.5},
            "ratio_cap must lie in [1, inf], got 0.5: it is an absolute ceiling on the weight",
        ),
        ("dppo_tv", {"delta_low": 2.0}, "delta_low must lie in [0, 1], got 2.0: it is a difference of probabilities"),
        ("dppo_kl", {"delta_high": -0.1}, "delta_high must lie in [0, inf], got -0.1: it is a KL divergence"),
        ("dppo_tv", {"ratio_cap": 0.9}, "ratio_cap must lie in [1, inf], got 0.9"),
        ("dro", {"beta": -1.0}, "beta must lie in [0, 1e+06], got -1.0: it is the strength of the pull to the old"),
        ("kl_cov", {"beta": float("nan")}, "beta must lie in [0, 1e+06], got nan"),
        ("spo_simple", {"eps": 0.0}, "eps must be a positive finite number, got 0.0: try eps=1.0"),
        ("pspo", {"alpha": 1.1}, "alpha must lie in [0, 1], got 1.1: it is the share of π_old in the smoothed policy"),
        ("scopic", {"tau": 0.0}, "tau must be a positive finite number, got 0.0: try tau=1.0"),
        ("scopic", {"tau": 1e300}, "tau must lie in [1e-06, 1e+09], got 1e+300"),
        ("sapo_softsign", {"tau_neg": -2.0}, "tau_neg must be a positive finite number, got -2.0"),
        ("sapo_directional", {"tau_pos": 0.0}, "tau_pos must be a positive finite number, got 0.0"),
        ("sapo_gaussian", {"kappa": 0.0}, "kappa must be a positive finite number, got 0.0: try kappa=1.0"),
        ("sapo_cauchy", {"kappa": math.inf}, "kappa must be a positive finite number, got inf"),
        ("maspo", {"sigma": 0.0}, "sigma must be a positive finite number, got 0.0"),
        ("maspo", {"power": -0.3}, "power must lie in [0, inf], got -0.3: rarer tokens get the wider gate"),
        ("maspo", {"risk": "0.1"}, "risk must lie in [0, inf], got '0.1'"),
        ("topr", {"ratio_cap": 2.0}, "unknown argument of topr: 'ratio_cap'; known: normalize"),
        ("gpg", {"eps": 2.0}, "unknown argument of gpg: 'eps'; known: normalize"),
    ],
)
def test_numbers(name, numbers, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ready(name, GOOD["mask"], **numbers)(**GOOD)


def test_bad_shares():
    with pytest.raises(ValueError, match=r"fraction must lie in \[0, 1\], got 2: it is a share of the response tokens"):
        topmost(BATCH.logp, BATCH.advantages, BATCH.mask, fraction=2)
    with pytest.raises(ValueError, match=r"fraction must lie in \[0, 1\], got -1"):
        banded(*BATCH.tensors, torch.Generator(), fraction=-1)
