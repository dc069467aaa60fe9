"""A method as a policy loss of verl has the gradient that it has outside, through verl's own call and config.

The environment is that of test_verl.py.
"""

import dataclasses
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from sspo_teach import METHODS, credit, method
from sspo_teach.checks import sample
from sspo_teach.objectives.normalize import constant, response_mean, sequence_sum, token_mean

pytest.importorskip("verl")
pytestmark = pytest.mark.parity

from hydra import compose, initialize_config_module  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from verl.trainer.ppo.core_algos import agg_loss, get_policy_loss_fn  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.utils.config import omega_conf_to_dataclass  # noqa: E402
from verl.workers.utils.losses import ppo_loss  # noqa: E402

from sspo_teach.adapters import verl as adapter  # noqa: E402
from sspo_teach.adapters.limits import obstacles  # noqa: E402

RUNNABLE = [name for name, row in METHODS.items() if not obstacles(row)]
PRESETS = [f"{name}:{each}" for name in RUNNABLE for each, p in METHODS[name].presets.items() if not p.besides]
WIDTH = 7
KINDS = {
    "token-mean": token_mean,
    "token-sum": partial(token_mean, tokens=1),
    "seq-mean-token-mean": response_mean,
    "seq-mean-token-sum": sequence_sum,
    "seq-mean-token-sum-norm": constant(WIDTH),
}


def actor(*options):
    """The actor's config as verl's command line makes it."""
    given = ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1", "actor_rollout_ref.rollout.n=2", *options]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=given)
    return omega_conf_to_dataclass(config.actor_rollout_ref.actor)


def actor_of(name, *options, **numbers):
    return actor(*adapter.overrides(name, **numbers), *options)


def verl_credit(batch, config, *, dp_size=1, tokens=None, responses=None, weights=None):
    """−∂L/∂logp of the loss that verl's worker computes on a micro-batch, prompts of one token before each response."""
    lengths = batch.mask.sum(1)
    assert (lengths > 0).all()
    leaf = batch.logp.clone().requires_grad_()
    unpadded = torch.cat([torch.cat([row[:n], row.new_zeros(1)]) for row, n in zip(leaf, lengths, strict=True)])
    ones = torch.ones(len(lengths), 1, dtype=torch.int64)
    data = TensorDict(
        {
            "prompts": ones,
            "responses": batch.mask.long(),
            "attention_mask": torch.cat([ones, batch.mask.long()], dim=1),
            "response_mask": batch.mask.long(),
            "old_log_probs": batch.logp_old.where(batch.mask, 0.0),
            "advantages": (batch.advantages * batch.mask),
            **({} if weights is None else {"rollout_is_weights": weights}),
        },
        batch_size=len(lengths),
    )
    tu.assign_non_tensor(data, dp_size=dp_size, batch_num_tokens=tokens, global_batch_size=responses)
    loss, metrics = ppo_loss(config, {"log_probs": unpadded}, data)
    loss.backward()
    assert {"actor/ppo_kl", "actor/stale", "actor/pg_loss"} <= set(metrics)
    return -leaf.grad


def filled(seed, drift=0.5):
    """A batch in which every response has a token: verl's packed layout holds no other."""
    batch = sample(drift, seed=seed)
    batch.mask[:, 0] = True
    return batch


def assert_same(ours, theirs):
    deviation = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    print(f"relative deviation {deviation:.1e}")
    assert deviation < 1e-6


@pytest.mark.parametrize("name", [*RUNNABLE, *PRESETS])
def test_same_gradient(name):
    """What ``overrides`` says makes verl train the method as it is here."""
    batch, row = filled(51), method(name)
    ours = credit(row.objective, *batch.tensors, normalize=row.normalize(WIDTH))
    extra = [f"data.max_response_length={WIDTH}"]
    assert_same(ours, verl_credit(batch, actor_of(name, *extra)))


@pytest.mark.parametrize("mode", KINDS)
def test_global_counts(mode):
    """Two ranks of two micro-batches each: the mean over ranks of their sums is the gradient of the whole batch."""
    batch = filled(52)
    config = actor_of("sspo", f"actor_rollout_ref.actor.loss_agg_mode={mode}")
    ours = credit(METHODS["sspo"].objective, *batch.tensors, normalize=KINDS[mode])
    theirs = torch.zeros_like(ours)
    counts = {"dp_size": 2, "tokens": int(batch.mask.sum()), "responses": len(batch.mask)}
    for rank in ([[0, 1], [2]], [[3], [4, 5]]):
        for rows in rank:
            part = dataclasses.replace(
                batch, **{n: getattr(batch, n)[rows] for n in ("logp", "logp_old", "advantages", "mask")}
            )
            theirs[rows] += verl_credit(part, config, **counts) / 2
    assert_same(theirs, ours)


@pytest.mark.parametrize("mode", KINDS)
def test_counts_are_verls_own(mode):
    """The same terms through verl's ``agg_loss``, with counts that fit no batch here."""
    batch = filled(53)
    world = {"dp_size": 3, "batch_num_tokens": 101, "global_batch_size": 17, "loss_scale_factor": 5}
    x = torch.randn(batch.mask.shape, dtype=torch.float64)
    ours = adapter.normalizer(mode, world, width=WIDTH)(x, batch.mask) * 3
    theirs = agg_loss(x, batch.mask.double(), mode, **world)
    assert abs(ours - theirs) / abs(theirs) < 1e-6


def test_numbers_stand_in_the_config():
    batch = filled(54)
    config = actor_of("sspo", tau_pos=2.0, tau_neg=3.0)
    assert isinstance(config.policy_loss, adapter.PolicyLoss)
    assert_same(credit(METHODS["sspo"].objective, *batch.tensors, tau_pos=2.0, tau_neg=3.0), verl_credit(batch, config))
    wrong = actor_of("sspo", tau_pos=2.0)
    wrong.policy_loss.numbers["tau"] = 1.0
    with pytest.raises(ValueError, match="unknown number of sspo: 'tau'"):
        verl_credit(batch, wrong)


def test_corrections_are_factors_on_the_advantages():
    batch = filled(55)
    weights = torch.rand(batch.mask.shape, dtype=torch.float64) + 0.5
    theirs = verl_credit(batch, actor_of("cispo"), weights=weights)
    logp, logp_old, advantages, mask = batch.tensors
    assert_same(credit(METHODS["cispo"].objective, logp, logp_old, advantages * weights, mask), theirs)


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        (
            "clip_ratio_low=0.1",
            r"clip_ratio_low=0\.1 is not read by sspo_teach/gspo: its numbers are eps_low, eps_high",
        ),
        ("clip_ratio_c=5.0", r"clip_ratio_c=5\.0 is not read"),
        ("tau_pos=2.0", r"tau_pos=2\.0 is not read"),
        ("policy_loss.dro_beta=0.1", r"dro_beta=0\.1 is not read"),
        ("policy_loss.ppo_kl_coef=1.0", r"ppo_kl_coef=1\.0 is not read"),
    ],
)
def test_numbers_of_verls_own_losses_are_refused(option, reason):
    with pytest.raises(ValueError, match=reason):
        verl_credit(filled(56), actor_of("gspo", f"actor_rollout_ref.actor.{option}"))


@pytest.mark.parametrize(
    ("mode", "count"), [("token-mean", "batch_num_tokens"), ("seq-mean-token-sum", "global_batch")]
)
def test_missing_counts_are_refused(mode, count):
    config = actor_of("grpo", f"actor_rollout_ref.actor.loss_agg_mode={mode}")
    with pytest.raises(ValueError, match=f"{count}.* is missing with dp_size=2"):
        verl_credit(filled(57), config, dp_size=2)


def test_unknown_aggregation_is_refused():
    with pytest.raises(ValueError, match="unknown loss_agg_mode: 'token_mean'; did you mean 'token-mean'"):
        adapter.normalizer("token_mean", {}, width=WIDTH)


def test_every_row_is_registered():
    """Those that verl cannot run say why when it calls them."""
    for name, row in METHODS.items():
        rule = get_policy_loss_fn(f"sspo_teach/{name}")
        if name not in RUNNABLE:
            with pytest.raises(ValueError, match=f"{row.objective.__name__} cannot train in verl: .*it"):
                rule(None, None, None, None, "token-mean", None)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"separable": False}, "its credit couples the responses of a minibatch"),
        ({"needs": ("rewards",)}, "it needs rewards, which the trainer does not hand over"),
        ({"controller": dict}, "its dict keeps state between steps"),
        ({"critic": dict}, "its advantages come from a critic of its own"),
    ],
)
def test_refused(row, reason):
    name = adapter.register("test", dataclasses.replace(METHODS["grpo"], **row))
    with pytest.raises(ValueError, match=f"grpo cannot train in verl: {reason}"):
        get_policy_loss_fn(name)(None, None, None, None, "token-mean", None)


def test_verl_imports_it():
    """The environment variable is enough, in a process that never names us; the command says what to tell verl."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    look = "from verl.trainer.ppo.core_algos import get_policy_loss_fn as get; print(get('sspo_teach/sspo:gate-study'))"
    external = {"VERL_USE_EXTERNAL_MODULES": "sspo_teach.adapters.verl"}
    run = partial(subprocess.run, capture_output=True, text=True, timeout=300, check=True)
    assert "policy_loss" in run([sys.executable, "-c", look], env={**environment, **external}).stdout
    told = run([sys.executable, "-m", "sspo_teach.adapters.verl", "dr_grpo", "eps_high=0.3"], env=environment).stdout
    assert told.split() == adapter.overrides("dr_grpo", eps_high=0.3)
    assert "algorithm.norm_adv_by_std_in_grpo=False" in told.split()


def test_rays_workers_import_it():
    """The line for ray reaches the runtime environment as verl merges it."""
    from omegaconf import OmegaConf
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=adapter.overrides("sspo"))
    merged = OmegaConf.merge(get_ppo_ray_runtime_env(config), config.ray_kwargs.ray_init.runtime_env)
    assert merged.env_vars.VERL_USE_EXTERNAL_MODULES == "sspo_teach.adapters.verl"
