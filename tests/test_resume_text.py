"""kill -9 while a text model samples, differentiates, steps or saves: the run ends as if nothing had happened."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
from tiny_text import checkpoint_folder

from sspo_teach.policies.sampling import Sampling
from sspo_teach.training import checkpoint
from sspo_teach.training.config import Config
from sspo_teach.training.trainer import Trainer

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process")

STEPS, UPDATES, PIECES = 4, 2, 2  # iterations; updates in each; micro-batches in each of those


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def undisturbed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that all others must end as; beside it, in ``kept``, every checkpoint it ever wrote."""
    home = tmp_path_factory.mktemp("undisturbed")

    def keep(_: Any, one: Trainer) -> None:
        for step in checkpoint.found(one.folder.checkpoints):
            shutil.copytree(one.folder.checkpoints / f"step-{step}", home / "kept" / f"{step}", dirs_exist_ok=True)

    Trainer(run_of(model, home / "run"), quiet=True, on_step=keep).run()
    history = tiny.history(home / "run")
    assert any(float(row["grad_norm"]) > 0 for row in history)  # else a kill could not change anything
    assert any(float(row["moved"]) > 0 for row in history)
    return home


def run_of(model: Path, folder: Path, **other: Any) -> Config:
    return Config(
        task="arithmetic-text", model=str(model), options=("operands=1,4",), steps=STEPS, prompts=4, group_size=8,
        minibatches=UPDATES, micro_batch=8, max_new_tokens=6, eval_problems=4, eval_new_tokens=6, eval_every=2,
        save_every=1, lr=1e-2, beta=0.05, out=str(folder), **other,
    )  # fmt: skip


def go_on(model: Path, folder: Path) -> Trainer:
    """What a user does after a kill: resume, or start again where nothing was saved yet."""
    return Trainer(run_of(model, folder, resume=bool(checkpoint.found(folder / "checkpoints"))), quiet=True)


def killed(run: Callable[[], object]) -> bool:
    """``run`` in a process of its own; whether it was killed, and did not end by itself."""
    child = os.fork()
    if child == 0:
        try:
            run()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
        os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), "the run failed by itself"
    return status == signal.SIGKILL


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def at_call(n: int, act: Callable[..., Any], otherwise: Callable[..., Any] = lambda *_: None) -> Callable[..., Any]:
    """``otherwise`` n times, then ``act``."""
    left = n

    def call(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        return act(*arguments) if left < 0 else otherwise(*arguments)

    return call


def while_it_samples(one: Trainer, n: int) -> None:
    """In the middle of the responses of iteration n + 1."""
    draw, sampling = Sampling.draw, []

    def counted(*arguments: Any) -> Any:
        if one.step == n + 1:  # evaluations sample too, between iterations
            sampling.append(1)
            if len(sampling) == 3:
                die()
        return draw(*arguments)

    Sampling.draw = counted  # type: ignore[method-assign]  # the process ends before anybody else sees it


def while_it_differentiates(one: Trainer, n: int) -> None:
    """In the last micro-batch of iteration n + 1, with the gradient of the upper layer there and the lower's not."""
    before = (n + 1) * UPDATES * PIECES - 1
    one.policy.model.model.layers[0].mlp.down_proj.weight.register_hook(at_call(before, die))


def while_it_steps(one: Trainer, n: int) -> None:
    """Between the first update of iteration n + 1 and its second."""
    one.optimizer.register_step_post_hook(at_call(n * UPDATES, die))


def while_it_saves(name: str) -> Callable[[Trainer, int], None]:
    """Half a file of the checkpoint of iteration n + 1 is on the disk."""

    def plan(one: Trainer, n: int) -> None:
        save = checkpoint.save_file

        def half(tensors: Any, path: Path) -> None:
            save(tensors, path)
            if path.name == name and path.parent.name == f".writing-{n + 1}":
                content = path.read_bytes()
                path.write_bytes(content[: len(content) // 2])
                die()

        checkpoint.save_file = half  # type: ignore[assignment]

    return plan


def while_it_renames(one: Trainer, n: int) -> None:
    """All files are written, and the folder has no name yet under which it would be read."""
    rename = Path.rename

    def dying(path: Path, target: Path) -> Path:
        if path.name == f".writing-{n + 1}":
            die()
        return rename(path, target)

    Path.rename = dying  # type: ignore[method-assign, assignment]


MOMENTS: dict[str, Callable[[Trainer, int], None]] = {
    "generation": while_it_samples,
    "backward": while_it_differentiates,
    "optimizer": while_it_steps,
    "half the weights": while_it_saves("model.safetensors"),
    "half the optimizer": while_it_saves("optimizer.safetensors"),
    "rename": while_it_renames,
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("n", [0, 2])
def test_killed_while(moment, n, model, undisturbed, tmp_path):
    """In the first iteration, and in the third of four."""
    folder = tmp_path / "run"

    def doomed() -> None:
        one = go_on(model, folder)
        MOMENTS[moment](one, n)
        one.run()

    assert killed(doomed)
    assert_only_whole_checkpoints(folder, undisturbed / "kept", newest=n)
    one = go_on(model, folder)
    assert one.step == n
    one.run()
    assert tiny.outcome(folder) == tiny.outcome(undisturbed / "run")


def assert_only_whole_checkpoints(folder: Path, kept: Path, newest: int) -> None:
    """Each folder that ``load`` would look at holds, to the byte, what an undisturbed run wrote at that step."""
    steps = checkpoint.found(folder / "checkpoints")
    assert steps[-1] == newest
    for step in steps:
        for file in (kept / str(step)).iterdir():
            assert (folder / "checkpoints" / f"step-{step}" / file.name).read_bytes() == file.read_bytes()
