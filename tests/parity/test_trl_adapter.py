"""A method inside TRL's trainer has the gradient that it has outside, however accumulation and processes cut the batch.

pip install -e ".[trl]" pytest && pytest -m parity --confcutdir=tests/parity tests/parity/test_trl_adapter.py
"""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sspo_teach import METHODS, Rollout, method
from sspo_teach.catalog import Preset
from sspo_teach.objectives.regularizers import kl_penalty
from sspo_teach.policies.causal_lm import tiny_qwen2

pytest.importorskip("trl")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:.*checkpointing.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
]

sys.path.insert(0, str(Path(__file__).parent))

import trl_run  # noqa: E402
from trl import GRPOTrainer  # noqa: E402

from sspo_teach.adapters.trl import MethodTrainer, resolve  # noqa: E402

ROWS, RATE = 12, 0.2
PROMPTS = ["ab", "cde", "f"]
CUT = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 4}


def runnable():
    for name, row in METHODS.items():
        try:
            resolve(row, {})
        except ValueError:
            continue
        yield name


RUNNABLE = list(runnable())


def whole_batch(trainer):
    """The generation that ``trl_run.rollout`` makes, as one rollout: prompts left-padded, completions right-padded."""
    prompts = [prompt for prompt in PROMPTS for _ in range(trl_run.GROUP)]
    stand_in = type(
        "", (), {"accelerator": type("", (), {"process_index": 0}), "processing_class": trl_run.tokenizer()}
    )
    made = trl_run.rollout(prompts, stand_in)
    ids, completions = made["prompt_ids"], made["completion_ids"]
    wide, long = max(map(len, ids)), max(map(len, completions))
    tokens = [[0] * (wide - len(p)) + p + c + [0] * (long - len(c)) for p, c in zip(ids, completions, strict=True)]
    return Rollout(
        tokens=torch.tensor(tokens),
        prompt_mask=torch.arange(wide) >= wide - torch.tensor([[len(p)] for p in ids]),
        mask=torch.arange(long) < torch.tensor([[len(c)] for c in completions]),
        logp_old=torch.zeros(ROWS, long, dtype=torch.float64),
        rewards=torch.tensor(trl_run.reward(completions)),
        group_ids=torch.arange(ROWS) // trl_run.GROUP,
        truncated=torch.tensor([c[-1] != 1 for c in completions]),
    )


def logps(model, batch):
    attention = torch.cat([batch.prompt_mask, batch.mask], dim=1).long()
    wide = batch.prompt_mask.shape[1]
    logits = model(input_ids=batch.tokens, attention_mask=attention).logits[:, wide - 1 : -1]
    return logits.log_softmax(-1).gather(-1, batch.tokens[:, wide:, None]).squeeze(-1)


def expected(row, steps, *, beta=0.0):
    """The gradients of full-batch steps on one generation, written out: one forward, one objective, one backward."""
    model = tiny_qwen2(len(trl_run.LETTERS), seed=0).model.double()
    batch = whole_batch(model)
    with torch.no_grad():
        batch = dataclasses.replace(batch, logp_old=logps(model, batch))
    if row.reward is not None:
        batch = dataclasses.replace(batch, rewards=row.reward(batch, trl_run.WIDTH))
    advantages, found = row.advantage(batch).double(), []
    for _ in range(steps):
        logp, normalize = logps(model, batch), row.normalize(trl_run.WIDTH)
        fields = {name: getattr(batch, name) for name in row.needs}
        loss = row.objective(logp, batch.logp_old, advantages, batch.mask, normalize=normalize, **fields)
        if beta:
            loss = loss + kl_penalty(logp, batch.logp_old, batch.mask, beta=beta, normalize=normalize)
        model.zero_grad()
        loss.backward()
        found.append({name: weight.grad.clone() for name, weight in model.named_parameters()})
        with torch.no_grad():
            for weight in model.parameters():
                weight -= RATE * weight.grad
    return found


def assert_same(ours, theirs, tolerance=1e-6):
    for step, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert one.keys() == other.keys()
        scale = max(g.abs().max() for g in other.values())
        worst = max((one[name] - other[name]).abs().max() for name in other) / scale
        print(f"step {step}: relative deviation {worst:.1e}")
        assert worst < tolerance


def tolerance_of(row):
    """TRL's log-probabilities are float32 even of a float64 model; a temperature of 12 multiplies their rounding."""
    return 1e-6 if row.numbers.get("tau_neg", 1.0) < 5 else 1e-5


@pytest.mark.parametrize("name", RUNNABLE)
def test_accumulated_gradient(name, tmp_path):
    """Two optimizer steps on one generation, each in four micro-batches; the second is off-policy."""
    trainer = trl_run.trainer(tmp_path, name, **CUT)
    trainer.train()
    assert trainer.state.global_step == 2
    assert_same(trainer.gradients, expected(METHODS[name], 2), tolerance_of(METHODS[name]))


def test_the_steps_differ(tmp_path):
    """Else nothing above would tell old log-probabilities that were kept from those that were refreshed."""
    kept, on_policy = expected(METHODS["gspo"], 2)[1], expected(METHODS["rloo"], 2)[1]
    scale = max(g.abs().max() for g in kept.values())
    assert max((kept[name] - on_policy[name]).abs().max() for name in kept) / scale > 1e-2


def test_numbers_presets_and_own_rows(tmp_path):
    row = dataclasses.replace(METHODS["dapo"], keep=None, presets={})
    for asked, numbers, same in (
        ("sspo:gate-study", {"tau_pos": 5.0}, method("sspo:gate-study").with_numbers(tau_pos=5.0)),
        ("dapo:trl", {}, method("dapo:trl")),
        (row, {"eps_high": 0.5}, row.with_numbers(eps_high=0.5)),
    ):
        trainer = trl_run.trainer(tmp_path, asked, numbers=numbers, **CUT)
        trainer.train()
        assert_same(trainer.gradients, expected(same, 2), tolerance_of(same))


def test_windows_of_one_generation(tmp_path):
    """Each optimizer step takes half of the generation: its counts are its half's, its old log-probs are kept."""
    options = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2, "steps_per_generation": 4}
    trainer = trl_run.trainer(tmp_path, "cispo", num_iterations=1, learning_rate=0.0, **options)
    trainer.train()
    model = tiny_qwen2(len(trl_run.LETTERS), seed=0).model.double()
    found = []
    for first in (0, 2):
        parts = trainer._buffered_inputs[first : first + 2]
        assert all(part["old_per_token_logps"] is not None for part in parts)
        joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0] if parts[0][name].ndim}
        ids = torch.cat([joined["prompt_ids"], joined["completion_ids"]], dim=1)
        masks = joined["prompt_mask"].bool(), joined["completion_mask"].bool()
        none = torch.zeros(len(ids))
        batch = Rollout(ids, *masks, joined["old_per_token_logps"], joined["rewards"], none.long(), none.bool())
        logp = logps(model, batch)
        model.zero_grad()
        METHODS["cispo"].objective(logp, batch.logp_old, joined["advantages"].double(), batch.mask).backward()
        found.append({name: weight.grad.clone() for name, weight in model.named_parameters()})
    assert_same(trainer.gradients, found)


def test_kl(tmp_path):
    """β k3 with the objective's normalizer, against the reference that TRL keeps."""
    model = tiny_qwen2(len(trl_run.LETTERS), seed=0).model.double()
    model.save_pretrained(tmp_path / "reference")
    options = {"beta": 0.3, "use_bias_correction_kl": False, "model": tmp_path / "reference"}
    trainer = trl_run.trainer(tmp_path, "cispo", **CUT, **options)
    trainer.train()
    assert_same(trainer.gradients, expected(METHODS["cispo"], 2, beta=0.3))


def test_advantages_are_the_methods(tmp_path, monkeypatch):
    """Population std here, TRL's own under the preset ``trl``; both of the whole group."""
    theirs = {}
    original = GRPOTrainer._generate_and_score_completions

    def spy(self, inputs):
        made = original(self, inputs)
        theirs["advantages"] = made["advantages"].clone()
        return made

    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", spy)
    found = {}
    for name in ("grpo", "grpo:trl", "dr_grpo"):
        trainer = trl_run.trainer(tmp_path, name, **CUT)
        seen = {}
        monkeypatch.setattr(
            trainer, "_compute_loss", lambda model, inputs, seen=seen, own=trainer._compute_loss: (
                seen.setdefault("advantages", []).append(inputs["advantages"]), own(model, inputs))[1]
        )  # fmt: skip
        trainer.train()
        found[name] = torch.cat(seen["advantages"][:4]).squeeze(1).sort().values
    trl = theirs["advantages"].sort().values
    assert torch.allclose(found["grpo:trl"], trl, rtol=1e-6, atol=1e-6)
    assert torch.allclose(found["grpo"], trl * (4 / 3) ** 0.5, rtol=1e-3)
    assert not torch.allclose(found["dr_grpo"], trl, rtol=0.1)


def launched(processes, out, name, options):
    """The gradients of a run of its own, under ``accelerate launch``.

    ``--multi_gpu`` only chooses torch's launcher (``--cpu`` wants MPI); the script asks for the CPU, and so for gloo.
    """
    launch = [
        "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", str(processes), "--num_machines", "1",
        "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0",
    ]  # fmt: skip
    script = [trl_run.__file__, str(out), "--method", name, "--options", json.dumps(options)]
    command = [sys.executable, *(launch if processes > 1 else ()), *script]
    root = str(Path(__file__).parents[2])
    quiet = {"PYTHONPATH": root, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(command, env={**os.environ, **quiet}, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return torch.load(out, weights_only=True)


@pytest.mark.parametrize("name", ["sspo", "cispo", "dr_grpo"])
def test_two_processes(name, tmp_path):
    """12 responses in groups of 4, six on each process: one group lies on both."""
    two = launched(2, tmp_path / "two.pt", name, {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2})
    one = launched(1, tmp_path / "one.pt", name, CUT)
    assert_same(two, one)
    assert_same(two, expected(METHODS[name], 2))


class TestRefused:
    @pytest.mark.parametrize(
        ("row", "reason"),
        [
            ({"separable": False}, "its credit couples the responses of a minibatch"),
            ({"needs": ("logp_ref",)}, "it needs logp_ref, which the trainer does not hand over"),
            ({"fields": lambda *_: {}, "needs": ("kept",)}, "it computes kept from the whole minibatch"),
            ({"controller": dict}, "its dict keeps state between steps"),
            ({"critic": dict}, "its advantages come from a critic of its own"),
            ({"keep": lambda rollout: rollout.mask.any(1)}, "resamples groups, which TRL does not do"),
        ],
    )
    def test_rows(self, row, reason):
        with pytest.raises(ValueError, match=f"^grpo cannot train in TRL: .*{reason}"):
            MethodTrainer(dataclasses.replace(METHODS["grpo"], **row), model=None, reward_funcs=None)

    def test_by_name(self):
        with pytest.raises(ValueError, match="dapo cannot train in TRL: mixed_groups resamples groups"):
            MethodTrainer("dapo", model=None, reward_funcs=None)
        with pytest.raises(ValueError, match="unknown method: 'spso'; did you mean 'sspo'"):
            MethodTrainer("spso", model=None, reward_funcs=None)
        with pytest.raises(ValueError, match="unknown number of sspo: 'tau'"):
            MethodTrainer("sspo", numbers={"tau": 1.0}, model=None, reward_funcs=None)

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"loss_type": "grpo"}, r"loss_type='grpo' cannot be honoured: the method decides it"),
            ({"importance_sampling_level": "sequence"}, r"importance_sampling_level='sequence' cannot be honoured"),
            ({"epsilon": 0.1}, r"epsilon=0\.1 cannot be honoured: the method decides it"),
            ({"epsilon_high": 0.28}, r"epsilon_high=0\.28 cannot be honoured"),
            ({"delta": 4.0}, r"delta=4\.0 cannot be honoured"),
            ({"sapo_temperature_pos": 2.0}, r"sapo_temperature_pos=2\.0 cannot be honoured"),
            ({"vespo_k_neg": 2.0}, r"vespo_k_neg=2\.0 cannot be honoured"),
            ({"scale_rewards": "none"}, r"scale_rewards='none' cannot be honoured"),
            ({"top_entropy_quantile": 0.2}, r"top_entropy_quantile=0\.2 cannot be honoured: it drops tokens"),
            ({"entropy_coef": 0.1}, r"entropy_coef=0\.1 cannot be honoured: it adds a term to the loss"),
            ({"use_adaptive_entropy": True}, r"use_adaptive_entropy=True cannot be honoured"),
            ({"off_policy_mask_threshold": 0.5}, r"off_policy_mask_threshold=0\.5 cannot be honoured: it drops resp"),
            ({"multi_objective_aggregation": "normalize_then_sum"}, r"multi_objective_aggregation=.* cannot be hon"),
            ({"router_aux_loss_coef": 0.1}, r"router_aux_loss_coef=0\.1 cannot be honoured"),
            ({"top_p": 0.8}, r"top_p=0\.8 cannot be honoured: tokens would come from another distribution"),
            ({"top_k": 20}, r"top_k=20 cannot be honoured: tokens would come from another distribution"),
            ({"min_p": 0.1}, r"min_p=0\.1 cannot be honoured: tokens would come from another distribution"),
            ({"repetition_penalty": 1.1}, r"repetition_penalty=1\.1 cannot be honoured: tokens would come from"),
            ({"generation_kwargs": {"top_k": 20}}, r"generation_kwargs=.* cannot be honoured: it overrules"),
            ({"use_vllm": True}, r"vllm_importance_sampling_correction=True cannot be honoured: it is a factor"),
            ({"beta": 0.1}, r"use_bias_correction_kl=True cannot be honoured: the penalty here is β k3"),
            ({"steps_per_generation": 1}, r"steps_per_generation=1 must be a multiple of gradient_accumulation_steps"),
        ],
    )
    def test_options(self, options, reason, tmp_path):
        sizes = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
        with pytest.raises(ValueError, match=reason):
            trl_run.trainer(tmp_path, "sspo", **{**sizes, **options})

    def test_one_step_per_generation_warns(self, tmp_path):
        with pytest.warns(UserWarning, match="every ratio is 1, so no clip and no gate can ever act"):
            trl_run.trainer(tmp_path, "sspo", **CUT, num_iterations=1)


def test_evaluation(tmp_path):
    trainer = trl_run.trainer(tmp_path, "sspo", **CUT, per_device_eval_batch_size=4)
    trainer.train()
    from datasets import Dataset

    found = trainer.evaluate(Dataset.from_dict({"prompt": PROMPTS}))
    assert abs(found["eval_loss"]) < 1  # ratios are 1 and advantages sum to 0 over a group; lengths differ
    assert found["eval_stale"] == 0


def test_a_checkpoint_s_generation_settings_change_nothing(tmp_path, monkeypatch):
    """trl#5783, verl#7270: what TRL does not name itself would be filled from them, as min_p here."""
    nasty = {"temperature": 0.1, "top_k": 1, "repetition_penalty": 5.0, "min_p": 0.5, "no_repeat_ngram_size": 1,
             "typical_p": 0.3, "suppress_tokens": [3], "min_new_tokens": 2}  # fmt: skip
    trainer, seen = trl_run.trainer(tmp_path, "sspo", **CUT), []
    trainer.rollout_func = None  # TRL samples itself
    own, prepare = trainer.model.generation_config, type(trainer.model)._prepare_generation_config
    own.update(**nasty)

    def spy(self, *args, **rest):
        seen.append(prepare(self, *args, **rest))
        return seen[-1]

    monkeypatch.setattr(type(trainer.model), "_prepare_generation_config", spy)
    trainer.train()
    asked = {"temperature": 1.0, "top_k": 0, "repetition_penalty": 1.0, "min_p": None, "no_repeat_ngram_size": 0,
             "typical_p": 1.0, "suppress_tokens": None, "min_new_tokens": None}  # fmt: skip
    assert seen
    assert {name: getattr(seen[0][0], name) for name in asked} == asked
    assert trainer.model.generation_config is own
    assert own.min_p == 0.5


def test_a_preset_is_a_preset():
    assert isinstance(METHODS["grpo"].presets["trl"], Preset)
