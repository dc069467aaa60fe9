"""Any method that needs no critic, in TRL's ``GRPOTrainer``: its generation, its rewards, our objective.

    MethodTrainer("sspo", numbers={"tau_pos": 2.0}, model=…, reward_funcs=…, train_dataset=…, args=GRPOConfig(…))

What trains is the method: its objective, its advantages (over whole groups, wherever their responses were made), its
reward rule, and its normalizer with the counts of the whole optimizer batch, all micro-batches of all processes: the
gradient does not depend on how they cut it. Everything of ``GRPOConfig`` that would change one of these is refused, and
so is what would sample from another distribution than the one that is scored; a checkpoint's own generation settings,
of which TRL overrules only some, are not heard.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from trl import GRPOConfig, GRPOTrainer

from sspo_teach.adapters.limits import obstacles, refuse
from sspo_teach.catalog import Method, method
from sspo_teach.objectives.normalize import Normalizer, counts, fixed
from sspo_teach.objectives.regularizers import kl_penalty
from sspo_teach.tensors import name_of, stale
from sspo_teach.types import Rollout

CARRIED = ("rewards", "group_ids", "truncated")  # fields of a Rollout that travel with a response through TRL's buffer
THE_METHOD_DECIDES = (
    "loss_type", "importance_sampling_level", "epsilon", "epsilon_high", "delta", "sapo_temperature_pos",
    "sapo_temperature_neg", "vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg", "scale_rewards",
)  # fmt: skip
ANOTHER_SAMPLER = "tokens would come from another distribution than the one that is scored"
NOT_HERE = {
    "top_entropy_quantile": "it drops tokens from the loss",
    "entropy_coef": "it adds a term to the loss",
    "use_adaptive_entropy": "it adds a term to the loss",
    "off_policy_mask_threshold": "it drops responses from the loss",
    "multi_objective_aggregation": "advantages are the method's, of the weighted sum of rewards",
    "router_aux_loss_coef": "it adds a term to the loss",
    "top_p": ANOTHER_SAMPLER,
    "top_k": ANOTHER_SAMPLER,
    "min_p": ANOTHER_SAMPLER,
    "repetition_penalty": ANOTHER_SAMPLER,
    "generation_kwargs": "it overrules the sampler's settings, and scores do not follow",
}


class MethodTrainer(GRPOTrainer):
    """``GRPOTrainer`` with the loss and the advantages of a method.

    Args:
        method: ``"sspo"``, ``"sspo:gate-study"``, or a row of your own.
        numbers: of the objective, over those of the row.
        others: of ``GRPOTrainer``. ``args.beta`` adds k3 with the objective's normalizer, once
            ``args.use_bias_correction_kl`` is off.

    Raises:
        ValueError: a method or an option that cannot be honoured, by name.
    """

    _tag_names = ("trl", "sspo-teach")

    def __init__(self, method: str | Method = "sspo", *, numbers: Mapping[str, float] | None = None, **others: Any):
        self.method = resolve(method, numbers or {})
        args = others.get("args")
        if args is not None:
            check_options(args)
        super().__init__(**others)
        check_options(self.args)
        if self.aux_loss_enabled:
            raise ValueError("router_aux_loss_coef: the model adds a term to the loss; set router_aux_loss_coef=0.0")
        self.objective_normalizer = self.method.normalize(self.max_completion_length)
        self._window: tuple[int, dict[str, Tensor]] | None = None
        updates = self.args.steps_per_generation * self.num_iterations // self.args.gradient_accumulation_steps
        if updates == 1:
            warnings.warn(
                "one optimizer step per generation: every ratio is 1, so no clip and no gate can ever act; "
                "raise num_iterations or steps_per_generation",
                stacklevel=2,
            )

    def _calculate_rewards(self, *args: Any) -> Tensor:
        self._scores = super()._calculate_rewards(*args)  # of all processes
        return self._scores

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """TRL's batch with the method's advantages in place of its own."""
        with only_what_is_asked_for(self.accelerator.unwrap_model(self.model)):
            made = super()._generate_and_score_completions(inputs)
        whole = self._rollout(made)
        if self.method.reward is not None:
            whole = dataclasses.replace(whole, rewards=self.method.reward(whole, self.max_completion_length))
        advantages = self.method.advantage(whole)
        own = slice(self.accelerator.process_index * len(inputs), (self.accelerator.process_index + 1) * len(inputs))
        made["advantages"] = advantages[own]
        for name in CARRIED:
            made[name] = getattr(whole, name)[own]
        return made

    def _rollout(self, made: Mapping[str, Any]) -> Rollout:
        """The generation of all processes, in the order of their rewards."""
        every, ids = self._everywhere, made["completion_ids"]
        size = self.num_generations if self.model.training else self.num_generations_eval
        mask = response_mask(made)
        ended = (torch.isin(ids, torch.tensor(self.eos_token_ids, device=ids.device)) & mask).any(dim=1)
        logp_old = made.get("old_per_token_logps")
        rewards = (self._scores * self.reward_weights.to(ids.device)).nansum(dim=1)
        prompts, prompt_mask = (every(made[name], first=True) for name in ("prompt_ids", "prompt_mask"))
        return Rollout(
            tokens=torch.cat([prompts, every(ids)], dim=1),
            prompt_mask=prompt_mask.bool(),
            mask=every(mask),
            logp_old=every(torch.full(ids.shape, torch.nan, device=ids.device) if logp_old is None else logp_old),
            rewards=rewards.masked_fill(self._scores.isnan().all(dim=1), torch.nan),
            group_ids=torch.arange(len(self._scores), device=ids.device) // size,
            truncated=self.accelerator.gather(~ended),
            parts={name: self._scores[:, i] for i, name in enumerate(self.reward_func_names)},
        )

    def _everywhere(self, x: Tensor, *, first: bool = False) -> Tensor:
        return self.accelerator.gather(self.accelerator.pad_across_processes(x, dim=1, pad_first=first))

    def _compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> Tensor:
        """The micro-batch's share of the loss of the optimizer batch; DDP averages, so times the processes."""
        logp = self._logp(model, inputs)
        mask = response_mask(inputs)
        logp_old = inputs.get("old_per_token_logps")
        logp_old = logp.detach() if logp_old is None else logp_old
        normalize = fixed(self.objective_normalizer, self._counts(mask))
        fields = {name: inputs[name] for name in self.method.needs}
        loss = self.method.objective(logp, logp_old, inputs["advantages"], mask, normalize=normalize, **fields)
        if self.beta:
            loss = loss + self._kl(logp, inputs["ref_per_token_logps"], mask, normalize)
        self._note("stale", stale(logp, logp_old, mask))
        return loss * self.accelerator.num_processes

    def _logp(self, model: torch.nn.Module, inputs: Mapping[str, Any]) -> Tensor:
        """(B, T) log-probabilities of the completions, from TRL's own forward."""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        images = {name: inputs[name] for name in IMAGES if name in inputs}
        return self._get_per_token_logps_and_entropies(
            model, ids, attention, inputs["completion_ids"].size(1), **images
        )[0]

    def _counts(self, mask: Tensor) -> dict[str, Tensor]:
        """Responses and tokens of the optimizer batch: all its micro-batches, on all processes; in evaluation, of all
        processes' present batch."""
        if not self.model.training:
            return self._summed(counts(mask))
        length, steps = self.args.gradient_accumulation_steps, self.args.steps_per_generation
        window = self._step // length
        if self._window is None or self._window[0] != window:
            first = window * length % steps
            masks = [response_mask(part) for part in self._buffered_inputs[first : first + length]]
            here = [counts(mask) for mask in masks]
            total = {name: torch.stack([each[name] for each in here]).sum() for name in here[0]}
            self._window = window, self._summed(total)
        return self._window[1]

    def _summed(self, here: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: self.accelerator.reduce(count, reduction="sum") for name, count in here.items()}

    def _kl(self, logp: Tensor, logp_ref: Tensor, mask: Tensor, normalize: Normalizer) -> Tensor:
        penalty = kl_penalty(logp, logp_ref, mask, beta=self.beta, normalize=normalize)
        self._note("kl", penalty.detach() / self.beta)
        return penalty

    def _note(self, name: str, value: Tensor) -> None:
        self._metrics["train" if self.model.training else "eval"][name].append(value.item())


@contextmanager
def only_what_is_asked_for(model: Any) -> Iterator[None]:
    """Put the checkpoint's own generation settings aside: what TRL leaves open would be filled from them."""
    own = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own


IMAGES = (
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles",
    "image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids",
)  # fmt: skip


def response_mask(inputs: Mapping[str, Any]) -> Tensor:
    """(B, T) bool: the completion, without what tools wrote."""
    mask = inputs["completion_mask"].bool()
    return mask & inputs["tool_mask"].bool() if "tool_mask" in inputs else mask


def resolve(asked: str | Method, numbers: Mapping[str, float]) -> Method:
    """The row that trains; one that TRL cannot run is refused with the reason."""
    row = (method(asked) if isinstance(asked, str) else asked).with_numbers(**numbers)
    reasons = obstacles(row, fields=CARRIED)
    if row.keep is not None:
        reasons.append(
            f"{name_of(row.keep)} resamples groups, which TRL does not do; to go without, pass "
            "dataclasses.replace(METHODS[…], keep=None)"
        )
    refuse(row, "TRL", reasons)
    return row


def check_options(args: GRPOConfig) -> None:
    """Refuse what would change the loss behind the method's back, by name."""
    default = {f.name: f.default for f in dataclasses.fields(GRPOConfig)}
    for name in (*THE_METHOD_DECIDES, *NOT_HERE):
        if getattr(args, name) != default[name]:
            reason = NOT_HERE.get(name, "the method decides it: choose another, a preset, or its numbers")
            raise ValueError(f"{name}={getattr(args, name)!r} cannot be honoured: {reason}; leave {name} as it is")
    if args.use_vllm and args.vllm_importance_sampling_correction:
        raise ValueError(
            "vllm_importance_sampling_correction=True cannot be honoured: it is a factor on the loss; "
            "set vllm_importance_sampling_correction=False"
        )
    if args.beta and args.use_bias_correction_kl:
        raise ValueError(
            "use_bias_correction_kl=True cannot be honoured: the penalty here is β k3, not ρ β k3; "
            "set use_bias_correction_kl=False"
        )
    if args.steps_per_generation % args.gradient_accumulation_steps:
        raise ValueError(
            f"steps_per_generation={args.steps_per_generation} must be a multiple of "
            f"gradient_accumulation_steps={args.gradient_accumulation_steps}: an optimizer batch that spans "
            "generations has no count before its last one exists"
        )
