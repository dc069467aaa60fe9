"""The laws that every gate, unit and objective keeps, as functions to run on your own.

>>> print(check_objective(my_objective))
check_objective(my_objective): 1 of 19 laws is broken
  padding: credit with nan on padding, row 0, token 3: expected 0, found nan (padding may hold NaN, inf or 1e30: …)

A report is true when every law holds. Batches are off-policy where the law does not say otherwise, since on-policy most
mistakes are invisible, and differences are judged relative to the largest expected entry. Credit is −∂L/∂logp.

``audit`` asks another question, of every token by itself: is its credit the slope of the loss?
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sspo_teach.credit import credit
from sspo_teach.frozen import freeze
from sspo_teach.objectives.normalize import Normalizer, response_mean, sequence_sum, token_mean, with_counts
from sspo_teach.tensors import LIMIT, lengths, name_of, unknown

RELATIVE = 1e-9
"""Of the largest expected entry, in float64: far above rounding, far below any mistake."""


@dataclass(frozen=True)
class Failure:
    """A law that does not hold, where it was seen first, and what it usually means."""

    law: str
    what: str
    row: int | None
    token: int | None
    expected: str
    found: str
    hint: str

    def __str__(self) -> str:
        place = self.what if self.row is None else f"{self.what}, row {self.row}, token {self.token}"
        return f"{self.law}: {place}: expected {self.expected}, found {self.found} ({self.hint})"


@dataclass(frozen=True)
class Report:
    """What a check found: true when every law holds; printed, it says which do not and where."""

    subject: str
    laws: tuple[str, ...]
    failures: tuple[Failure, ...]

    def __bool__(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        broken = len(self.failures)
        if not broken:
            return f"{self.subject}: all {len(self.laws)} laws hold"
        verdict = f"{broken} of {len(self.laws)} laws {'is' if broken == 1 else 'are'} broken"
        return "\n  ".join([f"{self.subject}: {verdict}", *map(str, self.failures)])

    __repr__ = __str__

    @property
    def broken(self) -> tuple[str, ...]:
        """The names of the laws that do not hold."""
        return tuple(failure.law for failure in self.failures)


@dataclass(frozen=True)
class Batch:
    """Six responses of one to seven tokens in three groups, off-policy, with all fields an objective may need."""

    logp: Tensor
    logp_old: Tensor
    advantages: Tensor
    mask: Tensor
    fields: Mapping[str, Tensor]

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.logp, self.logp_old, self.advantages, self.mask

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The batch with every tensor changed in the same way."""
        logp, logp_old, advantages, mask = map(change, self.tensors)
        return Batch(logp, logp_old, advantages, mask, {name: change(x) for name, x in self.fields.items()})


class Seen(NamedTuple):
    """What a law saw where it does not hold: which quantity, where (None: everywhere), and how it should be."""

    what: str
    row: int | None
    token: int | None
    expected: str
    found: str


Law = Callable[[Any], Iterator[Seen]]


def sample(drift: float, seed: int = 0) -> Batch:
    """A batch in float64 whose log-ratios have standard deviation ``drift``."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    size = torch.tensor([[3], [1], [7], [5], [2], [4]])
    logp_old = -draw(6, 7).abs() - 0.1
    fields = {
        "group_ids": torch.tensor([0, 1, 0, 2, 1, 2]),
        "rewards": draw(6),
        "truncated": size.squeeze(1) == 7,
        "logp_ref": logp_old + 0.1 * draw(6, 7),
        "values": draw(6, 7),
        "selected": torch.rand(6, 7, generator=torch.Generator().manual_seed(seed + 1)) < 0.3,
    }
    advantages = torch.tensor([[1.0], [-0.7], [-1.0], [0.6], [0.7], [-1.3]], dtype=torch.float64)
    return Batch(logp_old + drift * draw(6, 7), logp_old, advantages, torch.arange(7) < size, fields)


DRIFTS = (0.4, 1e-4)
"""Two scales: at 0.4 wide bands shut, at 1e-4 GSPO's band is still open."""


def check_objective(
    objective: Callable[..., Tensor],
    *,
    needs: tuple[str, ...] = (),
    separable: bool = True,
    without: Collection[str] = (),
    weight: float = 1.0,
    **numbers: Any,
) -> Report:
    """Run the laws on an objective (logp, logp_old, advantages, mask, *, normalize, **numbers) → scalar loss.

    ``needs`` and ``separable`` are those of its ``Method``; ``without`` names laws that it breaks by design, such as
    "stale" for an objective without a ratio; ``weight`` is the weight on-policy (1, but 1 − α for PSPO).

    Raises:
        ValueError: ``without`` names a law that does not exist.
    """
    subject = _Subject(objective, needs, numbers, weight)
    laws = dict(OBJECTIVE_LAWS)
    if not separable or "normalize" not in subject.parameters:
        del laws["separable"]
    if "group_ids" not in needs:
        del laws["group names"]
    for law in without:
        if law not in OBJECTIVE_LAWS:
            raise ValueError(unknown("law", law, OBJECTIVE_LAWS))
        laws.pop(law, None)
    return _run(f"check_objective({name_of(objective)})", laws, subject)


def check_gate(gate: Callable[..., Tensor], *, weight: float = 1.0, **numbers: Any) -> Report:
    """Run the laws on a gate (log_x, advantages, **numbers) → f, or log f where its name starts with ``log_``."""
    return _run(f"check_gate({name_of(gate)})", GATE_LAWS, _Gate(gate, numbers, weight))


def check_unit(unit: Callable[..., Tensor], *, exact: bool = True) -> Report:
    """Run the laws on a unit (log_r, mask) → (B, T). ``exact=False`` for prefixes, whose gradient differs by design."""
    laws = dict(UNIT_LAWS)
    if not exact:
        del laws["full gradient"]
    return _run(f"check_unit({name_of(unit)})", laws, unit)


def _run(subject: str, laws: Mapping[str, tuple[Law, str]], tested: Any) -> Report:
    failures = []
    for name, (law, hint) in laws.items():
        try:
            seen = next(law(tested), None)
        except Exception as error:  # a law that makes the subject raise is broken too, and the report should say how
            seen = Seen("its call", None, None, "a result", f"{type(error).__name__}: {error}")
        if seen is not None:
            failures.append(Failure(name, *seen, hint))
    return Report(subject, tuple(laws), tuple(failures))


def _differ(what: str, expected: Tensor, found: Tensor, relative: float = RELATIVE) -> Iterator[Seen]:
    """The entries where ``found`` is not ``expected``."""
    if expected.shape != found.shape:
        yield Seen(what, None, None, f"shape {tuple(expected.shape)}", f"shape {tuple(found.shape)}")
        return
    allowed = relative * expected.abs().max().clamp(min=1e-30) if expected.numel() else 0.0
    wrong = ~((expected - found).abs() <= allowed)  # so that NaN is wrong
    for index in wrong.nonzero().tolist():
        row, token = index if len(index) == 2 else (None, None)
        yield Seen(what, row, token, f"{expected[tuple(index)].item():.6g}", f"{found[tuple(index)].item():.6g}")


def _same(what: str, subject: _Subject, one: Batch, other: Batch) -> Iterator[Seen]:
    """Loss and credit of two batches that should be one."""
    yield from _differ(f"credit {what}", subject.credit(one), subject.credit(other))
    yield from _differ(f"loss {what}", subject.loss(one), subject.loss(other))


# ---- objectives ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Subject:
    objective: Callable[..., Tensor]
    needs: tuple[str, ...]
    numbers: Mapping[str, Any]
    weight: float

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.objective).parameters

    def extra(self, batch: Batch) -> dict[str, Any]:
        return {**{name: batch.fields[name] for name in self.needs}, **self.numbers}

    def loss(self, batch: Batch) -> Tensor:
        return self.objective(*batch.tensors, **self.extra(batch))

    def credit(self, batch: Batch, **more: Any) -> Tensor:
        numbers = {**self.extra(batch), **more}
        return credit(self.objective, batch.logp, batch.logp_old, batch.advantages, batch.mask, **numbers)


def _padding(subject: _Subject) -> Iterator[Seen]:
    for drift in DRIFTS:
        clean = sample(drift)
        expected, loss = subject.credit(clean), subject.loss(clean)
        for fill in (float("nan"), float("inf"), -float("inf"), 1e30):

            def spoil(x: Tensor, fill: float = fill, mask: Tensor = clean.mask) -> Tensor:
                full = x.expand_as(mask) if x.ndim == 2 else x
                if full.shape != mask.shape or x is mask:
                    return x
                return torch.where(mask, full, fill) if x.is_floating_point() else full ^ ~mask

            spoilt = clean.map(spoil)
            yield from _differ(f"credit with {fill:g} on padding", expected, subject.credit(spoilt))
            yield from _differ(f"loss with {fill:g} on padding", loss, subject.loss(spoilt))


def _extra_columns(subject: _Subject) -> Iterator[Seen]:
    for drift in DRIFTS:
        for width in (7, 1):  # with a single token, (B, 1) and (B, T) are one shape
            batch = sample(drift)
            batch = batch.map(lambda x: x[:, :width] if x.ndim == 2 else x)  # noqa: B023 - used at once

            def widen(x: Tensor, width: int = width) -> Tensor:
                return torch.nn.functional.pad(x, (0, 3)) if x.shape == (6, width) else x

            wide = replace(batch.map(widen), advantages=batch.advantages)
            yield from _differ("credit with three more columns", widen(subject.credit(batch)), subject.credit(wide))
            yield from _differ("loss with three more columns", subject.loss(batch), subject.loss(wide))


def _gaps(subject: _Subject) -> Iterator[Seen]:
    columns = torch.tensor([0, 2, 3, 5, 6, 8, 9])
    for drift in DRIFTS:
        batch = sample(drift)

        def spread(x: Tensor) -> Tensor:
            return x.new_zeros(6, 10).index_copy(1, columns, x) if x.shape == (6, 7) else x

        apart = batch.map(spread)
        yield from _differ("credit with gaps", spread(subject.credit(batch)), subject.credit(apart))
        yield from _differ("loss with gaps", subject.loss(batch), subject.loss(apart))


def _empty_row(subject: _Subject) -> Iterator[Seen]:
    for drift in DRIFTS:
        batch = sample(drift)
        more = batch.map(lambda x: torch.cat([x, x[:1]]))
        more = replace(more, mask=torch.cat([batch.mask, torch.zeros(1, 7, dtype=torch.bool)]))
        expected = torch.cat([subject.credit(batch), torch.zeros(1, 7, dtype=torch.float64)])
        yield from _differ("credit beside an empty response", expected, subject.credit(more))
        yield from _differ("loss beside an empty response", subject.loss(batch), subject.loss(more))


def _nothing(subject: _Subject) -> Iterator[Seen]:
    batch = sample(DRIFTS[0])
    batch = replace(batch, mask=torch.zeros_like(batch.mask))
    yield from _differ("credit of empty responses", torch.zeros_like(batch.logp), subject.credit(batch))
    yield from _differ("loss of empty responses", torch.zeros((), dtype=torch.float64), subject.loss(batch))


def _row_order(subject: _Subject) -> Iterator[Seen]:
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    for drift in DRIFTS:
        batch = sample(drift)
        shuffled = subject.credit(batch.map(lambda x: x[order]))
        yield from _differ(f"credit of rows {order.tolist()}", subject.credit(batch)[order], shuffled)


def _group_names(subject: _Subject) -> Iterator[Seen]:
    for drift in DRIFTS:
        batch = sample(drift)
        names = torch.tensor([7, 2, 40])[batch.fields["group_ids"]]
        renamed = replace(batch, fields={**batch.fields, "group_ids": names})
        yield from _same("with groups 0, 1, 2 named 7, 2, 40", subject, batch, renamed)


def _on_policy(subject: _Subject) -> Iterator[Seen]:
    batch = replace(sample(0.0), logp=sample(0.0).logp_old)
    parameter = subject.parameters.get("normalize")
    known: list[Normalizer] = [response_mean, token_mean, sequence_sum]
    normalizers = [subject.numbers.get("normalize", parameter.default)] if parameter else known
    found = subject.credit(batch)

    def policy_gradient(logp: Tensor, _: Tensor, advantages: Tensor, mask: Tensor, normalize: Any) -> Tensor:
        return -normalize(logp * advantages * subject.weight, mask)

    expected = [
        replace(subject, objective=policy_gradient, needs=(), numbers={}).credit(batch, normalize=n)
        for n in normalizers
    ]
    if all(next(_differ("", one, found), None) for one in expected):
        yield from _differ("credit at ratio 1", expected[0], found)


def _way_back(subject: _Subject) -> Iterator[Seen]:
    batch = sample(0.0)
    batch = replace(batch, logp=batch.logp_old - 0.3 * batch.advantages.sign())
    found = subject.credit(batch)
    wrong = batch.mask & ~(found * batch.advantages > 0)
    for row, token in wrong.nonzero().tolist():
        A = batch.advantages[row].item()
        what = f"credit at A = {A:g}, ratio {math.exp(-math.copysign(0.3, A)):.2f}"
        yield Seen(what, row, token, "one of the sign of A", f"{found[row, token].item():.6g}")


def _stale(subject: _Subject) -> Iterator[Seen]:
    batch = sample(0.3)
    moved, frozen = subject.credit(batch), subject.credit(replace(batch, logp_old=batch.logp))
    if (moved - frozen).abs().max() <= 1e-3 * frozen.abs().max():
        yield Seen("credit off-policy", None, None, "one that depends on logp_old", "the credit of ratio 1")


def _zero_advantage(subject: _Subject) -> Iterator[Seen]:
    for drift in DRIFTS:
        batch = sample(drift)
        some = replace(batch, advantages=batch.advantages * torch.tensor([[1.0], [0], [0], [1], [0], [1]]))
        found = subject.credit(some)
        scale = subject.credit(batch).abs().max()
        wrong = (some.advantages == 0) & (found.abs() > RELATIVE * scale)
        for row, token in wrong.nonzero().tolist():
            yield Seen("credit at A = 0", row, token, "0", f"{found[row, token].item():.6g}")


def _expanded(subject: _Subject) -> Iterator[Seen]:
    for drift in DRIFTS:
        batch = sample(drift)
        full = replace(batch, advantages=batch.advantages.expand_as(batch.mask))
        yield from _same("with advantages repeated to (B, T)", subject, batch, full)


def _separable(subject: _Subject) -> Iterator[Seen]:
    normalize = subject.numbers.get("normalize", subject.parameters["normalize"].default)
    cuts = [[[0, 2], [1, 4, 3, 5]]]  # whole groups, uneven
    if "group_ids" not in subject.needs:
        cuts.append([[row] for row in range(6)])
    for drift in DRIFTS:
        batch = sample(drift)
        free = replace(subject, numbers={k: v for k, v in subject.numbers.items() if k != "normalize"})
        counted = with_counts(normalize, batch.mask)
        expected = free.credit(batch, normalize=normalize)
        for cut in cuts:
            found = torch.empty_like(batch.logp)
            for rows in cut:
                found[rows] = free.credit(batch.map(lambda x: x[rows]), normalize=counted)  # noqa: B023 - used at once
            yield from _differ(f"credit cut into rows {cut}", expected, found)


FAR = (1000.0, -1000.0, 100.0, -100.0, 21.0, -21.0, 3.0)


def _finite(subject: _Subject) -> Iterator[Seen]:
    batch = sample(0.0)
    far = torch.tensor(FAR, dtype=torch.float64)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for shift in (far, far.flip(0), far[:1].expand(7), far[1:2].expand(7)):
            shifted = replace(batch, logp=batch.logp_old + shift).map(partial(_cast, dtype=dtype))
            found = subject.credit(shifted)
            for row, token in (~found.isfinite()).nonzero().tolist():
                what = f"credit at log ρ = {shift[token]:g} in {_named(dtype)}"
                yield Seen(what, row, token, "a finite number", f"{found[row, token].item()}")
            if not (loss := subject.loss(shifted)).isfinite():
                what = f"loss at log ρ = {', '.join(f'{z:g}' for z in shift.unique().tolist())} in {_named(dtype)}"
                yield Seen(what, None, None, "a finite number", f"{loss.item()}")


def _limit(subject: _Subject) -> Iterator[Seen]:
    batch = sample(0.0)
    for z in (LIMIT + 10, -LIMIT - 10, 1000.0, -1000.0):
        shift = torch.zeros(6, 7, dtype=torch.float64)
        shift[:, 0] = z
        found = subject.credit(replace(batch, logp=batch.logp_old + shift))
        for row in found[:, 0].nonzero().squeeze(1).tolist():
            yield Seen(f"credit at log ρ = {z:g}", row, 0, "0", f"{found[row, 0].item():.6g}")


def _precision(subject: _Subject) -> Iterator[Seen]:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        rounded = sample(DRIFTS[0]).map(partial(_cast, dtype=dtype))
        exact = rounded.map(partial(_cast, dtype=torch.float64))
        loss, found = subject.loss(rounded), subject.credit(rounded)
        for what, x in (("loss", loss), ("credit", found)):
            if x.dtype != torch.float32:
                yield Seen(f"{what} of {_named(dtype)} inputs", None, None, "float32", _named(x.dtype))
        beside = f"of {_named(dtype)} inputs, beside float64 arithmetic on the same inputs"
        expected = subject.credit(exact)
        yield from _differ(f"credit {beside}", expected, found.double(), relative=5e-6)
        right, size = subject.loss(exact), subject.loss(replace(exact, advantages=exact.advantages.abs()))
        scale = torch.maximum(expected.abs().sum(), size.abs())  # the loss itself may be near 0
        if not (loss - right).abs() <= 5e-6 * scale:
            yield Seen(f"loss {beside}", None, None, f"{right.item():.6g}", f"{loss.item():.6g}")


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if x.is_floating_point() else x


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _layout(subject: _Subject) -> Iterator[Seen]:
    batch = sample(DRIFTS[0])
    yield from _same("of transposed memory", subject, batch, batch.map(lambda x: x.t().contiguous().t()))
    every_other = batch.map(lambda x: x.repeat_interleave(2, dim=-1)[..., ::2] if x.ndim == 2 else x)
    yield from _same("of every other column in memory", subject, batch, every_other)


def _no_leak(subject: _Subject) -> Iterator[Seen]:
    for drift in DRIFTS:
        leaves = sample(drift).map(lambda x: x.clone().requires_grad_() if x.is_floating_point() else x)
        subject.loss(leaves).backward()
        for name in ("logp_old", "advantages"):
            grad = getattr(leaves, name).grad
            if grad is not None and grad.any():
                yield Seen(f"gradient into {name}", None, None, "none", f"up to {grad.abs().max().item():.6g}")


def _mask_types(subject: _Subject) -> Iterator[Seen]:
    batch = sample(DRIFTS[0])
    for dtype in (torch.int64, torch.float32, torch.uint8, torch.bfloat16):
        yield from _same(f"with a {_named(dtype)} mask", subject, batch, replace(batch, mask=batch.mask.to(dtype)))


def _pure(subject: _Subject) -> Iterator[Seen]:
    batch = sample(DRIFTS[0])
    first, second = subject.loss(batch), subject.loss(batch)
    if first.shape != ():
        yield Seen("loss", None, None, "a scalar", f"shape {tuple(first.shape)}")
    yield from _differ("loss of the second call", first, second, relative=0.0)
    names = ("logp", "logp_old", "advantages", "mask")
    for name, before, after in zip(names, sample(DRIFTS[0]).tensors, batch.tensors, strict=True):
        yield from _differ(f"{name} after the call", before.double(), after.double(), relative=0.0)


OBJECTIVE_LAWS: dict[str, tuple[Law, str]] = {
    "padding": (_padding, "padding may hold NaN, inf or 1e30: mask by where, since 0 · NaN is NaN"),
    "extra columns": (_extra_columns, "columns of padding change nothing: divide by lengths, not by the width"),
    "gaps": (_gaps, "a masked token inside a response is as good as absent: never rebuild the mask from lengths"),
    "empty row": (_empty_row, "a response without tokens leaves numerator and denominator"),
    "nothing": (_nothing, "with every token masked the loss is 0 and so is its gradient"),
    "row order": (_row_order, "permuting responses permutes their credit"),
    "group names": (_group_names, "group ids are names: compare them, never count or index with them"),
    "on-policy": (_on_policy, "at ratio 1 every method is REINFORCE under its own normalizer"),
    "way back": (_way_back, "a token that moved against its advantage must be let back: clip on one side only"),
    "stale": (_stale, "the ratio must move: exp(logp − logp.detach()) is always 1, and no clip or gate ever acts"),
    "zero advantage": (_zero_advantage, "a response with A = 0 says nothing"),
    "expanded": (_expanded, "advantages (B, 1) and the same repeated to (B, T) are one"),
    "separable": (_separable, "with the counts fixed, the credit of a batch is the credits of its parts"),
    "finite": (_finite, "limit log ρ before exp, as log_ratio does"),
    "limit": (_limit, f"beyond |log ρ| = {LIMIT:g} a token is too stale to say anything, as log_ratio has it"),
    "precision": (_precision, "promote to float32 before subtracting: half precision rounds the log-ratio away"),
    "layout": (_layout, "inputs may be views: use reshape, not view"),
    "no leak": (_no_leak, "only logp learns: detach the others"),
    "mask types": (_mask_types, "bool, int and float masks are one"),
    "pure": (_pure, "a scalar that depends on the arguments alone and leaves them as they were"),
}


# ---- gates -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Gate:
    gate: Callable[..., Tensor]
    numbers: Mapping[str, Any]
    weight: float

    def __call__(self, log_x: Tensor, advantages: Tensor) -> Tensor:
        """f or log f, as the gate returns it."""
        return self.gate(log_x, advantages, **self.numbers)

    def slope(self, log_x: Tensor, advantages: Tensor) -> Tensor:
        """∂f/∂log x or ∂log f/∂log x."""
        leaf = log_x.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(self(leaf, advantages).sum(), leaf)
        return slope

    def on_policy(self, log_x: Tensor, advantages: Tensor) -> Tensor:
        """∂f/∂log x, what multiplies ∇log π, whichever of f and log f the gate returns."""
        slope = self.slope(log_x, advantages)
        return slope * self(log_x, advantages).exp() if name_of(self.gate).startswith("log_") else slope


def _grid(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """(2, N) log-ratios over all that ``log_ratio`` lets through, and an advantage of each sign."""
    inner = torch.linspace(-2, 2, 82)  # an even count, so that neither 0 nor a round bound is hit
    log_x = torch.cat([torch.tensor([-LIMIT, -7.0]), inner, torch.tensor([7.0, LIMIT])]).to(dtype)
    return log_x.repeat(2, 1), torch.tensor([[1.0], [-0.5]], dtype=dtype)


def _at(what: str, log_x: Tensor, advantages: Tensor, row: int, token: int) -> str:
    return f"{what} at log x = {log_x[row, token].item():.3g}, A = {advantages[row].item():g}"


def _gate_on_policy(gate: _Gate) -> Iterator[Seen]:
    log_x, advantages = torch.zeros(2, 3, dtype=torch.float64), _grid()[1]
    found = gate.on_policy(log_x, advantages)
    for row, token in (~((found - gate.weight).abs() <= RELATIVE)).nonzero().tolist():
        what = _at("weight", log_x, advantages, row, token)
        yield Seen(what, None, None, f"{gate.weight:g}", f"{found[row, token].item():.6g}")


def _gate_slope(gate: _Gate) -> Iterator[Seen]:
    log_x, advantages = _grid()
    h, slope = 1e-6, gate.slope(log_x, advantages)
    right = (gate(log_x + h, advantages) - gate(log_x, advantages)) / h
    left = (gate(log_x, advantages) - gate(log_x - h, advantages)) / h
    near = torch.where((right - slope).abs() < (left - slope).abs(), right, left)  # at a kink either side will do
    wrong = ~((near - slope).abs() <= 1e-4 * (1 + near.abs()))
    for row, token in wrong.nonzero().tolist():
        what = _at("gradient", log_x, advantages, row, token)
        yield Seen(what, None, None, f"{near[row, token].item():.6g}", f"{slope[row, token].item():.6g}")


def _gate_increasing(gate: _Gate) -> Iterator[Seen]:
    log_x, advantages = _grid()
    slope = gate.slope(log_x, advantages)
    for row, token in (slope < 0).nonzero().tolist():
        what = _at("slope", log_x, advantages, row, token)
        yield Seen(what, None, None, "0 or more", f"{slope[row, token].item():.6g}")


def _gate_way_back(gate: _Gate) -> Iterator[Seen]:
    log_x, advantages = _grid()
    slope = gate.slope(log_x, advantages)
    back = (log_x.abs() < 0.7) & (log_x * advantages < 0)  # not too far: a dual clip may stop even these, later
    for row, token in (back & ~(slope > 0)).nonzero().tolist():
        what = _at("slope", log_x, advantages, row, token)
        yield Seen(what, None, None, "more than 0", f"{slope[row, token].item():.6g}")


def _gate_tokenwise(gate: _Gate) -> Iterator[Seen]:
    log_x, advantages = _grid()
    some = log_x[:, ::3]
    yield from _differ("value without its neighbours", gate(log_x, advantages)[:, ::3], gate(some, advantages))
    slopes = gate.slope(log_x, advantages)[:, ::3], gate.slope(some, advantages)
    yield from _differ("slope without its neighbours", *slopes)


def _gate_expanded(gate: _Gate) -> Iterator[Seen]:
    log_x, advantages = _grid()
    repeated = gate(log_x, advantages.expand_as(log_x))
    yield from _differ("value with advantages repeated to (B, T)", gate(log_x, advantages), repeated)


def _gate_finite(gate: _Gate) -> Iterator[Seen]:
    log_x, advantages = _grid(torch.float32)
    for what, x in (("value", gate(log_x, advantages)), ("slope", gate.slope(log_x, advantages))):
        for row, token in (~x.isfinite()).nonzero().tolist():
            yield Seen(_at(what, log_x, advantages, row, token), None, None, "a finite number", f"{x[row, token]}")


GATE_LAWS: dict[str, tuple[Law, str]] = {
    "on-policy": (_gate_on_policy, "weight 1 at ratio 1, for either sign; for log_ gates f · ∂log f/∂log x"),
    "slope": (_gate_slope, "the gradient is the slope of the value: is something detached?"),
    "increasing": (_gate_increasing, "a gate may silence a token but not turn it around"),
    "way back": (_gate_way_back, "a token that moved against its advantage must be let back: clip on one side only"),
    "tokenwise": (_gate_tokenwise, "a gate sees one token; pooling is the unit's work"),
    "expanded": (_gate_expanded, "advantages (B, 1) and the same repeated to (B, T) are one"),
    "finite": (_gate_finite, "finite in float32 for |log x| up to 20"),
}


# ---- units -----------------------------------------------------------------------------------------------------------

Unit = Callable[[Tensor, Tensor], Tensor]


def _log_r() -> tuple[Tensor, Tensor]:
    batch = sample(DRIFTS[0])
    return (batch.logp - batch.logp_old).where(batch.mask, 0.0), batch.mask


def _unit_on_policy(unit: Unit) -> Iterator[Seen]:
    log_r, mask = _log_r()
    found = unit(torch.zeros_like(log_r), mask)
    yield from _differ(
        "pool of zeros", torch.zeros_like(log_r), found.expand_as(log_r).where(mask, 0.0) if found.ndim == 2 else found
    )


def _unit_shape(unit: Unit) -> Iterator[Seen]:
    log_r, mask = _log_r()
    if (found := unit(log_r, mask)).shape != log_r.shape:
        yield Seen("pool", None, None, f"shape {tuple(log_r.shape)}", f"shape {tuple(found.shape)}")


def _unit_padding(unit: Unit) -> Iterator[Seen]:
    log_r, mask = _log_r()
    expected = unit(log_r, mask).where(mask, 0.0)
    yield from _differ(
        "pool with 1000 on padding", expected, unit(log_r.masked_fill(~mask, 1e3), mask).where(mask, 0.0)
    )
    wide = [torch.cat([x, torch.zeros(6, 3, dtype=x.dtype)], dim=1) for x in (log_r, mask)]
    yield from _differ("pool with three more columns", expected, unit(*wide)[:, :7].where(mask, 0.0))


def _unit_rows(unit: Unit) -> Iterator[Seen]:
    log_r, mask = _log_r()
    apart = torch.cat([unit(log_r[i : i + 1], mask[i : i + 1]) for i in range(6)])
    yield from _differ("pool of the whole batch", apart.where(mask, 0.0), unit(log_r, mask).where(mask, 0.0))


def _unit_own_gradient(unit: Unit) -> Iterator[Seen]:
    log_r, mask = _log_r()
    leaf = log_r.clone().requires_grad_()
    last = lengths(mask).squeeze(1) - 1
    own = torch.zeros_like(mask).scatter(1, last.unsqueeze(1), True)
    (slope,) = torch.autograd.grad(unit(leaf, mask)[own].sum(), leaf)
    for row, token in ((slope != 0) & ~own).nonzero().tolist():
        yield Seen("gradient from another token's term", row, token, "0", f"{slope[row, token].item():.6g}")


def _unit_full_gradient(unit: Unit) -> Iterator[Seen]:
    log_r, mask = _log_r()
    leaf = log_r.clone().requires_grad_()
    (found,) = torch.autograd.grad(response_mean(unit(leaf, mask).exp(), mask), leaf)
    expected = torch.zeros_like(log_r)
    for row, token in mask.nonzero().tolist():
        step = torch.zeros_like(log_r)
        step[row, token] = 1e-6
        up, down = (response_mean(unit(log_r + sign * step, mask).exp(), mask) for sign in (1, -1))
        expected[row, token] = (up - down) / 2e-6
    yield from _differ("gradient under response_mean", expected, found, relative=1e-6)


def _unit_finite(unit: Unit) -> Iterator[Seen]:
    for value in (LIMIT, -LIMIT):
        leaf = torch.full((1, 200), value, requires_grad=True)
        out = unit(leaf, torch.ones(1, 200, dtype=torch.bool)).exp()
        (slope,) = torch.autograd.grad(out.sum(), leaf)
        for what, x in (("exp of the pool", out), ("slope", slope)):
            if not x.isfinite().all():
                where = f"{what} of 200 tokens at log ρ = {value:g}"
                yield Seen(where, None, None, "a finite number", f"{x[~x.isfinite()][0].item()}")


UNIT_LAWS: dict[str, tuple[Law, str]] = {
    "shape": (_unit_shape, "one pooled value per token, so that any normalizer fits"),
    "on-policy": (_unit_on_policy, "log-ratios of 0 pool to 0"),
    "padding": (_unit_padding, "padding takes no part in a pool"),
    "rows": (_unit_rows, "responses do not see each other"),
    "own gradient": (_unit_own_gradient, "pool the value, keep each token's own gradient (with_value)"),
    "full gradient": (
        _unit_full_gradient,
        "under response_mean the gradient is that of the pooled value: scale by L · w",
    ),
    "finite": (_unit_finite, "limit a sum before exp"),
}


# ---- audit -----------------------------------------------------------------------------------------------------------

STEP = 1e-5
TOLERANCE = 1e-5
"""Of the credit itself, or of a thousandth of the largest one where it is smaller."""
NEAR = tuple(map(math.log, (0.1, 0.5, 0.85, 0.97, 0.9999, 1, 1.0001, 1.03, 1.15, 2, 10)))
BEYOND = (-1000.0, -30.0, 30.0, 1000.0)


@dataclass(frozen=True)
class Entry:
    """One token: its advantage and log-ratio, the credit it gets, and the slope of the loss by differences."""

    A: float
    log_ratio: float
    found: float
    expected: float
    error: float
    verdict: str

    def __str__(self) -> str:
        ratio = f"{math.exp(self.log_ratio):.5g}" if abs(self.log_ratio) <= LIMIT else f"e^{self.log_ratio:g}"
        numbers = f"{self.found + 0.0:>+14.6g}{self.expected + 0.0:>+14.6g}{self.error:>11.1e}"  # + 0.0: no "-0"
        return f"{self.A:>+4g}{ratio:>10}{numbers}  {self.verdict}"


@dataclass(frozen=True)
class Audit:
    """Every token's credit beside the slope of the loss: true when they agree, printed it is a table."""

    subject: str
    entries: tuple[Entry, ...]

    def __bool__(self) -> bool:
        return not self.wrong

    def __str__(self) -> str:
        head = f"{'A':>4}{'ratio':>10}{'credit':>14}{'differences':>14}{'rel. error':>11}  verdict"
        return "\n".join([self.summary, head, *map(str, self.entries)])

    __repr__ = __str__

    @property
    def wrong(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.verdict != "ok")

    @property
    def error(self) -> float:
        """The largest relative error."""
        return max((entry.error for entry in self.entries), key=lambda x: math.inf if math.isnan(x) else x)

    @property
    def summary(self) -> str:
        right = len(self.entries) - len(self.wrong)
        return f"{self.subject}: {right} of {len(self.entries)} credits agree, largest relative error {self.error:.1e}"


def audit(
    objective: Callable[..., Tensor], *, needs: tuple[str, ...] = (), limited: bool = True, **numbers: Any
) -> Audit:
    """Compare each token's credit with differences of the loss, taken while what the objective detaches stands still.

    For both signs of A and ratios below, at and above 1 there is a response of three tokens with log-ratios z, z/2 and
    −z/4; an entry is its first token, or another one that is wrong. Beyond the limit there is one token, and its credit
    must be 0 and finite, unless ``limited=False`` says that the objective is no function of the ratio. ``needs`` is
    that of its ``Method``.

    >>> print(audit(METHODS["cispo"].objective, ratio_cap=2.0))
    """
    subject = _Subject(objective, needs, numbers, weight=1.0)
    near, scale = _compared(subject, NEAR, (1.0, 0.5, -0.25), 0.0, False)
    beyond, _ = _compared(subject, BEYOND, (1.0,), scale, limited)
    called = ", ".join([name_of(objective), *(f"{name}={value:g}" for name, value in numbers.items())])
    return Audit(f"audit({called})", (*near, *beyond))


def grid(numbers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """``numbers``, then each family of them (τ, ε, …: what stands before the first ``_``) at half, twice, ten times."""
    out = [dict(numbers)]
    for family in dict.fromkeys(name.partition("_")[0] for name in numbers):
        for factor in (0.5, 2.0, 10.0):
            scaled = {
                name: value * factor if name.partition("_")[0] == family and type(value) in (int, float) else value
                for name, value in numbers.items()
            }
            out += [scaled] if scaled not in out else []
    return out


def _compared(
    subject: _Subject, ratios: tuple[float, ...], shape: tuple[float, ...], scale: float, silent: bool
) -> tuple[list[Entry], float]:
    """The entries of one batch, in order of sign and ratio, and its largest slope (at least ``scale``)."""
    batch = _pairs(ratios, shape)
    found, expected = subject.credit(batch), _slopes(subject, batch)
    scale = max(scale, expected.nan_to_num().abs().max().item())
    floor = torch.tensor(1e-3 * scale, dtype=torch.float64).clamp(min=1e-30)
    error = (found - expected).abs() / torch.maximum(torch.maximum(found.abs(), expected.abs()), floor)
    entries = []
    for row in sorted(range(len(found)), key=lambda i: (-batch.advantages[i].item(), ratios[i // 2])):
        verdicts = [_verdict(found[row, t].item(), error[row, t].item(), silent) for t in range(len(shape))]
        t = next((t for t, verdict in enumerate(verdicts) if verdict != "ok"), 0)
        A, z = batch.advantages[row].item(), ratios[row // 2] * shape[t]
        entry = Entry(A, z, found[row, t].item(), expected[row, t].item(), error[row].max().item(), verdicts[t])
        entries.append(entry)
    return entries, scale


def _verdict(found: float, error: float, silent: bool) -> str:
    if not math.isfinite(found):
        return "not finite"
    if silent and found != 0:
        return "not 0 beyond the limit"
    return "ok" if error <= TOLERANCE else "not the slope of the loss"


def _pairs(ratios: tuple[float, ...], shape: tuple[float, ...]) -> Batch:
    """Two responses per ratio, A = 1 and A = −1, one group; log-ratios are ``ratios`` × ``shape``."""
    plain = sample(0.0)
    pick = torch.arange(2 * len(ratios)) % 6
    z = torch.tensor(ratios, dtype=torch.float64).repeat_interleave(2).unsqueeze(1)
    advantages = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).repeat(len(ratios), 1)
    fields = {name: x[pick][:, : len(shape)] if x.ndim > 1 else x[pick] for name, x in plain.fields.items()}
    fields |= {"group_ids": torch.arange(len(pick)) // 2, "rewards": advantages.squeeze(1).clone()}
    logp_old = plain.logp_old[pick][:, : len(shape)]
    mask = torch.ones_like(logp_old, dtype=torch.bool)
    return Batch(logp_old + z * torch.tensor(shape, dtype=torch.float64), logp_old, advantages, mask, fields)


def _slopes(subject: _Subject, batch: Batch) -> Tensor:
    """−∂L/∂logp by central differences, or at a kink by those of the side that credit takes."""
    still = freeze(lambda logp: subject.loss(replace(batch, logp=logp)), batch.logp)
    found, out = subject.credit(batch), torch.zeros_like(batch.logp)
    middle = still(batch.logp).item()
    for row, token in batch.mask.nonzero().tolist():

        def moved(steps: int, row: int = row, token: int = token) -> float:
            logp = batch.logp.clone()
            logp[row, token] += steps * STEP
            return still(logp).item()

        sides = {side: moved(side) for side in (1, -1)}
        slopes = [-(sides[1] - sides[-1]) / (2 * STEP)]
        if abs(sides[1] + sides[-1] - 2 * middle) > 1e-2 * abs(sides[1] - sides[-1]):  # the two sides differ
            slopes += [side * (3 * middle - 4 * sides[side] + moved(2 * side)) / (2 * STEP) for side in (1, -1)]
        out[row, token] = min(slopes, key=lambda slope: abs(slope - found[row, token].item()))
    return out
