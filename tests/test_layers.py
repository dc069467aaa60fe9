"""The house stands: a module imports from lower floors or from its own room, never in a circle."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = [
    "types tensors credit frozen",
    "gates objectives.units objectives.normalize objectives.advantages objectives.regularizers",
    "objectives policies tasks",
    "controllers critics checks dialects",
    "catalog",
    "training exact memory plotting",
    "training.evaluation training.trainer adapters",
    "study widgets grading planning",
    "cli",
]
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms.split()}
FILES = {
    ".".join(path.relative_to(ROOT / "sspo_teach").with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "sspo_teach").rglob("*.py"))
}
MODULES = [
    module for module, path in FILES.items() if path.name != "__init__.py"
]  # a package's front page may show all


def floor(module: str) -> int:
    return FLOOR[module] if module in FLOOR else FLOOR[module.split(".")[0]]


def imported(path: Path) -> set[str]:
    """Every name a file imports, in full."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def below(module: str) -> set[str]:
    """The modules of the package that a module imports, front pages left out."""
    inside = {name.removeprefix("sspo_teach.") for name in imported(FILES[module])}
    return {name for name in inside if name in MODULES}


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_down(module):
    for other in below(module):
        same_room = other.split(".")[0] == module.split(".")[0] or floor(module) == 0
        assert floor(other) < floor(module) or (same_room and floor(other) == floor(module)), (
            f"{module} (floor {floor(module)}) imports {other} (floor {floor(other)})"
        )


def test_no_circles():
    order = list(TopologicalSorter({module: below(module) for module in MODULES}).static_order())
    assert order.index("tensors") < order.index("credit") < order.index("catalog")


@pytest.mark.parametrize("path", sorted((ROOT / "toy_envs").glob("*.py")), ids=lambda path: path.name)
def test_toy_envs_stand_alone(path):
    assert not {name.split(".")[0] for name in imported(path)} & {"sspo_teach", "torch", "transformers"}


def test_the_rule_would_notice():
    assert below("objectives.sequence_level") == {"objectives.units", "objectives.normalize", "tensors"}
    assert floor("objectives.units") < floor("objectives.sequence_level") < floor("checks") < floor("catalog")
