"""The committed lessons keep the rules of form, and each rule is seen to fail; `execute.py` finds what has changed.

That they run is what `python notebooks/execute.py --check` tests.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from sspo_teach.grading import exercises

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "notebooks"
WITH_CODE = ("00", "12")  # lessons that show a whole program, or functions with bugs
PLACE = re.compile(r"(?<![\w.:/~>])/(?:home|root|tmp|opt|usr|mnt|var|work|content|Users)/|\b[A-Z]:\\")
MEGABYTE = 1_000_000


def script(name: str) -> Any:
    """A script beside the lessons, as a module."""
    specification = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


execute, colab = script("execute"), script("colab")

LESSONS = execute.lessons()
Rule = Callable[[Any, str], Iterator[str]]


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tagged(notebook: Any, tag: str) -> list[Any]:
    return [cell for cell in notebook.cells if tag in cell.metadata.get("tags", ())]


def parsed(cell: Any) -> ast.Module:
    """The Python of a cell; lines for IPython count as nothing."""
    return ast.parse(re.sub(r"^(\s*)[%!].*$", r"\1pass", cell.source, flags=re.M))


def named(notebook: Any) -> set[str]:
    """Exercises that its code asks for by ``check`` or ``hint``."""
    nodes = [node for cell in code(notebook) for node in ast.walk(parsed(cell))]
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    return {ast.literal_eval(call.args[0]) for call in calls if call.func.id in ("check", "hint")}


def is_valid(notebook: Any, lesson: str) -> Iterator[str]:
    if (notebook.nbformat, notebook.nbformat_minor) != (4, 5):
        yield "not nbformat 4.5"
    try:
        nbformat.validate(notebook)
    except nbformat.ValidationError as error:
        yield f"not a valid notebook: {error.message}"
    for cell in notebook.cells:
        if not re.fullmatch(rf"c{lesson}-\d+", cell["id"]):
            yield f"{cell['id']}: a cell's id should be c{lesson}- and a number"


def opens_well(notebook: Any, lesson: str) -> Iterator[str]:
    first = notebook.cells[0]
    if not re.match(rf"# {lesson} · \S", first.source):
        yield f"should begin with the title '# {lesson} · …'"
    for word in ("Goal", "Minutes", "Prerequisites"):
        if f"**{word}" not in first.source:
            yield f"the first cell names no **{word}**"
    if re.search(r"^\{\w+\}$", first.source, flags=re.M):
        yield "a placeholder in braces was left in the first cell"
    if re.search(r"^ *[%!].*\{", notebook.cells[1].source, flags=re.M):
        yield "a placeholder in braces was left in the second cell"
    setup = notebook.cells[1]
    if "setup" not in setup.metadata.get("tags", ()) or 'find_spec("sspo_teach") is None' not in setup.source:
        yield "the second cell should be tagged setup, and install only where find_spec finds nothing"


def was_executed(notebook: Any, lesson: str) -> Iterator[str]:
    if [cell.execution_count for cell in code(notebook)] != [i + 1 for i in range(len(code(notebook)))]:
        yield "was not executed from top to bottom"
    if not any("image/png" in output.get("data", ()) for cell in code(notebook) for output in cell.outputs):
        yield "shows no figure"
    yield from execute.mishaps(notebook)


def has_no_place(notebook: Any, lesson: str) -> Iterator[str]:
    for cell in notebook.cells:
        texts = [cell.source]
        for output in cell.get("outputs", ()):
            texts += [str(output.get("text", "")), str(output.get("traceback", ""))]
            texts += [str(value) for kind, value in output.get("data", {}).items() if not kind.startswith("image/png")]
        for found in PLACE.findall("\n".join(texts)):
            yield f"{cell['id']}: an absolute path: {found}"


def has_no_widget_state(notebook: Any, lesson: str) -> Iterator[str]:
    """GitHub shows no notebook whose ``metadata.widgets`` lacks a ``state``; a page without it is shorter, too."""
    if "widgets" in notebook.metadata:
        yield "metadata.widgets"
    if set(notebook.metadata) - {"kernelspec", "language_info"}:
        yield f"metadata {sorted(notebook.metadata)}"
    for cell in notebook.cells:
        if set(cell.metadata) - {"tags"}:
            yield f"{cell['id']}: metadata {sorted(cell.metadata)}"
        if any(execute.WIDGET in output.get("data", ()) for output in cell.get("outputs", ())):
            yield f"{cell['id']}: a widget's view"


def is_small(notebook: Any, lesson: str) -> Iterator[str]:
    size = len(nbformat.writes(notebook).encode())
    if size >= MEGABYTE:
        yield f"{size / MEGABYTE:.1f} MB"


def calls_the_library(notebook: Any, lesson: str) -> Iterator[str]:
    for cell in code(notebook):
        own = [node for node in ast.walk(parsed(cell)) if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        if own and lesson not in WITH_CODE and "exercise" not in cell.metadata.get("tags", ()):
            yield f"{cell['id']}: defines {own[0].name}; what a lesson needs stands in the package"


def has_its_exercises(notebook: Any, lesson: str) -> Iterator[str]:
    asked, known = named(notebook), set(exercises())
    own = {name for name in known if name.startswith(f"{lesson}.")}
    if not asked:
        yield "has no exercise"
    if asked - known:
        yield f"no such exercise: {sorted(asked - known)}"
    if own - asked:
        yield f"never asks {sorted(own - asked)}"
    if len(tagged(notebook, "exercise")) < len(own):
        yield "an exercise has no cell tagged exercise for its answer"
    verdicts = [str(output.get("data", "")) for cell in code(notebook) for output in cell.outputs]
    if sum("no answer yet" in verdict for verdict in verdicts) < len(own):
        yield "an exercise is answered, or its check is not shown"


def stands_still_too(notebook: Any, lesson: str) -> Iterator[str]:
    """Every widget has a figure after it, before the next widget, so that readers on GitHub see the point."""
    for i, cell in enumerate(notebook.cells):
        if "widget" not in cell.metadata.get("tags", ()):
            continue
        after = [c for c in notebook.cells[i + 1 : i + 4] if c.cell_type == "code"]
        if not any("image/png" in output.get("data", ()) for c in after[:1] for output in c.outputs):
            yield f"{cell['id']}: no still figure in the next code cell"


def links_lead_somewhere(notebook: Any, lesson: str) -> Iterator[str]:
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", cell.source):
            if not target.startswith("http") and not (FOLDER / target).exists():
                yield f"{cell['id']}: no file {target}"


RULES: list[Rule] = [
    is_valid,
    opens_well,
    was_executed,
    has_no_place,
    has_no_widget_state,
    is_small,
    calls_the_library,
    has_its_exercises,
    stands_still_too,
    links_lead_somewhere,
]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_lesson_keeps_the_rules(path: Path):
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    assert not [f"{rule.__name__}: {problem}" for rule in RULES for problem in rule(notebook, path.name[:2])]


def test_every_lesson_with_exercises_is_here():
    assert {name.partition(".")[0] for name in exercises()} <= {path.name[:2] for path in LESSONS}


def test_the_readme_and_the_lessons_name_the_same_minutes():
    rows = re.findall(r"^\| \[.+?\]\((\d\d)_.+?\) \|.+\| (\d+) \|$", (FOLDER / "README.md").read_text(), flags=re.M)
    first = {path.name[:2]: nbformat.read(path, as_version=nbformat.NO_CONVERT).cells[0].source for path in LESSONS}
    own = {lesson: re.search(r"\*\*Minutes:?\*\*:? (\d+)", source) for lesson, source in first.items()}
    assert dict(rows) == {lesson: found and found[1] for lesson, found in own.items()}


# ---- each rule, seen to fail -----------------------------------------------------------------------------------------


@pytest.fixture
def good(monkeypatch) -> Any:
    monkeypatch.setitem(globals(), "exercises", lambda: {"98.one": None})
    picture = {"output_type": "display_data", "data": {"image/png": "iVBORw0KGgo="}, "metadata": {}}
    verdict = new_output("execute_result", {"text/plain": "✗ no answer yet: a number"}, execution_count=5)
    cells = [
        new_markdown_cell("# 98 · A lesson\n\n**Goal**: none. **Minutes**: 1. **Prerequisites**: [01](README.md)."),
        new_code_cell('if importlib.util.find_spec("sspo_teach") is None:\n    %pip install ..\n', execution_count=1),
        new_code_cell("panel(draw, {})", execution_count=2),
        new_code_cell("still(draw)", execution_count=3, outputs=[nbformat.from_dict(picture)]),
        new_code_cell("def f(x):\n    ...\nanswer = ...", execution_count=4),
        new_code_cell('check("98.one", answer)', execution_count=5, outputs=[verdict]),
    ]
    for i, tag in ((1, "setup"), (2, "widget"), (4, "exercise")):
        cells[i].metadata["tags"] = [tag]
    return execute.cleaned(new_notebook(cells=cells), "98")


def problems(notebook: Any) -> list[str]:
    return [f"{rule.__name__}: {problem}" for rule in RULES for problem in rule(notebook, "98")]


def test_a_good_notebook_keeps_the_rules(good):
    assert problems(good) == []


BREAKS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "an old format": ("is_valid", lambda n: n.update(nbformat_minor=4)),
    "a field that no notebook has": ("is_valid", lambda n: n.cells[2].update(colour="red")),
    "a random cell id": ("is_valid", lambda n: n.cells[2].update(id="3f2a")),
    "no title": ("opens_well", lambda n: n.cells[0].update(source=n.cells[0].source[2:])),
    "no minutes": ("opens_well", lambda n: n.cells[0].update(source=n.cells[0].source.replace("Minutes", "Time"))),
    "a forgotten placeholder": ("opens_well", lambda n: n.cells[0].update(source=n.cells[0].source + "\n{badge}")),
    "an install that always runs": ("opens_well", lambda n: n.cells[1].update(source="%pip install ..")),
    "a cell that was never run": ("was_executed", lambda n: n.cells[2].update(execution_count=None)),
    "cells run in another order": ("was_executed", lambda n: n.cells[2].update(execution_count=9)),
    "no figure": ("was_executed", lambda n: n.cells[3].update(outputs=[])),
    "an error": ("was_executed", lambda n: n.cells[2].outputs.append(new_output("error", ename="E", evalue="no"))),
    "a warning": ("was_executed", lambda n: n.cells[2].outputs.append(new_output("stream", name="stderr", text="w"))),
    "a path in an output": (
        "has_no_place",
        lambda n: n.cells[2].outputs.append(new_output("stream", text="/tmp/a")),
    ),
    "a path in the source": ("has_no_place", lambda n: n.cells[2].update(source='open("/home/me/a.csv")')),
    "widget state": ("has_no_widget_state", lambda n: n.metadata.update(widgets={"version": 2})),
    "a widget's view": (
        "has_no_widget_state",
        lambda n: n.cells[2].outputs.append(new_output("display_data", {execute.WIDGET: {"model_id": "1"}})),
    ),
    "times of execution": ("has_no_widget_state", lambda n: n.cells[2].metadata.update(execution={"iopub": "2026"})),
    "a large picture": ("is_small", lambda n: n.cells[3].outputs[0].data.update({"image/png": "A" * MEGABYTE})),
    "a function": ("calls_the_library", lambda n: n.cells[2].update(source="def helper():\n    return 1")),
    "an exercise that is unknown": ("has_its_exercises", lambda n: n.cells[5].update(source='check("98.two", answer)')),
    "no exercise": ("has_its_exercises", lambda n: n.cells[5].update(source="answer")),
    "an answered exercise": ("has_its_exercises", lambda n: n.cells[5].update(outputs=[])),
    "no cell for the answer": ("has_its_exercises", lambda n: n.cells[4].metadata.clear()),
    "a widget alone": ("stands_still_too", lambda n: n.cells[3].metadata.update(tags=["widget"])),
    "a dead link": ("links_lead_somewhere", lambda n: n.cells[0].update(source=n.cells[0].source + "[a](b.md)")),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_rule_sees(name: str, good: Any):
    rule, spoil = BREAKS[name]
    spoil(good)
    assert {problem.partition(":")[0] for problem in problems(good)} >= {rule}


def test_every_rule_is_seen_to_fail():
    assert {rule for rule, _ in BREAKS.values()} == {rule.__name__ for rule in RULES}


# ---- execute.py ------------------------------------------------------------------------------------------------------


def test_cleaning_leaves_what_may_be_committed(good):
    good.metadata.update(widgets={"version": 2}, language_info={"version": "3.11"})
    cell = good.cells[2]
    cell["id"] = "random"
    cell.metadata.update(execution={"iopub": "2026"})
    cell.outputs = [
        new_output("stream", text="one\n"),
        new_output("stream", text=f"in {FOLDER}/results\n"),
        new_output("display_data", {execute.WIDGET: {"model_id": "1"}}),
        new_output("display_data", {execute.WIDGET: {"model_id": "1"}, "text/plain": "a panel"}),
    ]
    assert problems(good)
    good = execute.cleaned(good, "98")
    assert problems(good) == []
    stream, view = good.cells[2].outputs
    assert stream.text == "one\nin ./results\n"
    assert dict(view.data) == {"text/plain": "a panel"}
    assert [cell["id"] for cell in good.cells] == ["c98-01", "c98-02", "c98-07", "c98-04", "c98-05", "c98-06"]


@pytest.mark.parametrize(
    ("now", "equal"),
    [
        ("loss 0.124 of 12", True),
        ("loss 0.125 of 12", False),
        ("loss 0.123 of 13", False),
        ("Loss 0.123 of 12", False),
        ("loss 0.1230 of 12", False),
        ("loss 0.123", False),
    ],
)
def test_text_is_the_same_up_to_a_last_digit(now, equal):
    assert execute.same("loss 0.123 of 12", now) is equal


@pytest.mark.parametrize(
    ("name", "nearest"), [("13", "no lesson starts with '13'"), ("sapo", "no lesson starts with 'sapo'")]
)
def test_an_unknown_lesson_is_refused(name, nearest, capsys):
    with pytest.raises(SystemExit):
        execute.main([name])
    assert nearest in capsys.readouterr().err


def test_lessons_run_in_place_and_are_compared(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(execute, "HERE", tmp_path)
    monkeypatch.setattr(execute.lessons, "__defaults__", ((), tmp_path))
    path, bad = tmp_path / "97_one.ipynb", tmp_path / "98_bad.ipynb"
    sources = [
        "import importlib.util, os\nprint(os.getcwd(), 1 + (importlib.util.find_spec('sspo_teach') is not None))",
        "import random\nrandom.random()",
        "...",
    ]
    cells = [new_code_cell(source) for source in sources]
    cells[1].metadata["tags"] = ["varies"]
    nbformat.write(new_notebook(cells=cells), path)
    nbformat.write(
        new_notebook(cells=[new_code_cell("import warnings\nwarnings.warn('old')"), new_code_cell("1 / 0")]), bad
    )
    untouched = bad.read_bytes()
    assert execute.main([]) == 1
    out = capsys.readouterr().out
    assert "✓ 97_one.ipynb" in out
    assert "UserWarning: old" in out
    assert "c98-02: ZeroDivisionError: division by zero" in out
    assert bad.read_bytes() == untouched
    written = json.loads(path.read_text())
    assert written["cells"][0]["outputs"][0]["text"] == [". 2\n"]
    written["cells"][0]["outputs"][0]["text"] = [". 3\n"]
    path.write_text(json.dumps(written))
    before = path.read_bytes()
    assert execute.main(["97", "--check"]) == 1
    out = capsys.readouterr().out
    assert "c97-01: its output changed" in out
    assert "-. 3" in out
    assert "c97-02" not in out
    assert path.read_bytes() == before


# ---- colab.py --------------------------------------------------------------------------------------------------------


def test_a_stamped_lesson_fetches_its_repository_and_can_be_stamped_again(good):
    colab.stamped(good, "98_a.ipynb", "someone/elsewhere")
    stamped = colab.stamped(good, "98_a.ipynb", "owner/course")
    title, badge, *_ = stamped.cells[0].source.split("\n")
    assert title == "# 98 · A lesson"
    assert badge.endswith("(https://colab.research.google.com/github/owner/course/blob/main/notebooks/98_a.ipynb)")
    assert "someone" not in stamped.cells[0].source + stamped.cells[1].source
    assert stamped.cells[1].source.split("\n")[1:4] == [
        "    !git clone --quiet --depth 1 https://github.com/owner/course",
        "    %pip install --quiet ./course",
        "    %cd course/notebooks",
    ]
    assert problems(stamped) == []


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_every_lesson_can_be_stamped(path: Path):
    colab.stamped(nbformat.read(path, as_version=4), path.name, "owner/course")


def test_an_address_that_is_none_is_refused(good):
    with pytest.raises(ValueError, match="write it as OWNER/NAME"):
        colab.stamped(good, "98_a.ipynb", "https://github.com/owner/course")
