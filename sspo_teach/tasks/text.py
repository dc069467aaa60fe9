"""Tasks asked in words: any question with a number for an answer, any tokenizer, with a chat template or without."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sspo_teach.types import Prompts, Scores

# Chat models end a turn with one of these and a text with another; whichever comes first ends the response.
_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "<|end|>", "</s>", "<eos>")


@dataclass(frozen=True)
class TextProblem:
    """A question, its number, and a worked solution in the form that earns the reward."""

    question: str
    answer: Fraction
    solution: str


class TextTask(ABC):
    """The half of ``Task`` that text tasks share; a task adds its problems and ``judge``.

    A prompt is the question through the tokenizer's chat template, up to where the assistant speaks, or the plain form
    where there is no template. No prompt is ever cut: those over ``max_prompt_tokens`` leave at load, counted in
    ``dropped``.

    Args:
        system: said before everything else; in a chat as the system's turn.
        prompt_format: "auto" (chat where there is a template), "chat", "plain", or a text of your own that holds
            ``{question}`` and takes the place of the plain form.
        shots: so many worked examples stand before every question. They are the first of the train split, which are
            then not trained on.
        max_prompt_tokens: longest prompt, worked examples not counted.
        format_reward: added to the reward of a response in the right form.
        stop_ids: more tokens that end a response.

    Attributes:
        eos_id: ends the responses of ``answers``.
        stop_ids: every token that ends a response, ``eos_id`` first; give them all to the sampler.
        dropped: split → number of problems left out for their length.
    """

    name = "text"
    plain = "Question: {question}\nAnswer:"

    def __init__(
        self,
        tokenizer: Any,
        problems: Mapping[str, Sequence[TextProblem]],
        *,
        system: str = "",
        prompt_format: str = "auto",
        shots: int = 0,
        max_new_tokens: int,
        max_prompt_tokens: int = 512,
        format_reward: float = 0.0,
        stop_ids: Sequence[int] = (),
    ) -> None:
        if tokenizer.eos_token_id is None:
            raise ValueError(f"tokenizer has no EOS token; set tokenizer.eos_token (got {type(tokenizer).__name__})")
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
        if format_reward < 0:
            raise ValueError(f"format_reward must not be negative, got {format_reward}; 0 pays for correctness alone")
        if shots and not 0 <= shots < len(problems["train"]):
            raise ValueError(f"shots={shots}: must be at least 0 and leave train problems, of {len(problems['train'])}")
        self.tokenizer = tokenizer
        self.system = system
        self.max_new_tokens = max_new_tokens
        self.format_reward = format_reward
        self.vocab_size = len(tokenizer)
        self.eos_id = int(tokenizer.eos_token_id)
        self.pad_id = int(self.eos_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id)
        added = tokenizer.get_added_vocab()
        ends = [self.eos_id, *stop_ids, *(added[end] for end in _ENDS if end in added)]
        self.stop_ids = tuple(dict.fromkeys(ends))  # each once, in this order
        self._chat, self.plain = self._form(prompt_format)
        self._shown: tuple[TextProblem, ...] = ()  # while lengths are taken, no examples
        self._problems: dict[str, tuple[TextProblem, ...]] = {}
        self.dropped: dict[str, int] = {}
        shown = tuple(problems["train"][:shots])
        for split, every in {**problems, "train": problems["train"][shots:]}.items():
            lengths = map(len, self._encode([problem.question for problem in every]))
            kept = tuple(p for p, length in zip(every, lengths, strict=True) if length <= max_prompt_tokens)
            if not kept:
                raise ValueError(
                    f"max_prompt_tokens={max_prompt_tokens} leaves none of the {len(every)} {split} problems"
                )
            self._problems[split], self.dropped[split] = kept, len(every) - len(kept)
        self._shown = shown
        if any(self.dropped.values()):
            warnings.warn(
                f"{self.name}: prompts over {max_prompt_tokens} tokens left out: {self.dropped}", stacklevel=3
            )

    def size(self, split: str) -> int:
        """Number of problems in a split."""
        return len(self._split(split))

    def prompts(self, n: int, *, rng: np.random.Generator, split: str = "train", progress: float = 1.0) -> Prompts:
        """n prompts, left-padded; ``progress`` is not used.

        "train" draws from ``rng``, no problem twice as long as there are n. "test" leaves ``rng`` alone and
        gives the first n of a fixed list: fewer than n where the list is shorter.
        """
        pool = self._split(split)
        if split == "test":
            problems = pool[:n]
        else:
            problems = tuple(pool[i] for i in rng.choice(len(pool), n, replace=n > len(pool)))
        rows = self._encode([problem.question for problem in problems])
        width = max(map(len, rows), default=0)
        tokens = torch.full((len(rows), width), self.pad_id)
        mask = torch.zeros(len(rows), width, dtype=torch.bool)
        for i, row in enumerate(rows):  # the mask comes from lengths: padding may share its id with EOS
            tokens[i, width - len(row) :] = torch.tensor(row)
            mask[i, width - len(row) :] = True
        return Prompts(tokens, mask, problems)

    def score(self, problems: tuple[Any, ...], tokens: Tensor, mask: Tensor) -> Scores:
        """Score B responses. Parts (0 or 1): correct, format, finished. Reward: correct + format_reward · format."""
        if not len(problems) == len(tokens) == len(mask):
            raise ValueError(
                f"problems, tokens and mask must be of one length, got {len(problems)}, {len(tokens)}, {len(mask)}"
            )
        responses = [row[keep].tolist() for row, keep in zip(tokens.cpu(), mask.bool().cpu(), strict=True)]
        verdicts = [self.judge(problem, text) for problem, text in zip(problems, self._texts(responses), strict=True)]
        correct, form = torch.tensor(verdicts, dtype=torch.float32).reshape(-1, 2).unbind(1)
        finished = torch.tensor([bool(ids) and ids[-1] in self.stop_ids for ids in responses], dtype=torch.float32)
        return Scores(correct + self.format_reward * form, {"correct": correct, "format": form, "finished": finished})

    @abstractmethod
    def judge(self, problem: TextProblem, text: str) -> tuple[bool, bool]:
        """(correct, format) of one response."""

    def final(self, ids: list[int]) -> Hashable | None:
        """What a response answers, so that answers can be counted; None where it answers nothing."""
        return self.final_of(self.decode(ids))

    @abstractmethod
    def final_of(self, text: str) -> Hashable | None:
        """``final`` of a response that has been decoded."""

    def answers(self, problems: tuple[Any, ...]) -> list[list[int]]:
        """The worked solutions, each ending with EOS."""
        texts = [problem.solution for problem in problems]
        return [[*ids, self.eos_id] for ids in self.tokenizer(texts, add_special_tokens=False)["input_ids"]]

    def decode(self, ids: list[int]) -> str:
        """Token ids as text, special tokens left out."""
        return self._texts([ids])[0]

    def prompt(self, question: str) -> str:
        """What the model is given, as text."""
        if not self._chat:
            told = [self.plain.replace("{question}", p.question) + " " + p.solution for p in self._shown]
            return "\n\n".join([*filter(None, [self.system]), *told, self.plain.replace("{question}", question)])
        turns = []
        for problem in self._shown:
            turns += [("user", problem.question), ("assistant", problem.solution)]
        turns.append(("user", question))
        messages = [{"role": role, "content": content} for role, content in turns]
        system = [{"role": "system", "content": self.system}] if self.system else []
        render = self.tokenizer.apply_chat_template
        options = {"tokenize": False, "add_generation_prompt": True}
        try:
            return render([*system, *messages], **options)
        except Exception:
            if not system:
                raise
            # some templates refuse a system turn; then the user says both
            first = {"role": "user", "content": f"{self.system}\n\n{messages[0]['content']}"}
            return render([first, *messages[1:]], **options)

    def _form(self, prompt_format: str) -> tuple[bool, str]:
        """(whether prompts are chats, the form of those that are not)."""
        template = bool(getattr(self.tokenizer, "chat_template", None))
        if prompt_format == "chat" and not template:
            raise ValueError("prompt_format='chat': this tokenizer has no chat template; take 'plain'")
        if prompt_format in ("auto", "chat", "plain"):
            return template and prompt_format != "plain", self.plain
        if "{question}" not in prompt_format:
            raise ValueError(
                f"prompt_format={prompt_format!r}: take auto, chat, plain, or a text that holds {{question}}"
            )
        return False, prompt_format

    def _encode(self, questions: Sequence[str]) -> list[list[int]]:
        if not questions:
            return []
        texts = [self.prompt(question) for question in questions]
        rows = self.tokenizer(texts, add_special_tokens=not self._chat)["input_ids"]  # a template writes its own BOS
        return [row[:-1] if row[-1:] == [self.eos_id] else row for row in rows]  # after EOS nothing is left to say

    def _texts(self, responses: list[list[int]]) -> list[str]:
        return [self.tokenizer.decode(ids, skip_special_tokens=True) for ids in responses]

    def _split(self, split: str) -> tuple[TextProblem, ...]:
        if split not in self._problems:
            raise ValueError(f"split must be one of {sorted(self._problems)}, got {split!r}")
        return self._problems[split]
