"""Objectives and their parts: pure functions (logp, logp_old, advantages, mask, *, numbers, normalize) → loss.

The grammar has three words: a **unit** (``units``) pools log-ratios, a **gate** (``sspo_teach.gates``) bends them, a
**normalizer** (``normalize``) makes one number of them. ``token_level`` and ``sequence_level`` hold the sentences;
``token_soft``, ``token_detached`` and ``selection`` those with softer gates, detached weights and chosen tokens.
"""

from sspo_teach.objectives.selection import (
    clip_cov,
    kl_cov,
)
from sspo_teach.objectives.sequence_level import (
    gmpo,
    gspo,
    sspo,
    sspo_log_ratio,
    sspo_sigmoid,
)
from sspo_teach.objectives.token_detached import (
    aspo,
    ce_gppo,
    dppo_kl,
    dppo_tv,
    dro,
    gpg,
    gppo,
    maspo,
    topr,
)
from sspo_teach.objectives.token_level import (
    bnpo,
    cispo,
    dapo,
    delta_clip,
    dr_grpo,
    grpo,
    ppo,
    ppo_dual,
    reinforce,
    rloo,
    sapo,
)
from sspo_teach.objectives.token_soft import (
    pspo,
    sapo_arctan,
    sapo_cauchy,
    sapo_directional,
    sapo_erf,
    sapo_gaussian,
    sapo_softsign,
    scopic,
    spo_simple,
)

__all__ = [
    "aspo",
    "bnpo",
    "ce_gppo",
    "cispo",
    "clip_cov",
    "dapo",
    "delta_clip",
    "dppo_kl",
    "dppo_tv",
    "dr_grpo",
    "dro",
    "gmpo",
    "gpg",
    "gppo",
    "grpo",
    "gspo",
    "kl_cov",
    "maspo",
    "ppo",
    "ppo_dual",
    "pspo",
    "reinforce",
    "rloo",
    "sapo",
    "sapo_arctan",
    "sapo_cauchy",
    "sapo_directional",
    "sapo_erf",
    "sapo_gaussian",
    "sapo_softsign",
    "scopic",
    "spo_simple",
    "sspo",
    "sspo_log_ratio",
    "sspo_sigmoid",
    "topr",
]
