"""Bias and noise of many methods at many distances, without spectra: quick enough for a slider."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sspo_teach.exact import measures, moments
from sspo_teach.exact.problem import Problem
from sspo_teach.exact.sweep import DISTANCES, apart, row_of
from sspo_teach.tensors import check_positive


def places(
    here: Problem,
    names: Iterable[str],
    *,
    drifts: Sequence[str] = ("random",),
    distances: Sequence[float] = DISTANCES,
    group: int = 4,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Cosine, bias and noise of each method at each place; what cannot be enumerated or reached has no row.

    Args:
        names: methods, ``sequence_is`` among them; any preset after a colon.
        drifts, distances: KL(old ‖ new) along each way to drift.
        group: responses per prompt.

    Returns:
        method, drift, distance; cosine of E[ĝ] and ∇J; bias √(1 − cos²); noise tr Cov/‖∇J‖² of one group after the best
        multiple. Of N groups it is noise/N.
    """
    rows = {name: row_of(name) for name in names}
    out: list[dict[str, Any]] = []
    for drift in drifts:
        for distance in distances:
            far = apart(here, drift, distance, seed=seed)
            for name, row in rows.items():
                try:
                    found = measures.compare(far, moments.of(far, row, group))
                except ValueError:
                    continue
                kept = {"cosine": found["cosine"], "bias": found["bias_scaled"], "noise": found["trace_scaled"]}
                out.append({"method": name, "drift": drift, "distance": distance, **kept})
    return out


def error(cosine: float, noise: float, batch: float) -> float:
    """The squared error of N groups' step after its best multiple, relative to ‖∇J‖²: 1 − cos²/(1 + noise/(N cos²)).

    0 is the truth, 1 no step at all. With cos = 1 it is noise/(N + noise), and with N → ∞ it is bias² = 1 − cos².
    """
    check_positive(batch=batch)
    if not cosine:
        return 1.0
    return 1 - cosine**2 / (1 + noise / (batch * cosine**2))
