"""Which rows another trainer can run, and in words why not the others."""

from __future__ import annotations

from collections.abc import Collection

from sspo_teach.catalog import Method
from sspo_teach.controllers import Fixed
from sspo_teach.tensors import name_of


def obstacles(row: Method, *, fields: Collection[str] = ()) -> list[str]:
    """Why a trainer that hands over one micro-batch at a time, with these ``fields``, cannot run ``row``; or none."""
    missing = [name for name in row.needs if name not in fields]
    found = {
        "its credit couples the responses of a minibatch, and the trainer shows one micro-batch at a time":
        not row.separable,
        f"it computes {', '.join(row.needs)} from the whole minibatch, which the trainer does not show":
        row.fields is not None,
        f"it needs {', '.join(missing)}, which the trainer does not hand over":
        bool(missing) and row.fields is None,
        f"its {name_of(row.controller)} keeps state between steps, which the trainer would neither share nor save":
        row.controller is not Fixed,
        "its advantages come from a critic of its own":
        row.critic is not None,
    }  # fmt: skip
    return [reason for reason, holds in found.items() if holds]


def refuse(row: Method, trainer: str, reasons: list[str]) -> None:
    """Raise one ``ValueError`` with all reasons, if there are any."""
    if reasons:
        raise ValueError(f"{name_of(row.objective)} cannot train in {trainer}: {'; '.join(reasons)}")
