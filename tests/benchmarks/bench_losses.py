"""What an objective costs, forward and backward, against verl's function of the same rule: time and peak memory.

    OMP_NUM_THREADS=1 python tests/benchmarks/bench_losses.py

The environment is that of tests/parity/test_verl.py. 256 responses of up to 1024 tokens in float32, on the CPU; the two
sides take turns, so that a busy machine is busy for both, and the ratios of their medians are what counts. Both do what
they do in training: ours checks its input, verl's computes its metrics. Memory is the most that was allocated at once
beyond the inputs, as torch's allocator reports it. Clip-Cov and KL-Cov are left out: ours choose their tokens before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from sspo_teach import method

B, T = 256, 1024
Step = Callable[[], None]

PAIRS = {  # our method, verl's loss_mode, its aggregation
    "grpo:verl": ("vanilla", "token-mean"),
    "gspo:verl": ("gspo", "token-mean"),
    "gmpo:verl": ("geo_mean", "ignored"),
    "sapo:verl": ("sapo", "ignored"),
    "cispo:verl": ("cispo", "token-mean"),
    "dro": ("dro", "token-mean"),
    "gpg": ("gpg", "token-mean"),
    "dppo_tv:verl": ("dppo_tv", "token-mean"),
    "dppo_kl:verl": ("dppo_kl", "token-mean"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    warnings.simplefilter("ignore")
    print(json.dumps(measure(asked.rounds), indent=1))


def measure(rounds: int) -> dict[str, object]:
    """Per method: our seconds and megabytes over verl's; and the medians over methods."""
    found = {name: compare(name, rounds) for name in PAIRS}
    return {
        **found,
        "median": {kind: round(statistics.median(each[kind] for each in found.values()), 2) for kind in RATIOS},
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


RATIOS = ("time", "memory")


def compare(name: str, rounds: int) -> dict[str, float]:
    sides = {"ours": ours(name), "verl": verl(*PAIRS[name])}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for i in range(rounds + 2):
        for side, step in sides.items():
            began = time.perf_counter()
            step()
            if i >= 2:
                seconds[side].append(time.perf_counter() - began)
    took = {side: statistics.median(times) for side, times in seconds.items()}
    held = {side: peak(step) for side, step in sides.items()}
    return {
        "time": round(took["ours"] / took["verl"], 2),
        "memory": round(held["ours"] / held["verl"], 2),
        **{f"{side}_ms": round(1e3 * took[side], 1) for side in sides},
        **{f"{side}_MB": round(held[side] / 1e6, 1) for side in sides},
    }


def peak(step: Step) -> int:
    """The most bytes allocated at once during ``step``, beyond what was there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    now = most = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ratios within e^±0.6, lengths from 1 to T, one advantage per response."""
    chance = torch.Generator().manual_seed(0)
    logp_old = -torch.rand(B, T, generator=chance) * 3
    logp = logp_old + 0.2 * torch.randn(B, T, generator=chance)
    mask = torch.arange(T) < torch.randint(1, T + 1, (B, 1), generator=chance)
    return logp, logp_old, torch.randn(B, 1, generator=chance), mask


def ours(name: str) -> Step:
    row = method(name)
    logp, logp_old, advantages, mask = batch()
    leaf = logp.requires_grad_()
    objective = partial(row.objective, normalize=row.normalize(T))
    return lambda: grad(leaf, objective(leaf, logp_old, advantages, mask))


def verl(loss_mode: str, aggregation: str) -> Step:
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import ActorConfig, PolicyLossConfig

    extra = PolicyLossConfig(dro_beta=0.1)
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=extra)
    rule = get_policy_loss_fn(loss_mode)
    logp, logp_old, advantages, mask = batch()
    leaf, expanded = logp.requires_grad_(), advantages.expand_as(logp).contiguous()
    return lambda: grad(leaf, rule(logp_old, leaf, expanded, mask, aggregation, config)[0])


def grad(leaf: Tensor, loss: Tensor) -> None:
    leaf.grad = None
    loss.backward()


if __name__ == "__main__":
    main()
