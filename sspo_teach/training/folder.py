"""The run's folder: what a reader of a run finds, and what a resumed run needs."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import platform
import shutil
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from sspo_teach.training.checkpoint import found, write_text
from sspo_teach.training.config import Config, filled
from sspo_teach.training.diagnostics import COLUMNS

FREE = ("out", "resume", "overwrite", "threads", "eval_every", "save_every", "hardware")
"""What may differ between a run and its resumption; anything else would make it another run."""

COLLAPSE = "collapse.json"
"""Stands in the folder of a run that ended early, and says why."""

TIMES = ("step", "sample", "score", "train", "total")


class RunFolder:
    """One run's ``config.json``, ``environment.json``, ``history.csv``, ``timing.csv``, ``samples.jsonl``,
    ``evaluation.json``, ``curve.png`` and ``checkpoints/step-N/``. Only ``timing.csv`` knows a clock: the same run
    writes the same history, to the byte."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"

    def check_free(self, config: Config) -> None:
        """Look, before anything takes time, whether a run may start here.

        Raises:
            ValueError: the folder holds a run, and the config does not say what to do with it.
        """
        if found(self.checkpoints) and not config.overwrite:  # what broke off before its first checkpoint is no run
            raise ValueError(
                f"{self.path} already holds a run: --resume goes on with it, --overwrite starts it again, "
                "--out FOLDER puts this one elsewhere"
            )
        ground = next(path for path in (self.path, *self.path.parents) if path.exists())
        if not (ground.is_dir() and os.access(ground, os.W_OK)):
            raise ValueError(f"out={str(self.path)!r}: {ground} is no folder to write to; choose another with --out")

    def create(self, config: Config, numbers: Mapping[str, Any], header: Mapping[str, Any]) -> None:
        """Start anew, whatever was here; ``header`` are settings in force that the config leaves to others."""
        for name in ("checkpoints", "reference"):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in (
            "history.csv",
            "timing.csv",
            "samples.jsonl",
            "evaluation.json",
            "curve.png",
            "config.json",
            COLLAPSE,
        ):
            (self.path / name).unlink(missing_ok=True)
        self.path.mkdir(parents=True, exist_ok=True)
        settings = {**dataclasses.asdict(config), "method_numbers": dict(numbers)}
        write_text(self.path / "environment.json", json.dumps(environment(config, header), indent=1))
        write_text(self.path / "config.json", json.dumps(settings, indent=1))

    def reopen(self, config: Config) -> None:
        """Check that ``config`` continues the run that is here.

        Raises:
            ValueError: there is no run, or it was another one.
        """
        before = read_config(self.path)
        for field in dataclasses.fields(Config):
            old, new = getattr(before, field.name), getattr(config, field.name)
            if field.name not in FREE and old != new:
                raise ValueError(
                    f"{field.name}={new!r}: the run in {self.path} was started with {field.name}={old!r}; "
                    "resume it with that, or start another with --out FOLDER"
                )

    def trim(self, step: int) -> None:
        """Forget what was written after the checkpoint of ``step``; a half-written last line goes too."""
        for name, columns in (("history.csv", tuple(COLUMNS)), ("timing.csv", TIMES)):
            rows = [row for row in read_rows(self.path / name) if _whole(row) and int(row["step"]) <= step]
            self._rewrite(name, columns, rows)
        kept = [line for line in _json_lines(self.path / "samples.jsonl") if line["step"] <= step]
        write_text(self.path / "samples.jsonl", "".join(json.dumps(line) + "\n" for line in kept))
        kept = [line for line in self.evaluations() if line["step"] <= step]
        write_text(self.path / "evaluation.json", json.dumps(kept, indent=1))

    def append(self, row: Mapping[str, Any], times: Mapping[str, float]) -> None:
        """One line of history, one of timing."""
        self._append("history.csv", tuple(COLUMNS), row)
        self._append("timing.csv", TIMES, times)

    def evaluations(self) -> list[dict[str, Any]]:
        """All evaluations so far: ``{"step": N, "greedy": …, "sampled": …}``."""
        path = self.path / "evaluation.json"
        return json.loads(path.read_text()) if path.exists() else []

    def add_collapse(self, found: Mapping[str, Any]) -> None:
        write_text(self.path / COLLAPSE, json.dumps(found, indent=1))

    def add_evaluation(self, step: int, tokens: int, found: Mapping[str, Any]) -> None:
        """Write down what ``evaluate`` found after ``step`` iterations and ``tokens`` sampled tokens."""
        with (self.path / "samples.jsonl").open("a") as file:
            for way in ("greedy", "sampled"):
                for text in found[way]["samples"]:
                    file.write(json.dumps({"step": step, "way": way, "text": text}) + "\n")
        kept = {way: {k: v for k, v in found[way].items() if k != "samples"} for way in ("greedy", "sampled")}
        write_text(
            self.path / "evaluation.json",
            json.dumps([*self.evaluations(), {"step": step, "tokens": tokens, **kept}], indent=1),
        )

    def history(self) -> list[dict[str, float]]:
        """``history.csv`` as numbers; an empty cell is NaN."""
        return read_history(self.path)

    def _append(self, name: str, columns: tuple[str, ...], row: Mapping[str, Any]) -> None:
        path = self.path / name
        if not path.exists():
            self._rewrite(name, columns, [])
        with path.open("a", newline="") as file:
            csv.DictWriter(file, columns, restval="", extrasaction="raise").writerow(row)

    def sync(self) -> None:
        """Bring the tables to the disk, where they outlive a power cut; each checkpoint counts on them."""
        for path in self.path.glob("*.csv"):
            with path.open("a") as file:
                os.fsync(file.fileno())

    def _rewrite(self, name: str, columns: tuple[str, ...], rows: Iterable[Mapping[str, Any]]) -> None:
        aside = self.path / f".{name}.writing"
        with aside.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, restval="", extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        aside.replace(self.path / name)


def read_config(path: Path) -> Config:
    """The config of the run in ``path``.

    Raises:
        ValueError: no run is there, or its config cannot be read.
    """
    file = path / "config.json"
    if not file.exists():
        raise ValueError(f"{path} holds no run: config.json is missing; `sspo-teach train` writes one")
    try:
        settings = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is not JSON ({error}); the run cannot be read") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{file} holds a {type(settings).__name__}, not settings by name; the run cannot be read")
    names = {field.name for field in dataclasses.fields(Config)}
    known: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in settings.items() if name in names
    }
    return filled(Config(**known))  # what a run did not know when it was written has its default


def read_history(path: Path) -> list[dict[str, float]]:
    """``history.csv`` in ``path`` as numbers; an empty cell is NaN."""
    rows = read_rows(path / "history.csv")
    return [{name: float(cell) if cell else float("nan") for name, cell in row.items()} for row in rows]


def read_rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def environment(config: Config, header: Mapping[str, Any]) -> dict[str, Any]:
    """What a reader needs to repeat the run: versions, machine, and the settings in force."""
    packages = ("sspo_teach", "torch", "transformers", "tokenizers", "safetensors", "numpy", "gymnasium")
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": {name: _version(name) for name in packages},
        "device": _device(config.device),
        "threads": torch.get_num_threads(),
        "seed": config.seed,
        "seeds": "prompts and samples of iteration n from (seed, n); evaluations from the seed alone",
        "sampling": {"temperature": config.temperature, "top_k": 0, "top_p": 1.0},
        "logp_old": "the sampler's own" if config.reuse_sampler_logp else "scored by the training forward",
        **header,
        "prompts": "shared within the group" if config.share_prompts else "repeated for each response",
    }


def _device(device: str) -> str | dict[str, Any]:
    """A GPU by name, memory, capability and driver side; anything else by its name alone."""
    if not device.startswith("cuda"):
        return device
    about = torch.cuda.get_device_properties(device)
    return {
        "name": about.name,
        "gib": round(about.total_memory / 2**30, 1),
        "capability": f"{about.major}.{about.minor}",
        "cuda": torch.version.cuda,
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _whole(row: Mapping[str, str | None]) -> bool:
    """Whether a row has a cell for each column of its own table, which may be older than today's columns."""
    return None not in row.values() and (row.get("step") or "").isdigit()


def _json_lines(path: Path) -> list[dict[str, Any]]:
    lines = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:  # the last line of a killed run
            continue
    return lines
