"""Expected gradients by tables against the plain way: one call of the objective and one backward pass per response.

    python tests/benchmarks/bench_exact.py

Both give the mean and the trace of the covariance under population advantages, in float64, and must agree. The sides
take turns; the ratio of medians is what counts, never the seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import torch

from sspo_teach import METHODS
from sspo_teach.exact import moments
from sspo_teach.exact.problem import Problem, drifted, problem
from sspo_teach.objectives.normalize import sequence_sum

LEAST = 20.0
"""Times faster than the loop, or the benchmark fails."""


def batched(here: Problem, name: str) -> tuple[torch.Tensor, float]:
    found = moments.of(here, METHODS[name], normalize=sequence_sum)
    return found.mean, found.trace


def looped(here: Problem, name: str) -> tuple[torch.Tensor, float]:
    """Response after response through the table's log-softmax."""
    tree, objective = here.tree, METHODS[name].objective
    chance = here.chances / tree.prompts
    baseline = torch.zeros(tree.prompts, dtype=torch.float64).index_add(0, tree.prompt, here.chances * here.rewards)
    mean, second = torch.zeros_like(here.truth), 0.0
    for y in range(tree.size):
        logits = here.new.at(here.new.vector).logits.clone().requires_grad_()
        L = int(tree.lengths[y])
        logp = logits.log_softmax(1)[tree.nodes[y, :L], tree.tokens[y, :L]].unsqueeze(0)
        A = (here.rewards[y] - baseline[tree.prompt[y]]).view(1, 1)
        loss = objective(logp, here.logp_old[y : y + 1, :L], A, torch.ones(1, L), normalize=sequence_sum)
        (g,) = torch.autograd.grad(-loss, logits)
        mean = mean + chance[y] * g.flatten()
        second += (chance[y] * g.square().sum()).item()
    return mean, second - mean.square().sum().item()


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(name: str, letters: int, length: int, turns: int) -> dict[str, object]:
    here = drifted(problem(letters=letters, length=length), "random", 0.1)
    a, b = batched(here, name), looped(here, name)  # also the warm-up
    error = max((a[0] - b[0]).abs().max().item(), abs(a[1] - b[1]))
    assert error < 1e-12, error
    times: dict[str, list[float]] = {"batched": [], "looped": []}
    for _ in range(turns):
        times["batched"].append(seconds(lambda: batched(here, name)))
        times["looped"].append(seconds(lambda: looped(here, name)))
    median = {side: statistics.median(own) for side, own in times.items()}
    return {
        "method": name,
        "responses": here.tree.size,
        "median_seconds": {side: round(value, 5) for side, value in median.items()},
        "times_faster": round(median["looped"] / median["batched"], 1),
        "largest_difference": error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    found = [
        measure("sspo", letters, length, asked.turns)
        for letters, length in ((3, 4), (3, 6))  # 242 and 2186 responses
    ]
    print(json.dumps({"results": found, "threads": asked.threads, "torch": torch.__version__}, indent=1))
    if any(result["times_faster"] < LEAST for result in found):  # type: ignore[operator]
        sys.exit(f"slower than {LEAST:g} times the loop")


if __name__ == "__main__":
    main()
