"""Public bug reports as small inputs: ratios, clips and gates, groups, aggregation, KL; each names its source."""

import math
from functools import partial

import pytest
import torch
from exceptions import LAWS, WEIGHT, ready

from sspo_teach import METHODS, check_objective, credit, gates
from sspo_teach.checks import sample
from sspo_teach.objectives import units
from sspo_teach.objectives.advantages import centered, leave_one_out, normalized
from sspo_teach.objectives.normalize import constant, response_mean, sequence_sum, token_mean, with_counts
from sspo_teach.objectives.regularizers import k1, k3, kl_penalty
from sspo_teach.tensors import log_ratio, stale

F64 = torch.float64


def one_token(name, ratio, A, **numbers):
    """Credit of a single token, by the ratio: ∂J/∂ρ."""
    logp = torch.tensor([[math.log(ratio)]], dtype=F64)
    A = torch.tensor([[float(A)]], dtype=F64)
    return credit(METHODS[name].objective, logp, 0 * logp, A, torch.ones(1, 1), **numbers).item() / ratio


class TestRatios:
    @pytest.mark.parametrize("name", [name for name in METHODS if "on-policy" not in LAWS.get(name, {})])
    def test_one_update_per_rollout_is_reinforce_and_more_are_not(self, name):
        """trl#3120, #3757, minimind#775, R1-V#187: the clip fraction is always 0 since the ratio is always 1."""
        batch = sample(0.4)
        plain = credit(METHODS["rloo"].objective, batch.logp_old, *batch.tensors[1:], normalize=token_mean)
        objective = ready(name, batch.mask, batch, normalize=token_mean)
        first = credit(objective, batch.logp_old, *batch.tensors[1:])
        later = credit(objective, *batch.tensors)
        assert torch.allclose(first, WEIGHT.get(name, 1.0) * plain, rtol=1e-12)
        assert torch.allclose(later, plain, rtol=1e-3) == ("stale" in LAWS.get(name, {}))  # which has no ratio

    @pytest.mark.parametrize("name", ["grpo", "gspo", "gmpo", "sspo"])
    def test_a_loss_of_zero_still_teaches(self, name):
        """open-r1#239, X-R1#11: is it broken? Advantages are centred, ratios 1: the value is 0, the gradient not."""
        zero = torch.zeros(4, 3, dtype=F64)
        A = normalized(torch.tensor([1.0, 0, 0, 1]).double(), torch.tensor([0, 0, 1, 1]))
        assert abs(METHODS[name].objective(zero, zero, A, zero + 1).item()) < 1e-15
        assert credit(METHODS[name].objective, zero, zero, A, zero + 1).norm() > 0.1

    def test_product_grows_with_length_and_the_geometric_mean_does_not(self):
        """transformers#31267, trl#4772, verl#2953: a bias of 1e-3 per token blows up products of ratios."""
        for n in (10, 1000, 5000):
            log_r, ones = torch.full((1, n), 1e-3, dtype=F64), torch.ones(1, n)
            assert units.product(log_r, ones)[0, 0].item() == pytest.approx(1e-3 * n)
            assert units.sequence(log_r, ones)[0, 0].item() == pytest.approx(1e-3)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("name", METHODS)
    @pytest.mark.parametrize("gap", [1000.0, -1000.0])
    def test_exp_without_clamp_overflows(self, name, gap, dtype):
        """verl#2775: a log-ratio of 1000."""
        logp = torch.full((2, 3), gap, dtype=dtype)
        A = torch.tensor([[1.0], [-1.0]], dtype=dtype)
        ones = torch.ones(2, 3)
        assert ready(name, ones)(logp, 0 * logp, A, ones).isfinite()
        assert credit(ready(name, ones), logp, 0 * logp, A, ones).isfinite().all()
        assert stale(logp, 0 * logp, ones).item() == 1

    def test_division_of_log_probs(self):
        """PPO-Winter-Run#1, baselines#652, a course's lecture: the ratio is exp(new − old), never new/old."""

        def lecture(logp, logp_old, advantages, mask):
            return -(logp / logp_old * advantages).mean()

        logp = torch.tensor([[-1.2]], dtype=F64)
        one = torch.ones(1, 1, dtype=F64)
        assert credit(METHODS["grpo"].objective, logp, logp, one, one).item() == 1
        assert credit(lecture, logp, logp, one, one).item() == pytest.approx(-0.83, abs=5e-3)  # the other way

    def test_a_ratio_detached_from_itself_never_moves(self):
        """AReno#68, JustGRPO#2: exp(x − detach(x)) is 1 for ever, so no gate acts."""
        batch = sample(0.4)
        constant_ratio = partial(METHODS["grpo"].objective, logp_old=batch.logp)

        def frozen(logp, logp_old, advantages, mask):
            return constant_ratio(logp=logp, advantages=advantages, mask=mask)

        on = credit(METHODS["grpo"].objective, batch.logp_old, *batch.tensors[1:])
        assert torch.allclose(credit(frozen, *batch.tensors), on, rtol=1e-12)

    def test_a_ratio_to_itself_is_found_out(self):
        """AReno#68, JustGRPO#2: "clipped" exp(logp − logp.detach()) is 1 whatever the data."""

        def itself(logp, logp_old, advantages, mask):
            return METHODS["grpo"].objective(logp, logp.detach(), advantages, mask)

        report = check_objective(itself)
        assert report.broken == ("stale", "limit")
        assert "no clip or gate ever acts" in str(report)


class TestClips:
    @pytest.mark.parametrize(
        ("A", "ratio", "silent"), [(1, 1.3, True), (1, 0.7, False), (-1, 1.3, False), (-1, 0.7, True)]
    )
    def test_who_is_clipped(self, A, ratio, silent):
        """trl#3032, #3144: silent exactly for (+, 1.3) and (−, .7); outside the band (rlhf-book#290) are all four."""
        assert (one_token("grpo", ratio, A) == 0) == silent
        assert abs(ratio - 1) > 0.2

    def test_gspo_broadcast_over_the_mask(self):
        """trl#3823: lengths 1 and 3, A = (1, −1), ratio 1: the loss is 0; normalized per token it is 0.5."""
        zero, A = torch.zeros(2, 3, dtype=F64), torch.tensor([[1.0], [-1.0]], dtype=F64)
        mask = torch.tensor([[1, 0, 0], [1, 1, 1]])
        assert METHODS["gspo"].objective(zero, zero, A, mask).item() == 0
        assert METHODS["gspo"].objective(zero, zero, A, mask, normalize=token_mean).item() == 0.5

    def test_gspo_is_gspo_token_for_equal_advantages(self):
        """Trinity-RFT#154, trl#4557."""
        batch = sample(2e-4)
        full = batch.advantages.expand_as(batch.mask)
        one = METHODS["gspo"].objective(*batch.tensors)
        assert one.equal(METHODS["gspo"].objective(batch.logp, batch.logp_old, full, batch.mask))
        per_token = credit(METHODS["gspo"].objective, batch.logp, batch.logp_old, full, batch.mask)
        assert per_token.equal(credit(METHODS["gspo"].objective, *batch.tensors))

    @pytest.mark.parametrize("name", [name for name in METHODS if "zero advantage" not in LAWS.get(name, {})])
    def test_no_advantage_no_credit(self, name):
        """trl#6095: which branch A = 0 takes does not matter."""
        batch = sample(0.4)
        inputs = (batch.logp, batch.logp_old, 0 * batch.advantages, batch.mask)
        assert ready(name, batch.mask, batch)(*inputs).item() == 0
        assert not credit(ready(name, batch.mask, batch), *inputs).any()

    def test_cispo_cap(self):
        """MiniMax-M1#17, NeMo-RL#2531, open-instruct#1264: at r = 10 the gradient is cap · A · score."""
        logp = torch.tensor([[math.log(10)]], dtype=F64)
        one = torch.ones(1, 1, dtype=F64)
        assert credit(METHODS["cispo"].objective, logp, 0 * logp, 2 * one, one, ratio_cap=4.0).item() == 8
        with pytest.raises(ValueError, match="ratio_cap must lie in"):
            METHODS["cispo"].objective(logp, 0 * logp, one, one, ratio_cap=0.28)

    @pytest.mark.parametrize("tau", [0.5, 1.0, 1.05, 10.0])
    def test_slope_of_sapo(self, tau):
        """ms-swift#6766, AReaL#669: f'(1) = 1 for every τ; r f'(r) → 0 on both sides, f'(0) itself does not."""
        numbers = {"tau_pos": tau, "tau_neg": tau}
        assert one_token("sapo", 1.0, 1, **numbers) == pytest.approx(1)
        assert one_token("sapo", 1e8, 1, **numbers) == 0
        assert 1e-8 * one_token("sapo", 1e-8, 1, **numbers) < 1e-8
        if tau == 1.0:
            assert one_token("sapo", 1e-8, 1, **numbers) == pytest.approx(0.786448, abs=1e-6)

    @pytest.mark.parametrize("tau", [0, -1.0])
    def test_temperatures_are_positive(self, tau):
        """slime#1864: an error, not a NaN."""
        batch = sample(0.4)
        for name in ("sapo", "sspo", "sspo_sigmoid", "sspo_log_ratio"):
            with pytest.raises(ValueError, match=f"tau_neg must be a positive finite number, got {tau}"):
                METHODS[name].objective(*batch.tensors, tau_neg=tau)

    def test_negative_advantage_and_a_huge_ratio(self):
        """OpenRLHF#840, prime-rl#233, TRL's delta: A = −1, r = 50. PPO: gradient −1 on r; dual clip: 0."""
        assert one_token("ppo", 50.0, -1) == pytest.approx(-1)

        def dual(logp, logp_old, advantages, mask):
            log_r = log_ratio(logp, logp_old, mask)
            return -response_mean(gates.dual_clip(log_r, advantages, 0.2, 0.2, ratio_cap=3.0) * advantages, mask)

        logp = torch.tensor([[math.log(50)]], dtype=F64)
        one = torch.ones(1, 1, dtype=F64)
        assert credit(dual, logp, 0 * logp, -one, one).item() == 0

    def test_soft_gates_need_no_dual_clip(self):
        for name in ("sapo", "sspo", "sspo_log_ratio"):
            assert 0 > one_token(name, 50.0, -1) > -0.05


class TestGroups:
    rewards, ids = torch.tensor([1.0, 0, 0, 1, 1, 0, 0, 0]), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])

    @pytest.mark.parametrize("estimator", [normalized, centered, leave_one_out])
    def test_groups_are_named_not_counted(self, estimator):
        """grpo-flat#2, d1#19, flow_grpo#46: no statistics over the batch; permuting samples permutes advantages."""
        order = torch.tensor([5, 0, 3, 7, 1, 6, 2, 4])
        shuffled = estimator(self.rewards[order], self.ids[order])
        assert torch.allclose(shuffled, estimator(self.rewards, self.ids)[order])
        apart = torch.cat([estimator(self.rewards[:4], self.ids[:4]), estimator(self.rewards[4:], self.ids[4:])])
        assert torch.allclose(estimator(self.rewards, self.ids), apart)
        assert not torch.allclose(apart, estimator(self.rewards, 0 * self.ids))

    def test_an_extra_dimension(self):
        """AgentEvolver#14."""
        with pytest.raises(ValueError, match=r"rewards has shape \(8, 1\)"):
            normalized(self.rewards.unsqueeze(1), self.ids)

    @pytest.mark.parametrize("estimator", [normalized, centered, leave_one_out])
    def test_groups_of_one_are_refused(self, estimator):
        """TRL enforces two, verl returns the raw reward, the unbiased std gives NaN."""
        with pytest.raises(ValueError, match="sample at least 2 responses per prompt"):
            estimator(torch.tensor([1.0]), torch.tensor([0]))

    def test_any_batch_size(self):
        """unsloth#4149: three groups of unequal size, in no order."""
        out = normalized(torch.rand(7), torch.tensor([2, 0, 2, 1, 0, 1, 1]))
        assert out.shape == (7, 1)


class TestAggregation:
    @pytest.mark.parametrize("name", [name for name, row in METHODS.items() if row.separable])
    @pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
    def test_accumulation(self, name, size):
        """ms-swift#10116, transformers#35203, OpenRLHF's tests: 1 × 6 = 2 × 3 = 4 + 2 = 6 × 1, uneven lengths."""
        batch = sample(0.4)
        row = METHODS[name]
        normalize = with_counts(row.normalize(7), batch.mask)
        whole = credit(ready(name, batch.mask, batch, normalize=row.normalize(7)), *batch.tensors)
        parts = [batch.map(lambda x, i=i: x.split(size)[i]) for i in range(-(-6 // size))]
        cut = [credit(ready(name, part.mask, part, normalize=normalize), *part.tensors) for part in parts]
        assert (torch.cat(cut) - whole).abs().max() < 1e-12 * whole.abs().max()

    @pytest.mark.parametrize("normalize", [response_mean, token_mean, sequence_sum, constant(7)])
    def test_shuffled_rows(self, normalize):
        """trl#3231, #3021."""
        batch = sample(0.4)
        order = torch.tensor([3, 1, 5, 0, 4, 2])
        found = credit(METHODS["grpo"].objective, *(x[order] for x in batch.tensors), normalize=normalize)
        assert torch.allclose(
            found, credit(METHODS["grpo"].objective, *batch.tensors, normalize=normalize)[order], rtol=1e-12
        )

    def test_a_mean_without_an_axis_is_not_grpo(self):
        """EasyR1#212, open-instruct#636: lengths 1 and 3 tell them apart."""
        zero, A = torch.zeros(2, 3, dtype=F64), torch.ones(2, 1, dtype=F64)
        mask = torch.tensor([[1, 0, 0], [1, 1, 1]])
        assert credit(METHODS["grpo"].objective, zero, zero, A, mask)[:, 0].tolist() == pytest.approx([1 / 2, 1 / 6])
        flat = credit(METHODS["grpo"].objective, zero, zero, A, mask, normalize=token_mean)
        assert flat[:, 0].tolist() == pytest.approx([1 / 4, 1 / 4])

    @pytest.mark.parametrize("name", METHODS)
    def test_a_masked_row_does_not_dilute(self, name):
        """trl#6369, #3248: the row leaves the denominator too, and an empty batch is 0, not NaN."""
        batch = sample(0.4)
        more = batch.map(lambda x: torch.cat([x, x[:1]]))
        more.mask[-1] = False
        loss = ready(name, batch.mask, batch)(*batch.tensors).item()
        assert ready(name, more.mask, more)(*more.tensors).item() == pytest.approx(loss)


class TestKL:
    p, q = torch.tensor([[0.5, 0.5]], dtype=F64), torch.tensor([[0.25, 0.75]], dtype=F64)

    def test_swapped_sign(self):
        """hands-on-modern-rl#27."""
        assert (self.p * k3(self.p.log(), self.q.log(), torch.ones(1, 2))).sum().item() == pytest.approx(
            0.1438, abs=5e-5
        )

    def test_beta_changes_the_gradient(self):
        """Flow-Factory#122: KL inside no_grad."""
        batch = sample(0.4)

        def with_kl(logp, logp_old, advantages, mask, beta):
            loss = METHODS["grpo"].objective(logp, logp_old, advantages, mask)
            return loss + kl_penalty(logp, batch.fields["logp_ref"], mask, beta=beta)

        without, small = (credit(with_kl, *batch.tensors, beta=beta) for beta in (0.0, 0.1))
        assert without.equal(credit(METHODS["grpo"].objective, *batch.tensors))
        assert (small - without)[batch.mask].abs().min() > 1e-6

    def test_single_samples_may_be_negative(self):
        """optimate#298, mwp_ReFT#40, alpaca_farm#67, trl#4: single samples may, the expectation may not."""
        samples = k1(self.p.log(), self.q.log(), torch.ones(1, 2))
        assert samples.min() < 0 < (self.p * samples).sum()
