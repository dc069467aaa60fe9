"""What a run spends memory on: precision, recomputation, optimizer, adapters and the reference's place are options."""

from __future__ import annotations

import dataclasses
import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
import tiny
import torch
from torch import Tensor

from sspo_teach.policies import lora
from sspo_teach.policies.causal_lm import load_policy
from sspo_teach.training import config as config_module
from sspo_teach.training.config import Config, resolve
from sspo_teach.training.trainer import Trainer, optimizer_of, restored

LEAN = [
    {"chunk": 3, "gradient_checkpointing": True, "micro_batch": 3},
    {"autocast": "bf16", "chunk": 2},
    {"autocast": "fp16"},
    {"optimizer": "adamw"},
    {"lora_rank": 2, "beta": 0.1, "kl_in": "loss"},
    {"reference_offload": True, "beta": 0.1},
    {"lora_rank": 2, "method": "sppo"},
]


def needs(options: dict[str, object]) -> None:
    if options.get("lora_rank"):
        pytest.importorskip("peft")


@pytest.mark.parametrize("options", LEAN, ids=str)
def test_a_stopped_run_goes_on_to_the_same_end(config, tmp_path, options):
    needs(options)
    run = lambda name, **other: Trainer(config(**{**options, "out": str(tmp_path / name), **other}), quiet=True)  # noqa: E731
    run("whole", steps=4).run()
    half = run("half", steps=4)
    half.on_step = lambda row, one: setattr(one, "stop", one.step == 2)
    half.run()
    run("half", steps=4, resume=True).run()
    assert tiny.outcome(tmp_path / "half") == tiny.outcome(tmp_path / "whole")
    kept = json.loads((tmp_path / "half" / "config.json").read_text())
    assert {name: kept[name] for name in options} == options
    _, policy, settings, step = restored(tmp_path / "half")
    assert step == 4
    assert (policy.chunk, policy.recomputes) == (settings.chunk, settings.gradient_checkpointing)
    last = half if half.step == 4 else run("half", steps=4, resume=True)
    for name, weight in last.policy.model.state_dict().items():
        assert torch.equal(weight, policy.model.state_dict()[name])


@pytest.mark.parametrize("options", [LEAN[0], LEAN[3], LEAN[5]], ids=str)
def test_memory_options_leave_the_history_alone(config, tmp_path, options):
    histories = []
    for name, other in (("plain", {"beta": options.get("beta", 0.0)}), ("lean", options)):
        folder = Trainer(config(**other, dtype="float64", out=str(tmp_path / name)), quiet=True).run()
        histories.append(tiny.history(folder))
    for plain, lean in zip(*histories, strict=True):
        for name in plain.keys() - {"removed_corrective", "removed_extending"}:  # the side of 1 is rounding at first
            cell = plain[name]
            assert (cell == "") == (lean[name] == "")
            assert cell == "" or float(lean[name]) == pytest.approx(float(cell), abs=1e-6, rel=1e-5), name


class TestFloat16:
    def test_gradients_travel_enlarged_and_arrive_as_they_are(self, trainer):
        plain, scaled = trainer(), trainer(autocast="fp16", overwrite=True)
        assert not plain.scaler.is_enabled()
        norms = [one.iterate()["grad_norm"] for one in (plain, scaled)]
        assert norms[1] == pytest.approx(norms[0], rel=0.01)
        assert scaled.scaler.get_scale() == 2.0**16

    def test_an_overflow_skips_the_update_counts_it_and_halves_the_scale(self, trainer):
        one = trainer(autocast="fp16")
        one.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
        before = [weight.detach().clone() for weight in one.weights]
        row = one.iterate()
        assert row["rejected"] == 2
        assert row["updates"] == 0
        assert one.scaler.get_scale() == 2.0**118
        assert all(map(torch.equal, before, one.weights))

    def test_the_scale_is_part_of_a_checkpoint(self, config):
        one = Trainer(config(autocast="fp16", steps=2), quiet=True)
        one.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
        one.run()
        again = Trainer(config(autocast="fp16", steps=2, resume=True), quiet=True)
        assert again.scaler.get_scale() == one.scaler.get_scale() == 2.0**116


class TestAdapters:
    @pytest.fixture(autouse=True)
    def there(self):
        pytest.importorskip("peft")

    def test_they_alone_learn(self, trainer):
        one = trainer(lora_rank=2, lr=0.01)
        before = {name: weight.detach().clone() for name, weight in one.policy.model.named_parameters()}
        one.iterate()
        after = dict(one.policy.model.named_parameters())
        changed = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
        assert changed
        assert all(".lora_" in name for name in changed)
        assert sum(weight.numel() for weight in one.weights) < 0.2 * sum(map(Tensor.numel, before.values()))

    def test_the_first_policy_is_the_model_and_the_reference_too(self, trainer):
        plain, adapted = trainer(), trainer(lora_rank=2, lr=0.1, beta=0.1, kl_in="reward", overwrite=True)
        tokens, mask = torch.tensor([[1, 2, 3, 4, 1]]), torch.tensor([[True, True]])
        start = plain.policy.logp(tokens, mask)
        assert torch.equal(adapted.policy.logp(tokens, mask), start)
        adapted.iterate()
        assert not torch.equal(adapted.policy.logp(tokens, mask), start)
        with adapted.reference.scoring() as score:
            assert torch.equal(score(tokens, mask)[0], start)
        assert not torch.equal(adapted.policy.logp(tokens, mask), start)
        assert all(weight.requires_grad for weight in adapted.weights)

    def test_what_is_saved_is_a_plain_model(self, trainer, tmp_path):
        one = trainer(lora_rank=2, lr=0.1)
        one.iterate()
        one.policy.save(tmp_path / "saved")
        plain = load_policy(tmp_path / "saved")
        tokens, mask = torch.tensor([[1, 2, 3, 4, 1]]), torch.tensor([[True, True]])
        assert not lora.adapted(plain.model)
        assert (plain.logp(tokens, mask) - one.policy.logp(tokens, mask)).abs().max() < 1e-6
        assert lora.adapted(one.policy.model)

    def test_chunks_and_recomputation_beside_them(self, trainer):
        found = []
        for options in ({}, {"chunk": 3, "gradient_checkpointing": True}):
            one = trainer(lora_rank=2, dtype="float64", overwrite=True, **options)
            tokens, mask = torch.tensor([[1, 2, 3, 4, 1]]), torch.tensor([[True, True]])
            one.policy.logp(tokens, mask).sum().backward()
            assert one.policy.model.lm_head.weight.grad is None
            found.append(tiny.take_gradient(one.policy))
        assert (found[0] - found[1]).abs().max() < 1e-7 * found[0].abs().max()


def test_the_reference_leaves_the_device_after_scoring(trainer, monkeypatch):
    one = trainer(beta=0.1, reference_offload=True)
    moves = []
    monkeypatch.setattr(one.reference.policy, "to", lambda device: moves.append(str(device)))
    one.reference.device = "cuda"
    with one.reference.scoring() as score:
        assert moves == ["cuda"]
        assert score.__self__ is one.reference.policy
    assert moves == ["cuda", "cpu"]
    assert trainer(overwrite=True).reference is None
    stays = trainer(beta=0.1, overwrite=True)
    monkeypatch.setattr(stays.reference.policy, "to", lambda device: moves.append(str(device)))
    with stays.reference.scoring():
        pass
    assert moves[2:] == ["cpu"]


def test_optimizers(monkeypatch):
    weights = [torch.nn.Parameter(torch.ones(3))]
    for name, fused in (("adamw", False), ("adamw_fused", True)):
        made = optimizer_of(weights, Config(lr=0.1, weight_decay=0.2, optimizer=name))
        group = made.param_groups[0]
        assert (group["lr"], group["weight_decay"], group["fused"], group["foreach"]) == (0.1, 0.2, fused, False)
    eight = SimpleNamespace(AdamW8bit=lambda weights, **settings: (weights, settings))
    monkeypatch.setitem(sys.modules, "bitsandbytes", ModuleType("bitsandbytes"))
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", eight)
    made = optimizer_of(weights, Config(lr=0.1, weight_decay=0.2, optimizer="adamw_8bit"))
    assert made == (weights, {"lr": 0.1, "weight_decay": 0.2})


def test_eight_bit_states_survive_a_checkpoint(tmp_path):
    """bitsandbytes counts steps in a whole number, nests its states, and shares one table between all weights."""
    from safetensors.torch import load_file, save_file

    from sspo_teach.training.checkpoint import optimizer_tensors, restore_optimizer

    table, deep = torch.arange(4.0), "__bnb_optimizer_quant_state__"
    states = {
        i: {"step": 7 + i, deep: {"state1": torch.full((2,), i, dtype=torch.uint8), "qmap1": table}} for i in range(2)
    }
    loaded = []
    fake = SimpleNamespace(
        state_dict=lambda: {"state": states, "param_groups": ["settings"]}, load_state_dict=loaded.append
    )
    save_file(optimizer_tensors(fake), tmp_path / "optimizer.safetensors")
    restore_optimizer(fake, load_file(tmp_path / "optimizer.safetensors"))
    (found,) = loaded
    assert found["param_groups"] == ["settings"]
    for i, state in found["state"].items():
        assert (type(state["step"]), state["step"]) == (int, 7 + i)
        assert torch.equal(state["qmap1"], table)
        assert torch.equal(state["state1"], states[i][deep]["state1"])


REFUSED = [
    ({"autocast": "fp8"}, "unknown autocast: 'fp8'; did you mean 'fp16'? known: auto, none, bf16, fp16"),
    ({"optimizer": "adam"}, "unknown optimizer: 'adam'; did you mean 'adamw'? known: adamw, adamw_fused, adamw_8bit"),
    (
        {"optimizer": "adamw_8bit"},
        "optimizer='adamw_8bit': bitsandbytes is not installed; pip install",
    ),
    ({"lora_rank": 4}, "lora_rank=4: peft is not installed: pip install -e"),
    (
        {"autocast": "bf16", "dtype": "float64"},
        "autocast='bf16': lowers float32 weights, not dtype='float64'",
    ),
    ({"chunk": -1}, "chunk=-1: must be at least 0"),
    ({"lora_rank": -1}, "lora_rank=-1: must be at least 0"),
    ({"generation_batch": -1}, "generation_batch=-1: must be at least 0"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=str)
def test_what_cannot_be_had_is_refused_by_name(monkeypatch, options, words):
    monkeypatch.setattr(config_module, "find_spec", lambda name: None)
    with pytest.raises(ValueError) as error:
        resolve(Config(**options))
    assert str(error.value).startswith(words)


@pytest.mark.parametrize(
    ("options", "ampere", "expected"),
    [
        ({}, True, "none"),
        ({"model": "some/model", "task": "gsm8k"}, True, "none"),
        ({"model": "some/model", "task": "gsm8k", "device": "cuda"}, True, "bf16"),
        ({"model": "some/model", "task": "gsm8k", "device": "cuda"}, False, "fp16"),
        ({"model": "some/model", "task": "gsm8k", "device": "cuda", "dtype": "float64"}, True, "none"),
        ({"device": "cuda"}, True, "none"),
        ({"device": "cuda", "autocast": "bf16"}, False, "bf16"),
    ],
)
def test_automatic_precision(monkeypatch, options, ampere, expected):
    monkeypatch.setattr(config_module.torch, "empty", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: ampere or including_emulation)
    found = resolve(dataclasses.replace(Config(), **options))
    assert found.autocast == expected
    assert resolve(found) == found
