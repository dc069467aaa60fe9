"""A control that moves changes the picture in place. No browser: the traits are set as it would set them."""

from __future__ import annotations

import ipywidgets
import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from sspo_teach.widgets.panel import panel, still


def bars(figure, *, height, colour="tab:blue"):
    """A picture of one bar."""
    if height < 0:
        raise ValueError(f"height={height}: a bar stands on 0 <b>")
    if not figure.axes:
        figure.subplots().bar([0], [1])
        figure.axes[0].set(ylim=(0, 2), ylabel="height")
    (bar,) = figure.axes[0].patches
    bar.set(height=height, color=colour)


@pytest.fixture
def one():
    controls = {"height": ipywidgets.FloatSlider(0.5, min=-1, max=2), "colour": ipywidgets.Text("tab:blue")}
    return panel(bars, controls, size=(2, 1.5))


def test_the_picture_follows_the_control(one):
    first = one.png
    assert first.startswith(b"\x89PNG")
    one.controls["height"].value = 1.5
    second = one.png
    one.controls["colour"].value = "tab:red"
    assert len({first, second, one.png}) == 3
    one.controls["height"].value, one.controls["colour"].value = 0.5, "tab:blue"
    assert one.png == first


def test_the_picture_is_as_large_as_asked_for_and_drawn_in_place(one, tmp_path):
    (tmp_path / "a.png").write_bytes(one.png)
    assert mpl.image.imread(tmp_path / "a.png").shape[:2] == (150, 200)
    axes, bar = one.figure.axes[0], one.figure.axes[0].patches[0]
    one.controls["height"].value = 1.0
    assert one.figure.axes == [axes]
    assert axes.patches[0] is bar


def test_controls_and_picture_are_shown(one):
    row, message, image = one.children
    assert [*row.children] == [*one.controls.values()]
    assert (message, image) == (one.message, one.image)


def test_refused_values_are_said_and_leave_the_picture(one):
    before = one.png
    one.controls["height"].value = -0.5
    assert one.png == before
    assert "height=-0.5: a bar stands on 0 &lt;b&gt;" in one.message.value
    one.controls["height"].value = 1.0
    assert one.message.value == ""
    assert one.png != before


def test_a_mistake_in_the_drawing_is_not_hidden(one):
    one.draw = lambda figure, **_: figure.nothing
    with pytest.raises(AttributeError):
        one.controls["height"].value = 1.0


def test_the_layout_is_found_once_and_again_when_asked_for(one):
    place = one.figure.axes[0].get_position().bounds
    one.figure.axes[0].set_ylabel("two\nlines")
    one.controls["height"].value = 1.0
    assert one.figure.axes[0].get_position().bounds == place
    one.figure.set_layout_engine("constrained")
    one.controls["height"].value = 0.7
    assert one.figure.axes[0].get_position().bounds != place


def test_still_draws_the_same(one):
    canvas = FigureCanvasAgg(still(bars, size=(2, 1.5), height=0.5))
    canvas.draw()
    assert np.array_equal(canvas.buffer_rgba(), one.canvas.buffer_rgba())
