"""The toy environments: gymnasium's own laws, the split, the verifier, the curriculum, and the table of the bandit."""

import itertools
import re
import subprocess
import sys
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from toy_envs import RULES, Arithmetic, Bandit
from toy_envs.arithmetic import ALPHABET, _uniform, carries
from toy_envs.episode import TokenEnv, TokenVectorEnv
from toy_envs.text import EOS, PAD, read, to_ids, to_text

ARITHMETIC, BANDIT = "toy_envs/Arithmetic-v0", "toy_envs/TokenBandit-v0"

CONFIGURATIONS = [
    (ARITHMETIC, {}),
    (ARITHMETIC, {"operations": "+-*", "digits": (1, 3), "carry_rich": True, "partial_credit": 0.5, "progress": 0.5}),
    (ARITHMETIC, {"operations": "-", "digits": (1, 1), "max_new_tokens": 2, "split": "test"}),
    (BANDIT, {}),
    (BANDIT, {"rule": "copy", "letters": 2, "max_new_tokens": 3, "contexts": 4, "split": "test"}),
    (BANDIT, {"rule": "count", "letters": 26, "max_new_tokens": 2}),
]
GAMES = [
    Arithmetic(operations="+-*", digits=(1, 2), partial_credit=0.5),
    Arithmetic(digits=(1, 1), max_new_tokens=6),
    Bandit(),
    *[Bandit(rule=rule, letters=2, max_new_tokens=3, contexts=4) for rule in RULES],
]


def ids(text):
    """One response as a (1, T) row."""
    return to_ids([text], ALPHABET, len(text))


def problem(left, operation, right):
    return np.array([[left, "+-*".index(operation), right]])


def random_responses(game, rng, n):
    """(n, L) tokens: garbage, and right answers with EOS, so that every verdict occurs."""
    problems = game.sample(rng, n)
    tokens = rng.integers(len(game.alphabet), size=(n, game.max_new_tokens))
    tokens[: n // 4][tokens[: n // 4] == EOS] = PAD  # no EOS
    tokens[n // 4 : n // 3, 0] = EOS  # empty
    for row, answer in enumerate(game.answers(problems)[n // 2 :], start=n // 2):
        tokens[row, : len(answer)] = answer[: game.max_new_tokens]
    return problems, tokens


# gymnasium's laws


@pytest.mark.parametrize(("name", "numbers"), CONFIGURATIONS)
@pytest.mark.parametrize("render_mode", [None, "ansi"])
def test_check_env_has_nothing_to_say(name, numbers, render_mode):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(name, render_mode=render_mode, **numbers).unwrapped)


@pytest.mark.parametrize(("name", "numbers"), CONFIGURATIONS)
def test_same_seed_same_episode(name, numbers):
    def play(seed):
        env = gym.make(name, **numbers)
        env.action_space.seed(seed)
        steps = [env.reset(seed=seed)]
        while len(steps) < 2 or not (steps[-1][2] or steps[-1][3]):
            steps.append(env.step(env.action_space.sample()))
        return repr(steps)

    assert play(3) == play(3)
    assert len({play(seed) for seed in range(20)}) > 1


@pytest.mark.parametrize("game", GAMES, ids=str)
def test_steps_agree_with_the_score_of_the_whole_response(game):
    problems, tokens = random_responses(game, np.random.default_rng(0), 400)
    verdict = game.score(problems, tokens)
    env = TokenEnv(game)
    for row, response in enumerate(tokens):
        env.reset(seed=row)
        env._problem = problems[row : row + 1]
        for token in response:
            observation, reward, terminated, truncated, info = env.step(token)
            if terminated or truncated:
                break
            assert (reward, any(info.values())) == (0.0, False)
        assert (reward, *info.values()) == tuple(verdict[part][row] for part in ("reward", *info))
        assert terminated == verdict["finished"][row] == (token == EOS)
        assert truncated == (not terminated)
        assert terminated or (observation["response"] == response).all()
    assert 0 < verdict["correct"].sum() < 400
    assert 0 < verdict["finished"].sum() < 400


@pytest.mark.parametrize("game", GAMES, ids=str)
def test_vector_env_agrees_with_the_score(game):
    env, rng, ended, prompts = TokenVectorEnv(game, num_envs=7), np.random.default_rng(1), 0, set()
    env.reset(seed=0)
    over = np.zeros(7, dtype=bool)
    for _ in range(60):
        observation, rewards, terminated, truncated, info = env.step(rng.integers(len(game.alphabet), size=7))
        assert env.observation_space.contains(observation)
        assert not (over & (terminated | truncated)).any()  # replaced at this step, with an empty response
        assert (observation["response"][over] == PAD).all()
        over = terminated | truncated
        verdict = game.score(env._problems, observation["response"])
        np.testing.assert_array_equal(rewards, np.where(over, verdict["reward"], 0))
        for part, flags in info.items():
            np.testing.assert_array_equal(flags, over & verdict[part])
        np.testing.assert_array_equal(terminated, over & verdict["finished"])
        assert not (terminated & truncated).any()
        np.testing.assert_array_equal(observation["prompt"], game.encode(env._problems))
        prompts |= set(map(tuple, observation["prompt"]))
        ended += over.sum()
    assert ended > 30
    assert len(prompts) > (2 if isinstance(game, Bandit) else 7)


@pytest.mark.parametrize("name", [ARITHMETIC, BANDIT])
@pytest.mark.parametrize("mode", [None, "sync", "vector_entry_point"])
def test_make_vec(name, mode):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gym.make_vec(name, num_envs=3, vectorization_mode=mode)
        first, _ = env.reset(seed=5)
        for _ in range(10):
            observation, rewards, *_ = env.step(env.action_space.sample())
    assert observation["prompt"].shape == first["prompt"].shape == (3, env.single_observation_space["prompt"].shape[0])
    assert rewards.shape == (3,)
    assert (first["response"] == PAD).all()  # an observation is not written over
    np.testing.assert_array_equal(first["prompt"], env.reset(seed=5)[0]["prompt"])


def test_rendering_shows_prompt_and_response():
    env = gym.make(ARITHMETIC, render_mode="ansi")
    env.reset(seed=0)
    for character in "13\n":
        env.step(ALPHABET.index(character))
    assert re.fullmatch(r"\d\d\+\d\d= 13", env.render())
    env = gym.make_vec(ARITHMETIC, num_envs=2, render_mode="ansi")
    env.reset(seed=0)
    env.step(np.array([ALPHABET.index("4")] * 2))
    assert all(re.fullmatch(r"\d\d\+\d\d= 4", line) for line in env.render())
    assert gym.make_vec(ARITHMETIC).render() is None


def test_stepping_outside_an_episode_is_refused():
    env = gym.make(ARITHMETIC).unwrapped
    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        env.step(EOS)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action: 16, expected a token id from 0 to 15"):
        env.step(16)
    env.step(EOS)
    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        env.step(EOS)
    with pytest.raises(gym.error.ResetNeeded, match="reset"):
        gym.make_vec(ARITHMETIC).step(np.array([EOS]))


def test_reset_moves_along_the_curriculum():
    env = gym.make(ARITHMETIC, digits=(1, 3), render_mode="ansi")
    for progress, longest in [(0.0, 1), (0.4, 2), (1.0, 3)]:
        lengths = set()
        for seed in range(30):
            env.reset(seed=seed, options={"progress": progress})
            lengths |= {len(operand) for operand in re.findall(r"\d+", env.render())}
        assert lengths == set(range(1, longest + 1))


def test_gymnasium_and_numpy_are_enough():
    code = "import sys, toy_envs; print([m for m in ('torch', 'sspo_teach', 'transformers') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


# text


def test_read_cuts_at_the_first_end_and_ignores_what_is_masked():
    words, lengths, finished = read(np.array([[5, 6, EOS, 7], [EOS, 5, 5, 5], [5, 6, 7, 8]]))
    assert words.tolist() == [[5, 6, PAD, PAD], [PAD] * 4, [5, 6, 7, 8]]
    assert (lengths.tolist(), finished.tolist()) == ([2, 0, 4], [True, True, False])
    words, lengths, finished = read(np.array([[5, EOS, 7]]), np.array([[True, False, False]]))
    assert (words.tolist(), lengths.tolist(), finished.tolist()) == ([[5, PAD, PAD]], [1], [False])


def test_text_and_ids_are_inverse():
    assert to_text(to_ids(["47+85="], ALPHABET, 8)[0], ALPHABET) == "47+85="
    assert sorted(to_ids([ALPHABET], ALPHABET, len(ALPHABET))[0]) == list(range(16))


# arithmetic: the split


@pytest.mark.parametrize("operations", ["+", "-", "*"])
def test_split_is_disjoint_and_exhaustive_up_to_two_digits(operations):
    game = Arithmetic(operations=operations, digits=(1, 2))
    everything = {(a, "+-*".index(operations), b) for a in range(100) for b in range(100)}
    test = {tuple(p) for p in game.held_out(10**6).tolist()}
    drawn = {
        split: {tuple(p) for p in game.sample(np.random.default_rng(0), 60_000, split).tolist()}
        for split in ("train", "test")
    }
    assert not drawn["train"] & test
    assert drawn["test"] <= test <= everything
    assert drawn["train"] <= everything
    assert 0.15 < len(test) / len(everything) < 0.25
    for a, operation, b in test if operations != "-" else ():
        assert (b, operation, a) in test
    if operations == "-":
        assert any((b, operation, a) not in test for a, operation, b in test)


def test_split_does_not_change_over_time():
    assert (
        _uniform(np.array([0]))[0] == (0xE220A8397B1DCDAF >> 11) / 2**53
    )  # the first output of splitmix64 from seed 0
    game = Arithmetic(operations="+-*")
    problems = np.array([[a, operation, b] for operation in range(3) for a in range(40, 44) for b in range(80, 84)])
    flags = "".join("01"[int(flag)] for flag in game.is_test(problems))
    assert flags == "000001001010000000000001000000001000101000000000"
    assert Arithmetic(digits=(2, 2)).held_out(5)[:, [0, 2]].tolist() == [
        [56, 34],
        [37, 13],
        [66, 58],
        [60, 94],
        [17, 36],
    ]


def test_larger_test_share_holds_out_more_of_the_same():
    small, large = (Arithmetic(test_share=share) for share in (0.1, 0.3))
    held = [{tuple(p) for p in game.held_out(10**6).tolist()} for game in (small, large)]
    assert held[0] < held[1]


def test_held_out_is_distinct_nested_and_follows_the_digits():
    game = Arithmetic(operations="+-*", digits=(1, 3))
    problems = game.held_out(500)
    assert len({tuple(p) for p in problems.tolist()}) == 500
    np.testing.assert_array_equal(problems[:100], game.held_out(100))
    assert game.is_test(problems).all()
    assert {len(str(a)) for a in problems[:, 0]} == {1, 2, 3}
    assert set(game.held_out(50, progress=0.0)[:, 2]) <= set(range(10))


# arithmetic: sampling


@pytest.mark.parametrize(("digits", "operands"), [((2, 2), range(10, 100)), ((1, 2), range(100))])
def test_every_operand_of_the_right_length_is_asked(digits, operands):
    game = Arithmetic(operations="-", digits=digits)
    for problems in (game.sample(np.random.default_rng(0), 6000), game.held_out(10**6)):
        assert set(problems[:, 0]) == set(problems[:, 2]) == set(operands)


def test_operations_and_digits_have_equal_chances():
    problems = Arithmetic(operations="+-*", digits=(1, 4)).sample(np.random.default_rng(0), 12_000)
    assert np.abs(np.bincount(problems[:, 1]) - 4000).max() < 300
    lengths = np.char.str_len(problems[:, 0].astype(str))
    assert np.abs(np.bincount(lengths)[1:] - 3000).max() < 300


@pytest.mark.parametrize(
    ("a", "operation", "b", "carried", "columns"),
    [(47, "+", 85, 2, 2), (12, "+", 34, 0, 2), (5, "+", 95, 2, 2), (999, "+", 1, 3, 3), (52, "-", 38, 1, 1),
     (38, "-", 52, 1, 1), (58, "-", 32, 0, 1), (1000, "-", 1, 3, 3), (7, "-", 9, 0, 0), (7, "*", 9, 0, 0)],
)  # fmt: skip
def test_carries(a, operation, b, carried, columns):
    assert [int(x[0]) for x in carries(problem(a, operation, b))] == [carried, columns]


def test_carry_rich_problems_carry_in_half_of_their_columns():
    def naive(a, operation, b):
        a, b = max(a, b), min(a, b)
        columns, carry, count = len(str(a)), 0, 0
        for _ in range(columns):
            a, x, b, y = a // 10, a % 10, b // 10, b % 10
            carry = x + y + carry > 9 if operation == 0 else x - y - carry < 0
            count += carry
        return count, columns - operation

    rng, share = np.random.default_rng(0), {}
    for rich in (False, True):
        game = Arithmetic(operations="+-", digits=(1, 4), carry_rich=rich)
        counts = [naive(*p) for p in np.concatenate([game.sample(rng, 2000), game.held_out(500)]).tolist()]
        share[rich] = np.mean([2 * carried >= columns for carried, columns in counts])
    assert share[True] == 1.0
    assert share[False] < 0.8


def test_curriculum_opens_the_digits_in_equal_stretches():
    game = Arithmetic(digits=(2, 5))
    assert [game.level(progress) for progress in (0, 0.24, 0.25, 0.5, 0.75, 1)] == [2, 2, 3, 4, 5, 5]
    widest = [game.sample(np.random.default_rng(0), 500, progress=p).max() for p in (0.0, 0.3, 1.0)]
    assert [len(str(number)) for number in widest] == [2, 3, 5]


def test_prompts_stand_at_the_right():
    game = Arithmetic(operations="-", digits=(1, 3))
    encoded = game.encode(np.array([[7, 1, 120], [123, 1, 456]]))
    assert ["".join(ALPHABET[i] for i in row) for row in encoded] == ["  7-120=", "123-456="]


@pytest.mark.parametrize("operations", ["+", "-", "*", "+-*"])
@pytest.mark.parametrize("digits", [(1, 1), (2, 2), (1, 3), (9, 9)])
def test_longest_answer_fits_exactly(operations, digits):
    game = Arithmetic(operations=operations, digits=digits)
    low, high = (0 if digits[0] == 1 else 10 ** (digits[0] - 1)), 10 ** digits[1] - 1
    extremes = [problem(a, o, b) for a, o, b in itertools.product((low, high), operations, (low, high))]
    assert max(len(game.answers(p)[0]) for p in extremes) == game.max_new_tokens
    for p in extremes:
        assert game.answers(p)[0][:-1] == ids(str(eval("".join(game.texts(p)).rstrip("=")))).tolist()[0]


# arithmetic: the verifier


@pytest.mark.parametrize(
    ("response", "correct", "well_formed", "finished"),
    [
        ("132\n", True, True, True),
        ("132\n7", True, True, True),
        ("132", False, False, False),
        ("133\n", False, True, True),
        ("13\n", False, True, True),
        ("1320\n", False, True, True),
        ("0132\n", False, False, True),
        ("+132\n", False, False, True),
        ("-132\n", False, True, True),
        ("--12\n", False, False, True),
        ("1-32\n", False, False, True),
        ("13 2\n", False, False, True),
        (" 132\n", False, False, True),
        ("132=\n", False, False, True),
        ("0\n", False, True, True),
        ("00\n", False, False, True),
        ("-0\n", False, False, True),
        ("-\n", False, False, True),
        ("\n132", False, False, True),
        ("\n", False, False, True),
        ("    ", False, False, False),
    ],
)
def test_verdicts(response, correct, well_formed, finished):
    verdict = Arithmetic().score(problem(47, "+", 85), ids(response))
    assert [bool(verdict[part][0]) for part in ("correct", "format", "finished")] == [correct, well_formed, finished]
    assert verdict["reward"].tolist() == [float(correct)]
    assert verdict["reward"].dtype == np.float32


@pytest.mark.parametrize(
    ("a", "operation", "b", "answer"), [(3, "-", 3, "0"), (3, "-", 12, "-9"), (12, "*", 12, "144")]
)
def test_right_answers_are_right_and_nothing_else_is(a, operation, b, answer):
    game = Arithmetic(operations="+-*", digits=(1, 2))
    assert game.score(problem(a, operation, b), ids(answer + "\n"))["correct"].all()
    for wrong in range(-99, 999):
        if str(wrong) != answer:
            verdict = game.score(problem(a, operation, b), ids(f"{wrong}\n"))
            assert (verdict["correct"][0], verdict["format"][0]) == (False, True)


def test_only_the_masked_part_of_a_response_counts():
    tokens = ids("132\n")
    assert not Arithmetic().score(problem(47, "+", 85), tokens, np.array([[1, 1, 1, 0]]))["finished"].any()
    assert not Arithmetic().score(problem(47, "+", 85), tokens, np.zeros((1, 4)))["format"].any()


def test_partial_credit_grows_with_each_right_character_and_stays_under_a_right_answer():
    game = Arithmetic(partial_credit=0.9)
    rng = np.random.default_rng(0)
    problems, tokens = random_responses(game, rng, 4000)
    verdict = game.score(problems, tokens)
    assert (verdict["reward"][verdict["correct"]] == 1).all()
    assert verdict["reward"][~verdict["correct"]].max() <= np.float32(0.9)
    for response in ("999\n", "139\n", "132", "1329", "1\n", "\n", " 32\n"):
        before = game.score(problem(47, "+", 85), ids(response))["reward"][0]
        for place, right in enumerate("132"):
            if place < len(response.rstrip("\n")) and response[place] != right:
                better = response[:place] + right + response[place + 1 :]
                assert game.score(problem(47, "+", 85), ids(better))["reward"][0] > before, (response, better)
    credit = [
        game.score(problem(47, "+", 85), ids(r))["reward"][0] for r in ("\n", "1\n", "13\n", "133\n", "132", "1320\n")
    ]
    assert credit == pytest.approx([0, 0.3, 0.6, 0.6, 0.9, 0.675])


# the bandit


@pytest.mark.parametrize(("letters", "longest"), [(1, 2), (2, 3), (3, 4), (5, 2)])
def test_every_response_is_listed_once(letters, longest):
    game = Bandit(letters=letters, max_new_tokens=longest, contexts=1)
    tokens, mask = game.responses()
    expected = set()
    for response in itertools.product(range(EOS, letters + 2), repeat=longest):  # the EOS and the letters
        end = response.index(EOS) + 1 if EOS in response else longest
        expected.add(response[:end] + (PAD,) * (longest - end))
    assert {tuple(row) for row in tokens.tolist()} == expected
    assert len(tokens) == game.n_responses == len(expected) == sum(letters**length for length in range(longest + 1))
    np.testing.assert_array_equal(mask, tokens != PAD)


@pytest.mark.parametrize("rule", ["table", *RULES])
def test_table_is_the_score_of_every_response(rule):
    game = Bandit(rule=rule)
    tokens, mask = game.responses()
    for context in range(game.contexts):
        verdict = game.score(np.full(len(tokens), context), tokens, mask)
        np.testing.assert_array_equal(verdict["reward"], game.rewards(context).astype(np.float32))
        np.testing.assert_array_equal(verdict["correct"], game.rewards(context) == game.rewards(context).max())
        np.testing.assert_array_equal(verdict["finished"], (tokens == EOS).any(1))
        assert (verdict["reward"][~verdict["finished"]] == 0).all()
        assert verdict["correct"].any()
        assert not (verdict["correct"] & ~verdict["finished"]).any()


@pytest.mark.parametrize(
    ("rule", "context", "word", "reward"),
    [("copy", "cab", "cab", 1), ("copy", "cab", "cb", 1 / 3), ("copy", "cab", "", 0), ("sort", "cab", "abc", 1),
     ("sort", "cab", "cab", 0), ("sort", "cab", "ab", 2 / 3), ("count", "aba", "cc", 1), ("count", "aba", "c", 2 / 3),
     ("count", "bbb", "", 1)],
)  # fmt: skip
def test_rules(rule, context, word, reward):
    assert RULES[rule](context, word) == pytest.approx(reward)
    game = Bandit(rule=rule, contexts=27)
    response = to_ids([word + "\n"], game.alphabet, 4)
    assert game.score(np.array([game.prompts.index(context)]), response)["reward"][0] == pytest.approx(reward)


def test_bandit_earns_nothing_for_padding_or_without_end():
    game = Bandit(rule="copy", contexts=27)
    abc = np.full(3, game.prompts.index("abc"))
    verdict = game.score(abc, to_ids(["a c\n", "abca", "abc\n"], game.alphabet, 4))
    assert verdict["reward"].tolist() == [0, 0, 1]
    assert verdict["format"].tolist() == [False, False, True]
    assert not game.score(abc[:1], to_ids(["abc"], game.alphabet, 3))["finished"].any()
    assert not game.score(abc[:1], to_ids(["abca\n"], game.alphabet, 5))["finished"].any()  # EOS comes too late


def test_bandit_depends_on_its_seed_alone():
    one, same, other = Bandit(seed=1), Bandit(seed=1), Bandit(seed=2)
    assert one.prompts == same.prompts != other.prompts
    np.testing.assert_array_equal(one.table, same.table)
    assert (one.table != other.table).any()
    assert len(set(one.prompts)) == one.contexts
    assert one.held_out(3).tolist() == [0, 1, 2]
    assert len(one.held_out(99)) == one.contexts
    assert set(one.sample(np.random.default_rng(0), 200)) == set(range(one.contexts))


# messages

RNG = np.random.default_rng(0)
ONE = problem(1, "+", 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Arithmetic(operations="+/"), r"operations: '\+/', expected each of some of \"\+-\*\" once"),
        (lambda: Arithmetic(operations=""), "operations: ''"),
        (lambda: Arithmetic(operations="++"), r"operations: '\+\+'"),
        (
            lambda: Arithmetic(digits=(3, 2)),
            r"digits: \(3, 2\), expected \(fewest, most\) with 1 <= fewest <= most <= 9",
        ),
        (lambda: Arithmetic(digits=(0, 2)), r"digits: \(0, 2\)"),
        (lambda: Arithmetic(digits=(2, 10)), r"digits: \(2, 10\)"),
        (lambda: Arithmetic(partial_credit=1.0), "partial_credit: 1.0, expected 0 <= partial_credit < 1"),
        (lambda: Arithmetic(test_share=0.0), "test_share: 0.0, expected 0 < test_share < 1"),
        (lambda: Arithmetic(max_new_tokens=1), "max_new_tokens: 1, expected at least 2"),
        (lambda: Arithmetic().level(1.5), "progress: 1.5, expected 0 <= progress <= 1"),
        (lambda: Arithmetic().sample(RNG, 1, "dev"), 'split: \'dev\', expected "train" or "test"'),
        (lambda: Arithmetic(digits=(1, 1), test_share=1e-9).sample(RNG, 1, "test"), "test_share: 1e-09"),
        (lambda: Arithmetic().score(ONE, np.zeros(4, int)), r"tokens: expected shape \(B, T\)"),
        (lambda: Arithmetic().score(ONE, np.zeros((1, 4), int), np.ones((1, 3))), "mask: expected the shape"),
        (lambda: Bandit(rule="paste"), "rule: 'paste', expected \"table\" or one of copy, sort, count"),
        (lambda: Bandit(letters=27), "letters: 27, expected 1 to 26"),
        (lambda: Bandit(max_new_tokens=1), "max_new_tokens: 1, expected at least 2"),
        (lambda: Bandit(contexts=28), "contexts: 28, expected 1 to 27"),
        (lambda: Bandit(letters=26, max_new_tokens=30), "too many to enumerate"),
        (lambda: Bandit().sample(RNG, 1, "dev"), "split: 'dev'"),
        (lambda: gym.make(ARITHMETIC, digits=(3, 2)), r"digits: \(3, 2\)"),
        (lambda: TokenEnv(Arithmetic(), render_mode="human"), "render_mode: 'human', expected None or \"ansi\""),
        (lambda: TokenVectorEnv(Arithmetic(), num_envs=0), "num_envs: 0, expected at least 1"),
    ],
)
def test_messages_name_the_argument_its_value_and_the_fix(call, message):
    with pytest.raises(ValueError, match=message):
        call()
