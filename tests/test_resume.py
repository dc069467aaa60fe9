"""Same seed, same run, to the byte; and so after a kill at any moment. The folder's files can be read by anybody."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from sspo_teach import cli
from sspo_teach.training import checkpoint
from sspo_teach.training.config import Config, resolve
from sspo_teach.training.folder import RunFolder, read_config
from sspo_teach.training.trainer import Trainer, restored

TOUCHES = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that all others must end as."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    Trainer(run_of(folder), quiet=True).run()
    return folder


def run_of(folder: Path, **other: Any) -> Config:
    return Config(**{**tiny.RUN, "beta": 0.05, "out": str(folder), **other})


def go_on(folder: Path) -> Trainer:
    """What a user does after an interruption: resume, or start again where nothing was saved yet."""
    return Trainer(run_of(folder, resume=bool(checkpoint.found(folder / "checkpoints"))), quiet=True)


@pytest.fixture
def half(undisturbed: Path, tmp_path: Path) -> Path:
    """The run as it is after iteration 4, its last checkpoint."""
    folder = tmp_path / "run"
    one = Trainer(run_of(folder), quiet=True, on_step=lambda row, one: setattr(one, "stop", one.step == 4))
    one.run()
    return folder


def differences(folder: Path, other: Path) -> list[str]:
    """The files in which two runs differ."""
    one, two = tiny.outcome(folder), tiny.outcome(other)
    return [name for name in one.keys() | two.keys() if one.get(name) != two.get(name)]


def test_twice_the_same(undisturbed, tmp_path):
    Trainer(run_of(tmp_path / "again"), quiet=True).run()
    assert differences(tmp_path / "again", undisturbed) == []
    Trainer(run_of(tmp_path / "other", seed=1), quiet=True).run()
    assert {"history.csv", "evaluation.json"} < set(differences(tmp_path / "other", undisturbed))


def test_evaluating_and_saving_more_often_changes_no_history(undisturbed, tmp_path):
    Trainer(run_of(tmp_path / "run", eval_every=1, save_every=1), quiet=True).run()
    name = "history.csv"
    assert (tmp_path / "run" / name).read_bytes() == (undisturbed / name).read_bytes()


def test_a_stopped_run_goes_on_to_the_same_end(undisturbed, half):
    assert len(tiny.history(half)) == 4
    go_on(half).run()
    assert differences(half, undisturbed) == []
    assert [entry["step"] for entry in RunFolder(half).evaluations()] == [0, 3, 6]
    go_on(half).run()  # a finished run stays as it is
    assert differences(half, undisturbed) == []


def killed(folder: Path, touches: int | None = None, seconds: float = 60.0) -> bool:
    """Run in a process that is killed at its n-th touch of the run's folder, or after a while; whether it was."""
    child = os.fork()
    if child == 0:
        try:
            left = touches

            def hook(event: str, args: tuple[Any, ...]) -> None:
                nonlocal left
                if left is not None and event in TOUCHES and str(folder) in str(args[0]):
                    left -= 1
                    if left < 0:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(hook)
            go_on(folder).run()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
        os._exit(1)
    until, status = time.monotonic() + seconds, (0, 0)
    while status[0] == 0:
        status = os.waitpid(child, os.WNOHANG)
        if status[0] == 0 and time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            until += 60
        time.sleep(0.002)
    assert status[1] in (0, signal.SIGKILL), "the run failed by itself"
    return status[1] == signal.SIGKILL


@needs_fork
@pytest.mark.parametrize("seed", range(3))
def test_killed_again_and_again_while_it_writes(undisturbed, tmp_path, seed):
    """Between any two openings, renamings and removals of files: checkpoints, history, evaluations."""
    folder, rng, kills = tmp_path / "run", random.Random(seed), 0
    while killed(folder, touches=rng.randint(0, 50)):
        kills += 1
        assert kills < 100
    assert kills > 1
    assert differences(folder, undisturbed) == []


@needs_fork
def test_killed_again_and_again_at_any_time(undisturbed, tmp_path):
    folder, rng, kills = tmp_path / "run", random.Random(0), 0
    while killed(folder, seconds=rng.uniform(0.05, 0.8) * 1.05**kills):  # a busy machine gets there too
        kills += 1
        assert kills < 100
    assert differences(folder, undisturbed) == []


class Killed(BaseException):
    """Stands in for a kill where a real one is hard to time."""


def test_a_kill_half_way_through_a_file(undisturbed, half, monkeypatch):
    write = Path.write_text

    def dying(path: Path, text: str, *rest: Any) -> None:
        write(path, text[: len(text) // 2], *rest)
        raise Killed

    one = go_on(half)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", dying)
        with pytest.raises(Killed):
            one.run()
    assert differences(half, undisturbed)
    go_on(half).run()
    assert differences(half, undisturbed) == []


@pytest.mark.parametrize("step", [0, 2])
def test_a_kill_right_after_a_checkpoint(undisturbed, tmp_path, monkeypatch, step):
    """At step 0 the evaluation of the start is already written, and must not be written again."""
    save = checkpoint.save

    def dying(folder: Path, at: int, *rest: Any) -> None:
        save(folder, at, *rest)
        if at == step:
            raise Killed

    monkeypatch.setattr(checkpoint, "save", dying)
    with pytest.raises(Killed):
        Trainer(run_of(tmp_path / "run"), quiet=True).run()
    monkeypatch.undo()
    go_on(tmp_path / "run").run()
    assert differences(tmp_path / "run", undisturbed) == []


@pytest.mark.parametrize("rest", ["5,80,2", "1", "5", ","])  # "1" may have become 10
def test_half_written_lines_are_forgotten(undisturbed, half, rest):
    with (half / "history.csv").open("a") as file:
        file.write(rest)
    with (half / "timing.csv").open("a") as file:
        file.write("5,0.1,0.1,0.1,0.3\r\n6")
    with (half / "samples.jsonl").open("a") as file:
        file.write('{"step": 6, "way": "gre')
    go_on(half).run()
    assert differences(half, undisturbed) == []
    with (half / "timing.csv").open() as file:
        assert [line.split(",")[0] for line in file] == ["step", "1", "2", "3", "4", "5", "6"]


def test_later_lines_are_forgotten(undisturbed, tmp_path):
    """History and evaluation stand at 6, the newest checkpoint at 4."""
    shutil.copytree(undisturbed, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-6")
    go_on(tmp_path / "run").run()
    assert differences(tmp_path / "run", undisturbed) == []


@pytest.mark.parametrize("broken", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("how", ["cut", "missing", "empty"])
def test_an_unreadable_newest_checkpoint_gives_way_to_the_one_before(undisturbed, tmp_path, broken, how):
    shutil.copytree(undisturbed, tmp_path / "run")
    file = tmp_path / "run" / "checkpoints" / "step-6" / broken
    content = file.read_bytes()
    file.unlink()
    if how != "missing":
        file.write_bytes(content[: len(content) // 2] if how == "cut" else b"")
    with pytest.warns(UserWarning, match=r"step-6 cannot be read.*the checkpoint before it is taken"):
        one = go_on(tmp_path / "run")
    assert one.step == 4
    one.run()
    assert differences(tmp_path / "run", undisturbed) == []


def test_no_checkpoint_at_all_is_said(half):
    for folder in (half / "checkpoints").iterdir():
        (folder / "state.json").write_text("{")
    with (
        pytest.warns(UserWarning, match="cannot be read"),
        pytest.raises(ValueError, match="holds 2 checkpoints, none of which can be read: start the run again"),
    ):
        go_on(half)
    shutil.rmtree(half / "checkpoints")
    with pytest.raises(ValueError, match="holds no checkpoint: start the run again, without --resume"):
        Trainer(run_of(half, resume=True), quiet=True)


def test_what_was_left_aside_is_no_checkpoint(undisturbed, half):
    (half / "checkpoints" / ".writing-6").mkdir()
    (half / "checkpoints" / ".writing-6" / "model.safetensors").write_bytes(b"half")
    assert checkpoint.found(half / "checkpoints") == [2, 4]
    go_on(half).run()
    assert not list((half / "checkpoints").glob(".*"))
    assert differences(half, undisturbed) == []


@pytest.mark.parametrize(
    "other", [{"method": "grpo"}, {"seed": 3}, {"lr": 0.5}, {"numbers": ("tau_pos=2",)}, {"options": ("rule=copy",)}]
)
def test_another_config_is_refused_by_name(half, other):
    before = tiny.outcome(half)
    ((name, value),) = other.items()
    with pytest.raises(ValueError, match=f"{name}=.*was started with {name}=.*--out FOLDER") as error:
        Trainer(run_of(half, resume=True, **other), quiet=True)
    assert repr(value) in str(error.value)
    assert tiny.outcome(half) == before


def test_a_folder_that_holds_a_run_is_refused(half):
    before = tiny.outcome(half)
    with pytest.raises(ValueError, match=r"already holds a run: --resume .* --overwrite .* --out FOLDER"):
        Trainer(run_of(half), quiet=True)
    assert tiny.outcome(half) == before


def test_overwrite_starts_again(undisturbed, half):
    Trainer(run_of(half, overwrite=True), quiet=True).run()
    assert differences(half, undisturbed) == []


def test_overwrite_deletes_nothing_for_a_run_that_cannot_be_built(half):
    before = tiny.outcome(half)
    for other in ({"model": "nowhere/at-all.gguf"}, {"options": ("letters=99",)}, {"options": ("no=1",)}):
        with pytest.raises(ValueError):
            Trainer(run_of(half, overwrite=True, **other), quiet=True)
    assert tiny.outcome(half) == before


def test_what_broke_off_before_its_first_checkpoint_may_start(undisturbed, tmp_path):
    folder = tmp_path / "run"
    RunFolder(folder).create(resolve(run_of(folder)), {}, {})
    (folder / "history.csv").write_text("step\n1\n")
    (folder / "reference").mkdir()
    (folder / "reference" / "config.json").write_text("{")
    Trainer(run_of(folder), quiet=True).run()
    assert differences(folder, undisturbed) == []


def test_a_resumed_run_needs_no_warm_start(tmp_path, monkeypatch):
    from sspo_teach.training import warmup

    config = run_of(tmp_path / "run", warmup_steps=1, steps=2)
    Trainer(config, quiet=True).run()
    monkeypatch.setattr(warmup, "warm_up", lambda *_, **__: pytest.fail("the checkpoint holds it"))
    monkeypatch.setenv("SSPO_TEACH_CACHE", str(tmp_path / "gone"))
    assert Trainer(dataclasses.replace(config, resume=True), quiet=True).step == 2
    assert restored(tmp_path / "run")[3] == 2


def test_a_checkpoint_brings_back_weights_and_optimizer(half):
    one = go_on(half)
    state = checkpoint.optimizer_tensors(one.optimizer)
    saved = checkpoint.load(half / "checkpoints")
    assert state.keys() == saved.optimizer.keys()
    assert all(torch.equal(state[name], saved.optimizer[name]) for name in state)
    assert {int(value) for name, value in state.items() if name.endswith("step")} == {8}
    weights = one.policy.model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in saved.model.items())
    assert one.counts == saved.state["counts"] == {**one.counts, "updates": 8}


def test_a_checkpoint_of_another_model_is_refused(half):
    policy = tiny.policy()
    with pytest.raises((ValueError, RuntimeError), match=r"another model|size mismatch"):
        checkpoint.restore_model(policy.model, checkpoint.load(half / "checkpoints").model)
    with pytest.raises(ValueError, match="another model: missing"):
        checkpoint.restore_model(policy.model, {})


@pytest.mark.parametrize("text", ["{", "[1]", "", "\xff"])
def test_a_broken_config_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text, encoding="latin1")
    with pytest.raises(ValueError, match=r"config\.json (is not JSON|holds a list).*the run cannot be read"):
        read_config(tmp_path)


def test_config_survives_its_file(half):
    assert read_config(half) == dataclasses.replace(Trainer(run_of(half, resume=True), quiet=True).config, resume=False)
    assert json.loads((half / "config.json").read_text())["method_numbers"] == {"tau_pos": 1.0, "tau_neg": 1.05}


def test_ctrl_c_saves_and_its_advice_works(tmp_path, capsys):
    """A real process and a real signal; the command it prints is the command that is run."""
    folder, plain = tmp_path / "a run", tmp_path / "plain"
    words = (
        "train --task bandit --prompts 4 --group-size 4 --minibatches 2 --eval-problems 8 --eval-every 20 --steps 20"
    )
    command = [sys.executable, "-m", "sspo_teach.cli", *words.split(), "--out", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not (folder / "history.csv").exists():
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in out + err
    done = len(tiny.history(folder))
    assert 0 < done < 20
    assert f"stopped after iteration {done}, all saved; go on with" in out
    assert checkpoint.found(folder / "checkpoints")[-1] == done
    program, *advice = shlex.split(out.splitlines()[-1])
    assert (program, advice[-1]) == ("sspo-teach", "--resume")
    assert cli.main(advice) == 0
    assert "before" in capsys.readouterr().out
    Trainer(dataclasses.replace(read_config(folder), out=str(plain)), quiet=True).run()
    assert differences(folder, plain) == []


def test_a_history_of_fewer_columns_goes_on(undisturbed, half):
    """A run that began before there was a column keeps its rows; the cells of that column are empty."""
    path = half / "history.csv"
    old = [row[:-1] for row in csv.reader(path.open(newline=""))]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(old)
    go_on(half).run()
    now, whole = tiny.history(half), tiny.history(undisturbed)
    assert len(now) == len(whole) == 6
    assert [row["reward"] for row in now] == [row["reward"] for row in whole]
