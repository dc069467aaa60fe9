"""Figures from arrays and histories. A function draws into given axes, or makes its own figure and returns it."""

from sspo_teach.plotting.claim import along_tau, error_ratio, trade_off
from sspo_teach.plotting.exact import SIDES, coefficient_curves, cosine_to_truth, frontier, removed_signal, which_gate
from sspo_teach.plotting.runs import accuracy, comparison, gate_activity, learning_curve, probed
from sspo_teach.plotting.style import COLOURS, looks, save

__all__ = [
    "COLOURS",
    "SIDES",
    "accuracy",
    "along_tau",
    "coefficient_curves",
    "comparison",
    "cosine_to_truth",
    "error_ratio",
    "frontier",
    "gate_activity",
    "learning_curve",
    "looks",
    "probed",
    "removed_signal",
    "save",
    "trade_off",
    "which_gate",
]
