"""Tasks in words, with a byte-level tokenizer made here: no download."""

from __future__ import annotations

import ast
import json
import re
import sys
import types
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from sspo_teach.tasks import word_problems
from sspo_teach.tasks.answers import parse_answer
from sspo_teach.tasks.arithmetic_text import ArithmeticTextTask
from sspo_teach.tasks.gsm8k import GSM8KTask
from sspo_teach.tasks.text import TextProblem, TextTask
from sspo_teach.tasks.toy import ArithmeticTask
from sspo_teach.tasks.word_problems import WordProblemsTask, problems
from sspo_teach.training.config import Config, options_of

FIXTURE = Path(__file__).parent / "fixtures" / "gsm8k_like"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system turn') }}{% endif %}" + CHATML


def tokenizer(chat_template: str | None = CHATML, *, adds: str = "", eos: str | None = "<|im_end|>") -> Any:
    vocab = {token: i for i, token in enumerate([*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL)
    if adds:
        backend.post_processor = processors.TemplateProcessing(
            single=adds, special_tokens=[(token, vocab[token]) for token in SPECIAL]
        )
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos, pad_token=eos)
    made.chat_template = chat_template
    return made


TOK = tokenizer()
RNG = np.random.default_rng


def responses(task: TextTask, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts as right-padded (B, T) tokens and mask; padding shares its id with EOS, as for many real models."""
    rows = task.tokenizer(texts, add_special_tokens=False)["input_ids"]
    width = max(map(len, rows)) + 1
    tokens = torch.full((len(rows), width), task.pad_id)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = True
    return tokens, mask


def parts(task: TextTask, problem: TextProblem, texts: list[str]) -> dict[str, list[float]]:
    scores = task.score((problem,) * len(texts), *responses(task, texts))
    assert scores.rewards.dtype == torch.float32
    return {"reward": scores.rewards.tolist(), **{name: part.tolist() for name, part in scores.parts.items()}}


# ---- what text tasks share


def test_prompts_are_left_padded_and_end_with_the_generation_prompt() -> None:
    task = GSM8KTask(TOK, data=FIXTURE)
    prompts = task.prompts(6, rng=RNG(0))
    assert prompts.tokens.dtype == torch.int64
    assert prompts.mask.dtype == torch.bool
    assert prompts.mask.any(0).all()  # no column of padding alone
    for row, mask, problem in zip(prompts.tokens, prompts.mask, prompts.problems, strict=True):
        assert mask.int().diff().ge(0).all()  # padding, then tokens
        assert (row[~mask] == task.pad_id).all()
        text = TOK.decode(row[mask])
        assert text == task.prompt(problem.question)
        assert text.startswith(f"<|im_start|>system\n{task.system}<|im_end|>\n<|im_start|>user\n{problem.question}")
        assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_without_a_chat_template_the_prompt_is_plain() -> None:
    task = ArithmeticTextTask(tokenizer(None, adds="<|endoftext|> $A <|im_end|>"))
    assert task.prompt("What is 1 + 2?") == "Question: What is 1 + 2?\nAnswer:"
    prompts = task.prompts(3, rng=RNG(0))
    for row, mask in zip(prompts.tokens, prompts.mask, strict=True):
        ids = row[mask].tolist()
        assert ids[0] == 0  # the tokenizer's own opening token stays
        assert ids[-1] != task.eos_id  # its closing one would end the text before the answer
    assert GSM8KTask(tokenizer(None), data=FIXTURE).prompt("Why?").endswith("#### 12\n\nQuestion: Why?\nAnswer:")


def test_a_chat_prompt_has_no_second_opening_token() -> None:
    task = ArithmeticTextTask(tokenizer(adds="<|endoftext|> $A"))
    assert TOK.decode(task.prompts(1, rng=RNG(0)).tokens[0]).startswith("<|im_start|>user")


def test_a_template_without_a_system_turn() -> None:
    task = GSM8KTask(tokenizer(NO_SYSTEM), data=FIXTURE)
    expected = f"<|im_start|>user\n{task.system}\n\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    assert task.prompt("Why?") == expected


def test_a_broken_template_says_so() -> None:
    with pytest.raises(Exception, match="broken"):
        ArithmeticTextTask(tokenizer("{{ raise_exception('broken') }}"))


def test_training_prompts_follow_the_generator_and_test_prompts_are_fixed() -> None:
    task = GSM8KTask(TOK, data=FIXTURE)
    assert task.prompts(5, rng=RNG(3)).problems == task.prompts(5, rng=RNG(3), progress=0.1).problems
    assert task.prompts(5, rng=RNG(3)).problems != task.prompts(5, rng=RNG(4)).problems
    assert len(set(task.prompts(22, rng=RNG(0)).problems)) == 22 == task.size("train")
    assert len(task.prompts(50, rng=RNG(0)).problems) == 50
    rng = RNG(0)
    test = task.prompts(5, rng=rng, split="test")
    assert rng.random() == RNG(0).random()
    assert [p.question for p in test.problems] == [row["question"] for row in rows("test")[:5]]
    assert len(task.prompts(50, rng=rng, split="test").problems) == 8 == task.size("test")
    with pytest.raises(ValueError, match=r"split must be one of \['test', 'train'\], got 'dev'"):
        task.prompts(1, rng=rng, split="dev")


def test_long_prompts_leave_whole_and_are_counted() -> None:
    lengths = sorted(len(TOK(GSM8KTask(TOK, data=FIXTURE).prompt(r["question"]))["input_ids"]) for r in rows("train"))
    with pytest.warns(UserWarning, match="prompts over"):
        task = GSM8KTask(TOK, data=FIXTURE, max_prompt_tokens=lengths[9])
    assert task.size("train") == 10
    assert task.dropped["train"] == 12
    assert task.dropped["test"] == 8 - task.size("test")
    assert task.prompts(10, rng=RNG(0)).tokens.shape == (10, lengths[9])
    with pytest.raises(ValueError, match="max_prompt_tokens=3 leaves none of the 22 train problems"):
        GSM8KTask(TOK, data=FIXTURE, max_prompt_tokens=3)


def test_stop_tokens() -> None:
    task = ArithmeticTextTask(TOK, stop_ids=(7,))
    assert (task.eos_id, task.pad_id, task.stop_ids) == (2, 2, (2, 7, 0))
    assert task.vocab_size == len(TOK)
    problem = TextProblem("", Fraction(22), "")
    texts = ["22", "22<|im_end|>", "22<|endoftext|>", "22" + TOK.decode([7]), "", "<|im_end|>"]
    assert parts(task, problem, texts)["finished"] == [0, 1, 1, 1, 0, 1]


def test_score_reads_the_mask_and_not_the_padding() -> None:
    task = ArithmeticTextTask(TOK)
    tokens, mask = responses(task, ["22<|im_end|>", "22<|im_end|> no, 23"])
    mask[1] = mask[0]
    scores = task.score((TextProblem("", Fraction(22), ""),) * 2, tokens, mask.float())
    assert scores.rewards.tolist() == [1, 1]
    assert scores.parts["finished"].tolist() == [1, 1]
    with pytest.raises(ValueError, match="must be of one length, got 1, 2, 2"):
        task.score((None,), tokens, mask)


def test_decode_leaves_special_tokens_out() -> None:
    task = ArithmeticTextTask(TOK)
    assert task.decode(TOK("<|im_start|>It is 22 .<|im_end|>")["input_ids"]) == "It is 22 ."


@pytest.mark.parametrize("task", [ArithmeticTextTask(TOK), GSM8KTask(TOK, data=FIXTURE)])
def test_the_task_s_own_answers_earn_everything(task: TextTask) -> None:
    problems = task.prompts(16, rng=RNG(0)).problems
    ids = task.answers(problems)
    assert all(row[-1] == task.eos_id and row.count(task.eos_id) == 1 for row in ids)
    texts = [TOK.decode(row) for row in ids]
    scores = task.score(problems, *responses(task, texts))
    assert scores.rewards.tolist() == [1] * 16
    assert {name: part.tolist() for name, part in scores.parts.items()} == dict.fromkeys(
        ("correct", "format", "finished"), [1.0] * 16
    )
    shifted = task.score(problems[1:] + problems[:1], *responses(task, texts))
    assert shifted.rewards.sum() < 8


def test_bad_settings() -> None:
    with pytest.raises(ValueError, match=r"tokenizer has no EOS token; set tokenizer\.eos_token"):
        ArithmeticTextTask(tokenizer(eos=None))
    with pytest.raises(ValueError, match="max_new_tokens must be at least 1, got 0"):
        ArithmeticTextTask(TOK, max_new_tokens=0)
    with pytest.raises(ValueError, match=r"format_reward must not be negative, got -0.1"):
        ArithmeticTextTask(TOK, format_reward=-0.1)


# ---- what stands around the question


@pytest.mark.parametrize("chat", [True, False])
def test_shots_are_shown_and_not_trained_on(chat: bool) -> None:
    plain = GSM8KTask(TOK if chat else tokenizer(None), data=FIXTURE)
    task = GSM8KTask(TOK if chat else tokenizer(None), data=FIXTURE, shots=2)
    first, second, *others = plain._problems["train"]
    assert task._problems == {"train": tuple(others), "test": plain._problems["test"]}
    if chat:
        turns = [f"<|im_start|>{role}\n{text}<|im_end|>\n" for shown in (first, second)
                 for role, text in (("user", shown.question), ("assistant", shown.solution))]  # fmt: skip
        head = f"<|im_start|>system\n{task.system}<|im_end|>\n" + "".join(turns)
        assert task.prompt("Why?") == head + "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    else:
        told = [f"Question: {shown.question}\nAnswer: {shown.solution}" for shown in (first, second)]
        assert task.prompt("Why?") == "\n\n".join([task.system, *told, "Question: Why?\nAnswer:"])
    for bad in (-1, 22):
        with pytest.raises(ValueError, match=f"shots={bad}: must be at least 0 and leave train problems, of 22"):
            GSM8KTask(TOK, data=FIXTURE, shots=bad)


def test_the_length_limit_does_not_count_shots() -> None:
    longest = max(len(TOK(GSM8KTask(TOK, data=FIXTURE).prompt(r["question"]))["input_ids"]) for r in rows("train"))
    with pytest.warns(UserWarning, match=r"left out: \{'train': 0, 'test': 1\}"):
        task = GSM8KTask(TOK, data=FIXTURE, shots=3, max_prompt_tokens=longest)
    assert task.prompts(1, rng=RNG(0)).tokens.shape[1] > longest


def test_prompt_formats() -> None:
    forms = {
        "auto": "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n",
        "plain": "Be brief.\n\nQuestion: Why?\nAnswer:",
        "Q: {question} {} A:": "Be brief.\n\nQ: Why? {} A:",
    }
    for form, expected in {**forms, "chat": forms["auto"]}.items():
        task = GSM8KTask(TOK, data=FIXTURE, system="Be brief.", prompt_format=form)
        assert task.prompt("Why?") == expected
        row = task.prompts(1, rng=RNG(0))
        assert TOK.decode(row.tokens[0][row.mask[0]]) == task.prompt(row.problems[0].question)
    with pytest.raises(ValueError, match="prompt_format='terse': take auto, chat, plain, or a text that holds"):
        GSM8KTask(TOK, data=FIXTURE, prompt_format="terse")
    with pytest.raises(ValueError, match="prompt_format='chat': this tokenizer has no chat template"):
        GSM8KTask(tokenizer(None), data=FIXTURE, prompt_format="chat")


def test_fields_of_the_config_reach_the_task() -> None:
    config = Config(task="gsm8k", question_field="q", answer_field="a", system="none", shots=3, data="d.jsonl")
    found = options_of(config, GSM8KTask)
    assert found == {"question_field": "q", "answer_field": "a", "system": "", "shots": 3, "data": "d.jsonl"}
    assert options_of(Config(task="gsm8k"), GSM8KTask) == {}
    with pytest.raises(ValueError, match="shots=1: task='arithmetic' has nothing of that name"):
        options_of(Config(shots=1), ArithmeticTask)
    with pytest.raises(ValueError, match="shots=1: it stands in --options too"):
        options_of(Config(task="gsm8k", shots=1, options=("shots=2",)), GSM8KTask)


# ---- arithmetic


@pytest.mark.parametrize("operation", ["+", "-", "*"])
def test_arithmetic_splits(operation: str) -> None:
    task = ArithmeticTextTask(TOK, operation=operation)
    pairs: dict[str, set[tuple[int, int]]] = {}
    for split in ("train", "test"):
        problems = task.prompts(400, rng=RNG(0), split=split).problems
        pairs[split] = set()
        for problem in task._problems[split]:
            left, right = map(int, re.findall(r"\d+", problem.question))
            assert problem.answer == {"+": left + right, "-": left - right, "*": left * right}[operation]
            pairs[split].add((left, right))
        assert set(problems) <= set(task._problems[split])
    assert not pairs["train"] & pairs["test"]
    assert pairs["train"] | pairs["test"] == {(a, b) for a in range(1, 20) for b in range(1, 20)}
    assert 0.1 < len(pairs["test"]) / 361 < 0.4
    first = [int(re.findall(r"\d+", p.question)[0]) for p in task.prompts(20, rng=RNG(0), split="test").problems]
    assert max(first) > 12  # the list that evaluation reads from its start is not in order of size
    if operation != "-":
        assert {(b, a) for a, b in pairs["test"]} == pairs["test"]


def test_arithmetic_judge() -> None:
    task = ArithmeticTextTask(TOK)
    problem = TextProblem("What is 17 + 5?", Fraction(22), "22")
    table = {  # text → correct, format
        "22": (1, 1),
        " 22.\n": (1, 1),
        "22!": (1, 0),
        "17 + 5 = 22": (1, 0),
        "17+5=22.": (1, 0),
        "The answer is **22**.": (1, 0),
        "22.0": (1, 0),
        "It is 22 apples": (1, 0),
        "23": (0, 1),
        "-22": (0, 1),
        "222": (0, 1),
        "22.5": (0, 0),
        "22 is the sum of 17 and 5": (0, 0),
        "22, or 23": (0, 0),
        "twenty-two": (0, 0),
        "": (0, 0),
        "2" * 5000: (0, 1),
        "22" + "²" * 3: (1, 0),
        "２２": (0, 0),
    }
    scores = parts(task, problem, list(table))
    assert dict(zip(table, zip(scores["correct"], scores["format"], strict=True), strict=True)) == table
    assert scores["reward"] == scores["correct"]
    assert parts(ArithmeticTextTask(TOK, format_reward=0.25), problem, ["22", "= 22", "23"])["reward"] == [
        1.25,
        1,
        0.25,
    ]
    for text, value in {"5 - 17 = -12": -12, "−12": -12, "5-12": 12, "1,000": 1000}.items():
        assert task.judge(TextProblem("", Fraction(value), ""), text)[0]


def test_arithmetic_bad_settings() -> None:
    with pytest.raises(ValueError, match=r'operation must be one of "\+", "-" and "\*", got "?\'/\''):
        ArithmeticTextTask(TOK, operation="/")
    for operands in ((5, 4), (-1, 4), (0, 1000)):
        with pytest.raises(ValueError, match="operands must be"):
            ArithmeticTextTask(TOK, operands=operands)
    with pytest.raises(ValueError, match=r"leaves a split of \(1, 1\) empty"):
        ArithmeticTextTask(TOK, operands=(1, 1))


# ---- GSM8K


def rows(split: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (FIXTURE / f"{split}.jsonl").read_text("utf-8").splitlines()]


def calculate(expression: str) -> Fraction:
    def value(node: ast.expr) -> Fraction:
        match node:
            case ast.Constant(value=number):
                return Fraction(str(number))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case ast.BinOp(left=left, op=op, right=right):
                a, b = value(left), value(right)
                return {ast.Add: a + b, ast.Sub: a - b, ast.Mult: a * b, ast.Div: a / (b or 1)}[type(op)]
        raise AssertionError(ast.dump(node))

    return value(ast.parse(expression, mode="eval").body)


def test_every_annotation_of_the_fixture_is_right() -> None:
    every = rows("train") + rows("test")
    assert len(every) == 30 == len({row["question"] for row in every})
    for row in every:
        annotations = re.findall(r"([-\d.,*/+]*)\s*=?\s*\$?<<(.+?)=(.+?)>>(-?[\d,]+(?:\.\d+)?)", row["answer"])
        assert annotations
        for written, left, right, shown in annotations:
            assert calculate(left) == Fraction(right), row
            assert Fraction(shown.replace(",", "")) == Fraction(right), row
            assert not written or written == left, row
        gold = row["answer"].split("#### ")[1]
        assert gold.replace(",", "") == annotations[-1][2], row
        assert parse_answer(row["answer"]) == Fraction(gold.replace(",", ""))


def test_gsm8k_judge() -> None:
    task = GSM8KTask(TOK, data=FIXTURE)
    problem = TextProblem("", Fraction(1360), "")
    table = {  # text → correct, format
        "2000 - 640 = 1360\n#### 1,360": (1, 1),
        "\\boxed{1360}": (1, 1),
        "<think>so</think><answer>$1,360.00</answer>": (1, 1),
        "#### 1361": (0, 1),
        "#### 1360\n#### 5": (0, 1),
        "The answer is 1360.": (0, 0),
        "#### 1360 640": (0, 0),
        "####": (0, 0),
        "": (0, 0),
    }
    scores = parts(task, problem, [text + "<|im_end|>" * (i % 2) for i, text in enumerate(table)])
    assert dict(zip(table, zip(scores["correct"], scores["format"], strict=True), strict=True)) == table
    assert scores["finished"] == [i % 2 for i in range(len(table))]  # says nothing of the others
    assert scores["reward"] == scores["correct"]
    paid = GSM8KTask(TOK, data=FIXTURE, format_reward=0.125)
    assert parts(paid, problem, ["#### 1360", "#### 1", "1360"])["reward"] == [1.125, 0.125, 0]


def test_gsm8k_answers_carry_no_calculator_calls() -> None:
    task = GSM8KTask(TOK, data=FIXTURE)
    assert any("<<" in row["answer"] for row in rows("train"))
    for problem in task._problems["train"]:
        assert "<<" not in problem.solution
        assert parse_answer(problem.solution) == problem.answer


def test_gsm8k_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = GSM8KTask(TOK, data=FIXTURE)._problems
    monkeypatch.setenv("GSM8K_DIR", str(FIXTURE))
    assert GSM8KTask(TOK)._problems == expected
    assert GSM8KTask(TOK, data={"train": rows("train"), "test": FIXTURE / "test.jsonl"})._problems == expected
    for split in ("train", "test"):  # other names, a byte-order mark, Windows line ends and blank lines
        lines = [json.dumps({"q": row["question"], "a": row["answer"]}) for row in rows(split)]
        (tmp_path / f"{split}.jsonl").write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(lines).encode())
    assert GSM8KTask(TOK, data=tmp_path, question_field="q", answer_field="a")._problems == expected
    with pytest.raises(ValueError, match=r"train row 1 has no text field 'question', only \['a', 'q'\]"):
        GSM8KTask(TOK, data=str(tmp_path))


def test_gsm8k_bad_sources(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train.jsonl is not a file; give a folder that holds train.jsonl and test"):
        GSM8KTask(TOK, data=tmp_path)
    good = rows("train")
    for train, message in {
        "{\n": "line 1 of .* is not JSON",
        "\n3\n": "line 2 of .* is not a JSON object",
        json.dumps({"question": "?", "answer": "#### none"}): "train row 1 has no number after its marker: '#### none'",
        json.dumps({"question": "?", "answer": "none"}): "no train row has a number in 'answer'; name it with",
        json.dumps({"question": "?"}): "no text field 'answer', only .* name it with --answer-field",
        json.dumps({"question": None, "answer": "1"}): "train row 1 has no text in 'question' but None; mend it",
        json.dumps({"question": "?", "answer": [1]}): r"train row 1 has no text in 'answer' but \[1\]; mend it",
        json.dumps({"question": " ", "answer": "1"}): "train row 1 has an empty 'question'",
        json.dumps({"question": "\ud800", "answer": "1"}): "half a character in 'question': .*ud800",
        '{"question": "?", "answer": ' + "9" * 5000 + "}": "line 1 of .* is not JSON: Exceeds the limit",
        "[" * 100_000: "line 1 of .* is not JSON: maximum recursion depth",
        "\udce9": "train.jsonl is not UTF-8 text at byte 0",
        "": "leaves none of the 0 train problems",
    }.items():
        (tmp_path / "train.jsonl").write_text(train, "utf-8", "surrogateescape")
        with pytest.raises(ValueError, match=message):
            GSM8KTask(TOK, data={"train": tmp_path / "train.jsonl", "test": good})
    with pytest.raises(ValueError, match=r"data must hold the splits \('train', 'test'\), got \['train'\]"):
        GSM8KTask(TOK, data={"train": good})
    with pytest.raises(ValueError, match="1 train questions are also test questions"):
        GSM8KTask(TOK, data={"train": good, "test": rows("test") + good[:1]})


def test_one_file_with_other_fields_and_bare_answers(tmp_path: Path) -> None:
    """As DeepMath-103K has them: numbers without a marker, and answers that are no number."""
    answers = ["12", r"\frac{3}{4}", "x + 1", "Yes", r"\infty", "-7", 5]
    lines = [{"question": f"Q{i}?", "final_answer": answers[i % 7]} for i in range(140)]
    file = tmp_path / "deep.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.warns(UserWarning, match="problems without a number for an answer left out"):
        task = GSM8KTask(TOK, data=file, answer_field="final_answer", test_share=0.25)
    assert sum(task.not_numbers.values()) == 60
    assert 20 < task.size("test") * 7 / 4 < 50
    assert task.size("train") + task.size("test") == 80
    every = {p.question: p.answer for split in ("train", "test") for p in task._problems[split]}
    numbers = {0: Fraction(12), 1: Fraction(3, 4), 5: Fraction(-7), 6: Fraction(5)}
    assert every == {f"Q{i}?": numbers[i % 7] for i in range(140) if i % 7 in numbers}
    assert {p.solution for p in task._problems["test"]} <= {"#### 12", r"#### \frac{3}{4}", "#### -7", "#### 5"}
    file.write_text("".join(json.dumps(line) + "\n" for line in reversed(lines)))
    with pytest.warns(UserWarning, match="left out"):
        turned = GSM8KTask(TOK, data=file, answer_field="final_answer", test_share=0.25)
    assert set(turned._problems["test"]) == set(task._problems["test"])  # a problem's side does not hang on its place
    with pytest.raises(ValueError, match=r"row 1 has no text field 'answer', only .*; name it with --answer-field"):
        GSM8KTask(TOK, data=file)
    with pytest.raises(ValueError, match=r"row 1 of .* has no text field 'q', only .*; name it with --question-field"):
        GSM8KTask(TOK, data=file, question_field="q")
    with pytest.raises(ValueError, match="test_share=1: must lie between 0 and 1"):
        GSM8KTask(TOK, data=file, answer_field="final_answer", test_share=1)
    file.write_text(json.dumps(lines[0]))
    with pytest.raises(ValueError, match="leaves a split empty at test_share"):
        GSM8KTask(TOK, data=file, answer_field="final_answer")


# ---- word problems


def test_every_line_of_every_generated_solution_is_right() -> None:
    kinds = set()
    for steps in ((1, 1), (2, 4), (5, 8)):
        found = problems(300, steps)
        assert len({row["question"] for row in found}) == 300
        for row in found:
            kinds.add(row["question"].split(".")[0].split(" ", 1)[1].rstrip("0123456789"))
            *lines, last = row["answer"].split("\n")
            results = []
            for line in lines:
                expression, value = re.search(r"(\d+ [-+*/] \d+) = (\d+)", line).groups()
                assert calculate(expression) == int(value), row
                results.append(value)
            assert last == f"#### {results[-1]}"
            told = set(re.findall(r"\d+", row["question"])) | set(results) | {"2", "3", "4", "5"}
            assert {n for line in lines for n in re.findall(r"(\d+) [-+*/] (\d+)", line) for n in n} <= told, row
    assert len(kinds) > 10


def test_word_problems_are_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    task = WordProblemsTask(TOK, train=60, test=20, steps=(1, 2))
    same, other = (
        WordProblemsTask(TOK, train=60, test=20, steps=(1, 2)),
        WordProblemsTask(TOK, train=60, test=20, steps=(1, 2), problem_seed=1),
    )
    assert (task.size("train"), task.size("test")) == (60, 20)
    assert task._problems == same._problems
    assert not set(task._problems["test"]) & set(task._problems["train"])
    assert other.prompts(20, rng=RNG(0), split="test").problems != task._problems["test"]
    every = task.prompts(20, rng=RNG(0)).problems
    scores = task.score(every, *responses(task, [TOK.decode(ids) for ids in task.answers(every)]))
    assert scores.rewards.tolist() == [1] * 20
    with pytest.raises(ValueError, match=r"steps=\(3, 2\): must be"):
        WordProblemsTask(TOK, steps=(3, 2))
    with pytest.raises(ValueError, match="test=0: must be between"):
        WordProblemsTask(TOK, test=0)
    monkeypatch.setattr(word_problems, "_KINDS", (lambda story, _: story.told.append(str(story.between(1, 3))),))
    assert len(problems(3, (1, 1))) == 3
    with pytest.raises(ValueError, match=r"too few different problems for train \+ test = 4"):
        problems(4, (1, 1))


def test_gsm8k_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def hub(load: Any) -> None:
        monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load))  # type: ignore[misc]

    def offline(*_: str) -> None:
        raise ConnectionError("no route")

    monkeypatch.delenv("GSM8K_DIR", raising=False)
    asked = []
    hub(lambda *names: asked.append(names) or {"train": rows("train"), "test": rows("test")})
    assert GSM8KTask(TOK)._problems == GSM8KTask(TOK, data=FIXTURE)._problems
    assert asked == [("openai/gsm8k", "main")]
    hub(offline)
    with pytest.raises(ValueError, match=r"ConnectionError: no route\); go online, or set GSM8K_DIR"):
        GSM8KTask(TOK)
    monkeypatch.setitem(sys.modules, "datasets", None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"pip install 'sspo_teach\[scale\]', or set GSM8K_DIR"):
        GSM8KTask(TOK)
