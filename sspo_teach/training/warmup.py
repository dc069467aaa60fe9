"""A supervised start for the tiny model, as pretraining is for a real one; cached, and reloaded bit for bit."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import deque
from pathlib import Path

import numpy as np
import torch
from tqdm.auto import tqdm

from sspo_teach.policies.causal_lm import CausalLM, load_policy
from sspo_teach.types import Task

BATCH = 256
PEAK_LR = 3e-3
RISE = 20  # steps over which the rate rises to its peak
WINDOW = 10  # batches that the accuracy is averaged over


def cache_folder() -> Path:
    """Where warmed models are kept: ``$SSPO_TEACH_CACHE``, or a folder in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SSPO_TEACH_CACHE") or Path(base) / "sspo_teach")


def warmed(
    policy: CausalLM, task: Task, steps: int, *, seed: int, label: str, target: float = 1.0, quiet: bool = False
) -> CausalLM:
    """``policy`` after ``steps`` of ``warm_up``, from the cache where the same warm-up was made before.

    Args:
        label: names the task with its options; it is part of the cache key, beside everything else that matters.
    """
    start = hashlib.sha256()
    for name, value in policy.model.state_dict().items():
        start.update(name.encode() + value.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    key = json.dumps([label, steps, target, seed, BATCH, PEAK_LR, torch.__version__, start.hexdigest()])
    folder = cache_folder() / f"warm-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if not (folder / "config.json").exists():
        warm_up(policy, task, steps, seed=seed, target=target, quiet=quiet)
        aside = folder.with_name(f".{folder.name}-{os.getpid()}")
        policy.save(aside)
        (aside / "key.json").write_text(key)
        try:
            aside.rename(folder)
        except OSError:  # another run was faster
            shutil.rmtree(aside)
    dtype = next(policy.model.parameters()).dtype
    return load_policy(folder, device=str(policy.device), dtype=dtype)


def warm_up(policy: CausalLM, task: Task, steps: int, *, seed: int, target: float = 1.0, quiet: bool = False) -> None:
    """Train ``policy`` in place to imitate right answers to training problems: AdamW, cross-entropy per token.

    It takes ``steps`` steps at most, and ends as soon as the mean probability of a right answer, which is the accuracy
    of samples, reaches ``target`` over the last few batches: some weights learn to add in half the steps of others.

    The learning rate stays large to the end on purpose. A rate that falls to 0 lets the weights settle in a narrow
    valley, from which the noisy steps of RL throw them out: measured here, greedy accuracy then only falls.
    """
    solved: deque[float] = deque(maxlen=WINDOW)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=PEAK_LR, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / RISE))
    for step in tqdm(range(steps), desc="warm-up", unit="step", disable=quiet, leave=False):
        prompts = task.prompts(BATCH, rng=np.random.default_rng([seed, step, 1]), split="train")
        answers = task.answers(prompts.problems)
        length = max(map(len, answers))
        padded = [ids + [task.pad_id] * (length - len(ids)) for ids in answers]
        mask = torch.tensor([[True] * len(ids) + [False] * (length - len(ids)) for ids in answers])
        tokens = torch.cat([prompts.tokens, torch.tensor(padded)], dim=1).to(policy.device)
        mask = mask.to(policy.device)
        logp = policy.logp(tokens, prompts.mask.to(policy.device))
        loss = -logp[mask].mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        solved.append(logp.detach().where(mask, 0.0).sum(1).exp().mean().item())
        if len(solved) == WINDOW and sum(solved) / WINDOW >= target:
            break
    optimizer.zero_grad(set_to_none=True)
