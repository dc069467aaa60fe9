"""Numbers worked out by hand or by another program for bands that move, products, prefixes and groups."""

import math
from itertools import pairwise, product
from statistics import NormalDist

import pytest
import torch

from sspo_teach import METHODS, credit, method
from sspo_teach.gates import bounds
from sspo_teach.objectives import units
from sspo_teach.objectives.normalize import sequence_sum

F64 = torch.float64
PHI = NormalDist().cdf


def response(z, A=1.0):
    """One response of log-ratios z under π_old = 1: logp, logp_old, advantages, mask."""
    logp = torch.tensor([z], dtype=F64)
    return logp, 0 * logp, torch.full((1, 1), A, dtype=F64), torch.ones(1, len(z))


def pull(name, z, A=1.0, **numbers):
    """What multiplies ∇log π of each token of one response, before 1/L."""
    return (credit(METHODS[name].objective, *response(z, A), **numbers)[0] * len(z)).tolist()


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


class TestCspo:
    def test_warm_up_band(self):
        numbers = METHODS["cspo"].numbers
        assert numbers["lower"] == pytest.approx(-3.00045e-4, abs=5e-10)
        assert numbers["upper"] == pytest.approx(3.9992e-4, abs=5e-9)

    @pytest.mark.parametrize(
        ("n", "alpha", "expected", "miss"),
        [
            (100, 0.1, (5, 96), 0.0990),
            (100, 0.2, (10, 91), 0.1980),
            (100, 0.4, (20, 81), 0.3960),
            (512, 0.1, (25, 488), 0.0975),
            (512, 0.2, (51, 462), 0.1988),
            (512, 0.4, (102, 411), 0.3977),
        ],
    )
    def test_ranks_and_exact_miss(self, n, alpha, expected, miss):
        k_lo, k_hi = bounds.ranks(n, alpha)
        assert (k_lo, k_hi) == expected
        assert (k_lo + n + 1 - k_hi) / (n + 1) == pytest.approx(miss, abs=5e-5)
        scores = draws(4000, n + 1, seed=n)  # uniform ranks whatever the law: normal here
        ordered = scores[:, :n].sort(dim=1).values
        fresh = scores[:, n]
        outside = (fresh < ordered[:, k_lo - 1]) | (fresh > ordered[:, k_hi - 1])
        assert outside.double().mean().item() == pytest.approx(miss, abs=4 * math.sqrt(miss / 4000))

    @pytest.mark.parametrize(("alpha", "fewest"), [(0.1, 19), (0.2, 9), (0.4, 4)])
    def test_fewest_scores_that_bound_both_sides(self, alpha, fewest):
        assert bounds.ranks(fewest, alpha) == (1, fewest)
        assert bounds.ranks(fewest - 1, alpha) == (0, fewest)
        scores = [(-1) ** k * (k + 1.0) for k in range(fewest)]
        assert all(math.isfinite(edge) for edge in bounds.calibrated(scores, alpha))
        assert bounds.calibrated(scores[1:], alpha) == (-math.inf, math.inf)

    @pytest.mark.parametrize(("n", "band"), [(100, 0.136), (512, 0.060), (2048, 0.030), (8192, 0.015)])
    def test_dkw(self, n, band):
        """√(ln(2/δ)/2n) at δ = 5 %: how far an empirical distribution strays; in 5 % of 400 at most."""
        assert math.sqrt(math.log(2 / 0.05) / (2 * n)) == pytest.approx(band, abs=5e-4)
        if n <= 2048:
            u = torch.tensor([PHI(x) for x in draws(400 * n, seed=n).tolist()]).reshape(400, n).sort(dim=1).values
            steps = torch.arange(1, n + 1) / n
            stray = torch.maximum((steps - u).abs(), (u - steps + 1 / n).abs()).amax(1)
            assert (stray > band).double().mean().item() < 0.05 + 0.03

    def test_a_band_under_another_law(self):
        """P(out) ≤ ((n + 1)α − 2)/n + 2 sup|F − F̂| ≤ α + 2 sup|F − F̂|: never violated by shifted normals."""
        n, alpha = 64, 0.2
        for seed in range(400):
            scores = draws(n, seed=seed).sort().values.tolist()
            shift, scale = draws(1, seed=10_000 + seed).item(), 1 + 0.5 * (seed % 3)
            lower, upper = (scores[k - 1] for k in bounds.ranks(n, alpha))

            def F(x, shift=shift, scale=scale):
                return PHI((x - shift) / scale)

            out = F(lower) + 1 - F(upper)
            stray = max(max(abs(F(x) - k / n), abs(F(x) - (k - 1) / n)) for k, x in enumerate(scores, start=1))
            assert out <= ((n + 1) * alpha - 2) / n + 2 * stray + 1e-12
            assert ((n + 1) * alpha - 2) / n <= alpha

    @pytest.mark.parametrize(("L", "share"), [(16, 0.968), (256, 0.873), (4096, 0.524), (16384, 0.208)])
    def test_a_fixed_band_clips_by_length(self, L, share):
        """Token log-ratios of sd .035 in GSPO's band: the mean over L has sd .035/√L, and the tail depends on L."""
        lower, upper = METHODS["cspo"].numbers.values()
        sd = 0.035 / math.sqrt(L)
        assert PHI(lower / sd) + 1 - PHI(upper / sd) == pytest.approx(share, abs=5e-4)
        s = sd * draws(20_000, seed=L)
        assert ((s < lower) | (s > upper)).double().mean().item() == pytest.approx(share, abs=0.012)
        fresh = (sd * draws(20_000, seed=L + 1)).tolist()
        calibrated = bounds.calibrated(s.tolist(), 0.1)
        out = sum(not calibrated[0] <= x <= calibrated[1] for x in fresh) / len(fresh)
        assert out == pytest.approx(0.1, abs=0.012)  # at every length

    def test_half_the_tail_is_removed(self):
        """The clip is one-sided: with random signs and a band of miscoverage α the silenced share is α/2."""
        n, alpha = 40_000, 0.1
        s = draws(n, 1)
        edge = NormalDist().inv_cdf(1 - alpha / 2)
        A = draws(n, 1, seed=1).sign()
        found = credit(METHODS["cspo"].objective, s, 0 * s, A, torch.ones_like(s), lower=-edge, upper=edge)
        assert (found == 0).double().mean().item() == pytest.approx(alpha / 2, abs=4 * math.sqrt(0.05 / n))

    def test_what_clipping_changes(self):
        """|J_clip − J| ≤ max|A| E|W − W̃| ≤ max|A| ‖W − W̃‖₂ P(out)^½ (Hölder)."""
        s, A = 0.5 * draws(5000, 1), draws(5000, 1, seed=1)
        for edge in (0.1, 0.4, 0.8):
            inputs = (s, 0 * s, A, torch.ones_like(s))
            clipped = METHODS["cspo"].objective(*inputs, lower=-edge, upper=edge)
            free = METHODS["cspo"].objective(*inputs, lower=-math.inf, upper=math.inf)
            W, out = s.exp(), (s.abs() > edge).double().mean()
            moved = W - s.clamp(-edge, edge).exp()
            top = A.abs().max()
            assert (clipped - free).abs() <= top * moved.abs().mean()
            assert top * moved.abs().mean() <= top * moved.square().mean().sqrt() * out.sqrt()


class TestFspo:
    @pytest.mark.parametrize(
        ("L", "half", "low", "high"),
        [
            (1, 0.03, math.exp(-0.03), math.exp(0.03)),
            (4, 0.06, math.exp(-0.06), math.exp(0.06)),
            (100, 0.3, 0.7408, 1.3499),
            (1024, 0.96, 0.3829, 2.6117),
            (8192, 2.7153, 0.0662, 15.109),
        ],
    )
    def test_band(self, L, half, low, high):
        lower, upper = bounds.by_length(torch.ones(1, L), 0.03, 0.03)
        assert (-lower.item(), upper.item()) == pytest.approx((half, half), abs=5e-5)
        assert lower.exp().item() == pytest.approx(low, abs=5e-5)
        assert upper.exp().item() == pytest.approx(high, abs=6e-4)
        assert 2 * (1 - PHI(half / (0.035 * math.sqrt(L)))) == pytest.approx(0.3914, abs=5e-5)  # for every L

    def test_example(self):
        """S = .09 > .06: for A = +1 the value e^.06 and no gradient, for A = −1 the weight −e^.09 per token."""
        z = [0.02, 0.03, -0.01, 0.05]
        assert -METHODS["fspo"].objective(*response(z)).item() == pytest.approx(1.06184, abs=5e-6)
        assert pull("fspo", z) == [0, 0, 0, 0]
        found = credit(METHODS["fspo"].objective, *response(z, -1.0))[0].tolist()
        assert found == pytest.approx([-1.09417] * 4, abs=5e-6)


RISING = [math.log(x) for x in (1.1, 0.9, 1.2, 1.05)]
OPEN = {"eps_low": math.inf, "eps_high": math.inf}


class TestCtpo:
    def test_stop_gradient_and_full_autodiff(self):
        found = credit(METHODS["ctpo"].objective, *response(RISING), **OPEN)[0].tolist()
        assert found == pytest.approx([0.275, 0.2475, 0.297, 0.31185])
        found = credit(METHODS["ctpo_autodiff"].objective, *response(RISING), **OPEN)[0].tolist()
        assert found == pytest.approx([1.13135, 0.85635, 0.60885, 0.31185])

    @pytest.mark.parametrize(
        ("t", "low", "high"),
        [
            (1, 0.97531, 1.05127),
            (4, 0.95123, 1.10517),
            (25, 0.88250, 1.28403),
            (100, 0.77880, 1.64872),
            (400, 0.60653, 2.71828),
            (1600, 0.36788, 7.38906),
        ],
    )
    def test_window(self, t, low, high):
        lower, upper = bounds.by_position(torch.ones(1, t), 0.025, 0.05, 0.5)
        assert lower[0, -1].exp().item() == pytest.approx(low, abs=5e-6)
        assert upper[0, -1].exp().item() == pytest.approx(high, abs=5e-6)
        if t == 100:  # the launch script's comment says .74, which is another ε
            assert bounds.by_position(torch.ones(1, t), 0.03, 0.05, 0.5)[0][0, -1].exp().item() == pytest.approx(
                0.7408, abs=5e-5
            )

    def test_example(self):
        """The running product (1.1, .99, 1.188, 1.2474)."""
        assert [x > 0 for x in pull("ctpo", RISING)] == [False, True, False, False]
        assert pull("ctpo", RISING, -1.0) == pytest.approx([-1.1, -0.99, -1.188, -1.2474])
        code = METHODS["ctpo"].presets["code"].numbers
        assert pull("ctpo", RISING, -1.0, **code) == pytest.approx([0, -0.99, 0, 0])
        assert pull("ctpo", RISING, **code) == pull("ctpo", RISING)

    def test_positions_count_response_tokens(self):
        """Tokens that are not the model's own, in the middle of a response, are skipped and not counted."""
        mask = torch.tensor([[1, 0, 1, 1, 0, 1]])
        _, upper = bounds.by_position(mask, 0.025, 0.05, 1.0)
        assert upper[0][mask[0].bool()].tolist() == pytest.approx([0.05, 0.10, 0.15, 0.20])

    def test_spread_of_the_running_product(self):
        """Independent tokens: Var log c = tσ², and Var c = (e^{σ²})ᵗ − 1 for a mean of 1: .1331 at σ = .05, t = 50."""
        sigma, t = 0.05, 50
        z = sigma * draws(20_000, t) - sigma**2 / 2
        log_c = units.prefix(z, torch.ones_like(z))[:, -1]
        assert log_c.var().item() == pytest.approx(t * sigma**2, rel=0.03)
        assert math.exp(sigma**2) ** t - 1 == pytest.approx(0.1331, abs=5e-5)
        assert log_c.exp().var().item() == pytest.approx(0.1331, abs=0.008)

    def test_what_the_prefix_is_exact_for(self):
        """Three tokens, three steps, enumerated. Under μ the prefix weight gives the policy gradient of π exactly when
        a token's advantage is Q^π of its prefix. With the outcome reward of a suffix that μ sampled it does not."""
        prefixes = [prefix for n in range(3) for prefix in product(range(3), repeat=n)]
        answers = list(product(range(3), repeat=3))
        place = {prefix: row for row, prefix in enumerate(prefixes)}
        logits, old = draws(13, 3, seed=1).requires_grad_(), draws(13, 3, seed=2).log_softmax(1)
        R = draws(27, seed=3)
        rows = torch.tensor([[place[y[:t]] for t in range(3)] for y in answers])
        tokens = torch.tensor(answers)

        def logp_of(table):
            return table[rows].gather(2, tokens.unsqueeze(2)).squeeze(2)

        new = logits.log_softmax(1)
        pi, mu = logp_of(new).sum(1).exp(), logp_of(old).sum(1).exp()
        (exact,) = torch.autograd.grad((pi * R).sum(), logits, retain_graph=True)
        same = torch.tensor([[[a[: t + 1] == b[: t + 1] for b in answers] for t in range(3)] for a in answers])
        weight = same * pi.detach()
        Q = (weight * R).sum(2) / weight.sum(2)  # E_π[R | the first t tokens]

        def gradient(name, A, **numbers):
            """E_μ of the method's credit, pushed into the logits; 27 · μ turns the mean over rows into E_μ."""
            logp = logp_of(logits.log_softmax(1))
            objective = METHODS[name].objective
            c = credit(objective, logp, logp_of(old), 27 * mu.unsqueeze(1) * A, torch.ones(27, 3), **numbers)
            return torch.autograd.grad((c * logp).sum(), logits)[0]

        prefix = {**OPEN, "normalize": sequence_sum}
        free = {"eps_low": 1.0, "eps_high": math.inf, "normalize": sequence_sum}
        outcome = R.unsqueeze(1)
        assert (gradient("ctpo", Q, **prefix) - exact).abs().max() < 1e-15
        assert (gradient("fspo", outcome, c_low=math.inf, c_high=math.inf) - exact).abs().max() < 1e-15
        assert (gradient("ctpo", outcome, **prefix) - exact).abs().max() > 0.01
        assert (gradient("grpo", outcome, **free) - exact).abs().max() > 0.01

    def test_a_prefix_varies_less_than_the_whole(self):
        z = 0.05 * draws(20_000, 40) - 0.05**2 / 2
        spread = units.prefix(z, torch.ones_like(z)).exp().var(dim=0)
        assert all(spread[t] < spread[-1] for t in (0, 9, 19, 29))


TABLE = {
    0.01: ((0.00250, 7.80985), (0, 6.0), (0, 3.22486)),
    0.05: ((0.16202, 2.98125), (0, 2.0), (0.02532, 1.97468)),
    0.08: ((0.26170, 2.41055), (0.375, 1.625), (0.24171, 1.75829)),
    0.2: ((0.47594, 1.71768), (0.75, 1.25), (0.55279, 1.44721)),
    0.5: ((0.69152, 1.30848), (0.9, 1.1), (0.77639, 1.22361)),
    0.8: ((0.82058, 1.13101), (0.9375, 1.0625), (0.88820, 1.11180)),
    0.95: ((0.89572, 1.04410), (0.94737, 1.05263), (0.94870, 1.05130)),
    0.99: ((0.93121, 1.01008), (0.94949, 1.01010), (0.97753, 1.01010)),
}
"""p → (lower, upper) at δ = .05 for KL, TV, χ²."""


class TestBandpo:
    @pytest.mark.parametrize("p", TABLE)
    def test_table(self, p):
        log_p, one = torch.tensor([[math.log(p)]], dtype=F64), torch.ones(1, 1)
        for bound, expected in zip((bounds.by_kl, bounds.by_tv, bounds.by_chi2), TABLE[p], strict=True):
            found = [edge.exp().item() for edge in bound(log_p, one, 0.05)]
            assert found == pytest.approx(expected, abs=5.1e-6)

    def test_towards_zero_and_one(self):
        one = torch.ones(1, 1)
        rare, sure = torch.tensor([[-200.0]], dtype=F64), torch.tensor([[0.0]], dtype=F64)
        assert (bounds.by_kl(rare, one, 0.05)[1] + rare).exp().item() == pytest.approx(0.04877, abs=5e-6)
        assert -math.expm1(-0.05) == pytest.approx(0.04877, abs=5e-6)
        for bound, low in ((bounds.by_kl, math.exp(-0.05)), (bounds.by_tv, 0.95), (bounds.by_chi2, 1.0)):
            lower, upper = bound(sure, one, 0.05)
            assert lower.exp().item() == pytest.approx(low, abs=1e-12)
            assert upper.exp().item() == pytest.approx(1.0, abs=1e-12)

    def test_rare_tokens_have_more_room_than_a_fixed_clip_and_likely_ones_less(self):
        """Against 1.28: every bound is tighter from p = .8 on (and p·1.28 > 1 from .78 on), far wider up to p = .05."""
        one = torch.ones(1, 1)
        for bound in (bounds.by_kl, bounds.by_tv, bounds.by_chi2):
            for p in (0.8, 0.9, 0.99):
                assert bound(torch.tensor([[math.log(p)]]), one, 0.05)[1].exp().item() < 1.28
            for p in (0.001, 0.01, 0.05):
                assert bound(torch.tensor([[math.log(p)]]), one, 0.05)[1].exp().item() > 1.9
        assert 0.79 * 1.28 > 1 > 0.78 * 1.28
        change = 0.2 * 0.08  # what ε = .2 leaves of p = .08
        assert change == pytest.approx(0.016)


class TestBapo:
    ratio = torch.tensor([[1.5, 1.0, 0.5, 0.95, 1.1]], dtype=F64)
    A = torch.tensor([[1.0, 1.0, -1.0, -1.0, -1.0]], dtype=F64)

    def share(self, mass, low, high):
        held = mass(self.ratio, self.A, low, high)
        return (held[self.A > 0].sum() / held.sum()).item()

    @pytest.mark.parametrize(
        ("mass", "low", "high", "expected"),
        [
            (bounds.printed_mass, 0.6, 1.2, 2.2 / 4.85),
            (bounds.printed_mass, 0.6, 1.5, 0.4854),
            (bounds.printed_mass, 0.9, 1.2, 0.4272),
            (bounds.printed_mass, 0.9, 1.5, 0.4587),
            (bounds.active_mass, 0.6, 1.2, 1 / 3.05),
            (bounds.active_mass, 0.6, 1.5, 0.5495),
            (bounds.active_mass, 0.97, 1.5, 0.6944),
        ],
    )
    def test_shares(self, mass, low, high, expected):
        assert self.share(mass, low, high) == pytest.approx(expected, abs=5e-5)

    def test_the_search_takes_the_first_pair_that_reaches_the_share(self):
        """Active: .3279 at (.6, 1.2), .5495 once 1.5 is inside. Printed: .4536 at once reaches .4, .4854 at 1.5."""
        mask, log_r = torch.ones(1, 5), self.ratio.log()

        def edges(mass, share):
            pairs = bounds.widening(0.6, 0.9, 0.02, 1.2, 3.0, 0.05)
            found = bounds.balanced(pairs, mass, log_r, 0 * log_r, self.A, mask, share)
            return pytest.approx([math.exp(edge) for edge in found])

        assert edges(bounds.active_mass, 0.3) == [0.6, 1.2]
        assert edges(bounds.active_mass, 0.4) == [0.6, 1.5]
        assert edges(bounds.printed_mass, 0.4) == [0.6, 1.2]
        assert edges(bounds.printed_mass, 0.484) == [0.6, 1.5]
        assert edges(bounds.active_mass, 1.0) == [0.9, 3.0]

    def test_pairs(self):
        """1 + 36 + 15, the last both ends exactly; no sum of 15 steps of .02 misses .9 by rounding."""
        pairs = bounds.widening(*list(METHODS["bapo"].numbers.values())[1:])
        assert len(pairs) == 52
        assert pairs[0] == (0.6, 1.2)
        assert pairs[36] == pytest.approx((0.6, 3.0))
        assert pairs[51] == pytest.approx((0.9, 3.0))
        assert [len(bounds.widening(*list(p.numbers.values())[1:])) for p in METHODS["bapo"].presets.values()] == [
            21,
            10,
        ]

    def test_which_bound_helps(self):
        """As printed, raising c_low can only lower the share, so the search's second leg works against it."""
        self.ratio, self.A = (0.4 * draws(1, 2000)).exp(), draws(1, 2000, seed=1)
        lows, highs = [0.6, 0.7, 0.8, 0.9], [1.2, 1.5, 2.0, 3.0]
        for mass, sign in ((bounds.printed_mass, -1), (bounds.active_mass, 1)):
            by_low = [self.share(mass, low, 1.2) for low in lows]
            by_high = [self.share(mass, 0.6, high) for high in highs]
            assert all(sign * (b - a) > 0 for a, b in pairwise(by_low))
            assert all(b > a for a, b in pairwise(by_high))


class TestVespo:
    def phi(self, W, A):
        return credit(METHODS["vespo"].objective, *response([math.log(W)], A)).item() / A

    @pytest.mark.parametrize(
        ("W", "positive", "negative"), [(0.5, 1.1204, 0.3398), (2.0, 0.1991, 1.0827), (1.0, 1.0, 1.0)]
    )
    def test_weight(self, W, positive, negative):
        assert self.phi(W, 1.0) == pytest.approx(positive, abs=5e-5)
        assert self.phi(W, -1.0) == pytest.approx(negative, abs=5e-5)

    @pytest.mark.parametrize(("A", "peak", "height"), [(1.0, 2 / 3, 1.2081), (-1.0, 3 / 2, 1.2416)])
    def test_peak(self, A, peak, height):
        assert self.phi(peak, A) == pytest.approx(height, abs=5e-5)
        assert all(self.phi(peak * k, A) < self.phi(peak, A) for k in (0.98, 1.02))

    def test_the_product_counts(self):
        z = [0.3, -0.1, 0.2]
        found = pull("vespo", z)
        assert found == pytest.approx([self.phi(math.exp(sum(z)), 1.0)] * 3)


def test_gepo():
    """q = (.1, .2, .05), p = (.12, .1, .06): Σq²/Σq = .15, weights .8, .6667, .4. Underflow of q changes nothing."""
    q, p = torch.tensor([[0.1], [0.2], [0.05]], dtype=F64), torch.tensor([[0.12], [0.1], [0.06]], dtype=F64)
    one, ids = torch.ones(3, 1), torch.zeros(3, dtype=torch.int64)
    for shift in (0.0, -900.0):
        found = credit(METHODS["gepo"].objective, p.log() + shift, q.log() + shift, one.double(), one, group_ids=ids)
        assert (3 * found).squeeze(1).tolist() == pytest.approx([0.8, 2 / 3, 0.4])


def test_presets_of_the_authors_code():
    assert method("ctpo:code").numbers["eps_dual"] == 0.05
    assert method("bandpo_kl:code").numbers == {"delta": 0.05, "ratio_cap": 10.0}
    assert method("bapo:script").numbers["share"] == pytest.approx(1 / 3)
    assert pull("bandpo_kl", [math.log(11.0)], -1.0) == pytest.approx([-11.0])
    assert pull("bandpo_kl", [math.log(11.0)], -1.0, **METHODS["bandpo_kl"].presets["code"].numbers) == [0]
