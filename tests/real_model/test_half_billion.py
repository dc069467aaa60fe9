"""The exact configuration of Qwen2.5-0.5B, with random weights: one whole cycle of the trainer on a CPU.

About 8 GB of memory and some minutes on two cores: pytest -m real_model tests/real_model/test_half_billion.py
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from sspo_teach.policies.causal_lm import CausalLM
from sspo_teach.tasks.toy import BanditTask
from sspo_teach.training import trainer as training
from sspo_teach.training.config import Config
from sspo_teach.training.trainer import Trainer
from sspo_teach.types import Scores

pytestmark = pytest.mark.real_model

HALF_BILLION: dict[str, Any] = {
    "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32768, "rope_theta": 1000000.0,
    "tie_word_embeddings": True, "rms_norm_eps": 1e-6,
}  # fmt: skip
"""config.json of Qwen/Qwen2.5-0.5B-Instruct."""


def even_first(task: BanditTask) -> None:
    """Pay for an even first token: random weights answer nothing right, and a group without signal teaches nothing."""
    score = task.score

    def paid(problems: tuple[Any, ...], tokens: torch.Tensor, mask: torch.Tensor) -> Scores:
        scores = score(problems, tokens.clamp(max=task.vocab_size - 1), mask)
        return dataclasses.replace(scores, rewards=(tokens[:, 0] % 2).float())

    task.score = paid  # type: ignore[method-assign]


def test_one_rollout_and_two_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**HALF_BILLION))
    assert sum(p.numel() for p in model.parameters()) == 494_032_768
    task = BanditTask(max_new_tokens=8)
    even_first(task)
    monkeypatch.setattr(training, "build", lambda config, **_: (task, CausalLM(model)))
    monkeypatch.setattr(Trainer, "save", lambda _: None)  # 6 GB of checkpoints prove nothing here
    config = Config(
        task="bandit", method="sspo", steps=1, prompts=2, group_size=4, minibatches=2, micro_batch=2, max_new_tokens=8,
        eval_problems=1, lr=1e-6, lr_warmup=0, generation_batch=4, out=str(tmp_path / "run"),
    )  # fmt: skip
    one = Trainer(config, quiet=True)
    before = {name: weight.norm().item() for name, weight in model.named_parameters()}
    row = one.iterate()
    assert (row["updates"], row["rejected"], row["ratio_error"]) == (2, 0, 0)
    assert 8 <= row["tokens"] <= 64
    assert row["entropy"] == pytest.approx(math.log(151936), rel=0.05)  # random weights know nothing
    assert 0 < row["grad_norm"] < math.inf
    assert row["dead_groups"] < 1
    moved = [name for name, weight in model.named_parameters() if weight.norm().item() != before[name]]
    assert len(moved) > len(before) / 2
