"""Who samples the responses: the policy itself, in batches of like length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sspo_teach.policies.causal_lm import CausalLM, Generated
from sspo_teach.policies.sampling import Sampling


class Engine(Protocol):
    """A sampler of responses. Its token ids are what is trained on: nothing is decoded and encoded again."""

    name: str

    def generate(
        self,
        prompts: Tensor,
        prompt_mask: Tensor,
        *,
        max_new_tokens: int,
        stop_ids: tuple[int, ...],
        pad_id: int,
        sampling: Sampling,
        group_size: int = 1,
        generator: torch.Generator | None = None,
    ) -> Generated:
        """``CausalLM.generate``: group_size responses to each of n left-padded prompts; row i answers i // G."""
        ...

    def settings(self, sampling: Sampling, max_new_tokens: int, stop_ids: tuple[int, ...]) -> dict[str, Any]:
        """The generation settings in force, all of them, for the run's header."""
        ...


@dataclass(frozen=True)
class OwnEngine:
    """The policy samples by itself, ``batch`` responses at a time; 0 takes all at once, in the order of the prompts.

    In batches, the longest prompts come first and prompts of like length go together: a batch is padded to its own
    longest prompt and ends when its own responses have ended.
    """

    policy: CausalLM
    batch: int = 0
    name = "own"

    def generate(
        self,
        prompts: Tensor,
        prompt_mask: Tensor,
        *,
        max_new_tokens: int,
        stop_ids: tuple[int, ...],
        pad_id: int,
        sampling: Sampling,
        group_size: int = 1,
        generator: torch.Generator | None = None,
    ) -> Generated:
        settings: dict[str, Any] = {
            "max_new_tokens": max_new_tokens, "stop_ids": stop_ids, "pad_id": pad_id, "sampling": sampling,
            "generator": generator,
        }  # fmt: skip
        if not self.batch or len(prompts) * group_size <= self.batch:
            return self.policy.generate(prompts, prompt_mask, group_size=group_size, **settings)
        lengths = prompt_mask.sum(1)
        parts, places = [], []
        for piece in lengths.argsort(descending=True, stable=True).split(max(1, self.batch // group_size)):
            width = prompt_mask.shape[1] - int(lengths[piece].max())  # columns of padding alone
            for first in range(0, group_size, self.batch):
                share = min(self.batch, group_size - first)
                out = self.policy.generate(
                    prompts[piece, width:], prompt_mask[piece, width:], group_size=share, **settings
                )
                parts.append(out)
                members = torch.arange(first, first + share, device=piece.device)
                places.append((piece.unsqueeze(1) * group_size + members).flatten())
        back = torch.cat(places).argsort()
        names = ("tokens", "mask", "logp", "entropy", "truncated")
        return Generated(**{name: torch.cat([getattr(part, name) for part in parts])[back] for name in names})

    def settings(self, sampling: Sampling, max_new_tokens: int, stop_ids: tuple[int, ...]) -> dict[str, Any]:
        return {
            "engine": self.name,
            **complete(sampling, max_new_tokens, stop_ids),
            "batch": self.batch,
            "not taken from the checkpoint": inherited(self.policy),
        }


def complete(sampling: Sampling, max_new_tokens: int, stop_ids: tuple[int, ...]) -> dict[str, Any]:
    """Every setting that could shape a sample, those that do nothing included."""
    return {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_new_tokens": max_new_tokens,
        "min_new_tokens": 0,
        "stop_ids": list(stop_ids),
    }


def inherited(policy: CausalLM) -> Mapping[str, Any]:
    """What the checkpoint's own generation config asks for, and nothing here listens to."""
    config = getattr(policy.model, "generation_config", None)
    asked = {} if config is None else config.to_diff_dict()
    return {name: value for name, value in sorted(asked.items()) if name != "transformers_version"}
