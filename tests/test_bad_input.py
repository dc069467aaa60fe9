"""Bad input meets one ValueError that names the argument, its value and the fix; each message is pinned."""

import re

import pytest
import torch
from exceptions import ready

from sspo_teach import METHODS, credit, method
from sspo_teach.catalog import Method
from sspo_teach.controllers import Fixed
from sspo_teach.objectives.normalize import constant
from sspo_teach.tensors import log_ratio

GOOD = {
    "logp": torch.full((3, 4), -1.0),
    "logp_old": torch.full((3, 4), -1.1),
    "advantages": torch.tensor([[1.0], [0.0], [-1.0]]),
    "mask": torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]]),
}
NAN = torch.full((3, 4), -1.0)
NAN[2, 1] = float("nan")
INFINITE = torch.tensor([[1.0], [0.0], [float("inf")]])

TENSORS = [
    (
        {"advantages": torch.ones(3)},
        "advantages has shape (3,) but must be (B, 1) = (3, 1) or (B, T) = (3, 4): use advantages.unsqueeze(1)",
    ),
    (
        {"advantages": torch.ones(4)},
        "advantages has shape (4,) but must be (B, 1) = (3, 1) or (B, T) = (3, 4): give "
        "one number per response, or one per token",
    ),
    ({"advantages": torch.ones(1, 4)}, "advantages has shape (1, 4) but must be"),
    (
        {"advantages": torch.ones(3, 1, dtype=torch.int64)},
        "advantages must be floating point, got torch.int64: use advantages.float()",
    ),
    ({"advantages": INFINITE}, "advantages is inf at row 2, token 0, inside the mask"),
    (
        {"logp": torch.zeros(4)},
        "logp must have shape (B, T), responses × tokens, got (4,): one response alone is logp.unsqueeze(0)",
    ),
    (
        {"logp": torch.zeros(3, 5)},
        "logp_old has shape (3, 4) but logp has (3, 5): both must be (B, T) over the same response tokens",
    ),
    ({"logp_old": torch.zeros(3, 3)}, "logp_old has shape (3, 3) but logp has (3, 4)"),
    ({"mask": torch.ones(3, 5)}, "mask has shape (3, 5) but logp has (3, 4)"),
    ({"logp": torch.zeros(3, 4, dtype=torch.int64)}, "logp must be floating point, got torch.int64: use logp.float()"),
    ({"logp": [[0.0] * 4] * 3}, "logp must be a torch tensor, got list: use torch.as_tensor(logp)"),
    (
        {"logp": NAN},
        "logp is nan at row 2, token 1, inside the mask: mask that token out, or find where the nan comes from",
    ),
    ({"logp_old": NAN}, "logp_old is nan at row 2, token 1, inside the mask"),
    (
        {"mask": torch.full((3, 4), 0.5)},
        "mask must hold only 0 and 1, found 0.5: use 1 up to and including the first EOS, 0 after",
    ),
    ({"mask": GOOD["mask"] * 2}, "mask must hold only 0 and 1, found 2"),
]


@pytest.mark.parametrize(("bad", "message"), TENSORS)
@pytest.mark.parametrize("name", METHODS)
def test_tensors(name, bad, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ready(name, GOOD["mask"])(**{**GOOD, **bad})


@pytest.mark.parametrize(("bad", "message"), TENSORS)
def test_credit_checks_for_objectives_that_do_not(bad, message):
    def careless(logp, logp_old, advantages, mask):
        return -((logp - logp_old).exp() * advantages * mask).sum()

    with pytest.raises(ValueError, match=re.escape(message)):
        credit(careless, **{**GOOD, **bad})


def test_a_bare_advantage_is_refused_even_where_it_would_broadcast():
    """B = T: (B,) times (B, T) works and gives every token the advantage of another response."""
    square = torch.zeros(4, 4)
    with pytest.raises(ValueError, match=r"advantages has shape \(4,\)"):
        METHODS["grpo"].objective(square, square, torch.ones(4), torch.ones(4, 4))


def test_padding_may_hold_anything():
    dirty = {**GOOD, "logp": torch.where(GOOD["mask"].bool(), GOOD["logp"], float("nan"))}
    assert METHODS["sspo"].objective(**dirty).isfinite()


NUMBERS = [
    ("sspo", {"tau_pos": 0.0}, "tau_pos must be a positive finite number, got 0.0: try tau_pos=1.0"),
    ("sspo", {"tau_neg": -1.0}, "tau_neg must be a positive finite number, got -1.0"),
    ("sapo", {"tau_pos": float("nan")}, "tau_pos must be a positive finite number, got nan"),
    ("sspo_sigmoid", {"tau_neg": float("inf")}, "tau_neg must be a positive finite number, got inf"),
    ("sspo_log_ratio", {"tau_pos": "1.0"}, "tau_pos must be a positive finite number, got '1.0'"),
    ("sspo", {"tau_pos": 1e-300}, "tau_pos must lie in [1e-06, 1e+09], got 1e-300: beyond, float32 shows only"),
    ("sapo", {"tau_neg": 1e300}, "tau_neg must lie in [1e-06, 1e+09], got 1e+300"),
    (
        "grpo",
        {"eps_low": 1.2},
        "eps_low must lie in [0, 1], got 1.2: the lower edge of the band is 1 − eps_low, a ratio",
    ),
    ("ppo", {"eps_low": -0.2}, "eps_low must lie in [0, 1], got -0.2"),
    ("dapo", {"eps_high": -0.1}, "eps_high must lie in [0, inf], got -0.1: the upper edge of the band is 1 + eps_high"),
    ("dr_grpo", {"eps_high": float("nan")}, "eps_high must lie in [0, inf], got nan"),
    ("gspo", {"eps_low": 3}, "eps_low must lie in [0, 1], got 3"),
    ("gmpo", {"eps_low": -0.4}, "eps_low must lie in [0, inf], got -0.4: it is a half-width in log space"),
    ("gmpo", {"eps_high": -0.4}, "eps_high must lie in [0, inf], got -0.4: it is a half-width in log space"),
    (
        "cispo",
        {"ratio_cap": 0.28},
        "ratio_cap must lie in [1, inf], got 0.28: it is an absolute ceiling on the ratio, so 1 + ε rather than ε",
    ),
    ("cispo", {"ratio_floor": 1.5}, "ratio_floor must lie in [0, 1], got 1.5"),
    (
        "sspo",
        {"tau": 1.0},
        "unknown argument of sspo: 'tau'; did you mean 'tau_pos'? known: tau_pos, tau_neg, normalize",
    ),
    ("reinforce", {"eps": 0.2}, "unknown argument of reinforce: 'eps'; known: normalize"),
]


@pytest.mark.parametrize(("name", "numbers", "message"), NUMBERS)
def test_numbers(name, numbers, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        METHODS[name].objective(**GOOD, **numbers)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: method("sspoo"), "unknown method: 'sspoo'; did you mean 'sspo'? known: reinforce, rloo, ppo,"),
        (lambda: method("GRPO"), "unknown method: 'GRPO'; did you mean 'grpo'? known:"),
        (lambda: method("zzz"), "unknown method: 'zzz'; known: reinforce"),
        (
            lambda: method("sspo:gatestudy"),
            "unknown preset of sspo: 'gatestudy'; did you mean 'gate-study'? known: sapo, gate-study",
        ),
        (lambda: method("sspo:"), "unknown preset of sspo: ''; known: sapo, gate-study"),
        (lambda: method("ppo:fast"), "unknown preset of ppo: 'fast'; known: none"),
        (
            lambda: METHODS["sspo"].with_numbers(tau_post=1.0),
            "unknown number of sspo: 'tau_post'; did you mean 'tau_pos'?",
        ),
        (lambda: constant(0), "length must be a positive finite number, got 0"),
        (lambda: log_ratio(torch.zeros(3), torch.zeros(3), torch.ones(3)), "logp must have shape (B, T)"),
        (lambda: Fixed().load_state_dict({"margin": 1}), "state must be empty for Fixed, got ['margin']"),
    ],
)
def test_names(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_methods_is_a_plain_dict():
    assert type(METHODS) is dict
    assert all(type(row) is Method for row in METHODS.values())
