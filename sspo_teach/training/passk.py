"""Many answers to every held-out problem: Pass@k, maj@k, and how far an answer's form explains its rightness."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sspo_teach.policies.causal_lm import CausalLM
from sspo_teach.policies.engines import Engine, OwnEngine
from sspo_teach.policies.sampling import Sampling
from sspo_teach.types import Task

RESAMPLES = 2000


def pass_at(n: int, c: int, k: int) -> float:
    """The unbiased estimate of Pass@k from n answers of which c are right, 1 − C(n−c, k)/C(n, k).

    Chen et al., 2021, arXiv 2107.03374, equation 1. The plug-in 1 − (1 − c/n)^k is biased low.

    >>> pass_at(4, 1, 2)
    0.5
    """
    if not 0 <= c <= n:
        raise ValueError(f"c={c}: must lie between 0 and n={n}")
    if not 1 <= k <= n:
        raise ValueError(f"k={k}: must lie between 1 and n={n}, the answers that there are")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def majority(finals: Sequence[Hashable | None], right: Sequence[bool]) -> float:
    """Whether the most frequent answer is right; where some are equally frequent, the share of them that is.

    Args:
        finals: what each response answers; None has no vote.
        right: whether each is right.
    """
    votes = Counter(final for final in finals if final is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    verdict = {final: is_right for final, is_right in zip(finals, right, strict=True) if final is not None}
    first = [final for final, count in votes.items() if count == most]
    return sum(bool(verdict[final]) for final in first) / len(first)


def bootstrap(top: np.ndarray, bottom: np.ndarray | None = None, seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of Σtop/Σbottom when problems are drawn again with replacement.

    The k answers to one problem are no independent draws, so an interval for a share of all answers must resample
    problems and not answers.

    Args:
        top: (n,) per problem.
        bottom: (n,) per problem; by default ones, which makes it a mean.
    """
    bottom = np.ones_like(top, dtype=float) if bottom is None else bottom
    rows = np.random.default_rng(seed).integers(len(top), size=(RESAMPLES, len(top)))
    with np.errstate(invalid="ignore"):
        shares = top[rows].sum(1) / bottom[rows].sum(1)
    shares = shares[np.isfinite(shares)]
    low, high = np.quantile(shares, [0.025, 0.975]) if len(shares) else (0.0, 1.0)
    return float(low), float(high)


def sample_many(
    policy: CausalLM,
    task: Task,
    problems: int,
    k: int,
    *,
    max_new_tokens: int = 0,
    seed: int = 0,
    sampling: Sampling = Sampling(),  # noqa: B008
    batch: int = 256,
    engine: Engine | None = None,
) -> dict[str, Any]:
    """Answer each of the first ``problems`` held-out problems k times.

    Args:
        batch: responses that grow at a time.
        engine: who samples; by default the policy itself.

    Returns:
        JSON-able: ``n`` problems, ``k``, ``sampling``, and by name a dict with ``share``, ``low`` and ``high``, 95 %
        intervals by a bootstrap over problems: ``pass@1``, ``pass@2``, … ``pass@k``, ``maj@k`` (where the task tells
        what a response answers), ``format``, ``truncated``, ``correct_given_format``; and the mean ``length``.
    """
    prompts = task.prompts(problems, rng=np.random.default_rng(0), split="test")
    engine = engine or OwnEngine(policy, batch)
    out = engine.generate(
        prompts.tokens.to(policy.device),
        prompts.mask.to(policy.device),
        max_new_tokens=max_new_tokens or task.max_new_tokens,
        stop_ids=task.stop_ids,
        pad_id=task.pad_id,
        sampling=sampling,
        group_size=k,
        generator=torch.Generator(policy.device).manual_seed(seed),
    )
    repeated = tuple(problem for problem in prompts.problems for _ in range(k))
    scores = task.score(repeated, out.tokens, out.mask)
    n = len(prompts.tokens)

    def table(part: Tensor) -> np.ndarray:
        return part.double().cpu().numpy().reshape(n, k)

    correct, form = table(scores.parts["correct"]), table(scores.parts["format"])
    right = correct.sum(1).astype(int)
    found = {}
    for j in sorted({1, k} | {2**i for i in range(1, k.bit_length()) if 2**i <= k}):
        found[f"pass@{j}"] = _mean(np.array([pass_at(k, int(c), j) for c in right]))
    if final := getattr(task, "final", None):
        said = [final(row[keep].tolist()) for row, keep in zip(out.tokens.cpu(), out.mask.bool().cpu(), strict=True)]
        votes = [majority(said[i * k : (i + 1) * k], list(correct[i] > 0)) for i in range(n)]
        found[f"maj@{k}"] = _mean(np.array(votes))
    found["format"] = _mean(form.mean(1))
    found["truncated"] = _mean(table(out.truncated).mean(1))
    both = (correct * form).sum(1)
    share = float(both.sum() / form.sum()) if form.any() else None
    low, high = bootstrap(both, form.sum(1)) if form.any() else (0.0, 1.0)
    found["correct_given_format"] = {"share": share, "low": low, "high": high}
    settings = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p, "seed": seed}
    length = float(out.mask.sum(1).float().mean())
    return {"n": n, "k": k, "sampling": settings, **found, "length": length}


def _mean(values: np.ndarray) -> dict[str, float | None]:
    low, high = bootstrap(values)
    return {"share": float(values.mean()), "low": low, "high": high}
