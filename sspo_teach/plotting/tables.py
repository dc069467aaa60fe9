"""Committed tables, read back as numbers."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any


def read_table(path: str | Path) -> list[dict[str, Any]]:
    """Rows of a CSV file; cells that are numbers become floats, others stay text.

    Raises:
        ValueError: no file is there.
    """
    path = Path(path)
    if not path.exists():
        raise ValueError(f"path={str(path)!r}: no table is there; the lessons read theirs from notebooks/results")
    with path.open(newline="") as file:
        return [{name: _cell(cell) for name, cell in row.items()} for row in csv.DictReader(file)]


def _cell(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell
