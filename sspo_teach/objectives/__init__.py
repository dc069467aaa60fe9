"""Objectives and their parts: pure functions (logp, logp_old, advantages, mask, *, numbers, normalize) → loss.

The grammar has three words: a **unit** (``units``) pools log-ratios, a **gate** (``sspo_teach.gates``) bends them, a
<<<<<<< HEAD
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
=======
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
>>>>>>> 45bc606 (Token-level relatives: dual and delta clips, kept gradients, smooth gates with matched kernels, trust regions in probabilities, selection by covariance)
    reinforce,
    rloo,
    sapo,
)
<<<<<<< HEAD

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
=======
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
>>>>>>> 45bc606 (Token-level relatives: dual and delta clips, kept gradients, smooth gates with matched kernels, trust regions in probabilities, selection by covariance)
    "dapo",
    "delta_clip",
    "dppo_kl",
    "dppo_tv",
    "dr_grpo",
<<<<<<< HEAD
    "fspo",
    "gepo",
=======
    "dro",
>>>>>>> 45bc606 (Token-level relatives: dual and delta clips, kept gradients, smooth gates with matched kernels, trust regions in probabilities, selection by covariance)
    "gmpo",
    "gpg",
    "gppo",
    "grpo",
    "gspo",
<<<<<<< HEAD
    "gspo_token",
    "luspo",
=======
    "kl_cov",
    "maspo",
>>>>>>> 45bc606 (Token-level relatives: dual and delta clips, kept gradients, smooth gates with matched kernels, trust regions in probabilities, selection by covariance)
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
<<<<<<< HEAD
    "vespo",
=======
    "topr",
>>>>>>> 45bc606 (Token-level relatives: dual and delta clips, kept gradients, smooth gates with matched kernels, trust regions in probabilities, selection by covariance)
]
