"""Objectives and their parts: pure functions (logp, logp_old, advantages, mask, *, numbers, normalize) → loss.

The grammar has three words: a **unit** (``units``) pools log-ratios, a **gate** (``sspo_teach.gates``) bends them, a
**normalizer** (``normalize``) makes one number of them. ``token_level``, ``sequence_level`` and
``prefix_level`` hold the sentences.
"""

from sspo_teach.objectives.prefix_level import ctpo, ctpo_autodiff
from sspo_teach.objectives.sequence_level import (
    cspo,
    fspo,
    gepo,
    gmpo,
    gspo,
    gspo_token,
    luspo,
    sspo,
    sspo_log_ratio,
    sspo_sigmoid,
    vespo,
)
from sspo_teach.objectives.token_level import (
    bandpo_chi2,
    bandpo_kl,
    bandpo_tv,
    bapo,
    bapo_printed,
    cispo,
    dapo,
    dr_grpo,
    grpo,
    ppo,
    reinforce,
    rloo,
    sapo,
)

__all__ = [
    "bandpo_chi2",
    "bandpo_kl",
    "bandpo_tv",
    "bapo",
    "bapo_printed",
    "cispo",
    "cspo",
    "ctpo",
    "ctpo_autodiff",
    "dapo",
    "dr_grpo",
    "fspo",
    "gepo",
    "gmpo",
    "grpo",
    "gspo",
    "gspo_token",
    "luspo",
    "ppo",
    "reinforce",
    "rloo",
    "sapo",
    "sspo",
    "sspo_log_ratio",
    "sspo_sigmoid",
    "vespo",
]
