"""The largest sum of allocations that lived together while something ran."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def allocated(act: Callable[[], object], *, cuda: bool = False) -> int:
    """Bytes above the start at the highest moment, on the CPU or, where ``cuda``, on the GPU.

    On the CPU every allocation of torch is seen, inside its kernels too; what lay there before is not counted, nor what
    of it is freed. On a GPU it is ``torch.cuda.max_memory_allocated`` less what was allocated before.
    """
    if cuda:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        act()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        act()
    recorded = seen.profiler.kineto_results.events()  # type: ignore[union-attr]
    events = sorted((event.start_ns(), event.nbytes()) for event in recorded if event.name() == "[memory]")
    now = most = 0
    for _, change in events:
        now += change
        most = max(most, now)
    return most
