"""Gates: what a ratio may still say once it has drifted from 1. See ``hard``, ``soft``, ``weight`` and ``bounds``."""

from sspo_teach.gates import bounds
from sspo_teach.gates.hard import (
    clip,
    delta_clip,
    dual_clip,
    extending,
    identity,
    log_clip,
    log_dual_clip,
    log_identity,
)
from sspo_teach.gates.soft import (
    arctan,
    cauchy,
    directional_sigmoid,
    erf,
    gaussian,
    log_arctan,
    log_arctan_log_ratio,
    log_sigmoid,
    sigmoid,
    smoothed,
    softsign,
)
from sspo_teach.gates.weight import kept_clip, score

__all__ = [
    "arctan",
    "bounds",
    "cauchy",
    "clip",
    "delta_clip",
    "directional_sigmoid",
    "dual_clip",
    "erf",
    "extending",
    "gaussian",
    "identity",
    "kept_clip",
    "log_arctan",
    "log_arctan_log_ratio",
    "log_clip",
    "log_dual_clip",
    "log_identity",
    "log_sigmoid",
    "score",
    "sigmoid",
    "smoothed",
    "softsign",
]
