"""Shares and their intervals, on held-out problems only."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch

from sspo_teach.policies.causal_lm import tiny_qwen2
from sspo_teach.policies.sampling import Sampling
from sspo_teach.tasks.toy import ArithmeticTask, BanditTask
from sspo_teach.training import evaluation
from sspo_teach.training.evaluation import Share, evaluate, wilson
from sspo_teach.training.passk import bootstrap, majority, pass_at, sample_many


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (5, 10, 0.2366, 0.7634),
        (10, 10, 0.7225, 1.0),
    ],
)
def test_wilson_s_interval_against_published_numbers(k, n, low, high):
    """The first four are the examples of Newcombe (Statistics in Medicine 17, 1998), method 3."""
    assert wilson(k, n) == pytest.approx((low, high), abs=5e-5)


def test_wilson_s_interval_holds_its_share_and_mirrors():
    for n in (1, 7, 50):
        for k in range(n + 1):
            low, high = wilson(k, n)
            assert 0 <= low <= k / n <= high <= 1
            assert wilson(n - k, n) == pytest.approx((1 - high, 1 - low))
            assert (low == 0, high == 1) == (k == 0, k == n)
    assert wilson(0, 0) == (0, 1)
    for k, n in ((-1, 3), (4, 3)):
        with pytest.raises(ValueError, match=f"k={k}: must lie between 0 and n={n}"):
            wilson(k, n)


def test_a_share_of_nothing_is_unknown():
    assert Share(0, 0).as_dict() == {"k": 0, "n": 0, "share": None, "low": 0.0, "high": 1.0}
    assert math.isnan(Share(0, 0).value)
    assert Share(1, 4).as_dict()["share"] == 0.25


class Recorder(ArithmeticTask):
    """Arithmetic that remembers which problems it was asked to judge."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[object] = []

    def score(self, problems, tokens, mask):
        self.asked += problems
        return super().score(problems, tokens, mask)


def test_only_held_out_problems_and_each_once(monkeypatch):
    monkeypatch.setattr(evaluation, "ROWS", 16)
    task = Recorder()
    found = evaluate(tiny.policy(task.vocab_size), task, 40)
    held_out = task.prompts(40, rng=np.random.default_rng(7), split="test").problems
    assert task.asked == [*held_out, *held_out]  # greedily, then sampled
    assert len(set(held_out)) == 40
    trained = task.prompts(2000, rng=np.random.default_rng(0), split="train").problems
    assert not set(held_out) & set(trained)
    assert found["greedy"]["correct"]["n"] == found["sampled"]["finished"]["n"] == 40


def test_fewer_problems_than_asked_for_are_no_error():
    task = BanditTask(contexts=3)
    assert evaluate(tiny.policy(task.vocab_size), task, 1000)["greedy"]["correct"]["n"] == 3


def script(answers: list[list[int]]):
    """A policy that gives these responses, to any number of prompts in turn."""

    def generate(prompts, mask, *, max_new_tokens, pad_id, **_):
        rows = [answers.pop(0) for _ in prompts]
        tokens = torch.tensor([row + [pad_id] * (max_new_tokens - len(row)) for row in rows])
        written = torch.tensor([[t < len(row) for t in range(max_new_tokens)] for row in rows])
        ended = torch.tensor([row[-1] == 1 for row in rows])
        return SimpleNamespace(tokens=tokens, mask=written, truncated=~ended)

    return SimpleNamespace(device="cpu", generate=generate)


def test_counts_add_up():
    """Right; right but for a letter; not finished; padding said aloud. Twice, for the two ways."""
    task = BanditTask(rule="copy", letters=2, max_new_tokens=4, contexts=4)
    (a, b, c, d) = task.answers(task.prompts(4, rng=np.random.default_rng(0), split="test").problems)
    wrong = [5 - b[0], *b[1:]]
    answers = [a, wrong, [*c[:3], 2], [0, *d[:2], 1]]
    found = evaluate(script([*answers, *answers]), task, 4)["greedy"]
    counts = {name: (part["k"], part["n"]) for name, part in found.items() if isinstance(part, dict)}
    assert counts == {
        "correct": (1, 4),
        "format": (2, 4),
        "finished": (3, 4),
        "correct_given_format": (1, 2),
        "correct_given_finished": (1, 3),
    }
    assert found["reward"] == pytest.approx((1 + 2 / 3) / 4)
    assert found["length"] == 4
    assert (found["correct"]["low"], found["correct"]["high"]) == wilson(1, 4)
    assert found["samples"][0] == f"{task.game.prompts[0]} → {task.game.prompts[0]}"
    assert len(found["samples"]) == 3


@pytest.mark.parametrize("batch", [1, 2, 3, 5])
def test_batches_of_any_size_show_the_same_answers(batch):
    task = ArithmeticTask(digits=(1, 2))
    one, other = (evaluate(tiny.policy(task.vocab_size), task, 5, batch=rows)["greedy"] for rows in (0, batch))
    assert other == one
    asked = task.prompts(3, rng=np.random.default_rng(0), split="test")
    assert [text.partition(" →")[0] for text in other["samples"]] == [
        task.decode(tokens[mask].tolist()) for tokens, mask in zip(asked.tokens, asked.mask, strict=True)
    ]


def test_length_seed_and_sampling_are_the_caller_s(monkeypatch):
    monkeypatch.setattr(evaluation, "ROWS", 3)
    task = BanditTask()
    one = tiny_qwen2(task.vocab_size, seed=0)
    first, same = (evaluate(one, task, 8, seed=1) for _ in range(2))
    other = evaluate(one, task, 8, seed=2)
    assert first == same
    assert first["greedy"] == other["greedy"]
    assert first["sampled"] != other["sampled"]
    cold = evaluate(one, task, 8, sampling=Sampling(top_k=1))  # an evaluation may truncate
    assert cold["sampled"] == cold["greedy"]
    long = evaluate(one, task, 8, max_new_tokens=9)
    assert long["sampled"]["length"] > 4 >= first["sampled"]["length"]


# --- many answers to a problem --------------------------------------------------------------------------------------


def test_pass_at_k_is_the_share_of_draws_without_replacement_that_hold_a_right_one():
    for n, c, k in ((4, 1, 2), (6, 2, 3), (5, 0, 5), (5, 5, 1), (6, 4, 3)):
        draws = list(itertools.combinations([1] * c + [0] * (n - c), k))
        assert pass_at(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    for n, c, k, words in ((4, 5, 1, "c=5: must lie between 0 and n=4"), (4, 1, 5, "k=5: must lie between 1 and n=4")):
        with pytest.raises(ValueError, match=words):
            pass_at(n, c, k)


def test_pass_at_k_is_unbiased_where_the_plug_in_is_not():
    """Over all outcomes of n = 5 answers, each right with p = 0.3: exact expectations, no draws."""
    p, n, k = 0.3, 5, 3
    chance = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    truth = 1 - (1 - p) ** k
    assert sum(w * pass_at(n, c, k) for c, w in enumerate(chance)) == pytest.approx(truth)
    assert sum(w * (1 - (1 - c / n) ** k) for c, w in enumerate(chance)) < truth - 0.02


def test_majority():
    assert majority(["a", "b", "a", None], [True, False, True, False]) == 1
    assert majority(["a", "b", "b", None, None, None], [True, False, False, False, False, False]) == 0
    assert majority(["a", "b", "c", "c", "a"], [True, False, False, False, True]) == 0.5  # a tie
    assert majority([None, None], [False, False]) == 0


def test_the_bootstrap_draws_problems_and_not_answers():
    """Answers that agree within a problem are worth one: k times as many of them leave the interval as it is."""
    rng = np.random.default_rng(0)
    x = (rng.random(400) < 0.5).astype(float)
    low, high = bootstrap(x)
    assert (low, high) == pytest.approx(wilson(int(x.sum()), 400), abs=0.01)
    assert bootstrap(8 * x, np.full(400, 8.0)) == pytest.approx((low, high))
    assert bootstrap(np.zeros(3), np.zeros(3)) == (0, 1)


def test_many_answers_add_up():
    """Two problems, four answers each: two right ones of which one vote wins; then no right one."""
    task = BanditTask(rule="copy", letters=2, max_new_tokens=4, contexts=2)
    a, b = task.answers(task.prompts(2, rng=np.random.default_rng(0), split="test").problems)
    wrong = [[5 - x if i == place else x for i, x in enumerate(b[:-1])] + [1] for place in (0, 1)]
    cut = [*b[:-1], 2]
    answers = [a, [5 - a[0], *a[1:]], a, [*a[:-1], 2], *wrong, cut, cut]
    one = script(answers)
    found = sample_many(one, task, 5, 4, batch=0, engine=SimpleNamespace(generate=lambda p, m, group_size, **o:
                        one.generate([0] * len(p) * group_size, m, **o)))  # fmt: skip
    assert (found["n"], found["k"], found["length"]) == (2, 4, 4.0)
    assert found["pass@1"]["share"] == 0.25
    assert found["pass@2"]["share"] == pytest.approx((1 - 1 / 6) / 2)
    assert found["pass@4"]["share"] == 0.5
    assert found["maj@4"]["share"] == 0.5
    assert found["truncated"]["share"] == 3 / 8
    assert found["format"]["share"] == 5 / 8
    assert found["correct_given_format"]["share"] == 2 / 5
    assert 0 <= found["pass@1"]["low"] <= 0.25 <= found["pass@1"]["high"] <= 0.5


def test_many_answers_to_all_problems_by_a_model():
    task = BanditTask()
    one = tiny_qwen2(task.vocab_size, seed=0)
    found = sample_many(one, task, 100_000, 3, batch=5)
    assert found["n"] == len(task.prompts(10**5, rng=np.random.default_rng(0), split="test").problems)
    assert list(found)[3:6] == ["pass@1", "pass@2", "pass@3"]
    assert found == sample_many(one, task, 100_000, 3, batch=5)
    assert found != sample_many(one, task, 100_000, 3, batch=5, seed=1)
