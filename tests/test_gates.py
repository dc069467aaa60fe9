"""Gates by their numbers: values, slopes, bounds and limits."""

import math

import pytest
import torch

from sspo_teach import gates
from sspo_teach.gates import bounds

ONE, MINUS = torch.ones(1, 1, dtype=torch.float64), -torch.ones(1, 1, dtype=torch.float64)


def at(gate, ratio, A=1.0, **numbers):
    """f (or log f) and its slope by the ratio, at one ratio."""
    x = torch.tensor([[ratio]], dtype=torch.float64, requires_grad=True)
    out = gate(x.log(), torch.tensor([[A]], dtype=torch.float64), **numbers)
    (slope,) = torch.autograd.grad(out, x)
    return out.item(), slope.item()


@pytest.mark.parametrize(
    ("A", "ratio", "value", "slope"),
    [(1, 1.3, 1.2, 0), (1, 0.7, 0.7, 1), (-1, 1.3, 1.3, 1), (-1, 0.7, 0.8, 0), (1, 0.5, 0.5, 1), (-1, 2.0, 2.0, 1)],
)
def test_clip_is_one_sided(A, ratio, value, slope):
    found = at(gates.clip, ratio, A, eps_low=0.2, eps_high=0.2)
    assert found == pytest.approx((value, slope))
    rho = torch.tensor(float(ratio))  # PPO's own words
    assert value * A == pytest.approx(torch.minimum(rho * A, rho.clamp(0.8, 1.2) * A).item())


def test_clip_keeps_its_gradient_on_the_boundary():
    assert at(gates.clip, 1.2, 1, eps_low=0.2, eps_high=0.2)[1] in (0, pytest.approx(1))
    assert at(gates.clip, 1.2 - 1e-9, 1, eps_low=0.2, eps_high=0.2)[1] == pytest.approx(1)
    assert at(gates.log_clip, 1.0, 1, lower=0.0, upper=0.0)[1] == 1  # ε = 0 is still REINFORCE on-policy


def test_bounds_may_be_tensors():
    log_x = torch.full((2, 3), 0.5, requires_grad=True)
    upper = torch.tensor([[0.1, 0.6, 0.4], [0.6, 0.6, 0.0]])
    out = gates.log_clip(log_x, torch.ones(2, 1), -upper, upper)
    assert out.equal(log_x.minimum(upper))
    (slope,) = torch.autograd.grad(out.sum(), log_x)
    assert slope.tolist() == [[0, 1, 0], [1, 1, 0]]


def test_bounds_may_be_open():
    assert bounds.constant(0.2, 0.28) == (pytest.approx(math.log(0.8)), pytest.approx(math.log(1.28)))
    assert bounds.constant(1, math.inf) == (-math.inf, math.inf)
    assert at(gates.clip, 50.0, 1, eps_low=1, eps_high=math.inf) == pytest.approx((50, 1))


def test_dual_clip():
    """A = −1, ρ = 50: PPO's gradient stays, the dual clip has none; positive advantages never see the cap."""
    assert at(gates.clip, 50.0, -1, eps_low=0.2, eps_high=0.2) == pytest.approx((50, 1))
    assert at(gates.dual_clip, 50.0, -1, eps_low=0.2, eps_high=0.2, ratio_cap=3) == pytest.approx((3, 0))
    assert at(gates.dual_clip, 2.9, -1, eps_low=0.2, eps_high=0.2, ratio_cap=3) == pytest.approx((2.9, 1))
    assert at(gates.dual_clip, 50.0, 1, eps_low=0.2, eps_high=60, ratio_cap=70) == pytest.approx((50, 1))


@pytest.mark.parametrize("tau", [0.1, 0.5, 1.0, 1.05, 2.0, 10.0])
class TestSoft:
    def test_slope_one_at_ratio_one(self, tau):
        numbers = {"tau_pos": tau, "tau_neg": tau}
        for A in (1.0, -1.0):
            assert at(gates.sigmoid, 1.0, A, **numbers) == pytest.approx((2 / tau, 1))
            value, slope = at(gates.log_sigmoid, 1.0, A, **numbers)
            assert math.exp(value) * slope == pytest.approx(1)
            assert at(gates.log_arctan, 1.0, A, **numbers) == pytest.approx((0, 1))
            assert at(gates.log_arctan_log_ratio, 1.0, A, **numbers) == pytest.approx((0, 1))

    def test_sigmoid_increases_and_is_bounded(self, tau):
        previous = 0.0
        for ratio in (1e-8, 0.1, 0.5, 1.0, 1.5, 3.0):
            value, _ = at(gates.sigmoid, ratio, tau_pos=tau, tau_neg=tau)
            assert previous < value < 4 / tau
            previous = value

    def test_sigmoid_slope_is_sech_squared(self, tau):
        for ratio in (0.01, 0.5, 1.0, 2.0, 4.0, 10.0):
            _, slope = at(gates.sigmoid, ratio, tau_pos=tau, tau_neg=tau)
            assert slope == pytest.approx(1 / math.cosh(tau * (ratio - 1) / 2) ** 2, rel=1e-12)

    def test_range_of_arctan(self, tau):
        lowest, _ = at(gates.log_arctan, 1e-12, tau_pos=tau, tau_neg=tau)
        assert lowest == pytest.approx(-math.atan(tau) / tau)
        highest, _ = at(gates.log_arctan, 1e8, tau_pos=tau, tau_neg=tau)
        assert highest < math.pi / (2 * tau)
        assert highest == pytest.approx(math.pi / (2 * tau), rel=1e-6)

    def test_token_factor_of_arctan_peaks_beyond_one(self, tau):
        peak = math.sqrt(1 + tau**-2)
        factor = {r: r * at(gates.log_arctan, r, tau_pos=tau, tau_neg=tau)[1] for r in (0.99 * peak, peak, 1.01 * peak)}
        assert factor[peak] == pytest.approx((1 + peak) / 2)
        assert factor[peak] == max(factor.values())
        edge = 1 + tau**-2  # the factor is 1 again here, and below 1 beyond
        assert edge * at(gates.log_arctan, edge, tau_pos=tau, tau_neg=tau)[1] == pytest.approx(1)


def test_temperature_follows_the_sign_of_A():
    for gate in (gates.sigmoid, gates.log_sigmoid, gates.log_arctan, gates.log_arctan_log_ratio):
        both = gate(torch.full((2, 1), 0.5, dtype=torch.float64), torch.cat([ONE, MINUS]), tau_pos=1.0, tau_neg=2.0)
        assert (
            both[0].item() == gate(torch.full((1, 1), 0.5, dtype=torch.float64), ONE, tau_pos=1.0, tau_neg=9.0).item()
        )
        assert (
            both[1].item() == gate(torch.full((1, 1), 0.5, dtype=torch.float64), MINUS, tau_pos=9.0, tau_neg=2.0).item()
        )


def test_temperature_keeps_float64_and_never_rounds_to_bfloat16():
    """torch.where on two Python numbers is float32, and 1.05 in bfloat16 is 1.046875."""
    from sspo_teach.gates.soft import temperature

    assert temperature(MINUS, 1.0, 1.05).item() == 1.05
    assert temperature(MINUS.bfloat16(), 1.0, 1.05).item() == torch.tensor(1.05).item()


def test_sigmoid_keeps_its_slope_in_float32():
    """4σ(u)(1 − σ(u)) is exactly 0 in float32 from u = 17 on, although the truth is 1.7e-7."""
    log_x = torch.tensor([[math.log(19.0)]], requires_grad=True)
    (slope,) = torch.autograd.grad(gates.sigmoid(log_x, torch.ones(1, 1), 1.0, 1.05), log_x)
    assert slope.item() == pytest.approx(19 / math.cosh(9) ** 2, rel=1e-4)
    naive = torch.tensor(18.0).sigmoid()
    assert (4 * naive * (1 - naive)).item() == 0


def test_score_detaches_its_weight():
    log_r = torch.tensor([[2.0]], requires_grad=True)
    (slope,) = torch.autograd.grad(gates.score(log_r.exp(), log_r), log_r)
    assert slope.item() == pytest.approx(math.exp(2))
