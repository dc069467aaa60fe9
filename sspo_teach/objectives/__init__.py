"""Objectives and their parts: pure functions (logp, logp_old, advantages, mask, *, numbers, normalize) → loss.

The grammar has three words: a **unit** (``units``) pools log-ratios, a **gate** (``sspo_teach.gates``) bends them, a
**normalizer** (``normalize``) makes one number of them. ``token_level`` and ``sequence_level`` hold the sentences.
"""

from sspo_teach.objectives.sequence_level import gmpo, gspo, sspo, sspo_log_ratio, sspo_sigmoid
from sspo_teach.objectives.token_level import cispo, dapo, dr_grpo, grpo, ppo, reinforce, rloo, sapo

__all__ = [
    "cispo",
    "dapo",
    "dr_grpo",
    "gmpo",
    "grpo",
    "gspo",
    "ppo",
    "reinforce",
    "rloo",
    "sapo",
    "sspo",
    "sspo_log_ratio",
    "sspo_sigmoid",
]
