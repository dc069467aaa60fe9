"""Right answers to the exercises on soft gates, and the mistakes that people make."""

from math import sqrt


def tanh_gate(log_x, advantages):
    return 1 + log_x.expm1().tanh()


def unscaled_sigmoid(log_x, advantages):
    return log_x.expm1().sigmoid()


def both_sides(log_x, advantages):
    return log_x.exp().clamp(0.8, 1.2)


def no_gate(log_x, advantages):
    return log_x.exp() + 0 * advantages


def of_the_log(log_x, advantages):
    return 1 + log_x.tanh()


RIGHT = {
    "peak": (sqrt(1.25), (1 + sqrt(1.25)) / 2),
    "fading": ["erf", "sigmoid", "softsign", "arctan"],
    "temperature": sqrt(3),
    "gate": tanh_gate,
}
WRONG = {
    "peak": [(1.0, 1.0), (sqrt(2), 1.207), (1.38, 1.198), (sqrt(1.25), 1.0), (0.5, 0.25)],
    "fading": [
        ["arctan", "softsign", "sigmoid", "erf"],
        ["erf", "sigmoid", "arctan", "softsign"],
        ["sigmoid", "erf", "softsign", "arctan"],
        ["erf", "sigmoid", "softsign"],
    ],
    "temperature": [1, 3, 2.0],
    "gate": [unscaled_sigmoid, both_sides, no_gate, of_the_log],
}
