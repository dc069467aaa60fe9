"""Numbers worked out by hand or by another program, each a line that a reader can check."""

import math

import pytest
import torch

from sspo_teach import METHODS, credit
from sspo_teach.objectives.normalize import sequence_sum


def weight(name, ratio, A=1.0, **numbers):
    """The weight of a one-token response, divided by A."""
    logp = torch.tensor([[math.log(ratio)]], dtype=torch.float64)
    advantage = torch.full_like(logp, A)
    one = torch.ones(1, 1)
    return credit(METHODS[name].objective, logp, 0 * logp, advantage, one, normalize=sequence_sum, **numbers).item() / A


@pytest.mark.parametrize(
    ("tau", "ratio", "w", "c"),
    [
        (1.0, 2.0, 0.7864477, 1.5728955),
        (1.0, 4.0, 0.1807066, 0.7228266),
        (1.0, 0.5, 0.9400148, 0.4700074),
        (1.05, 2.0, 0.7681098, 1.5362196),
        (1.05, 4.0, 0.1576111, 0.6304446),
        (1.05, 0.5, 0.9341398, 0.4670699),
        (1.0, 2.0600904, None, 1.5746747),  # the largest
        (1.05, 1.9916677, None, 1.5362556),
    ],
)
def test_sapo(tau, ratio, w, c):
    found = weight("sapo", ratio, tau_pos=tau, tau_neg=tau)
    assert found == pytest.approx(c, abs=1e-7)
    if w is not None:
        assert found / ratio == pytest.approx(w, abs=1e-7)


def test_sapo_peaks_beyond_one():
    for tau, ratio in ((1.0, 2.0600904), (1.05, 1.9916677)):
        here = weight("sapo", ratio, tau_pos=tau, tau_neg=tau)
        assert all(weight("sapo", ratio * k, tau_pos=tau, tau_neg=tau) < here for k in (0.99, 1.01))


def test_sapo_values():
    """f(1) = 2/τ: with τ 1.0/1.05 and A = ±1 on-policy the mean surrogate is not 0."""
    zero = torch.zeros(2, 1, dtype=torch.float64)
    A = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    assert -METHODS["sapo"].objective(zero, zero, A, zero + 1).item() == pytest.approx(0.0476, abs=1e-4)


def test_sapo_against_its_sequence_approximation():
    """z = (−.4, .4), h = (1, −1): both gates equal, yet the coefficients differ since ρ does."""
    logp = torch.tensor([[-0.4, 0.4]], dtype=torch.float64)
    c = credit(METHODS["sapo"].objective, logp, 0 * logp, torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 2))
    assert (2 * c)[0].tolist() == pytest.approx([0.6524309, 1.4051260], abs=1e-7)
    assert (c * torch.tensor([1.0, -1.0])).sum().item() == pytest.approx(-0.3763475, abs=1e-7)


def test_wrong_form_of_sapo_is_invisible_on_policy():
    """A·w(r)·r, not detached: derivative .0596 at r = 2 instead of w = .7864, but 1 at r = 1 as well."""

    def wrong(logp, logp_old, advantages, mask):
        r = (logp - logp_old).exp()
        return -(advantages * r / ((r - 1) / 2).cosh() ** 2).sum()

    def slope(r):
        logp = torch.tensor([[math.log(r)]], dtype=torch.float64)
        one = torch.ones(1, 1, dtype=torch.float64)
        return credit(wrong, logp, 0 * logp, one, one).item() / r

    assert slope(2.0) == pytest.approx(0.0596, abs=1e-4)
    assert slope(1.0) == pytest.approx(1)


@pytest.mark.parametrize(
    ("ratio", "f", "slope", "c"),
    [
        (0.25, 0.52545, 0.64, 0.16),
        (0.5, 0.62899, 0.8, 0.4),
        (0.9, 0.90514, 0.99010, 0.89109),
        (1.0, 1.0, 1.0, 1.0),
        (1.1, 1.10480, 0.99010, 1.08911),
        (1.5, 1.58986, 0.8, 1.2),
        (2.0, 2.19328, 0.5, 1.0),
        (4.0, 3.48701, 0.1, 0.4),
        (10.0, 4.30656, 0.01220, 0.12195),
    ],
)
def test_sspo_table(ratio, f, slope, c):
    """τ = 1, one token: loss −f, weight f·c with c = ρ/(1 + (ρ − 1)²)."""
    logp = torch.tensor([[math.log(ratio)]], dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    assert -METHODS["sspo"].objective(logp, 0 * logp, one, one).item() == pytest.approx(f, abs=5e-6)
    assert weight("sspo", ratio) / f == pytest.approx(c, abs=2e-5)
    assert weight("sspo", ratio) / f / ratio == pytest.approx(slope, abs=2e-5)


def test_sspo_response():
    """z = (.3, −.2, .05, .6), A = −1, τ = 1.05."""
    logp = torch.tensor([[0.3, -0.2, 0.05, 0.6]], dtype=torch.float64)
    A, ones = -torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 4)
    assert METHODS["sspo"].objective(logp, 0 * logp, A, ones).item() == pytest.approx(1.2478195, abs=1e-7)
    c = credit(METHODS["sspo"].objective, logp, 0 * logp, A, ones)
    assert c[0].tolist() == pytest.approx([-0.3710261, -0.2464780, -0.3270014, -0.3257122], abs=1e-7)


@pytest.mark.parametrize(
    ("tau", "peak", "largest"),
    [
        (0.1, 10.0499, 5.52494),
        (0.5, 2.23607, 1.61803),
        (1.0, 1.41421, 1.20711),
        (1.05, 1.38095, 1.19048),
        (2.0, 1.11803, 1.05902),
        (5.0, 1.01980, 1.00990),
        (20.0, 1.00125, 1.00062),
    ],
)
def test_sspo_token_factor(tau, peak, largest):
    """Of one token among many at ρ = 1, so that S ≈ 1: L times its credit is S·c(ρ)."""
    L = 1000
    logp = torch.zeros(1, L, dtype=torch.float64)
    logp[0, 0] = math.log(peak)
    A, ones = torch.ones(1, 1, dtype=torch.float64), torch.ones(1, L)
    numbers = {"tau_pos": tau, "tau_neg": tau}
    c = credit(METHODS["sspo"].objective, logp, 0 * logp, A, ones, **numbers)[0]
    S = -METHODS["sspo"].objective(logp, 0 * logp, A, ones, **numbers).item()
    assert c[0].item() * L / S == pytest.approx(largest, abs=2e-5)
    assert math.sqrt(1 + tau**-2) == pytest.approx(peak, abs=1e-4)


@pytest.mark.parametrize(
    ("tau", "lowest", "highest"),
    [
        (1.0, 0.455938, 4.810477),
        (1.05, 0.462447, 4.463783),
        (2.0, 0.574891, 2.193280),
        (0.5, 0.395622, 23.1407),
        (20.0, 0.926777, 1.081706),
    ],
)
def test_sspo_range(tau, lowest, highest):
    """However far and however long, S stays in the range of one gate; the product would be 0 in float32 after 132."""
    for shift, expected in ((-19.9, lowest), (19.9, highest)):
        logp = torch.full((1, 500), shift, dtype=torch.float64)
        A, ones = torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 500)
        loss = METHODS["sspo"].objective(logp, 0 * logp, A, ones, tau_pos=tau, tau_neg=tau).item()
        assert -loss == pytest.approx(expected, rel=1e-5)


def test_sspo_is_gspo_to_first_order_only():
    """log f − log ρ = (ρ − 1)²/2 + O(³) for every τ: no temperature gives GSPO."""
    for tau in (0.5, 1.0, 3.0):
        for d in (1e-3, -1e-3):
            logp = torch.tensor([[math.log1p(d)]], dtype=torch.float64)
            one = torch.ones(1, 1, dtype=torch.float64)
            S = -METHODS["sspo"].objective(logp, 0 * logp, one, one, tau_pos=tau, tau_neg=tau).item()
            assert (math.log(S) - math.log1p(d)) / d**2 == pytest.approx(0.5, abs=5e-3)


@pytest.mark.parametrize(
    ("name", "ratio", "A", "expected"),
    [
        ("ppo", 1.2 - 1e-12, 1, 1.2),
        ("ppo", 2.0, 1, 0.0),
        ("ppo", 0.5, 1, 0.5),
        ("ppo", 0.5, -1, 0.0),
        ("ppo", 2.0, -1, 2.0),
        ("ppo", 50.0, -1, 50.0),  # unbounded
        ("dapo", 1.25, 1, 1.25),
        ("dapo", 1.29, 1, 0.0),
        ("cispo", 10.0, 1, 5.0),
        ("cispo", 10.0, -1, 5.0),
        ("cispo", 0.01, 1, 0.01),
        ("reinforce", 3.0, 1, 3.0),
        ("rloo", 3.0, 1, 1.0),
        ("gspo", 1.0003, 1, 1.0003),
        ("gspo", 1.0005, 1, 0.0),
        ("gspo", 0.9996, -1, 0.0),
        ("gmpo", 1.49, 1, 1.49),
        ("gmpo", 1.5, 1, 0.0),
        ("gmpo", 0.66, -1, 0.0),
        ("gmpo", 0.68, -1, 0.68),
    ],
)
def test_single_tokens(name, ratio, A, expected):
    assert weight(name, ratio, A) == pytest.approx(expected, abs=1e-9)


def test_lengths_share_as_the_normalizer_says():
    """Responses of 10 and 100 tokens: ½ : ½ under response_mean, 1/11 : 10/11 under token_mean."""
    mask = torch.arange(100) < torch.tensor([[10], [100]])
    zero, A = torch.zeros(2, 100, dtype=torch.float64), torch.ones(2, 1, dtype=torch.float64)
    assert credit(METHODS["grpo"].objective, zero, zero, A, mask).sum(1).tolist() == pytest.approx([0.5, 0.5])
    assert credit(METHODS["dapo"].objective, zero, zero, A, mask).sum(1).tolist() == pytest.approx([1 / 11, 10 / 11])
