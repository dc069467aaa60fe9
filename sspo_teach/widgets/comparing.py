"""Controls of a fair comparison: choose the seed that you like best, or the number of seeds that you need."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from matplotlib.figure import Figure

from sspo_teach.plotting.comparing import Runs, one_seed, power_curve
from sspo_teach.tensors import check_between
from sspo_teach.training.intervals import power

SEEDS = tuple(range(1, 41))


def seed_picker(runs: Runs) -> Callable[..., Any]:
    """``draw(figure, *, seed, way)``: the figure that somebody with this one seed would publish."""
    most = min(len(seeds) for seeds in runs.values()) - 1

    def draw(figure: Figure, *, seed: int, way: str = "sampled") -> None:
        check_between(0, most, "it is one of the seeds that were run", seed=seed)
        one_seed(runs, seed, way=way, figure=figure)

    return draw


@cache
def _powers(difference: float, sd: float) -> tuple[float, ...]:
    return tuple(power(difference, sd, n) for n in SEEDS)


def seed_counter(figure: Figure, *, difference: float, sd: float, seeds: int) -> None:
    """Draw the chance that ``seeds`` paired runs tell a true ``difference`` (points) from 0, sd per pair ``sd``."""
    check_between(1, SEEDS[-1], "it is a number of seeds", seeds=seeds)
    chances = _powers(difference, sd)
    enough = next((n for n, chance in zip(SEEDS, chances, strict=True) if chance >= 0.8), None)
    needed = f"80 % takes {enough}" if enough else f"80 % takes more than {SEEDS[-1]}"
    title = (
        f"{seeds} seeds see {difference:g} ± {sd:g} points in {100 * chances[seeds - 1]:.0f} % of the cases; {needed}"
    )
    power_curve(SEEDS, chances, mark=seeds, title=title, figure=figure)
