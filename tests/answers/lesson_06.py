"""Right and typical wrong answers to lesson 06."""

RIGHT = {
    "error": lambda bias, trace, batch: bias**2 + trace / batch,
    "tie": 25,
    "unbiased": {"sequence_is"},
}
WRONG = {
    "error": [
        lambda bias, trace, batch: bias + trace / batch,
        lambda bias, trace, batch: bias**2 + trace,
        lambda bias, trace, batch: (bias**2 + trace) / batch,
        lambda bias, trace, batch: (bias**2 + trace / batch) ** 0.5,
        lambda bias, trace, batch: bias**2 + trace / batch**0.5,
    ],
    "tie": [20, 9, 5, 4],
    "unbiased": ["reinforce", {"sequence_is", "rloo"}, {"grpo", "sspo"}, "ppo", set()],
}
