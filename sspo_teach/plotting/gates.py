"""Figures of gates: a gate, its slope and its pull over the ratio, above the ratios that a run has."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from sspo_teach.plotting.style import looks

LOG_RATIO = np.linspace(-np.log(8), np.log(8), 241)
TICKS = (0.125, 0.25, 0.5, 1, 2, 4, 8)
PANELS = {
    "f": ("the gate f, shifted to f(1) = 1", (-0.7, 4.2)),
    "slope": ("its slope f'", (-0.35, 2.0)),
    "token": ("the pull ρf' on a token alone", (-0.5, 3.0)),
    "sequence": ("its pull in a response whose others stand at 1", (-0.5, 3.0)),
}
"""Curve → title and range; above every range's lower end a fifth of the panel is left for the ratios."""


def gate_curves(
    figure: Figure,
    curves: Mapping[str, Mapping[str, np.ndarray]],
    *,
    marker: float,
    ratios: np.ndarray | None = None,
) -> None:
    """Draw f, f', ρf' and the pull within a response over ``LOG_RATIO``, or change what is drawn.

    Args:
        figure: empty, or one that this function has drawn.
        curves: name → curve of ``PANELS`` → (n,) over ``LOG_RATIO``.
        marker: the log-ratio at which the legend reads the two pulls.
        ratios: (m,) log-ratios of a run's tokens, for the hill under the curves; its height is the log of their number.
    """
    if not figure.axes:
        _panels(figure, ratios)
    look = looks(curves, dots=False)
    for axes, kind in zip(figure.axes, PANELS, strict=True):
        lines = {str(line.get_label()): line for line in axes.lines}
        lines["_marker"].set_xdata([marker, marker])
        for name in {*curves, *lines} - {"_marker", "_one"}:
            if name not in lines:
                (lines[name],) = axes.plot([], [], label=name, animated=True)
            lines[name].set(visible=name in curves)
            if name in curves:
                lines[name].set(data=(LOG_RATIO, curves[name][kind]), **_named(look[name]))
    figure.axes[0].texts[0].set_text(_finding(curves, marker))
    _legend(figure.axes[1], curves, marker)


def _named(look: Mapping[str, object]) -> dict[str, object]:
    return {"color": look["color"], "linestyle": look["ls"]}


def _panels(figure: Figure, ratios: np.ndarray | None) -> None:
    figure.set_layout_engine(None)  # room for the longest legend is kept, so that nothing jumps
    figure.subplots_adjust(left=0.06, right=0.73, bottom=0.08, top=0.88, hspace=0.24, wspace=0.2)
    for axes, (title, limits) in zip(figure.subplots(2, 2, sharex=True).flat, PANELS.values(), strict=True):
        axes.set_title(title, loc="left", fontsize=10)
        axes.set(xlim=(LOG_RATIO[0], LOG_RATIO[-1]), ylim=limits)
        axes.xaxis.set_major_locator(FixedLocator(list(np.log(TICKS))))
        axes.set_xticklabels([f"{tick:g}" for tick in TICKS], fontsize=9)
        axes.tick_params(axis="y", labelsize=9)
        axes.axhline(1, color="0.85", lw=0.8, zorder=0, label="_one")
        axes.axvline(0, color="0.4", lw=0.8, ls=":", label="_marker", animated=True)
        axes.spines[["top", "right"]].set_visible(False)
        if ratios is not None:
            _hill(axes, ratios)
    figure.axes[0].text(0, 1.17, "", fontsize=11, fontweight="bold", transform=figure.axes[0].transAxes, animated=True)
    for axes in figure.axes[2:]:
        axes.set_xlabel("ratio ρ of the token", fontsize=10)


def _hill(axes: Axes, ratios: np.ndarray) -> None:
    low, high = axes.get_ylim()
    counts, edges = np.histogram(ratios, bins=np.linspace(LOG_RATIO[0], LOG_RATIO[-1], 61))
    height = np.log1p(counts) / np.log1p(counts.max()) * 0.16 * (high - low)
    axes.stairs(low + height, edges, baseline=low, fill=True, color="0.82", zorder=0)


def _finding(curves: Mapping[str, Mapping[str, np.ndarray]], marker: float) -> str:
    """Which of the methods pulls a lone token at the marker hardest, and which least."""
    pull = {name: float(np.interp(marker, LOG_RATIO, own["token"])) for name, own in curves.items()}
    if not pull:
        return "choose a method"
    most, least = max(pull, key=lambda name: pull[name]), min(pull, key=lambda name: pull[name])
    at = f"A token at ρ = {np.exp(marker):.2f}"
    if len(pull) == 1 or pull[most] - pull[least] < 0.005:
        return f"{at} is pulled with weight {pull[most]:.2f}"
    return f"{at}: {most} pulls with weight {pull[most]:.2f}, {least} with {pull[least]:.2f}"


def _legend(axes: Axes, curves: Mapping[str, Mapping[str, np.ndarray]], marker: float) -> None:
    """Beside the panel: an artist of its axes, so that it may be animated."""
    lines = {str(line.get_label()): line for line in axes.lines}
    pulls = {
        name: tuple(np.interp(marker, LOG_RATIO, own[kind]) for kind in ("token", "sequence"))
        for name, own in curves.items()
    }
    labels = [f"{name}  {alone:.2f} | {among:.2f}" for name, (alone, among) in pulls.items()]
    legend = axes.get_legend()
    if legend is None or [text.get_text().split()[0] for text in legend.get_texts()] != [*curves]:
        legend = axes.legend(
            [lines[name] for name in curves],
            labels,
            title="pull at the dotted line:\nalone | in its response",
            loc="upper left",
            bbox_to_anchor=(1.02, 1.1),
            fontsize=9,
            title_fontsize=9,
            alignment="left",
            frameon=False,
        )
        for part in legend.findobj():
            part.set_animated(True)
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_text(label)
