"""Diagnostics on examples small enough to work by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from exceptions import LAWS, WEIGHT, ready
from torch import Tensor

from sspo_teach.catalog import METHODS
from sspo_teach.credit import credit
from sspo_teach.objectives import grpo, reinforce, sspo
from sspo_teach.objectives.normalize import constant, response_mean, sequence_sum, token_mean, with_counts
from sspo_teach.training.diagnostics import COLUMNS, aggregation_of, behaviour_kl, of_sampler, of_samples, summarize
from sspo_teach.types import Rollout


def rollout_of(mask: Tensor, logp_old: Tensor | None = None, **other: Any) -> Rollout:
    """Responses of tokens 1, 2, 3, … to one-token prompts, two to a group."""
    rows, length = mask.shape
    fields: dict[str, Any] = {
        "tokens": torch.arange(length + 1).expand(rows, -1),
        "prompt_mask": torch.ones(rows, 1, dtype=torch.bool),
        "mask": mask.bool(),
        "logp_old": torch.full(mask.shape, -1.0) if logp_old is None else logp_old,
        "rewards": torch.arange(rows).float(),
        "group_ids": torch.arange(rows) // 2,
        "truncated": torch.zeros(rows, dtype=torch.bool),
        "parts": {"correct": torch.zeros(rows), "format": torch.ones(rows)},
    }
    return Rollout(**{**fields, **other})


def look(ratio: Any, advantages: Any, objective: Any = grpo, mask: Any = None, **numbers: Any) -> dict[str, float]:
    """Summarize one update at given ratios, (B, T) or one token each."""
    ratio = torch.tensor(ratio)
    ratio = ratio.unsqueeze(1) if ratio.ndim == 1 else ratio
    mask = torch.ones_like(ratio) if mask is None else torch.tensor(mask)
    rollout = rollout_of(mask)
    logp, a = rollout.logp_old + ratio.log(), torch.tensor(advantages).unsqueeze(1)
    normalize = with_counts(numbers.pop("normalize", response_mean), rollout.mask)
    pull = credit(objective, logp, rollout.logp_old, a, rollout.mask, normalize=normalize, **numbers)
    return summarize(pull, rollout, logp, a, aggregation_of(normalize, rollout.mask))


FOUR = ([1.3, 0.7, 1.3, 0.7], [1.0, 1.0, -1.0, -1.0])


def test_outside_the_band_is_not_the_same_as_silenced():
    """A = ±1, ρ = 1.3 or 0.7, ε = 0.2: the gradient is gone exactly for (+, 1.3) and (−, 0.7)."""
    for ratio, advantage, gone in zip(*FOUR, (True, False, False, True), strict=True):
        assert look([ratio], [advantage], eps_low=0.2, eps_high=0.2)["silenced"] == gone
    found = look(*FOUR, eps_low=0.2, eps_high=0.2)
    assert (found["outside_band"], found["silenced"], found["moved"]) == (1, 0.5, 1)


def test_removed_signal_by_sign_and_direction():
    """Of ρ|A| = 1.3, 0.7 with A > 0 the clip takes the 1.3, which was on its way out; of A < 0 the 0.7."""
    found = look(*FOUR, eps_low=0.2, eps_high=0.2)
    assert found["removed_pos"] == pytest.approx(1.3 / 2)
    assert found["removed_neg"] == pytest.approx(0.7 / 2)
    assert found["removed_extending"] == pytest.approx(1)
    assert found["removed_corrective"] == pytest.approx(0)


def test_removed_signal_of_a_soft_gate():
    """SSPO at T = 1 is S = exp(arctan(ρ − 1)) with weight S ρ/(1 + (ρ − 1)²): S at ρ = 2, 0.4 S at 0.5."""
    found = look([2.0, 0.5], [1.0, 1.0], objective=sspo)
    weights = [math.exp(math.pi / 4), 0.4 * math.exp(-math.atan(0.5))]
    assert found["removed_pos"] == pytest.approx(1 - sum(weights) / 2.5, abs=1e-6)
    assert found["removed_neg"] == 0  # no such token
    assert found["silenced"] == 0
    assert found["coefficient_q99"] == pytest.approx(max(weights), abs=1e-6)


@pytest.mark.parametrize("normalize", [response_mean, token_mean, sequence_sum, constant(7)])
def test_the_coefficient_is_free_of_normalizer_and_advantage(normalize):
    """REINFORCE on-policy: the weight of A ∇log π is 1, for lengths 1 and 3 and any A."""
    found = look([[1.0] * 3] * 2, [0.25, -4.0], reinforce, [[1, 0, 0], [1, 1, 1]], normalize=normalize)
    assert found["coefficient_q01"] == pytest.approx(1)
    assert found["coefficient_q99"] == pytest.approx(1)
    assert found["removed_pos"] == pytest.approx(0, abs=1e-6)


def test_aggregation_is_the_normalizer_s_factor():
    mask = torch.tensor([[1, 0, 0], [1, 1, 1], [0, 0, 0]]).bool()
    expected = {
        response_mean: [[1 / 2, 0, 0], [1 / 6, 1 / 6, 1 / 6], [0, 0, 0]],
        token_mean: [[1 / 4, 0, 0], [1 / 4, 1 / 4, 1 / 4], [0, 0, 0]],
        sequence_sum: [[1 / 2, 0, 0], [1 / 2, 1 / 2, 1 / 2], [0, 0, 0]],
    }
    for normalize, factors in expected.items():
        torch.testing.assert_close(aggregation_of(normalize, mask), torch.tensor(factors))


def test_kl_estimates_weigh_every_token_alike():
    """Lengths 1 and 3, ρ = 1/2 in the first and 2 in the second: k1 is (log 2 − 3 log 2)/4."""
    found = look([[0.5, 9.0, 9.0], [2.0, 2.0, 2.0]], [1.0, -1.0], mask=[[1, 0, 0], [1, 1, 1]])
    log2 = math.log(2)
    assert found["kl_k1"] == pytest.approx((log2 - 3 * log2) / 4)
    assert found["kl_k3"] == pytest.approx(((0.5 - 1 + log2) + 3 * (2 - 1 - log2)) / 4)
    assert found["moved"] == 1


def test_kl_to_the_reference_is_k3_of_the_sampled_tokens():
    mask = torch.tensor([[1, 1], [1, 0]])
    rollout = rollout_of(mask, logp_ref=torch.tensor([[-1.0, -1.5], [-3.0, 55.0]]))
    logp, a = rollout.logp_old, torch.tensor([[1.0], [-1.0]])
    found = summarize(torch.zeros(2, 2), rollout, logp, a, torch.full((2, 2), 0.5))
    expected = [math.exp(-u) + u - 1 for u in (0.0, 0.5, 2.0)]
    assert found["kl_ref"] == pytest.approx(sum(expected) / 3)
    assert "kl_ref" not in summarize(torch.zeros(2, 2), rollout_of(mask), logp, a, torch.full((2, 2), 0.5))


def test_effective_sample_size():
    """(Σw)²/(n Σw²) with w the product of a response's ratios: 1 for equal ones, 1/n for a single heavy one."""
    assert look([1.0, 1.0, 1.0, 1.0], [1.0, -1.0, 1.0, -1.0])["ess"] == pytest.approx(1)
    assert look([[2.0, 2.0], [1.0, 1.0]], [1.0, -1.0])["ess"] == pytest.approx(25 / (2 * 17))
    assert look([1e8, 1.0], [1.0, -1.0])["ess"] == pytest.approx(1 / 2)
    padded = look([[2.0, 2.0], [1.0, 1.0], [7.0, 7.0]], [1.0, -1.0, 1.0], mask=[[1, 1], [1, 1], [0, 0]])
    assert padded["ess"] == pytest.approx(25 / (2 * 17))  # an empty response is no sample


def test_quantiles():
    found = look([i / 100 for i in range(1, 201)], [1.0] * 200, reinforce)
    assert found["ratio_q01"] == pytest.approx(0.03)
    assert found["ratio_q50"] == pytest.approx(1.01)
    assert found["ratio_q99"] == pytest.approx(1.99)


def test_stale_tokens_are_counted():
    found = look([[math.exp(21), 1.0], [math.exp(-21), 1.0]], [1.0, -1.0], mask=[[1, 1], [1, 0]])
    assert found["stale"] == pytest.approx(2 / 3)


def test_zero_advantage_is_no_signal_and_none_is_removed():
    found = look(*FOUR[:1], [0.0, 0.0, 0.0, 0.0])
    assert found["silenced"] == found["removed_pos"] == found["removed_neg"] == 0
    assert found["outside_band"] == 1


@pytest.mark.parametrize("name", METHODS)
def test_padding_that_holds_nonsense_changes_no_number(name):
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    row, clean = METHODS[name], torch.tensor([[1.3, 0.6, 1.0], [0.9, 1.0, 1.0]]).log()
    found = []
    for filler in (0.0, math.nan, math.inf, 1e30):
        rollout = rollout_of(mask, logp_ref=torch.full((2, 3), -1.2).where(mask.bool(), filler))
        logp = (clean - 1).where(mask.bool(), filler)
        a = torch.tensor([[1.0], [-1.0]])
        known = row.fields(rollout, a, logp, torch.Generator().manual_seed(0)) if row.fields else {}
        fields = {need: known[need] if need in known else getattr(rollout, need) for need in row.needs}
        pull = credit(row.objective, logp, rollout.logp_old, a, rollout.mask, **fields)
        found.append(summarize(pull, rollout, logp, a, aggregation_of(row.normalize(3), rollout.mask)))
    assert found[0] == found[1] == found[2] == found[3]
    assert all(math.isfinite(value) for value in found[0].values())


def test_a_batch_of_empty_responses_gives_finite_numbers():
    rollout = rollout_of(torch.zeros(4, 3), logp_ref=torch.zeros(4, 3))
    nothing, a = torch.zeros(4, 3), torch.ones(4, 1)
    found = summarize(nothing, rollout, rollout.logp_old, a, aggregation_of(response_mean, rollout.mask))
    found |= of_samples(rollout, rollout.rewards, nothing)
    assert all(math.isfinite(value) for value in found.values()), found
    assert behaviour_kl(rollout.logp_old, rollout) == 0
    assert found["empty"] == 4
    assert found["length"] == 0


def test_samples():
    rollout = rollout_of(
        torch.tensor([[1, 1, 1], [1, 1, 0], [0, 0, 0], [1, 1, 1]]),
        tokens=torch.tensor([[9, 5, 5, 5], [9, 5, 6, 6], [9, 7, 7, 7], [9, 5, 6, 6]]),
        rewards=torch.tensor([0.0, 1.0, 0.5, 0.5]),
        truncated=torch.tensor([True, False, False, False]),
        parts={"correct": torch.tensor([0.0, 1, 0, 0]), "format": torch.tensor([1.0, 1, 0, 1])},
    )
    entropy = torch.tensor([[1.0, 1, 1], [2, 2, 99], [99, 99, 99], [0, 0, 0]])
    assert of_samples(rollout, 2 * rollout.rewards, entropy) == {
        "reward": 1.0,
        "correct": 0.25,
        "format": 0.75,
        "finished": 0.75,
        "dead_groups": 0.5,
        "length": 2.0,
        "empty": 1,
        "repetition": pytest.approx(3 / 5),
        "loops": 0.0,
        "entropy": pytest.approx(7 / 8),
    }


def test_a_phrase_in_a_loop_is_seen():
    """verifiers#3, TinyZero#63: 5 6 5 6 … repeats no neighbour; two of its four phrases have stood there before.

    Three tokens that come again are no phrase (second response), nor is what another response said (third).
    """
    tokens = torch.tensor([[9, 5, 6, 5, 6, 5, 6, 5], [9, 5, 6, 7, 5, 6, 7, 8], [9, 5, 6, 5, 6, 5, 6, 5]])
    mask = torch.tensor([[1] * 7, [1] * 7, [1, 1, 1, 1, 0, 0, 0]])
    found = of_samples(rollout_of(mask, tokens=tokens), torch.zeros(3), torch.zeros(3, 7))
    assert found["repetition"] == 0
    assert found["loops"] == pytest.approx(2 / 9)


def test_how_far_the_sampler_is():
    """transformers#31267, trl#4772, verl#2953: π/π_sampler of 0.8, 1 and 1.2, whatever the scoring pass says."""
    mask, gap = torch.tensor([[1, 1], [1, 0]]), torch.tensor([[0.8, 1.0], [1.2, math.nan]]).log()
    logp = torch.full((2, 2), -1.0)
    away = {"sampler_mean": 1.0, "sampler_sd": (0.08 / 3) ** 0.5, "sampler_off": 2 / 3}
    assert of_sampler(rollout_of(mask, logp_sampler=logp - gap), logp) == pytest.approx(away)
    assert of_sampler(rollout_of(mask, logp - gap), logp) == pytest.approx(away)  # reused as the old ones
    assert of_sampler(rollout_of(0 * mask), logp) == {"sampler_mean": 1.0, "sampler_sd": 0.0, "sampler_off": 0.0}


def test_every_column_is_explained_and_in_a_row(trainer):
    row = trainer(beta=0.1, method="ppo_gae", probe_every=1).iterate()  # then no column is empty
    assert list(COLUMNS) == [name for name in COLUMNS if name in row]
    assert row.keys() == COLUMNS.keys()
    assert all(len(meaning) > 8 and "\n" not in meaning for meaning in COLUMNS.values())
    assert all(math.isfinite(value) for value in row.values())


def test_on_policy_every_weight_is_one():
    for name, row in METHODS.items():
        if "on-policy" in LAWS.get(name, {}):
            continue
        rollout, weight = rollout_of(torch.tensor([[1, 1, 1], [1, 0, 0]])), WEIGHT.get(name, 1.0)
        a = torch.tensor([[2.0], [-0.5]])
        normalize = row.normalize(3)
        objective = ready(name, rollout.mask, normalize=normalize)
        pull = credit(objective, rollout.logp_old, rollout.logp_old, a, rollout.mask)
        found = summarize(pull, rollout, rollout.logp_old, a, aggregation_of(normalize, rollout.mask))
        assert found["coefficient_q01"] == pytest.approx(weight, abs=1e-5), name
        assert found["coefficient_q99"] == pytest.approx(weight, abs=1e-5), name
        assert found["removed_pos"] == pytest.approx(1 - weight, abs=1e-5), name
