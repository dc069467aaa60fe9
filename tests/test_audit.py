"""The audit: every shipped credit is the slope of its loss, and a wrong one is found, whatever makes it wrong."""

import math

import pytest
import torch
from exceptions import LAWS, WEIGHT, ready
from exceptions import check as check_as_tests_do

from sspo_teach import METHODS, audit, check_objective
from sspo_teach.checks import NEAR, OBJECTIVE_LAWS, grid, sample
from sspo_teach.objectives.normalize import response_mean
from sspo_teach.tensors import log_ratio, with_value


@pytest.mark.parametrize("name", METHODS)
def test_shipped_credits_are_slopes(name):
    found = METHODS[name].audit()
    assert found, found
    assert len(found.entries) == 2 * (len(NEAR) + 4)
    assert {(entry.A, round(math.exp(entry.log_ratio), 6)) for entry in found.entries if abs(entry.log_ratio) < 20} == {
        (A, ratio) for A in (1, -1) for ratio in (0.1, 0.5, 0.85, 0.97, 0.9999, 1, 1.0001, 1.03, 1.15, 2, 10)
    }


@pytest.mark.parametrize("name", METHODS)
def test_at_other_numbers_too(name):
    row, tried = METHODS[name], 0
    for numbers in grid(row.numbers)[2::3]:  # each family doubled; the command takes all
        try:
            found = row.audit(**numbers)
        except ValueError:
            continue
        tried += 1
        assert found, found
    assert tried or not row.numbers


def test_breaks_are_those_of_the_tests():
    """The tests' table is the authority; the rows carry it to the command line."""
    assert {name: dict(row.breaks) for name, row in METHODS.items() if row.breaks} == LAWS
    weights = {name: row.weight(**row.numbers) for name, row in METHODS.items() if row.weight is not None}
    assert weights == pytest.approx(WEIGHT)


@pytest.mark.parametrize("name", ["sspo", *LAWS, *WEIGHT])
def test_check_of_a_row_is_the_tests_own(name):
    assert METHODS[name].check() == check_as_tests_do(name)


def test_weight_follows_the_numbers():
    """PSPO's surrogate ((1 − α)ρ + α)A, arXiv 2509.21282, at two α."""
    from sspo_teach import Method, Verified

    def smoothed(logp, logp_old, advantages, mask, *, alpha=0.1, normalize=response_mean):
        ratio = log_ratio(logp, logp_old, mask).exp()
        return -normalize(((1 - alpha) * ratio + alpha) * advantages, mask)

    row = Method(smoothed, Verified.NOTES, weight=lambda alpha: 1 - alpha)
    assert row.with_numbers(alpha=0.3).check().failures == check_objective(smoothed, weight=0.7, alpha=0.3).failures
    assert "on-policy" not in row.with_numbers(alpha=0.3).check().broken
    assert "on-policy" in check_objective(smoothed, alpha=0.3).broken


class Doubled(torch.autograd.Function):
    """exp whose backward is wrong by two."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.exp())
        return x.exp()

    @staticmethod
    def backward(ctx, above):
        return 2 * ctx.saved_tensors[0] * above


def by_ratio(of):
    def objective(logp, logp_old, advantages, mask, *, normalize=response_mean):
        A = advantages.detach()
        return -normalize(of(log_ratio(logp, logp_old, mask), A) * A, mask)

    return objective


def hooked(log_r, advantages):
    """Right at ratio 1 and at negative advantages."""
    if log_r.requires_grad:
        log_r.register_hook(lambda g: torch.where(advantages > 0, g * (1 + log_r.detach() ** 2), g))
    return log_r.exp()


def test_a_broken_backward_is_found():
    found = audit(by_ratio(lambda log_r, _: Doubled.apply(log_r)))
    near = [entry for entry in found.entries if abs(entry.log_ratio) < 20]
    assert not found
    assert list(found.wrong) == near
    assert {entry.verdict for entry in near} == {"not the slope of the loss"}
    assert {round(entry.found / entry.expected, 6) for entry in near} == {2.0}
    assert {round(entry.error, 6) for entry in near} == {0.5}


def test_a_backward_wrong_for_some_tokens_only_is_found_there():
    found = audit(by_ratio(hooked))
    assert {entry.A for entry in found.wrong} == {1}
    assert {round(math.exp(entry.log_ratio), 3) for entry in found.wrong} >= {0.1, 0.5, 0.85, 1.15, 2, 10}


def test_the_right_token_is_named():
    """Of three tokens with log-ratios z, z/2, −z/4, the backward of the third is wrong."""

    def third(log_r, _):
        if log_r.requires_grad:
            log_r.register_hook(lambda g: g * torch.tensor([1.0, 1.0, 3.0])[: g.shape[1]])
        return log_r.exp()

    found = audit(by_ratio(third))
    shown = {round(entry.log_ratio, 9) for entry in found.wrong}
    assert shown == {round(-z / 4, 9) for z in NEAR}


def test_only_the_audit_finds_it():
    """The laws compare credits with each other and know nothing of the loss."""

    def off_policy(log_r, _):
        if log_r.requires_grad:
            log_r.register_hook(lambda g: g * (1 + log_r.detach() ** 2))
        return log_r.exp()

    assert check_objective(by_ratio(off_policy))
    assert not audit(by_ratio(off_policy))


def test_detached_parts_stand_still():
    """A stop-gradient rule passes; undetached, differences alone would be right about it too, and differ."""

    def cispo(log_r, _):
        return log_r.exp().clamp(max=2.0).detach() * log_r

    def moving(log_r, _):
        return log_r.exp().clamp(max=2.0) * log_r

    one, other = audit(by_ratio(cispo)), audit(by_ratio(moving))
    assert one
    assert other
    assert any(a.found != pytest.approx(b.found) for a, b in zip(one.entries, other.entries, strict=True))


def test_value_and_gradient_apart():
    assert audit(by_ratio(lambda log_r, _: with_value(log_r.square(), log_r.sin()).exp()))


def test_at_a_kink_either_side_will_do():
    for z in NEAR:
        assert audit(by_ratio(lambda log_r, _, z=z: log_r.clamp(max=z).exp()))
        assert audit(by_ratio(lambda log_r, _, z=z: torch.where(log_r <= z, log_r, 0.5 * log_r + 0.5 * z)))


def test_beyond_the_limit():
    def straight_through(logp, logp_old, advantages, mask):
        log_r = logp - logp_old
        log_r = log_r + (log_r.clamp(-20, 20) - log_r).detach()
        return -response_mean(log_r.exp() * advantages, mask)

    def unlimited(logp, logp_old, advantages, mask):
        return -response_mean((logp - logp_old).exp() * advantages, mask)

    def likelihood(logp, logp_old, advantages, mask):
        return -response_mean(logp * advantages, mask)

    assert {entry.verdict for entry in audit(straight_through).wrong} == {"not 0 beyond the limit"}
    assert len(audit(straight_through).wrong) == 8
    assert "not finite" in {entry.verdict for entry in audit(unlimited).wrong}
    assert not audit(likelihood)
    assert audit(likelihood, limited=False)


def test_the_table_reads():
    found = audit(METHODS["grpo"].objective, eps_high=0.5)
    lines = str(found).splitlines()
    assert lines[0].startswith("audit(grpo, eps_high=0.5): 30 of 30 credits agree, largest relative error ")
    assert lines[1].split() == ["A", "ratio", "credit", "differences", "rel.", "error", "verdict"]
    assert len({len(line.partition("  ok")[0]) for line in lines[2:]}) == 1
    assert lines[2].split()[:2] == ["+1", "0.1"]
    assert lines[-1].split() == ["-1", "e^1000", "+0", "+0", "0.0e+00", "ok"]
    assert repr(found) == str(found)


def test_the_grid():
    assert grid({"tau_pos": 1.0, "tau_neg": 1.05, "cap": 4}) == [
        {"tau_pos": 1.0, "tau_neg": 1.05, "cap": 4},
        {"tau_pos": 0.5, "tau_neg": 0.525, "cap": 4},
        {"tau_pos": 2.0, "tau_neg": 2.1, "cap": 4},
        {"tau_pos": 10.0, "tau_neg": 10.5, "cap": 4},
        {"tau_pos": 1.0, "tau_neg": 1.05, "cap": 2},
        {"tau_pos": 1.0, "tau_neg": 1.05, "cap": 8},
        {"tau_pos": 1.0, "tau_neg": 1.05, "cap": 40},
    ]
    assert grid({"beta": 0.0, "on": True}) == [{"beta": 0.0, "on": True}]


def test_numbers_out_of_range_are_refused():
    with pytest.raises(ValueError, match="tau_pos must be a positive"):
        audit(METHODS["sspo"].objective, tau_pos=-1.0)


def test_an_exception_that_is_no_law_is_refused():
    for row in METHODS.values():
        assert set(row.breaks) <= set(OBJECTIVE_LAWS)


@pytest.mark.parametrize("name", METHODS)
def test_every_token_of_a_mixed_batch(name):
    """Six responses of different ratios in one batch: differences with detached parts held still, 1e-8."""
    from sspo_teach import credit
    from sspo_teach.frozen import freeze

    batch = sample(0.5, seed=6)
    objective = ready(name, batch.mask, batch)
    still = freeze(lambda logp: objective(logp, *batch.tensors[1:]), batch.logp)
    differences = torch.zeros_like(batch.logp)
    for row, token in batch.mask.nonzero().tolist():
        step = torch.zeros_like(batch.logp)
        step[row, token] = 1e-6
        differences[row, token] = -(still(batch.logp + step) - still(batch.logp - step)) / 2e-6
    found = credit(objective, *batch.tensors)
    assert (found - differences).abs().max() < 1e-8 * differences.abs().max()
