"""Credit is verl's gradient, where verl implements the same rule.

verl's loss functions are pure, so they run as they are. In an environment of their own (verl asks for much more, which
these functions do not need):

    pip install torch==2.13.0
    pip install --no-deps verl==0.9.1
    pip install "transformers<5.11" "tensordict>=0.8,<=0.10,!=0.9.0" ray codetiming hydra-core datasets pytest
    pip install --no-deps -e .
    pytest -m parity tests/parity/test_verl.py
"""

from functools import partial

import pytest
import torch

from sspo_teach import METHODS, credit, gates
from sspo_teach.checks import sample
from sspo_teach.objectives.advantages import DIALECTS, centered, leave_one_out, normalized
from sspo_teach.objectives.normalize import constant, response_mean, sequence_sum, token_mean
from sspo_teach.objectives.regularizers import ESTIMATORS
from sspo_teach.tensors import log_ratio

pytest.importorskip("verl")
pytestmark = pytest.mark.parity

from verl.trainer.ppo import core_algos  # noqa: E402
from verl.workers.config import ActorConfig  # noqa: E402

HORIZON = 7


def verl_credit(batch, loss_mode, aggregation, **options):
    """−∂L/∂logp of verl's loss; options are those of ``ActorConfig``."""
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **options)
    leaf = batch.logp.clone().requires_grad_()
    advantages = batch.advantages.expand_as(leaf)
    rule = core_algos.get_policy_loss_fn(loss_mode)
    loss, _ = rule(batch.logp_old, leaf, advantages, batch.mask.to(leaf.dtype), aggregation, config)
    loss.backward()
    return -leaf.grad


def assert_same(ours, theirs, tolerance=1e-6):
    deviation = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    print(f"relative deviation {deviation:.1e}")
    assert deviation < tolerance


def vanilla(logp, logp_old, advantages, mask, *, eps_low=0.2, eps_high=0.2, ratio_cap=3.0, normalize=token_mean):
    """verl's PPO: the dual clip is always on."""
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.dual_clip(log_r, advantages, eps_low, eps_high, ratio_cap) * advantages, mask)


def bounds(low, high):
    return {"clip_ratio_low": low, "clip_ratio_high": high}


AGGREGATIONS = {
    "token-mean": token_mean,
    "seq-mean-token-mean": response_mean,
    "seq-mean-token-sum": sequence_sum,
    "seq-mean-token-sum-norm": constant(HORIZON),
}


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_aggregations_are_normalizers(aggregation):
    batch = sample(0.5, seed=31)
    batch.mask[2] = False  # verl, too, leaves empty responses out
    ours = credit(vanilla, *batch.tensors, normalize=AGGREGATIONS[aggregation])
    assert_same(ours, verl_credit(batch, "vanilla", aggregation))


@pytest.mark.parametrize("drift", [0.4, 2e-4])
@pytest.mark.parametrize(
    ("name", "aggregation", "options"),
    [
        ("grpo", "seq-mean-token-mean", bounds(0.2, 0.2)),
        ("dapo", "token-mean", bounds(0.2, 0.28)),
        ("dr_grpo", "seq-mean-token-sum", bounds(0.2, 0.2)),
    ],
)
def test_clipped_methods_without_the_dual_clip(name, aggregation, options, drift):
    batch = sample(drift, seed=32)
    theirs = verl_credit(batch, "vanilla", aggregation, clip_ratio_c=1e6, **options)
    assert_same(credit(METHODS[name].objective, *batch.tensors), theirs)


def test_the_dual_clip():
    batch = sample(1.5, seed=33)
    theirs = verl_credit(batch, "vanilla", "token-mean", clip_ratio_c=2.0)
    assert_same(credit(vanilla, *batch.tensors, ratio_cap=2.0), theirs)
    one_sided = credit(METHODS["dapo"].objective, *batch.tensors, eps_high=0.2)
    assert (one_sided - theirs).abs().max() / theirs.abs().max() > 1e-2


@pytest.mark.parametrize(("low", "high"), [(3e-4, 4e-4), (0.2, 0.2)])
@pytest.mark.parametrize("drift", [0.5, 2e-4])
def test_gspo(low, high, drift):
    batch = sample(drift, seed=34)
    ours = credit(METHODS["gspo"].objective, *batch.tensors, eps_low=low, eps_high=high)
    assert_same(ours, verl_credit(batch, "gspo", "seq-mean-token-mean", **bounds(low, high)))


@pytest.mark.parametrize("numbers", [{"tau_pos": 1.0, "tau_neg": 1.05}, {"tau_pos": 10.0, "tau_neg": 12.0}])
def test_sapo(numbers):
    batch = sample(0.5, seed=35)
    ours = credit(METHODS["sapo"].objective, *batch.tensors, **numbers)
    assert_same(ours, verl_credit(batch, "sapo", "ignored", **numbers))


@pytest.mark.parametrize("eps", [0.4, 0.2])
def test_gmpo(eps):
    """verl's clip_ratio is GMPO's half-width in log space; it divides by length + 1e-8."""
    batch = sample(0.5, seed=36)
    ours = credit(METHODS["gmpo"].objective, *batch.tensors, eps_low=eps, eps_high=eps)
    assert_same(ours, verl_credit(batch, "geo_mean", "ignored", **bounds(eps, eps)))


@pytest.mark.parametrize(("cap", "floor"), [(5.0, 0.0), (1.2, 0.8)])
def test_cispo(cap, floor):
    """verl's cap is 1 + clip_ratio_high, its floor 1 − clip_ratio_low; ours are the ratios themselves."""
    batch = sample(1.0, seed=37)
    ours = credit(METHODS["cispo"].objective, *batch.tensors, ratio_cap=cap, ratio_floor=floor)
    assert_same(ours, verl_credit(batch, "cispo", "token-mean", **bounds(1 - floor, cap - 1)))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (partial(normalized, **DIALECTS["verl"]), core_algos.compute_grpo_outcome_advantage),
        (centered, partial(core_algos.compute_grpo_outcome_advantage, norm_adv_by_std_in_grpo=False)),
        (leave_one_out, core_algos.compute_rloo_outcome_advantage),
    ],
)
def test_advantages(ours, theirs):
    batch = sample(0.5, seed=38)
    rewards, ids = batch.fields["rewards"], torch.tensor([0, 1, 0, 1, 1, 0])
    token_rewards = torch.zeros(6, HORIZON, dtype=rewards.dtype)
    token_rewards[:, 0] = rewards
    expected, _ = theirs(token_rewards, torch.ones(6, HORIZON), ids.numpy())
    assert_same(ours(rewards, ids).expand(6, HORIZON), expected)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_kl(name):
    batch = sample(0.5, seed=39)
    ref, ones = batch.fields["logp_ref"], torch.ones_like(batch.mask)
    grads = []
    for estimate in (
        lambda logp: ESTIMATORS[name](logp, ref, ones),
        lambda logp: core_algos.kl_penalty(logp, ref, name),
    ):
        leaf = batch.logp.clone().requires_grad_()
        out = estimate(leaf)
        grads.append((out.detach(), torch.autograd.grad(out.sum(), leaf)[0]))
    for ours, theirs in zip(*grads, strict=True):
        assert_same(ours, theirs)
