"""Every exercise accepts a right answer and refuses none, rubbish, and at least two typical wrong ones."""

from __future__ import annotations

from importlib import import_module

import pytest

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
    assert "could not use" in Exercise("a", lambda x: x.nothing, "b", ()).check(1).message
