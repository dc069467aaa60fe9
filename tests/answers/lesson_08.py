"""Right and typical wrong answers to lesson 08."""

from math import ceil, floor

RIGHT = {
    "length": 0.25,
    "room": lambda p, delta: min(1 + delta / p, 1 / p),
    "share": 2.5 / 4.55,
    "ranks": lambda n, alpha: (floor((n + 1) * alpha / 2 + 1e-9), ceil((n + 1) * (1 - alpha / 2) - 1e-9)),
}
WRONG = {
    "length": [1.0, 4.0, 1 / 16, 0.5],
    "room": [lambda p, delta: 1 + delta, lambda p, delta: 1 + delta / p, lambda p, delta: 1 / p],
    "share": [2.5 / 5.15, 1 / 3.05, 0.4, 0.5],
    "ranks": [
        lambda n, alpha: (floor(n * alpha / 2 + 1e-9), ceil(n * (1 - alpha / 2) - 1e-9)),
        lambda n, alpha: (floor((n + 1) * alpha + 1e-9), ceil((n + 1) * (1 - alpha) - 1e-9)),
        lambda n, alpha: (ceil((n + 1) * alpha / 2), floor((n + 1) * (1 - alpha / 2))),
    ],
}
