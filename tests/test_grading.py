"""Every exercise accepts a right answer and refuses none, rubbish, and at least two typical wrong ones."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from sspo_teach.grading import LESSONS, Exercise, check, exercises, hint

ALL = exercises()
ANSWERS = {name: import_module(f"answers.{name}") for name in LESSONS}


def answers(name: str):
    lesson, _, key = name.partition(".")
    module = ANSWERS[f"lesson_{lesson}"]
    return module.RIGHT[key], module.WRONG[key]


@pytest.mark.parametrize("name", ALL)
def test_a_right_answer_passes(name: str):
    right, _ = answers(name)
    verdict = check(name, right)
    assert verdict, verdict.message


@pytest.mark.parametrize("name", ALL)
def test_no_answer_is_refused(name: str):
    for empty in (None, ...):
        verdict = check(name, empty)
        assert not verdict
        assert "no answer yet" in verdict.message


@pytest.mark.parametrize("name", ALL)
def test_typical_wrong_answers_are_refused_each_with_a_word_of_its_own(name: str):
    _, wrong = answers(name)
    assert len(wrong) >= 2
    verdicts = [check(name, answer) for answer in wrong]
    assert not any(verdicts)
    assert len({verdict.message for verdict in verdicts}) > 1, "wrong in two ways, told the same"


@pytest.mark.parametrize("name", ["02.silent", "02.shares", "02.rounds", "04.outlier", "04.geometric", "04.prefix"])
def test_every_typical_mistake_has_a_message_of_its_own(name: str):
    messages = [check(name, answer).message for answer in answers(name)[1]]
    assert len(set(messages)) == len(messages), messages


@pytest.mark.parametrize("name", ALL)
def test_rubbish_is_refused_without_a_traceback(name: str):
    for rubbish in ("words", object(), float("nan"), [], lambda *_: None):
        assert not check(name, rubbish)


@pytest.mark.parametrize("name", ALL)
def test_hints_come_in_levels(name: str):
    assert len(ALL[name].hints) >= 2
    assert hint(name, 99) == ALL[name].hints[-1]


def test_an_unknown_exercise_suggests_the_nearest():
    with pytest.raises(ValueError, match="unknown exercise: 'nothing'"):
        check("nothing", 1)


def test_a_verdict_shows_itself():
    one = Exercise("a number", lambda x: None if x == 1 else "not 1 <", "one", ("a", "b"))
    assert str(one.check(1)) == "✓ one"
    assert "✗ not 1 &lt;" in one.check(2)._repr_html_()


@pytest.mark.parametrize(
    ("name", "answer", "said"),
    [
        ("02.rounds", 5, "5 is one number; wanted: two whole numbers"),
        ("02.rounds", "twenty", "'twenty' is text; wanted: two whole numbers"),
        ("02.rounds", (1, 2, 3), "(1, 2, 3), holds 3 values"),
        ("02.rounds", lambda: (22, 16), "this is a function: give what it returns"),
        ("00.teaching", float("nan"), "nan is no number to count with; wanted: how many"),
        ("02.weight", 1.3, "1.3 is not a function; wanted: a function weight"),
        ("02.weight", lambda *_: None, "your function returned nothing"),
        ("03.gate", lambda *_: None, "your function returned nothing"),
        ("02.shares", lambda *_: "x", "your function returned 'x', which the check cannot use"),
        ("02.weight", lambda ratio: ratio, "cannot be called as the check does"),
        ("02.weight", lambda ratio, *_: ratio.nothing, "your function fails with AttributeError"),
        ("04.geometric", lambda log_r, mask: log_r[:, 0], "the shape must be (4, 1), got (4,)"),
    ],
)
def test_what_cannot_be_judged_is_told_in_words(name, answer, said):
    message = check(name, answer).message
    assert said in message
    assert "wanted: " in message
    for inner in ("not iterable", "Could not infer", "could not convert", "NoneType"):
        assert inner not in message


@pytest.mark.parametrize("answer", [list(range(1000)), "words " * 99, lambda *_: torch.zeros(5000)])
def test_a_long_answer_is_quoted_in_short(answer):
    for name in ("02.rounds", "02.shares"):
        assert len(check(name, answer).message) < 300


def test_the_weight_of_a_silent_token_is_zero_without_a_sign_and_with_a_reason():
    message = check("02.weight", lambda ratio, A, low, high: ratio.clamp(1 - low, 1 + high)).message
    assert "the weight is 0, not 0.8" in message or "the weight is 0, not 1.28" in message
    assert "left the band the way A wants" in message
