"""Lesson 10, a fair comparison: intervals, seeds, lucky winners and equal budgets."""

from __future__ import annotations

from sspo_teach.grading.exercise import Exercise
from sspo_teach.training.intervals import interval, t975

DIFFERENCES = (3.0, 1.0, -0.5, 2.5, 1.5)
"""Of five seeds, in points; the exercise ``interval``."""


def _near(value: float, right: float, by: float = 6e-3) -> bool:
    return abs(value - right) <= by


def _interval(answer: float) -> str | None:
    value, n = float(answer), len(DIFFERENCES)
    mean, half = interval(DIFFERENCES)
    error = half / t975(n - 1)
    if _near(value, half):
        return None
    if _near(value, 1.96 * error):
        return "1.96 is for a known standard deviation; with five seeds it is estimated too: take t = 2.776"
    if _near(value, half * ((n - 1) / n) ** 0.5):
        return "divide the squares by n − 1, not by n: the mean was taken from the same five numbers"
    if _near(value, half * n**0.5):
        return "that is how far a single seed may lie; the mean of five lies √5 times nearer"
    if _near(value, error):
        return "that is the standard error; the half width is t = 2.776 times as much"
    if _near(value, 2 * half):
        return "that is the whole width; half of it was asked for"
    if _near(value, mean):
        return "that is the mean difference; how sure are you of it?"
    return f"{value:.3g} is not it: t · s/√n, with t = 2.776 and s the standard deviation of the five differences"


def _seeds(answer: float) -> str | None:
    n = int(answer)
    if n != answer:
        return "a number of seeds is a whole one"
    if n < 2:
        return "one seed has no interval at all"
    width = 3 * t975(n - 1) / n**0.5
    if n == 9:
        return f"(1.96 · 3/2)² = 8.6 takes t for 1.96; at 9 seeds t is 2.306 and the half width still {width:.2f}"
    if width > 2:
        return f"with {n} seeds the half width is {width:.2f} points: too wide"
    if 3 * t975(n - 2) / (n - 1) ** 0.5 <= 2:
        return f"{n} seeds are enough ({width:.2f} points), but fewer are too"
    return None


def _winner(answer: float) -> str | None:
    value = float(answer)
    if value > 1:
        return "a probability lies between 0 and 1"
    right = 1 - (1 - 1 / 8) ** 5
    if _near(value, right, 2e-3):
        return None
    if _near(value, 1 / 8, 2e-3):
        return "1/8 is the chance of one of the five; how likely is it that at least one of them is so lucky?"
    if _near(value, 5 / 8, 2e-3):
        return "5 · 1/8 counts twice what happens to two methods at once"
    if _near(value, 1 - right, 2e-3):
        return "that is the chance that none wins all three"
    if _near(value, 0.5, 2e-3):
        return "a method wins one seed with chance ½, but it has to win all three"
    return f"{value:.3g} is not it: one minus the chance that none of the five wins all three seeds"


UNFAIR = {
    "A": "A is not fair: one method made four times as many optimizer updates",
    "C": "C is not fair: ten tries against one, judged on the very problems that are reported",
    "E": "E is not fair: the one that samples again has seen more responses; compare by responses, not by iterations",
    "F": "F is not fair: the best of many noisy evaluations is lucky, and luckier the noisier the run is",
}
FAIR = {
    "B": "B is fair: nothing differs but the method, and pairs of seeds say how much is chance",
    "D": "D is fair: both had the same ten tries, on problems and seeds that do not count",
}


def _budget(answer: str) -> str | None:
    if not isinstance(answer, str):
        raise TypeError('give letters in quotes, such as "AB"')
    letters = set(answer.upper()) - set(" ,;")
    if letters - set(UNFAIR) - set(FAIR):
        return f"the letters are A to F, not {', '.join(sorted(letters - set(UNFAIR) - set(FAIR)))}"
    for letter, why in UNFAIR.items():
        if letter in letters:
            return why
    return next((why for letter, why in FAIR.items() if letter not in letters), None)


EXERCISES = {
    "interval": Exercise(
        ask="the half width of the 95 % t-interval of the mean, in points, to two decimals",
        judge=_interval,
        praise="so the mean of 1.5 may as well be −0.2: not told apart, though four seeds of five say so",
        hints=(
            "The interval is mean ± t · s/√n.",
            "s² is the sum of (x − 1.5)² over n − 1 = 4, and t for four degrees of freedom is 2.776.",
        ),
    ),
    "seeds": Exercise(
        ask="the smallest number of seeds, a whole one",
        judge=_seeds,
        praise="a dozen, for an interval of ± 2 points: that is why most published differences are smaller than chance",
        hints=(
            "t · 3/√n ≤ 2, and t depends on n.",
            "Start from the 9 that t ≈ 2 would give, and go up: t is 2.262, 2.228, 2.201 for 9, 10, 11.",
        ),
    ),
    "winner": Exercise(
        ask="a probability, to three decimals",
        judge=_winner,
        praise="nearly a coin toss, without any method being better: who tries five ideas will publish one",
        hints=(
            "One equal method wins one seed with chance ½, so all three with chance ⅛.",
            "At least one of five: one minus the chance that all five fail, (7/8)⁵.",
        ),
    ),
    "budget": Exercise(
        ask='the letters of the fair comparisons, such as "AF"',
        judge=_budget,
        praise="equal in responses, updates and tries; tuned on what is not reported; judged at the last evaluation",
        hints=(
            "Ask of each: could two copies of the *same* method look different here?",
            "Two of the six are fair.",
        ),
    ),
}
