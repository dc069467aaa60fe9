"""Tiny policies, prompts and runs for the tests to work on."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sspo_teach.policies.causal_lm import CausalLM, tiny_qwen2

RUN: dict[str, Any] = {
    "task": "bandit", "steps": 6, "prompts": 4, "group_size": 4, "minibatches": 2, "eval_problems": 8,
    "eval_every": 3, "save_every": 2, "lr": 1e-3,
}  # fmt: skip
"""A run of about a second."""


def policy(vocab_size: int = 11, **other: Any) -> CausalLM:
    """A policy of a few thousand parameters."""
    sizes = {"hidden_size": 16, "intermediate_size": 32, "heads": 2, "kv_heads": 1}
    return tiny_qwen2(vocab_size, **{**sizes, **other})


def left_padded(*rows: list[int], pad: int = 0) -> tuple[Tensor, Tensor]:
    """Prompts (n, P) and their mask."""
    width = max(map(len, rows))
    tokens = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in rows])
    return tokens, mask


def take_gradient(policy: CausalLM) -> Tensor:
    """The gradients of a policy as one vector; they are gone from it afterwards."""
    found = torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])
    policy.model.zero_grad(set_to_none=True)
    return found


def norm(policy: CausalLM) -> float:
    """Of the gradient that lies in a policy."""
    return torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None]).norm().item()


def history(folder: Path) -> list[dict[str, str]]:
    """The rows of history.csv, as text."""
    with (folder / "history.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def outcome(folder: Path) -> dict[str, bytes]:
    """All that a run leaves and that no clock and no interruption may change."""
    newest = max((folder / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    files = [folder / name for name in ("history.csv", "evaluation.json", "samples.jsonl")]
    return {str(file.relative_to(folder)): file.read_bytes() for file in [*files, *sorted(newest.iterdir())]}
