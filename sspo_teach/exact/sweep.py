"""Methods × drifts × distances as tidy tables, and what they say about which gate when."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sspo_teach.catalog import Method, method
from sspo_teach.exact import decompose, measures, moments
from sspo_teach.exact.problem import DRIFTS, Problem, drifted, kl, sequence_is
from sspo_teach.objectives.advantages import group_leave_one_out
from sspo_teach.tensors import name_of, unknown
from sspo_teach.types import Verified

YARDSTICK = "sequence_is"
OWN = "own"
"""The drift that is each method's own: the learner has taken its steps on data of its old self (``moments.stale``)."""
WAYS = (*DRIFTS, OWN)
DISTANCES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
BATCHES = (16, 256, 4096)
SECONDS = 0.15
"""Of one core for a method at one place, 242 responses in groups of four; measured over the command's ten methods."""
SPECTRUM = 2_000
"""Most responses for which eigenvalues are taken."""


@dataclass(frozen=True)
class Tables:
    """Rows of the three tables, and what was left out: (method, drift, distance, why)."""

    summary: list[dict[str, Any]]
    parts: list[dict[str, Any]]
    eigenvalues: list[dict[str, Any]]
    skipped: list[tuple[str, str, float, str]]


def row_of(name: str) -> Method:
    """A method by name, ``sequence_is`` included: the unbiased yardstick."""
    if name == YARDSTICK:
        return Method(sequence_is, Verified.NOTES, advantage=group_leave_one_out)
    return method(name)


def apart(
    here: Problem, drift: str, distance: float, row: Method | None = None, *, group: int = 4, seed: int = 0
) -> Problem:
    """``here`` with sampler and learner at KL(old ‖ new) = ``distance``; drift ``own``: that of ``row``, or SSPO's."""
    if drift == OWN:
        return moments.stale(here, row or row_of("sspo"), distance, group=group)
    return drifted(here, drift, distance, seed=seed)


def known(names: Sequence[str], drifts: Sequence[str]) -> dict[str, Method]:
    """The methods by name; an unknown method or drift raises."""
    rows = {name: row_of(name) for name in names}
    if strange := [drift for drift in drifts if drift not in WAYS]:
        raise ValueError(unknown("drift", strange[0], WAYS))
    return rows


def sweep(
    here: Problem,
    names: Sequence[str],
    *,
    drifts: Sequence[str] = ("random",),
    distances: Sequence[float] = DISTANCES,
    group: int = 4,
    batch: int = 64,
    seed: int = 0,
    done: Callable[[int], object] | None = None,
) -> Tables:
    """Every method at every distance of every drift; ``group=0`` takes population advantages.

    What cannot be enumerated, or reached, is left out by name with its reason; an unknown name raises. ``done`` is told
    how many of the methods × drifts × distances are behind, as they go by.
    """
    rows = known(names, drifts)
    tables = Tables([], [], [], [])
    for drift in drifts:
        for distance in distances:
            try:
                shared = None if drift == OWN else apart(here, drift, distance, seed=seed)
            except ValueError as error:
                tables.skipped.append(("all methods", drift, distance, str(error)))
                if done:
                    done(len(rows))
                continue
            for name, row in rows.items():
                place = {"method": name, "drift": drift, "distance": distance}
                try:
                    far = shared or apart(here, drift, distance, row, group=group)
                    _take(tables, far, row, place, group, batch)
                except ValueError as error:
                    tables.skipped.append((name, drift, distance, str(error)))
                if done:
                    done(1)
    return tables


def _take(tables: Tables, far: Problem, row: Method, place: Mapping[str, Any], group: int, batch: int) -> None:
    small = far.tree.size <= SPECTRUM
    draws, coef = _draws(far, row, group)
    found = moments.expected(far, draws, coef, spread=small)
    compared = measures.compare(far, found, batch=batch)
    drift = {"kl": far.distance, "kl_back": kl(far.tree, far.new.table, far.old), "sample_size": far.sample_size}
    dead = far.dead(group) if group else 0.0
    line: dict[str, Any] = {**place, **drift, "value": far.value, "group": group, "batch": batch, "dead": dead}
    line.update(compared)
    for size in BATCHES:
        line[f"mse_scaled_{size}"] = measures.compare(far, found, batch=size)["mse_scaled"]
    weight = measures.weights(draws, coef, far, moments.normalizer_of(row, far))
    line.update(measures.removed(far, draws, weight), used=measures.used(draws, weight))
    for part in measures.parts(far, draws, coef, scale=compared["scale"]):
        tables.parts.append({**place, "kl": far.distance, **part})
    tables.summary.append(line)
    if small:
        for k, value in enumerate(moments.eigenvalues(far, found).tolist(), 1):
            tables.eigenvalues.append({**place, "kl": far.distance, "rank": k, "eigenvalue": value})


def _draws(far: Problem, row: Method, group: int) -> tuple[moments.Draws, torch.Tensor]:
    """What can be drawn and its credit: by classes where that is enough, else every group."""
    try:
        if group:
            draws = moments.group_draws(far, row, group)
        elif row.separable and row.fields is None:
            draws = moments.population_draws(far)
        else:
            raise moments.Coupled(f"{name_of(row.objective)} couples responses: take a group")
    except moments.Coupled:
        if not group:
            raise
        return moments.every_group(far, row, group)
    return draws, moments.coefficients(far, row, draws)


def grid_table(here: Problem, *, group: int = 4, batch: int = 64) -> list[dict[str, Any]]:
    """Gate × unit × order at one distance, all else equal."""
    rows = []
    for (gate, unit, order), cell in decompose.grid().items():
        compared = measures.compare(here, moments.of(here, cell, group), batch=batch)
        rows.append({"gate": gate, "unit": unit, "order": order, "kl": here.distance, **compared})
    return rows


def verdicts(summary: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each drift, distance and batch size, the method with the least error, and those within a tenth of it.

    The error is mse_scaled: relative to ‖g‖² and after the method's best scalar multiple. The yardstick takes part.
    """
    out = []
    places = dict.fromkeys((row["drift"], row["distance"]) for row in summary)
    for drift, distance in places:
        here = [row for row in summary if (row["drift"], row["distance"]) == (drift, distance)]
        for size in BATCHES:
            key = f"mse_scaled_{size}"
            ordered = sorted(here, key=lambda row: row[key])
            least = ordered[0][key]
            near = [row["method"] for row in ordered[1:] if row[key] <= 1.1 * least]
            found = {"best": ordered[0]["method"], "error": least, "near": near}
            out.append({"drift": drift, "distance": distance, "batch": size, **found})
    return out


LIMITS = (
    "Small enumerated problems, one direction of drift on each: a table of softmaxes is no language model.",
    "Error of one step's direction after the best scalar multiple; learning rate, Adam, entropy and later steps are "
    "not in it.",
    "A batch is so many groups, drawn independently; shaped rewards and resampling are left out.",
)
"""What the summary cannot say; stands beneath it."""


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """A tidy CSV: one row per observation, all columns that any row has, empty where a row has none."""
    rows = list(rows)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows([{name: _plain(value) for name, value in row.items()} for row in rows])
    return path


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return " ".join(value)
    return f"{value:.6g}" if isinstance(value, float | torch.Tensor) else value
