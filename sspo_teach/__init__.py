"""Soft Sequence Policy Optimization and its family, in a few readable lines each.

>>> import sspo_teach
>>> sspo_teach.METHODS["sspo"].objective(logp, logp_old, advantages, mask, tau_pos=1.0)  # scalar loss
>>> sspo_teach.credit(sspo_teach.METHODS["sspo"].objective, logp, logp_old, advantages, mask)  # −∂L/∂logp, (B, T)
"""

from sspo_teach.catalog import METHODS, Method, method, table
from sspo_teach.checks import audit, check_gate, check_objective, check_unit
from sspo_teach.credit import credit
from sspo_teach.types import Rollout, Verified

__all__ = [
    "METHODS",
    "Method",
    "Rollout",
    "Verified",
    "audit",
    "check_gate",
    "check_objective",
    "check_unit",
    "credit",
    "method",
    "table",
]
