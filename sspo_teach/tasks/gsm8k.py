"""Grade-school word problems in the format of GSM8K: a question, and worked steps that end with ``#### 72``."""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from sspo_teach.tasks.answers import has_marker, parse_answer, parse_number
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
        data: a folder with train.jsonl and test.jsonl, or split → JSONL file or rows; these splits stay as they come.
            One JSONL file alone is split by a hash of the question that is the same everywhere. None reads the folder
            in the environment variable GSM8K_DIR, and without one the hub (needs the package ``datasets``).
        question_field: name of the field with the question (DeepMath-103K: question).
        answer_field: name of the field with the answer: a worked one, the last marker of which holds the number (``####
            72``, ``\\boxed{72}``), or the number alone (DeepMath-103K: final_answer). Rows whose answer is no number at
            all, a formula or a word, leave and are counted in ``not_numbers``: only a number can be judged here.
        test_share: of a single file.
    """

    name = "gsm8k"

    def __init__(
        self,
        tokenizer: Any,
        *,
        data: str | Path | Mapping[str, str | Path | Iterable[Mapping[str, Any]]] | None = None,
        question_field: str = "question",
        answer_field: str = "answer",
        test_share: float = 0.1,
        system: str = SYSTEM,
        prompt_format: str = "auto",
        shots: int = 0,
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
            data = _from_path(Path(data).expanduser(), question_field, test_share)
        problems: dict[str, list[TextProblem]] = {}
        self.not_numbers: dict[str, int] = {}
        for split in _SPLITS:
            if split not in data:
                raise ValueError(f"data must hold the splits {_SPLITS}, got {sorted(data)}")
            source = data[split]
            rows = _read(Path(source)) if isinstance(source, str | Path) else list(source)
            every = [
                _problem(row, question_field, answer_field, f"{split} row {i}") for i, row in enumerate(rows, start=1)
            ]
            problems[split] = [problem for problem in every if problem is not None]
            self.not_numbers[split] = len(every) - len(problems[split])
            if rows and not problems[split]:
                raise ValueError(f"data: no {split} row has a number in {answer_field!r}; name it with --answer-field")
        if any(self.not_numbers.values()):
            warnings.warn(
                f"{self.name}: problems without a number for an answer left out: {self.not_numbers}", stacklevel=2
            )
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
            prompt_format=prompt_format,
            shots=shots,
            max_new_tokens=max_new_tokens,
            max_prompt_tokens=max_prompt_tokens,
            format_reward=format_reward,
            stop_ids=stop_ids,
        )

    def judge(self, problem: TextProblem, text: str) -> tuple[bool, bool]:
        """(the number is right, a marker holds a number)."""
        number = parse_answer(text)
        return number == problem.answer, number is not None

    def final_of(self, text: str) -> Fraction | None:
        return parse_answer(text)


def _from_path(path: Path, question: str, test_share: float) -> Mapping[str, Any]:
    """The splits of a folder, or of one file."""
    if not path.is_file():
        return {split: path / f"{split}.jsonl" for split in _SPLITS}
    if not 0 < test_share < 1:
        raise ValueError(f"test_share={test_share}: must lie between 0 and 1, e.g. 0.1")
    splits: dict[str, list[dict[str, Any]]] = {split: [] for split in _SPLITS}
    for i, row in enumerate(_read(path), start=1):
        place = _place(_field(row, question, "--question-field", (str,), f"row {i} of {path}"))
        splits["test" if place < test_share else "train"].append(row)
    if not all(splits.values()):
        raise ValueError(
            f"data: {path} leaves a split empty at test_share={test_share}; take more rows or another share"
        )
    return splits


def _place(text: str) -> float:
    """A number in [0, 1) that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def _problem(row: Mapping[str, Any], question: str, answer: str, where: str) -> TextProblem | None:
    """A row as a problem; None where its answer is no number."""
    asked = _field(row, question, "--question-field", (str,), where)
    if not asked.strip():
        raise ValueError(f"data: {where} has an empty {question!r}: nobody can answer that; drop it")
    told = str(_field(row, answer, "--answer-field", (str, int, float), where))
    if not has_marker(told):
        number = parse_number(told)
        return None if number is None else TextProblem(asked, number, f"#### {told.strip()}")
    number = parse_answer(told)
    if number is None:
        raise ValueError(f"data: {where} has no number after its marker: {told[-60:]!r}")
    # annotations are for a calculator that this library does not have, so a warm-up must not teach them
    return TextProblem(asked, number, _ANNOTATION.sub("", told))


def _field(row: Mapping[str, Any], name: str, option: str, kinds: tuple[type, ...], where: str) -> Any:
    """What a row holds under a name; refused where that is missing, of another kind, or not text that can be read."""
    if name not in row:
        raise ValueError(f"data: {where} has no text field {name!r}, only {sorted(row)}; name it with {option}")
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise ValueError(f"data: {where} has no text in {name!r} but {value!r:.60}; mend it, or name another {option}")
    try:
        str(value).encode()
    except UnicodeEncodeError:  # JSON's \ud800 alone
        raise ValueError(f"data: {where} has half a character in {name!r}: {value!a:.60}; mend it") from None
    return value


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise ValueError(
            f"data: {path} is not a file; give a folder that holds train.jsonl and test.jsonl, or one JSONL file"
        )
    rows = []
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"data: {path} is not UTF-8 text at byte {error.start}: {error.reason}") from None
    for i, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # bad JSON, a number of 5000 digits, brackets without end
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
