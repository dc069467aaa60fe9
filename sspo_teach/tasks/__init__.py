"""Tasks by name: where prompts come from and who judges the responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sspo_teach.tasks.arithmetic_text import ArithmeticTextTask
from sspo_teach.tasks.gsm8k import GSM8KTask
from sspo_teach.tasks.toy import ArithmeticTask, BanditTask
from sspo_teach.tasks.word_problems import WordProblemsTask
from toy_envs.arithmetic import Arithmetic
from toy_envs.bandit import Bandit

TOYS: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "arithmetic": (ArithmeticTask, Arithmetic),
    "bandit": (BanditTask, Bandit),
}
"""Toy task → its class, and whose keywords are its options."""

TEXTS: Mapping[str, Callable[..., Any]] = {
    "arithmetic-text": ArithmeticTextTask,
    "word-problems": WordProblemsTask,
    "gsm8k": GSM8KTask,
}
"""Text task → its class, which takes the model's tokenizer first."""

__all__ = ["TEXTS", "TOYS", "ArithmeticTask", "ArithmeticTextTask", "BanditTask", "GSM8KTask", "WordProblemsTask"]
