"""Each objective against loops that spell its formula, against finite differences, and at its limits."""

import inspect
import math

import pytest
import torch
from exceptions import DETACHED, LAWS, ONE_ADVANTAGE, WEIGHT, fields, ready
from oracles import NUMBERS as MORE
from oracles import ORACLES, WHOLE, oracle

from sspo_teach import METHODS, credit, gates
from sspo_teach.checks import sample
from sspo_teach.objectives import normalize, sequence_level, units
from sspo_teach.tensors import log_ratio

NUMBERS = {
    "clip": [{"eps_low": 0.2, "eps_high": 0.2}, {"eps_low": 0.1, "eps_high": 0.6}],
    "tau": [{"tau_pos": 1.0, "tau_neg": 1.05}, {"tau_pos": 10.0, "tau_neg": 12.0}, {"tau_pos": 0.3, "tau_neg": 2.0}],
    "cap": [{"ratio_cap": 5.0, "ratio_floor": 0.0}, {"ratio_cap": 1.3, "ratio_floor": 0.8}],
}
CASES = [
    (name, {**row.numbers, **numbers})
    for name, row in METHODS.items()
    for numbers in [
        {},
        *(NUMBERS["clip"] if "eps_low" in row.numbers else []),
        *(NUMBERS["tau"] if "tau_pos" in row.numbers else []),
        *(NUMBERS["cap"] if "ratio_floor" in row.numbers else []),
        *MORE.get(name, []),
    ]
]


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max()).item()


def test_every_method_has_an_oracle():
    assert set(METHODS) == {*ORACLES, *WHOLE}
    assert not set(ORACLES) & set(WHOLE)


@pytest.mark.parametrize(("name", "numbers"), CASES)
@pytest.mark.parametrize("drift", [0.5, 2.0, 2e-4])
def test_loops(name, numbers, drift):
    batch = sample(drift, seed=3)
    extra = fields(name, batch.mask, batch)
    loss, expected = oracle(name, *batch.tensors, extra, **numbers)
    found = credit(METHODS[name].objective, *batch.tensors, **extra, **numbers)
    assert relative(found, expected) < 1e-12
    assert METHODS[name].objective(*batch.tensors, **extra, **numbers).item() == pytest.approx(
        loss, rel=1e-12, abs=1e-14
    )


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ONE_ADVANTAGE])
def test_loops_with_one_advantage_per_token(name):
    batch = sample(0.5, seed=4)
    advantages = torch.randn(6, 7, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    extra = fields(name, batch.mask, batch)
    loss, expected = oracle(name, batch.logp, batch.logp_old, advantages, batch.mask, extra, **METHODS[name].numbers)
    found = credit(METHODS[name].objective, batch.logp, batch.logp_old, advantages, batch.mask, **extra)
    assert relative(found, expected) < 1e-12
    value = METHODS[name].objective(batch.logp, batch.logp_old, advantages, batch.mask, **extra).item()
    assert value == pytest.approx(loss, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in DETACHED])
def test_finite_differences(name):
    batch = sample(0.5, seed=6)
    objective = ready(name, batch.mask, batch)
    found, differences = credit(objective, *batch.tensors), torch.zeros_like(batch.logp)
    for row, token in batch.mask.nonzero().tolist():
        step = torch.zeros_like(batch.logp)
        step[row, token] = 1e-6
        up, down = (objective(batch.logp + sign * step, *batch.tensors[1:]) for sign in (1, -1))
        differences[row, token] = -(up - down) / 2e-6
    assert relative(found, differences) < 1e-8


@pytest.mark.parametrize("name", DETACHED)
def test_detached_weights_have_no_gradient(name):
    """With the weight frozen at its present value, differences agree with the credit; with it moving they do not."""
    batch = sample(0.5, seed=6)
    objective = ready(name, batch.mask, batch)
    weight = oracle(name, *batch.tensors, fields(name, batch.mask, batch), **METHODS[name].numbers)[
        1
    ]  # already normalized, A included
    differences, moving = torch.zeros_like(batch.logp), torch.zeros_like(batch.logp)
    for row, token in batch.mask.nonzero().tolist():
        step = torch.zeros_like(batch.logp)
        step[row, token] = 1e-6
        up, down = ((weight * (batch.logp + sign * step)).sum() for sign in (1, -1))
        differences[row, token] = (up - down) / 2e-6
        up, down = (objective(batch.logp + sign * step, *batch.tensors[1:]) for sign in (1, -1))
        moving[row, token] = -(up - down) / 2e-6
    assert relative(credit(objective, *batch.tensors), differences) < 1e-8
    assert relative(credit(objective, *batch.tensors), moving) > 1e-2


class TestInvariants:
    """Identities between methods that no single formula shows."""

    batch = sample(0.5, seed=7)

    def credit(self, objective, **numbers):
        return credit(objective, *self.batch.tensors, **numbers)

    @pytest.mark.parametrize("name", [name for name in METHODS if "on-policy" not in LAWS.get(name, {})])
    def test_on_policy_all_are_one(self, name):
        on = (self.batch.logp_old, *self.batch.tensors[1:])
        objective = ready(name, self.batch.mask, self.batch, normalize=normalize.response_mean)
        ones = oracle("rloo", *on)[1] * 6 / (6 * self.batch.mask.sum(1, keepdim=True))
        assert relative(credit(objective, *on), WEIGHT.get(name, 1.0) * ones) < 1e-12

    def test_gspo_token_is_gspo_for_one_advantage(self):
        """The pooled value with own gradients equals plain autodiff through the mean."""

        def through(logp, logp_old, advantages, mask):
            log_r = log_ratio(logp, logp_old, mask)
            s = (log_r.sum(1) / mask.sum(1)).exp()
            A = advantages[:, 0]
            return -torch.minimum(s * A, s.clamp(1 - 0.2, 1 + 0.2) * A).mean()

        numbers = {"eps_low": 0.2, "eps_high": 0.2}
        assert relative(self.credit(METHODS["gspo"].objective, **numbers), self.credit(through)) < 1e-12

    def test_gmpo_without_clip_is_gspo_without_clip(self):
        wide = {"eps_low": 1.0, "eps_high": math.inf}
        gmpo = self.credit(METHODS["gmpo"].objective, eps_low=math.inf, eps_high=math.inf)
        assert relative(gmpo, self.credit(METHODS["gspo"].objective, **wide)) < 1e-12

    @pytest.mark.parametrize("gate", ["log_identity", "log_clip"])
    def test_one_word_makes_sspo_gspo_or_gmpo(self, gate):
        """SSPO's own source, with its gate replaced."""
        source = inspect.getsource(sequence_level.sspo).replace("log_arctan", gate)
        call = {"log_identity": "advantages", "log_clip": "advantages, -0.4, 0.4"}[gate]
        source = source.replace("advantages, tau_pos, tau_neg)", call + ")")
        scope = dict(vars(sequence_level))
        exec(source, scope)
        other = METHODS["gmpo"].objective if gate == "log_clip" else METHODS["gspo"].objective
        numbers = {} if gate == "log_clip" else {"eps_low": 1.0, "eps_high": math.inf}
        assert relative(self.credit(scope["sspo"]), self.credit(other, **numbers)) < 1e-12

    def test_single_token_responses(self):
        one = self.batch.map(lambda x: x[:, :1] if x.ndim == 2 else x)
        clip = {"eps_low": 0.2, "eps_high": 0.3}
        pairs = [("gspo", "grpo", clip), ("sspo_sigmoid", "sapo", {}), ("gmpo", "grpo", None), ("sspo", None, {})]
        for name, other, numbers in pairs:
            found = credit(METHODS[name].objective, *one.tensors, **(numbers or {}))
            if other is None:  # ρ f'(ρ) with f = exp(arctan(τ(ρ − 1))/τ)
                rho = (one.logp - one.logp_old).exp()
                tau = torch.where(one.advantages > 0, 1.0, torch.tensor(1.05, dtype=torch.float64))
                f = ((tau * (rho - 1)).arctan() / tau).exp()
                expected = rho * f / (1 + tau**2 * (rho - 1) ** 2) * one.advantages / 6
            elif numbers is None:  # log half-widths as ratios
                same = {"eps_low": 1 - math.exp(-0.4), "eps_high": math.exp(0.4) - 1}
                expected = credit(METHODS[other].objective, *one.tensors, **same)
            else:
                expected = credit(METHODS[other].objective, *one.tensors, **numbers)
            assert relative(found, expected) < 1e-12

    def test_one_ratio_per_response(self):
        """If all tokens share ρ, pooling changes nothing: the weight is ρ f'(ρ), for the sigmoid SAPO's."""
        shared = self.batch.logp_old + torch.tensor([[0.3], [-0.4], [0.1], [0.5], [-0.2], [0.2]])
        inputs = (shared, *self.batch.tensors[1:])
        found = credit(METHODS["sspo_sigmoid"].objective, *inputs)
        assert relative(found, credit(METHODS["sapo"].objective, *inputs)) < 1e-12

    def test_tau_to_zero(self):
        """log f → ρ − 1, not log ρ: SSPO does not become GSPO; the arctan of the log-ratio does."""
        tiny = {"tau_pos": 1e-6, "tau_neg": 1e-6}
        rho = (self.batch.logp - self.batch.logp_old).exp()
        L = self.batch.mask.sum(1, keepdim=True)
        S = ((rho - 1).where(self.batch.mask, 0.0).sum(1, keepdim=True) / L).exp()
        expected = (S * rho * self.batch.advantages / (6 * L)).where(self.batch.mask, 0.0)
        assert relative(self.credit(METHODS["sspo"].objective, **tiny), expected) < 1e-9
        gspo = self.credit(METHODS["gspo"].objective, eps_low=1.0, eps_high=math.inf)
        assert relative(self.credit(METHODS["sspo_log_ratio"].objective, **tiny), gspo) < 1e-9
        assert relative(self.credit(METHODS["sspo"].objective, **tiny), gspo) > 0.05
        sapo = self.credit(METHODS["sapo"].objective, **tiny)  # the sigmoid becomes its tangent: ρ A, no gate at all
        open_clip = self.credit(METHODS["grpo"].objective, eps_low=1.0, eps_high=math.inf)
        assert relative(sapo, open_clip) < 1e-9

    @pytest.mark.parametrize("name", ["sapo", "sspo", "sspo_log_ratio"])
    def test_tau_to_infinity(self, name):
        """Off-policy nothing is left; on-policy the weight stays 1."""
        huge = {"tau_pos": 1e7, "tau_neg": 1e7}
        normal = self.credit(METHODS[name].objective).abs().max()
        assert self.credit(METHODS[name].objective, **huge).abs().max() < 1e-6 * normal
        on = credit(METHODS[name].objective, self.batch.logp_old, *self.batch.tensors[1:], **huge)
        assert (
            relative(on, oracle("grpo", self.batch.logp_old, *self.batch.tensors[1:], eps_low=0, eps_high=0)[1]) < 1e-12
        )

    def test_scaled_rewards_leave_z_scores(self):
        from sspo_teach.objectives.advantages import normalized

        rewards, ids = self.batch.fields["rewards"], self.batch.fields["group_ids"]
        assert relative(normalized(7 * rewards, ids, eps=0), normalized(rewards, ids, eps=0)) < 1e-12
        assert relative(normalized(7 * rewards, ids), normalized(rewards, ids)) < 1e-4  # ε = 1e-6 against std of 0.1

    def test_the_bound_on_the_whole_weight_of_sspo(self):
        """A single token: max over ρ of f·c is exp(arctan(1/τ)/τ), at ρ = 1 + 1/τ²."""
        for tau in (1.0, 1.05, 2.0):
            z = torch.linspace(-3, 3, 6001, dtype=torch.float64).unsqueeze(1)
            ones = torch.ones_like(z)
            c = credit(
                METHODS["sspo"].objective,
                z,
                0 * z,
                ones,
                ones,
                tau_pos=tau,
                tau_neg=tau,
                normalize=normalize.sequence_sum,
            ) * len(z)
            assert c.max().item() == pytest.approx(math.exp(math.atan(1 / tau) / tau), rel=1e-6)
            assert z[c.argmax()].exp().item() == pytest.approx(1 + tau**-2, rel=1e-3)


class TestCost:
    def test_parts_are_those_of_the_docstring(self):
        """The sentence in ``Parts`` names functions that exist."""
        from sspo_teach.catalog import entries

        for row in METHODS.values():
            entry = entries(row.objective)
            assert set(entry) == {"summary", "formula", "Parts", "Weight", "Differs", "Paper"}
            words = entry["Parts"].replace(",", " ").replace(".", " ").split()
            assert any(hasattr(normalize, word) for word in words)
            assert any(hasattr(units, word) or hasattr(gates, word) for word in words)

    def test_bodies_are_short(self):
        import ast

        for row in METHODS.values():
            (function,) = ast.parse(inspect.getsource(row.objective)).body
            body = function.body[1:]  # without the docstring
            assert body[-1].end_lineno - body[0].lineno + 1 <= 10
            assert function.args.kwarg is None
            assert not any(
                isinstance(default, ast.Constant) and default.value in (True, False) and isinstance(default.value, bool)
                for default in function.args.kw_defaults
            )


class TestCredit:
    batch = sample(0.5, seed=8)

    def test_does_not_care_about_requires_grad_and_touches_no_grad(self):
        objective = METHODS["sspo"].objective
        plain = credit(objective, *self.batch.tensors)
        leaf = self.batch.logp.clone().requires_grad_()
        with torch.no_grad():
            assert credit(objective, leaf, *self.batch.tensors[1:]).equal(plain)
        assert leaf.grad is None
        assert not plain.requires_grad
        old, advantages = self.batch.logp_old.clone().requires_grad_(), self.batch.advantages.clone().requires_grad_()
        assert credit(objective, leaf * 1, old, advantages, self.batch.mask).equal(plain)
        assert old.grad is None
        assert advantages.grad is None

    def test_is_minus_the_gradient(self):
        leaf = self.batch.logp.clone().requires_grad_()
        METHODS["grpo"].objective(leaf, *self.batch.tensors[1:]).backward()
        assert credit(METHODS["grpo"].objective, *self.batch.tensors).equal(-leaf.grad)

    def test_pushed_through_the_model_it_trains_as_the_loss_does(self):
        weights = torch.randn(6, 7, dtype=torch.float64, requires_grad=True)
        logp = self.batch.logp + 0.1 * weights.sin()
        (direct,) = torch.autograd.grad(
            METHODS["sspo"].objective(logp, *self.batch.tensors[1:]), weights, retain_graph=True
        )
        c = credit(METHODS["sspo"].objective, logp, *self.batch.tensors[1:])
        (pushed,) = torch.autograd.grad(-(c * logp).where(self.batch.mask, 0.0).sum(), weights)
        assert relative(pushed, direct) < 1e-12

    def test_any_callable(self):
        def silent(logp, logp_old, advantages, mask):
            return torch.zeros(())

        assert credit(silent, *self.batch.tensors).equal(torch.zeros_like(self.batch.logp))

    def test_bfloat16_comes_back_as_float32(self):
        half = self.batch.map(lambda x: x.bfloat16() if x.is_floating_point() else x)
        found = credit(METHODS["sspo"].objective, *half.tensors)
        assert found.dtype == torch.float32
        assert (
            relative(
                found,
                credit(
                    METHODS["sspo"].objective, *half.map(lambda x: x.float() if x.is_floating_point() else x).tensors
                ),
            )
            < 1e-6
        )
