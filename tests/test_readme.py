"""What the README says is so: its table is the generated one, its files exist, its commands and options are known."""

from __future__ import annotations

import dataclasses
import re
import shlex
from pathlib import Path

import pytest
import tyro

from sspo_teach.catalog import KNOWN, METHODS, dialects, known, method, table
from sspo_teach.cli import (
    AuditConfig,
    ClaimConfig,
    CompareConfig,
    EvaluateConfig,
    ExactConfig,
    MethodsConfig,
    _defaults,
)
from sspo_teach.planning import PlanConfig
from sspo_teach.training.config import Config, resolve

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
COMMANDS = [
    line.split("  #")[0].strip()
    for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
    for line in block.splitlines()
    if line.startswith("sspo-teach")
]


def test_the_table_is_generated():
    """To renew it: python -c "from sspo_teach.catalog import table; print(table())" between the two comments."""
    assert TEXT.split("<!-- methods -->\n")[1].split("\n<!-- /methods -->")[0] == table()


def test_the_table_of_dialects_is_generated():
    """To renew it: python -c "from sspo_teach.catalog import dialects; print(dialects())" between the two comments."""
    assert TEXT.split("<!-- dialects -->\n")[1].split("\n<!-- /dialects -->")[0] == dialects()


def test_the_list_of_known_methods_is_generated():
    """To renew it: python -c "from sspo_teach.catalog import known; print(known())" between the two comments."""
    assert TEXT.split("<!-- known -->\n")[1].split("\n<!-- /known -->")[0] == known()


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_method_is_refused_with_its_reason(name):
    assert name not in METHODS
    with pytest.raises(ValueError, match=f"method '{name}' is known but not implemented: arXiv"):
        method(name)


def test_figures_and_links_exist():
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in target]
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_tree_is_the_tree():
    tree = TEXT.split("## What is where")[1].split("```")[1]
    named = re.findall(r"^(?:│   )?[├└│ ─]*([\w./]+?\.py|[\w/]+/)\s", tree, re.MULTILINE)
    assert len(named) > 15
    places = [ROOT, ROOT / "sspo_teach", ROOT / "sspo_teach" / "objectives"]
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command: str):
    _, name, *words = shlex.split(command)
    kinds = {"train": Config, "compare": CompareConfig, "evaluate": EvaluateConfig, "methods": MethodsConfig}
    kinds |= {"audit": AuditConfig, "exact": ExactConfig, "claim": ClaimConfig, "plan": PlanConfig}
    trains = issubclass(kinds[name], Config)
    asked = tyro.cli(kinds[name], args=words, **({"default": kinds[name](**_defaults(words))} if trains else {}))
    if isinstance(asked, Config):
        resolve(dataclasses.replace(asked, device="cpu"))  # this machine need not have another
    if isinstance(asked, MethodsConfig) and asked.name:
        assert asked.name in METHODS


def test_the_two_commands_come_first():
    """They are what CI takes from here and runs."""
    lines = [line for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
    installs = [line for line in lines if line.startswith("pip install -e")]
    assert installs[:2] == ["pip install -e . && sspo-teach train", 'pip install -e ".[test]" && pytest']
