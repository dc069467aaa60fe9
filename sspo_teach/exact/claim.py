"""Is SSPO's trade-off of bias and variance better, as its paper (arXiv 2602.19327) says without a number? Measured.

Everything is exact on one problem; what is averaged are problems. Errors are those of a step's direction: relative to
‖∇J‖² and after the best scalar multiple, so that no method gains by its scale (``measures.compare``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from sspo_teach.catalog import Method
from sspo_teach.exact import decompose, measures, moments
from sspo_teach.exact.problem import Problem, problem
from sspo_teach.exact.sweep import BATCHES, OWN, apart, row_of
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
    "grpo": tuple({"eps_high": e, "eps_low": min(e, 0.99)} for e in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)),
    "gmpo": tuple({"eps_high": e, "eps_low": e} for e in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)),
    "gspo": tuple({"eps_high": e, "eps_low": min(e, 0.99)} for e in (4e-4, 0.01, 0.05, 0.2, 0.8, 1.6, 3.2)),
    "sapo": tuple({"tau_pos": t, "tau_neg": t} for t in (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)),
    "sspo": tuple({"tau_pos": t, "tau_neg": t} for t in (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)),
}
"""The number that moves each method between little bias and little noise."""
DRIFTS = ("random", "gradient", "precision")
OWN_DISTANCES = (0.03, 0.3)
LENGTHS = (1, 2, 3, 4, 6, 8)
SOLVED = (0.02, 0.05, 0.1, 0.3, 0.6)
LEAST = 6
"""Fewer problems say nothing about the next one."""
SECONDS = 5.5
"""Of one core per problem: 222 s were measured for 40."""
Done = Callable[[int], object]
PLACES = ("drift", "distance", "setting")
PARTS = (
    ("sspo_arctan geometric gate first", "gmpo_clip geometric gate first", "gate, geometric mean"),
    ("sspo_arctan geometric gate first", "sapo_sigmoid geometric gate first", "gate, geometric mean"),
    ("sspo_arctan geometric gate first", "none geometric gate first", "gate, geometric mean"),
    ("sspo_arctan arithmetic gate first", "sapo_sigmoid arithmetic gate first", "gate, arithmetic mean"),
    ("sspo_arctan arithmetic gate first", "ppo_clip arithmetic gate first", "gate, arithmetic mean"),
    ("sspo_arctan arithmetic gate first", "none arithmetic gate first", "gate, arithmetic mean"),
    ("sspo_arctan geometric gate first", "sspo_arctan arithmetic gate first", "pooling"),
    ("sapo_sigmoid geometric gate first", "sapo_sigmoid arithmetic gate first", "pooling"),
    ("none geometric gate first", "none arithmetic gate first", "pooling"),
    ("sspo_arctan geometric gate first", "sspo_arctan geometric pool first", "order"),
    ("sspo_arctan geometric gate first", "sspo_arctan product gate first", "unit of the whole response"),
)
"""(ours, rival, what differs): pairs of cells of the grid that differ in one axis."""


def _quiet(rows: int) -> None:
    """Nobody waits."""


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
    problems: int, drifts: Sequence[str] = DRIFTS, distances: Sequence[float] = DISTANCES, *, done: Done = _quiet
) -> list[dict[str, Any]]:
    """The five methods at matched drift; one that cannot get so far by itself (drift ``own``) has no row."""
    where = ({"drift": d, "distance": x, "setting": s} for d in drifts for x in distances for s in SETTINGS)
    return list(_rows(problems, where, {name: row_of(name) for name in METHODS}, done=done))


def by_tau(problems: int, *, done: Done = _quiet) -> list[dict[str, Any]]:
    """SSPO's temperature: (τ⁺, τ⁻) from 0.5 to 20, under the random drift."""
    rows = {f"{pos:g}/{neg:g}": row_of("sspo").with_numbers(tau_pos=pos, tau_neg=neg) for pos, neg in TAUS}
    where = ({"drift": "random", "distance": x, "setting": s} for x in DISTANCES for s in SETTINGS)
    return list(_rows(problems, where, rows, label="tau", done=done))


def by_knob(problems: int, distance: float = 0.3, *, done: Done = _quiet) -> list[dict[str, Any]]:
    """Every method along its own number, all else equal: the trade-off itself, at one distance of the random drift."""
    rows = {
        f"{name} {next(iter(numbers.values())):g}": row_of(name).with_numbers(**numbers)
        for name, settings in KNOBS.items()
        for numbers in settings
    }
    where = [{"drift": "random", "distance": distance, "setting": "all else equal"}]
    found = _rows(problems, where, rows, label="at", done=done)
    return [{"method": row["at"].split()[0], "number": float(row.pop("at").split()[1]), **row} for row in found]


def by_length(problems: int, distance: float = 0.3, *, done: Done = _quiet) -> list[dict[str, Any]]:
    """The five methods with responses of at most 1 … 8 tokens, two letters, at one distance per response."""
    rows = {name: row_of(name) for name in METHODS}
    where = [{"drift": "random", "distance": distance, "setting": s} for s in SETTINGS]
    return [
        {"length": length, **row}
        for length in LENGTHS
        for row in _rows(problems, where, rows, letters=2, length=length, done=done)
    ]


def by_sparsity(problems: int, distance: float = 0.3, *, done: Done = _quiet) -> list[dict[str, Any]]:
    """The five methods where 2 … 60 % of the finished responses earn the reward."""
    rows = {name: row_of(name) for name in METHODS}
    where = [{"drift": "random", "distance": distance, "setting": s} for s in SETTINGS]
    return [
        {"solved": share, **row} for share in SOLVED for row in _rows(problems, where, rows, solved=share, done=done)
    ]


def by_part(problems: int, distance: float = 0.3, *, done: Done = _quiet) -> list[dict[str, Any]]:
    """Gate × unit × order, all else equal: what the gate does and what the pooling does."""
    rows = {", ".join(key): cell for key, cell in decompose.grid().items()}
    where = [{"drift": "random", "distance": distance, "setting": "all else equal"}]
    found = _rows(problems, where, rows, label="cell", done=done)
    return [{**dict(zip(("gate", "unit", "order"), row.pop("cell").split(", "), strict=True)), **row} for row in found]


def tables(problems: int, *, done: Done = _quiet) -> dict[str, list[dict[str, Any]]]:
    """Every table by name; ``method`` ends with each method's own drift, at two distances of fewer problems.

    Args:
        problems: how many random problems.
        done: is told, after each problem, how many of the ``work`` rows that was.
    """
    own = by_method(_quarter(problems), (OWN,), OWN_DISTANCES, done=done)
    return {
        "method": by_method(problems, distances=DISTANCES, done=done) + own,
        "knob": by_knob(problems, done=done),
        "tau": by_tau(problems, done=done),
        "length": by_length(problems, done=done),
        "sparsity": by_sparsity(problems, done=done),
        "part": by_part(problems, done=done),
    }


def work(problems: int) -> int:
    """Rows that ``tables`` computes, those out of reach included."""
    five = len(METHODS) * len(SETTINGS)
    knobs, taus = sum(map(len, KNOBS.values())), len(TAUS) * len(DISTANCES) * len(SETTINGS)
    places = len(DRIFTS) * len(DISTANCES) + len(LENGTHS) + len(SOLVED)
    each = five * places + knobs + taus + len(decompose.grid())
    return problems * each + _quarter(problems) * five * len(OWN_DISTANCES)


def _quarter(problems: int) -> int:
    return -(-problems // 4)


# --- what the tables say ---

MEASURES = ("bias", "noise", *(f"mse_{size}" for size in BATCHES))


def paired(
    rows: Sequence[Mapping[str, Any]], *, ours: str = "sspo", label: str = "method", places: Sequence[str] = PLACES
) -> list[dict[str, Any]]:
    """SSPO's error over each rival's, problem by problem, at every place.

    Returns:
        rows with the place, rival, measure, ratio (geometric mean over problems), low and high (95 % interval of it:
        Student's, on the logarithm), wins (problems in which ours is smaller), problems, and verdict: better, worse,
        or not told apart. Every number is exact on its problem; the interval is for the choice of problems. Rivals
        with fewer than six problems in common are left out.
    """
    found: dict[tuple[Any, ...], dict[str, dict[int, Mapping[str, Any]]]] = {}
    for row in rows:
        here = found.setdefault(tuple(row[name] for name in places), {})
        here.setdefault(str(row[label]), {})[row["problem"]] = row
    out = []
    for at, sides in found.items():
        mine = sides.get(ours, {})
        for rival, theirs in sides.items():
            both = mine.keys() & theirs.keys()
            if rival == ours or len(both) < LEAST:
                continue
            for measure in MEASURES:
                logs = [math.log(max(mine[k][measure], 1e-12) / max(theirs[k][measure], 1e-12)) for k in sorted(both)]
                place = {**dict(zip(places, at, strict=True)), "rival": rival, "measure": measure}
                out.append({**place, **_interval(logs)})
    return out


def tuned(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """SSPO against its rivals with each at the one number that has the least mean error over all problems.

    The numbers are chosen for each batch size by itself; they are given as ``number`` (SSPO's) and ``rival_number``.
    """
    out = []
    for size in BATCHES:
        measure = f"mse_{size}"
        best: dict[str, float] = {}
        for name in KNOBS:
            mean: dict[float, list[float]] = {}
            for row in rows:
                if row["method"] == name:
                    mean.setdefault(row["number"], []).append(row[measure])
            best[name] = min(mean, key=lambda number: sum(mean[number]) / len(mean[number]))
        chosen = [row for row in rows if row["number"] == best[row["method"]]]
        out += [
            {**row, "number": best["sspo"], "rival_number": best[row["rival"]]}
            for row in paired(chosen)
            if row["measure"] == measure
        ]
    return out


def student(freedom: int) -> float:
    """The 97.5 % point of Student's t, by Cornish and Fisher's expansion: 0.2 % low at 5 degrees of freedom.

    Source: Abramowitz & Stegun, 26.7.5.
    """
    if freedom < 5:
        raise ValueError(f"freedom={freedom}: the expansion needs at least 5")
    z, n = 1.959963985, freedom
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


def _interval(logs: Sequence[float]) -> dict[str, Any]:
    n = len(logs)
    mean = sum(logs) / n
    half = student(n - 1) * (sum((x - mean) ** 2 for x in logs) / (n - 1) / n) ** 0.5
    verdict = "better" if mean + half < 0 else "worse" if mean - half > 0 else "not told apart"
    ends = {"ratio": math.exp(mean), "low": math.exp(mean - half), "high": math.exp(mean + half)}
    return {**ends, "wins": sum(x < 0 for x in logs), "problems": n, "verdict": verdict}


def answer(found: Mapping[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The comparisons that the question asks for.

    ``method``, ``length`` and ``sparsity`` are against the four rivals, ``tuned`` with every method at its best number,
    ``tau`` against τ = 1/1.05, and ``part`` is the gate under one pooling and the pooling under one gate.
    """
    cells = [{**row, "cell": " ".join((row["gate"], row["unit"], row["order"]))} for row in found["part"]]
    parts = []
    for ours, rival, what in PARTS:
        two = [row for row in cells if row["cell"] in (ours, rival)]
        parts += [{"part": what, "ours": ours, **row} for row in paired(two, ours=ours, label="cell")]
    return {
        "method": paired(found["method"]),
        "tuned": tuned(found["knob"]),
        "tau": paired(found["tau"], ours="1/1.05", label="tau"),
        "length": paired(found["length"], places=("length", *PLACES)),
        "sparsity": paired(found["sparsity"], places=("solved", *PLACES)),
        "part": parts,
    }


MARKS = {"better": "+", "worse": "−", "not told apart": " "}


def lines(answers: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """The answers as text: ratios of squared errors, marked + where SSPO's is smaller at 95 %, − where it is larger."""
    head = "".join(f"{f'{size} groups':>22}" for size in BATCHES)
    titles = {
        "method": "SSPO's squared error over each rival's, at its published numbers",
        "tuned": "The same with every method at its best number (all else equal, KL = 0.3)",
        "tau": "SSPO at 1/1.05 over SSPO at another τ⁺/τ⁻",
        "length": "By the longest response",
        "sparsity": "By the share of finished responses that earn the reward",
        "part": "What differs: the gate alone, the pooling alone",
    }
    out = []
    for name, title in titles.items():
        cells: dict[str, dict[str, str]] = {}
        for row in answers[name]:
            text = f"{row['ratio']:.2f} [{row['low']:.2f}, {row['high']:.2f}]{MARKS[row['verdict']]}"
            cells.setdefault(_label(row), {})[row["measure"]] = text
        wide = max(map(len, cells), default=0) + 1
        out += ["", f"{title}  (ratio [95 % interval]; + better, − worse)", f"{'':<{wide}}{head}"]
        for label, own in cells.items():
            out.append(f"{label:<{wide}}" + "".join(f"{own.get(f'mse_{size}', ''):>22}" for size in BATCHES))
    return out


def _label(row: Mapping[str, Any]) -> str:
    if "part" in row:
        return f"{row['part']}: {row['ours']} / {row['rival']}"
    named = [f"{key} {row[key]:g}" for key in ("length", "solved") if key in row]
    return f"{row['rival']:<9}" + ", ".join([*named, f"{row['drift']}, KL {row['distance']:g}, {row['setting']}"])


def _rows(
    problems: int, where: Any, rows: Mapping[str, Method], *, label: str = "method", done: Done, **shape: Any
) -> Iterator[dict[str, Any]]:
    where = list(where)
    for seed in range(problems):
        yield from _rows_of(seed, problem(seed=seed, **shape), where, rows, label)
        done(len(where) * len(rows))


def _rows_of(
    seed: int, here: Problem, where: Sequence[Mapping[str, Any]], rows: Mapping[str, Method], label: str
) -> Iterator[dict[str, Any]]:
    if not here.truth.norm() > 1e-9:  # no response earns anything, or all do
        return
    for at in where:
        for name, row in rows.items():
            try:
                yield {"problem": seed, **at, label: name, **place(here, row, seed=seed, **at)}
            except ValueError:  # out of reach
                continue
