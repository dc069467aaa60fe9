"""Several runs that differ in one thing: the same start, the same budget, other methods and seeds."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sspo_teach import plotting
from sspo_teach.tensors import unknown
from sspo_teach.training.checkpoint import found
from sspo_teach.training.config import Config, resolve
from sspo_teach.training.folder import RunFolder, read_history
from sspo_teach.training.intervals import interval
from sspo_teach.training.trainer import Trainer, train

Runs = dict[str, list[list[dict[str, Any]]]]


def compare(
    config: Config, methods: Sequence[str], seeds: int, folder: Path, *, quiet: bool = False, fresh: bool = False
) -> Runs:
    """Train every method on every seed under one config; returns method → seed → evaluations.

    Runs of one seed share the warmed start, the prompts and the evaluation: differences are the method's and chance's.
    A run that is complete in ``folder`` is taken as it is, one that was broken off goes on.

    Raises:
        ValueError: an option that cannot work, fewer than two methods, or no seed. Nothing is trained before all are
            checked.
    """
    if len(methods) < 2 or len(set(methods)) < len(methods):
        raise ValueError(f"methods={','.join(methods)}: name at least two different ones, e.g. grpo,sspo")
    if seeds < 1:
        raise ValueError(f"seeds={seeds}: must be at least 1; 3 show how much is chance")
    plan = []
    for seed in range(config.seed, config.seed + seeds):
        for name in methods:
            out = place(folder, name, seed)
            go_on = bool(found(out / "checkpoints")) and not fresh
            run = dataclasses.replace(config, method=name, seed=seed, out=str(out), resume=go_on, overwrite=fresh)
            plan.append(resolve(run))
    runs: Runs = {}
    for run in plan:
        trainer = Trainer(run, quiet=quiet)
        trainer.run()
        if trainer.stop:
            raise KeyboardInterrupt
        runs.setdefault(run.method, []).append(trainer.folder.evaluations())
    return runs


def place(folder: Path, name: str, seed: int) -> Path:
    """Where a comparison keeps the run of one method and seed."""
    return folder / f"{name.replace(':', '-')}-s{seed}"


def histories(folder: Path, methods: Sequence[str], seeds: Sequence[int]) -> dict[str, list[list[dict[str, float]]]]:
    """Method → for each seed, the rows of its history."""
    return {name: [RunFolder(place(folder, name, seed)).history() for seed in seeds] for name in methods}


def summarize(runs: Runs) -> list[dict[str, Any]]:
    """One row per method and way: means over seeds and the half width of the gain's 95 % t-interval, in points."""
    rows = []
    for name, seeds in runs.items():
        for way in ("greedy", "sampled"):
            start = [100 * seed[0][way]["correct"]["share"] for seed in seeds]
            end = [100 * seed[-1][way]["correct"]["share"] for seed in seeds]
            gain = [b - a for a, b in zip(start, end, strict=True)]
            mean, half = interval(gain)
            rows.append(
                {
                    "method": name,
                    "way": way,
                    "seeds": len(seeds),
                    "tokens": statistics.mean(seed[-1].get("tokens", math.nan) for seed in seeds),
                    "before": statistics.mean(start),
                    "after": statistics.mean(end),
                    "gain": mean,
                    "half_width": half,
                }
            )
    return rows


def final(runs: Runs, way: str = "sampled") -> dict[str, list[float]]:
    """Accuracy of each seed after training, in per cent, by method."""
    return {name: [100 * seed[-1][way]["correct"]["share"] for seed in seeds] for name, seeds in runs.items()}


def paired(runs: Runs, baseline: str, way: str = "sampled") -> dict[str, list[float]]:
    """Final accuracy minus the baseline's on the same seed, in percentage points, by method.

    Raises:
        ValueError: the baseline was not among the methods.
    """
    after = final(runs, way)
    if baseline not in after:
        raise ValueError(unknown("baseline", baseline, after))
    pairs = {name: zip(values, after[baseline], strict=True) for name, values in after.items() if name != baseline}
    return {name: [a - b for a, b in values] for name, values in pairs.items()}


def differences(runs: Runs, baseline: str, way: str = "sampled") -> dict[str, tuple[float, float]]:
    """Final accuracy minus the baseline's on the same seed: mean and half width, percentage points."""
    return {name: interval(values) for name, values in paired(runs, baseline, way).items()}


def read(folder: Path) -> tuple[Runs, str]:
    """The evaluations that ``write`` left in ``folder``, and the command that made them.

    Raises:
        ValueError: no comparison is there.
    """
    path = folder / "comparison.json"
    if not path.exists():
        raise ValueError(f"{folder} holds no comparison: comparison.json is missing; `sspo-teach compare` writes one")
    found = json.loads(path.read_text())
    return found["runs"], found["command"]


def write(runs: Runs, folder: Path, command: str) -> Path:
    """Write ``comparison.json`` (evaluations and command), ``comparison.csv`` (summary) and ``comparison.png``."""
    (folder / "comparison.json").write_text(json.dumps({"command": command, "runs": runs}, indent=1))
    rows = summarize(runs)
    with (folder / "comparison.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return plotting.save(plotting.comparison(runs), folder / "comparison.png")


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The summary as aligned text; histories that do not count tokens have no column of them."""
    counted = any(not math.isnan(row["tokens"]) for row in rows)
    head = f"{'method':<20}{'way':<10}{'before':>8}{'after':>8}{'gain':>8}"
    lines = [head + (f"{'tokens':>12}" if counted else "") + "   95 % interval of the gain"]
    for row in rows:
        half = row["half_width"]
        band = "one seed: unknown" if math.isnan(half) else f"{row['gain'] - half:+.1f} … {row['gain'] + half:+.1f}"
        spent = f"{row['tokens']:>12,.0f}" if counted else ""
        lines.append(
            f"{row['method']:<20}{row['way']:<10}{row['before']:>8.1f}{row['after']:>8.1f}{row['gain']:>+8.1f}"
            f"{spent}   {band}"
        )
    return "\n".join(lines)


def reruns(config: Config, seeds: int) -> list[list[dict[str, float]]]:
    """The histories of one config on several seeds, the first being its own; nothing is kept on the disk."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [dataclasses.replace(config, seed=config.seed + i, out=str(Path(folder) / str(i))) for i in range(seeds)]
        return [read_history(train(run, quiet=True)) for run in runs]
