"""Who samples the responses: the policy itself, in batches of like length, or vLLM."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
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


class VLLMEngine:
    """vLLM samples; the policy's weights are handed over before each batch. Needs the package vllm and a CUDA device.

    Its kernels and its precision are others than those of the scoring pass, so its log-probabilities are of another
    distribution than the policy's: a truncated or masked importance weight (``--correction``) has to make up for it.

    Args:
        policy: the policy; its model is written to ``folder`` once, since vLLM reads files.
        folder: where to.
        memory: share of the GPU's memory that vLLM may take for itself.
        module: stands in for the package in tests.
    """

    name = "vllm"

    def __init__(self, policy: CausalLM, folder: str | Path, *, memory: float = 0.3, module: Any = None) -> None:
        self.policy = policy
        self._vllm = module or _vllm()
        policy.save(folder)
        self._llm = self._vllm.LLM(
            model=str(folder),
            skip_tokenizer_init=True,  # token ids go in and out
            generation_config="vllm",  # its own neutral settings, not the checkpoint's
            logprobs_mode="processed_logprobs",  # of the distribution that was drawn from, temperature included
            gpu_memory_utilization=memory,
            trust_remote_code=False,
        )

    @torch.no_grad()
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
        """``Engine.generate``. The entropy is 0, because vLLM does not give it; the scoring pass does."""
        self._hand_over()
        asked = self._params(sampling, max_new_tokens, stop_ids, group_size, generator)
        texts = [{"prompt_token_ids": row[keep].tolist()} for row, keep in zip(prompts, prompt_mask, strict=True)]
        answers = [one for request in self._llm.generate(texts, asked, use_tqdm=False) for one in request.outputs]
        device, shape = prompts.device, (len(answers), max_new_tokens)
        tokens, logp = torch.full(shape, pad_id), torch.zeros(shape)
        lengths = torch.tensor([len(one.token_ids) for one in answers])
        for i, one in enumerate(answers):
            tokens[i, : len(one.token_ids)] = torch.tensor(list(one.token_ids))
            told = [place[token].logprob for place, token in zip(one.logprobs, one.token_ids, strict=True)]
            logp[i, : len(told)] = torch.tensor(told)
        mask = torch.arange(max_new_tokens) < lengths.unsqueeze(1)
        last = tokens.gather(1, (lengths - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
        ended = torch.isin(last, torch.tensor(stop_ids)) & (lengths > 0)
        found = (tokens, mask, logp, torch.zeros(shape), ~ended)
        return Generated(*(part.to(device) for part in found))

    def settings(self, sampling: Sampling, max_new_tokens: int, stop_ids: tuple[int, ...]) -> dict[str, Any]:
        wanted = complete(sampling, max_new_tokens, stop_ids)
        return {"engine": self.name, **wanted, "not taken from the checkpoint": inherited(self.policy)}

    def _params(
        self,
        sampling: Sampling,
        max_new_tokens: int,
        stop_ids: tuple[int, ...],
        group_size: int,
        generator: torch.Generator | None,
    ) -> Any:
        """vLLM's sampling parameters, looked at again: what is in force must be what was asked for."""
        wanted = {_NAMES.get(name, name): value for name, value in complete(sampling, max_new_tokens, stop_ids).items()}
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device)) if generator else None
        params = self._vllm.SamplingParams(n=group_size, seed=seed, logprobs=0, detokenize=False, **wanted)
        for name, value in wanted.items():
            found = getattr(params, name)
            if found != value and not (name == "top_k" and {found, value} == {0, -1}):
                raise ValueError(f"engine='vllm': its {name} is {found!r} where {value!r} was asked for")
        return params

    def _hand_over(self) -> None:
        runner = self._llm.llm_engine.model_executor.driver_worker.model_runner
        runner.model.load_weights(self.policy.model.state_dict().items())
        self._llm.reset_prefix_cache()  # its keys and values are of the weights before


_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "stop_ids": "stop_token_ids"}


def _vllm() -> Any:
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the weights are handed over within one process
    try:
        import vllm
    except ImportError:
        raise ValueError(
            "engine='vllm' needs the package vllm: pip install 'sspo_teach[vllm]', or --engine own"
        ) from None
    return vllm
