"""The shipped laws hold for every shipped method, gate and unit, and each can fail, with a report that reads."""

import pytest
import torch
from exceptions import LAWS, WEIGHT, check, ready

from sspo_teach import METHODS, check_gate, check_objective, check_unit, gates
from sspo_teach.objectives import units
from sspo_teach.objectives.normalize import response_mean
from sspo_teach.tensors import lengths, log_ratio, masked_mean, masked_sum, promote

EPS, TAU = {"eps_low": 0.2, "eps_high": 0.28}, {"tau_pos": 1.0, "tau_neg": 1.05}
GATES = {
    "identity": {},
    "log_identity": {},
    "clip": EPS,
    "log_clip": {"lower": -0.4, "upper": 0.3},
    "log_dual_clip": {"lower": -0.4, "upper": 0.3, "cap": 1.1},
    "dual_clip": {**EPS, "ratio_cap": 3.0},
    "sigmoid": TAU,
    "log_sigmoid": TAU,
    "log_arctan": TAU,
    "log_arctan_log_ratio": TAU,
    "delta_clip": {**EPS, "delta": 4.0},
    "directional_sigmoid": TAU,
    "gaussian": {**TAU, "kappa": 0.25},
    "cauchy": {**TAU, "kappa": 0.25},
    "erf": TAU,
    "arctan": TAU,
    "softsign": TAU,
    "smoothed": {"alpha": 0.1},
    "kept_clip": {**EPS, "beta_low": 0.75, "beta_high": 1.0},
}
GATE_WEIGHT = {"smoothed": 0.9}
GATE_LAWS = {"kept_clip": ("slope",)}  # its value outside the band stands still, its gradient does not
NO_GATES = {
    "bounds",
    "extending",
    "score",
}


@pytest.mark.parametrize("name", METHODS)
def test_objectives(name):
    report = check(name)
    assert report, report


@pytest.mark.parametrize(("name", "law"), [(name, law) for name, laws in LAWS.items() for law in laws])
def test_exceptions_are_needed(name, law):
    """An exception that is none any more would hide a mistake."""
    row, others = METHODS[name], set(LAWS[name]) - {law}
    weight = WEIGHT.get(name, 1.0)
    report = check_objective(row.objective, needs=row.needs, separable=row.separable, without=others, weight=weight)
    assert report.broken == (law,)


def test_an_unknown_law_is_refused():
    with pytest.raises(ValueError, match="unknown law: 'stail'; did you mean 'stale'"):
        check_objective(METHODS["rloo"].objective, without=("stail",))


@pytest.mark.parametrize("preset", METHODS["sspo"].presets)
def test_presets(preset):
    assert check_objective(METHODS["sspo"].objective, **METHODS["sspo"].presets[preset].numbers)


def test_every_gate_is_checked():
    assert set(gates.__all__) - NO_GATES == set(GATES)


@pytest.mark.parametrize("name", GATES)
def test_gates(name):
    report = check_gate(getattr(gates, name), weight=GATE_WEIGHT.get(name, 1.0), **GATES[name])
    assert report.broken == GATE_LAWS.get(name, ()), report


@pytest.mark.parametrize("tau", [0.01, 0.3, 12.0])
@pytest.mark.parametrize("name", [name for name, numbers in GATES.items() if "tau_pos" in numbers])
def test_soft_gates_at_other_temperatures(name, tau):
    report = check_gate(getattr(gates, name), **{**GATES[name], "tau_pos": tau, "tau_neg": tau})
    assert report, report


@pytest.mark.parametrize("tau", [1e-6, 0.05, 50.0])
@pytest.mark.parametrize("name", [name for name, row in METHODS.items() if "tau_pos" in row.numbers])
def test_soft_objectives_at_extreme_temperatures(name, tau):
    """log f reaches π/(2τ): at τ = 0.01 its exponential would leave float32, were pools not limited."""
    report = check_objective(METHODS[name].objective, tau_pos=tau, tau_neg=tau)
    assert report, report


@pytest.mark.parametrize("name", ["token", "sequence", "product"])
def test_units(name):
    report = check_unit(getattr(units, name))
    assert report, report


def test_prefixes_differ_by_design():
    assert check_unit(units.prefix, exact=False)
    assert check_unit(units.prefix).broken == ("full gradient",)


BROKEN_GATES = {
    "on-policy": lambda log_x, advantages: 2 * log_x,
    "slope": lambda log_x, advantages: log_x.detach().exp() * log_x,
    "increasing": lambda log_x, advantages: log_x.sin(),
    "way back": lambda log_x, advantages: log_x.exp().clamp(0.8, 1.2),
    "tokenwise": lambda log_x, advantages: log_x.exp() + log_x.mean(1, keepdim=True).detach(),
    "expanded": lambda log_x, advantages: log_x.exp() * advantages.shape[1],
    "finite": lambda log_x, advantages: log_x.exp() ** 5 / 5,
}
BROKEN_UNITS = {
    "shape": masked_mean,
    "on-policy": lambda log_r, mask: log_r + 1,
    "padding": lambda log_r, mask: log_r.mean(1, keepdim=True) + log_r - log_r.detach(),
    "rows": lambda log_r, mask: log_r + masked_mean(log_r, mask).mean().detach(),
    "own gradient": lambda log_r, mask: masked_mean(log_r, mask).expand_as(log_r),
    "full gradient": lambda log_r, mask: units.product(log_r, mask) - (log_r - log_r.detach()),
    "finite": lambda log_r, mask: masked_sum(log_r, mask).expand_as(log_r),
}


@pytest.mark.parametrize("law", BROKEN_GATES)
def test_each_law_of_gates_can_fail(law):
    assert law in check_gate(BROKEN_GATES[law]).broken


@pytest.mark.parametrize("law", BROKEN_UNITS)
def test_each_law_of_units_can_fail(law):
    assert law in check_unit(BROKEN_UNITS[law]).broken


def test_all_laws_of_gates_and_units_are_covered():
    assert set(BROKEN_GATES) == set(check_gate(gates.identity).laws)
    assert set(BROKEN_UNITS) == set(check_unit(units.token).laws)


def by_group(logp, logp_old, advantages, mask, *, group_ids, normalize=response_mean):
    """Of each group the mean of the responses' gated terms; ids that differ by five are taken for one."""
    A = advantages.detach()
    terms = gates.clip(log_ratio(logp, logp_old, mask), A, 0.2, 0.2) * A
    same = (group_ids % 5 == group_ids.unsqueeze(1) % 5) & mask.any(1)
    return -normalize((masked_mean(terms, mask).T * same).sum(1, keepdim=True).expand_as(mask) / 2, mask)


def of_grpo(**changed):
    """GRPO on inputs that were changed first."""

    def objective(logp, logp_old, advantages, mask, *, normalize=response_mean):
        given = {"logp": logp, "logp_old": logp_old, "advantages": advantages, "mask": mask}
        given |= {name: change(**given) for name, change in changed.items()}
        return METHODS["grpo"].objective(**given, normalize=normalize)

    return objective


def straight_through(logp, logp_old, **_):
    """log π within 20 of log π_old, with the gradient of all of it."""
    log_r = promote(logp) - promote(logp_old)
    return promote(logp_old) + log_r + (log_r.clamp(-20, 20) - log_r).detach()


def by_multiplication(x, mask, *, responses=None):
    return (x * mask / mask.sum(1, keepdim=True).clamp(min=1)).sum() / torch.as_tensor(
        mask.any(1).sum() if responses is None else responses
    ).clamp(min=1)


def over_nothing(x, mask, *, tokens=None):
    return masked_sum(x, mask).sum() / (mask.sum() if tokens is None else tokens)


def over_all_rows(x, mask, *, responses=None):
    return masked_mean(x, mask).sum() / (len(mask) if responses is None else responses)


def leaking(logp, logp_old, advantages, mask, *, normalize=response_mean):
    return -normalize(gates.clip(log_ratio(logp, logp_old, mask), advantages, 0.2, 0.2) * advantages, mask)


def normalized_by(normalizer):
    def objective(logp, logp_old, advantages, mask, *, normalize=normalizer):
        log_r = log_ratio(logp, logp_old, mask)
        return -normalize(gates.clip(log_r, advantages.detach(), 0.2, 0.2) * advantages.detach(), mask.bool())

    return objective


ALONE = {
    "padding": normalized_by(by_multiplication),
    "gaps": of_grpo(mask=lambda mask, **_: torch.arange(mask.shape[1]) < lengths(mask)),
    "empty row": normalized_by(over_all_rows),
    "nothing": normalized_by(over_nothing),
    "stale": of_grpo(
        logp_old=lambda logp, logp_old, **_: torch.where((logp - logp_old).abs() < 20, logp, logp_old).detach()
    ),
    "limit": of_grpo(logp=straight_through),
    "precision": of_grpo(logp=lambda logp, **_: logp.bfloat16().to(logp.dtype) if logp.dtype.itemsize < 4 else logp),
    "layout": of_grpo(logp=lambda logp, **_: logp.view(-1).reshape(logp.shape)),
    "no leak": leaking,
    "mask types": of_grpo(mask=lambda mask, **_: mask if mask.dtype == torch.bool else ~mask.bool()),
}
"""Law → an objective that breaks it and no other."""


@pytest.mark.parametrize("law", ALONE)
def test_laws_that_alone_find_a_mistake(law):
    assert check_objective(ALONE[law]).broken == (law,)


def test_groups_are_named():
    """The law applies to objectives that take ids; all others hold but on-policy, which a mean over a group breaks."""
    assert check_objective(by_group, needs=("group_ids",), separable=False, without=WHOLE_GROUP).broken == (
        "group names",
    )
    assert "group names" not in check_objective(METHODS["grpo"].objective).laws


WHOLE_GROUP = ("on-policy", "way back", "empty row", "zero advantage")


def test_the_report_reads():
    def naive(logp, logp_old, advantages, mask):
        return -((logp - logp_old).exp() * advantages * mask).sum() / mask.sum()

    report = check_objective(naive)
    assert not report
    assert set(report.broken) == {"padding", "nothing", "finite", "limit", "precision", "no leak"}
    line = next(line for line in str(report).splitlines() if "padding" in line)
    assert line == (
        "  padding: credit with nan on padding, row 0, token 3: expected 0, found nan "
        "(padding may hold NaN, inf or 1e30: mask by where, since 0 · NaN is NaN)"
    )
    assert str(report).startswith("check_objective(naive): 6 of 18 laws are broken")
    assert str(check_gate(gates.identity)) == "check_gate(identity): all 7 laws hold"


def test_what_a_report_says_can_be_looked_up():
    """Which quantity, where, what was expected and what came instead, for objectives, gates and units."""
    (found,) = check_objective(ALONE["limit"]).failures
    assert (found.what, found.row, found.token, found.expected) == ("credit at log ρ = 30", 1, 0, "0")
    (found,) = check_gate(BROKEN_GATES["way back"]).failures
    assert (found.law, found.what, found.expected, found.found) == (
        "way back", "slope at log x = -0.667, A = 1", "more than 0", "0",
    )  # fmt: skip
    found = check_unit(BROKEN_UNITS["finite"]).failures[-1]
    assert str(found).startswith("finite: exp of the pool of 200 tokens at log ρ = 20: expected a finite number, found")
    assert "its call: expected a result, found RuntimeError" in str(check_objective(ALONE["layout"]))


def test_a_subject_that_raises_is_reported_not_raised():
    def broken(logp, logp_old, advantages, mask):
        raise RuntimeError("not written yet")

    report = check_objective(broken)
    assert len(report.broken) == len(report.laws)
    assert "RuntimeError: not written yet" in str(report)


def test_weight_on_policy_may_be_another():
    """PSPO's surrogate ((1 − α)ρ + α)A has weight 1 − α (arXiv 2509.21282)."""

    def smoothed(log_x, advantages):
        return 0.9 * log_x.exp() + 0.1

    assert check_gate(smoothed).broken == ("on-policy",)
    assert check_gate(smoothed, weight=0.9)


def test_float32_batches_work_too():
    for name in METHODS:
        logp, mask = torch.randn(4, 3), torch.ones(4, 3)
        assert ready(name, mask)(logp, logp + 0.1, torch.ones(4, 1), mask).dtype == torch.float32
