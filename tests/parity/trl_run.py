"""A short run of ``MethodTrainer`` that writes its gradients, for one process or several under ``accelerate launch``.

The completions are a function of a response's place in the whole batch, so that runs differ only in how they cut it.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig

from sspo_teach.adapters.trl import MethodTrainer
from sspo_teach.policies.causal_lm import tiny_qwen2

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
GROUP, WIDTH, LETTERS = 4, 6, "␣⏎abcdefgh"


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per letter; padding and EOS have visible names."""
    words = Tokenizer(WordLevel({letter: i for i, letter in enumerate(LETTERS)}, unk_token="␣"))
    words.pre_tokenizer = Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="␣", eos_token="⏎")


def rollout(prompts: list[str], trainer: MethodTrainer) -> dict[str, list[list[int]]]:
    """Completions of 1 to 6 letters, half of them ended by EOS."""
    first = trainer.accelerator.process_index * len(prompts)
    made = []
    for place in range(first, first + len(prompts)):
        chance = torch.Generator().manual_seed(place)
        length = int(torch.randint(1, WIDTH + 1, (), generator=chance))
        made.append(torch.randint(2, len(LETTERS), (length,), generator=chance).tolist()[: length - place % 2] or [2])
        made[-1] += [1] * (place % 2)
    ids = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
    return {"prompt_ids": ids, "completion_ids": made, "logprobs": [[0.0] * len(each) for each in made]}


def reward(completion_ids: list[list[int]], **_: object) -> list[float]:
    return [ids.count(2) - 0.25 * len(ids) for ids in completion_ids]


class Gradients(TrainerCallback):
    """Keeps the gradient of each optimizer step."""

    def __init__(self) -> None:
        self.seen: list[dict[str, torch.Tensor]] = []

    def on_pre_optimizer_step(self, args, state, control, model, **_):
        self.seen.append({name: weight.grad.clone() for name, weight in model.named_parameters()})


def trainer(folder: Path, method: object = "sspo", **options) -> MethodTrainer:
    model = options.pop("model", None) or tiny_qwen2(len(LETTERS), seed=0).model
    if not isinstance(model, torch.nn.Module):
        model = type(tiny_qwen2(len(LETTERS), seed=0).model).from_pretrained(model, dtype=torch.float64)
    model.config.eos_token_id = model.generation_config.eos_token_id = 1
    model = model.double()
    config = {
        "output_dir": str(folder), "num_generations": GROUP, "max_completion_length": WIDTH, "max_steps": 2,
        "learning_rate": 0.2, "optim": "sgd", "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "use_cpu": True,
        "bf16": False, "report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True,
        "gradient_checkpointing": False, "shuffle_dataset": False, "num_iterations": 2,
    }  # fmt: skip
    numbers = options.pop("numbers", None)
    made = MethodTrainer(
        method, numbers=numbers, model=model, reward_funcs=reward, args=GRPOConfig(**{**config, **options}),
        processing_class=tokenizer(), rollout_func=rollout, callbacks=[gradients := Gradients()],
        train_dataset=Dataset.from_dict({"prompt": ["ab", "cde", "f"] * 4}),
    )  # fmt: skip
    made.gradients = gradients.seen
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--method", default="sspo")
    parser.add_argument("--options", type=json.loads, default={})
    asked = parser.parse_args()
    ran = trainer(asked.out.parent, asked.method, **asked.options)
    ran.train()
    if ran.accelerator.is_main_process:
        named = [{name.removeprefix("module."): g for name, g in step.items()} for step in ran.gradients]
        torch.save(named, asked.out)


if __name__ == "__main__":
    main()
