"""What TRL and verl train under a method's name by default: presets where a row can say it, words where it cannot.

Read in TRL 1.16 and verl 0.9.1, and compared with them gradient by gradient in tests/parity. Three habits hold
throughout: TRL counts responses without a token; both add small constants to denominators; and where a rule looks at
the batch (the mean of bnpo, the choice of clip_cov and kl_cov), theirs looks at one micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sspo_teach.objectives.advantages import DIALECTS as DEVIATIONS
from sspo_teach.objectives.advantages import group_leave_one_out, group_normalized
from sspo_teach.objectives.normalize import Normalizer, token_mean
from sspo_teach.objectives.token_level import ppo_dual


@dataclass(frozen=True)
class Preset:
    """What ``name:preset`` changes.

    Attributes:
        numbers: of the objective.
        row: fields of the ``Method``, where more than numbers differs.
        asked: how a library is asked for this, where the preset is a library's.
        besides: what the library does that no row can say; such a dialect is told, and refused as a preset.
    """

    numbers: Mapping[str, float] = field(default_factory=dict)
    row: Mapping[str, Any] = field(default_factory=dict)
    asked: str = ""
    besides: str = ""


def always(normalize: Normalizer) -> Callable[[int], Normalizer]:
    """``normalize`` as a row's ``normalizer``, whatever the longest length."""
    return partial(_the_same, normalize)


def _the_same(normalize: Normalizer, max_new_tokens: int) -> Normalizer:
    return normalize


def _of(
    library: str, asked: str, *, besides: str = "", row: Mapping[str, Any] | None = None, **numbers: float
) -> Preset:
    advantage = partial(group_normalized, ddof=DEVIATIONS[library]["ddof"], eps=DEVIATIONS[library]["eps"])
    return Preset(numbers, {"advantage": advantage, **(row or {})}, asked, besides)


_trl, _verl = partial(_of, "trl"), partial(_of, "verl")
TOKENS = {"normalizer": always(token_mean)}
VANILLA = {"objective": ppo_dual, **TOKENS}  # verl's default loss: the dual clip is always on
SEQUENCE = 'loss_type="grpo", importance_sampling_level="sequence"'

DIALECTS: Mapping[str, Mapping[str, Preset]] = {
    "rloo": {
        "trl": Preset(
            asked="RLOOTrainer", besides="clips the product of ratios at 1 ± 0.2, takes 0.05 KL off the reward"
        ),
        "verl": _verl("adv_estimator=rloo", row={**VANILLA, "advantage": group_leave_one_out}),
    },
    "grpo": {
        "trl": _trl('loss_type="grpo"'),
        "verl": _verl("adv_estimator=grpo", row=VANILLA),
    },
    "dr_grpo": {"trl": _trl('loss_type="dr_grpo"')},
    "dapo": {"trl": _trl('loss_type="dapo", the default', eps_high=0.2, row={"keep": None, "reward": None})},
    "cispo": {
        "trl": _trl('loss_type="cispo"', besides="caps every weight at ε = 0.2, below 1, unless epsilon_high is set"),
        "verl": _verl("loss_mode=cispo", ratio_floor=0.8, ratio_cap=1.2),
    },
    "gspo": {
        "trl": _trl(SEQUENCE, eps_low=0.2, eps_high=0.2),
        "verl": _verl("loss_mode=gspo", row=TOKENS, eps_low=0.2, eps_high=0.2),
    },
    "gmpo": {
        "trl": _trl("trl.experimental.gmpo"),
        "verl": _verl("loss_mode=geo_mean", eps_low=0.2, eps_high=0.2),
    },
    "sapo": {"trl": _trl('loss_type="sapo"'), "verl": _verl("loss_mode=sapo")},
    "ppo_dual": {"verl": _verl("loss_mode=vanilla, the default", row=TOKENS)},
    "bnpo": {"trl": _trl('loss_type="bnpo"')},
    "dppo_tv": {"verl": _verl("loss_mode=dppo_tv", delta_low=0.2, delta_high=0.2, ratio_cap=3.0)},
    "dppo_kl": {"verl": _verl("loss_mode=dppo_kl", delta_low=0.2, delta_high=0.2, ratio_cap=3.0)},
    "gpg": {
        "verl": Preset(
            asked="loss_mode=gpg", besides="scales A by the batch size over the number of rewards that are not 0"
        )
    },
    "dro": {"verl": Preset(asked="loss_mode=dro", besides="asks for β and has no default")},
    "clip_cov": {"verl": _verl("loss_mode=clip_cov")},
    "kl_cov": {"verl": _verl("loss_mode=kl_cov", beta=0.1)},
    "luspo": {
        "trl": _trl('loss_type="luspo", importance_sampling_level="sequence"', eps_low=0.2, eps_high=0.2),
    },
    "vespo": {"trl": _trl('loss_type="vespo"')},
}
