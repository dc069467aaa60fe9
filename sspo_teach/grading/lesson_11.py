"""Lesson 11, one GPU: what holds memory, what fits, and how many problems an exam needs."""

from __future__ import annotations

from dataclasses import fields, replace

from sspo_teach.grading.exercise import Exercise
from sspo_teach.memory import Load, largest_micro_batch, sizes_of
from sspo_teach.training.hardware import hardware


def _within(value: float, right: float, share: float = 0.01) -> bool:
    return abs(value - right) <= share * abs(right)


def _logits(answer: float) -> str | None:
    value, right = float(answer), 8 * 256 * 151936 * 4 / 1e9
    if _within(value, right):
        return None
    if _within(value, right / 4):
        return "that counts entries; a float32 takes four bytes"
    if _within(value, right / 2):
        return "that is for two bytes an entry, bfloat16; the log-softmax is taken in float32"
    if _within(value, right * 1e9 / 2**30):
        return "that is in GiB (2³⁰ bytes); the question was in GB, 10⁹ bytes"
    if _within(value, right * 1000) or _within(value, right * 1e9):
        return "the digits are right, the unit is not: in GB, 10⁹ bytes"
    return f"{value:g} is not it: responses × tokens × vocabulary × 4 bytes"


def _states(answer: float) -> str | None:
    value, n = float(answer), sizes_of("Qwen2.5-0.5B").parameters / 1e9
    if _within(value, 16 * n, 0.015):
        return None
    for copies, missing in {
        4: "that is the weights alone",
        8: "that is weights and gradients; AdamW keeps two moments of each weight",
        12: "three copies; there are four: weights, gradients, and AdamW's two moments",
        2: "that is the weights in bfloat16; a step of 1e-6 is lost there, so they stay in float32",
    }.items():
        if _within(value, copies * n, 0.015):
            return missing
    return f"{value:g} is not it: count the float32 numbers that each weight brings along, times {n:.3f} · 10⁹"


def _fits(answer: float) -> str | None:
    value = int(answer)
    if value != answer:
        return "a number of responses is a whole one"
    preset, known = hardware("t4"), {field.name for field in fields(Load)}
    own = {name: number for name, number in {**preset.machine, **preset.load}.items() if name in known}
    load = Load(sizes_of("Qwen2.5-0.5B"), **{**own, "gradient_checkpointing": False})
    right = largest_micro_batch(load, hardware("t4").bytes)
    if value == right:
        return None
    if value == largest_micro_batch(replace(load, gradient_checkpointing=True), hardware("t4").bytes):
        return "that is with gradient checkpointing; switch it off"
    if value == largest_micro_batch(load, hardware("24gb").bytes):
        return "that is what 24 GB hold; the T4 has 16"
    return f"{value} is too {'many' if value > right else 'few'}: largest_micro_batch(load, budget) turns it round"


def _problems(answer: float) -> str | None:
    value, right = float(answer), 1.96**2 * 0.35 * 0.65 / 0.02**2
    if abs(value - right) <= 5:
        return None
    if _within(value, 1.96**2 * 0.25 / 0.02**2):
        return "that is the worst case, p = ½; here p is 0.35"
    if _within(value, 4 * right):
        return "that is for ± 1 point: 2 points are the half width, not the whole"
    if _within(value, right / 1.96**2, 0.02):
        return "that is for one standard deviation on either side, 68 %; 95 % takes 1.96"
    if _within(value, 1.96**2 * 0.35 * 0.65 / 0.02, 0.02):
        return "the half width goes with 1/√n, so it enters squared: 0.02²"
    return f"{value:g} is not it: n = 1.96² p (1 − p) / 0.02²"


EXERCISES = {
    "logits": Exercise(
        ask="a number of GB (10⁹ bytes), to two decimals",
        judge=_logits,
        praise="and the plain way holds several such copies at once; by chunks there is never one",
        hints=(
            "Eight responses, 256 tokens each, one number for every word of the vocabulary.",
            "8 · 256 · 151936 · 4.",
        ),
    ),
    "states": Exercise(
        ask="a number of GB (10⁹ bytes), to one decimal",
        judge=_states,
        praise="sixteen bytes a weight, before the first token: with LoRA or 8-bit moments this is what you save",
        hints=(
            "Which tensors are as large as the weights and stay?",
            "Weights, gradients, AdamW's first and second moment: four float32, so 16 bytes a weight.",
        ),
    ),
    "fits": Exercise(
        ask="a whole number of responses",
        judge=_fits,
        praise="a handful: without checkpointing every layer keeps what it computed, and 24 layers fill the card",
        hints=(
            "Switch checkpointing off in the widget and move micro_batch until the title says that it fits.",
            'largest_micro_batch(preset_load("t4", gradient_checkpointing=False), hardware("t4").bytes)',
        ),
    ),
    "problems": Exercise(
        ask="a number of problems",
        judge=_problems,
        praise="more than the 1319 of GSM8K's whole test set: a difference of 2 points is out of reach of a single run",
        hints=(
            "The half width of a share's interval is 1.96 √(p(1 − p)/n).",
            "Solve for n at p = 0.35 and half width 0.02.",
        ),
    ),
}
