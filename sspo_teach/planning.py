"""``sspo-teach plan``: what a run needs, what fits which GPU, and how many tokens a step costs."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tyro

from sspo_teach import memory
from sspo_teach.memory import Load
from sspo_teach.training.config import defaults
from sspo_teach.training.hardware import HARDWARE


@dataclass(frozen=True)
class PlanConfig:
    """Predict the memory of a run by item and moment, and the largest micro-batch for GPUs of 12 to 80 GB.

    Options mean what they mean in `sspo-teach train`. What is left out comes from --hardware, else from the gsm8k task.
    In the table of GPUs each line has its own preset, and the options given here win over all of them.
    """

    model: str = "Qwen2.5-0.5B"
    """A size that is known by name (Qwen2.5-0.5B to 7B, SmolLM2-135M to 1.7B), a folder, or a config.json."""
    hardware: str = ""
    """The preset that fills in what no option says: 12gb, t4, 24gb, 40gb or 80gb."""
    prompts: int = 8
    """Prompts per iteration."""
    group_size: int = 8
    """G: responses per prompt."""
    minibatches: int = 2
    """Optimizer updates per pass over a rollout batch."""
    micro_batch: int = 8
    """Responses per forward and backward pass; 0 takes a whole minibatch."""
    prompt_tokens: int = 256
    """P: tokens of the longest prompt."""
    max_new_tokens: int = 256
    """T: tokens of the longest response."""
    mean_new_tokens: int = 0
    """Tokens you expect of a response on average; 0 counts every response at its longest."""
    chunk: int = 0
    """Tokens per piece of the vocabulary projection; 0 chooses."""
    gradient_checkpointing: bool = False
    """Keep only each layer's input."""
    autocast: Literal["auto", "none", "bf16", "fp16"] = "auto"
    """Precision of matrix products; auto is bf16 here, as on any GPU since Ampere."""
    optimizer: Literal["adamw", "adamw_fused", "adamw_8bit"] = "adamw_fused"
    """Its state is 8 or 2 bytes a weight."""
    lora_rank: int = 0
    """Rank of adapters; 0 trains all weights."""
    beta: float = 0.0
    """Weight of the KL divergence; more than 0 needs a reference model."""
    reference_offload: bool = False
    """Keep that in CPU memory while it does not score."""
    generation_batch: int = 0
    """Responses sampled at a time; 0 takes all of them at once."""
    share_prompts: bool = True
    """Each prompt goes through the model once per group."""
    json: bool = False
    """Print JSON instead of tables."""


def plan(words: Sequence[str], hardware: str) -> str:
    """The answer to ``sspo-teach plan WORDS`` as text; ``hardware`` is the preset named in them, or none.

    Raises:
        ValueError: a model, a preset or a number that cannot be.
    """
    asked = _read(words, hardware)
    load = _load(asked)
    lines = {name: _line(_load(_read(words, name)), name) for name in HARDWARE}
    if asked.json:
        return json.dumps({"asked": _answer(load, asked.mean_new_tokens), "hardware": lines}, indent=1)
    return "\n".join(_words(asked, load, lines))


def _read(words: Sequence[str], hardware: str) -> PlanConfig:
    """What is asked, under a preset: an option in ``words`` wins over it, also where it names another preset."""
    known = {field.name for field in dataclasses.fields(PlanConfig)} - {"model"}
    preset = {name: value for name, value in defaults("gsm8k", hardware).items() if name in known}
    return tyro.cli(PlanConfig, prog="sspo-teach plan", args=list(words), default=PlanConfig(**preset))


def _load(asked: PlanConfig) -> Load:
    positive = ("prompts", "group_size", "minibatches", "prompt_tokens", "max_new_tokens")
    for name in (*positive, "micro_batch", "mean_new_tokens", "chunk", "lora_rank", "generation_batch", "beta"):
        least = int(name in positive)
        if getattr(asked, name) < least:
            raise ValueError(f"{name}={getattr(asked, name)}: must be at least {least}")
    if not math.isfinite(asked.beta):
        raise ValueError(f"beta={asked.beta}: must be 0 or a positive number")
    if asked.prompts % asked.minibatches:
        raise ValueError(f"minibatches={asked.minibatches}: must divide prompts={asked.prompts}")
    if asked.mean_new_tokens > asked.max_new_tokens:
        raise ValueError(
            f"mean_new_tokens={asked.mean_new_tokens}: must be at most max_new_tokens={asked.max_new_tokens}"
        )
    same = {field.name for field in dataclasses.fields(Load)} & {f.name for f in dataclasses.fields(PlanConfig)}
    settings: dict[str, Any] = {name: getattr(asked, name) for name in same}
    settings["autocast"] = "bf16" if asked.autocast == "auto" else asked.autocast
    return Load(memory.sizes_of(asked.model), reference=asked.beta > 0, **settings)


def _answer(load: Load, mean: int) -> dict[str, Any]:
    responses = load.prompts * load.group_size
    return {
        "load": {**dataclasses.asdict(load), "parameters": load.sizes.parameters, "trained": load.trained},
        "moments": memory.moments(load),
        "peak": {
            phase: sum(memory.peak(load, phase)[1].values()) for phase in ("generation", "scoring", "training")
        },
        "allowance": memory.needed(load) - sum(memory.peak(load)[1].values()),
        "needed": memory.needed(load),
        "response_tokens_per_step": responses * (mean or load.max_new_tokens),
        "prompt_tokens_per_step": load.prompts * load.prompt_tokens,
        "updates_per_step": load.minibatches,
    }  # fmt: skip


def _line(load: Load, name: str) -> dict[str, Any]:
    budget = HARDWARE[name].bytes
    needed = memory.needed(load)
    return {
        "bytes": budget,
        "needed": needed,
        "fits": needed <= budget,
        "micro_batch": load.rows,
        "largest_micro_batch": memory.largest_micro_batch(load, budget),
        "minibatch": load.minibatch,
        "autocast": load.autocast,
        "gradient_checkpointing": load.gradient_checkpointing,
        "response_tokens_per_step": load.tokens_per_step,
        "updates_per_step": load.minibatches,
        "peak": memory.peak(load)[0],
    }


def _words(asked: PlanConfig, load: Load, lines: dict[str, dict[str, Any]]) -> list[str]:
    found = _answer(load, asked.mean_new_tokens)
    kind = f"adapters of rank {load.lora_rank}" if load.lora_rank else "all weights"
    expected = "expected" if asked.mean_new_tokens else "at most"
    out = [
        f"{asked.model}: {load.sizes.parameters:,} parameters, {kind}; {load.prompts}×{load.group_size} responses of "
        f"{load.prompt_tokens} + {load.max_new_tokens} tokens, {load.rows} per pass, {load.autocast}"
        + (", gradient checkpointing" if load.gradient_checkpointing else ""),
        "",
        memory.table(load),
        "",
        f"a GPU needs {found['needed'] / 1e9:.1f} GB: {found['allowance'] / 1e9:.1f} beside tensors, an assumption "
        f"({memory.CONTEXT / 1e9:.1f} for the CUDA context, {memory.UNUSED:.0%} for what its allocator leaves unused)",
        f"a step: {expected} {found['response_tokens_per_step']:,} response tokens and "
        f"{found['prompt_tokens_per_step']:,} of prompts, {load.minibatches} updates",
        "",
        "with each preset, and the options given here",
        f"{'--hardware':<12}{'GB':>6}{'needs':>8}{'':8}{'micro-batch':>12}{'largest':>9}{'of':>5}{'tokens/step':>13}"
        "  peak",
    ]
    for name, row in lines.items():
        verdict = "fits" if row["fits"] else "too big"
        out.append(
            f"{name:<12}{row['bytes'] / 1e9:>6.1f}{row['needed'] / 1e9:>8.1f}{verdict:>8}{row['micro_batch']:>12}"
            f"{row['largest_micro_batch']:>9}{row['minibatch']:>5}{row['response_tokens_per_step']:>13,}  {row['peak']}"
        )
    return [*out, "largest: the most responses per pass, up to a whole minibatch, that fit; 0 where none does"]
