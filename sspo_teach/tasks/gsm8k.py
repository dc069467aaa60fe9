"""Grade-school word problems in the format of GSM8K: a question, and worked steps that end with ``#### 72``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sspo_teach.tasks.answers import parse_answer
from sspo_teach.tasks.text import TextProblem, TextTask

SYSTEM = (
    "Solve the problem step by step. "
    "Then write the answer on a line of its own, as #### followed by the number, for example: #### 12"
)
_ANNOTATION = re.compile(r"<<[^<>]*>>")  # calculator calls, <<3*4=12>>, which the answers of the data set carry
_SPLITS = ("train", "test")


class GSM8KTask(TextTask):
    """Word problems; ``correct`` is the number, ``format`` a marker that holds one, ``finished`` a response that ended.

    An answer without a marker earns nothing: right numbers in passing are not answers. Accuracy given format is
    ``correct.sum() / format.sum()``; it tells how much of a gain is format.

    Args:
        data: a folder with train.jsonl and test.jsonl, or split → JSONL file or rows. None reads the folder in the
            environment variable GSM8K_DIR, and without one the hub (needs the package ``datasets``). Splits stay as
            they come.
        question: name of the field with the question.
        answer: name of the field with the worked answer, the last ``####`` of which holds the number.
    """

    name = "gsm8k"

    def __init__(
        self,
        tokenizer: Any,
        *,
        data: str | Path | Mapping[str, str | Path | Iterable[Mapping[str, Any]]] | None = None,
        question: str = "question",
        answer: str = "answer",
        system: str = SYSTEM,
        max_new_tokens: int = 256,
        max_prompt_tokens: int = 512,
        format_reward: float = 0.0,
        stop_ids: Sequence[int] = (),
    ) -> None:
        if data is None:
            data = os.environ.get("GSM8K_DIR") or None
        if data is None:
            data = _from_hub()
        elif isinstance(data, str | Path):
            data = {split: Path(data) / f"{split}.jsonl" for split in _SPLITS}
        problems = {}
        for split in _SPLITS:
            if split not in data:
                raise ValueError(f"data must hold the splits {_SPLITS}, got {sorted(data)}")
            source = data[split]
            rows = _read(Path(source)) if isinstance(source, str | Path) else source
            problems[split] = [
                _problem(row, question, answer, f"{split} row {i}") for i, row in enumerate(rows, start=1)
            ]
        asked = {problem.question for problem in problems["test"]}
        shared = sum(problem.question in asked for problem in problems["train"])
        if shared:
            raise ValueError(
                f"data: {shared} train questions are also test questions; take them out of the train split"
            )
        super().__init__(
            tokenizer,
            problems,
            system=system,
            max_new_tokens=max_new_tokens,
            max_prompt_tokens=max_prompt_tokens,
            format_reward=format_reward,
            stop_ids=stop_ids,
        )

    def judge(self, problem: TextProblem, text: str) -> tuple[bool, bool]:
        """(the number is right, a marker holds a number)."""
        number = parse_answer(text)
        return number == problem.answer, number is not None


def _problem(row: Mapping[str, Any], question: str, answer: str, where: str) -> TextProblem:
    for name in (question, answer):
        if not isinstance(row.get(name), str):
            raise ValueError(
                f"data: {where} has no text field {name!r}, only {sorted(row)}; name it with question= or answer="
            )
    number = parse_answer(row[answer])
    if number is None:
        raise ValueError(f"data: {where} has no number after ####: {row[answer][-60:]!r}")
    # annotations are for a calculator that this library does not have, so a warm-up must not teach them
    return TextProblem(row[question], number, _ANNOTATION.sub("", row[answer]))


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise ValueError(
            f"data: {path} is not a file; give a folder that holds train.jsonl and test.jsonl, "
            "or name two files: {'train': ..., 'test': ...}"
        )
    rows = []
    for i, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"data: line {i} of {path} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise ValueError(f"data: line {i} of {path} is not a JSON object")
        rows.append(row)
    return rows


def _from_hub() -> Mapping[str, Iterable[Mapping[str, Any]]]:
    advice = "or set GSM8K_DIR (or data=) to a folder that holds train.jsonl and test.jsonl"
    try:
        from datasets import load_dataset
    except ImportError:
        raise ValueError(
            f"data is None, and the hub needs the package datasets: pip install 'sspo_teach[scale]', {advice}"
        ) from None
    try:
        return load_dataset("openai/gsm8k", "main")
    except Exception as error:  # offline, a proxy, a full disk: the library raises many kinds
        raise ValueError(
            f"data is None, and GSM8K did not come from the hub ({type(error).__name__}: {error!s:.200}); "
            f"go online, {advice}"
        ) from error
