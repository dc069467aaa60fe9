"""What a step looked like, read off its credit: the same numbers for every method, since all say only that."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from sspo_teach.objectives.advantages import has_signal
from sspo_teach.tensors import log_ratio, stale
from sspo_teach.types import Rollout

COLUMNS: Mapping[str, str] = {
    "step": "iterations so far",
    "responses": "sampled responses so far, resampled groups included",
    "tokens": "sampled response tokens so far",
    "updates": "optimizer updates so far",
    "rejected": "updates skipped so far: their batch was too stale, or their gradient not finite (float16 overflowed)",
    "resampled": "prompts sampled again in this iteration because their group had no signal",
    "dropped": "groups left out of this iteration because they still had no signal",
    "reward": "mean reward of the samples, as the task gave it",
    "correct": "share of correct samples",
    "format": "share of samples in the right form",
    "finished": "share of samples that ended by themselves",
    "dead_groups": "share of groups with all rewards equal, penalties included: they teach nothing",
    "length": "mean response length in tokens",
    "empty": "responses without any token; excluded from the loss",
    "repetition": "share of response tokens that repeat their predecessor",
    "loops": "share of 4-token phrases that stood before in the same response (seq-rep-4, arXiv 1908.04319)",
    "entropy": "mean entropy of the next-token distribution, nats",
    "grad_norm": "mean gradient norm of the updates, before it was limited",
    "loss": "mean loss of the updates; 0 in value is normal on centred advantages, its gradient is what counts",
    "ratio_error": "largest |ratio − 1| before the first update; 0 unless scoring and training differ",
    "sampler_mean": "mean of π/π_sampler per token before the first update: 1 for one and the same program",
    "sampler_sd": "its standard deviation",
    "sampler_off": "share of tokens where it lies outside [0.9, 1.1]",
    "ratio_q01": "1 % quantile of the ratios that were trained on",
    "ratio_q50": "median ratio",
    "ratio_q99": "99 % quantile of the ratios",
    "moved": "share of tokens with |ratio − 1| > 0.1: the gate is tested only here",
    "outside_band": "share of tokens with a ratio outside [0.8, 1.2]; not the same as removed gradient",
    "silenced": "share of tokens with an advantage and no gradient at all",
    "removed_pos": "share of the signal ρ|A| that the gate removed, A > 0; negative where it amplified",
    "removed_neg": "the same, A < 0",
    "removed_corrective": "the same, tokens on their way back (A > 0 and ρ < 1, or A < 0 and ρ > 1)",
    "removed_extending": "the same, tokens on their way out (A > 0 and ρ > 1, or A < 0 and ρ < 1)",
    "coefficient_q01": "1 % quantile of the weight that multiplies A ∇log π",
    "coefficient_q50": "median weight",
    "coefficient_q99": "99 % quantile of the weight",
    "kl_k1": "mean log π_old − log π, an estimate of KL(old ‖ new) per token, over the updates",
    "kl_k3": "the same by ρ − 1 − log ρ, which is never negative",
    "kl_ref": "mean k3 estimate of KL(new ‖ reference) per token; empty without a reference",
    "ess": "effective sample size of the responses' importance weights, as a share of their number",
    "stale": "share of tokens with |log ratio| > 20, whose gradient is 0 for every method",
    "probe_norm": "norm of the mean gradient of fixed prompts, right after the updates; empty where it was not taken",
    "probe_variance": "trace of the covariance of those prompts' gradients: how far they disagree, chance included",
    "probe_noise": "probe_variance over the squared probe_norm, which no scale of the loss can change",
    "probe_kl": "mean k3 estimate of KL(old ‖ new) per token on those prompts: what the updates moved",
    "critic_loss": "mean loss of the critic's updates; empty without a critic",
    "explained_variance": "1 − Var(target − guess)/Var(target) before them; empty where all rewards were equal, too",
}
"""Columns of history.csv and what they mean."""


def of_samples(rollout: Rollout, task_rewards: Tensor, entropy: Tensor) -> dict[str, float]:
    """What the sampled batch alone says. ``task_rewards`` (B,) before any shaping, ``entropy`` (B, T)."""
    mask, part = rollout.mask, rollout.parts
    response = rollout.tokens[:, rollout.prompt_mask.shape[1] :]
    pairs = mask[:, 1:] & mask[:, :-1]
    return {
        "reward": task_rewards.mean().item(),
        "correct": part["correct"].mean().item(),
        "format": part["format"].mean().item(),
        "finished": 1 - rollout.truncated.float().mean().item(),
        "dead_groups": 1 - has_signal(rollout.rewards, rollout.group_ids).float().mean().item(),
        "length": mask.sum(1).float().mean().item(),
        "empty": (~mask.any(1)).sum().item(),
        "repetition": _share((response[:, 1:] == response[:, :-1])[pairs]),
        "loops": _loops(response, mask),
        "entropy": _mean(entropy[mask]),
    }


def of_sampler(rollout: Rollout, logp: Tensor) -> dict[str, float]:
    """How far ``logp`` (B, T), the training pass before any update, is from what the sampler drew from."""
    drawn = rollout.logp_old if rollout.logp_sampler is None else rollout.logp_sampler
    ratio = log_ratio(logp, drawn, rollout.mask).exp()[rollout.mask]
    return {
        "sampler_mean": _mean(ratio) if ratio.numel() else 1.0,
        "sampler_sd": ratio.std(correction=0).item() if ratio.numel() else 0.0,
        "sampler_off": _share((ratio < 0.9) | (ratio > 1.1)),
    }


def summarize(
    credit: Tensor, rollout: Rollout, logp: Tensor, advantages: Tensor, aggregation: Tensor
) -> dict[str, float]:
    """What the updates did.

    Args:
        credit: (B, T), −∂L/∂logp of the objective alone, at the time each minibatch was trained.
        rollout: its rows, in the same order; a row appears once per epoch.
        logp: (B, T) that the credit was taken at.
        advantages: (B, 1) or (B, T).
        aggregation: (B, T), the normalizer's factor of each token (``aggregation_of``).
    """
    mask = rollout.mask
    log_r = log_ratio(logp, rollout.logp_old, mask)
    ratio = log_r.exp()
    signed = advantages.expand_as(ratio)
    live = mask & (signed != 0)
    weight = (credit / (aggregation * signed))[live]  # what multiplies A ∇log π of each token
    r, a = ratio[live], signed[live]
    extending = (r - 1) * a > 0
    importance = log_r.sum(1)[mask.any(1)].softmax(0)
    r_all = ratio[mask]
    out = {
        **_quantiles("ratio", r_all),
        "moved": _share((r_all - 1).abs() > 0.1),
        "outside_band": _share((r_all < 0.8) | (r_all > 1.2)),
        "silenced": _share(weight == 0),
        "removed_pos": _removed(weight, r, a, a > 0),
        "removed_neg": _removed(weight, r, a, a < 0),
        "removed_corrective": _removed(weight, r, a, (r - 1) * a < 0),
        "removed_extending": _removed(weight, r, a, extending),
        **_quantiles("coefficient", weight),
        "kl_k1": _mean(-log_r[mask]),
        "kl_k3": behaviour_kl(logp, rollout),
        "ess": (1 / (importance.square().sum() * len(importance))).item() if len(importance) else 0.0,
        "stale": stale(logp, rollout.logp_old, mask).item(),
    }
    if rollout.logp_ref is not None:
        u = log_ratio(logp, rollout.logp_ref, mask)
        out["kl_ref"] = _mean(((-u).expm1() + u)[mask])
    return out


def behaviour_kl(logp: Tensor, rollout: Rollout) -> float:
    """Mean k3 estimate of KL(old ‖ new) over the response tokens: how stale the batch has become."""
    log_r = log_ratio(logp, rollout.logp_old, rollout.mask)[rollout.mask]
    return _mean(log_r.expm1() - log_r)


def aggregation_of(normalize: Callable[..., Tensor], mask: Tensor) -> Tensor:
    """∂normalize(x)/∂x, (B, T): the factor that a normalizer puts on each token."""
    x = torch.ones(mask.shape, device=mask.device, requires_grad=True)
    normalize(x, mask).backward()
    return torch.zeros_like(x) if x.grad is None else x.grad


def _loops(response: Tensor, mask: Tensor) -> float:
    """1 − different 4-grams/4-grams of a response, over all responses; 0 where none is long enough."""
    if mask.shape[1] < 4:
        return 0.0
    pairs = _numbered(response[:, :-1], response[:, 1:])  # twice two, since rows of four are slow to compare
    phrases = _numbered(pairs[:, :-2], pairs[:, 2:])
    rows = torch.arange(len(mask), device=mask.device).unsqueeze(1).expand_as(phrases)
    found = _numbered(rows, phrases)[mask.unfold(1, 4, 1).all(-1)]
    return 1 - len(found.unique()) / len(found) if len(found) else 0.0


def _numbered(a: Tensor, b: Tensor) -> Tensor:
    """One number for each different pair (aᵢ, bᵢ) of numbers from 0 on."""
    return (a * (b.max() + 1) + b).unique(return_inverse=True)[1]


def _removed(weight: Tensor, ratio: Tensor, advantage: Tensor, where: Tensor) -> float:
    """1 − Σ|A|·weight / Σ|A|·ρ over some tokens; 0 where there are none."""
    whole = (advantage.abs() * ratio)[where].sum()
    return 0.0 if whole == 0 else (1 - (advantage.abs() * weight)[where].sum() / whole).item()


def _share(x: Tensor) -> float:
    return _mean(x.float())


def _mean(x: Tensor) -> float:
    return x.mean().item() if x.numel() else 0.0


def _quantiles(name: str, x: Tensor) -> dict[str, float]:
    if not x.numel():
        return {f"{name}_q{q:02d}": 0.0 for q in (1, 50, 99)}
    ordered = x.float().sort().values
    return {f"{name}_q{q:02d}": ordered[min(len(x) - 1, len(x) * q // 100)].item() for q in (1, 50, 99)}
