"""Is SSPO's trade-off of bias and variance better, as its paper (arXiv 2602.19327) says without a number? Measured.

Everything is exact on one problem; what is averaged are problems. Errors are those of a step's direction: relative to
‖∇J‖² and after the best scalar multiple, so that no method gains by its scale (``measures.compare``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from sspo_teach.catalog import Method
from sspo_teach.exact import decompose, measures, moments
from sspo_teach.exact.problem import Problem, problem
from sspo_teach.exact.sweep import BATCHES, apart, row_of
from sspo_teach.objectives.advantages import group_leave_one_out
from sspo_teach.objectives.normalize import Normalizer, sequence_sum
from sspo_teach.types import Rollout

METHODS = ("grpo", "gmpo", "gspo", "sapo", "sspo")
DISTANCES = (0.03, 0.1, 0.3, 1.0)
SETTINGS: Mapping[str, tuple[Callable[[Rollout], Tensor] | None, Normalizer | None]] = {
    "as published": (None, None),
    "all else equal": (group_leave_one_out, sequence_sum),
}
"""With their own advantages and normalizers, which are biased on-policy; and with ones that are not, which leaves gate,
unit and order as the only difference."""
TAUS = ((0.5, 0.5), (1.0, 1.0), (1.0, 1.05), (2.0, 2.0), (5.0, 5.0), (10.0, 10.0), (10.0, 12.0), (20.0, 20.0))
KNOBS: Mapping[str, tuple[dict[str, float], ...]] = {
    "grpo": tuple({"eps_low": e, "eps_high": e} for e in (0.05, 0.1, 0.2, 0.4, 0.8)),
    "gmpo": tuple({"eps_low": e, "eps_high": e} for e in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)),
    "gspo": tuple({"eps_low": e, "eps_high": e} for e in (3e-4, 0.01, 0.05, 0.2, 0.8)),
    "sapo": tuple({"tau_pos": t, "tau_neg": t} for t in (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)),
    "sspo": tuple({"tau_pos": t, "tau_neg": t} for t in (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)),
}
"""The number that moves each method between little bias and little noise."""
LENGTHS = (1, 2, 3, 4, 6, 8)
SOLVED = (0.02, 0.05, 0.1, 0.3, 0.6)


def place(here: Problem, row: Method, drift: str, distance: float, setting: str, *, seed: int = 0) -> dict[str, float]:
    """Bias, noise and error of a method in groups of four at one distance.

    Returns:
        bias √(1 − cos²) of E[ĝ] against ∇J; noise tr Cov/‖∇J‖² of one group after the best multiple; mse_N, the error
        of N groups.
    """
    advantage, normalize = SETTINGS[setting]
    if advantage is not None:
        row = replace(row, advantage=advantage)
    far = apart(here, drift, distance, row, seed=seed)
    found = moments.of(far, row, 4, normalize=normalize)
    out = {f"mse_{size}": measures.compare(far, found, batch=size)["mse_scaled"] for size in BATCHES}
    compared = measures.compare(far, found)
    return {"cosine": compared["cosine"], "bias": compared["bias_scaled"], "noise": compared["trace_scaled"], **out}


def by_method(
    problems: int, drifts: Sequence[str] = ("random", "gradient", "precision"), distances: Sequence[float] = DISTANCES
) -> list[dict[str, Any]]:
    """The five methods at matched drift; one that cannot get so far by itself (drift ``own``) has no row."""
    where = ({"drift": d, "distance": x, "setting": s} for d in drifts for x in distances for s in SETTINGS)
    return list(_rows(problems, where, {name: row_of(name) for name in METHODS}))


def by_tau(problems: int) -> list[dict[str, Any]]:
    """SSPO's temperature: (τ⁺, τ⁻) from 0.5 to 20, under the random drift."""
    rows = {f"{pos:g}/{neg:g}": row_of("sspo").with_numbers(tau_pos=pos, tau_neg=neg) for pos, neg in TAUS}
    where = ({"drift": "random", "distance": x, "setting": s} for x in DISTANCES for s in SETTINGS)
    return list(_rows(problems, where, rows, label="tau"))


def by_knob(problems: int, distance: float = 0.3) -> list[dict[str, Any]]:
    """Every method along its own number, all else equal: the trade-off itself, at one distance of the random drift."""
    rows = {
        f"{name} {next(iter(numbers.values())):g}": row_of(name).with_numbers(**numbers)
        for name, settings in KNOBS.items()
        for numbers in settings
    }
    where = [{"drift": "random", "distance": distance, "setting": "all else equal"}]
    found = _rows(problems, where, rows, label="at")
    return [{"method": row["at"].split()[0], "number": float(row.pop("at").split()[1]), **row} for row in found]


def by_length(problems: int, distance: float = 0.3) -> list[dict[str, Any]]:
    """The five methods with responses of at most 1 … 8 tokens, two letters, at one distance per response."""
    rows = {name: row_of(name) for name in METHODS}
    where = [{"drift": "random", "distance": distance, "setting": s} for s in SETTINGS]
    return [
        {"length": length, **row}
        for length in LENGTHS
        for row in _rows(problems, where, rows, letters=2, length=length)
    ]


def by_sparsity(problems: int, distance: float = 0.3) -> list[dict[str, Any]]:
    """The five methods where 2 … 60 % of the finished responses earn the reward."""
    rows = {name: row_of(name) for name in METHODS}
    where = [{"drift": "random", "distance": distance, "setting": s} for s in SETTINGS]
    return [{"solved": share, **row} for share in SOLVED for row in _rows(problems, where, rows, solved=share)]


def by_part(problems: int, distance: float = 0.3) -> list[dict[str, Any]]:
    """Gate × unit × order, all else equal: what the gate does and what the pooling does."""
    rows = {", ".join(key): cell for key, cell in decompose.grid().items()}
    where = [{"drift": "random", "distance": distance, "setting": "all else equal"}]
    found = _rows(problems, where, rows, label="cell")
    return [{**dict(zip(("gate", "unit", "order"), row.pop("cell").split(", "), strict=True)), **row} for row in found]


def _rows(
    problems: int, where: Any, rows: Mapping[str, Method], *, label: str = "method", **shape: Any
) -> Iterator[dict[str, Any]]:
    where = list(where)
    for seed in range(problems):
        here = problem(seed=seed, **shape)
        if not here.truth.norm() > 1e-9:  # no response earns anything, or all do
            continue
        for at in where:
            for name, row in rows.items():
                try:
                    yield {"problem": seed, **at, label: name, **place(here, row, seed=seed, **at)}
                except ValueError:  # out of reach
                    continue
