"""From prompts to a ``Rollout``: sample, score the log-probabilities as training will, ask the task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sspo_teach.catalog import Method
from sspo_teach.objectives.regularizers import k1
from sspo_teach.policies.causal_lm import CausalLM
from sspo_teach.policies.engines import Engine, OwnEngine
from sspo_teach.policies.reference import Reference, Unadapted
from sspo_teach.policies.sampling import Sampling
from sspo_teach.tensors import masked_sum
from sspo_teach.training.config import Config
from sspo_teach.types import Prompts, Rollout, Task


@dataclass(frozen=True)
class Batch:
    """A rollout with what stands beside it: (B,) rewards as the task gave them, (B, T) entropy, and counts."""

    rollout: Rollout
    task_rewards: Tensor
    entropy: Tensor
    responses: int
    tokens: int
    resampled: int
    dropped: int


def collect(
    policy: CausalLM,
    reference: Reference | Unadapted | None,
    task: Task,
    method: Method,
    config: Config,
    step: int,
    clock: Callable[[str], AbstractContextManager[None]],
    *,
    engine: Engine | None = None,
    progress: float = 1.0,
) -> Batch:
    """Sample one iteration's batch. All chance comes from (seed, step), so a resumed run needs no saved generator.

    Args:
        engine: who samples; by default the policy itself.
        progress: of the run, in [0, 1]; a task may make its prompts harder with it.
    """
    engine = engine or OwnEngine(policy, config.generation_batch)
    with clock("sample"):
        rollout, entropy = _sample(engine, policy, task, progress, config, step, config.prompts, attempt=0)
        responses, tokens, resampled = len(rollout.mask), int(rollout.mask.sum()), 0
        for attempt in range(1, config.resample_limit + 1):
            rows = torch.tensor([]) if method.keep is None else (~method.keep(rollout)).nonzero().squeeze(1)
            if not len(rows):  # else whole groups
                break
            fresh, more = _sample(engine, policy, task, progress, config, step, len(rows) // config.group_size, attempt)
            rollout, entropy = _replace_rows(rollout, fresh, rows), entropy.index_copy(0, rows, more)
            responses, tokens = responses + len(rows), tokens + int(fresh.mask.sum())
            resampled += len(rows) // config.group_size
        rollout, entropy, dropped = _drop(rollout, entropy, method, config)
        task_rewards = rollout.rewards
        if method.reward is not None:
            rollout = replace(rollout, rewards=method.reward(rollout, task.max_new_tokens))
    with clock("score"):
        if not config.reuse_sampler_logp:
            rollout, entropy = rescored(policy, rollout, config)
        if reference is not None:
            with reference.scoring() as score:
                rollout = replace(rollout, logp_ref=score_rows(score, rollout, config)[0])
        if rollout.logp_ref is not None and config.kl_in == "reward":
            toll = config.beta * masked_sum(k1(rollout.logp_old, rollout.logp_ref, rollout.mask), rollout.mask)
            rollout = replace(rollout, rewards=rollout.rewards - toll.squeeze(1))
    if config.shuffle_rewards:
        order = torch.from_numpy(np.random.default_rng([config.seed, step, 2]).permutation(len(rollout.rewards)))
        rollout = replace(rollout, rewards=rollout.rewards[order])
    return Batch(rollout, task_rewards, entropy, responses, tokens, resampled, dropped)


def minibatches(rollout: Rollout, config: Config) -> list[Tensor]:
    """Row indices of each inner minibatch: whole groups, so that prompts are shared and contrasts stay whole."""
    groups = torch.arange(len(rollout.mask)).view(-1, config.group_size)
    return [rows.flatten() for rows in groups.chunk(config.minibatches)]


def micro_batches(rows: Tensor, config: Config) -> tuple[Tensor, ...]:
    """Cut a minibatch's rows into pieces that fit in memory."""
    return rows.split(config.micro_batch) if config.micro_batch else (rows,)


def forward(score: Callable[..., Tensor | tuple[Tensor, ...]], rollout: Rollout, config: Config) -> tuple[Tensor, ...]:
    """Apply ``policy.logp`` or ``policy.logp_and_entropy`` to one micro-batch; each result (B, T).

    Columns in which every response has ended are left out of the forward pass. Old, new and reference log-probabilities
    all come through here, over the same micro-batches: equal weights give equal bits, and the ratio is exactly 1.
    """
    width, used = rollout.prompt_mask.shape[1], rollout.mask.any(0).nonzero()
    length = int(used[-1]) + 1 if len(used) else 0  # not a count: what a tool wrote leaves a hole in the mask
    out = score(
        rollout.tokens[:, : width + max(length, 1)],
        rollout.prompt_mask,
        temperature=config.temperature,
        group_ids=rollout.group_ids if config.share_prompts else None,
    )
    pad = rollout.mask.shape[1] - max(length, 1)
    return tuple(torch.nn.functional.pad(x, (0, pad)) for x in (out if isinstance(out, tuple) else (out,)))


def score_rows(score: Callable[..., tuple[Tensor, ...]], rollout: Rollout, config: Config) -> tuple[Tensor, ...]:
    """``forward`` over all micro-batches of all minibatches, put together again."""
    parts = [forward(score, rollout.select(rows), config) for rows in _pieces(rollout, config)]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def _pieces(rollout: Rollout, config: Config) -> Iterator[Tensor]:
    for rows in minibatches(rollout, config):
        yield from micro_batches(rows, config)


def _sample(
    engine: Engine, policy: CausalLM, task: Task, progress: float, config: Config, step: int, n: int, attempt: int
) -> tuple[Rollout, Tensor]:
    """Responses to n training prompts, judged; and the entropy (B, T) at each token."""
    rng = np.random.default_rng([config.seed, step, 0, attempt])
    prompts = task.prompts(n, rng=rng, split="train", progress=progress)
    return sample(engine, policy.device, task, prompts, config, int(rng.integers(2**62)))


def sample(
    engine: Engine, device: torch.device, task: Task, prompts: Prompts, config: Config, seed: int
) -> tuple[Rollout, Tensor]:
    """A group of responses to each prompt, judged; and the entropy (B, T) at each token."""
    n, group = len(prompts.tokens), config.group_size
    generated = engine.generate(
        prompts.tokens.to(device),
        prompts.mask.to(device),
        max_new_tokens=task.max_new_tokens,
        stop_ids=task.stop_ids,
        pad_id=task.pad_id,
        sampling=Sampling(temperature=config.temperature),
        group_size=group,
        generator=torch.Generator(device).manual_seed(seed),
    )
    problems = tuple(problem for problem in prompts.problems for _ in range(group))
    scores = task.score(problems, generated.tokens, generated.mask)
    rows = torch.arange(n).repeat_interleave(group)
    rollout = Rollout(
        tokens=torch.cat([prompts.tokens[rows].to(device), generated.tokens], dim=1),
        prompt_mask=prompts.mask[rows].to(device),
        mask=generated.mask,
        logp_old=generated.logp,
        rewards=scores.rewards.to(device),
        group_ids=rows.to(device),
        truncated=generated.truncated,
        problems=problems,
        parts={name: part.to(device) for name, part in scores.parts.items()},
    )
    return rollout, generated.entropy


def rescored(policy: CausalLM, rollout: Rollout, config: Config) -> tuple[Rollout, Tensor]:
    """The rollout with ``logp_old`` as training will compute it, the sampler's kept beside; and the entropy (B, T)."""
    logp, entropy = score_rows(policy.logp_and_entropy, rollout, config)
    return replace(rollout, logp_old=logp, logp_sampler=rollout.logp_old), entropy


def _drop(rollout: Rollout, entropy: Tensor, method: Method, config: Config) -> tuple[Rollout, Tensor, int]:
    """Leave out groups that still have no signal, since their tokens dilute the mean; all stay where none has any."""
    if method.keep is None:
        return rollout, entropy, 0
    alive = method.keep(rollout)
    if alive.all() or not alive.any():
        return rollout, entropy, 0
    return rollout.select(alive), entropy[alive], int((~alive).sum()) // config.group_size


def _replace_rows(rollout: Rollout, fresh: Rollout, rows: Tensor) -> Rollout:
    """``rollout`` with ``rows`` taken from ``fresh``; prompts of both are brought to one width on the left."""
    width = max(rollout.prompt_mask.shape[1], fresh.prompt_mask.shape[1])
    rollout, fresh = _widen(rollout, width), _widen(fresh, width)
    put = lambda old, new: old.index_copy(0, rows, new)  # noqa: E731
    problems = list(rollout.problems)
    for row, problem in zip(rows.tolist(), fresh.problems, strict=True):
        problems[row] = problem
    return replace(
        rollout,
        tokens=put(rollout.tokens, fresh.tokens),
        prompt_mask=put(rollout.prompt_mask, fresh.prompt_mask),
        mask=put(rollout.mask, fresh.mask),
        logp_old=put(rollout.logp_old, fresh.logp_old),
        rewards=put(rollout.rewards, fresh.rewards),
        truncated=put(rollout.truncated, fresh.truncated),
        problems=tuple(problems),
        parts={name: put(part, fresh.parts[name]) for name, part in rollout.parts.items()},
    )


def _widen(rollout: Rollout, width: int) -> Rollout:
    pad = (width - rollout.prompt_mask.shape[1], 0)
    return replace(
        rollout,
        tokens=torch.nn.functional.pad(rollout.tokens, pad),  # what stands on masked positions is never read
        prompt_mask=torch.nn.functional.pad(rollout.prompt_mask, pad),
    )
