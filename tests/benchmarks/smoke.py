"""A smoke table: one short run of every method on three seeds. It shows that each trains, not which is better.

    python tests/benchmarks/smoke.py --task arithmetic notebooks/results/smoke/arithmetic.csv

The methods share start, prompts and learning rate, none has been tuned, and the runs are far too short to compare. A
row that stands in the file already is not run again, so a broken-off table goes on where it stopped.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sspo_teach.catalog import METHODS
from sspo_teach.training.config import Config
from sspo_teach.training.trainer import Trainer

COLUMNS = (
    "method", "seed", "steps", "updates", "rejected", "sampled_before", "sampled_after", "greedy_before",
    "greedy_after", "reward_first", "reward_last", "grad_norm", "moved", "finite",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path, help="the CSV file to write or to go on with")
    parser.add_argument("--task", choices=("bandit", "arithmetic"), default="arithmetic")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default="all", help="names with commas between, or all")
    asked = parser.parse_args()
    names = list(METHODS) if asked.methods == "all" else asked.methods.split(",")
    asked.table.parent.mkdir(parents=True, exist_ok=True)
    done = {(row["method"], int(row["seed"])) for row in read(asked.table)}
    for seed in range(asked.seeds):
        for name in names:
            if (name, seed) not in done:
                row = run(asked.task, name, seed, asked.steps)
                append(asked.table, row)
                print(f"{name:<16}seed {seed}  {row['reward_first']} → {row['reward_last']}", flush=True)
    print("\n" + summary(read(asked.table)))


def run(task: str, name: str, seed: int, steps: int, **other: Any) -> dict[str, Any]:
    """Train once, at small numbers, and say what came of it; accuracies in per cent."""
    small = {"prompts": 32, "eval_problems": 300, "eval_every": max(steps, 1), "lr_warmup": 2, **other}
    with tempfile.TemporaryDirectory() as scratch:
        config = Config(task=task, method=name, seed=seed, steps=steps, out=f"{scratch}/run", **small)
        history: list[Mapping[str, float]] = []
        trainer = Trainer(config, on_step=lambda row, _: history.append(row), quiet=True)
        trainer.run()
        evaluations = trainer.folder.evaluations()
    before, after = evaluations[0], evaluations[-1]
    share = {
        f"{way}_{when}": round(100 * found[way]["correct"]["share"], 1)
        for way in ("sampled", "greedy")
        for when, found in (("before", before), ("after", after))
    }
    return {
        "method": name,
        "seed": seed,
        "steps": len(history),
        "updates": int(trainer.counts["updates"]),
        "rejected": int(trainer.counts["rejected"]),
        **share,
        "reward_first": f"{statistics.mean(row['reward'] for row in history[:3]):.3f}",
        "reward_last": f"{statistics.mean(row['reward'] for row in history[-3:]):.3f}",
        "grad_norm": f"{statistics.mean(row['grad_norm'] for row in history):.3g}",
        "moved": f"{statistics.mean(row['moved'] for row in history):.3g}",
        "finite": all(math.isfinite(value) for row in history for value in row.values()),
    }


def read(table: Path) -> list[dict[str, str]]:
    if not table.exists():
        return []
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


def append(table: Path, row: dict[str, Any]) -> None:
    new = not table.exists()
    with table.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def summary(rows: list[dict[str, str]]) -> str:
    """One line per method: the lowest and highest seed in the first three and in the last three iterations."""
    lines = ["mean reward of the training samples, lowest … highest seed; a smoke table, not a comparison"]
    for name in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == name]
        ends = [[float(row[f"reward_{when}"]) for row in own] for when in ("first", "last")]
        spans = [f"{min(values):.2f} … {max(values):.2f}" for values in ends]
        state = "" if all(row["finite"] == "True" for row in own) else "  NOT FINITE"
        lines.append(f"{name:<20}{spans[0]:>14} → {spans[1]:>14}{state}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
