"""What TRL and verl train under a method's name by default: presets where a row can say it, words where it cannot.

Read in TRL 1.16 and verl 0.9.1, and compared with them gradient by gradient in tests/parity. Two habits hold
throughout: TRL counts responses without a token, and both add small constants to denominators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sspo_teach.objectives.advantages import DIALECTS as DEVIATIONS
from sspo_teach.objectives.advantages import group_normalized
from sspo_teach.objectives.normalize import Normalizer, token_mean


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
SEQUENCE = 'loss_type="grpo", importance_sampling_level="sequence"'

DIALECTS: Mapping[str, Mapping[str, Preset]] = {
    "rloo": {
        "trl": Preset(
            asked="RLOOTrainer", besides="clips the product of ratios at 1 ± 0.2, takes 0.05 KL off the reward"
        )
    },
    "grpo": {"trl": _trl('loss_type="grpo"')},
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
}
