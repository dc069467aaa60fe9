"""Objectives and their parts: pure functions (logp, logp_old, advantages, mask, *, numbers, normalize) → loss.

The grammar has three words: a **unit** (``units``) pools log-ratios, a **gate** (``sspo_teach.gates``) bends them, a
**normalizer** (``normalize``) makes one number of them. ``token_level``, ``sequence_level`` and ``prefix_level`` hold
the sentences; ``token_soft``, ``token_detached`` and ``selection`` those with softer gates, detached weights and chosen
tokens; ``contrastive`` those that set responses against each other, ``critic`` those that need a critic.
``corrections`` are factors on the advantages, ``compose`` joins them to an objective.
"""

from sspo_teach.objectives.contrastive import click, conspo
from sspo_teach.objectives.critic import ppo_gae, sppo
from sspo_teach.objectives.prefix_level import ctpo, ctpo_autodiff
from sspo_teach.objectives.selection import clip_cov, kl_cov
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
from sspo_teach.objectives.token_detached import aspo, ce_gppo, dppo_kl, dppo_tv, dro, gpg, gppo, maspo, topr
from sspo_teach.objectives.token_level import (
    bandpo_chi2,
    bandpo_kl,
    bandpo_tv,
    bapo,
    bapo_printed,
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
    "bandpo_chi2",
    "bandpo_kl",
    "bandpo_tv",
    "bapo",
    "bapo_printed",
    "bnpo",
    "ce_gppo",
    "cispo",
    "click",
    "clip_cov",
    "conspo",
    "cspo",
    "ctpo",
    "ctpo_autodiff",
    "dapo",
    "delta_clip",
    "dppo_kl",
    "dppo_tv",
    "dr_grpo",
    "dro",
    "fspo",
    "gepo",
    "gmpo",
    "gpg",
    "gppo",
    "grpo",
    "gspo",
    "gspo_token",
    "kl_cov",
    "luspo",
    "maspo",
    "ppo",
    "ppo_dual",
    "ppo_gae",
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
    "sppo",
    "sspo",
    "sspo_log_ratio",
    "sspo_sigmoid",
    "topr",
    "vespo",
]
