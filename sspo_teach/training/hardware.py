"""Named settings for GPUs of 12 to 80 GB: Qwen2.5-0.5B, all its weights, groups of 8 and 512 new tokens fit each.

``sspo-teach plan`` shows what they need and how far they reach with another model. Every preset makes two or more
updates per rollout batch: with one, ratios stay 1 and every gate is inert.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sspo_teach.tensors import unknown


@dataclass(frozen=True)
class Hardware:
    """One preset.

    Attributes:
        bytes: that a program can have on such a GPU.
        machine: fields of ``Config`` that change memory and speed, and what is learnt only by rounding.
        load: fields of ``Config`` that say how much is sampled and trained; for tasks of long answers.
    """

    bytes: int
    machine: Mapping[str, Any]
    load: Mapping[str, Any]


HARDWARE: dict[str, Hardware] = {
    "12gb": Hardware(
        12_000_000_000,
        {
            "device": "cuda", "autocast": "bf16", "micro_batch": 4, "gradient_checkpointing": True, "chunk": 0,
            "optimizer": "adamw_fused", "reference_offload": True, "generation_batch": 32,
        },
        {"prompts": 8, "group_size": 8, "minibatches": 2, "max_new_tokens": 512},
    ),
    "t4": Hardware(  # 16 GB of which 14.7 GiB are free; it has no bfloat16, so float16 with loss scaling
        15_800_000_000,
        {
            "device": "cuda", "autocast": "fp16", "micro_batch": 8, "gradient_checkpointing": True, "chunk": 0,
            "optimizer": "adamw_fused", "reference_offload": True, "generation_batch": 64,
        },
        {"prompts": 8, "group_size": 8, "minibatches": 2, "max_new_tokens": 512},
    ),
    "24gb": Hardware(
        24_000_000_000,
        {
            "device": "cuda", "autocast": "bf16", "micro_batch": 32, "gradient_checkpointing": True, "chunk": 0,
            "optimizer": "adamw_fused", "reference_offload": False, "generation_batch": 128,
        },
        {"prompts": 16, "group_size": 8, "minibatches": 2, "max_new_tokens": 512},
    ),
    "40gb": Hardware(
        40_000_000_000,
        {
            "device": "cuda", "autocast": "bf16", "micro_batch": 16, "gradient_checkpointing": False, "chunk": 0,
            "optimizer": "adamw_fused", "reference_offload": False, "generation_batch": 256,
        },
        {"prompts": 32, "group_size": 8, "minibatches": 4, "max_new_tokens": 512},
    ),
    "80gb": Hardware(
        80_000_000_000,
        {
            "device": "cuda", "autocast": "bf16", "micro_batch": 32, "gradient_checkpointing": False, "chunk": 0,
            "optimizer": "adamw_fused", "reference_offload": False, "generation_batch": 512,
        },
        {"prompts": 64, "group_size": 8, "minibatches": 4, "max_new_tokens": 512},
    ),
}  # fmt: skip


def hardware(name: str) -> Hardware:
    """The preset of that name.

    Raises:
        ValueError: there is none; the nearest is named.
    """
    if name not in HARDWARE:
        raise ValueError(unknown("hardware", name, HARDWARE))
    return HARDWARE[name]


LONG = 128
"""Tasks whose answers may be this long take a preset's load too; others keep their own."""


def settings(name: str, max_new_tokens: int) -> dict[str, Any]:
    """Fields of ``Config`` under a preset, for a task whose answers are at most so long by default; none for ""."""
    if not name:
        return {}
    chosen = hardware(name)
    return {**chosen.machine, **(chosen.load if max_new_tokens >= LONG else {})}
