"""Figures from arrays and histories. A function draws into given axes, or makes its own figure and returns it."""

from sspo_teach.plotting.exact import SIDES, coefficient_curves, cosine_to_truth, frontier, removed_signal, which_gate
from sspo_teach.plotting.runs import accuracy, comparison, gate_activity, learning_curve
from sspo_teach.plotting.style import COLOURS, looks, save

__all__ = [
    "COLOURS",
    "SIDES",
    "accuracy",
    "coefficient_curves",
    "comparison",
    "cosine_to_truth",
    "frontier",
    "gate_activity",
    "learning_curve",
    "looks",
    "removed_signal",
    "save",
    "which_gate",
]
