"""What a method does not keep by design, each with its reason, and how tests call a method that needs extra fields."""

from functools import partial

import torch

from sspo_teach import METHODS, check_objective

LAWS: dict[str, dict[str, str]] = {
    "rloo": {"stale": "arXiv 2402.14740 has no ratio: the data are taken as on-policy, however old"},
    "fspo": {"on-policy": "the gradient of a product is that of the whole response: L times a token's share of a mean"},
    "gepo": {"on-policy": "arXiv 2508.17850: the weight is q/Ê[q], 1 only where all q of the group are equal"},
    "ctpo_autodiff": {"on-policy": "an early token also collects the terms of all later prefixes"},
    "gpg": {"stale": "arXiv 2504.02546 has no ratio: the data are taken as on-policy, however old"},
    "dro": {"zero advantage": "its pull to the old policy does not depend on the advantage"},
    "clip_cov": {
        "on-policy": "selected tokens are silent at any ratio (arXiv 2505.22617)",
        "way back": "selected tokens are silent at any ratio (arXiv 2505.22617)",
    },
    "kl_cov": {"zero advantage": "its pull to the old policy does not depend on the advantage"},
    "click": {
        "stale": "a loss on likelihoods: it knows no old policy",
        "on-policy": "a hinge on pairs: what a response weighs depends on the others of its group",
    },
    "conspo": {
        "stale": "a loss on likelihoods: it knows no old policy",
        "on-policy": "a softmax over a group: what a response weighs depends on the others",
    },
}
"""method → law of ``check_objective`` → why the method breaks it."""

WEIGHT: dict[str, float] = {"pspo": 0.9}
"""method → its weight on-policy, where that is not 1."""

DETACHED = {
    "reinforce": "importance weight",
    "cispo": "importance weight",
    "vespo": "weight φ(W)",
    "ctpo": "the prefix but for its last token",
    "ce_gppo": "value outside the band",
    "gppo": "value outside the band",
    "aspo": "importance weight",
    "dppo_tv": "importance weight",
    "dppo_kl": "importance weight",
    "topr": "importance weight",
    "maspo": "gate",
}
"""Stop-gradient rules: their value is no surrogate, so differences of it say nothing; the loops judge them."""

ONE_ADVANTAGE = {"gmpo", "sspo", "sspo_sigmoid", "sspo_log_ratio", "click", "conspo"}
"""Their papers know no advantage per token."""


def fields(name, mask, batch=None):
    """The extra fields that ``name`` needs, from ``batch`` or made up for a mask of any shape."""
    rows, width = mask.shape
    made = {
        "group_ids": torch.zeros(rows, dtype=torch.int64),
        "rewards": torch.linspace(-1, 1, rows),
        "truncated": torch.zeros(rows, dtype=torch.bool),
        "logp_ref": torch.zeros(rows, width),
        "values": torch.zeros(rows, width),
        "selected": torch.zeros(rows, width, dtype=torch.bool),
    }
    known = made if batch is None else batch.fields
    return {need: known[need] for need in METHODS[name].needs}


def ready(name, mask, batch=None, **numbers):
    """The objective of ``name`` with its extra fields filled in."""
    return partial(METHODS[name].objective, **fields(name, mask, batch), **numbers)


def check(name, objective=None):
    """``check_objective`` with the exceptions of ``name``."""
    row = METHODS[name]
    return check_objective(
        objective or row.objective,
        needs=row.needs,
        separable=row.separable,
        without=LAWS.get(name, {}),
        weight=WEIGHT.get(name, 1.0),
    )
