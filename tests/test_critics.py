"""Critics: advantages by enumeration and loops, what a critic may see, and that it learns, trains and resumes."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
from functools import partial
from pathlib import Path

import pytest
import tiny
import torch
from torch import Tensor

from sspo_teach.catalog import METHODS
from sspo_teach.critics import ValueModel, prompt_critic, success_lesson, token_critic
from sspo_teach.objectives.critic import gae, gae_advantage, gae_of, success_advantage, value_loss
from sspo_teach.training import checkpoint
from sspo_teach.training.config import Config, resolve
from sspo_teach.training.trainer import Trainer
from sspo_teach.types import Rollout

F64 = torch.float64


def rollout_of(rewards: list[float], **other: object) -> Rollout:
    """Responses of 3, 1, 4, 2, … tokens to left-padded prompts of 2 or 3, two to a group."""
    n, draw = len(rewards), torch.Generator().manual_seed(0)
    sizes = torch.tensor([3, 1, 4, 2, 4, 1, 2, 3])[:n].unsqueeze(1)
    group = torch.arange(n) // 2
    prompts = torch.randint(1, 11, (4, 3), generator=draw)[group]
    return dataclasses.replace(
        Rollout(
            tokens=torch.cat([prompts, torch.randint(1, 11, (n, 4), generator=draw)], dim=1),
            prompt_mask=torch.arange(3) >= (group % 2).unsqueeze(1),
            mask=torch.arange(4) < sizes,
            logp_old=-torch.rand(n, 4, generator=draw),
            rewards=torch.tensor(rewards),
            group_ids=group,
            truncated=torch.zeros(n, dtype=torch.bool),
        ),
        **other,  # type: ignore[arg-type]
    )


REWARDS = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0]


# --- advantages -------------------------------------------------------------------------------------------------------


def by_loops(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float, last: list[float]) -> Tensor:
    """Σₖ (γλ)ᵏ δₜ₊ₖ, spelled."""
    out = torch.zeros_like(values)
    for i in range(len(mask)):
        where = [t for t in range(mask.shape[1]) if mask[i, t]]
        V = [values[i, t].item() for t in where] + [last[i]]
        delta = [rewards[i, t].item() + gamma * V[k + 1] - V[k] for k, t in enumerate(where)]
        for k, t in enumerate(where):
            out[i, t] = sum((gamma * lam) ** m * d for m, d in enumerate(delta[k:]))
    return out


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (1.0, 1.0), (0.9, 0.5), (0.99, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("bootstrap", [False, True])
def test_gae_is_the_sum_it_stands_for(gamma, lam, bootstrap):
    draw = torch.Generator().manual_seed(1)
    rewards, values = (torch.randn(5, 6, generator=draw, dtype=F64) for _ in range(2))
    mask = torch.arange(6) < torch.tensor([[6], [1], [0], [3], [4]])
    mask[4, 1] = False  # as a tool's token would be
    last = torch.randn(5, generator=draw, dtype=F64) if bootstrap else None
    found, returns = gae(rewards, values, mask, gamma=gamma, lam=lam, last_values=last)
    expected = by_loops(rewards, values, mask, gamma, lam, last.tolist() if bootstrap else [0.0] * 5)
    assert (found - expected).abs().max() < 1e-12
    assert (returns - (expected + values).where(mask, 0.0)).abs().max() < 1e-12
    dirty = values.masked_fill(~mask, math.nan), rewards.masked_fill(~mask, math.nan)
    assert gae(dirty[1], dirty[0], mask, gamma=gamma, lam=lam, last_values=last)[0].equal(found)


def test_gae_by_hand():
    """One reward of 1 at the end, V = (.5, .25, .75), γ = 1, λ = ½: δ = (−.25, .5, .25)."""
    rewards, values = torch.tensor([[0.0, 0, 1]]), torch.tensor([[0.5, 0.25, 0.75]])
    found, returns = gae(rewards, values, torch.ones(1, 3), gamma=1.0, lam=0.5)
    assert found.tolist() == [[0.0625, 0.625, 0.25]]
    assert returns.tolist() == [[0.5625, 0.875, 1.0]]


def test_its_ends():
    """λ = 1 is R − V, λ = 0 the one-step error; a critic that knows the reward leaves nothing."""
    rollout = rollout_of(REWARDS, values=torch.randn(8, 4, generator=torch.Generator().manual_seed(2)))
    plain = (rollout.rewards.unsqueeze(1) - rollout.values).where(rollout.mask, 0.0)
    torch.testing.assert_close(gae_advantage(rollout, lam=1.0), plain)
    one_step = gae_advantage(rollout, lam=0.0)
    assert one_step[0, 0] == rollout.values[0, 1] - rollout.values[0, 0]
    assert one_step[0, 2] == 1 - rollout.values[0, 2]
    knowing = dataclasses.replace(rollout, values=rollout.rewards.unsqueeze(1).expand(8, 4))
    assert gae_advantage(knowing).abs().max() == 0


def test_a_truncated_response_is_bootstrapped_only_when_asked():
    rewards, values, mask = torch.zeros(1, 2), torch.tensor([[0.5, 0.5]]), torch.ones(1, 2)
    assert gae(rewards, values, mask, lam=1.0)[0].tolist() == [[-0.5, -0.5]]
    assert gae(rewards, values, mask, lam=1.0, last_values=torch.tensor([0.5]))[0].tolist() == [[0, 0]]


def test_success_advantage():
    """A critic that knows nothing gives ±½; one that knows p gives 1 − p and −p: mean 0, variance p(1 − p)."""
    blind = success_advantage(rollout_of(REWARDS, values=torch.zeros(8)))
    assert blind.squeeze(1).tolist() == [r - 0.5 for r in REWARDS]
    for p in (0.1, 0.5, 0.8):
        rewards = torch.tensor([1.0] * round(10 * p) + [0.0] * round(10 - 10 * p), dtype=F64)
        values = torch.full((10,), math.log(p / (1 - p)), dtype=F64)
        A = success_advantage(dataclasses.replace(rollout_of(REWARDS), rewards=rewards, values=values))
        assert sorted(set(A.squeeze(1).tolist())) == pytest.approx([-p, 1 - p])
        assert A.mean().item() == pytest.approx(0, abs=1e-12)
        assert A.var(correction=0).item() == pytest.approx(p * (1 - p))


def test_a_baseline_of_the_prompt_leaves_the_gradient():
    """Enumerated: E[(R − b) ∇log π] is the same for every b, and it is not for a b that knows the response."""
    logits = torch.tensor([0.2, -0.4, 0.7], dtype=F64)
    p, R = logits.softmax(0), torch.tensor([1.0, 0, 1], dtype=F64)
    score = torch.eye(3, dtype=F64) - p
    gradient = [(p * (R - b)) @ score for b in (torch.tensor(0.0), torch.tensor(0.37), p @ R, torch.tensor(-5.0))]
    assert all(torch.allclose(g, gradient[0], atol=1e-15) for g in gradient)
    assert not torch.allclose((p * (R - 0.5 * R)) @ score, gradient[0], atol=1e-3)


# --- losses -----------------------------------------------------------------------------------------------------------


def test_cross_entropy_is_least_at_the_success_rate():
    rollout = rollout_of([1.0, 0, 0, 1, 0, 0, 0, 1])
    grid = torch.linspace(0.01, 0.99, 99)
    losses = torch.stack([success_lesson(torch.full((8,), q).logit(), rollout)[0].mean() for q in grid])
    assert grid[losses.argmin()].item() == pytest.approx(3 / 8, abs=0.006)
    values = torch.tensor([0.3] * 8, requires_grad=True)
    (slope,) = torch.autograd.grad(success_lesson(values, rollout)[0].sum(), values)
    torch.testing.assert_close(slope, values.sigmoid() - rollout.rewards)


def test_rewards_beyond_a_success_are_refused():
    with pytest.raises(ValueError, match=re.escape("rewards holds 1.5: a critic of success rates needs rewards in [0")):
        success_lesson(torch.zeros(2), rollout_of([1.5, 0.0]))


def test_the_clip_of_the_value_loss():
    values, returns, old = torch.tensor([1.0, 0.4, 1.0]), torch.tensor([1.0, 0.5, 0.0]), torch.tensor([0.0, 0.3, 0.9])
    assert value_loss(values, returns, old).tolist() == pytest.approx([0, 0.005, 0.5])
    assert value_loss(values, returns, old, clip=0.2).tolist() == pytest.approx([0.32, 0.005, 0.5])
    leaf = values.clone().requires_grad_()
    value_loss(leaf, returns, old, clip=0.2).sum().backward()
    assert leaf.grad.tolist() == pytest.approx([0, -0.1, 1.0])  # too far already: silent


# --- what a critic sees -----------------------------------------------------------------------------------------------


@pytest.fixture
def policy():
    return tiny.policy(dtype=F64)


def awake(critic):
    """A head that says something."""
    with torch.no_grad():
        critic.model.head.weight.normal_(generator=torch.Generator().manual_seed(3))
    return critic


@pytest.mark.parametrize("make", [prompt_critic, token_critic])
def test_an_untrained_critic_guesses_zero_and_leaves_the_policy_alone(policy, make):
    before = [p.clone() for p in policy.parameters()]
    critic, rollout = make(policy, lr=0.1), rollout_of(REWARDS)
    values = critic.values(rollout)
    assert not values.any()
    critic.update(dataclasses.replace(rollout, values=values), [torch.arange(8)] * 3)
    assert critic.values(rollout).any()
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))


def test_the_critic_of_the_prompt_sees_no_response(policy):
    critic, rollout = awake(prompt_critic(policy, lr=0.1)), rollout_of(REWARDS)
    values = critic.values(rollout)
    assert values.shape == (8,)
    assert len(set(values.tolist())) == 4
    other = dataclasses.replace(rollout, tokens=rollout.tokens.clone())
    other.tokens[:, 3:] = 5
    assert critic.values(other).equal(values)
    other.tokens[0:2, 2] = 7
    assert not critic.values(other)[0:2].isclose(values[0:2]).any()
    assert critic.values(other)[2:].equal(values[2:])
    order = torch.tensor([3, 0, 7, 2, 1, 6, 5, 4])
    torch.testing.assert_close(critic.values(rollout.select(order)), values[order])


def test_the_critic_of_tokens_sees_what_stands_before(policy):
    critic, rollout = awake(token_critic(policy, lr=0.1)), rollout_of(REWARDS)
    values = critic.values(rollout)
    assert values.shape == (8, 4)
    assert not values[~rollout.mask].any()
    assert values[rollout.mask].all()
    for t in range(4):
        other = dataclasses.replace(rollout, tokens=rollout.tokens.clone())
        other.tokens[:, 3 + t] = (other.tokens[:, 3 + t] + 1) % 11
        moved = (critic.values(other) - values).abs() > 1e-9
        assert torch.equal(moved, rollout.mask & (torch.arange(4) > t))
    torch.testing.assert_close(values[0, 0], values[1, 0])  # same prompt, nothing said yet
    alone = critic.values(rollout.select(torch.tensor([1])))  # one token: no column of the response is read
    torch.testing.assert_close(alone, values[1:2])


def test_left_padding_is_not_seen(policy):
    for make in (prompt_critic, token_critic):
        critic, rollout = awake(make(policy, lr=0.1)), rollout_of(REWARDS)
        values = critic.values(rollout)
        other = dataclasses.replace(rollout, tokens=rollout.tokens.clone())
        other.tokens[:, :3] = torch.where(rollout.prompt_mask, other.tokens[:, :3], 9)
        torch.testing.assert_close(critic.values(other), values)


@pytest.mark.parametrize("make", [prompt_critic, token_critic])
@pytest.mark.parametrize("cut", [1, 3, 100])
def test_micro_batches_of_a_critic(policy, make, cut):
    rollout, found = rollout_of(REWARDS), []
    for micro_batch in (0, cut):
        critic = awake(make(policy, lr=0.1, micro_batch=micro_batch, max_grad_norm=0.0))
        values, seen = critic.values(rollout), []
        critic.optimizer.step = lambda m=critic.model, s=seen: s.extend(p.grad.clone() for p in m.parameters())
        metrics = critic.update(dataclasses.replace(rollout, values=values), [torch.arange(8)])
        found.append((values, metrics, torch.cat([g.flatten() for g in seen])))
    (one, whole, g), (two, parts, h) = found
    torch.testing.assert_close(one, two)
    assert whole == pytest.approx(parts)
    assert (g - h).abs().max() < 1e-6 * g.abs().max()


def test_its_gradient_is_limited_and_must_be_finite(policy):
    critic, norms = awake(token_critic(policy, lr=0.1, max_grad_norm=1e-3)), []
    step = critic.optimizer.step
    gradient = lambda: torch.cat([p.grad.flatten() for p in critic.model.parameters()]).norm().item()  # noqa: E731
    critic.optimizer.step = lambda: (norms.append(gradient()), step())
    rollout = rollout_of(REWARDS)
    rollout = dataclasses.replace(rollout, values=critic.values(rollout))
    critic.update(rollout, [torch.arange(8)])
    assert norms == pytest.approx([1e-3], rel=1e-2)
    critic.model.head.weight.register_hook(lambda g: g * math.nan)
    critic.update(rollout, [torch.arange(8)])
    assert len(norms) == 1
    assert all(p.isfinite().all() for p in critic.model.parameters())


@pytest.mark.parametrize("make", [prompt_critic, token_critic])
def test_its_numbers_are_those_of_its_guesses(policy, make):
    critic, rollout = awake(make(policy, lr=1e-9)), rollout_of(REWARDS)
    values = critic.values(rollout)
    rollout = dataclasses.replace(rollout, values=values)
    found = critic.update(rollout, [torch.arange(4), torch.arange(4, 8)])
    if make is prompt_critic:
        guess, target = values.sigmoid(), rollout.rewards.to(values)
        losses = -(target * guess.log() + (1 - target) * (1 - guess).log())
        halves = [losses[:4].mean(), losses[4:].mean()]
    else:
        target = gae_of(rollout)[1]
        halves = [((values - target).square() / 2)[rows][rollout.mask[rows]].mean() for rows in (slice(4), slice(4, 8))]
        guess, target = values[rollout.mask], target[rollout.mask]
    assert found["critic_loss"] == pytest.approx((sum(halves) / 2).item(), rel=1e-4)
    gap = 1 - ((target - guess) - (target - guess).mean()).square().mean() / (target - target.mean()).square().mean()
    assert found["explained_variance"] == pytest.approx(gap.item(), rel=1e-9)


@pytest.mark.parametrize("make", [prompt_critic, partial(token_critic, lam=1.0)])
def test_of_equal_targets_there_is_nothing_to_explain(policy, make):
    critic, rollout = make(policy, lr=1e-9), rollout_of([1.0] * 8)
    found = critic.update(dataclasses.replace(rollout, values=critic.values(rollout)), [torch.arange(8)])
    assert found.keys() == {"critic_loss"}


@pytest.mark.parametrize("make", [prompt_critic, token_critic])
def test_it_learns_what_there_is_to_learn(policy, make):
    """Rewards that the prompt decides."""
    rollout = rollout_of([1.0, 1, 0, 0, 1, 1, 0, 0])
    critic, seen = make(policy, lr=0.01), []
    for _ in range(40):
        rollout = dataclasses.replace(rollout, values=critic.values(rollout))
        seen.append(critic.update(rollout, [torch.arange(8)]))
    assert seen[-1]["critic_loss"] < 0.2 * seen[0]["critic_loss"]
    assert seen[-1]["explained_variance"] > 0.9


def test_refusals(policy):
    with pytest.raises(ValueError, match=re.escape("lr must be a positive finite number, got 0.0")):
        prompt_critic(policy, lr=0.0)
    for advantage in (gae_advantage, success_advantage):
        with pytest.raises(ValueError, match=re.escape("rollout.values is None: a critic fills it")):
            advantage(rollout_of(REWARDS))
    with pytest.raises(ValueError, match=re.escape("rollout.values has shape (8,) but GAE needs one per token")):
        gae_advantage(rollout_of(REWARDS, values=torch.zeros(8)))
    with pytest.raises(ValueError, match=re.escape("rollout.values has shape (8, 4) but SPPO needs one per response")):
        success_advantage(rollout_of(REWARDS, values=torch.zeros(8, 4)))
    x = torch.zeros(1, 1)
    for name, number in (("gamma", 1.1), ("lam", -0.1)):
        with pytest.raises(ValueError, match=rf"{name} must lie in \[0, 1\], got {number}"):
            gae(x, x, x + 1, **{name: number})


# --- in the trainer ---------------------------------------------------------------------------------------------------

WITH_CRITIC = [name for name, row in METHODS.items() if row.critic is not None]


def test_which_methods_have_one():
    assert WITH_CRITIC == ["ppo_gae", "sppo"]


@pytest.mark.parametrize("name", WITH_CRITIC)
def test_values_come_before_advantages_and_lessons_after_updates(trainer, monkeypatch, name):
    one, order = trainer(method=name, epochs=2), []
    critic = one.critic
    assert isinstance(critic.model, ValueModel)
    for what, owner in (("values", critic), ("update", critic), ("step", one.optimizer)):
        call = getattr(owner, what)
        monkeypatch.setattr(owner, what, lambda *a, c=call, w=what, **b: (order.append(w), c(*a, **b))[1])
    row = one.iterate()
    assert order == ["values", *["step"] * 4, "update"]
    assert {"critic_loss", "explained_variance"} <= row.keys()
    assert critic.optimizer.state_dict()["state"][0]["step"] == 4


@pytest.mark.parametrize("name", WITH_CRITIC)
def test_the_advantages_are_those_of_the_critic(trainer, monkeypatch, name):
    one, seen = trainer(method=name), []
    awake(one.critic)
    update = one.update
    monkeypatch.setattr(one, "update", lambda *a: (seen.append(a), update(*a))[1])
    one.iterate()
    rollout, advantages, _ = seen[0]
    expected = METHODS[name].advantage(dataclasses.replace(rollout, values=rollout.values))
    assert advantages.equal(expected)
    assert advantages.shape[1] == (4 if name == "ppo_gae" else 1)


@pytest.mark.parametrize(("name", "start"), [("ppo_gae", 0.06), ("sppo", 0.69)])
def test_its_loss_falls_while_the_policy_learns(trainer, name, start):
    one = trainer(method=name, steps=24, prompts=16, group_size=8, minibatches=4, lr=1e-3, critic_lr=3e-3, lr_warmup=3)
    one.run()
    rows = tiny.history(one.folder.path)
    loss, reward = ([float(row[key]) for row in rows] for key in ("critic_loss", "reward"))
    assert sum(loss[-4:]) < 0.8 * sum(loss[:4])
    assert sum(reward[-4:]) / 4 > sum(reward[:2]) / 2 + 0.3
    explained = [float(row["explained_variance"] or "nan") for row in rows]
    assert abs(explained[0]) < 1e-6  # a critic that knows nothing
    assert max(explained) > 0.1


def test_one_response_per_prompt_is_enough(trainer):
    one = trainer(method="sppo", prompts=16, group_size=1, steps=7)
    one.run()  # and no warning that nothing is learnt
    assert one.without_signal == 0
    with pytest.raises(ValueError, match="group_size=1: grpo compares the responses to one prompt"):
        trainer(method="grpo", group_size=1)


def test_its_learning_rate(trainer):
    assert trainer(method="sppo", lr=1e-3).critic.optimizer.param_groups[0]["lr"] == pytest.approx(5e-3)
    one = trainer(method="sppo", critic_lr=2e-4)
    one.iterate()
    assert one.critic.optimizer.param_groups[0]["lr"] == 2e-4
    with pytest.raises(ValueError, match=re.escape("critic_lr=-1.0: must be 0 or a positive number")):
        resolve(Config(task="bandit", critic_lr=-1.0))
    assert trainer(method="sspo").critic is None


def test_a_toll_on_the_reward_is_refused_by_a_critic_of_success(trainer):
    one = trainer(method="sppo", beta=0.5, kl_in="reward")
    with torch.no_grad():
        for p in one.policy.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    with pytest.raises(ValueError, match="a critic of success rates needs rewards in"):
        one.iterate()


def run_of(folder: Path, name: str, **other: object) -> Config:
    return Config(**{**tiny.RUN, "method": name, "out": str(folder), **other})


@pytest.mark.parametrize("name", [*WITH_CRITIC, "conspo"])
def test_a_stopped_run_goes_on_to_the_same_end(tmp_path, name):
    whole, half = tmp_path / "whole", tmp_path / "half"
    Trainer(run_of(whole, name), quiet=True).run()
    Trainer(run_of(half, name), quiet=True, on_step=lambda row, one: setattr(one, "stop", one.step == 3)).run()
    Trainer(run_of(half, name, resume=True), quiet=True).run()
    one, two = tiny.outcome(whole), tiny.outcome(half)
    assert [key for key in one.keys() | two.keys() if one.get(key) != two.get(key)] == []
    written = {file.split("/")[-1] for file in one if file.endswith(".safetensors")}
    critics = {"critic.safetensors", "critic_optimizer.safetensors"} if name != "conspo" else set()
    assert written == {"model.safetensors", "optimizer.safetensors"} | critics


@pytest.mark.parametrize("broken", ["critic.safetensors", "critic_optimizer.safetensors"])
def test_a_checkpoint_without_its_critic_is_none(tmp_path, broken):
    whole, half = tmp_path / "whole", tmp_path / "half"
    Trainer(run_of(whole, "sppo"), quiet=True).run()
    shutil.copytree(whole, half)
    (half / "checkpoints" / "step-6" / broken).unlink()
    with pytest.warns(UserWarning, match=f"step-6 cannot be read .*{re.escape(broken)}.*; the checkpoint before"):
        Trainer(run_of(half, "sppo", resume=True), quiet=True).run()
    one, two = tiny.outcome(whole), tiny.outcome(half)
    assert [key for key in one.keys() | two.keys() if one.get(key) != two.get(key)] == []
    assert checkpoint.load(half / "checkpoints").critic == {}  # who only judges the policy does not ask for it
    assert json.loads((half / "config.json").read_text())["critic_lr"] == 0
