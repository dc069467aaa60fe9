"""Wrong objectives, each one edit of a shipped line: every one is rejected, and every law rejects at least one."""

import importlib
import inspect
from dataclasses import dataclass
from itertools import combinations
from types import SimpleNamespace
from unittest import mock

import mutants_bands
import mutants_tokens
import pytest
import torch
from exceptions import check
from oracles import oracle

from sspo_teach import METHODS, credit, gates
from sspo_teach.checks import OBJECTIVE_LAWS
from sspo_teach.objectives import normalize, units


@dataclass(frozen=True)
class Mutant:
    """``method`` with ``old`` replaced by ``new`` in the source of ``part``; ``law`` is one that rejects it."""

    name: str
    method: str
    part: str
    old: str
    new: str
    law: str

    def objective(self):
        """The method built anew around the edited part."""
        module_name, function = self.part.rsplit(".", 1)
        module = importlib.import_module(f"sspo_teach.{module_name}")
        written = inspect.getsource(getattr(module, function))
        assert written.count(self.old) == 1, f"{self.name}: the line it edits is gone"
        edited = {"__name__": "mutant"}
        exec(inspect.getsource(module).replace(written, written.replace(self.old, self.new)), edited)
        home = importlib.import_module(METHODS[self.method].objective.__module__)
        if module is home:
            return edited[self.method]
        functions = {key: x for key, x in edited.items() if inspect.isfunction(x) and x.__module__ == "mutant"}
        rebuilt = {"__name__": "rebuilt"}
        with mock.patch.multiple(module, **functions):  # for what the home imports by name, normalizers among it
            exec(inspect.getsource(home), rebuilt)
        package = {"gates": gates, "units": units}.get(module_name.split(".")[0 if "gates" in module_name else -1])
        if module is gates.bounds:
            functions = {"bounds": SimpleNamespace(**{**vars(module), **functions})}
        if package is not None:
            rebuilt[package.__name__.split(".")[-1]] = SimpleNamespace(**{**vars(package), **functions})
        return rebuilt[self.method]


TOKEN, SEQUENCE = "objectives.token_level", "objectives.sequence_level"
MUTANTS = [
    Mutant("sign", "ppo", f"{TOKEN}.ppo", "return -normalize", "return normalize", "on-policy"),
    Mutant("max for min", "ppo", "gates.hard.log_clip", "clamp(max=upper)", "clamp(min=upper)", "on-policy"),
    Mutant("wrong clip side", "grpo", "gates.hard.log_clip", "advantages > 0", "advantages < 0", "way back"),
    Mutant(
        "two-sided clamp",
        "grpo",
        "gates.hard.log_clip",
        "torch.where(advantages > 0, log_x.clamp(max=upper), log_x.clamp(min=lower))",
        "log_x.clamp(lower, upper)",
        "way back",
    ),
    Mutant("ε off by 0.01", "grpo", f"{TOKEN}.grpo", "eps_high: float = 0.2", "eps_high: float = 0.21", "loops"),
    Mutant("ratio always 1", "grpo", f"{TOKEN}.grpo", "(logp, logp_old, mask)", "(logp, logp, mask)", "stale"),
    Mutant(
        "band in log space",
        "dapo",
        f"{TOKEN}.dapo",
        "gates.clip(log_r, advantages, eps_low,",
        "gates.log_clip(log_r, advantages, -eps_low,",
        "loops",
    ),
    Mutant("inverted ratio", "reinforce", f"{TOKEN}.reinforce", "log_r.exp()", "(-log_r).exp()", "loops"),
    Mutant(
        "old minus new",
        "sspo",
        "tensors.log_ratio",
        "promote(logp) - promote(logp_old.detach())",
        "promote(logp_old.detach()) - promote(logp)",
        "on-policy",
    ),
    Mutant("length bias left in", "dr_grpo", f"{TOKEN}.dr_grpo", "= sequence_sum", "= response_mean", "loops"),
    Mutant("token mean for GRPO", "grpo", f"{TOKEN}.grpo", "= response_mean", "= token_mean", "loops"),
    Mutant(
        "mean over the width",
        "sapo",
        "objectives.normalize.response_mean",
        "masked_mean(_terms(x, mask), mask)",
        "_terms(x, mask).where(mask.bool(), 0.0).mean(1)",
        "extra columns",
    ),
    Mutant(
        "pool without mask",
        "gspo",
        "objectives.units.sequence",
        "masked_mean(log_r, mask)",
        "log_r.mean(1, keepdim=True)",
        "extra columns",
    ),
    Mutant(
        "empty rows counted",
        "gmpo",
        "objectives.normalize.response_mean",
        "live_responses(mask)",
        "len(mask)",
        "empty row",
    ),
    Mutant(
        "0/0",
        "dapo",
        "objectives.normalize.token_mean",
        "_at_least_one(live_tokens(mask) if tokens is None else tokens)",
        "(live_tokens(mask) if tokens is None else tokens)",
        "nothing",
    ),
    Mutant(
        "mask by multiplication",
        "cispo",
        "objectives.normalize.token_mean",
        "masked_sum(_terms(x, mask), mask)",
        "(_terms(x, mask) * mask)",
        "padding",
    ),
    Mutant("no limit", "ppo", "tensors.log_ratio", "return limit(", "return (", "finite"),
    Mutant("advantages learn", "rloo", "tensors.checked", "advantages.detach()", "advantages", "no leak"),
    Mutant(
        "mask of the padding",
        "cispo",
        "tensors.checked",
        "mask.bool()",
        "mask.bool() == (mask.dtype == torch.bool)",
        "mask types",
    ),
    Mutant(
        "advantages changed in place",
        "ppo",
        "tensors.checked",
        "advantages.detach()",
        "advantages.detach().mul_(0.5)",
        "pure",
    ),
    Mutant(
        "advantages of the row above", "sapo", f"{TOKEN}.sapo", "* advantages", "* advantages.roll(1, 0)", "row order"
    ),
    Mutant(
        "advantages centred over the batch",
        "rloo",
        f"{TOKEN}.rloo",
        "* advantages",
        "* (advantages - advantages.mean())",
        "separable",
    ),
    Mutant(
        "a bonus for every token",
        "reinforce",
        f"{TOKEN}.reinforce",
        "* advantages",
        "* (advantages + 0.01)",
        "zero advantage",
    ),
    Mutant(
        "shared among the tokens",
        "gspo",
        f"{SEQUENCE}.gspo",
        "* advantages",
        "* advantages / advantages.shape[1]",
        "expanded",
    ),
    Mutant("product for mean", "gspo", f"{SEQUENCE}.gspo", "units.sequence", "units.product", "on-policy"),
    Mutant(
        "no pooling",
        "gspo",
        f"{SEQUENCE}.gspo",
        "units.sequence(log_ratio(logp, logp_old, mask), mask)",
        "log_ratio(logp, logp_old, mask)",
        "loops",
    ),
    Mutant(
        "ε as a ratio",
        "gmpo",
        f"{SEQUENCE}.gmpo",
        "advantages, -eps_low, eps_high",
        "advantages, *gates.bounds.constant(eps_low, eps_high)",
        "loops",
    ),
    Mutant(
        "cap on 1 + cap",
        "cispo",
        f"{TOKEN}.cispo",
        "clamp(ratio_floor, ratio_cap)",
        "clamp(ratio_floor, 1 + ratio_cap)",
        "loops",
    ),
    Mutant("weight not detached", "cispo", "gates.weight.score", "weight.detach()", "weight", "loops"),
    Mutant("no 4/τ", "sapo", "gates.soft.log_sigmoid", "(4 / tau).log() - ", "-", "on-policy"),
    Mutant(
        "value is the weight",
        "sapo",
        "gates.soft.sigmoid",
        "log_sigmoid(log_x, advantages, tau_pos, tau_neg).exp()",
        "log_x.exp() * (log_x.expm1() / 2).cosh() ** -2",
        "loops",
    ),
    Mutant("one temperature", "sspo", f"{SEQUENCE}.sspo", "tau_neg: float = 1.05", "tau_neg: float = 1.0", "loops"),
    Mutant("arctan of the log-ratio", "sspo", "gates.soft.log_arctan", "log_x.expm1()", "log_x", "loops"),
    Mutant("no 1/τ", "sspo", "gates.soft.log_arctan", "arctan() / tau", "arctan()", "on-policy"),
    Mutant(
        "gate without pool", "sspo", f"{SEQUENCE}.sspo", "units.sequence(log_f, mask).exp()", "log_f.exp()", "loops"
    ),
    Mutant(
        "temperature of the other sign", "sspo", "gates.soft.temperature", "advantages > 0", "advantages <= 0", "loops"
    ),
    *(Mutant(*edit) for edit in mutants_bands.MUTANTS),
    *(Mutant(*edit) for edit in mutants_tokens.MUTANTS),
]


def wide(drift):
    """96 responses, so that some token lies between neighbouring bounds."""
    draw = torch.Generator().manual_seed(11)
    logp_old = -torch.rand(96, 6, generator=draw, dtype=torch.float64) - 0.1
    advantages = torch.randn(96, 1, generator=draw, dtype=torch.float64)
    mask = torch.arange(6) < torch.randint(1, 7, (96, 1), generator=draw)
    return logp_old + drift * torch.randn(96, 6, generator=draw, dtype=torch.float64), logp_old, advantages, mask


def wide_fields(name, batch):
    """What ``name`` needs on such a batch, all from one seed."""
    logp_old = batch[1]
    draw = torch.Generator().manual_seed(12)
    made = {
        "group_ids": torch.arange(96) // 6,
        "rewards": torch.randn(96, generator=draw, dtype=torch.float64),
        "truncated": torch.zeros(96, dtype=torch.bool),
        "logp_ref": logp_old - 0.1,
        "values": torch.randn(96, 6, generator=draw, dtype=torch.float64),
        "selected": torch.rand(96, 6, generator=draw) < 0.3,
    }
    return {need: made[need] for need in METHODS[name].needs}


BATCHES = [wide(0.3), wide(1.5), wide(3e-4)]


def broken(name, objective):
    """Every law that rejects the objective, the loops of its paper among them."""
    found = list(check(name, objective).broken)
    for batch in BATCHES:
        extra = wide_fields(name, batch)
        expected = oracle(name, *batch, extra, **METHODS[name].numbers)[1]
        deviation = (credit(objective, *batch, **extra) - expected).abs().max() / expected.abs().max()
        if not deviation < 1e-6 and "loops" not in found:
            found.append("loops")
    return found


@pytest.mark.parametrize("name", METHODS)
def test_shipped_methods_survive(name):
    assert broken(name, METHODS[name].objective) == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutants_die(mutant):
    found = broken(mutant.method, mutant.objective())
    assert mutant.law in found, f"{mutant.name} is rejected by {found or 'nothing'}, not by {mutant.law}"


def test_every_law_kills():
    assert {mutant.law for mutant in MUTANTS} == {*OBJECTIVE_LAWS, "loops"}


def test_mutants_are_different():
    """No two are the same mistake: their credits differ on some batch, stale, with empty rows or dirty padding."""
    logp, logp_old, advantages, mask = BATCHES[0]
    dirty = advantages.expand_as(mask).masked_fill(~mask, float("nan"))
    empty = mask & (torch.arange(96) % 5 > 0).unsqueeze(1)
    batches = [
        *BATCHES,
        (logp, logp_old, dirty, mask),
        (logp, logp_old, advantages, mask.long()),
        (logp, logp_old, advantages, empty),
        (logp + 1000, logp_old, advantages, mask),
    ]
    signatures = []
    for mutant in MUTANTS:
        objective = mutant.objective()
        credits = [
            credit(objective, logp, logp_old, A.clone(), mask, **wide_fields(mutant.method, batches[0]))
            for logp, logp_old, A, mask in batches
        ]
        signatures.append(torch.cat(credits))
    for (one, a), (other, b) in combinations(zip(MUTANTS, signatures, strict=True), 2):
        assert not torch.allclose(a, b, rtol=1e-9, atol=0, equal_nan=True), f"{one.name} is {other.name}"


def test_the_normalizers_of_mutants_are_their_own():
    """The rig itself: an edited normalizer reaches the default argument of the rebuilt objective."""
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == "empty rows counted"]
    default = inspect.signature(mutant.objective()).parameters["normalize"].default
    assert default is not normalize.response_mean
    assert default.__name__ == "response_mean"
