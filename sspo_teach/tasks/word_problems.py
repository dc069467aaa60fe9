"""Word problems made on the spot, with worked steps: what GSM8K asks for, where nothing can be downloaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sspo_teach.tasks.gsm8k import SYSTEM, GSM8KTask

_PEOPLE = [
    *((name, "she", "her") for name in ("Mia", "Amara", "Chen", "Lucia", "Priya", "Hanna", "Zoe", "Nora")),
    *((name, "he", "his") for name in ("Omar", "Leo", "Kofi", "Jonas", "Ravi", "Mateo", "Emil", "Tariq")),
]
_THINGS = ("apples", "marbles", "stickers", "shells", "stamps", "cookies", "pencils", "beads", "cards", "plums")
_PARTS = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}
_GOODS = (("notebook", 2, 6), ("pen", 1, 4), ("lamp", 12, 30), ("hat", 8, 20), ("mug", 4, 9), ("kite", 7, 15))


@dataclass
class _Story:
    """Sentences of a question, lines of its solution, and the number reached so far."""

    rng: np.random.Generator
    told: list[str]
    solved: list[str]
    value: int = 0

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def between(self, least: int, most: int) -> int:
        return int(self.rng.integers(least, most + 1))

    def step(self, sentence: str, expression: str, value: int, line: str) -> None:
        """Tell a sentence, and note a line in which ``@`` stands for "expression = value"."""
        self.told.append(sentence)
        self.solved.append(line.replace("@", f"{expression} = {value}"))
        self.value = value


class WordProblemsTask(GSM8KTask):
    """Generated word problems, judged as GSM8K's are: the number after the last ``####``.

    Four kinds of story (belongings, a shop, wages, a journey), each with its own sentences, names and numbers; every
    answer is a whole number that is not negative. The splits share the kinds of story and no question.

    Args:
        steps: (least, most) things that happen in a problem, 1 to 8; wages have no more than four.
        train, test: how many problems.
        problem_seed: makes other problems; the same in every run unless it is set.
    """

    name = "word-problems"

    def __init__(
        self,
        tokenizer: Any,
        *,
        steps: tuple[int, int] = (2, 4),
        train: int = 4000,
        test: int = 1000,
        problem_seed: int = 0,
        system: str = SYSTEM,
        prompt_format: str = "auto",
        shots: int = 0,
        max_new_tokens: int = 256,
        max_prompt_tokens: int = 512,
        format_reward: float = 0.0,
        stop_ids: Sequence[int] = (),
    ) -> None:
        least, most = steps
        if not 1 <= least <= most <= 8:
            raise ValueError(f"steps={steps}: must be (least, most) with 1 <= least <= most <= 8")
        for name, count in (("train", train), ("test", test)):
            if not 1 <= count <= 100_000:
                raise ValueError(f"{name}={count}: must be between 1 and 100000 problems")
        rows = problems(train + test, steps, problem_seed)
        super().__init__(
            tokenizer,
            data={"train": rows[test:], "test": rows[:test]},
            system=system,
            prompt_format=prompt_format,
            shots=shots,
            max_new_tokens=max_new_tokens,
            max_prompt_tokens=max_prompt_tokens,
            format_reward=format_reward,
            stop_ids=stop_ids,
        )


def problems(n: int, steps: tuple[int, int], seed: int = 0) -> list[dict[str, str]]:
    """n different problems in the form of GSM8K's rows: ``question``, and ``answer`` that ends with ``#### N``."""
    rng = np.random.default_rng([seed, *steps])
    found: dict[str, str] = {}
    for _ in range(200 * n):
        if len(found) == n:
            break
        story = _Story(rng, [], [])
        story.pick(_KINDS)(story, story.between(*steps))
        found[" ".join(story.told)] = "\n".join([*story.solved, f"#### {story.value}"])
    else:
        raise ValueError(f"steps={steps}: there are too few different problems for train + test = {n}; ask for fewer")
    return [{"question": question, "answer": answer} for question, answer in found.items()]


def _belongings(story: _Story, steps: int) -> None:
    name, they, _ = story.pick(_PEOPLE)
    friend, _, _ = story.pick([person for person in _PEOPLE if person[0] != name])
    things = story.pick(_THINGS)
    story.value = story.between(6, 60)
    story.told.append(f"{name} has {story.value} {things}.")
    sells = steps > 1 and story.between(0, 1) == 1
    for _ in range(steps - sells):
        _change(story, name, they, friend, things)
    if sells:
        price, have = story.between(2, 9), story.value
        story.step(
            f"{name} then sells all of the {things} for ${price} each. How many dollars does {they} get?",
            f"{have} * {price}", have * price, f"{name} gets @ dollars.",
        )  # fmt: skip
    else:
        story.told.append(f"How many {things} does {name} have in the end?")


def _change(story: _Story, name: str, they: str, friend: str, things: str) -> None:
    """One thing that happens to what somebody has; only what leaves a whole number can happen."""
    have, n = story.value, story.between(2, 30)
    fitting = [part for part in _PARTS if have % part == 0 and have >= 2 * part]
    ways = ["more", "same"] + ["less"] * (have > n) + ["part"] * bool(fitting)
    way = story.pick([w for w in ways if w != "same" or have <= 200])
    if way == "more":
        sentence, expression, value = f"{name} finds {n} more {things}.", f"{have} + {n}", have + n
    elif way == "same":
        sentence = f"Then {friend} gives {name} as many {things} as {they} already has."
        expression, value = f"{have} * 2", have * 2
    elif way == "less":
        sentence, expression, value = f"Then {they} gives {n} {things} to {friend}.", f"{have} - {n}", have - n
    else:
        part = story.pick(fitting)
        sentence = f"Then {they} loses {_PARTS[part]} of the {things}."
        lost = have // part
        story.solved.append(f"{name} loses {have} / {part} = {lost} {things}.")
        expression, value = f"{have} - {lost}", have - lost
    story.step(sentence, expression, value, f"Then {name} has @ {things}.")


def _shop(story: _Story, steps: int) -> None:
    name, they, their = story.pick(_PEOPLE)
    goods = [_GOODS[i] for i in story.rng.permutation(len(_GOODS))[: max(1, min(4, steps // 2))]]
    story.told.append(f"{name} goes to a shop.")
    total = 0
    for k, (thing, least, most) in enumerate(goods):
        n, price = story.between(2, 9), story.between(least, most)
        story.step(f"{name.capitalize() if not k else they.capitalize()} buys {n} {thing}s for ${price} each.",
                   f"{n} * {price}", n * price, f"The {thing}s cost @ dollars.")  # fmt: skip
        if k:
            before, total = total, total + story.value
            story.solved.append(f"So far that is {before} + {n * price} = {total} dollars.")
        else:
            total = story.value
    story.value = total
    done = 2 * len(goods) - 1
    if done < steps:
        paid = next(bill for bill in (10, 20, 50, 100, 200, 500, 1000) if bill >= total)
        story.step(f"{they.capitalize()} pays with ${paid}. How many dollars does {they} get back?",
                   f"{paid} - {total}", paid - total, f"{name} gets @ dollars back.")  # fmt: skip
    else:
        story.told.append(f"How many dollars does {they} spend of {their} money?")


def _wages(story: _Story, steps: int) -> None:
    name, they, _ = story.pick(_PEOPLE)
    pay, hours = story.between(8, 25), story.between(2, 8)
    story.told.append(f"{name} earns ${pay} an hour.")
    story.step(f"{they.capitalize()} works {hours} hours a day.", f"{pay} * {hours}", pay * hours,
               f"In a day {they} earns @ dollars.")  # fmt: skip
    asked = "in a day"
    if steps > 1:
        days, day = story.between(2, 6), story.value
        story.step(f"{they.capitalize()} works {days} days a week.", f"{day} * {days}", day * days,
                   f"In a week {they} earns @ dollars.")  # fmt: skip
        asked = "in a week"
    if steps > 2:
        rent, week = story.between(10, story.value // 2), story.value
        story.step(f"Every week {they} pays ${rent} for rent and puts the rest aside.", f"{week} - {rent}", week - rent,
                   f"Of that {they} puts @ dollars aside.")  # fmt: skip
        asked = "aside in a week"
    if steps > 3:
        weeks, kept = story.between(3, 12), story.value
        story.step(f"{they.capitalize()} does so for {weeks} weeks.", f"{kept} * {weeks}", kept * weeks,
                   f"In {weeks} weeks {they} puts @ dollars aside.")  # fmt: skip
        asked = "aside in all"
    verb = "put" if asked.startswith("aside") else "earn"
    story.told.append(f"How many dollars does {they} {verb} {asked}?")


def _journey(story: _Story, steps: int) -> None:
    name, they, _ = story.pick(_PEOPLE)
    story.told.append(f"{name} goes on a journey.")
    total = 0
    for leg in range(max(1, min(4, steps // 2 + steps % 2))):
        way, least, most = (("by bicycle", 9, 20), ("by train", 60, 120), ("on foot", 3, 6), ("by bus", 30, 60))[leg]
        hours, speed = story.between(2, 5), story.between(least, most)
        story.step(f"{they.capitalize()} goes {hours} hours {way} at {speed} km an hour.", f"{hours} * {speed}",
                   hours * speed, f"{way.capitalize()} {they} covers @ km.")  # fmt: skip
        if leg:
            before, total = total, total + story.value
            story.solved.append(f"So far that is {before} + {hours * speed} = {total} km.")
        else:
            total = story.value
    story.value = total
    if steps % 2 == 0:
        rest = story.between(5, 90)
        story.step(f"Then {rest} km are still to go. How long is the whole journey in km?", f"{total} + {rest}",
                   total + rest, "The whole journey is @ km long.")  # fmt: skip
    else:
        story.told.append(f"How many km does {they} cover?")


_KINDS: tuple[Callable[[_Story, int], None], ...] = (_belongings, _shop, _wages, _journey)
