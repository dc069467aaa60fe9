"""The gate designer: type a gate of your own, and the laws of ``check_gate`` answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ipywidgets
import numpy as np
import sympy
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator
from sympy.parsing.sympy_parser import parse_expr
from torch import Tensor

from sspo_teach.checks import Report, check_gate
from sspo_teach.plotting.gates import LOG_RATIO, TICKS
from sspo_teach.plotting.style import COLOURS
from sspo_teach.widgets.panel import Panel, panel

X, TAU = sympy.symbols("x tau", positive=True)
SIZE = (10, 6.2)
LAWS = {
    "on-policy": "at ρ = 1 the pull is 1, for either sign of A",
    "slope": "the gradient is the slope of the value: nothing is detached",
    "increasing": "the slope is nowhere below 0: a token may be silenced, not turned around",
    "way back": "a token that moved against its advantage keeps a gradient, or it could never be repaired",
    "tokenwise": "a token's gate depends on that token alone",
    "expanded": "one advantage per response, or the same one at each of its tokens: no difference",
    "finite": "no overflow in float32 for |log ρ| up to 20",
}
"""What each law of ``check_gate`` asks, in a line."""
START = "1 + atan(tau*(x - 1))/tau"
FUNCTIONS: Mapping[str, Any] = {
    "sigmoid": lambda u: 1 / (1 + sympy.exp(-u)),
    "min": sympy.Min,
    "max": sympy.Max,
    **{
        name: getattr(sympy, name)
        for name in ("exp", "log", "sqrt", "atan", "tanh", "sinh", "cosh", "asinh", "erf", "sin", "cos", "pi")
    },
}
TENSORS = ("exp", "log", "sqrt", "atan", "tanh", "sinh", "cosh", "asinh", "erf", "sin", "cos")


def gate_of(formula: str, tau: float = 1.0) -> Callable[[Tensor, Tensor], Tensor]:
    """A gate (log_x, advantages) → f from a formula in x, the ratio, and tau.

    Args:
        formula: such as ``"1 + atan(tau*(x - 1))/tau"``; ``FUNCTIONS`` says what it may call.
        tau: its temperature, for either sign of A.

    Raises:
        ValueError: it cannot be read, or it holds other names.
    """
    called = sympy.lambdify(X, parsed(formula).subs(TAU, tau), modules=[_on_tensors(), "math"])

    def typed(log_x: Tensor, advantages: Tensor) -> Tensor:
        x = log_x.exp()
        return x * 0 + called(x)  # a constant has a shape, too

    typed.__name__ = formula
    return typed


def parsed(formula: str) -> sympy.Expr:
    """``formula`` as a SymPy expression in ``X`` and ``TAU``.

    Raises:
        ValueError: it cannot be read, or it holds other names.
    """
    known = {"x": X, "tau": TAU, **FUNCTIONS}
    if "_" in formula or '"' in formula or "'" in formula:
        raise ValueError(f"formula={formula!r}: write it with x, tau, numbers and {', '.join(FUNCTIONS)}")
    try:
        expression = sympy.sympify(parse_expr(formula, local_dict=dict(known)))
        if not isinstance(expression, sympy.Expr):
            raise TypeError("it is no expression")
    except Exception as error:
        raise ValueError(f"formula={formula!r} cannot be read: {error}") from error
    if other := sorted(str(symbol) for symbol in expression.free_symbols - {X, TAU}):
        raise ValueError(f"formula={formula!r} holds {', '.join(other)}; it may hold x and tau")
    return expression


def _on_tensors() -> dict[str, Callable[..., Tensor]]:
    """Torch's functions under the names that SymPy prints, for numbers too."""

    def tensor(value: Any) -> Tensor:
        return value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)

    def tensors(values: tuple[Any, ...]) -> tuple[Tensor, ...]:
        return torch.broadcast_tensors(*map(tensor, values))

    def taking(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
        return lambda value: function(tensor(value))

    return {
        **{name: taking(getattr(torch, name)) for name in TENSORS},
        "Min": lambda *values: torch.stack(tensors(values)).amin(0),
        "Max": lambda *values: torch.stack(tensors(values)).amax(0),
    }


def draw(figure: Figure, *, formula: str = START, tau: float = 1.0) -> None:
    """f, f' and ρf' of a formula, and what the laws say of it."""
    gate = gate_of(formula, tau)
    log_x = torch.from_numpy(LOG_RATIO).view(1, -1).requires_grad_()
    f = gate(log_x, torch.ones(1, 1, dtype=torch.float64))
    (pull,) = torch.autograd.grad(f.sum(), log_x)
    report = check_gate(gate)
    if not figure.axes:
        _panels(figure)
    curves = f.detach(), pull / log_x.detach().exp(), pull
    for axes, curve in zip(figure.axes, curves, strict=False):
        axes.lines[0].set_data(LOG_RATIO, np.asarray(curve.squeeze(0)))
    said = figure.axes[3].texts
    said[0].set(text=_verdict(report), color=COLOURS[2] if report else COLOURS[1])
    said[1].set_text("\n".join(_lines(report)))


def _lines(report: Report) -> list[str]:
    """Every law and what it asks; under a broken one, where it breaks."""
    seen = {failure.law: failure for failure in report.failures}
    lines = []
    for law in report.laws:
        lines.append(f"{'✗' if law in seen else '✓'} {law}: {LAWS[law]}")
        if law in seen:
            where = f"{seen[law].what}: expected {seen[law].expected}, found {seen[law].found}"
            lines.append(f"      here {where}"[:150])
    return lines


def _verdict(report: Report) -> str:
    return f"all {len(report.laws)} laws hold" if report else f"{len(report.broken)} of {len(report.laws)} laws broken"


def _panels(figure: Figure) -> None:
    figure.set_layout_engine(None)
    figure.subplots_adjust(left=0.05, right=0.99, bottom=0.01, top=0.95, wspace=0.2, hspace=0.26)
    grid = figure.add_gridspec(2, 3, height_ratios=[1, 1.15])
    panels = [figure.add_subplot(grid[0, i]) for i in range(3)]
    words = figure.add_subplot(grid[1, :])
    titles = {"your gate f": (-1.0, 4.2), "its slope f': 1 at ρ = 1": (-0.6, 2.0), "its pull ρf'": (-0.6, 3.0)}
    for axes, (title, limits) in zip(panels, titles.items(), strict=True):
        axes.plot([], [], color=COLOURS[0], animated=True)
        axes.set(xlim=(LOG_RATIO[0], LOG_RATIO[-1]), ylim=limits)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel("ratio ρ", fontsize=10)
        axes.xaxis.set_major_locator(FixedLocator(list(np.log(TICKS[::2]))))
        axes.set_xticklabels([f"{tick:g}" for tick in TICKS[::2]], fontsize=9)
        axes.tick_params(axis="y", labelsize=9)
        axes.axvline(0, color="0.8", lw=0.8, zorder=0)
        axes.axhline(1, color="0.85", lw=0.8, zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
    words.axis("off")
    words.text(0, 0.95, "", fontsize=11, fontweight="bold", animated=True, transform=words.transAxes)
    words.text(0, 0.91, "", fontsize=10, va="top", linespacing=1.35, animated=True, transform=words.transAxes)


def gate_designer(formula: str = START, tau: float = 1.0) -> Panel:
    """Type f as a formula in x and tau, press Enter, and read which laws of a gate it keeps."""
    text = ipywidgets.Text(
        formula, description="f(x) =", continuous_update=False, layout={"width": "auto", "grid_area": "auto / span 2"}
    )
    slider = ipywidgets.FloatSlider(tau, min=0.1, max=12, step=0.1, description="tau")
    return panel(draw, {"formula": text, "tau": slider}, size=SIZE)
