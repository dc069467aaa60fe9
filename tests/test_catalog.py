"""The table of methods, its presets, and DAPO's two rules around the loss."""

import inspect
import json
from dataclasses import replace

import pytest
import torch

from sspo_teach import METHODS, Rollout, Verified, credit, method
from sspo_teach.catalog import dialects, entries, mixed_groups, overlong_reward, table
from sspo_teach.checks import sample
from sspo_teach.controllers import Fixed
from sspo_teach.objectives.normalize import response_mean, sequence_sum, token_mean
from sspo_teach.tensors import lengths


def rollout(rewards, sizes, ids, width=10, **parts):
    n = len(rewards)
    return Rollout(
        tokens=torch.zeros(n, width + 1, dtype=torch.int64),
        prompt_mask=torch.ones(n, 1, dtype=torch.bool),
        mask=torch.arange(width) < torch.tensor(sizes).unsqueeze(1),
        logp_old=torch.zeros(n, width),
        rewards=torch.tensor(rewards),
        group_ids=torch.tensor(ids),
        truncated=torch.zeros(n, dtype=torch.bool),
        parts={name: torch.tensor(part) for name, part in parts.items()},
    )


def test_rows():
    assert list(METHODS)[:4] == ["reinforce", "rloo", "ppo", "grpo"]
    reconstructions = {name for name, row in METHODS.items() if row.verified is Verified.RECONSTRUCTION}
    assert reconstructions == {
        "sspo_sigmoid",
        "sspo_log_ratio",
        "cspo",
        "ctpo_autodiff",
        "bapo",
        "sapo_directional",
        "sapo_gaussian",
        "sapo_cauchy",
        "conspo",
    }
    assert METHODS["sspo"].verified is Verified.REVIEW
    for name, row in METHODS.items():
        assert row.objective.__name__ == name
        reconstructed = "reconstruction" in entries(row.objective)["Paper"]
        assert reconstructed == (row.verified is Verified.RECONSTRUCTION)


@pytest.mark.parametrize(
    ("name", "normalize"),
    [
        ("reinforce", sequence_sum),
        ("rloo", sequence_sum),
        ("ppo", response_mean),
        ("grpo", response_mean),
        ("gspo", response_mean),
        ("gmpo", response_mean),
        ("sapo", response_mean),
        ("sspo", response_mean),
        ("dapo", token_mean),
        ("cispo", token_mean),
        ("ppo_gae", token_mean),
        ("sppo", token_mean),
        ("click", response_mean),
        ("conspo", response_mean),
    ],
)
def test_normalizers(name, normalize):
    assert METHODS[name].normalize(12) is normalize


def test_dr_grpo_trains_with_the_longest_length():
    batch = sample(0.3)
    row = METHODS["dr_grpo"]
    printed = credit(row.objective, *batch.tensors)
    trained = credit(row.objective, *batch.tensors, normalize=row.normalize(12))
    assert torch.allclose(12 * trained, printed, rtol=1e-12)


def test_presets():
    assert method("sspo") is METHODS["sspo"]
    assert method("sspo").numbers == {"tau_pos": 1.0, "tau_neg": 1.05} == method("sspo:sapo").numbers
    assert method("sspo:gate-study").numbers == {"tau_pos": 10.0, "tau_neg": 12.0}
    assert method("sspo:gate-study").with_numbers(tau_pos=11.0).numbers == {"tau_pos": 11.0, "tau_neg": 12.0}
    batch = sample(0.3)
    found = credit(method("sspo:gate-study").objective, *batch.tensors)
    assert found.equal(credit(METHODS["sspo"].objective, *batch.tensors, tau_pos=10.0, tau_neg=12.0))
    assert METHODS["sspo"].numbers["tau_pos"] == 1.0  # the row itself is as it was
    for row in METHODS.values():
        for preset in row.presets.values():
            there = replace(row, **preset.row)  # an unknown field of the row fails here
            assert set(preset.numbers) <= set(there.numbers)


def test_a_preset_may_change_the_row():
    """TRL's default: another upper edge, another standard deviation, none of DAPO's rules around the loss."""
    row = method("dapo:trl")
    assert row.numbers == {"eps_low": 0.2, "eps_high": 0.2}
    assert row.keep is None
    assert row.reward is None
    assert METHODS["dapo"].keep is mixed_groups
    one = rollout([1.0, 0.0, 0.0, 1.0], [3] * 4, [0, 0, 1, 1])
    assert row.advantage(one)[0].item() == pytest.approx(0.5 / (0.5**0.5 + 1e-4))
    assert method("gspo:verl").normalize(9) is token_mean


def test_a_dialect_that_no_row_can_say_is_told():
    with pytest.raises(ValueError, match=r"rloo:trl is told, not trained, here: trl clips the product of ratios"):
        method("rloo:trl")


def test_dialects():
    lines = dialects().splitlines()
    asked = [(name, preset) for name, row in METHODS.items() for preset in row.presets if row.presets[preset].asked]
    assert len(lines) == 2 + len(asked)
    assert len({len(line.split("|")) for line in lines}) == 1
    for (name, preset), line in zip(asked, lines[2:], strict=True):
        assert line.startswith(f"| `{name}` | {preset}: ")
        assert (f"`{name}:{preset}`" in line) == (not METHODS[name].presets[preset].besides)
    assert {preset for _, preset in asked} == {"trl", "verl"}


def test_numbers():
    assert METHODS["cispo"].numbers == {"ratio_cap": 5.0, "ratio_floor": 0.0}
    assert METHODS["rloo"].numbers == {}
    with pytest.raises(ValueError, match="unknown number of sspo: 'tau'"):
        method("sspo:gate-study").with_numbers(tau=3.0)


def test_table():
    lines = table().splitlines()
    assert len(lines) == 2 + len(METHODS)
    assert len({len(line.replace("\\|", "").split("|")) for line in lines}) == 1
    for name, line in zip(METHODS, lines[2:], strict=True):
        assert line.startswith(f"| `{name}` | ")
    assert "tau_pos=1, tau_neg=1.05" in next(line for line in lines if "`sspo`" in line)


def test_signatures_survive_their_checks():
    for row in METHODS.values():
        names = list(inspect.signature(row.objective).parameters)
        assert names[:4] == ["logp", "logp_old", "advantages", "mask"]
        assert names[-1] == "normalize"


class TestDapo:
    def test_keep(self):
        """Correctness decides where it is known: a length penalty does not make a solved group look mixed."""
        plain = rollout([1.0, 1.0, 0.0, 1.0, 0.0, 0.0], [3] * 6, [0, 0, 1, 1, 2, 2])
        assert mixed_groups(plain).tolist() == [False, False, True, True, False, False]
        penalised = rollout([1.0, 0.4, 0.0, 1.0], [3] * 4, [0, 0, 1, 1], correct=[1.0, 1.0, 0.0, 1.0])
        assert mixed_groups(penalised).tolist() == [False, False, True, True]

    def test_soft_overlong_penalty(self):
        """L_max = 10, ramp over the last 2: 0 up to 8 tokens, −½ at 9, −1 at 10."""
        out = overlong_reward(rollout([1.0] * 4, [3, 8, 9, 10], [0, 0, 1, 1]), 10)
        assert out.tolist() == [1.0, 1.0, 0.5, 0.0]

    def test_of_the_paper(self):
        """L_max = 20480, L_cache = 4096: eq. 13, in loops."""
        for size in (16384, 16385, 18432, 20480):
            expected = 0.0 if size <= 16384 else (16384 - size) / 4096
            one = rollout([0.0], [size], [0], width=20480)
            assert overlong_reward(one, 20480).item() == pytest.approx(expected)

    def test_short_answers_have_no_ramp(self):
        one = rollout([1.0], [4], [0], width=4)
        assert overlong_reward(one, 4).tolist() == [1.0]
        assert lengths(one.mask).item() == 4

    def test_bad_buffer(self):
        with pytest.raises(ValueError, match=r"buffer must lie in \[0, 1\], got 4096: it is a share of max_new_tokens"):
            overlong_reward(rollout([1.0], [3], [0]), 10, buffer=4096)


def test_fixed_controller():
    controller = Fixed()
    assert controller.hyper() == {}
    controller.observe(rollout([1.0], [3], [0]), torch.zeros(1, 10))
    controller.load_state_dict(json.loads(json.dumps(controller.state_dict())))
