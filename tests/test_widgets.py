"""A control that moves changes the picture in place. No browser: the traits are set as it would set them."""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module

import ipywidgets
import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from sspo_teach import widgets
from sspo_teach.checks import GATE_LAWS, check_gate
from sspo_teach.widgets.gate_designer import LAWS, gate_designer, gate_of
from sspo_teach.widgets.gate_explorer import gate_explorer
from sspo_teach.widgets.panel import Panel, panel, still

MAKERS = {
    f"{module.name}.{name}": make
    for module in pkgutil.iter_modules(widgets.__path__)
    for name, make in inspect.getmembers(import_module(f"{widgets.__name__}.{module.name}"), inspect.isfunction)
    if inspect.signature(make).return_annotation == "Panel"
    and make.__module__.endswith(module.name)
    and all(p.default is not p.empty for p in inspect.signature(make).parameters.values())
}
"""Every function that makes a widget and needs no data for it."""


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


def test_a_list_says_all_that_is_chosen_beside_the_other_controls():
    made = gate_explorer(methods=["grpo", "sapo"])
    cell = made.children[0].children[0]
    assert cell.children[0] is made.controls["methods"]
    assert "<b>grpo, sapo</b>" in cell.children[1].value
    made.controls["methods"].value = ("sspo", "vespo")
    assert "<b>sspo, vespo</b>" in cell.children[1].value
    assert "ctrl-click" in cell.children[1].value


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


def test_only_what_is_animated_is_drawn_again(one):
    drawn = []
    one.figure.axes[0].xaxis.draw = lambda renderer: drawn.append("axis")
    one.controls["height"].value = 1.0
    assert drawn == ["axis"]
    one.figure.axes[0].patches[0].set_animated(True)
    one.controls["height"].value = 1.2  # the first picture of an animated artist needs a background without it
    drawn.clear()
    before = one.png
    one.controls["height"].value = 1.4
    assert one.png != before
    assert drawn == []


def another(control):
    """A value that a control may take and does not have."""
    if isinstance(control, ipywidgets.SelectMultiple):
        return control.options[:1] if tuple(control.value) != tuple(control.options[:1]) else control.options[1:2]
    if hasattr(control, "options"):
        values = [option[1] if isinstance(option, tuple) else option for option in control.options]
        return next(value for value in values if value != control.value)
    if isinstance(control.value, bool):
        return not control.value
    if isinstance(control.value, str):
        return "min(x, 1.2)"
    if isinstance(control.value, tuple):
        return (control.min, (control.min + control.max) / 2)
    return control.max if control.value != control.max else control.min


@pytest.mark.parametrize("name", MAKERS)
def test_every_control_of_every_widget_changes_its_picture(name):
    made = MAKERS[name]()
    assert isinstance(made, Panel)
    for key, control in made.controls.items():
        before, start = made.png, control.value
        if key == "tau_neg" and "sign" in made.controls:
            made.controls["sign"].value = "A < 0"
            before = made.png
        control.value = another(control)
        assert made.png != before, key
        control.value = start


def test_the_explorer_reads_the_pull_at_the_marker():
    made = gate_explorer(methods=["grpo", "sapo"])
    made.controls["marker"].value = 2.0
    texts = [text.get_text() for text in made.figure.axes[1].get_legend().get_texts()]
    assert texts == ["grpo  0.00 | 0.00", "sapo  1.57 | 1.57"]
    assert made.figure.axes[0].texts[0].get_text().endswith("sapo pulls with weight 1.57, grpo with 0.00")
    made.controls["methods"].value = ("sspo",)
    shown = {line.get_label() for line in made.figure.axes[0].lines if line.get_visible()}
    assert shown == {"_one", "_marker", "sspo"}


def test_the_explorer_shows_the_ratios_of_a_minibatch():
    bare, real = gate_explorer(), gate_explorer(np.array([0.0, 0.1, 0.1]))
    assert [len(axes.patches) for axes in bare.figure.axes] == [0] * 4
    assert [len(axes.patches) for axes in real.figure.axes] == [1] * 4


def test_the_designer_judges_what_is_typed():
    made = gate_designer()
    assert made.figure.axes[3].texts[0].get_text() == "all 7 laws hold"
    made.controls["formula"].value = "x**2"
    assert made.figure.axes[3].texts[0].get_text() == "1 of 7 laws broken"
    assert "✗ on-policy: at ρ = 1 the pull is 1" in made.figure.axes[3].texts[1].get_text()
    made.controls["formula"].value = "min(x, 1.2)"
    said = made.figure.axes[3].texts[1].get_text()
    assert "✓ on-policy" in said
    failure = check_gate(gate_of("min(x, 1.2)")).failures[0]
    assert f"✗ way back: {LAWS['way back']}\n      here {failure.what}: expected more than 0, found 0\n" in said


def test_the_designer_knows_all_laws():
    assert LAWS.keys() == GATE_LAWS.keys()


@pytest.mark.parametrize("formula", ["x +", "y + 1", "().__class__", "exec('1')", "[x]", "x = 1", ""])
def test_the_designer_refuses_what_is_no_formula(formula):
    with pytest.raises(ValueError, match="formula="):
        gate_of(formula)
    made = gate_designer()
    before = made.png
    made.controls["formula"].value = formula
    assert "formula=" in made.message.value
    assert made.png == before


def test_controls_stand_in_columns_beside_a_list():
    made = gate_explorer()
    grid = made.children[0]
    assert grid.layout.grid_template_columns == "repeat(auto-fill, 310px)"
    assert grid.children[0].layout.grid_area.startswith("span 4")
    assert made.image.layout.max_width == "100%"
