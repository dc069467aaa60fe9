"""The rows behind the drift slider are those of the laboratory."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from sspo_teach.exact import compare, drifted, problem
from sspo_teach.exact.frontier import error, places
from sspo_teach.exact.moments import of
from sspo_teach.exact.sweep import row_of
from sspo_teach.plotting.laboratory import all_methods, unbeaten
from sspo_teach.widgets.laboratory import draw_laboratory

NAMES = ("grpo", "sspo", "sequence_is")


@pytest.fixture(scope="module")
def here():
    return problem(letters=2, length=3)


@pytest.fixture(scope="module")
def rows(here):
    return places(here, NAMES, drifts=("random", "gradient"), distances=(0.0, 0.1))


def test_a_place_is_what_the_laboratory_says(here, rows):
    far = drifted(here, "gradient", 0.1)
    found = of(far, row_of("sspo"), 4)
    (row,) = [r for r in rows if (r["method"], r["drift"], r["distance"]) == ("sspo", "gradient", 0.1)]
    for batch in (4, 256):
        exact = compare(far, found, batch=batch)
        assert row["bias"] == pytest.approx(exact["bias_scaled"], abs=1e-12)
        assert error(row["cosine"], row["noise"], batch) == pytest.approx(exact["mse_scaled"], rel=1e-9)


def test_the_error_at_its_ends():
    assert error(1.0, 8.0, 16) == pytest.approx(8 / 24)
    assert error(0.8, 5.0, 1e12) == pytest.approx(1 - 0.64)
    assert error(0.0, 5.0, 16) == 1
    with pytest.raises(ValueError, match="batch"):
        error(0.5, 1.0, 0)


def test_what_cannot_be_enumerated_has_no_row(here):
    assert {row["method"] for row in places(problem(), ("gepo", "grpo"), distances=(0.1,))} == {"grpo"}


def test_the_slider_draws_its_place(rows):
    figure = Figure(figsize=(9, 4), layout="constrained")
    for drift, distance, batch in (("random", 0.0, 16), ("gradient", 0.1, 256)):
        draw_laboratory(figure, rows=rows, drift=drift, distance=distance, batch=batch)
    left, right = figure.axes
    own = {r["method"]: r for r in rows if (r["drift"], r["distance"]) == ("gradient", 0.1)}
    for i, name in enumerate(NAMES):
        assert right.patches[i].get_width() == pytest.approx(error(own[name]["cosine"], own[name]["noise"], 256))
        x, y = left.lines[2 * i + 1].get_data()
        assert (x[0], y[0]) == pytest.approx(((own[name]["noise"] / 256) ** 0.5, own[name]["bias"]))
    with pytest.raises(ValueError, match=r"distance=0\.7"):
        draw_laboratory(figure, rows=rows, drift="random", distance=0.7, batch=16)


def test_the_front_is_what_nobody_beats(rows):
    at = {"a": (1.0, 1.0), "b": (2.0, 0.5), "c": (2.0, 0.6), "d": (0.5, 2.0), "e": (3.0, 3.0)}
    assert unbeaten(at) == ["a", "b", "d"]
    axes = all_methods([r for r in rows if (r["drift"], r["distance"]) == ("random", 0.1)], batch=16).axes[0]
    assert len([line for line in axes.lines if line.get_marker() == "o"]) == 3
    assert {text.get_text() for text in axes.texts} == set(NAMES)
