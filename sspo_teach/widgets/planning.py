"""The memory planner as a picture: what a setting needs at each moment, and whether it fits."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from matplotlib.figure import Figure

from sspo_teach.memory import Load, allowance, largest_micro_batch, moments, needed, peak, sizes_of
from sspo_teach.plotting.planning import GIGA, memory
from sspo_teach.training.hardware import hardware


def preset_load(name: str, model: str = "Qwen2.5-0.5B", **other: Any) -> Load:
    """What a hardware preset trains with ``model``; ``other`` are fields of ``Load`` that overrule it."""
    chosen = hardware(name)
    known = {field.name for field in fields(Load)}
    own = {key: value for key, value in {**chosen.machine, **chosen.load}.items() if key in known}
    return Load(sizes_of(model), **{**own, **other})


def verdict(load: Load, budget: int) -> str:
    """Whether ``load`` fits ``budget`` bytes, its highest moment, and the most responses per pass that would fit."""
    need, most = needed(load) / GIGA, largest_micro_batch(load, budget)
    fits = f"fits {budget / GIGA:g} GB" if need * GIGA <= budget else f"does not fit {budget / GIGA:g} GB"
    return f"{need:.1f} GB, {fits}; highest at “{peak(load)[0]}”; largest micro-batch {most or 'none'}"


def planner(
    figure: Figure,
    *,
    model: str = "Qwen2.5-0.5B",
    hardware_preset: str = "t4",
    micro_batch: int = 8,
    max_new_tokens: int = 512,
    gradient_checkpointing: bool = True,
    autocast: str = "fp16",
    optimizer: str = "adamw_fused",
    lora_rank: int = 0,
) -> None:
    """Draw the memory of one iteration under a preset's load, with the settings that decide it given by hand."""
    load = preset_load(
        hardware_preset,
        model,
        micro_batch=micro_batch,
        max_new_tokens=max_new_tokens,
        gradient_checkpointing=gradient_checkpointing,
        autocast=autocast,
        optimizer=optimizer,
        lora_rank=lora_rank,
    )
    budget = hardware(hardware_preset).bytes
    found = {moment: {**items, "allowance": allowance(sum(items.values()))} for moment, items in moments(load).items()}
    memory(found, budget=budget, title=verdict(load, budget), figure=figure)
