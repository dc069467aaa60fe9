"""Credit is verl's gradient, where verl implements the same rule.

verl's loss functions are pure, so they run as they are. In an environment of their own (verl asks for much more, which
these functions do not need):

    pip install torch==2.13.0
    pip install --no-deps verl==0.9.1
    pip install "transformers<5.11" "tensordict>=0.8,<=0.10,!=0.9.0" ray codetiming hydra-core datasets pillow pytest
    pip install --no-deps -e .
    pytest -m parity --confcutdir=tests/parity tests/parity/test_verl.py tests/parity/test_verl_adapter.py
"""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from sspo_teach import METHODS, credit, method
from sspo_teach.checks import sample
from sspo_teach.objectives.advantages import DIALECTS, centered, leave_one_out, normalized
from sspo_teach.objectives.normalize import constant, response_mean, sequence_sum, token_mean
from sspo_teach.objectives.regularizers import ESTIMATORS
from sspo_teach.objectives.selection import banded, topmost

pytest.importorskip("verl")
pytestmark = pytest.mark.parity

from verl.trainer.ppo import core_algos  # noqa: E402
from verl.workers.config import ActorConfig, PolicyLossConfig  # noqa: E402

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
    ours = credit(METHODS["ppo_dual"].objective, *batch.tensors, normalize=AGGREGATIONS[aggregation])
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
    ours = credit(METHODS["ppo_dual"].objective, *batch.tensors, ratio_cap=2.0, normalize=token_mean)
    assert_same(ours, theirs)
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


@pytest.mark.parametrize("name", ["dppo_tv", "dppo_kl"])
@pytest.mark.parametrize(("low", "high", "cap"), [(0.2, 0.2, 3.0), (0.05, 0.1, 1.3)])
@pytest.mark.parametrize("drift", [0.4, 2e-4])
def test_dppo(name, low, high, cap, drift):
    """verl's clip_ratio are the thresholds, clip_ratio_c is the cap; 1e-8 stands inside its logarithms."""
    batch = sample(drift, seed=40)
    ours = credit(METHODS[name].objective, *batch.tensors, delta_low=low, delta_high=high, ratio_cap=cap)
    assert_same(ours, verl_credit(batch, name, "token-mean", clip_ratio_c=cap, **bounds(low, high)))


@pytest.mark.parametrize("beta", [0.1, 2.0])
def test_dro(beta):
    batch = sample(0.5, seed=41)
    theirs = verl_credit(batch, "dro", "token-mean", policy_loss=PolicyLossConfig(dro_beta=beta))
    assert_same(credit(METHODS["dro"].objective, *batch.tensors, beta=beta), theirs)


def test_dro_has_no_default():
    with pytest.raises(ValueError, match="dro_beta must be a positive value"):
        verl_credit(sample(0.5, seed=41), "dro", "token-mean")
    assert METHODS["dro"].presets["verl"].besides


def test_gpg():
    batch = sample(0.5, seed=42)
    assert_same(credit(METHODS["gpg"].objective, *batch.tensors), verl_credit(batch, "gpg", "token-mean"))


def test_the_advantages_of_gpg_are_told():
    """verl multiplies them by the batch size over the number of rewards that are not 0."""
    rewards, ids = torch.tensor([1.0, 0.0, 0.0, 1.0]).double(), torch.tensor([0, 0, 1, 1])
    token_rewards = torch.zeros(4, HORIZON, dtype=rewards.dtype)
    token_rewards[:, 0] = rewards
    theirs, _ = core_algos.compute_gpg_outcome_advantage(token_rewards, torch.ones(4, HORIZON), ids.numpy())
    assert_same(centered(rewards, ids).expand(4, HORIZON) * 2, theirs)
    assert METHODS["gpg"].presets["verl"].besides


@pytest.mark.parametrize("fraction", [2e-4, 0.2, 1.0])
@pytest.mark.parametrize(("low", "high"), [(1.0, 5.0), (0.1, 0.8)])
def test_clip_cov(fraction, low, high):
    """The draw is the same too: verl's global generator and ours, from one seed."""
    batch = sample(0.4, seed=43)
    batch = replace(batch, advantages=3 * batch.advantages)
    chosen = banded(*batch.tensors, torch.Generator().manual_seed(5), fraction=fraction, low=low, high=high)
    assert chosen.any()
    torch.manual_seed(5)
    config = PolicyLossConfig(clip_cov_ratio=fraction, clip_cov_lb=low, clip_cov_ub=high)
    theirs = verl_credit(batch, "clip_cov", "token-mean", policy_loss=config)
    assert_same(credit(METHODS["clip_cov"].objective, *batch.tensors, selected=chosen), theirs)


@pytest.mark.parametrize("fraction", [2e-4, 0.3])
@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_kl_cov(fraction, beta):
    batch = sample(0.4, seed=44)
    chosen = topmost(batch.logp, batch.advantages, batch.mask, fraction=fraction)
    config = PolicyLossConfig(kl_cov_ratio=fraction, ppo_kl_coef=beta)
    theirs = verl_credit(batch, "kl_cov", "token-mean", policy_loss=config)
    assert_same(credit(METHODS["kl_cov"].objective, *batch.tensors, selected=chosen, beta=beta), theirs)


LOSSES = {  # what the table of dialects says, in verl's own words: all else is verl's default
    "rloo": "vanilla", "grpo": "vanilla", "ppo_dual": "vanilla", "cispo": "cispo", "gspo": "gspo", "gmpo": "geo_mean",
    "sapo": "sapo", "dppo_tv": "dppo_tv", "dppo_kl": "dppo_kl", "clip_cov": "clip_cov", "kl_cov": "kl_cov",
}  # fmt: skip


def test_every_dialect_is_tested():
    here = {name: row.presets["verl"] for name, row in METHODS.items() if "verl" in row.presets}
    assert set(LOSSES) == {name for name, preset in here.items() if not preset.besides}


@pytest.mark.parametrize("drift", [0.6, 2e-4])
@pytest.mark.parametrize("name", LOSSES)
def test_dialects(name, drift):
    """A preset ``verl`` is what verl trains when nothing but the loss is asked for: loss and advantages."""
    batch, row = sample(drift, seed=45), method(f"{name}:verl")
    rewards, ids = batch.fields["rewards"], torch.tensor([0, 1, 0, 1, 1, 0])
    token_rewards = torch.zeros(6, HORIZON, dtype=rewards.dtype)
    token_rewards[:, 0] = rewards
    estimator = core_algos.get_adv_estimator_fn("rloo" if name == "rloo" else "grpo")
    theirs, _ = estimator(token_rewards, torch.ones(6, HORIZON), ids.numpy())
    ours = row.advantage(SimpleNamespace(rewards=rewards, group_ids=ids))
    assert_same(ours.expand(6, HORIZON), theirs)
    batch = replace(batch, advantages=ours)
    chosen = {}
    if row.fields is not None:
        rollout = SimpleNamespace(logp_old=batch.logp_old, mask=batch.mask)
        chosen = row.fields(rollout, ours, batch.logp, torch.Generator().manual_seed(3))
    torch.manual_seed(3)
    assert_same(
        credit(row.objective, *batch.tensors, normalize=row.normalize(HORIZON), **chosen),
        verl_credit(batch, LOSSES[name], ActorConfig.loss_agg_mode),
    )


@pytest.mark.parametrize("name", ["grpo", "gspo", "gmpo", "cispo", "dppo_tv"])
def test_dialects_differ(name):
    """In more than advantages; else nothing above would tell a preset from its method."""
    batch, row = sample(0.6, seed=45), METHODS[name]
    theirs = verl_credit(batch, LOSSES[name], ActorConfig.loss_agg_mode)
    ours = credit(row.objective, *batch.tensors)
    assert (ours - theirs).abs().max() / theirs.abs().max() > 1e-2


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
