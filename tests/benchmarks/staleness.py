"""The runs that lesson 07 looks at: staleness on a grid, and six runs of which most learn nothing.

    python tests/benchmarks/staleness.py notebooks/results/staleness

One seed each, on one thread. A run that stands in the files already is not made again.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sspo_teach.training.config import Config
from sspo_teach.training.trainer import Trainer, TrainingWarning

UPDATES = {1: (1, 1), 4: (4, 1), 16: (4, 4)}
"""Updates per rollout batch: (minibatches, epochs)."""
RATES = (3e-5, 1e-4, 3e-4, 1e-3)
NO_CLIP = {"method": "grpo", "numbers": ("eps_low=1", "eps_high=1e6")}
METHODS = {"grpo": {"method": "grpo"}, "sspo": {"method": "sspo"}, "grpo without clip": NO_CLIP}
SMALL: Mapping[str, Any] = {
    "steps": 30, "prompts": 32, "eval_problems": 300, "eval_every": 30, "lr_warmup": 2, "lr_decay": "constant",
    "threads": 1,
}  # fmt: skip
CASES: Mapping[str, Mapping[str, Any]] = {
    "A": {"lr": 1e-7},
    "B": {"warmup_steps": 0, "options": ("digits=3",)},
    "C": {"minibatches": 4, "lr": 1e-4},
    "D": {"shuffle_rewards": True},
    "E": {"minibatches": 1},
    "F": {**NO_CLIP, "minibatches": 4, "epochs": 4, "lr": 1e-3},
}
COLUMNS = (
    "step", "reward", "correct", "finished", "dead_groups", "length", "entropy", "grad_norm", "loss", "ratio_error",
    "ratio_q01", "ratio_q50", "ratio_q99", "moved", "outside_band", "silenced", "removed_corrective",
    "removed_extending", "kl_k3", "ess",
)  # fmt: skip
ENDS = ("greedy_before", "greedy_after", "sampled_before", "sampled_after")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore", TrainingWarning)
    for case, other in CASES.items():
        make(folder, "cases", {"case": case}, other)
    for method, row in METHODS.items():
        for updates, (minibatches, epochs) in UPDATES.items():
            for lr in RATES:
                other = {**row, "minibatches": minibatches, "epochs": epochs, "lr": lr}
                make(folder, "grid", {"method": method, "updates": updates, "lr": f"{lr:g}"}, other)


def make(folder: Path, table: str, name: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Train once and write its history and its ends, unless they are there."""
    ends = folder / f"{table}_ends.csv"
    if any(all(row[key] == str(value) for key, value in name.items()) for row in read(ends)):
        return
    with tempfile.TemporaryDirectory() as scratch:
        trainer = Trainer(Config(**{**SMALL, **other}, out=f"{scratch}/run"), quiet=True)
        trainer.run()
        history, evaluations = trainer.folder.history(), trainer.folder.evaluations()
    solved = {
        f"{way}_{when}": evaluation[way]["correct"]["share"]
        for way in ("greedy", "sampled")
        for when, evaluation in (("before", evaluations[0]), ("after", evaluations[-1]))
    }
    write(folder / f"{table}.csv", (*name, *COLUMNS), ({**row, **name} for row in history))
    write(ends, (*name, *ENDS), [{**name, **solved}])
    print(name, {key: round(value, 3) for key, value in solved.items()}, flush=True)


def read(table: Path) -> list[dict[str, str]]:
    if not table.exists():
        return []
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


def write(table: Path, columns: tuple[str, ...], rows: Iterable[Mapping[str, Any]]) -> None:
    new = not table.exists()
    with table.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if new:
            writer.writeheader()
        for row in rows:
            short = {key: f"{row[key]:.4g}" if isinstance(row[key], float) else row[key] for key in columns}
            writer.writerow(short)


if __name__ == "__main__":
    main()
