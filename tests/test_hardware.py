"""Presets by name, and the plan on the command line: options win, names are known, numbers add up."""

from __future__ import annotations

import dataclasses
import json

import pytest
import tiny

from sspo_teach import cli
from sspo_teach.training.config import DEFAULTS, TASK_DEFAULTS, Config, filled, resolve
from sspo_teach.training.folder import read_config
from sspo_teach.training.hardware import HARDWARE, settings
from sspo_teach.training.trainer import Trainer


@pytest.mark.parametrize("name", HARDWARE)
def test_a_preset_names_fields_of_the_config_and_keeps_pressure(name):
    chosen = settings(name, 256)
    assert set(chosen) <= {field.name for field in dataclasses.fields(Config)}
    assert set(chosen) <= {*DEFAULTS, *TASK_DEFAULTS["gsm8k"]}  # what Config leaves open
    assert chosen["minibatches"] >= 2
    assert chosen["prompts"] % chosen["minibatches"] == 0
    assert (chosen["group_size"], chosen["max_new_tokens"]) == (8, 512)


def test_the_t4_has_no_bfloat16():
    assert settings("t4", 256)["autocast"] == "fp16"


def test_an_option_wins_over_the_preset_and_the_preset_over_the_task():
    config = filled(Config(task="gsm8k", hardware="t4", micro_batch=3, gradient_checkpointing=False, device="cpu"))
    assert (config.micro_batch, config.gradient_checkpointing, config.device) == (3, False, "cpu")
    assert (config.autocast, config.max_new_tokens, config.lr) == ("fp16", 512, TASK_DEFAULTS["gsm8k"]["lr"])
    plain = filled(Config(task="gsm8k"))
    assert (plain.autocast, plain.max_new_tokens, plain.micro_batch) == ("auto", 256, 8)


def test_a_task_of_short_answers_keeps_its_load():
    config = filled(Config(task="arithmetic-text", hardware="t4"))
    assert (config.prompts, config.max_new_tokens, config.gradient_checkpointing) == (6, 12, True)


def test_an_unknown_preset_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"unknown hardware: '24GB '; did you mean '24gb'\? known: 12gb, t4"):
        resolve(Config(task="gsm8k", hardware="24GB "))


def run(*words: str) -> list[str]:
    sizes = "--prompts 4 --group-size 4 --minibatches 2 --eval-problems 8 --eval-every 2 --steps 2 --task bandit"
    return ["train", *sizes.split(), *words]


def test_the_command_line_and_the_run_folder(tmp_path, capsys):
    folder = tmp_path / "run"
    words = run("--hardware", "t4", "--device", "cpu", "--autocast", "none", "--micro-batch=5", "--out", str(folder))
    assert cli.main([*words, "--no-gradient-checkpointing"]) == 0
    written = json.loads((folder / "config.json").read_text())
    expected = {"hardware": "t4", "device": "cpu", "autocast": "none", "micro_batch": 5, "generation_batch": 64,
                "gradient_checkpointing": False, "reference_offload": True}  # fmt: skip
    assert {name: written[name] for name in expected} == expected
    assert cli.main(run("--hardware", "t5")) == 1
    assert "did you mean 't4'" in capsys.readouterr().err


def test_a_run_goes_on_under_the_settings_it_had(tmp_path):
    """The preset is a name for them: with the same ones said aloud it is the same run."""
    config = Config(**{**tiny.RUN, "steps": 2, "out": str(tmp_path / "run")}, hardware="12gb", device="cpu",
                    autocast="none")  # fmt: skip
    Trainer(config, quiet=True).run()
    said = dataclasses.replace(read_config(tmp_path / "run"), hardware="", resume=True)
    assert Trainer(said, quiet=True).step == 2
    with pytest.raises(ValueError, match=r"micro_batch=0: the run in .* was started with micro_batch=4"):
        Trainer(dataclasses.replace(config, hardware="", resume=True), quiet=True)


def test_a_run_from_before_there_were_presets_is_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"task": "bandit", "seed": 3}))
    found = read_config(tmp_path)
    assert (found.seed, found.chunk, found.device) == (3, 0, "cpu")


# ---- the plan


def planned(capsys, *words: str) -> dict:
    assert cli.main(["plan", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_plan_adds_up(capsys):
    found = planned(capsys, "--hardware", "t4", "--beta", "0.04")
    asked, line = found["asked"], found["hardware"]["t4"]
    assert asked["needed"] == asked["allowance"] + max(sum(items.values()) for items in asked["moments"].values())
    assert asked["needed"] == line["needed"] <= line["bytes"]
    assert set(found["hardware"]) == set(HARDWARE)
    assert asked["response_tokens_per_step"] == 8 * 8 * 512
    assert asked["load"]["parameters"] == 494_032_768
    assert "reference" in asked["moments"]["scoring: layer"]
    assert "reference" not in asked["moments"]["training: projection"]  # off-loaded


def test_plan_s_options_win_in_every_line(capsys):
    words = ["--micro-batch", "2", "--max-new-tokens", "1024", "--mean-new-tokens", "100"]
    found = planned(capsys, "--model", "SmolLM2-135M", *words)
    assert {line["micro_batch"] for line in found["hardware"].values()} == {2}
    assert found["hardware"]["80gb"]["response_tokens_per_step"] == 64 * 8 * 1024
    assert found["asked"]["response_tokens_per_step"] == 64 * 100
    assert all(line["fits"] for line in found["hardware"].values())
    big = planned(capsys, "--model", "Qwen2.5-7B")["hardware"]
    assert not any(line["fits"] or line["largest_micro_batch"] for line in big.values())


def test_plan_in_words(capsys):
    assert cli.main(["plan", "--hardware=t4"]) == 0
    out = capsys.readouterr().out
    assert out.count("← peak") == 1
    assert all(name in out for name in (*HARDWARE, "494,032,768", "fp16, gradient checkpointing", "32,768"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "Qwen2.5-9B"], "unknown model: 'Qwen2.5-9B'"),
        (["--hardware", "t44"], "did you mean 't4'"),
        (["--prompts", "0"], "prompts=0: must be at least 1"),
        (["--minibatches", "3"], "minibatches=3: must divide prompts=8"),
        (["--mean-new-tokens", "999"], "must be at most max_new_tokens=256"),
    ],
)
def test_plan_refuses_by_name(words, said, capsys):
    assert cli.main(["plan", *words]) == 1
    assert said in capsys.readouterr().err
