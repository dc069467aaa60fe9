"""The trainer: ratios, gradients, groups, rewards, controls and warnings; every method through the same code."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

from sspo_teach.catalog import METHODS, Method, mixed_groups
from sspo_teach.objectives.advantages import has_signal
from sspo_teach.objectives.normalize import response_mean
from sspo_teach.objectives.regularizers import kl_penalty
from sspo_teach.policies import causal_lm
from sspo_teach.policies.causal_lm import CausalLM, tiny_qwen2
from sspo_teach.policies.sampling import Sampling
from sspo_teach.tasks.toy import BanditTask
from sspo_teach.training import rollout as rollout_room
from sspo_teach.training import trainer as training
from sspo_teach.training import warmup
from sspo_teach.training.config import Config, resolve
from sspo_teach.training.evaluation import evaluate
from sspo_teach.training.rollout import collect, forward, minibatches, score_rows
from sspo_teach.training.trainer import Clock, Trainer, TrainingWarning, learning_rate
from sspo_teach.types import Rollout, Verified


def rollout_of(one: Trainer, step: int = 1) -> Rollout:
    return collect(one.policy, one.reference, one.task, one.method, one.config, step, Clock()).rollout


def off_policy(rollout: Rollout) -> Rollout:
    """As if the policy had moved: log-ratios of ±0.5, so that every gate acts."""
    noise = torch.randn(rollout.mask.shape, generator=torch.Generator().manual_seed(1), dtype=rollout.logp_old.dtype)
    rewards = torch.arange(len(rollout.rewards)).fmod(3).to(rollout.rewards)  # so that every group has signal
    return dataclasses.replace(rollout, logp_old=rollout.logp_old + 0.5 * noise, rewards=rewards)


# --- ratios ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share_prompts", "pack"), [(True, 256), (True, 0), (False, 0)])
@pytest.mark.parametrize("micro_batch", [0, 3, 1])
def test_ratio_is_one_to_the_bit_before_the_first_update_and_not_after(
    trainer, monkeypatch, share_prompts, pack, micro_batch
):
    monkeypatch.setattr(causal_lm, "PACK", pack)
    one = trainer(share_prompts=share_prompts, micro_batch=micro_batch, epochs=2, temperature=0.7)
    rollout = rollout_of(one)
    advantages = one.method.advantage(off_policy(rollout))
    updates = [one.update(rollout, advantages, rows) for _ in range(2) for rows in minibatches(rollout, one.config)]
    away = [(update.logp - rollout.logp_old[update.rows])[rollout.mask[update.rows]] for update in updates]
    assert (away[0] == 0).all()
    assert all((gap != 0).any() for gap in away[1:])
    assert one.counts["updates"] == 4


def test_ratio_error_of_a_run_is_zero_and_the_sampler_s_own_numbers_are_close(trainer):
    own = trainer(reuse_sampler_logp=True, temperature=0.7)
    own.run()
    errors = [float(row["ratio_error"]) for row in tiny.history(own.folder.path)]
    assert 0 < max(errors) <= 1e-6
    environment = json.loads((own.folder.path / "environment.json").read_text())
    assert environment["logp_old"] == "the sampler's own"
    assert environment["sampling"] == {"temperature": 0.7, "top_k": 0, "top_p": 1.0}
    scored = trainer(out=str(own.folder.path.with_name("scored")))
    scored.run()
    assert all(float(row["ratio_error"]) == 0 for row in tiny.history(scored.folder.path))
    assert "scored" in json.loads((scored.folder.path / "environment.json").read_text())["logp_old"]


def test_training_samples_are_never_truncated(trainer, monkeypatch):
    """No option asks for it, and what the sampler is given is the temperature alone."""
    assert not {"top_k", "top_p"} & {field.name for field in dataclasses.fields(Config)}
    one, seen = trainer(temperature=0.7), []
    generate = one.policy.generate
    monkeypatch.setattr(one.policy, "generate", lambda *a, **b: (seen.append(b["sampling"]), generate(*a, **b))[1])
    one.iterate()
    assert seen == [Sampling(temperature=0.7)]
    assert not seen[0].truncated


# --- gradients ------------------------------------------------------------------------------------------------------


def coupled(
    logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, *, normalize: Any = response_mean
) -> Tensor:
    """An objective whose credit couples all rows: their log-ratios go through one softmax over the batch."""
    weight = torch.where(mask, logp - logp_old, 0.0).sum(1).softmax(0).unsqueeze(1)
    return -normalize(weight * advantages * logp, mask)


COUPLED = Method(coupled, Verified.RECONSTRUCTION, separable=False)


def without_chance(row: Method) -> Method:
    """The row whose ``fields`` draw the same at every update."""
    if row.fields is None:
        return row
    draw = row.fields

    def fields(rollout: Rollout, advantages: Tensor, logp: Tensor, _: torch.Generator) -> Any:
        return draw(rollout, advantages, logp, torch.Generator().manual_seed(0))

    return dataclasses.replace(row, fields=fields)


def gradient(one: Trainer, rollout: Rollout, micro_batch: int) -> Tensor:
    """The gradient that the optimizer is given for a minibatch of all rows."""
    one.config, found = dataclasses.replace(one.config, micro_batch=micro_batch, max_grad_norm=0.0), []
    one.optimizer.step = lambda: found.append(tiny.take_gradient(one.policy))  # type: ignore[method-assign]
    one.update(rollout, one.method.advantage(rollout), torch.arange(len(rollout.mask)))
    return found[0]


def plain_gradient(one: Trainer, rollout: Rollout) -> Tensor:
    """The same by autograd alone: no credit, no counts, no micro-batches."""
    width = rollout.prompt_mask.shape[1]
    logp = one.policy.logp(rollout.tokens, rollout.prompt_mask)
    assert logp.shape[1] == rollout.tokens.shape[1] - width
    advantages, computed = one.method.advantage(rollout), {}
    if one.method.fields is not None:
        computed = one.method.fields(rollout, advantages, logp.detach(), torch.Generator())
    fields = {name: computed[name] if name in computed else getattr(rollout, name) for name in one.method.needs}
    numbers = {"normalize": one.normalizer, **fields}
    loss = one.method.objective(logp, rollout.logp_old, advantages, rollout.mask, **numbers)
    if rollout.logp_ref is not None:
        penalty = {"beta": one.config.beta, "estimator": one.config.kl, "normalize": one.normalizer}
        loss = loss + kl_penalty(logp, rollout.logp_ref, rollout.mask, **penalty)
    loss.backward()
    return tiny.take_gradient(one.policy)


def largest_error(one: Trainer) -> float:
    """Over several cuts, relative to the largest entry of the gradient."""
    rollout = off_policy(rollout_of(one))
    if rollout.logp_ref is not None:
        rollout = dataclasses.replace(rollout, logp_ref=rollout.logp_ref - 0.1)
    if one.critic is not None:
        rollout = dataclasses.replace(rollout, values=one.critic.values(rollout) + 0.3)
    whole = plain_gradient(one, rollout)
    assert whole.abs().max() > 1e-3
    gaps = [gradient(one, rollout, micro_batch) - whole for micro_batch in (1, 7, 100)]
    return max(gap.abs().max() / whole.abs().max() for gap in gaps).item()


def norm_in_float64(self: Any, x: Tensor) -> Tensor:
    return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
@pytest.mark.parametrize("name", [*METHODS, "coupled"])
def test_micro_batches_do_not_change_the_gradient(trainer, monkeypatch, name, dtype, tolerance):
    """sapo_erf's narrow gate leaves so little gradient that float32 rounds its largest entry to 1.1e-6 on some CPUs."""
    tolerance *= 2 if name == "sapo_erf" else 1
    if dtype == "float64":
        monkeypatch.setattr(Qwen2RMSNorm, "forward", norm_in_float64)
    one = trainer(beta=0.1, dtype=dtype)
    one.method = without_chance({**METHODS, "coupled": COUPLED}[name])
    one.normalizer = one.method.normalize(one.task.max_new_tokens)
    one.critic = None if one.method.critic is None else one.method.critic(one.policy, lr=1e-3)
    assert largest_error(one) < tolerance


@pytest.mark.parametrize(("share_prompts", "tolerance"), [(False, 1e-12), (True, 5e-7)])
def test_qwen2_s_own_norm_rounds_the_gradient_of_a_shared_prompt(trainer, share_prompts, tolerance):
    """RMSNorm goes through float32 whatever the model's type: the gradient of a prompt that G responses share is
    rounded once, not G times, and a float64 gradient then differs by float32's last bit (7e-8 measured)."""
    assert largest_error(trainer(dtype="float64", prompts=6, share_prompts=share_prompts)) < tolerance


def test_a_hole_in_the_mask_cuts_no_response_short(trainer):
    """Agent-R1#16: what a tool wrote is read but not trained on, and what comes after it is."""
    one = trainer(share_prompts=False)
    rollout = rollout_of(one)
    long = rollout.mask.all(1)
    assert long.any()
    mask = rollout.mask.clone()
    mask[:, 1] = False
    holed = dataclasses.replace(off_policy(rollout), mask=mask)
    (logp,) = forward(one.policy.logp, holed.select(long), one.config)
    whole = one.policy.logp(rollout.tokens[long], rollout.prompt_mask[long])
    torch.testing.assert_close(logp[:, -1], whole[:, -1])
    found, expected = gradient(one, holed, 3), plain_gradient(one, holed)
    assert (found - expected).abs().max() < 1e-6 * expected.abs().max()


@pytest.mark.parametrize(
    "shape",
    [
        {"prompts": 3, "group_size": 2, "minibatches": 3},
        {"prompts": 5, "group_size": 7, "minibatches": 5, "micro_batch": 4},
        {"prompts": 4, "group_size": 3, "minibatches": 2, "micro_batch": 100, "epochs": 2},
    ],
)
def test_any_groups_and_minibatches(trainer, shape):
    one = trainer(**shape, steps=2)
    one.run()
    last = tiny.history(one.folder.path)[-1]
    assert int(last["updates"]) == 2 * shape["minibatches"] * shape.get("epochs", 1)
    assert int(last["responses"]) == 2 * shape["prompts"] * shape["group_size"]
    rows = minibatches(rollout_of(one), one.config)
    assert [len(r) for r in rows] == [one.config.rollouts // shape["minibatches"]] * shape["minibatches"]


def test_dr_grpo_divides_by_the_longest_length(trainer):
    one = trainer(method="dr_grpo")
    rollout = off_policy(rollout_of(one))
    long = dataclasses.replace(one.config, max_new_tokens=8)
    found = gradient(one, rollout, 0)
    one.normalizer = one.method.normalize(2 * one.task.max_new_tokens)
    torch.testing.assert_close(gradient(one, rollout, 0), found / 2, rtol=1e-4, atol=1e-7)
    assert training.build(resolve(long))[0].max_new_tokens == 8


# --- KL -------------------------------------------------------------------------------------------------------------


def test_beta_in_the_loss_changes_the_gradient(trainer):
    """Where the policy still is the reference k3 has no gradient; away from it, it has."""
    free, tied = trainer(), trainer(beta=0.5)
    assert free.reference is None
    rollout = off_policy(rollout_of(tied))
    torch.testing.assert_close(gradient(tied, rollout, 0), gradient(free, rollout, 0))
    away = dataclasses.replace(rollout, logp_ref=rollout.logp_ref - 0.3)
    found, without = gradient(tied, away, 0), gradient(free, away, 0)
    assert (found - without).abs().max() > 0.1 * without.abs().max()
    torch.testing.assert_close(found, plain_gradient(tied, away), rtol=1e-4, atol=1e-6)


def test_beta_in_the_reward_is_beta_times_the_summed_k1(trainer):
    one = trainer(beta=0.5, kl_in="reward")
    with torch.no_grad():
        for p in one.policy.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    batch = collect(one.policy, one.reference, one.task, one.method, one.config, 1, Clock())
    kl = ((batch.rollout.logp_old - batch.rollout.logp_ref) * batch.rollout.mask).sum(1)
    assert kl.abs().max() > 0.01
    torch.testing.assert_close(batch.rollout.rewards, batch.task_rewards - 0.5 * kl)
    without = dataclasses.replace(batch.rollout, logp_ref=None)
    assert torch.equal(gradient(one, batch.rollout, 0), gradient(one, without, 0))  # nothing of it in the loss


def test_the_reference_is_frozen_and_the_policy_is_not(trainer):
    one = trainer(beta=0.1)
    before = [p.clone() for p in one.policy.parameters()]
    one.run()
    assert all(torch.equal(a, b) for a, b in zip(before, one.reference.policy.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(before, one.policy.parameters(), strict=True))
    assert not any(p.requires_grad for p in one.reference.policy.parameters())
    kl = [float(row["kl_ref"]) for row in tiny.history(one.folder.path)]
    assert 0 <= kl[0] < kl[-1]


def test_without_beta_there_is_no_reference(trainer):
    one = trainer()
    one.run()
    assert one.reference is None
    assert not (one.folder.path / "reference").exists()
    assert {row["kl_ref"] for row in tiny.history(one.folder.path)} == {""}


# --- batches that are refused, resampled, shaped ----------------------------------------------------------------------


def test_a_stale_batch_is_skipped_and_counted(trainer):
    one = trainer(staleness_limit=1e-12, epochs=2, steps=1)
    row = one.iterate()
    assert (row["updates"], row["rejected"]) == (1, 3)  # the first is never stale
    free = trainer(staleness_limit=10.0, epochs=2, steps=1)
    assert free.iterate()["rejected"] == 0


def test_a_gradient_that_is_not_finite_is_skipped_and_counted(trainer):
    one = trainer()
    before = [p.clone() for p in one.policy.parameters()]
    hook = one.policy.model.model.norm.weight.register_hook(lambda g: g * math.nan)
    row = one.iterate()
    assert (row["updates"], row["rejected"]) == (0, 2)
    assert math.isnan(row["grad_norm"])
    assert all(torch.equal(a, b) for a, b in zip(before, one.policy.parameters(), strict=True))
    hook.remove()
    assert one.iterate()["updates"] == 2
    assert all(p.isfinite().all() for p in one.policy.parameters())


class Lottery:
    """A bandit that pays one response in ``odds`` by its tokens alone."""

    def __init__(self, inner: BanditTask, odds: int) -> None:
        self.inner, self.odds = inner, odds

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def score(self, problems: tuple[Any, ...], tokens: Tensor, mask: Tensor) -> Any:
        won = ((tokens * mask).sum(1) % self.odds == 0).float()
        return SimpleNamespace(rewards=won, parts={"correct": won, "format": torch.ones(len(won))})


@pytest.mark.parametrize("reuse", [False, True])
def test_dapo_samples_dead_groups_again_and_no_others(trainer, reuse, monkeypatch):
    monkeypatch.setattr(rollout_room, "_drop", lambda rollout, entropy, *_: (rollout, entropy, 0))
    one = trainer(method="dapo", prompts=8, minibatches=2, resample_limit=1, reuse_sampler_logp=reuse)
    one.task = Lottery(one.task, 5)
    plain = dataclasses.replace(one.method, keep=None, reward=None)
    first = collect(one.policy, None, one.task, plain, one.config, 1, Clock())
    second = collect(one.policy, None, one.task, dataclasses.replace(one.method, reward=None), one.config, 1, Clock())
    dead = ~mixed_groups(first.rollout)
    assert 0 < dead.sum() < len(dead)
    same = (first.rollout.tokens == second.rollout.tokens).all(1)
    assert same[~dead].all()
    assert not same[dead].all()
    assert torch.equal(first.rollout.logp_old[~dead], second.rollout.logp_old[~dead])
    assert torch.equal(first.entropy[~dead], second.entropy[~dead])
    assert second.resampled == dead.sum() / 4
    assert second.responses == 32 + dead.sum()
    assert second.tokens > first.tokens == first.rollout.mask.sum()
    problems = second.rollout.problems
    for group in range(8):
        rows = slice(4 * group, 4 * group + 4)
        assert len(set(problems[rows])) == 1
        assert (second.rollout.tokens[rows, :3] == second.rollout.tokens[4 * group, :3]).all()
    ends = second.rollout.tokens[:, 3:] == one.task.eos_id
    assert torch.equal(second.rollout.mask, ends.cumsum(1) - ends.long() == 0)
    logp, entropy = score_rows(one.policy.logp_and_entropy, second.rollout, one.config)
    assert (second.rollout.logp_old - logp)[second.rollout.mask].abs().max() < 1e-6
    assert (second.entropy - entropy)[second.rollout.mask].abs().max() < 1e-5
    alive = has_signal(second.rollout.parts["correct"], second.rollout.group_ids)
    assert alive.sum() > (~dead).sum()


def test_dapo_leaves_out_what_stays_dead(trainer):
    one = trainer(method="dapo", prompts=8, minibatches=2, resample_limit=0)
    one.task = Lottery(one.task, 5)
    one.method = dataclasses.replace(one.method, reward=None)
    whole = dataclasses.replace(one.method, keep=None)
    first, second = (collect(one.policy, None, one.task, way, one.config, 1, Clock()) for way in (whole, one.method))
    alive = mixed_groups(first.rollout)
    assert 0 < alive.sum() < len(alive)
    assert second.dropped == (~alive).sum() / 4
    assert torch.equal(second.rollout.tokens, first.rollout.tokens[alive])
    assert torch.equal(second.task_rewards, first.task_rewards[alive])
    assert second.entropy.shape == second.rollout.mask.shape
    sizes = [len(rows) for rows in minibatches(second.rollout, one.config)]
    assert sum(sizes) == alive.sum()
    assert all(size % 4 == 0 for size in sizes)  # groups stay whole
    assert one.iterate()["dropped"] == second.dropped


def test_dapo_gives_up_after_its_limit(trainer):
    one = trainer(method="dapo", resample_limit=3)
    one.task = Lottery(one.task, 1)  # everybody wins
    one.method = dataclasses.replace(one.method, reward=None)
    first, *more = (
        collect(one.policy, None, one.task, one.method, dataclasses.replace(one.config, resample_limit=n), 1, Clock())
        for n in range(3)
    )
    assert all(not torch.equal(again.rollout.tokens, first.rollout.tokens) for again in more)
    assert not torch.equal(more[0].rollout.tokens, more[1].rollout.tokens)  # each attempt is a new one
    for _ in range(4):
        one.iterate()
    with pytest.warns(TrainingWarning, match="no group had two different rewards for 5 iterations"):
        row = one.iterate()
    assert row["resampled"] == 12
    assert row["dead_groups"] == 1
    assert row["responses"] == 5 * 64


def test_long_responses_cost_reward_under_dapo(trainer):
    one = trainer(method="dapo", resample_limit=0, max_new_tokens=5, options=("letters=2",))
    batch = collect(one.policy, None, one.task, one.method, one.config, 1, Clock())
    toll = batch.task_rewards - batch.rollout.rewards  # the last fifth of 5 tokens is one
    assert torch.equal(toll, (batch.rollout.mask.sum(1) == 5).float())
    assert 0 < toll.sum() < len(toll)


def test_shuffled_rewards_are_the_same_numbers_elsewhere(trainer):
    true, false = (
        collect(one.policy, None, one.task, one.method, one.config, 1, Clock())
        for one in (trainer(prompts=8), trainer(prompts=8, shuffle_rewards=True))
    )
    assert torch.equal(true.rollout.tokens, false.rollout.tokens)
    assert torch.equal(true.rollout.rewards.sort().values, false.rollout.rewards.sort().values)
    assert not torch.equal(true.rollout.rewards, false.rollout.rewards)
    assert torch.equal(true.task_rewards, false.task_rewards)  # what is reported is the truth


# --- controllers, schedule, warnings, callback ------------------------------------------------------------------------


class Watcher:
    """A controller that writes down what it is asked and when."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def begin(self) -> None:
        self.seen.append("begin")

    def hyper(self) -> dict[str, float]:
        self.seen.append("hyper")
        return {"tau_pos": 1.0 + self.seen.count("observe")}

    def observe(self, rollout: Rollout, logp: Tensor) -> None:
        assert rollout.mask.shape == logp.shape
        assert not logp.requires_grad
        self.seen.append("observe")

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: Any) -> None:
        self.seen = list(state["seen"])


def test_a_controller_learns_from_a_step_after_it_and_is_saved(trainer, config, monkeypatch):
    monkeypatch.setitem(METHODS, "watched", dataclasses.replace(METHODS["sspo"], controller=Watcher))
    one = trainer(method="watched", steps=2, save_every=1)
    one.run()
    assert one.controller.seen == ["begin", "hyper", "observe", "hyper", "observe"] * 2
    again = Trainer(dataclasses.replace(one.config, resume=True), quiet=True)
    assert again.controller.seen == one.controller.seen


def test_the_learning_rate_rises_then_falls():
    config = Config(steps=10, lr=1.0, lr_warmup=4)
    rates = [learning_rate(config, step) for step in range(1, 11)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    constant = dataclasses.replace(config, lr_decay="constant", lr_warmup=0)
    assert [learning_rate(constant, step) for step in range(1, 11)] == [1.0] * 10


def test_the_learning_rate_reaches_the_optimizer(trainer):
    one = trainer(steps=3, lr_warmup=3)
    rates = []
    one.on_step = lambda row, self: rates.append(self.optimizer.param_groups[0]["lr"])
    one.run()
    assert rates == [learning_rate(one.config, step) for step in (1, 2, 3)]


def test_gradients_are_limited_unless_told_otherwise(trainer, monkeypatch):
    seen = []
    for limit in (1e-3, 0.0):
        one = trainer(max_grad_norm=limit)
        step = one.optimizer.step
        norm = lambda one=one: tiny.norm(one.policy)  # noqa: E731
        monkeypatch.setattr(one.optimizer, "step", lambda step=step, norm=norm: (seen.append(norm()), step()))
        one.iterate()
    assert seen[:2] == pytest.approx([1e-3, 1e-3], rel=1e-3)
    assert min(seen[2:]) > 0.1


def test_one_update_per_rollout_warns_that_no_gate_can_act(trainer):
    with pytest.warns(TrainingWarning, match="every ratio is 1"):
        one = trainer(minibatches=1)
    row = one.iterate()
    assert row["moved"] == row["silenced"] == row["kl_k3"] == 0
    assert row["ratio_q01"] == row["ratio_q99"] == 1
    assert row["grad_norm"] > 0
    assert abs(row["loss"]) < 1e-6  # centred advantages at ratio 1: the value says nothing


def test_nothing_finished_warns_once(trainer):
    one = trainer()
    one.task = Lottery(one.task, 2)
    one.task.inner.stop_ids = (99,)
    with pytest.warns(TrainingWarning, match="no response ended within max_new_tokens"):
        one.iterate()
    one.iterate()


def test_a_callback_sees_every_row_and_may_stop_the_run(config):
    rows = []

    def look(row, one):
        rows.append(row)
        one.stop = one.step == 3

    folder = training.train(config(), on_step=look, quiet=True)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert [int(row["step"]) for row in tiny.history(folder)] == [1, 2, 3]
    assert (folder / "checkpoints" / "step-3").is_dir()


# --- the warm start ---------------------------------------------------------------------------------------------------


@pytest.fixture
def empty_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SSPO_TEACH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def weights(policy: CausalLM) -> list[Tensor]:
    return [p.detach().clone() for p in policy.parameters()]


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_warmed_model_is_reloaded_to_the_bit(empty_cache, config, monkeypatch):
    settings = resolve(config(warmup_steps=3))
    first = weights(training.build(settings, quiet=True)[1])
    assert [path.name[:5] for path in empty_cache.iterdir()] == ["warm-"]
    monkeypatch.setattr(warmup, "warm_up", lambda *_, **__: pytest.fail("it is in the cache"))
    assert equal(weights(training.build(settings, quiet=True)[1]), first)


def test_the_cache_tells_all_settings_apart(empty_cache, config):
    others: tuple[dict[str, Any], ...] = (
        {}, {"warmup_steps": 2}, {"seed": 1}, {"options": ("rule=copy",)}, {"max_new_tokens": 3}, {"dtype": "float64"},
    )  # fmt: skip
    for other in others:
        training.build(resolve(config(**{"warmup_steps": 1, **other})), quiet=True)
    assert len(list(empty_cache.iterdir())) == len(others)
    assert all((folder / "config.json").exists() for folder in empty_cache.iterdir())


def test_a_faster_run_s_warm_start_is_taken(empty_cache, config, monkeypatch):
    settings, warm_up, other = resolve(config(warmup_steps=1)), warmup.warm_up, []

    def slow(policy: CausalLM, *rest: Any, **named: Any) -> None:
        monkeypatch.undo()
        monkeypatch.setenv("SSPO_TEACH_CACHE", str(empty_cache))
        other.append(weights(training.build(settings, quiet=True)[1]))  # another run comes and goes
        next(empty_cache.iterdir()).joinpath("marker").touch()
        warm_up(policy, *rest, **named)

    monkeypatch.setattr(warmup, "warm_up", slow)
    assert equal(weights(training.build(settings, quiet=True)[1]), other[0])
    (kept,) = empty_cache.iterdir()
    assert (kept / "marker").exists()  # nobody's folder was replaced while it may have been read


def test_the_warm_start_imitates_right_answers():
    task = BanditTask(rule="copy", letters=2)
    one = tiny_qwen2(task.vocab_size, seed=0)
    before = evaluate(one, task, 8)["greedy"]["reward"]
    warmup.warm_up(one, task, 25, seed=0, quiet=True)
    assert evaluate(one, task, 8)["greedy"]["reward"] > before + 0.2


# --- it learns --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sspo", "grpo"])
def test_the_tiny_transformer_learns_the_bandit(trainer, method):
    """From the reward of random weights, about 0.2, to near the best that the table pays."""
    one = trainer(
        method=method, steps=30, prompts=16, group_size=8, minibatches=4, lr=1e-3, lr_warmup=3, eval_every=30,
        save_every=30,
    )  # fmt: skip
    one.run()
    rewards = [float(row["reward"]) for row in tiny.history(one.folder.path)]
    early, late = sum(rewards[:3]) / 3, sum(rewards[-3:]) / 3
    assert late > early + 0.3
    moved = [float(row["moved"]) for row in tiny.history(one.folder.path)]
    assert sum(moved) / len(moved) > 0.01


def test_no_pickle_in_a_run_s_folder(trainer):
    one = trainer(beta=0.1, steps=2)
    path = one.run()
    kinds = {file.suffix for file in path.rglob("*") if file.is_file()}
    assert kinds <= {".csv", ".json", ".jsonl", ".safetensors", ".png"}
    for file in path.rglob("*.json"):
        json.loads(file.read_text())
    assert len(list(path.rglob("*.safetensors"))) == 5  # two checkpoints and the reference
    assert not list(path.rglob(".*"))
