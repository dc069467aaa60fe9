"""The laws that every gate, unit and objective keeps, as functions to run on your own.

>>> print(check_objective(my_objective))
check_objective(my_objective): 1 of 15 laws is broken
  padding: row 0, token 3: expected 0, found nan (padding may hold NaN: mask by where, 0 · NaN is NaN)

A report is true when every law holds. Batches are off-policy where the law does not say otherwise, since on-policy most
mistakes are invisible, and differences are judged relative to the largest expected entry.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sspo_teach.credit import credit
from sspo_teach.objectives.normalize import Normalizer, response_mean, sequence_sum, token_mean, with_counts
from sspo_teach.tensors import LIMIT, lengths, name_of, unknown

RELATIVE = 1e-9
"""Of the largest expected entry, in float64: far above rounding, far below any mistake."""


@dataclass(frozen=True)
class Failure:
    """A law that does not hold, where it was seen first, and what it usually means."""

    law: str
    row: int | None
    token: int | None
    expected: str
    found: str
    hint: str

    def __str__(self) -> str:
        place = "" if self.row is None else f"row {self.row}, token {self.token}: "
        return f"{self.law}: {place}expected {self.expected}, found {self.found} ({self.hint})"


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


def _run(subject: str, laws: Mapping[str, tuple[Callable[..., Iterator[Any]], str]], tested: Any) -> Report:
    failures = []
    for name, (law, hint) in laws.items():
        try:
            seen = next(law(tested), None)
        except Exception as error:  # a law that makes the subject raise is broken too, and the report should say how
            seen = None, None, "a result", f"{type(error).__name__}: {error}"
        if seen is not None:
            row, token, expected, found = seen
            failures.append(Failure(name, row, token, expected, found, hint))
    return Report(subject, tuple(laws), tuple(failures))


def _differ(
    expected: Tensor, found: Tensor, relative: float = RELATIVE
) -> Iterator[tuple[int | None, int | None, str, str]]:
    """The first entry where ``found`` is not ``expected``."""
    if expected.shape != found.shape:
        yield None, None, f"shape {tuple(expected.shape)}", f"shape {tuple(found.shape)}"
        return
    allowed = relative * expected.abs().max().clamp(min=1e-30) if expected.numel() else 0.0
    wrong = ~((expected - found).abs() <= allowed)  # so that NaN is wrong
    for index in wrong.nonzero().tolist():
        row, token = index if len(index) == 2 else (None, None)
        yield row, token, f"{expected[tuple(index)].item():.6g}", f"{found[tuple(index)].item():.6g}"


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


def _padding(subject: _Subject) -> Iterator[Any]:
    for drift in DRIFTS:
        clean = sample(drift)
        expected, loss = subject.credit(clean), subject.loss(clean)
        for fill in (float("nan"), float("inf"), -float("inf"), 1e30):

            def spoil(x: Tensor, fill: float = fill, mask: Tensor = clean.mask) -> Tensor:
                full = x.expand_as(mask) if x.ndim == 2 else x
                spoilt = x.is_floating_point() and full.shape == mask.shape
                return full.masked_fill(~mask, fill) if spoilt else x

            yield from _differ(expected, subject.credit(clean.map(spoil)))
            yield from _differ(loss, subject.loss(clean.map(spoil)))


def _extra_columns(subject: _Subject) -> Iterator[Any]:
    for drift in DRIFTS:
        batch = sample(drift)

        def widen(x: Tensor) -> Tensor:
            return torch.cat([x, torch.zeros(6, 3, dtype=x.dtype)], dim=1) if x.shape == (6, 7) else x

        wide = batch.map(widen)
        yield from _differ(widen(subject.credit(batch)), subject.credit(wide))
        yield from _differ(subject.loss(batch), subject.loss(wide))


def _empty_row(subject: _Subject) -> Iterator[Any]:
    for drift in DRIFTS:
        batch = sample(drift)
        more = batch.map(lambda x: torch.cat([x, x[:1]]))
        more = replace(more, mask=torch.cat([batch.mask, torch.zeros(1, 7, dtype=torch.bool)]))
        expected = torch.cat([subject.credit(batch), torch.zeros(1, 7, dtype=torch.float64)])
        yield from _differ(expected, subject.credit(more))
        yield from _differ(subject.loss(batch), subject.loss(more))


def _nothing(subject: _Subject) -> Iterator[Any]:
    batch = sample(DRIFTS[0])
    batch = replace(batch, mask=torch.zeros_like(batch.mask))
    yield from _differ(torch.zeros_like(batch.logp), subject.credit(batch))
    yield from _differ(torch.zeros((), dtype=torch.float64), subject.loss(batch))


def _row_order(subject: _Subject) -> Iterator[Any]:
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    for drift in DRIFTS:
        batch = sample(drift)
        yield from _differ(subject.credit(batch)[order], subject.credit(batch.map(lambda x: x[order])))


def _on_policy(subject: _Subject) -> Iterator[Any]:
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
    if all(next(_differ(one, found), None) for one in expected):
        yield from _differ(expected[0], found)


def _way_back(subject: _Subject) -> Iterator[Any]:
    batch = sample(0.0)
    batch = replace(batch, logp=batch.logp_old - 0.3 * batch.advantages.sign())
    found = subject.credit(batch)
    wrong = batch.mask & ~(found * batch.advantages > 0)
    for row, token in wrong.nonzero().tolist():
        yield (
            row,
            token,
            f"a credit of the sign of A = {batch.advantages[row].item():g}",
            f"{found[row, token].item():.6g}",
        )


def _stale(subject: _Subject) -> Iterator[Any]:
    batch = sample(0.3)
    moved, frozen = subject.credit(batch), subject.credit(replace(batch, logp_old=batch.logp))
    if (moved - frozen).abs().max() <= 1e-3 * frozen.abs().max():
        yield None, None, "a credit that depends on logp_old", "the credit of ratio 1"


def _zero_advantage(subject: _Subject) -> Iterator[Any]:
    for drift in DRIFTS:
        batch = sample(drift)
        some = replace(batch, advantages=batch.advantages * torch.tensor([[1.0], [0], [0], [1], [0], [1]]))
        found = subject.credit(some)
        scale = subject.credit(batch).abs().max()
        wrong = (some.advantages == 0) & (found.abs() > RELATIVE * scale)
        for row, token in wrong.nonzero().tolist():
            yield row, token, "0", f"{found[row, token].item():.6g}"


def _expanded(subject: _Subject) -> Iterator[Any]:
    for drift in DRIFTS:
        batch = sample(drift)
        full = replace(batch, advantages=batch.advantages.expand_as(batch.mask))
        yield from _differ(subject.credit(batch), subject.credit(full))
        yield from _differ(subject.loss(batch), subject.loss(full))


def _separable(subject: _Subject) -> Iterator[Any]:
    normalize = subject.numbers.get("normalize", subject.parameters["normalize"].default)
    for drift in DRIFTS:
        batch = sample(drift)
        free = replace(subject, numbers={k: v for k, v in subject.numbers.items() if k != "normalize"})
        counted = with_counts(normalize, batch.mask)
        found = torch.empty_like(batch.logp)
        for rows in (torch.tensor([0, 2]), torch.tensor([1, 4, 3, 5])):  # whole groups, uneven
            part = batch.map(lambda x: x[rows])  # noqa: B023 - used at once
            found[rows] = free.credit(part, normalize=counted)
        yield from _differ(free.credit(batch, normalize=normalize), found)


def _finite(subject: _Subject) -> Iterator[Any]:
    batch = sample(0.0)
    far = torch.tensor([1000.0, -1000.0, 100.0, -100.0, 21.0, -21.0, 3.0], dtype=torch.float64)
    for dtype in (torch.float32, torch.bfloat16):

        def cast(x: Tensor, dtype: torch.dtype = dtype) -> Tensor:
            return x.to(dtype) if x.is_floating_point() else x

        for shift in (far, far.flip(0), far[:1].expand(7), far[1:2].expand(7)):
            shifted = replace(batch, logp=batch.logp_old + shift).map(cast)
            found = subject.credit(shifted)
            for row, token in (~found.isfinite()).nonzero().tolist():
                yield (
                    row,
                    token,
                    f"a finite number at log ρ = {shift[token]:g} in {dtype}",
                    f"{found[row, token].item()}",
                )
            if not (loss := subject.loss(shifted)).isfinite():
                yield None, None, f"a finite loss in {dtype}", f"{loss.item()}"


def _no_leak(subject: _Subject) -> Iterator[Any]:
    for drift in DRIFTS:
        leaves = sample(drift).map(lambda x: x.clone().requires_grad_() if x.is_floating_point() else x)
        subject.loss(leaves).backward()
        for name in ("logp_old", "advantages"):
            grad = getattr(leaves, name).grad
            if grad is not None and grad.any():
                yield None, None, f"no gradient into {name}", f"up to {grad.abs().max().item():.6g}"


def _mask_types(subject: _Subject) -> Iterator[Any]:
    batch = sample(DRIFTS[0])
    for dtype in (torch.int64, torch.float32, torch.uint8):
        yield from _differ(subject.credit(batch), subject.credit(replace(batch, mask=batch.mask.to(dtype))))


def _pure(subject: _Subject) -> Iterator[Any]:
    batch = sample(DRIFTS[0])
    first, second = subject.loss(batch), subject.loss(batch)
    if first.shape != ():
        yield None, None, "a scalar loss", f"shape {tuple(first.shape)}"
    yield from _differ(first, second, relative=0.0)
    for before, after in zip(sample(DRIFTS[0]).tensors, batch.tensors, strict=True):
        yield from _differ(before.to(torch.float64), after.to(torch.float64), relative=0.0)


OBJECTIVE_LAWS: dict[str, tuple[Callable[[_Subject], Iterator[Any]], str]] = {
    "padding": (_padding, "padding may hold NaN, inf or 1e30: mask by where, since 0 · NaN is NaN"),
    "extra columns": (_extra_columns, "columns of padding change nothing: divide by lengths, not by the width"),
    "empty row": (_empty_row, "a response without tokens leaves numerator and denominator"),
    "nothing": (_nothing, "with every token masked the loss is 0 and so is its gradient"),
    "row order": (_row_order, "permuting responses permutes their credit"),
    "on-policy": (_on_policy, "at ratio 1 every method is REINFORCE under its own normalizer"),
    "way back": (_way_back, "a token that moved against its advantage must be let back: clip on one side only"),
    "stale": (_stale, "the ratio must move: exp(logp − logp.detach()) is always 1, and no clip or gate ever acts"),
    "zero advantage": (_zero_advantage, "a response with A = 0 says nothing"),
    "expanded": (_expanded, "advantages (B, 1) and the same repeated to (B, T) are one"),
    "separable": (_separable, "with the counts fixed, the credit of a batch is the credits of its parts"),
    "finite": (_finite, "limit log ρ before exp, as log_ratio does"),
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


def _gate_on_policy(gate: _Gate) -> Iterator[Any]:
    _, advantages = _grid()
    zero = torch.zeros(2, 3, dtype=torch.float64)
    yield from _differ(torch.full_like(zero, gate.weight), gate.on_policy(zero, advantages))


def _gate_slope(gate: _Gate) -> Iterator[Any]:
    log_x, advantages = _grid()
    h, slope = 1e-6, gate.slope(log_x, advantages)
    right = (gate(log_x + h, advantages) - gate(log_x, advantages)) / h
    left = (gate(log_x, advantages) - gate(log_x - h, advantages)) / h
    near = torch.where((right - slope).abs() < (left - slope).abs(), right, left)  # at a kink either side will do
    wrong = (near - slope).abs() > 1e-4 * (1 + near.abs())
    for row, token in wrong.nonzero().tolist():
        yield (
            row,
            token,
            f"{near[row, token].item():.6g} at log x = {log_x[row, token]:.3g}",
            f"{slope[row, token].item():.6g}",
        )


def _gate_increasing(gate: _Gate) -> Iterator[Any]:
    log_x, advantages = _grid()
    slope = gate.slope(log_x, advantages)
    for row, token in (slope < 0).nonzero().tolist():
        yield row, token, f"a slope ≥ 0 at log x = {log_x[row, token]:.3g}", f"{slope[row, token].item():.6g}"


def _gate_way_back(gate: _Gate) -> Iterator[Any]:
    log_x, advantages = _grid()
    slope = gate.slope(log_x, advantages)
    back = (log_x.abs() < 0.7) & (log_x * advantages < 0)  # not too far: a dual clip may stop even these, later
    for row, token in (back & ~(slope > 0)).nonzero().tolist():
        yield row, token, f"a slope > 0 at log x = {log_x[row, token]:.3g}", f"{slope[row, token].item():.6g}"


def _gate_tokenwise(gate: _Gate) -> Iterator[Any]:
    log_x, advantages = _grid()
    yield from _differ(gate(log_x, advantages)[:, ::3], gate(log_x[:, ::3], advantages))
    yield from _differ(gate.slope(log_x, advantages)[:, ::3], gate.slope(log_x[:, ::3], advantages))


def _gate_expanded(gate: _Gate) -> Iterator[Any]:
    log_x, advantages = _grid()
    yield from _differ(gate(log_x, advantages), gate(log_x, advantages.expand_as(log_x)))


def _gate_finite(gate: _Gate) -> Iterator[Any]:
    log_x, advantages = _grid(torch.float32)
    for what, x in (("value", gate(log_x, advantages)), ("slope", gate.slope(log_x, advantages))):
        for row, token in (~x.isfinite()).nonzero().tolist():
            yield row, token, f"a finite {what} at log x = {log_x[row, token]:g}", f"{x[row, token].item()}"


GATE_LAWS: dict[str, tuple[Callable[[_Gate], Iterator[Any]], str]] = {
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


def _unit_on_policy(unit: Unit) -> Iterator[Any]:
    log_r, mask = _log_r()
    found = unit(torch.zeros_like(log_r), mask)
    yield from _differ(torch.zeros_like(log_r), found.expand_as(log_r).where(mask, 0.0) if found.ndim == 2 else found)


def _unit_shape(unit: Unit) -> Iterator[Any]:
    log_r, mask = _log_r()
    if (found := unit(log_r, mask)).shape != log_r.shape:
        yield None, None, f"shape {tuple(log_r.shape)}", f"shape {tuple(found.shape)}"


def _unit_padding(unit: Unit) -> Iterator[Any]:
    log_r, mask = _log_r()
    expected = unit(log_r, mask).where(mask, 0.0)
    yield from _differ(expected, unit(log_r.masked_fill(~mask, 1e3), mask).where(mask, 0.0))
    wide = [torch.cat([x, torch.zeros(6, 3, dtype=x.dtype)], dim=1) for x in (log_r, mask)]
    yield from _differ(expected, unit(*wide)[:, :7].where(mask, 0.0))


def _unit_rows(unit: Unit) -> Iterator[Any]:
    log_r, mask = _log_r()
    apart = torch.cat([unit(log_r[i : i + 1], mask[i : i + 1]) for i in range(6)])
    yield from _differ(apart.where(mask, 0.0), unit(log_r, mask).where(mask, 0.0))


def _unit_own_gradient(unit: Unit) -> Iterator[Any]:
    log_r, mask = _log_r()
    leaf = log_r.clone().requires_grad_()
    last = lengths(mask).squeeze(1) - 1
    own = torch.zeros_like(mask).scatter(1, last.unsqueeze(1), True)
    (slope,) = torch.autograd.grad(unit(leaf, mask)[own].sum(), leaf)
    for row, token in ((slope != 0) & ~own).nonzero().tolist():
        yield row, token, "no gradient from another token's term", f"{slope[row, token].item():.6g}"


def _unit_full_gradient(unit: Unit) -> Iterator[Any]:
    log_r, mask = _log_r()
    leaf = log_r.clone().requires_grad_()
    (found,) = torch.autograd.grad(response_mean(unit(leaf, mask).exp(), mask), leaf)
    expected = torch.zeros_like(log_r)
    for row, token in mask.nonzero().tolist():
        step = torch.zeros_like(log_r)
        step[row, token] = 1e-6
        up, down = (response_mean(unit(log_r + sign * step, mask).exp(), mask) for sign in (1, -1))
        expected[row, token] = (up - down) / 2e-6
    yield from _differ(expected, found, relative=1e-6)


def _unit_finite(unit: Unit) -> Iterator[Any]:
    for value in (LIMIT, -LIMIT):
        leaf = torch.full((1, 200), value, requires_grad=True)
        out = unit(leaf, torch.ones(1, 200, dtype=torch.bool)).exp()
        (slope,) = torch.autograd.grad(out.sum(), leaf)
        for what, x in (("exp of the pool", out), ("slope", slope)):
            if not x.isfinite().all():
                yield 0, 0, f"a finite {what} of 200 tokens at log ρ = {value:g}", f"{x[~x.isfinite()][0].item()}"


UNIT_LAWS: dict[str, tuple[Callable[[Unit], Iterator[Any]], str]] = {
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
