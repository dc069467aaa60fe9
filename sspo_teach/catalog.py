"""The one table of methods. Adding a method is one function and one row; README, tests, widgets, CLI read the row."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Generator, Tensor

from sspo_teach.checks import Audit, Report, audit, check_objective
from sspo_teach.controllers import ConformalBand, Controller, Fixed, MarginSchedule
from sspo_teach.critics import Critic, prompt_critic, token_critic
from sspo_teach.dialects import DIALECTS, Preset
from sspo_teach.objectives import (
    contrastive,
    critic,
    prefix_level,
    selection,
    sequence_level,
    token_detached,
    token_level,
    token_soft,
)
from sspo_teach.objectives.advantages import group_centered, group_leave_one_out, group_normalized, has_signal
from sspo_teach.objectives.critic import gae_advantage, success_advantage
from sspo_teach.objectives.normalize import Normalizer, constant
from sspo_teach.tensors import check_between, lengths, name_of, unknown
from sspo_teach.types import Rollout, Verified

INPUTS = ("logp", "logp_old", "advantages", "mask", "normalize")


@dataclass(frozen=True)
class Method:
    """An objective with all that stands around it.

    Attributes:
        objective: (logp, logp_old, advantages, mask, *, numbers, normalize) → scalar loss.
        verified: where the formula was read.
        advantage: rollout → (B, 1) or (B, T).
        needs: extra ``Rollout`` fields passed to the objective by keyword, or names that ``fields`` computes.
        separable: given the counts, the credit of a batch is the credits of its parts.
        controller: makes the state that lives between steps; a number of the objective that it takes by the same name
            reaches it too (ConSPO's margin).
        critic: (policy, *, lr, micro_batch, max_grad_norm) → the critic that fills ``rollout.values`` before advantages
            and learns after the updates, where the method has one.
        keep: rollout → (B,) bool, the responses of groups worth training on.
        reward: (rollout, max_new_tokens) → (B,) rewards, in place of the task's.
        fields: (rollout, advantages, logp, generator) → name → (B, …) tensor, what ``needs`` names and no ``Rollout``
            holds; computed on the whole minibatch before its update, from detached log-probabilities. A number of the
            objective that it takes by the same name reaches it too.
        normalizer: max_new_tokens → the normalizer to train with, where it is not the objective's default.
        presets: what ``name:preset`` changes: numbers, or, as a ``Preset``, also fields of the row.
        weight: numbers → the weight of a token on-policy, where it is not 1.
        breaks: law of ``check_objective`` → why the method breaks it by design.
    """

    objective: Callable[..., Tensor]
    verified: Verified
    advantage: Callable[[Rollout], Tensor] = group_normalized
    needs: tuple[str, ...] = ()
    separable: bool = True
    controller: Callable[..., Controller] = Fixed
    critic: Callable[..., Critic] | None = None
    keep: Callable[[Rollout], Tensor] | None = None
    reward: Callable[..., Tensor] | None = None
    fields: Callable[[Rollout, Tensor, Tensor, Generator], Mapping[str, Tensor]] | None = None
    normalizer: Callable[[int], Normalizer] | None = None
    presets: Mapping[str, Any] = field(default_factory=dict)
    weight: Callable[..., float] | None = None
    breaks: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        full = {name: each if isinstance(each, Preset) else Preset(each) for name, each in self.presets.items()}
        object.__setattr__(self, "presets", full)

    @property
    def numbers(self) -> dict[str, Any]:
        """The objective's own numbers and their present values."""
        parameters = inspect.signature(self.objective).parameters.values()
        return {p.name: p.default for p in parameters if p.name not in (*INPUTS, *self.needs)}

    def normalize(self, max_new_tokens: int) -> Normalizer:
        """The normalizer to train with, its counts still free (``with_counts`` fixes them)."""
        if self.normalizer is not None:
            return self.normalizer(max_new_tokens)
        return inspect.signature(self.objective).parameters["normalize"].default

    def check(self) -> Report:
        """The laws, at the present numbers and without those that the method breaks by design."""
        weight = 1.0 if self.weight is None else self.weight(**self.numbers)
        needs, separable = self.needs, self.separable
        return check_objective(self.objective, needs=needs, separable=separable, without=self.breaks, weight=weight)

    def audit(self, **numbers: float) -> Audit:
        """Credit against differences of the loss, at the present numbers or others."""
        numbers = {**self.numbers, **numbers}
        return audit(self.objective, needs=self.needs, limited="limit" not in self.breaks, **numbers)

    def with_numbers(self, **numbers: float) -> Method:
        """The same method at other numbers; an unknown name is refused."""
        for name in numbers:
            if name not in self.numbers:
                raise ValueError(unknown(f"number of {name_of(self.objective)}", name, self.numbers))
        if not numbers:
            return self

        def taking(what: Callable[..., Any]) -> Callable[..., Any]:
            """``what`` at those of the numbers that it takes too."""
            shared = {name: numbers[name] for name in inspect.signature(what).parameters if name in numbers}
            return partial(what, **shared) if shared else what

        objective, fields = partial(self.objective, **numbers), taking(self.fields) if self.fields else None
        return replace(self, objective=objective, fields=fields, controller=taking(self.controller))


def mixed_groups(rollout: Rollout) -> Tensor:
    """DAPO's dynamic sampling keeps 0 < #correct < G (arXiv 2503.14476, eq. 11); (B,) bool.

    Looks at correctness where the task reports it, so that a length penalty cannot make a solved group look mixed.
    """
    return has_signal(rollout.parts.get("correct", rollout.rewards), rollout.group_ids)


def overlong_reward(rollout: Rollout, max_new_tokens: int, *, buffer: float = 0.2) -> Tensor:
    """DAPO's soft overlong penalty (arXiv 2503.14476, eq. 13): a ramp from 0 to −1 over the last tokens, added to R.

    The ramp takes the last ``buffer`` share of ``max_new_tokens``: 4096 of 20480 in the paper, none below 5 tokens.
    """
    check_between(0, 1, "it is a share of max_new_tokens", buffer=buffer)
    zone = int(buffer * max_new_tokens)
    excess = lengths(rollout.mask).squeeze(1).to(rollout.rewards.dtype) - (max_new_tokens - zone)
    return rollout.rewards - (excess / max(zone, 1)).clamp(0, 1)


GATE_STUDY = {"tau_pos": 10.0, "tau_neg": 12.0}  # best for every gate of arXiv 2602.19345, in SAPO's objective
SAPO = {"tau_pos": 1.0, "tau_neg": 1.05}  # arXiv 2511.20347
SOFT = {"sapo": SAPO, "gate-study": GATE_STUDY}
CTPO_CODE = {"eps_low": 0.025, "eps_high": 0.05, "power": 0.5, "eps_dual": 0.05}  # its dual clip, which is not printed
BANDPO_CODE = {"delta": 0.05, "ratio_cap": 10.0}
BAPO_STEPS = {"low_min": 0.6, "low_max": 0.8, "low_step": 0.05, "high_min": 1.2, "high_max": 2.0, "high_step": 0.05}
BAPO = {  # the authors' configuration file and their example script, whose targets are the ratios 1 and ½
    "code": {"share": 0.5, **BAPO_STEPS},
    "script": {"share": 1 / 3, **BAPO_STEPS, "low_min": 0.8, "low_max": 0.95, "low_step": 0.1, "high_step": 0.1},
}
HALF_WIDTH = 2 * math.acosh(math.sqrt(2))  # of sech²(τd/2) at half its maximum, times τ: 1.762747
GAUSSIAN = {"width": {**SAPO, "kappa": math.log(2) / HALF_WIDTH**2}}
CAUCHY = {"width": {**SAPO, "kappa": 1 / HALF_WIDTH**2}}
CE_GPPO = {"eps_low": 0.2, "eps_high": 0.2, "beta_low": 0.75, "beta_high": 1.0, "ratio_cap": math.inf}

METHODS: dict[str, Method] = {
    "reinforce": Method(token_level.reinforce, Verified.CODE, advantage=group_centered),
    "rloo": Method(
        token_level.rloo,
        Verified.NOTES,
        advantage=group_leave_one_out,
        presets=DIALECTS["rloo"],
        breaks={"stale": "arXiv 2402.14740 has no ratio: the data are taken as on-policy, however old"},
    ),
    "ppo": Method(token_level.ppo, Verified.CODE),
    "grpo": Method(token_level.grpo, Verified.CODE, presets=DIALECTS["grpo"]),
    "dr_grpo": Method(
        token_level.dr_grpo,
        Verified.CODE,
        advantage=group_centered,
        normalizer=constant,
        presets=DIALECTS["dr_grpo"],
    ),
    "dapo": Method(
        token_level.dapo, Verified.CODE, keep=mixed_groups, reward=overlong_reward, presets=DIALECTS["dapo"]
    ),
    "cispo": Method(token_level.cispo, Verified.PAPER, presets=DIALECTS["cispo"]),
    "gspo": Method(sequence_level.gspo, Verified.PAPER, presets=DIALECTS["gspo"]),
    "gmpo": Method(sequence_level.gmpo, Verified.CODE, presets=DIALECTS["gmpo"]),
    "sapo": Method(token_level.sapo, Verified.CODE, presets={**SOFT, **DIALECTS["sapo"]}),
    "sspo": Method(sequence_level.sspo, Verified.REVIEW, presets=SOFT),
    "sspo_sigmoid": Method(sequence_level.sspo_sigmoid, Verified.RECONSTRUCTION, presets=SOFT),
    "sspo_log_ratio": Method(sequence_level.sspo_log_ratio, Verified.RECONSTRUCTION, presets=SOFT),
    "gspo_token": Method(sequence_level.gspo_token, Verified.PAPER),
    "luspo": Method(sequence_level.luspo, Verified.CODE, presets=DIALECTS["luspo"]),
    "fspo": Method(
        sequence_level.fspo,
        Verified.NOTES,
        breaks={
            "on-policy": "the gradient of a product is that of the whole response: L times a token's share of a mean"
        },
    ),
    "cspo": Method(sequence_level.cspo, Verified.RECONSTRUCTION, controller=ConformalBand),
    "vespo": Method(sequence_level.vespo, Verified.CODE, presets=DIALECTS["vespo"]),
    "gepo": Method(
        sequence_level.gepo,
        Verified.CODE,
        advantage=group_centered,
        needs=("group_ids",),
        separable=False,
        breaks={"on-policy": "arXiv 2508.17850: the weight is q/Ê[q], 1 only where all q of the group are equal"},
    ),
    "ctpo": Method(prefix_level.ctpo, Verified.CODE, presets={"code": CTPO_CODE}),
    "ctpo_autodiff": Method(
        prefix_level.ctpo_autodiff,
        Verified.RECONSTRUCTION,
        breaks={"on-policy": "an early token also collects the terms of all later prefixes"},
    ),
    "bandpo_kl": Method(token_level.bandpo_kl, Verified.CODE, presets={"code": BANDPO_CODE}),
    "bandpo_tv": Method(token_level.bandpo_tv, Verified.CODE, presets={"code": BANDPO_CODE}),
    "bandpo_chi2": Method(token_level.bandpo_chi2, Verified.CODE, presets={"code": BANDPO_CODE}),
    "bapo": Method(token_level.bapo, Verified.RECONSTRUCTION, separable=False, presets=BAPO),
    "bapo_printed": Method(token_level.bapo_printed, Verified.NOTES, separable=False, presets=BAPO),
    "ppo_dual": Method(
        token_level.ppo_dual,
        Verified.CODE,
        presets={"roll": {"eps_low": 0.2, "eps_high": 0.2, "ratio_cap": 1.4}, **DIALECTS["ppo_dual"]},
    ),
    "delta_clip": Method(token_level.delta_clip, Verified.CODE),
    "bnpo": Method(token_level.bnpo, Verified.CODE, presets=DIALECTS["bnpo"]),
    "ce_gppo": Method(
        token_detached.ce_gppo,
        Verified.CODE,
        presets={
            "1.5b": {**CE_GPPO, "beta_low": 0.5},
            "scripts": {**CE_GPPO, "ratio_cap": 10.0},
        },
    ),
    "gppo": Method(token_detached.gppo, Verified.CODE),
    "aspo": Method(token_detached.aspo, Verified.CODE),
    "dppo_tv": Method(
        token_detached.dppo_tv,
        Verified.PAPER,
        advantage=group_centered,
        presets={
            "scaling": {"delta_low": 0.2, "delta_high": 0.2, "ratio_cap": 5.0},
            **DIALECTS["dppo_tv"],
        },
    ),
    "dppo_kl": Method(
        token_detached.dppo_kl,
        Verified.PAPER,
        advantage=group_centered,
        presets={
            "scaling": {"delta_low": 0.05, "delta_high": 0.05, "ratio_cap": 5.0},
            **DIALECTS["dppo_kl"],
        },
    ),
    "topr": Method(token_detached.topr, Verified.CODE, advantage=group_centered),
    "gpg": Method(
        token_detached.gpg,
        Verified.CODE,
        advantage=group_centered,
        presets=DIALECTS["gpg"],
        breaks={"stale": "arXiv 2504.02546 has no ratio: the data are taken as on-policy, however old"},
    ),
    "dro": Method(
        token_detached.dro,
        Verified.CODE,
        presets=DIALECTS["dro"],
        breaks={"zero advantage": "its pull to the old policy does not depend on the advantage"},
    ),
    "spo_simple": Method(token_soft.spo_simple, Verified.NOTES),
    "pspo": Method(token_soft.pspo, Verified.CODE, weight=lambda alpha: 1 - alpha),
    "scopic": Method(token_soft.scopic, Verified.CODE, presets={"atari": {"tau": 2.0}}),
    "sapo_erf": Method(token_soft.sapo_erf, Verified.PAPER, presets=SOFT),
    "sapo_arctan": Method(token_soft.sapo_arctan, Verified.PAPER, presets=SOFT),
    "sapo_softsign": Method(token_soft.sapo_softsign, Verified.PAPER, presets=SOFT),
    "sapo_directional": Method(token_soft.sapo_directional, Verified.RECONSTRUCTION, presets=SOFT),
    "sapo_gaussian": Method(token_soft.sapo_gaussian, Verified.RECONSTRUCTION, presets=GAUSSIAN),
    "sapo_cauchy": Method(token_soft.sapo_cauchy, Verified.RECONSTRUCTION, presets=CAUCHY),
    "maspo": Method(token_detached.maspo, Verified.NOTES),
    "clip_cov": Method(
        selection.clip_cov,
        Verified.CODE,
        needs=("selected",),
        separable=False,
        fields=selection.banded_tokens,
        presets=DIALECTS["clip_cov"],
        breaks={
            "on-policy": "selected tokens are silent at any ratio (arXiv 2505.22617)",
            "way back": "selected tokens are silent at any ratio (arXiv 2505.22617)",
        },
    ),
    "kl_cov": Method(
        selection.kl_cov,
        Verified.CODE,
        needs=("selected",),
        separable=False,
        fields=selection.topmost_tokens,
        presets=DIALECTS["kl_cov"],
        breaks={"zero advantage": "its pull to the old policy does not depend on the advantage"},
    ),
    "ppo_gae": Method(critic.ppo_gae, Verified.CODE, advantage=gae_advantage, critic=token_critic),
    "sppo": Method(critic.sppo, Verified.CODE, advantage=success_advantage, critic=prompt_critic),
    "click": Method(
        contrastive.click,
        Verified.CODE,
        advantage=group_centered,
        needs=("group_ids",),
        separable=False,
        presets={"detox": {"margin": 20.0}, "sentiment": {"margin": 15.0}},
        breaks={
            "stale": "a loss on likelihoods: it knows no old policy",
            "on-policy": "a hinge on pairs: what a response weighs depends on the others of its group",
        },
    ),
    "conspo": Method(
        contrastive.conspo,
        Verified.RECONSTRUCTION,
        advantage=group_centered,
        needs=("group_ids",),
        separable=False,
        controller=MarginSchedule,
        breaks={
            "stale": "a loss on likelihoods: it knows no old policy",
            "on-policy": "a softmax over a group: what a response weighs depends on the others",
        },
    ),
}

KNOWN: dict[str, str] = {
    "lampo": "arXiv 2605.21235: pairwise advantages; the normaliser could not be verified and the listing is withdrawn",
    "delta": "arXiv 2605.21467: token coefficients from gradient centroids; no formula could be read",
    "nfpo": "arXiv 2605.20865: PPO times the ratio of the next tokens; no formula could be read",
    "papo": "arXiv 2605.11775: entropy polarity; no formula could be read (its fact: derived.entropy_slope)",
    "nsr": "arXiv 2605.22703: noise that rescues clipped tokens; its range could not be read (derived.rescue)",
    "troll": "arXiv 2510.03817: a projection in place of the clip; only its abstract was read (derived.projection)",
    "stapo": "arXiv 2602.15620: drops rare tokens of right answers; over what it then divides could not be verified",
    "kpop": "arXiv 2606.15079: a mask by a KL quantity between trainer and sampler; no formula could be read",
    "fipo": "arXiv 2603.19835: advantages times a clipped future KL; read only in a library's documentation",
    "trm": "arXiv 2512.23075: drops a response by its largest token KL; needs the sampler's whole distributions",
    "spo": "arXiv 2509.13232: one response per prompt, a tracked rate (critics.SuccessTracker); here groups are drawn",
}
"""Methods that have no row, and why."""


def method(name: str) -> Method:
    """The row of ``name``, or of ``name:preset`` as the preset changes it; a typo is answered by the nearest name."""
    base, _, preset = name.partition(":")
    if base in KNOWN and base not in METHODS:
        raise ValueError(f"method {base!r} is known but not implemented: {KNOWN[base]}")
    if base not in METHODS:
        raise ValueError(unknown("method", base, METHODS))
    row = METHODS[base]
    if not preset and ":" not in name:
        return row
    if preset not in row.presets:
        raise ValueError(unknown(f"preset of {base}", preset, row.presets))
    chosen = row.presets[preset]
    if chosen.besides:
        raise ValueError(f"{name} is told, not trained, here: {preset} {chosen.besides}")
    return replace(row, **chosen.row).with_numbers(**chosen.numbers)


def table() -> str:
    """All methods as a Markdown table, made of the rows and of the docstrings' entries."""
    lines = [
        "| method | in one line | parts | weight of ∇log π | numbers | formula |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in METHODS.items():
        entry = entries(row.objective)
        numbers = ", ".join(f"{key}={value:g}" for key, value in row.numbers.items()) or "–"
        parts = entry["Parts"].split(". ")[0].rstrip(".")
        cells = (f"`{name}`", entry["summary"], parts, entry["Weight"].rstrip("."), numbers, row.verified.value)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def known() -> str:
    """Methods without a row, and why, as a Markdown list."""
    return "\n".join(f"- `{name}`, {reason}." for name, reason in KNOWN.items())


def dialects() -> str:
    """What TRL and verl train under these names by default, as a Markdown table; only what differs is written."""
    lines = [
        "| method | library, asked for | numbers | normalizer | advantages | besides | preset |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in METHODS.items():
        for preset, chosen in row.presets.items():
            if chosen.asked:
                shown = (f"`{name}:{preset}`" if not chosen.besides else "–",)
                cells = (f"`{name}`", f"{preset}: `{chosen.asked}`", *_differences(row, chosen))
                lines.append("| " + " | ".join((*cells, *shown)) + " |")
    return "\n".join(lines)


def _differences(row: Method, chosen: Preset) -> tuple[str, str, str, str]:
    """How numbers, normalizer, advantages and the rest of a preset differ from its row's."""
    there = replace(row, **chosen.row).with_numbers(**chosen.numbers)
    moved = [f"{key}={value:g}" for key, value in there.numbers.items() if row.numbers.get(key) != value]
    normalizers = [name_of(each.normalize(1)) for each in (row, there)]
    fixed = there.advantage.keywords if isinstance(there.advantage, partial) else {}
    deviation = "" if not fixed else f"{'sample' if fixed['ddof'] else 'population'} std, ε = {fixed['eps']:g}"
    without = [f"no `{name}`" for name, value in chosen.row.items() if value is None]
    if "objective" in chosen.row:
        without.insert(0, f"the rule of `{name_of(there.objective)}`")
    normalizer = "" if normalizers[0] == normalizers[1] else normalizers[1]
    cells = ", ".join(moved), normalizer, deviation, chosen.besides or ", ".join(without)
    return tuple(cell or "–" for cell in cells)  # type: ignore[return-value]


def entries(objective: Callable[..., Tensor]) -> dict[str, str]:
    """The six entries of an objective's docstring: summary, formula, Parts, Weight, Differs, Paper."""
    summary, formula, parts = (inspect.getdoc(objective) or "").split("\n\n", 2)
    named = re.split(r"^(Parts|Weight|Differs|Paper): ", parts, flags=re.MULTILINE)[1:]
    found = {key: " ".join(text.split()) for key, text in zip(named[::2], named[1::2], strict=True)}
    return {"summary": " ".join(summary.split()), "formula": formula, **found}
