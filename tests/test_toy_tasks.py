"""The toy environments as tasks: what the trainer is handed, in tensors."""

import numpy as np
import pytest
import torch

from sspo_teach.tasks.toy import ArithmeticTask, BanditTask

TASKS = [
    ArithmeticTask(operations="+-*", digits=(1, 3), partial_credit=0.3),
    ArithmeticTask(max_new_tokens=6),
    BanditTask(),
    BanditTask(rule="sort"),
]


def right_responses(task, problems):
    """The right responses, (B, T) tokens and mask."""
    answers = task.answers(problems)
    tokens = torch.full((len(answers), task.max_new_tokens), task.pad_id)
    mask = torch.zeros(tokens.shape, dtype=torch.bool)
    for row, answer in enumerate(answers):
        tokens[row, : len(answer)] = torch.tensor(answer)
        mask[row, : len(answer)] = True
    return tokens, mask


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
@pytest.mark.parametrize("split", ["train", "test"])
def test_prompts_are_left_padded_ids(task, split):
    prompts = task.prompts(6, rng=np.random.default_rng(0), split=split)
    assert (prompts.tokens.dtype, prompts.mask.dtype) == (torch.int64, torch.bool)
    assert prompts.tokens.shape == prompts.mask.shape == (6, task.game.prompt_width)
    assert (prompts.mask.int().diff(dim=1) >= 0).all()  # padding, then text
    assert (prompts.mask == (prompts.tokens != task.pad_id)).all()
    assert len(prompts.problems) == 6
    assert prompts.tokens.max() < task.vocab_size
    assert prompts.tokens.shape == task.prompts(6, rng=np.random.default_rng(0), progress=0.0).tokens.shape


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_right_answers_earn_everything_and_end(task):
    problems = task.prompts(50, rng=np.random.default_rng(0)).problems
    tokens, mask = right_responses(task, problems)
    for kind in (torch.bool, torch.int64, torch.float32):
        scores = task.score(problems, tokens, mask.to(kind))
        assert {name: part.mean().item() for name, part in scores.parts.items()} == {
            "correct": 1,
            "format": 1,
            "finished": 1,
        }
        assert (scores.rewards.shape, scores.rewards.dtype) == ((50,), torch.float32)
        assert all(part.dtype == torch.float32 for part in scores.parts.values())
        assert scores.rewards.min() > 0.9
    assert all(answer[-1] == task.eos_id for answer in task.answers(problems))
    assert task.score(problems, tokens, mask & (tokens != task.eos_id)).parts["finished"].sum() == 0


def test_task_and_environment_say_the_same():
    task = ArithmeticTask(operations="+-", digits=(1, 2), partial_credit=0.5)
    problems = task.prompts(300, rng=np.random.default_rng(0)).problems
    tokens, _ = right_responses(task, problems)
    noise = torch.rand(tokens.shape, generator=torch.manual_seed(0)) < 0.2
    tokens = torch.where(noise, torch.randint(16, tokens.shape, generator=torch.manual_seed(1)), tokens)
    scores = task.score(problems, tokens, torch.ones_like(tokens))
    verdict = task.game.score(np.array(problems), tokens.numpy())
    np.testing.assert_array_equal(scores.rewards.numpy(), verdict["reward"])
    for name, part in scores.parts.items():
        np.testing.assert_array_equal(part.numpy(), verdict[name])
        assert 0 < part.mean() < 1


def test_prompts_read_as_problems():
    task = ArithmeticTask(operations="+-*", digits=(1, 3))
    prompts = task.prompts(40, rng=np.random.default_rng(0))
    for row, (left, operation, right), answer in zip(
        prompts.tokens, prompts.problems, task.answers(prompts.problems), strict=True
    ):
        assert task.decode(row.tolist()) == f"{left}{'+-*'[operation]}{right}="
        assert int(task.decode(answer)) == [left + right, left - right, left * right][operation]


def test_no_problem_of_the_test_split_is_ever_trained_on():
    task = ArithmeticTask(operations="+", digits=(2, 2))
    rng = np.random.default_rng(0)
    test = task.prompts(10**6, rng=rng, split="test").problems
    train = task.prompts(50_000, rng=rng).problems
    assert 1500 < len(test) == len(set(test)) < 1800
    assert not set(test) & set(train)
    assert not set(test) & {(b, operation, a) for a, operation, b in train}
    assert len(set(train)) > 6000  # of about 6500


def test_test_split_is_fixed_and_training_follows_its_seed():
    task = ArithmeticTask(digits=(1, 3))
    one, two = np.random.default_rng(1), np.random.default_rng(2)
    test = task.prompts(64, rng=one, split="test").problems
    assert task.prompts(64, rng=two, split="test").problems == test
    assert task.prompts(32, rng=two, split="test").problems == test[:32]
    assert one.bit_generator.state == np.random.default_rng(1).bit_generator.state
    assert task.prompts(64, rng=one).problems == task.prompts(64, rng=np.random.default_rng(1)).problems
    assert task.prompts(64, rng=one).problems != task.prompts(64, rng=two).problems


def test_progress_drives_the_curriculum():
    task = ArithmeticTask(digits=(1, 3))
    widest = [
        max(
            max(left, right)
            for left, _, right in task.prompts(200, rng=np.random.default_rng(0), split=split, progress=p).problems
        )
        for split in ("train", "test")
        for p in (0.0, 0.5, 1.0)
    ]
    assert [len(str(number)) for number in widest] == [1, 2, 3, 1, 2, 3]


def test_bandit_lists_every_context_once():
    task = BanditTask(contexts=5)
    prompts = task.prompts(99, rng=np.random.default_rng(0), split="test")
    assert prompts.problems == (0, 1, 2, 3, 4)
    assert [task.decode(row.tolist()) for row in prompts.tokens] == list(task.game.prompts)


def test_decode_drops_the_ends_and_shows_padding_inside():
    task = ArithmeticTask()
    pad, eos, one = task.pad_id, task.eos_id, 3
    assert task.decode([pad, one, one, eos, pad]) == "11"
    assert task.decode([one, pad, one, eos]) == "1 1"


def test_messages_name_the_argument_its_value_and_the_fix():
    task, rng = ArithmeticTask(), np.random.default_rng(0)
    with pytest.raises(ValueError, match="n: 0, expected at least one"):
        task.prompts(0, rng=rng)
    with pytest.raises(ValueError, match="split: 'dev'"):
        task.prompts(1, rng=rng, split="dev")
    with pytest.raises(ValueError, match=r"progress: 2.0, expected 0 <= progress <= 1"):
        task.prompts(1, rng=rng, split="test", progress=2.0)
    with pytest.raises(ValueError, match="problems: 1, expected one for each of the 2 responses"):
        task.score(((1, 0, 1),), torch.zeros(2, 4, dtype=torch.int64), torch.ones(2, 4))
    with pytest.raises(ValueError, match="digits: "):
        ArithmeticTask(digits=(3, 1))
    with pytest.raises(TypeError, match="digit"):
        ArithmeticTask(digit=2)
