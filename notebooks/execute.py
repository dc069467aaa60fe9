"""Run the lessons: `python notebooks/execute.py` writes their outputs anew, `--check` only compares them.

`python notebooks/execute.py 03 07` takes lessons 03 and 07. What is written holds no widget state, no folder of this
machine and no time. An error, a warning or anything else on stderr fails; with `--check` so does text that is not what
the file holds, except in cells tagged `varies`. A decimal may differ by one in its last digit.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
WIDGET = "application/vnd.jupyter.widget-view+json"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
NUMBER = re.compile(r"\d+\.\d+")

Notebook = Any  # nbformat.NotebookNode


def lessons(names: Sequence[str] = (), folder: Path = HERE) -> list[Path]:
    """The notebooks whose name starts with one of ``names``, or all.

    Raises:
        ValueError: no notebook starts so.
    """
    every = sorted(folder.glob("[0-9]*.ipynb"))
    for name in names:
        if not any(path.name.startswith(name) for path in every):
            raise ValueError(f"no lesson starts with {name!r}; there are {', '.join(path.stem for path in every)}")
    return [path for path in every if not names or path.name.startswith(tuple(names))]


def cleaned(notebook: Notebook, lesson: str) -> Notebook:
    """What may be committed: no widget state, machine or time, and cell ids that stay."""
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    wanted = re.compile(rf"c{lesson}-\d+")
    used = [int(cell["id"].partition("-")[2]) for cell in notebook.cells if wanted.fullmatch(cell.get("id", ""))]
    for cell in notebook.cells:
        if not wanted.fullmatch(cell.get("id", "")):
            used.append(max(used, default=0) + 1)
            cell["id"] = f"c{lesson}-{used[-1]:02d}"
        cell.metadata = nbformat.from_dict({"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {})
        if cell.cell_type == "code":
            cell.outputs = list(_outputs(cell.outputs))
    return notebook


def _outputs(outputs: Sequence[Any]) -> Iterator[Any]:
    """Without widget views, output metadata and folders; pieces of one stream joined."""
    stream = None
    for output in outputs:
        if output.output_type == "stream":
            if stream is not None and stream.name == output.name:
                stream.text += _placeless(output.text)
                continue
            stream = output
            output.text = _placeless(output.text)
        else:
            stream = None
            if "data" in output:
                kept = {kind: value for kind, value in output.data.items() if kind != WIDGET}
                output.data = nbformat.from_dict(
                    {kind: _placeless(value) if isinstance(value, str) else value for kind, value in kept.items()}
                )
                output.metadata = nbformat.from_dict({})
                if not output.data:
                    continue
        yield output


def _placeless(text: str) -> str:
    """Text without this machine's folders."""
    for folder, name in ((HERE, "."), (ROOT, ".."), (Path.home(), "~")):
        text = text.replace(str(folder), name)
    return text


def mishaps(notebook: Notebook) -> Iterator[str]:
    """Errors and what was written to stderr, warnings among it, by cell."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "error":
                yield f"{cell['id']}: {output.ename}: {COLOURS.sub('', output.evalue)}"
            elif output.output_type == "stream" and output.name == "stderr":
                yield f"{cell['id']}: on stderr: {output.text.strip()}"


def changes(before: Notebook, after: Notebook) -> Iterator[str]:
    """Cells, not tagged ``varies``, whose text or kinds of output are no longer what they were."""
    for old, new in zip(before.cells, after.cells, strict=True):
        if new.cell_type != "code" or "varies" in new.metadata.get("tags", ()):
            continue
        was, now = _said(old), _said(new)
        if not same(was, now):
            difference = difflib.unified_diff(was.splitlines(), now.splitlines(), "committed", "now", lineterm="", n=0)
            yield f"{new['id']}: its output changed\n" + "\n".join(difference)


def _said(cell: Any) -> str:
    """All text of a cell's outputs, and for pictures that there is one."""
    lines = []
    for output in cell.outputs:
        if output.output_type == "stream":
            lines.append(output.text)
        for kind, value in sorted(output.get("data", {}).items()):
            lines.append(f"{kind}:" if kind.startswith("image/") else f"{kind}: {value}")
    return "\n".join(lines)


def same(was: str, now: str) -> bool:
    """Equal, but that a decimal may differ by one in its last digit, as it does between processors."""
    if NUMBER.sub("#", was) != NUMBER.sub("#", now):
        return False
    for x, y in zip(NUMBER.findall(was), NUMBER.findall(now), strict=True):
        unit = 10.0 ** -len(x.partition(".")[2])
        if len(x.partition(".")[2]) != len(y.partition(".")[2]) or abs(float(x) - float(y)) > 1.001 * unit:
            return False
    return True


async def run(notebook: Notebook, folder: Path, timeout: float = 600) -> None:
    """Execute all cells in a kernel of its own, with one thread, in ``folder``; errors stay in the outputs."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    env = {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    env.pop("MPLBACKEND", None)
    client = NotebookClient(
        notebook,
        timeout=timeout,
        startup_timeout=180,
        resources={"metadata": {"path": str(folder)}},
        extra_arguments=["--log-level=ERROR"],  # else each kernel warns that it listens on a port
    )
    try:
        await client.async_execute(env=env)
    except CellExecutionError:
        return  # it stands in the outputs


async def lesson(path: Path, *, check: bool, gate: asyncio.Semaphore) -> bool:
    """Execute one notebook and say how it went; true when it went well. Without ``check`` it is then written."""
    async with gate:
        began = time.perf_counter()
        before = nbformat.read(path, as_version=4)
        after = nbformat.read(path, as_version=4)
        for cell in after.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        try:
            await run(after, path.parent)
            after = cleaned(after, path.name[:2])
            problems = list(mishaps(after)) or (list(changes(before, after)) if check else [])
        except Exception as error:  # a dead kernel, a time-out: the other lessons still run
            problems = [f"{type(error).__name__}: {error}"]
        if not check and not problems:
            nbformat.write(after, path)
        print(f"{'✗' if problems else '✓'} {path.name}  {time.perf_counter() - began:.0f} s", flush=True)
        for problem in problems:
            print("    " + problem.replace("\n", "\n    "), flush=True)
        return not problems


async def every(paths: Sequence[Path], *, check: bool, jobs: int) -> bool:
    """All of them, ``jobs`` at a time."""
    gate = asyncio.Semaphore(jobs)
    return all(await asyncio.gather(*(lesson(path, check=check, gate=gate) for path in paths)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="how the lessons' files begin, such as 03; all by default")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the text is another")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    options = parser.parse_args(arguments)
    try:
        paths = lessons(options.names)
    except ValueError as error:
        parser.error(str(error))
    began = time.perf_counter()
    well = asyncio.run(every(paths, check=options.check, jobs=options.jobs))
    print(f"{len(paths)} lessons in {time.perf_counter() - began:.0f} s")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
