"""Intervals and power: against tables, against simulation."""

from __future__ import annotations

import numpy as np
import pytest

from sspo_teach.training.intervals import interval, luckiest_split, power, seeds_needed, t975, t_point, unpaired


@pytest.mark.parametrize(("difference", "sd", "seeds"), [(0.0, 1.0, 5), (1.0, 1.0, 5), (2.0, 1.5, 3), (1.0, 2.0, 20)])
def test_power_is_what_simulation_finds(difference, sd, seeds):
    x = np.random.default_rng(0).normal(difference, sd, size=(40_000, seeds))
    told_apart = abs(x.mean(1)) > t975(seeds - 1) * x.std(1, ddof=1) / seeds**0.5
    assert power(difference, sd, seeds) == pytest.approx(told_apart.mean(), abs=0.008)


def test_without_a_difference_one_in_twenty_is_told_apart():
    for seeds in (2, 3, 10, 100):
        assert power(0.0, 3.0, seeds) == pytest.approx(0.05, abs=1e-3)
    assert power(5.0, 1.0, 1) == 0.0


def test_seeds_needed_is_the_fewest():
    """A printed table's n for the paired t-test at 80 %: 34 pairs at half an sd, 10 at one, 6 at 1.5, 5 at 2."""
    assert [seeds_needed(d, 1.0) for d in (0.5, 1.0, 1.5, 2.0)] == [34, 10, 6, 5]
    n = seeds_needed(0.7, 1.3, chance=0.9)
    assert power(0.7, 1.3, n) >= 0.9 > power(0.7, 1.3, n - 1)
    with pytest.raises(ValueError, match="more than 1000 seeds"):
        seeds_needed(0.01, 1.0)


def test_the_luckiest_split_is_the_sorted_one():
    best, rest, gap = luckiest_split([3.0, 1.0, 5.0, 2.0])
    assert (best, rest, gap) == ((0, 2), (1, 3), 2.5)
    with pytest.raises(ValueError, match="3 entries"):
        luckiest_split([1.0, 2.0, 3.0])


def test_numbers_out_of_range_are_refused_by_name():
    with pytest.raises(ValueError, match="sd must be"):
        power(1.0, 0.0, 3)
    with pytest.raises(ValueError, match="seeds must lie"):
        power(1.0, 1.0, 0)
    assert interval([1.0, 1.0]) == (1.0, 0.0)


def test_pairs_that_move_together_are_told_apart_sooner():
    """Differences 1, 1, 1, 2 on starts that lie far apart: sd 0.5 against about 13 of each list."""
    one, other = [11.0, 21.0, 31.0, 42.0], [10.0, 20.0, 30.0, 40.0]
    mean, half = unpaired(one, other)
    error = (np.var(one, ddof=1) / 4 + np.var(other, ddof=1) / 4) ** 0.5
    assert (mean, half) == (pytest.approx(1.25), pytest.approx(2.447 * error))
    assert interval([a - b for a, b in zip(one, other, strict=True)])[1] == pytest.approx(3.182 * 0.5 / 2)
    with pytest.raises(ValueError, match="one has 2 values and other 3"):
        unpaired([1.0, 2.0], [1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("freedom", "outside", "t"), [(4, 0.05, 2.776), (4, 0.01, 4.604), (9, 0.02, 2.821), (2, 0.1, 2.920)]
)
def test_points_of_student_s_t_are_the_printed_ones(freedom, outside, t):
    assert t_point(freedom, outside) == pytest.approx(t, rel=2e-3)


def test_several_questions_share_the_five_per_cent():
    values = [1.0, 2.0, 4.0, 5.0, 3.0]
    assert interval(values, questions=5)[1] / interval(values)[1] == pytest.approx(4.604 / 2.776, rel=2e-3)
