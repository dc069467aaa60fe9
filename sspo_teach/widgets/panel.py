"""Controls above one picture that is drawn anew, in place, whenever one of them moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from io import BytesIO
from typing import Any

import ipywidgets
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imsave

DPI = 100
COLUMN = 310
"""Pixels of a column of controls: three of them fit beside each other above a picture in a notebook."""
Draw = Callable[..., Any]
"""(figure, **values) → nothing: makes its artists in an empty figure, updates them in one that it has drawn before."""


class Panel(ipywidgets.VBox):
    """What ``panel`` makes.

    Attributes:
        figure: what ``draw`` draws into.
        controls: name → control, whose values ``draw`` is given.
        image: the PNG.
        message: what is wrong with the values, where ``draw`` refuses them with a ``ValueError``.
    """

    def __init__(self, draw: Draw, controls: Mapping[str, ipywidgets.Widget], size: tuple[float, float]) -> None:
        self.draw, self.controls = draw, dict(controls)
        self.figure = Figure(figsize=size, dpi=DPI, layout="constrained")
        self.canvas = FigureCanvasAgg(self.figure)
        self.background: Any = None
        self.image = ipywidgets.Image(format="png", width=round(size[0] * DPI), height=round(size[1] * DPI))
        self.message = ipywidgets.HTML(layout=ipywidgets.Layout(display="none"))
        self.image.layout = ipywidgets.Layout(max_width="100%", height="auto")
        grid = ipywidgets.GridBox(
            [_cell(control) for control in self.controls.values()],
            layout=ipywidgets.Layout(grid_template_columns=f"repeat(auto-fill, {COLUMN}px)", flex="0 0 auto"),
        )
        super().__init__([grid, self.message, self.image])
        for control in self.controls.values():
            control.observe(lambda _: self.update(), names="value")
        self.update()

    @property
    def values(self) -> dict[str, Any]:
        """What the controls say now."""
        return {name: control.value for name, control in self.controls.items()}

    @property
    def png(self) -> bytes:
        """The picture that is shown."""
        return bytes(self.image.value)

    def update(self) -> None:
        """Draw at the present values and show the PNG."""
        try:
            self.draw(self.figure, **self.values)
        except ValueError as error:
            self.message.value = f'<span style="color:#D55E00">{escape(str(error))}</span>'
            self.message.layout.display = None
            return
        self.message.value, self.message.layout.display = "", "none"
        self.image.value = self._drawn()

    def _drawn(self) -> bytes:
        if self.background is None or self.figure.stale:  # something that is not animated has changed
            self.canvas.draw()
            self.figure.set_layout_engine("none")  # found once: to find it takes longer than to draw
            self.background = self.canvas.copy_from_bbox(self.figure.bbox)
        self.canvas.restore_region(self.background)
        every = [artist for axes in self.figure.axes for artist in axes.get_children()]
        for artist in sorted(every, key=lambda artist: artist.get_zorder()):
            if artist.get_animated():
                self.figure.draw_artist(artist)
        png = BytesIO()
        imsave(png, self.canvas.buffer_rgba(), format="png", pil_kwargs={"compress_level": 1})
        return png.getvalue()

    def __repr__(self) -> str:
        return "controls and a picture: they move in JupyterLab, VS Code and Colab; a still one stands below"


def _cell(control: ipywidgets.Widget) -> ipywidgets.Widget:
    """A control as it stands in the grid: buttons no wider than their words, a list beside three rows of sliders."""
    if isinstance(control, ipywidgets.ToggleButtons):
        control.style.button_width = "auto"
    if not isinstance(control, ipywidgets.SelectMultiple):
        return control
    control.rows = min(control.rows, 4)
    said = ipywidgets.HTML(layout=ipywidgets.Layout(margin="0 0 0 8px", width="auto"))

    def say(_: object = None) -> None:
        chosen = escape(", ".join(map(str, control.label))) or "none"
        said.value = f'<div style="line-height:1.25"><b>{chosen}</b><br>ctrl-click adds or takes away one</div>'

    control.observe(say, names="value")
    say()
    return ipywidgets.VBox([control, said], layout=ipywidgets.Layout(grid_area="span 4 / auto"))


def panel(draw: Draw, controls: Mapping[str, ipywidgets.Widget], *, size: tuple[float, float] = (8, 4)) -> Panel:
    """Controls, in a grid of two or three columns, above the picture that ``draw`` makes of their values.

    Args:
        draw: (figure, **values) → nothing. The first call makes the artists, later ones only change their data, so that
            the picture answers in less than 150 ms. The layout is found once; a ``draw`` that changes what it
            must hold asks for it again by ``figure.set_layout_engine("constrained")``. Where nothing but animated
            artists of axes changes (``animated=True``), only those are drawn again: with ticks and titles left alone
            that takes a tenth of the time. A ``ValueError`` is shown above the picture, which then stays.
        controls: name → anything with a ``value``, named like the arguments of ``draw``.
        size: of the picture, in inches of 100 pixels.
    """
    return Panel(draw, controls, size)


def still(draw: Draw, *, size: tuple[float, float] = (8, 4), **values: Any) -> Figure:
    """The picture that ``panel`` shows at ``values``, as a figure, for readers whose page cannot move."""
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    draw(figure, **values)
    return figure
