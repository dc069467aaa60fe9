"""Shared by all tests: one thread, a cache of their own, figures without a screen, runs in folders of their own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny import RUN

from sspo_teach.training.config import Config
from sspo_teach.training.trainer import Trainer

os.environ["MPLBACKEND"] = "agg"
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Warmed models go here and never to the user's cache."""
    os.environ["SSPO_TEACH_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., Config]:
    """``config(beta=0.1)``: of a run that takes a second."""
    return lambda **other: Config(**{**RUN, "out": str(tmp_path / "run"), **other})


@pytest.fixture
def trainer(config: Callable[..., Config]) -> Callable[..., Trainer]:
    """``trainer(beta=0.1)``: a quiet one for such a config; nothing has run yet."""
    return lambda **other: Trainer(config(**other), quiet=True)
