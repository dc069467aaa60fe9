"""Checkpoints that no kill can harm: written aside, then renamed. Tensors are safetensors, the rest is JSON."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sspo_teach.critics import Critic

STATE = ("step", "counts", "without_signal", "controller")  # what a run needs beside its tensors
KEEP = 2  # the newest, and one before it in case a disk loses the newest


@dataclass(frozen=True)
class Checkpoint:
    """What ``load`` found: the iteration, the tensors by name, and the JSON state."""

    step: int
    model: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    state: Mapping[str, Any]
    critic: Mapping[str, Tensor]
    critic_optimizer: Mapping[str, Tensor]


def save(
    folder: Path,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: Mapping[str, Any],
    critic: Critic | None = None,
) -> Path:
    """Write ``folder/step-N`` in one rename and delete all but the newest two."""
    final, aside = folder / f"step-{step}", folder / f".writing-{step}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    save_file(_unshared(model), aside / "model.safetensors")
    save_file(optimizer_tensors(optimizer), aside / "optimizer.safetensors")
    if critic is not None:
        save_file(_unshared(critic.model), aside / "critic.safetensors")
        save_file(optimizer_tensors(critic.optimizer), aside / "critic_optimizer.safetensors")
    (aside / "state.json").write_text(json.dumps({"step": step, **state}, indent=1))
    for file in aside.iterdir():
        _flush(file)
    if final.exists():
        shutil.rmtree(final)
    aside.rename(final)
    _flush(folder)
    for old in found(folder)[:-KEEP]:
        shutil.rmtree(folder / f"step-{old}")
    return final


def found(folder: Path) -> list[int]:
    """The iterations that have a checkpoint, in order."""
    return sorted(int(path.name[5:]) for path in folder.glob("step-*") if path.name[5:].isdigit())


def load(folder: Path, *, critic: bool = False) -> Checkpoint:
    """The newest checkpoint that can be read, its critic's tensors too if they are asked for.

    Raises:
        ValueError: there is none.
    """
    steps = found(folder)
    for step in reversed(steps):
        path = folder / f"step-{step}"
        try:
            return Checkpoint(
                step=step,
                model=load_file(path / "model.safetensors"),
                optimizer=load_file(path / "optimizer.safetensors"),
                state=_whole(json.loads((path / "state.json").read_text())),
                critic=load_file(path / "critic.safetensors") if critic else {},
                critic_optimizer=load_file(path / "critic_optimizer.safetensors") if critic else {},
            )
        except (OSError, ValueError, SafetensorError) as error:
            warnings.warn(f"{path} cannot be read ({error}); the checkpoint before it is taken", stacklevel=2)
    held = f"{len(steps)} checkpoints, none of which can be read" if steps else "no checkpoint"
    raise ValueError(f"{folder} holds {held}: start the run again, without --resume")


def _whole(state: Any) -> Mapping[str, Any]:
    missing = [name for name in STATE if name not in state]
    if missing:
        raise ValueError(f"state.json lacks {', '.join(missing)}")
    return state


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as flat tensors, "parameter.entry" → tensor; the settings come from the run's config."""
    out: dict[str, Tensor] = {}
    seen: set[int] = set()
    for i, state in optimizer.state_dict()["state"].items():
        for name, value in _flat(state):
            tensor = value.contiguous() if isinstance(value, Tensor) else torch.tensor(value)
            out[f"{i}.{name}"] = tensor.clone() if tensor.data_ptr() in seen else tensor  # a file holds nothing twice
            seen.add(tensor.data_ptr())
    return out


def _flat(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The entries of one parameter; bitsandbytes puts some of them a level deeper."""
    for name, value in state.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put flat tensors back; a whole number, which bitsandbytes counts its steps in, becomes one again."""
    states: dict[int, dict[str, Any]] = {}
    for key, value in tensors.items():
        i, name = key.split(".", 1)
        count = value.ndim == 0 and value.dtype == torch.int64
        states.setdefault(int(i), {})[name] = int(value) if count else value
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def restore_model(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put weights back; tied ones were written once."""
    missing, unexpected = model.load_state_dict(dict(tensors), strict=False)
    missing = [name for name in missing if name not in _tied(model)]
    if missing or unexpected:
        raise ValueError(f"the checkpoint is of another model: missing {missing[:3]}, unexpected {unexpected[:3]}")


def _unshared(model: nn.Module) -> dict[str, Tensor]:
    tied = _tied(model)
    return {name: value.contiguous() for name, value in model.state_dict().items() if name not in tied}


def _tied(model: nn.Module) -> set[str]:
    """Names of tensors that are another one's under a second name."""
    seen: set[int] = set()
    tied = set()
    for name, value in model.state_dict().items():
        if value.data_ptr() in seen and value.numel():
            tied.add(name)
        seen.add(value.data_ptr())
    return tied


def write_text(path: Path, text: str) -> None:
    """Replace a file in one rename, so that a reader or a kill never meets half of it."""
    aside = path.with_name(f".{path.name}.writing")
    aside.write_text(text)
    aside.replace(path)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
