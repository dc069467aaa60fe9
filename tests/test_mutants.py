"""Wrong objectives, each one edit of a shipped line: every one is rejected, and every law rejects at least one.

``python tests/test_mutants.py`` prints which law rejects how many.
"""

import functools
import importlib
import inspect
import sys
import types
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import PathFinder, SourceFileLoader
from itertools import combinations
from pathlib import Path
from unittest import mock

import pytest
import torch
from exceptions import LAWS, WEIGHT
from oracles import oracle

import sspo_teach
from sspo_teach import METHODS, credit
from sspo_teach.checks import OBJECTIVE_LAWS, check_objective
from sspo_teach.objectives import normalize


@dataclass(frozen=True)
class Mutant:
    """``method`` with ``old`` replaced by ``new`` in the source of ``part``; ``law`` is one that rejects it.

    A part is a function by its path below ``sspo_teach``, such as ``gates.hard.log_clip``.
    """

    name: str
    method: str
    part: str
    old: str
    new: str
    law: str

    @functools.cache  # noqa: B019 - mutants live as long as the tests
    def objective(self):
        """The method in a house built anew around the edited line: all that imports the part sees the edit."""
        module, text = self.edited()
        shipped = METHODS[self.method].objective
        with rebuilt(module, text):
            return getattr(importlib.import_module(shipped.__module__), shipped.__name__)

    def edited(self):
        """The module that holds the part, and its source after the edit."""
        name, function = f"sspo_teach.{self.part}".rsplit(".", 1)
        module = importlib.import_module(name)
        written = inspect.getsource(getattr(module, function))
        assert written.count(self.old) == 1, f"{self.name}: the line it edits is gone"
        text = Path(module.__file__).read_text()
        assert text.count(written) == 1, f"{self.name}: {self.part} stands twice in its module"
        return name, text.replace(written, written.replace(self.old, self.new))


@contextmanager
def rebuilt(name, text):
    """A place where ``sspo_teach`` is imported afresh, with ``text`` for the source of the module ``name``."""

    class Edited(SourceFileLoader):
        def get_code(self, fullname):
            return compile(text, self.path, "exec")

    class Finder:
        @staticmethod
        def find_spec(fullname, path=None, target=None):
            spec = PathFinder.find_spec(fullname, path, target) if fullname == name else None
            if spec is not None:
                spec.loader = Edited(fullname, spec.origin)
            return spec

    front = types.ModuleType("sspo_teach")  # the package without its front page, which would import everything
    front.__path__ = sspo_teach.__path__
    others = {key: module for key, module in sys.modules.items() if key.partition(".")[0] != "sspo_teach"}
    with (
        mock.patch.dict(sys.modules, {**others, "sspo_teach": front}, clear=True),
        mock.patch.object(sys, "meta_path", [Finder, *sys.meta_path]),
    ):
        yield


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
    Mutant(
        "mask made from lengths",
        "sapo",
        "tensors.masked_sum",
        "torch.where(mask.bool(), x",
        "torch.where(torch.arange(mask.shape[1]) < lengths(mask), x",
        "gaps",
    ),
    Mutant(
        "limit of the value only",
        "ppo",
        "tensors.limit",
        "return log_x.clamp(-LIMIT, LIMIT)",
        "return log_x + (log_x.clamp(-LIMIT, LIMIT) - log_x).detach()",
        "limit",
    ),
    Mutant(
        "ratio in half precision",
        "sspo",
        "tensors.log_ratio",
        "promote(logp) - promote(logp_old.detach())",
        "promote(logp - logp_old.detach())",
        "precision",
    ),
    Mutant(
        "view of a view",
        "dapo",
        "tensors.masked_sum",
        "torch.where(mask.bool(), x, 0.0)",
        "torch.where(mask.bool(), x, 0.0).view(-1).view(mask.shape)",
        "layout",
    ),
    Mutant(
        "ids folded into five",
        "gepo",
        "objectives.units.above_group",
        "torch.unique(group_ids[live],",
        "torch.unique(group_ids[live] % 5,",
        "group names",
    ),
]
for family in ("mutants_tokens", "mutants_bands", "mutants_contrast"):
    if (Path(__file__).parent / f"{family}.py").exists():
        MUTANTS += [Mutant(*parts) for parts in importlib.import_module(family).MUTANTS]


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


@functools.cache
def by_loops(name):
    """The credit of each batch as the loops of the paper have it."""
    return [oracle(name, *batch, wide_fields(name, batch), **METHODS[name].numbers)[1] for batch in BATCHES]


def keeps_to_the_loops(name, objective):
    for batch, expected in zip(BATCHES, by_loops(name), strict=True):
        found = credit(objective, *(x.clone() for x in batch), **wide_fields(name, batch))  # some write into it
        if not (found - expected).abs().max() < 1e-6 * expected.abs().max():
            return False
    return True


def killers(mutant, laws=(*OBJECTIVE_LAWS, "loops")):
    """Those of ``laws`` that reject it, the loops of its paper among them."""
    name, row, others = mutant.method, METHODS[mutant.method], set(OBJECTIVE_LAWS) - set(laws)
    report = check_objective(
        mutant.objective(),
        needs=row.needs,
        separable=row.separable,
        without={*others, *LAWS.get(name, {})},
        weight=WEIGHT.get(name, 1.0),
    )
    by_loops = "loops" in laws and not keeps_to_the_loops(name, mutant.objective())
    return (*report.broken, *(["loops"] if by_loops else []))


def signature(mutant):
    """Credit and loss on batches stale, with empty rows, dirty padding, gaps, in half precision, transposed."""
    logp, logp_old, advantages, mask = BATCHES[0]
    dirty = advantages.expand_as(mask).masked_fill(~mask, float("nan"))
    empty = mask & (torch.arange(96) % 5 > 0).unsqueeze(1)
    gaps = mask & (torch.arange(6) != 1)
    half = [x.bfloat16() for x in (logp, logp_old, advantages)]
    transposed = [x.t().contiguous().t() for x in (logp, logp_old, advantages, mask)]
    batches = [
        *BATCHES,
        (logp, logp_old, dirty, mask),
        (logp, logp_old, advantages, mask.long()),
        (logp, logp_old, advantages, empty),
        (logp, logp_old, advantages, gaps),
        (logp + 1000, logp_old, advantages, mask),
        (*half, mask),
        transposed,
    ]
    found, objective = [], mutant.objective()
    for logp, logp_old, advantages, mask in batches:
        extra = wide_fields(mutant.method, batches[0])
        try:
            loss = objective(logp, logp_old, advantages.clone(), mask, **extra)
            pull = credit(objective, logp, logp_old, advantages.clone(), mask, **extra)
        except RuntimeError:
            found.append(torch.full((577,), torch.inf, dtype=torch.float64))
        else:
            found.append(torch.cat([loss.reshape(-1)[:1].double(), pull.flatten().double()]))
    return torch.cat(found)


@pytest.mark.parametrize("name", METHODS)
def test_shipped_methods_survive(name):
    """The laws on them are in ``test_laws``."""
    assert keeps_to_the_loops(name, METHODS[name].objective)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.method}: {mutant.name}")
def test_mutants_die(mutant):
    assert killers(mutant, [mutant.law]), f"{mutant.name} is rejected by {killers(mutant) or 'nothing'}"


def test_every_law_kills():
    assert {mutant.law for mutant in MUTANTS} == {*OBJECTIVE_LAWS, "loops"}


def test_names_are_different():
    assert len({(mutant.method, mutant.name) for mutant in MUTANTS}) == len(MUTANTS)


def test_mutants_are_different():
    """No two are the same mistake: their credits or losses differ on some batch."""
    signatures = [(mutant, signature(mutant)) for mutant in MUTANTS]
    for (one, a), (other, b) in combinations(signatures, 2):
        assert not torch.allclose(a, b, rtol=1e-9, atol=0, equal_nan=True), f"{one.name} is {other.name}"


def test_there_are_enough():
    families = {mutant.part for mutant in MUTANTS}
    assert len(MUTANTS) >= 60
    assert len(families) >= 20


class TestTheRig:
    def test_the_normalizers_of_mutants_are_their_own(self):
        """An edited normalizer reaches the default argument of the rebuilt objective."""
        (mutant,) = [mutant for mutant in MUTANTS if mutant.name == "empty rows counted"]
        default = inspect.signature(mutant.objective()).parameters["normalize"].default
        assert default is not normalize.response_mean
        assert default.__name__ == "response_mean"

    @pytest.mark.parametrize("name", METHODS)
    def test_a_house_rebuilt_without_an_edit_is_the_same(self, name):
        plain = Mutant("none", name, "tensors.lengths", "return mask", "return mask", "")
        batch = BATCHES[0]
        extra = wide_fields(name, batch)
        assert plain.objective() is not METHODS[name].objective
        assert credit(plain.objective(), *batch, **extra).equal(credit(METHODS[name].objective, *batch, **extra))

    @pytest.mark.parametrize("part", ["tensors.lengths", "tensors.log_ratio", "gates.bounds.constant", "units._pooled"])
    def test_an_edit_reaches_everything_above_it(self, part):
        """A part deep below: the mutant raises what the edit says."""
        part = part if part.startswith(("tensors", "gates")) else f"objectives.{part}"
        function = part.rpartition(".")[2]
        source = inspect.getsource(getattr(importlib.import_module(f"sspo_teach.{part.rpartition('.')[0]}"), function))
        line = next(line for line in source.splitlines() if line.strip().startswith("return ")).strip()
        dead = Mutant("dead", "gspo", part, line, "raise RuntimeError('reached')", "")
        with pytest.raises(RuntimeError, match="reached"):
            dead.objective()(*BATCHES[0])

    def test_nothing_of_it_stays(self):
        before = dict(sys.modules), list(sys.meta_path), METHODS["sspo"].objective, vars(sspo_teach).copy()
        MUTANTS[0].objective.__wrapped__(MUTANTS[0])
        assert (dict(sys.modules), sys.meta_path, METHODS["sspo"].objective, vars(sspo_teach)) == before

    def test_an_edit_of_a_line_that_is_gone_is_refused(self):
        with pytest.raises(AssertionError, match="the line it edits is gone"):
            Mutant("late", "sspo", "tensors.lengths", "mask.float()", "mask", "").edited()


def matrix():
    """Law by law: how many mutants it rejects, how many it alone."""
    rejected = [killers(mutant) for mutant in MUTANTS]
    lines = [f"{len(MUTANTS)} mutants", f"{'law':<16}{'rejects':>8}{'alone':>8}{'named':>8}"]
    for law in [*OBJECTIVE_LAWS, "loops"]:
        counts = sum(law in found for found in rejected), sum(found == (law,) for found in rejected)
        lines.append(f"{law:<16}{counts[0]:>8}{counts[1]:>8}{sum(mutant.law == law for mutant in MUTANTS):>8}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(matrix())
