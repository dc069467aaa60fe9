"""The exact laboratory: every response of a small problem is written down, so expectations are sums and nothing is
sampled. ``problem`` has the truth and the drifts, ``moments`` what a method does on average and how far it scatters,
``measures`` the comparison, ``decompose`` what comes from which part of a method, ``sweep`` the tables.
"""

from sspo_teach.exact.measures import compare, ideal_weights, parts
from sspo_teach.exact.moments import (
    Draws,
    Moments,
    coefficients,
    enumerated,
    expected,
    group_draws,
    monte_carlo,
    population_draws,
)
from sspo_teach.exact.problem import DRIFTS, Problem, drifted, kl, problem, sequence_is

__all__ = [
    "DRIFTS",
    "Draws",
    "Moments",
    "Problem",
    "coefficients",
    "compare",
    "drifted",
    "enumerated",
    "expected",
    "group_draws",
    "ideal_weights",
    "kl",
    "monte_carlo",
    "parts",
    "population_draws",
    "problem",
    "sequence_is",
]
