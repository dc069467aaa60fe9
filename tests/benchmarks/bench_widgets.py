"""How long a widget takes to answer, its PNG included and no browser: at most 150 ms for any control of any widget.

`python tests/benchmarks/bench_widgets.py` measures the widgets that need no data; with `--lessons` it also runs the
lessons' cells up to their last widget, and measures all that they show. A control is moved over its range a few times;
the table has the median of its answers by the clock and in processor time, which a busy machine hardly changes.
The exit status is 1 where a median by the clock is above the limit.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import os
import pkgutil
import re
import statistics
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import ipywidgets
import nbformat
import torch

from sspo_teach import widgets
from sspo_teach.widgets import panel as panels
from sspo_teach.widgets.panel import Panel

FOLDER = Path(__file__).parent.parent.parent / "notebooks"
LIMIT = 150.0  # ms
MOVES = 7


def alone() -> Iterator[tuple[str, Panel]]:
    """The widgets of the package whose functions need no argument."""
    for module in pkgutil.iter_modules(widgets.__path__):
        found = import_module(f"{widgets.__name__}.{module.name}")
        for name, make in inspect.getmembers(found, inspect.isfunction):
            signature = inspect.signature(make)
            own = make.__module__ == found.__name__ and signature.return_annotation == "Panel"
            if own and all(p.default is not p.empty for p in signature.parameters.values()):
                yield f"{module.name}.{name}", make()


def shown(path: Path) -> list[tuple[str, Panel]]:
    """The widgets that a lesson makes, as its cells make them."""
    made: list[Panel] = []

    class Recorded(Panel):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    last = max((i for i, cell in enumerate(cells) if "widget" in cell.metadata.get("tags", ())), default=-1)
    before, panels.Panel = panels.Panel, Recorded  # type: ignore[misc]
    names: dict[str, Any] = {"__name__": path.stem}
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            for cell in cells[: last + 1]:
                exec(re.sub(r"^(\s*)[%!].*$", r"\1pass", cell.source, flags=re.M), names)
    finally:
        panels.Panel = before  # type: ignore[misc]
    return [(f"{path.stem[:2]}, {', '.join(p.controls)[:40]}", p) for p in made]


def places(control: Any) -> list[Any]:
    """Values to move a control through."""
    if isinstance(control, ipywidgets.SelectMultiple):
        return [tuple(control.options[:k]) for k in range(1, 1 + min(MOVES, len(control.options)))]
    if hasattr(control, "options"):
        values = [option[1] if isinstance(option, tuple) else option for option in control.options]
        return (values * MOVES)[:MOVES]
    if isinstance(control.value, bool):
        return [k % 2 == 0 for k in range(MOVES)]
    if isinstance(control.value, str):
        return ["min(x, 1.2)", "x**2", "1 + log(x)", "x"]
    low, high = control.min, control.max
    ways = [low + (high - low) * k / MOVES for k in range(1, MOVES + 1)]
    ways = [int(way) for way in ways] if isinstance(control.value, int) else ways
    return [(low, way) for way in ways] if isinstance(control.value, tuple) else ways


def answers(made: Panel, key: str) -> list[tuple[float, float]]:
    """Milliseconds by the clock and of the processor, of each answer to a control that really moved."""
    control, taken = made.controls[key], []
    for value in places(control):
        if value == control.value:
            continue
        began = time.perf_counter(), time.process_time()
        control.value = value
        taken.append((1000 * (time.perf_counter() - began[0]), 1000 * (time.process_time() - began[1])))
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lessons", nargs="*", help="run lessons, too: all, or those that begin with these numbers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = list(alone())
    if options.lessons is not None:
        os.chdir(FOLDER)
        chosen = tuple(options.lessons) or ("",)
        found += [each for path in sorted(FOLDER.glob("[0-9]*.ipynb")) if path.name.startswith(chosen)
                  for each in shown(path)]  # fmt: skip
    slow = 0
    print(f"{'widget':48} {'control':16} {'median':>8} {'worst':>8} {'processor':>10}  ms")
    for name, made in found:
        for key in made.controls:
            taken = answers(made, key)
            if taken:
                clock, processor = zip(*taken, strict=True)
                median = statistics.median(clock)
                slow += median > LIMIT
                mark = "  too slow" if median > LIMIT else ""
                print(f"{name:48} {key:16} {median:8.0f} {max(clock):8.0f} {statistics.median(processor):10.0f}{mark}")
    print(f"{slow} controls above {LIMIT:.0f} ms")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
