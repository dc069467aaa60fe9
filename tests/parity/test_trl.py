"""Credit is TRL's gradient, where TRL implements the same rule.

TRL's own ``_compute_loss`` runs here, on a stand-in for the trainer that hands it the log-probabilities. In an
environment of its own:

    pip install torch==2.13.0 "trl==1.16.*" "transformers>=5.5.3,<6" pytest
    pip install --no-deps -e .
    pytest -m parity tests/parity/test_trl.py
"""

from collections import defaultdict
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from sspo_teach import METHODS, credit, gates, method
from sspo_teach.checks import sample
from sspo_teach.objectives import units
from sspo_teach.objectives.normalize import constant, response_mean, token_mean
from sspo_teach.objectives.regularizers import kl_penalty
from sspo_teach.tensors import log_ratio

pytest.importorskip("trl")
pytestmark = pytest.mark.parity

from trl import GRPOConfig, GRPOTrainer, RLOOTrainer  # noqa: E402
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer  # noqa: E402

MAX_LENGTH = 7


def trl_credit(batch, trainer=GRPOTrainer, config=GRPOConfig, **options):
    """−∂L/∂logp of TRL's loss; options are those of ``GRPOConfig``."""
    leaf = batch.logp.clone().requires_grad_()
    args = config(output_dir="unused", bf16=False, use_cpu=True, report_to=[], **options)
    stand_in = SimpleNamespace(
        args=args,
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(reduce=lambda x, reduction: x, gather=lambda x: x, num_processes=1),
        _get_per_token_logps_and_entropies=lambda *_, **__: (leaf, torch.zeros_like(leaf), None),
        _metrics={"train": defaultdict(list)},
        loss_type=args.loss_type,
        beta=args.beta,
        epsilon_low=args.epsilon,
        epsilon_high=args.epsilon if args.epsilon_high is None else args.epsilon_high,
        importance_sampling_level=args.importance_sampling_level,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        max_completion_length=MAX_LENGTH,
        use_vllm=False,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        current_gradient_accumulation_steps=1,
        get_gamma_weights=GRPOTrainer.get_gamma_weights,
    )
    stand_in.args.steps_per_generation = 1
    ids = torch.zeros(batch.mask.shape, dtype=torch.int64)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones_like(ids[:, :1]),
        "completion_ids": ids,
        "completion_mask": batch.mask.long(),
        "advantages": batch.advantages.squeeze(1),
        "old_per_token_logps": batch.logp_old,
        "old_logps": (batch.logp_old * batch.mask).sum(1),
        "ref_per_token_logps": batch.fields["logp_ref"],
        "num_items_in_batch": batch.mask.sum(),
    }
    trainer._compute_loss(stand_in, None, inputs).backward()
    return -leaf.grad


def assert_same(ours, theirs):
    deviation = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    print(f"relative deviation {deviation:.1e}")
    assert deviation < 1e-6


DR_GRPO = {"loss_type": "dr_grpo", "max_completion_length": MAX_LENGTH}
SEQUENCE = {"loss_type": "grpo", "importance_sampling_level": "sequence"}
WIDE = {"epsilon": 0.1, "epsilon_high": 0.5}
LUSPO = {"loss_type": "luspo", "importance_sampling_level": "sequence"}
SHARP = {"vespo_k_pos": 1.5, "vespo_lambda_neg": 2.5}
HOT = {"sapo_temperature_pos": 10.0, "sapo_temperature_neg": 12.0}
RULES = {
    "grpo": ("grpo", {}, {"loss_type": "grpo"}),
    "grpo, wide": ("grpo", {"eps_low": 0.1, "eps_high": 0.5}, {"loss_type": "grpo", **WIDE}),
    "dapo": ("dapo", {}, {"loss_type": "dapo", "epsilon_high": 0.28}),
    "bnpo is dapo's mean": ("dapo", {}, {"loss_type": "bnpo", "epsilon_high": 0.28}),
    "dr_grpo": ("dr_grpo", {"normalize": constant(MAX_LENGTH)}, DR_GRPO),
    "cispo": ("cispo", {}, {"loss_type": "cispo", "epsilon_high": 5.0}),
    "cispo, low": ("cispo", {"ratio_cap": 1.2}, {"loss_type": "cispo", "epsilon_high": 1.2}),
    "sapo": ("sapo", {}, {"loss_type": "sapo"}),
    "sapo, hot": ("sapo", {"tau_pos": 10.0, "tau_neg": 12.0}, {"loss_type": "sapo", **HOT}),
    "gspo": ("gspo", {}, {**SEQUENCE, "epsilon": 3e-4, "epsilon_high": 4e-4}),
    "gspo, wide": ("gspo", {"eps_low": 0.2, "eps_high": 0.2}, SEQUENCE),
    "gspo_token is gspo": ("gspo_token", {"eps_low": 0.2, "eps_high": 0.2}, SEQUENCE),
    "bnpo": ("bnpo", {"eps_high": 0.5, "eps_low": 0.1}, {"loss_type": "bnpo", **WIDE}),
    "delta": ("delta_clip", {"delta": 1.5}, {"loss_type": "grpo", "delta": 1.5}),
    "delta inside the band": ("delta_clip", {"delta": 1.1}, {"loss_type": "grpo", "delta": 1.1}),
    "luspo": ("luspo", {}, {**LUSPO, "epsilon": 2e-3, "epsilon_high": 2.5e-3}),
    "vespo": ("vespo", {}, {"loss_type": "vespo"}),
    "vespo, other numbers": ("vespo", {"k_pos": 1.5, "lambda_neg": 2.5}, {"loss_type": "vespo", **SHARP}),
}


@pytest.mark.parametrize("drift", [0.5, 2e-4])
@pytest.mark.parametrize("rule", RULES)
def test_same_gradient(rule, drift):
    name, numbers, options = RULES[rule]
    batch = sample(drift, seed=21)
    assert_same(credit(METHODS[name].objective, *batch.tensors, **numbers), trl_credit(batch, **options))


@pytest.mark.parametrize("eps", [0.4, 0.1])
def test_gmpo(eps):
    batch = sample(0.5, seed=22)
    ours = credit(METHODS["gmpo"].objective, *batch.tensors, eps_low=eps, eps_high=eps)
    assert_same(ours, trl_credit(batch, GMPOTrainer, epsilon=eps))


ASKED = {  # what the table of dialects says, in the trainer's own words: all else is TRL's default
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "dapo": {},
    "gspo": SEQUENCE,
    "gmpo": {"trainer": GMPOTrainer, "config": GMPOConfig},
    "sapo": {"loss_type": "sapo"},
    "bnpo": {"loss_type": "bnpo"},
    "luspo": LUSPO,
    "vespo": {"loss_type": "vespo"},
}


def test_every_dialect_is_tested():
    assert set(ASKED) == {name for name, row in METHODS.items() if "trl" in row.presets and not told(row)}


def told(row):
    return row.presets["trl"].besides


@pytest.mark.parametrize("drift", [0.5, 2e-4])
@pytest.mark.parametrize("name", ASKED)
def test_dialects(name, drift):
    """A preset ``trl`` is what TRL trains when nothing but the loss is asked for."""
    batch, row = sample(drift, seed=27), method(f"{name}:trl")
    assert_same(
        credit(row.objective, *batch.tensors, normalize=row.normalize(MAX_LENGTH)), trl_credit(batch, **ASKED[name])
    )


@pytest.mark.parametrize("name", ["dapo", "gspo", "luspo"])
def test_dialects_differ(name):
    """In their numbers; else nothing above would tell a preset from its method."""
    batch, row = sample(0.25 if name == "dapo" else 0.05, seed=30), METHODS[name]
    theirs = trl_credit(batch, **ASKED[name])
    ours = credit(row.objective, *batch.tensors, normalize=row.normalize(MAX_LENGTH))
    assert (ours - theirs).abs().max() / theirs.abs().max() > 1e-2


def test_cispo_is_told():
    """TRL's default epsilon_high is ε = 0.2, which as a ceiling lies below 1: all weights but the smallest are 0.2."""
    batch = sample(0.5, seed=28)

    def capped(logp, logp_old, advantages, mask):
        log_r = log_ratio(logp, logp_old, mask)
        return -token_mean(gates.score(log_r.exp().clamp(max=0.2), log_r) * advantages, mask)

    assert told(METHODS["cispo"])
    assert_same(credit(capped, *batch.tensors), trl_credit(batch, loss_type="cispo"))


def test_rloo_is_told():
    """``RLOOTrainer`` clips the product of ratios, where the paper has none."""
    batch = sample(0.1, seed=29)

    def clipped(logp, logp_old, advantages, mask):
        log_w = units.product(log_ratio(logp, logp_old, mask), mask)
        return -response_mean(gates.clip(log_w, advantages, 0.2, 0.2) * advantages, mask)

    theirs = trl_credit(batch, RLOOTrainer)
    assert told(METHODS["rloo"])
    assert_same(credit(clipped, *batch.tensors), theirs)
    assert (credit(METHODS["rloo"].objective, *batch.tensors) - theirs).abs().max() / theirs.abs().max() > 1e-2


def test_delta_is_the_dual_clip():
    """From 1 + ε_high on."""
    batch = sample(1.5, seed=23)
    dual = METHODS["ppo_dual"].objective
    theirs = trl_credit(batch, loss_type="grpo", delta=2.0)
    assert_same(credit(dual, *batch.tensors, ratio_cap=2.0, normalize=response_mean), theirs)
    assert ((credit(METHODS["grpo"].objective, *batch.tensors) - theirs).abs().max() / theirs.abs().max()) > 1e-2


@pytest.mark.parametrize(("name", "loss_type"), [("grpo", "grpo"), ("dr_grpo", "dr_grpo")])
def test_kl_takes_the_normalizer_of_the_objective(name, loss_type):
    batch = sample(0.5, seed=24)
    normalize = {"grpo": response_mean, "dr_grpo": constant(MAX_LENGTH)}[name]

    def with_kl(logp, logp_old, advantages, mask):
        penalty = kl_penalty(logp, batch.fields["logp_ref"], mask, beta=0.3, normalize=normalize)
        return METHODS[name].objective(logp, logp_old, advantages, mask, normalize=normalize) + penalty

    plain = {"beta": 0.3, "use_bias_correction_kl": False}  # else TRL multiplies k3 by ρ, undetached (DeepSeek-V3.2)
    theirs = trl_credit(batch, loss_type=loss_type, max_completion_length=MAX_LENGTH, **plain)
    assert_same(credit(with_kl, *batch.tensors), theirs)


def test_empty_responses_count_in_trl():
    """A dialect: TRL's mean is over all rows, ours over those with a token; the count as a number makes them equal."""
    batch = sample(0.5, seed=25)
    batch.mask[1] = False
    theirs = trl_credit(batch, loss_type="grpo")
    ours = partial(response_mean, responses=len(batch.mask))
    assert_same(credit(METHODS["grpo"].objective, *batch.tensors, normalize=ours), theirs)
    assert_same(credit(METHODS["grpo"].objective, *batch.tensors) * 5 / 6, theirs)


def test_sequence_level_under_token_sums_is_weighted_by_length():
    """TRL broadcasts a (B, 1) loss over the mask: with dr_grpo that is our unit under a token sum, L times the mean."""
    batch = sample(2e-4, seed=26)
    theirs = trl_credit(batch, **DR_GRPO, importance_sampling_level="sequence")
    ours = credit(METHODS["gspo"].objective, *batch.tensors, eps_low=0.2, eps_high=0.2, normalize=constant(MAX_LENGTH))
    assert_same(ours, theirs)
