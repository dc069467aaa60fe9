"""Masks, log-ratios and the checks at the door: all that every part shares.

Shapes: B responses of T tokens; ``logp``, ``logp_old`` and ``mask`` are (B, T), ``advantages`` (B, 1) or (B, T).
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from numbers import Real
from typing import ParamSpec, cast

import torch
from torch import Tensor

P = ParamSpec("P")

LIMIT = 20.0
"""Beyond this |log ρ| is extreme staleness: e²⁰ is 4.9e8, while e⁸⁹ overflows float32 and turns gradients into NaN."""


def log_ratio(logp: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
    """log ρ = log π_θ − log π_old, 0 on padding, limited to ±20 with zero gradient outside; (B, T), at least float32.

    The only place that masks inputs; by ``where``, since 0 · NaN is NaN. No gradient flows into ``logp_old``.
    """
    check_shapes(logp=logp, logp_old=logp_old, mask=mask)
    return limit(torch.where(mask.bool(), promote(logp) - promote(logp_old.detach()), 0.0))


def promote(x: Tensor) -> Tensor:
    """``x`` in float32 at least; float64 stays."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def limit(log_x: Tensor) -> Tensor:
    """``log_x`` held within ±20; the gradient is 0 where it was not."""
    return log_x.clamp(-LIMIT, LIMIT)


def stale(logp: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
    """The share of response tokens whose log-ratio ``log_ratio`` had to limit; a scalar, 0 where there is no token."""
    beyond = (promote(logp.detach()) - promote(logp_old.detach())).abs() > LIMIT
    return masked_sum(beyond.float(), mask).sum() / lengths(mask).sum().clamp(min=1)


def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """Σₜ xₜ over the response; (B, 1)."""
    return torch.where(mask.bool(), x, 0.0).sum(dim=1, keepdim=True)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """The mean of xₜ over the response, 0 for an empty one; (B, 1)."""
    return masked_sum(x, mask) / lengths(mask).clamp(min=1)


def lengths(mask: Tensor) -> Tensor:
    """L, the number of response tokens; (B, 1) int64."""
    return mask.bool().sum(dim=1, keepdim=True)


def with_value(value: Tensor, gradient: Tensor) -> Tensor:
    """A tensor that is ``value`` going forward and ``gradient`` going backward."""
    return value.detach() + (gradient - gradient.detach())


def checked(objective: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Let ``objective`` read like its formula: its tensors are checked here, and what must not learn is detached.

    Raises one ``ValueError`` that names the argument, its value and the fix.
    """
    parameters = inspect.signature(objective).parameters
    names = [name for name in parameters if name not in ("logp", "logp_old", "advantages", "mask")]

    @functools.wraps(objective)
    def checking(logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, **numbers: object) -> Tensor:
        check_shapes(logp=logp, logp_old=logp_old, mask=mask, advantages=advantages)
        check_values(logp=logp, logp_old=logp_old, mask=mask, advantages=advantages)
        for name in numbers:
            if name not in names:
                raise ValueError(unknown(f"argument of {objective.__name__}", name, names))
        call = cast(Callable[..., Tensor], objective)
        return call(logp, logp_old.detach(), promote(advantages.detach()), mask.bool(), **numbers)

    return cast(Callable[P, Tensor], checking)


def check_shapes(*, logp: Tensor, logp_old: Tensor, mask: Tensor, advantages: Tensor | None = None) -> None:
    """Refuse wrong shapes and types; costs no look at the data."""
    given = {"logp": logp, "logp_old": logp_old, "mask": mask}
    if advantages is not None:
        given["advantages"] = advantages
    for name, x in given.items():
        if not isinstance(x, Tensor):
            raise ValueError(f"{name} must be a torch tensor, got {type(x).__name__}: use torch.as_tensor({name})")
        if name != "mask" and not x.is_floating_point():
            raise ValueError(f"{name} must be floating point, got {x.dtype}: use {name}.float()")
    if logp.ndim != 2:
        raise ValueError(
            f"logp must have shape (B, T), responses × tokens, got {tuple(logp.shape)}: "
            f"one response alone is logp.unsqueeze(0)"
        )
    for name in ("logp_old", "mask"):
        if given[name].shape != logp.shape:
            raise ValueError(
                f"{name} has shape {tuple(given[name].shape)} but logp has {tuple(logp.shape)}: "
                f"both must be (B, T) over the same response tokens"
            )
    if advantages is not None and advantages.shape not in (logp.shape, (logp.shape[0], 1)):
        one_each = advantages.shape == (logp.shape[0],)
        fix = "use advantages.unsqueeze(1)" if one_each else "give one number per response, or one per token"
        raise ValueError(
            f"advantages has shape {tuple(advantages.shape)} but must be (B, 1) = ({logp.shape[0]}, 1) "
            f"or (B, T) = {tuple(logp.shape)}: {fix}"
        )


def check_values(*, logp: Tensor, logp_old: Tensor, mask: Tensor, advantages: Tensor) -> None:
    """Refuse a mask that is not 0/1 and numbers that are not finite inside it; padding may hold anything."""
    if mask.dtype != torch.bool and not ((mask == 0) | (mask == 1)).all():
        found = mask[(mask != 0) & (mask != 1)][0].item()
        raise ValueError(
            f"mask must hold only 0 and 1, found {found}: use 1 up to and including the first EOS, 0 after"
        )
    real = mask.bool()
    for name, x in (("logp", logp), ("logp_old", logp_old), ("advantages", advantages)):
        if x.detach().sum().isfinite():  # then every term is: forty times cheaper than to look at each
            continue
        bad = real & ~x.isfinite()
        if bad.any():
            row, token = bad.nonzero()[0].tolist()
            value = x[row, token if x.shape == mask.shape else 0].item()
            raise ValueError(
                f"{name} is {value} at row {row}, token {token}, inside the mask: "
                f"mask that token out, or find where the {value} comes from"
            )


def check_positive(**numbers: object) -> None:
    """Refuse a number that is not positive and finite, by its name."""
    for name, value in numbers.items():
        if not (isinstance(value, Real) and 0 < float(value) < float("inf")):
            raise ValueError(f"{name} must be a positive finite number, got {value!r}: try {name}=1.0")


def check_between(low: float, high: float, why: str, /, **numbers: object) -> None:
    """Refuse a number outside [low, high], by its name; ``why`` says what the number means. Tensors pass."""
    for name, value in numbers.items():
        if isinstance(value, Tensor):
            continue
        if not (isinstance(value, Real) and low <= float(value) <= high):
            raise ValueError(f"{name} must lie in [{low:g}, {high:g}], got {value!r}: {why}")


def name_of(function: Callable[..., object]) -> str:
    """The name a function was written under, also when some of its numbers are fixed by ``partial``."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The words that refuse an unknown name and suggest the nearest known one."""
    plain = {known_name.lower().replace("-", "_"): known_name for known_name in known}
    near = difflib.get_close_matches(name.lower().replace("-", "_"), plain, n=1, cutoff=0.5)
    hint = f"did you mean {plain[near[0]]!r}? " if near else ""
    return f"unknown {kind}: {name!r}; {hint}known: {', '.join(plain.values()) or 'none'}"
