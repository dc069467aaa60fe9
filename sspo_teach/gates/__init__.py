"""Gates: what a ratio may still say once it has drifted from 1. See ``hard``, ``soft``, ``weight`` and ``bounds``."""

from sspo_teach.gates import bounds
from sspo_teach.gates.hard import clip, dual_clip, identity, log_clip, log_dual_clip, log_identity
from sspo_teach.gates.soft import log_arctan, log_arctan_log_ratio, log_sigmoid, sigmoid
from sspo_teach.gates.weight import score

__all__ = [
    "bounds",
    "clip",
    "dual_clip",
    "identity",
    "log_arctan",
    "log_arctan_log_ratio",
    "log_clip",
    "log_dual_clip",
    "log_identity",
    "log_sigmoid",
    "score",
    "sigmoid",
]
