"""The plan against the machine: what a real update and a real sampling pass allocate, within 15 %."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peak import allocated
from tiny_text import checkpoint_folder
from transformers import Qwen2Config, Qwen2ForCausalLM

from sspo_teach import memory
from sspo_teach.memory import MODELS, Load, Sizes
from sspo_teach.policies.projection import automatic_chunk
from sspo_teach.training.config import Config
from sspo_teach.training.hardware import HARDWARE, settings
from sspo_teach.training.trainer import Trainer
from sspo_teach.types import Rollout

WIDE = Sizes(6000, 192, 768, 3, 3, 1, 64)  # the vocabulary weighs most
DEEP = Sizes(1500, 256, 1024, 6, 4, 2, 64)  # the layers do
BASE = Load(
    WIDE, device="cpu", prompts=4, group_size=4, minibatches=2, prompt_tokens=40, max_new_tokens=72, micro_batch=4
)

SETTINGS = {
    "shared prompts": BASE,
    "own prompts": replace(BASE, share_prompts=False),
    "one micro-batch": replace(BASE, micro_batch=0),
    "checkpointing": replace(BASE, gradient_checkpointing=True),
    "checkpointing, small chunks": replace(BASE, gradient_checkpointing=True, chunk=32),
    "small chunks": replace(BASE, chunk=48),
    "bf16": replace(BASE, autocast="bf16"),
    "bf16, checkpointing": replace(BASE, autocast="bf16", gradient_checkpointing=True),
    "deep": replace(BASE, sizes=DEEP, chunk=64),
    "deep, checkpointing": replace(BASE, sizes=DEEP, gradient_checkpointing=True, micro_batch=0),
    "deep, bf16": replace(BASE, sizes=DEEP, autocast="bf16", chunk=64),
}


def trainer_of(load: Load, folder: Path) -> Trainer:
    s = load.sizes
    model = checkpoint_folder(
        folder / "model", vocab_size=s.vocab_size, hidden_size=s.hidden_size, intermediate_size=s.intermediate_size,
        layers=s.num_hidden_layers, heads=s.num_attention_heads, kv_heads=s.num_key_value_heads,
    )  # fmt: skip
    config = Config(  # reinforce pushes every token, where a clip would spare some the way back
        task="arithmetic-text", model=str(model), method="reinforce", prompts=load.prompts, group_size=load.group_size,
        minibatches=load.minibatches, micro_batch=load.micro_batch, max_new_tokens=load.max_new_tokens,
        chunk=load.chunk, gradient_checkpointing=load.gradient_checkpointing, autocast=load.autocast,
        optimizer=load.optimizer, share_prompts=load.share_prompts, out=str(folder / "run"),
    )  # fmt: skip
    one = Trainer(config, quiet=True)
    one.policy.model.set_attn_implementation("sdpa")  # as every model beyond the tiny ones
    assert sum(weight.numel() for weight in one.weights) == s.parameters
    for weight in one.weights:  # the optimizer's state exists from the first step on
        weight.grad = torch.zeros_like(weight)
    one.optimizer.step()
    one.optimizer.zero_grad(set_to_none=True)
    return one


def longest(load: Load) -> Rollout:
    """A batch whose responses are all as long as they may be, and whose prompts have some padding."""
    batch, width, chance = load.prompts * load.group_size, load.prompt_tokens, torch.Generator().manual_seed(0)
    groups = torch.arange(load.prompts).repeat_interleave(load.group_size)
    prompts = torch.randint(load.sizes.vocab_size, (load.prompts, width), generator=chance)[groups]
    answers = torch.randint(load.sizes.vocab_size, (batch, load.max_new_tokens), generator=chance)
    prompt_mask = torch.ones(batch, width, dtype=torch.bool)
    prompt_mask[groups % 2 == 0, :3] = False
    logp = torch.randn(batch, load.max_new_tokens, generator=chance) * 0.01 - 9
    return Rollout(
        tokens=torch.cat([prompts, answers], dim=1), prompt_mask=prompt_mask, mask=torch.ones_like(answers).bool(),
        logp_old=logp, rewards=torch.randn(batch, generator=chance), group_ids=groups,
        truncated=torch.ones(batch, dtype=torch.bool), problems=("",) * batch, parts={},
    )  # fmt: skip


def update_of(one: Trainer, load: Load) -> Any:
    rollout = longest(load)
    advantages = rollout.rewards.unsqueeze(1)
    return lambda: one.update(rollout, advantages, torch.arange(load.minibatch))


def sampling_of(one: Trainer, load: Load) -> Any:
    rollout = longest(load)
    first = torch.arange(0, load.prompts * load.group_size, load.group_size)
    return lambda: one.policy.generate(
        rollout.tokens[first, : load.prompt_tokens], rollout.prompt_mask[first], max_new_tokens=load.max_new_tokens,
        stop_ids=(load.sizes.vocab_size,), pad_id=0, group_size=load.group_size,
    )  # fmt: skip


def predicted(load: Load, phase: str) -> tuple[int, int]:
    """Bytes that pass in a phase, and bytes that stay."""
    items = memory.peak(load, phase)[1]
    stays = items["weights"] + items["optimizer"]
    return sum(items.values()) - stays, stays


@pytest.mark.parametrize("name", SETTINGS)
def test_an_update_allocates_what_the_plan_says(name, tmp_path):
    """Beside weights and optimizer, which would hide an error, not with them."""
    load = SETTINGS[name]
    measured = allocated(update_of(trainer_of(load, tmp_path), load))
    assert predicted(load, "training")[0] == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize("name", ["shared prompts", "bf16"])
def test_sampling_allocates_what_the_plan_says(name, tmp_path):
    load = replace(SETTINGS[name], prompt_tokens=200, max_new_tokens=16)
    measured = allocated(sampling_of(trainer_of(load, tmp_path), load))
    assert predicted(load, "generation")[0] == pytest.approx(measured, rel=0.15)


def test_the_optimizer_s_state(tmp_path):
    one = trainer_of(BASE, tmp_path)
    state = sum(x.nbytes for x in one.optimizer.state_dict()["state"].values() for x in x.values() if x.numel() > 1)
    assert memory.optimizer(BASE) == state


@pytest.mark.parametrize("name", MODELS)
def test_sizes_are_those_of_the_model(name):
    s = MODELS[name]
    with torch.device("meta"):
        model = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=s.vocab_size, hidden_size=s.hidden_size, intermediate_size=s.intermediate_size,
                num_hidden_layers=s.num_hidden_layers, num_attention_heads=s.num_attention_heads,
                num_key_value_heads=s.num_key_value_heads, tie_word_embeddings=s.tie_word_embeddings,
            )
        )  # fmt: skip
    biases = sum(p.numel() for n, p in model.named_parameters() if n.endswith("proj.bias"))
    assert s.parameters == sum(p.numel() for p in model.parameters()) - (0 if s.attention_bias else biases)


def test_published_numbers_of_parameters():
    """As the model cards and the weights' own metadata say."""
    assert MODELS["Qwen2.5-0.5B"].parameters == 494_032_768
    assert MODELS["SmolLM2-135M"].parameters == 134_515_008


def test_a_folder_and_a_hub_id_are_read(tmp_path):
    folder = checkpoint_folder(tmp_path)
    found = memory.sizes_of(str(folder))
    assert found == memory.sizes_of(str(folder / "config.json"))
    model = Qwen2ForCausalLM(Qwen2Config.from_pretrained(folder))
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert memory.sizes_of("Qwen/Qwen2.5-0.5B-Instruct") == MODELS["Qwen2.5-0.5B"]


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"unknown model: 'Qwen2.5-0.6B'; did you mean 'Qwen2.5-0.5B'\?.*config.json"):
        memory.sizes_of("Qwen2.5-0.6B")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ValueError, match=r"model_type='bert'.*qwen2 and llama"):
        memory.sizes_of(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "value"), [("num_attention_heads", None), ("num_attention_heads", 0), ("hidden_size", "64"),
                        ("vocab_size", 0), ("num_hidden_layers", -1), ("intermediate_size", 1.5)],
)  # fmt: skip
def test_a_config_with_a_size_that_cannot_be_is_refused_by_name(name, value, tmp_path):
    sizes = dict.fromkeys((field.name for field in fields(Sizes)), 4)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **sizes, name: value}))
    with pytest.raises(ValueError, match=f"{name}={value!r}: must be a positive whole number"):
        memory.sizes_of(str(tmp_path))


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"[" * 100_000])
def test_a_config_that_is_no_text_or_has_no_end_is_refused(raw, tmp_path):
    (tmp_path / "config.json").write_bytes(raw)
    with pytest.raises(ValueError, match="is not JSON"):
        memory.sizes_of(str(tmp_path))


@pytest.mark.parametrize("vocabulary", [5000, 49_152, 151_936])
def test_the_plan_cuts_the_projection_where_the_policy_does(vocabulary):
    load = replace(BASE, sizes=replace(WIDE, vocab_size=vocabulary), micro_batch=0, max_new_tokens=10_000)
    assert memory.chunk_of(load) == automatic_chunk(vocabulary)


def planned(name: str, **other: Any) -> Load:
    """A preset's load for Qwen2.5-0.5B."""
    chosen = settings(name, 256)
    return Load(**{"sizes": MODELS["Qwen2.5-0.5B"], "reference": True, **chosen, **other})


def test_all_weights_of_qwen_fit_the_16_gb_line_with_groups_of_8_and_512_new_tokens():
    load = planned("t4")
    assert (load.group_size, load.max_new_tokens, load.lora_rank, load.autocast) == (8, 512, 0, "fp16")
    assert memory.needed(load) < HARDWARE["t4"].bytes < 16e9
    without = replace(load, gradient_checkpointing=False)
    assert memory.needed(without) > HARDWARE["t4"].bytes  # the line is no empty one


@pytest.mark.parametrize("name", HARDWARE)
def test_every_preset_fits_its_hardware(name):
    load, line = planned(name), HARDWARE[name].bytes
    assert memory.needed(load) < line
    most = memory.largest_micro_batch(load, line)
    assert most >= load.rows
    if most < load.minibatch:
        assert memory.needed(replace(load, micro_batch=most + 1)) > line


def test_nothing_fits_a_gigabyte():
    assert memory.largest_micro_batch(planned("t4"), 10**9) == 0


def test_what_saves_memory_in_the_plan():
    plain = replace(planned("80gb"), micro_batch=8, minibatches=8)
    for other in (
        {"gradient_checkpointing": True}, {"autocast": "none"}, {"lora_rank": 16}, {"optimizer": "adamw_8bit"},
        {"reference": False}, {"reference_offload": True}, {"micro_batch": 4},
    ):  # fmt: skip
        less = memory.needed(replace(plain, **other)) < memory.needed(plain)
        assert less == (other != {"autocast": "none"}), other


@pytest.mark.benchmark
@pytest.mark.parametrize("autocast", ["none", "bf16"])
def test_the_exact_configuration(autocast, tmp_path):
    """Qwen2.5-0.5B with random weights: 11 GB and some minutes."""
    load = Load(MODELS["Qwen2.5-0.5B"], prompts=4, group_size=4, prompt_tokens=64, max_new_tokens=96, micro_batch=4,
                device="cpu", gradient_checkpointing=True, autocast=autocast)  # fmt: skip
    one = trainer_of(load, tmp_path)
    short = replace(load, max_new_tokens=6)  # every operation is recorded, which takes time
    for phase, here, act in (
        ("training", load, update_of(one, load)),
        ("generation", short, sampling_of(one, short)),
    ):
        (passes, stays), measured = predicted(here, phase), allocated(act)
        print(f"{phase}: {measured / 1e9:.2f} GB beside {stays / 1e9:.2f} measured, {passes / 1e9:.2f} predicted")
        assert passes == pytest.approx(measured, rel=0.15)
