"""Token gates against one sequence gate on real minibatches: the same split, with the model's own scores."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from sspo_teach.exact.decompose import Split, substitution_bound, token_and_sequence
from sspo_teach.policies.causal_lm import CausalLM
from sspo_teach.tensors import check_positive, log_ratio, masked_mean
from sspo_teach.types import Rollout


@torch.no_grad()
def projected_scores(
    policy: CausalLM, rollout: Rollout, *, directions: int = 64, temperature: float = 1.0, seed: int = 0
) -> Tensor:
    """⟨∇_θ log π of each response token, v⟩ for random v, (B, T, directions) float64; 0 on padding.

    The directions are Gaussian with variance 1/directions, so that inner products and norms are those of the scores
    themselves on average, with a relative error near √(2/directions) (Johnson and Lindenstrauss). A score along v is
    the derivative of log π along v, by central differences (relative error about 1e-4): two passes per direction
    instead of one backward pass per token. The policy is left as it is.
    """
    if directions < 1:
        raise ValueError(f"directions={directions}: must be at least 1")
    check_positive(temperature=temperature)
    probe = copy.deepcopy(policy).double()
    weights = list(probe.parameters())
    start = [weight.clone() for weight in weights]
    generator = torch.Generator().manual_seed(seed)
    size = torch.stack([weight.square().sum() for weight in start]).sum().sqrt().item()
    count = sum(weight.numel() for weight in start)
    step = 2e-3 * size / count**0.5  # of each weight; RMSNorm computes in float32, and smaller steps drown in that
    out = []
    for _ in range(directions):
        ways = [torch.randn(w.shape, generator=generator, dtype=torch.float64).to(w.device) for w in start]
        ends = []
        for sign in (1, -1):
            for weight, at, way in zip(weights, start, ways, strict=True):
                weight.copy_(at + sign * step * way)
            ends.append(probe.logp(rollout.tokens, rollout.prompt_mask, temperature=temperature))
        out.append((ends[0] - ends[1]) / (2 * step * directions**0.5))
    return torch.stack(out, 2).where(rollout.mask.bool().unsqueeze(2), 0.0)


def split(
    policy: CausalLM,
    rollout: Rollout,
    *,
    tau: float = 1.0,
    directions: int = 64,
    temperature: float = 1.0,
    seed: int = 0,
) -> tuple[Split, Tensor]:
    """``token_and_sequence`` of a minibatch that the policy has moved away from; and log ρ, (B, T).

    Args:
        policy: π_θ as it is now.
        rollout: a minibatch with the old log-probabilities, such as ``Trainer.stale_minibatch`` gives.
        tau: τ.
        directions: random projections of the scores.
        temperature: at which the minibatch was sampled.
        seed: of the projections.
    """
    with torch.no_grad():
        logp = policy.logp(rollout.tokens, rollout.prompt_mask, temperature=temperature)
    log_r = log_ratio(logp, rollout.logp_old, rollout.mask).double()
    scores = projected_scores(policy, rollout, directions=directions, temperature=temperature, seed=seed)
    return token_and_sequence(log_r, scores, rollout.mask, tau=tau), log_r


def cosines(found: Split, log_r: Tensor, mask: Tensor, advantages: Tensor, *, tau: float = 1.0) -> list[dict[str, Any]]:
    """One row per response, and where it comes from, for tables and figures; ``batch`` of a row None is the minibatch.

    Returns:
        rows with length; variance of log ρ; cosine of SAPO's direction with that of one sequence gate, and of the
        same with ρ w replaced by g(z); covariance, the covariance term's norm, and its bound, gap |ḡ − g(μ)| and its
        bound τ²V/4, each as a share of the token direction's norm or as it is; substitution, the bound on |w(ρ) − g(z)|
        at the widest token. The last row is the whole minibatch's gradient, Σ A · direction.
    """
    mask = mask.bool()
    z = log_r.where(mask, 0.0)
    mean = masked_mean(z, mask)
    variance = masked_mean((z - mean).square(), mask).squeeze(1)
    widest = substitution_bound(z, tau).where(mask, 0.0).amax(1)

    def cosine(x: Tensor, y: Tensor) -> Tensor:
        return torch.cosine_similarity(x, y, dim=-1)

    norm = found.token.norm(dim=1)
    columns = {
        "length": mask.sum(1).double(),
        "variance": variance,
        "cosine": cosine(found.exact, found.sequence),
        "cosine_in_log": cosine(found.token, found.sequence),
        "covariance": found.covariance.norm(dim=1),
        "covariance_bound": found.covariance_bound,
        "covariance_share": found.covariance.norm(dim=1) / norm,
        "gap": found.gap,
        "gap_bound": found.gap_bound,
        "substitution": widest,
    }
    some = mask.any(1)
    rows: list[dict[str, Any]] = [
        {"response": i, **{name: column[i].item() for name, column in columns.items()}}
        for i in some.nonzero().squeeze(1).tolist()
    ]
    A = advantages.double().view(-1, 1).where(some.unsqueeze(1), 0.0)
    whole = [(A * part).sum(0) for part in (found.exact, found.token, found.sequence)]
    rows.append(
        {
            "response": None,
            "length": mask.sum().item() / max(int(some.sum()), 1),
            "variance": variance[some].mean().item(),
            "cosine": cosine(whole[0], whole[2]).item(),
            "cosine_in_log": cosine(whole[1], whole[2]).item(),
        }
    )
    return rows
