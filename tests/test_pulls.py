"""Pulls read off the credit agree with the formulas of the gates."""

from __future__ import annotations

import numpy as np
import pytest

from sspo_teach.exact.pulls import SINGLE, numbers_of, pulls

Z = np.linspace(-1.5, 1.5, 301)
RHO = np.exp(Z)


def test_sapo_is_sech_squared_and_its_integral():
    found = pulls("sapo", Z, tau_pos=2.0)
    slope = 1 / np.cosh(RHO - 1) ** 2
    assert found["slope"] == pytest.approx(slope, rel=1e-9)
    assert found["token"] == pytest.approx(RHO * slope, rel=1e-9)
    assert found["sequence"] == pytest.approx(found["token"])  # a token gate sees no others
    assert found["f"] == pytest.approx(1 + np.tanh(RHO - 1), abs=2e-4)


def test_sspo_within_a_response_is_pulled_by_the_others():
    found = pulls("sspo", Z, sign=-1.0, length=8, tau_neg=2.0)
    log_f = np.arctan(2 * (RHO - 1)) / 2
    factor = RHO / (1 + 4 * (RHO - 1) ** 2)
    assert found["token"] == pytest.approx(np.exp(log_f) * factor, rel=1e-9)
    assert found["sequence"] == pytest.approx(np.exp(log_f / 8) * factor, rel=1e-9)
    assert found["f"] == pytest.approx(np.exp(log_f), abs=2e-4)


def test_a_clip_has_no_slope_beyond_its_band():
    found = pulls("grpo", Z, sign=1.0, eps_low=0.2, eps_high=0.3)
    assert found["slope"] == pytest.approx((RHO < 1.3).astype(float))
    found = pulls("grpo", Z, sign=-1.0, eps_low=0.2, eps_high=0.3)
    assert found["slope"] == pytest.approx((RHO > 0.8).astype(float))


@pytest.mark.parametrize("name", SINGLE)
def test_on_policy_every_method_pulls_with_one_weight(name):
    found = pulls(name, Z)
    one = 0.9 if name == "pspo" else 1.0
    assert {kind: float(np.interp(0, Z, found[kind])) for kind in ("slope", "token", "sequence", "f")} == pytest.approx(
        {"slope": one, "token": one, "sequence": one, "f": 1.0}, rel=1e-6
    )


def test_numbers_are_those_that_a_method_has():
    values = {"tau_pos": 2.0, "tau_neg": 3.0, "eps": 0.1}
    assert numbers_of("scopic", **values) == {"tau": 2.0}
    assert numbers_of("grpo", **values) == {"eps_low": 0.1, "eps_high": 0.1}
    assert numbers_of("reinforce", **values) == {}
    assert numbers_of("gmpo", **values) == {}  # its band is one in log ρ
    assert numbers_of("gspo", **values) == {}  # and its is one on the geometric mean


@pytest.mark.parametrize("name", ["bandpo_kl", "conspo", "ppo_gae"])
def test_a_method_that_sees_more_than_ratios_is_refused(name):
    with pytest.raises(ValueError, match="more than a response's ratios"):
        pulls(name, Z)
