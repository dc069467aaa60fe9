"""The drift slider: sampler and learner move apart, and every method's bias and noise are known exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import ipywidgets
from matplotlib.figure import Figure

from sspo_teach.exact.frontier import error
from sspo_teach.plotting import laboratory
from sspo_teach.widgets.panel import Panel, panel

SIZE = (9.6, 4.4)
BATCHES = (4, 16, 64, 256, 1024, 4096)


def draw_laboratory(
    figure: Figure, *, rows: Sequence[Mapping[str, Any]], drift: str, distance: float, batch: int
) -> None:
    """Draw all methods of ``rows`` (``exact.frontier.places``) at one place.

    Raises:
        ValueError: there is no such place in the rows.
    """
    own = [row for row in rows if row["drift"] == drift]
    here = [row for row in own if row["distance"] == distance]
    if not here:
        known = sorted({(row["drift"], row["distance"]) for row in rows})
        raise ValueError(f"drift={drift!r}, distance={distance:g}: no rows are there; known: {known}")
    errors = {row["method"]: error(row["cosine"], row["noise"], batch) for row in here}
    laboratory.laboratory(figure, own, errors, distance=distance, batch=batch)


def laboratory_panel(rows: Sequence[Mapping[str, Any]]) -> Panel:
    """Sliders over the places of ``rows`` and over the number of groups."""
    distances = sorted({row["distance"] for row in rows})
    controls = {
        "drift": ipywidgets.Dropdown(options=list(dict.fromkeys(row["drift"] for row in rows)), description="drift"),
        "distance": ipywidgets.SelectionSlider(
            options=[(f"{x:g}", x) for x in distances], value=distances[len(distances) // 2], description="KL"
        ),
        "batch": ipywidgets.SelectionSlider(options=BATCHES, value=256, description="groups"),
    }
    return panel(partial(draw_laboratory, rows=rows), controls, size=SIZE)
