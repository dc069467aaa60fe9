"""Our objectives as policy losses of verl, each under ``sspo_teach/NAME`` and ``sspo_teach/NAME:PRESET``.

verl imports this module, and so registers them, in every process that has ``VERL_USE_EXTERNAL_MODULES`` set to
``sspo_teach.adapters.verl``. What verl is to be told for a method, that included, the module prints when run:

    python -m verl.trainer.main_ppo $(python -m sspo_teach.adapters.verl sspo tau_pos=2.0) …

The objective is ours; advantages, the KL term, sampling and rewards are verl's. ``loss_agg_mode`` chooses the
normalizer, its counts are those of the global batch, and ``rollout_is_weights`` multiply the advantages. verl has no
place for a method's own numbers, so they stand in ``policy_loss.numbers``, of the class ``PolicyLoss`` below.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor
from verl.trainer.ppo.core_algos import register_policy_loss
from verl.workers.config import ActorConfig, PolicyLossConfig

from sspo_teach.adapters.limits import obstacles, refuse
from sspo_teach.catalog import METHODS, Method, method
from sspo_teach.objectives.normalize import Normalizer, constant, fixed, response_mean, sequence_sum, token_mean
from sspo_teach.tensors import masked_sum, name_of, promote, stale, unknown

PREFIX = "sspo_teach/"
AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
NUMBERS_OF_VERL = (
    "clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "tau_pos", "tau_neg", "clip_cov_ratio",
    "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef", "dro_beta",
)  # fmt: skip


@dataclasses.dataclass
class PolicyLoss(PolicyLossConfig):
    """verl's ``policy_loss`` with a place for the objective's own numbers; ``_target_`` asks for it."""

    numbers: dict[str, float] = dataclasses.field(default_factory=dict)


def policy_loss(
    row: Method,
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: ActorConfig | None = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """The loss of a micro-batch, as verl calls it, with what there is to log."""
    if config is None:
        raise ValueError("config is None: verl's ActorConfig holds the counts of the global batch and the numbers")
    check_config(row, config)
    there = row.with_numbers(**(config.policy_loss.get("numbers") or {}))
    world = dict(config.global_batch_info)
    ranks = world.get("dp_size") or 1
    normalize = normalizer(loss_agg_mode, world, width=response_mask.shape[1])
    if rollout_is_weights is not None:
        advantages = advantages * rollout_is_weights
    loss = there.objective(log_prob, old_log_prob, advantages, response_mask, normalize=normalize)
    gap = masked_sum(promote(old_log_prob) - promote(log_prob.detach()), response_mask).sum()
    tokens = response_mask.sum().clamp(min=1)
    metrics = {
        "actor/ppo_kl": (gap / tokens).item(),
        "actor/stale": stale(log_prob, old_log_prob, response_mask).item(),
    }
    return loss * ranks, metrics  # data-parallel ranks average gradients


def normalizer(loss_agg_mode: str, world: Mapping[str, Any], *, width: int) -> Normalizer:
    """verl's aggregation as ours, its counts those of the global batch, or the micro-batch's where there is but one."""
    if loss_agg_mode not in AGGREGATIONS:
        raise ValueError(unknown("loss_agg_mode", loss_agg_mode, AGGREGATIONS))
    if loss_agg_mode == "token-sum":
        return partial(token_mean, tokens=1)
    by_tokens = loss_agg_mode == "token-mean"
    count, name = ("batch_num_tokens", "tokens") if by_tokens else ("global_batch_size", "responses")
    kinds: Mapping[str, Normalizer] = {
        "token-mean": token_mean,
        "seq-mean-token-mean": response_mean,
        "seq-mean-token-sum": sequence_sum,
        "seq-mean-token-sum-norm": constant(world.get("loss_scale_factor") or width),
    }
    if world.get(count) is None:
        if (world.get("dp_size") or 1) > 1:
            raise ValueError(
                f"{count} is missing with dp_size={world['dp_size']}: {loss_agg_mode} divides by the global "
                "count; put it into config.global_batch_info"
            )
        return kinds[loss_agg_mode]
    return fixed(kinds[loss_agg_mode], {name: world[count]})


def check_config(row: Method, config: ActorConfig) -> None:
    """Refuse numbers of verl's own losses that were set and would do nothing here."""
    for part, kind in ((config, ActorConfig), (config.policy_loss, PolicyLossConfig)):
        default = {f.name: f.default for f in dataclasses.fields(kind)}
        for name in NUMBERS_OF_VERL:
            if name in default and part.get(name, default[name]) != default[name]:
                raise ValueError(
                    f"{name}={part.get(name)!r} is not read by {PREFIX}{name_of(row.objective)}: its numbers are "
                    f"{', '.join(row.numbers) or 'none'}, set in policy_loss.numbers; leave {name} as it is"
                )


def cannot(row: Method, *_: Any, **__: Any) -> tuple[Tensor, dict[str, Any]]:
    """Stands for a method that verl cannot run: says why when it is called."""
    refuse(row, "verl", obstacles(row))
    raise AssertionError


def register(name: str, row: Method) -> str:
    """Register ``row`` as ``sspo_teach/name``; returns that. One that verl cannot run says why when verl calls it."""
    register_policy_loss(PREFIX + name)(partial(cannot if obstacles(row) else policy_loss, row))
    return PREFIX + name


def overrides(asked: str, **numbers: float) -> list[str]:
    """What to tell ``verl.trainer.main_ppo`` so that it trains the method as it is here, up to verl's ddof and ε."""
    row = method(asked).with_numbers(**numbers)
    refuse(row, "verl", obstacles(row))
    actor = "actor_rollout_ref.actor"
    here = "sspo_teach.adapters.verl"
    chosen = [f"+{actor}.policy_loss.numbers.{name}={value}" for name, value in numbers.items()]
    if chosen:
        chosen.insert(0, f"{actor}.policy_loss._target_={here}.PolicyLoss")
    return [
        f"+ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES={here}",
        f"{actor}.policy_loss.loss_mode={PREFIX}{asked}",
        *chosen,
        *(f"{actor}.{setting}" for setting in AGGREGATION_OF[name_of(row.normalize(1))]),
        *(f"algorithm.{setting}" for setting in ADVANTAGES_OF.get(name_of(row.advantage), ())),
    ]


AGGREGATION_OF = {
    "token_mean": ("loss_agg_mode=token-mean",),
    "response_mean": ("loss_agg_mode=seq-mean-token-mean",),
    "sequence_sum": ("loss_agg_mode=seq-mean-token-sum",),
    "constant_length": ("loss_agg_mode=seq-mean-token-sum-norm", "loss_scale_factor=${data.max_response_length}"),
}
ADVANTAGES_OF = {
    "group_normalized": ("adv_estimator=grpo",),
    "group_centered": ("adv_estimator=grpo", "norm_adv_by_std_in_grpo=False"),
    "group_leave_one_out": ("adv_estimator=rloo",),
}

for _name, _row in METHODS.items():
    register(_name, _row)
    for _preset, _chosen in _row.presets.items():
        if not _chosen.besides:
            register(f"{_name}:{_preset}", method(f"{_name}:{_preset}"))

if __name__ == "__main__":
    pairs = (word.partition("=") for word in sys.argv[2:])
    print(*overrides(sys.argv[1], **{key: float(value) for key, _, value in pairs}), sep="\n")
