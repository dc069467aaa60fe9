"""Critics: what a method knows of a prompt, or of a prefix, before it sees the reward.

A critic fills ``rollout.values`` before advantages are taken, and learns from the rollout once the policy has: a step's
own rewards never make its own baseline. ``prompt_critic`` and ``token_critic`` are networks, a copy of the policy's
backbone under a linear head; ``SuccessTracker`` keeps two numbers per prompt.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sspo_teach.objectives.critic import GAMMA, LAMBDA, filled, gae_of, value_loss
from sspo_teach.tensors import check_between, check_positive
from sspo_teach.types import Rollout


class Critic(Protocol):
    """Guesses rewards. ``model`` and ``optimizer`` are all its state; a checkpoint holds both."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    def values(self, rollout: Rollout) -> Tensor:
        """(B,) or (B, T), without gradient: what the method's advantage makes of ``rollout.values``."""
        ...

    def update(self, rollout: Rollout, minibatches: Sequence[Tensor]) -> dict[str, float]:
        """One optimizer step on each of the row sets; ``critic_loss`` and ``explained_variance`` before them."""
        ...


Look = Callable[["ValueModel", Rollout], Tensor]
Lesson = Callable[[Tensor, Rollout], tuple[Tensor, Tensor, Tensor]]


class NetworkCritic:
    """A value network and what it is taught.

    Args:
        policy: a ``CausalLM``; its backbone is copied, itself it is left alone.
        look: (model, rollout) → values (B,) or (B, T), with gradient.
        lesson: (values, rollout) → losses, guesses and targets, each (n,), one entry per response or response token.
        lr: of AdamW, constant, without weight decay.
        micro_batch: responses per pass; 0 takes all. Changes memory, never the gradient.
        max_grad_norm: the gradient's norm is limited to this; 0 leaves it as it is.
    """

    def __init__(
        self, policy: Any, look: Look, lesson: Lesson, *, lr: float, micro_batch: int = 0, max_grad_norm: float = 1.0
    ) -> None:
        check_positive(lr=lr)
        self.look, self.lesson = look, lesson
        self.micro_batch, self.max_grad_norm = micro_batch, max_grad_norm
        self.model = ValueModel(policy.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, weight_decay=0.0, fused=True)

    @torch.no_grad()
    def values(self, rollout: Rollout) -> Tensor:
        return torch.cat([self.look(self.model, rollout.select(rows)) for rows in self._pieces(rollout)])

    def update(self, rollout: Rollout, minibatches: Sequence[Tensor]) -> dict[str, float]:
        _, guesses, targets = self.lesson(filled(rollout), rollout)
        losses = [self._step(rollout.select(rows)) for rows in minibatches]
        found = {"critic_loss": sum(losses) / max(len(losses), 1)}
        spread = targets.var(correction=0)
        if spread > 0:  # of equal rewards there is nothing to explain
            found["explained_variance"] = (1 - (targets - guesses).var(correction=0) / spread).item()
        return found

    def _step(self, batch: Rollout) -> float:
        pieces = [batch.select(rows) for rows in self._pieces(batch)]
        entries = len(batch.mask) if filled(batch).ndim == 1 else int(batch.mask.sum())
        total = 0.0
        for part in pieces:
            losses, _, _ = self.lesson(self.look(self.model, part), part)
            loss = losses.sum() / max(entries, 1)
            loss.backward()
            total += loss.item()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm or torch.inf)
        if norm.isfinite():
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total

    def _pieces(self, rollout: Rollout) -> tuple[Tensor, ...]:
        rows = torch.arange(len(rollout.mask), device=rollout.mask.device)
        return rows.split(self.micro_batch) if self.micro_batch else (rows,)


class ValueModel(nn.Module):
    """The backbone of a transformers language model, copied, under a linear head that starts at 0: every guess is 0."""

    def __init__(self, language_model: Any) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(language_model.base_model).eval().requires_grad_(True)
        weight = next(self.backbone.parameters())
        self.head = nn.Linear(language_model.config.get_text_config().hidden_size, 1).to(weight)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Values (B, N) after each of the (B, N) tokens, left- or right-padded as ``mask`` says."""
        hidden = self.backbone(
            input_ids=tokens,
            attention_mask=None if bool(mask.all()) else mask.long(),
            position_ids=(mask.long().cumsum(-1) - 1).clamp(min=0),
            use_cache=False,
        ).last_hidden_state
        return self.head(hidden).squeeze(-1)


def prompt_values(model: ValueModel, rollout: Rollout) -> Tensor:
    """v(x), (B,): read at the last prompt token, from the prompt alone, once per prompt."""
    ids, group = rollout.group_ids.unique(return_inverse=True)
    first = torch.full_like(ids, len(group)).scatter_reduce(
        0, group, torch.arange(len(group), device=ids.device), "amin", include_self=True
    )
    width = rollout.prompt_mask.shape[1]
    return model(rollout.tokens[first, :width], rollout.prompt_mask[first])[:, -1][group]


def success_lesson(values: Tensor, rollout: Rollout) -> tuple[Tensor, Tensor, Tensor]:
    """SPPO's: binary cross-entropy of σ(v) and R, least where σ(v) is the success rate; gradient σ(v) − R."""
    rewards = rollout.rewards.to(values)
    outside = (rewards < 0) | (rewards > 1)
    if outside.any():
        raise ValueError(
            f"rewards holds {rewards[outside][0].item():g}: a critic of success rates needs rewards in [0, 1]; "
            "take another method, or leave out what adds to the reward or subtracts from it"
        )
    losses = nn.functional.binary_cross_entropy_with_logits(values, rewards, reduction="none")
    return losses, values.sigmoid(), rewards


def prompt_critic(policy: Any, *, lr: float, micro_batch: int = 0, max_grad_norm: float = 1.0) -> NetworkCritic:
    """SPPO's critic (arXiv 2604.08865): one success rate per prompt."""
    return NetworkCritic(
        policy, prompt_values, success_lesson, lr=lr, micro_batch=micro_batch, max_grad_norm=max_grad_norm
    )


def token_values(model: ValueModel, rollout: Rollout) -> Tensor:
    """V of the prefix before each response token, (B, T); 0 on padding."""
    width, length = rollout.prompt_mask.shape[1], max(int(rollout.mask.sum(1).max()), 1)
    seen = torch.cat([rollout.prompt_mask, rollout.mask[:, : length - 1]], dim=1)
    values = model(rollout.tokens[:, : width + length - 1], seen)[:, width - 1 :]
    return nn.functional.pad(values, (0, rollout.mask.shape[1] - length)).where(rollout.mask, 0.0)


def return_lesson(
    values: Tensor, rollout: Rollout, *, gamma: float, lam: float, clip: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """PPO's: half the squared distance to the return A + V of the values that the rollout was judged by."""
    old, returns = filled(rollout)[rollout.mask], gae_of(rollout, gamma=gamma, lam=lam)[1][rollout.mask]
    guesses = values[rollout.mask]
    return value_loss(guesses, returns, old, clip=clip), guesses, returns


def token_critic(
    policy: Any,
    *,
    lr: float,
    micro_batch: int = 0,
    max_grad_norm: float = 1.0,
    gamma: float = GAMMA,
    lam: float = LAMBDA,
    clip: float | None = None,
) -> NetworkCritic:
    """PPO's critic (arXiv 1707.06347): one value per token. ``clip`` is that of ``value_loss``, ``None`` is none."""
    lesson = partial(return_lesson, gamma=gamma, lam=lam, clip=clip)
    return NetworkCritic(policy, token_values, lesson, lr=lr, micro_batch=micro_batch, max_grad_norm=max_grad_norm)


class SuccessTracker:
    """A success rate per prompt without a network: pseudo-counts that forget (Single-stream PO, arXiv 2509.13232).

    α ← dα + R, β ← dβ + 1 − R, p̂ = α/(α + β), and the advantage is R − p̂ of before. The mass goes to 1/(1 − d).

    >>> tracker = SuccessTracker(decay=0.9)
    >>> advantage = reward - tracker.rate("2+2=")
    >>> tracker.observe("2+2=", reward)
    """

    def __init__(self, *, decay: float = 0.9, alpha: float = 4.0, beta: float = 4.0) -> None:
        check_between(0, 1, "it is what a step leaves of the counts; the authors keep it in [0.875, 0.96]", decay=decay)
        check_positive(alpha=alpha, beta=beta)
        self.decay, self.start = decay, (alpha, beta)
        self.counts: dict[Hashable, tuple[float, float]] = {}

    def rate(self, prompt: Hashable) -> float:
        """p̂, before the reward of now is known."""
        alpha, beta = self.counts.get(prompt, self.start)
        return alpha / (alpha + beta)

    def observe(self, prompt: Hashable, reward: float) -> None:
        """Take in a reward in [0, 1]."""
        check_between(0, 1, "it counts as a success or a part of one", reward=reward)
        alpha, beta = self.counts.get(prompt, self.start)
        self.counts[prompt] = self.decay * alpha + reward, self.decay * beta + 1 - reward
