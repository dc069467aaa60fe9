"""Artists that are made once and moved afterwards, so that a slider need not draw its axes anew.

A figure function takes ``figure=None``: it makes its own, or changes in place the one it drew before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine


def sheet(
    figure: Figure | None, size: tuple[float, float], rows: int = 1, columns: int = 1, **grid: Any
) -> tuple[Figure, list[Axes]]:
    """The figure and its axes, row by row; made on the first call (``size`` in inches, ``grid`` as in ``subplots``)."""
    figure = Figure(figsize=size, dpi=90) if figure is None else figure
    if not figure.axes:
        figure.set_layout_engine("constrained")
        for axes in np.ravel(figure.subplots(rows, columns, **grid)):
            axes.spines[["top", "right"]].set_visible(False)
    return figure, figure.axes


def settled(figure: Figure) -> Figure:
    """The figure, its layout computed once and kept: to compute it takes longer than to draw."""
    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
    return figure


def curve(axes: Axes, key: str, x: Any, y: Any, **look: Any) -> None:
    """A line or dots, drawn or moved."""
    line = _known(axes.lines, key)
    if line is None:
        axes.plot(x, y, gid=key, **look)
    else:
        line.set_data(x, y)
        line.set(**look)


def over(look: Mapping[str, Any], i: int, count: int) -> dict[str, Any]:
    """The look of curve ``i`` of ``count`` where some lie on each other: broad below, narrow and dashed above."""
    dashed = {"ls": (0, (3 + i % 2, 1 + i))} if i and look["ls"] == "-" else {}
    return {**look, "lw": 1.4 + 0.9 * (count - 1 - i), **dashed}


def keep(axes: Axes, keys: Collection[str]) -> None:
    """Take away the curves of a call before that this one does not draw."""
    for line in list(axes.lines):
        if line.get_gid() is not None and line.get_gid() not in keys:
            line.remove()


def level(axes: Axes, key: str, y: float, **look: Any) -> None:
    """A line across, drawn or moved."""
    line = _known(axes.lines, key)
    if line is None:
        axes.axhline(y, gid=key, **look)
    else:
        line.set_ydata([y, y])


def upright(axes: Axes, key: str, x: float, **look: Any) -> None:
    """A line from top to bottom, drawn or moved."""
    line = _known(axes.lines, key)
    if line is None:
        axes.axvline(x, gid=key, **look)
    else:
        line.set_xdata([x, x])


def band(axes: Axes, key: str, left: float, right: float, **look: Any) -> None:
    """A shaded stretch of the x axis, drawn or moved."""
    patch = _known(axes.patches, key)
    if patch is None:
        axes.axvspan(left, right, gid=key, **look)
    else:
        patch.set(x=left, width=right - left)


def word(axes: Axes, key: str, x: float, y: float, text: str, **look: Any) -> None:
    """A text, drawn or moved."""
    found = _known(axes.texts, key)
    if found is None:
        axes.text(x, y, text, gid=key, **look)
    else:
        found.set(x=x, y=y, text=text)


def columns(axes: Axes, key: str, x: Any, heights: Any, *, bottom: Any = 0.0, **look: Any) -> None:
    """Bars centred at ``x``, drawn or resized."""
    heights = np.asarray(heights, dtype=float)
    bottoms = np.broadcast_to(bottom, heights.shape)
    bars = [patch for patch in axes.patches if patch.get_gid() == key]
    if not bars:
        for bar in axes.bar(x, heights, bottom=bottoms, **look):
            bar.set_gid(key)
    for bar, height, start in zip(bars, heights, bottoms, strict=False):
        bar.set(height=height, y=start)


def _known(artists: Iterable[Artist], key: str) -> Any:
    return next((artist for artist in artists if artist.get_gid() == key), None)
