"""How good a policy is on held-out problems: shares with Wilson intervals, greedily and at temperature 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

from sspo_teach.policies.causal_lm import CausalLM
from sspo_teach.policies.sampling import GREEDY, Sampling
from sspo_teach.types import Prompts, Task

ROWS = 256  # responses generated at a time
SHOWN = 3  # responses kept as text


@dataclass(frozen=True)
class Share:
    """k of n with its 95 % Wilson interval."""

    k: int
    n: int

    @property
    def value(self) -> float:
        return self.k / self.n if self.n else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.k, self.n)

    def as_dict(self) -> dict[str, Any]:
        low, high = self.interval
        return {"k": self.k, "n": self.n, "share": self.value if self.n else None, "low": low, "high": high}


def wilson(k: int, n: int, z: float = 1.959963984540054) -> tuple[float, float]:
    """Wilson's score interval for a share of k in n (Wilson, 1927); (0, 1) when n is 0.

    >>> wilson(5, 10)
    (0.236593090512564, 0.763406909487436)
    """
    if not 0 <= k <= n:
        raise ValueError(f"k={k}: must lie between 0 and n={n}")
    if n == 0:
        return 0.0, 1.0
    p, z2 = k / n, z * z
    centre, spread = p + z2 / (2 * n), z * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    low, high = (centre - spread) / (1 + z2 / n), (centre + spread) / (1 + z2 / n)
    return low if k > 0 else 0.0, high if k < n else 1.0  # exact at the ends, where rounding is not


def evaluate(
    policy: CausalLM,
    task: Task,
    problems: int,
    *,
    max_new_tokens: int = 0,
    seed: int = 0,
    sampling: Sampling = Sampling(),  # noqa: B008
    batch: int = 0,
) -> dict[str, Any]:
    """Answer the first ``problems`` held-out problems once greedily and once sampled.

    Args:
        max_new_tokens: longest answer; 0 takes the task's.
        seed: of the sampled answers.
        sampling: of the sampled answers; here truncation by top-k or top-p is harmless.
        batch: answers that grow at a time; 0 takes 256.

    Returns:
        JSON-able: ``greedy`` and ``sampled``, each with shares ``correct``, ``format``, ``finished``,
        ``correct_given_format`` and ``correct_given_finished`` (k, n, share, low, high), the mean ``length`` and
        ``reward``, and ``samples``: the first few as text.
    """
    prompts = task.prompts(problems, rng=np.random.default_rng(0), split="test")
    generator = torch.Generator(policy.device).manual_seed(seed)
    length = max_new_tokens or task.max_new_tokens
    return {
        "greedy": _answers(policy, task, prompts, GREEDY, generator, length, batch or ROWS),
        "sampled": _answers(policy, task, prompts, sampling, generator, length, batch or ROWS),
    }


def _answers(
    policy: CausalLM,
    task: Task,
    prompts: Prompts,
    sampling: Sampling,
    generator: torch.Generator,
    length: int,
    batch: int,
) -> dict[str, Any]:
    parts: dict[str, list[torch.Tensor]] = {}
    texts: list[str] = []
    for start in range(0, len(prompts.tokens), batch):
        rows = slice(start, start + batch)
        out = policy.generate(
            prompts.tokens[rows].to(policy.device),
            prompts.mask[rows].to(policy.device),
            max_new_tokens=length,
            stop_ids=task.stop_ids,
            pad_id=task.pad_id,
            sampling=sampling,
            generator=generator,
        )
        scores = task.score(prompts.problems[rows], out.tokens, out.mask)
        found = {**scores.parts, "finished": ~out.truncated, "length": out.mask.sum(1), "reward": scores.rewards}
        for name, part in found.items():
            parts.setdefault(name, []).append(part.float().cpu())
        asked = zip(prompts.tokens[rows], prompts.mask[rows], strict=True)
        for (p, pm), t, m in islice(zip(asked, out.tokens, out.mask, strict=True), SHOWN - len(texts)):
            texts.append(task.decode(p[pm].tolist()) + " → " + task.decode(t[m].tolist()))
    whole = {name: torch.cat(part) for name, part in parts.items()}
    correct, form, finished = (whole[name] > 0 for name in ("correct", "format", "finished"))
    n = len(correct)
    shares = {
        "correct": Share(int(correct.sum()), n),
        "format": Share(int(form.sum()), n),
        "finished": Share(int(finished.sum()), n),
        "correct_given_format": Share(int((correct & form).sum()), int(form.sum())),
        "correct_given_finished": Share(int((correct & finished).sum()), int(finished.sum())),
    }
    return {
        **{name: share.as_dict() for name, share in shares.items()},
        "length": whole["length"].mean().item(),
        "reward": whole["reward"].mean().item(),
        "samples": texts,
    }
