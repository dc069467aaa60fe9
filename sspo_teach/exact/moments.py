"""What a method's gradient is on average, and how far it scatters: sums over responses, not samples.

The estimator ĝ is one group of G responses to one prompt, trained as a batch of its own: ĝ = Σᵢ xᵢ with
xᵢ = Σₜ creditᵢₜ ∇ log π(yᵢₜ). M groups have the mean of M independent ĝ. A group needs no sum over R^G outcomes: an
advantage sees the others only through the *classes* they fall into (a class is a reward, with the length where the
normalizer counts tokens), and given its class a response is independent of the others. With k a multiset of classes,
j = (class, advantage) a *pair*, m_j = E[x | j] and s_j = E[‖x‖² | j],

    E[ĝ]    = Σ_j α_j m_j                                    α_j  = Σ_k P(k) f_k · #slots of k with pair j
    E[‖ĝ‖²] = Σ_j β_j s_j + Σ_jj' Q_jj' ⟨m_j, m_j'⟩          β_j  = the same with f_k²
                                                             Q_jj' = Σ_k P(k) f_k² · #ordered pairs of slots

where f_k is 1, or 1/ΣL where the normalizer divides by tokens. What a method does around its objective (shaped rewards,
resampled groups, a controller after its first step) is left out.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from sspo_teach.catalog import Method
from sspo_teach.credit import credit
from sspo_teach.exact.problem import Problem, kl, reach
from sspo_teach.objectives.normalize import Normalizer
from sspo_teach.tensors import name_of
from sspo_teach.types import Rollout

KINDS, PAIRS, NUMBERS, ORDERED, ROWS = 200_000, 4_000, 5 * 10**7, 2 * 10**6, 2 * 10**6
"""Most class multisets, pairs, numbers in all m_j, ordered groups enumerated, and rows of ``Draws``."""


class Coupled(ValueError):
    """The responses of a group are coupled by more than their classes."""


@dataclass(frozen=True)
class Draws:
    """Every (response, advantage) that can occur, with what the formulas above need; n rows, J pairs.

    Attributes:
        response: (n,) int64.
        advantage: (n, 1).
        weight: (n,) P(response | pair), old policy.
        pair: (n,) int64.
        alpha: (J,) expected f · slots.
        beta: (J,) expected f² · slots.
        cross: (J, J) expected f² · ordered pairs of different slots.
        slots: (J,) the chance that a slot holds the pair; sums to 1.
        counts: the counts that the normalizer gets.
        together: rows come in runs of so many that are drawn together (``every_group``): then ``weight`` is the chance
            of the run; 0 where rows are drawn pair by pair.
    """

    response: Tensor
    advantage: Tensor
    weight: Tensor
    pair: Tensor
    alpha: Tensor
    beta: Tensor
    cross: Tensor
    slots: Tensor
    counts: Mapping[str, float | Tensor]
    together: int = 0

    @property
    def share(self) -> Tensor:
        """(n,) the factor of a row's x in the expected gradient."""
        return self.alpha[self.pair] * self.weight

    @property
    def chance(self) -> Tensor:
        """(n,) the chance of a row, response and advantage; sums to 1."""
        return self.slots[self.pair] * self.weight


@dataclass(frozen=True)
class Moments:
    """E[ĝ] (D,), and the trace of Cov[ĝ]; ``spread`` (N·V, N·V) is the covariance of the credit of branches."""

    mean: Tensor
    trace: float
    spread: Tensor | None = None


def normalizer_of(method: Method, here: Problem) -> Normalizer:
    """What the method trains with where ``length`` tokens are allowed."""
    return method.normalize(here.tree.length)


def population_draws(here: Problem, *, standardised: bool = False) -> Draws:
    """The infinite batch: A = R − E[R] of the prompt, over its standard deviation if asked; one response is one draw.

    The normalizer counts 1 response, or E[L] tokens.
    """
    tree = here.tree
    gap = here.rewards - _of_prompts(here, here.rewards)
    if standardised:
        gap = gap / (_of_prompts(here, gap.square()).sqrt() + 1e-6)
    chance, one = here.chances / tree.prompts, here.chances.new_ones(1)
    tokens = (chance * tree.lengths).sum()  # as a tensor: a float would become a float32
    rows = torch.arange(tree.size)
    counts: dict[str, float | Tensor] = {"responses": 1.0, "tokens": tokens}
    return Draws(rows, gap.unsqueeze(1), chance, torch.zeros_like(rows), one, one, one.new_zeros(1, 1), one, counts)


def group_draws(here: Problem, method: Method, group: int, *, normalize: Normalizer | None = None) -> Draws:
    """All that a group of G responses can be, by classes.

    Raises:
        Coupled: the credit of a response depends on more than the classes of the others; ``enumerated`` may help.
        ValueError: too many classes, or a method that has no groups.
    """
    _check_group(method, group)
    by_tokens = _counts_tokens(method, normalize or normalizer_of(method, here))
    if not method.separable or method.fields is not None or not _sees_classes_only(here, method, group, by_tokens):
        raise Coupled(
            f"{name_of(method.objective)} couples the responses of a group by more than rewards: "
            f"use enumerated, or population advantages"
        )
    parts = [_draws_of_prompt(here, method, group, p, by_tokens) for p in range(here.tree.prompts)]
    first = torch.tensor([0, *[len(part.alpha) for part in parts]]).cumsum(0)
    share = 1 / here.tree.prompts
    return Draws(
        response=torch.cat([part.response for part in parts]),
        advantage=torch.cat([part.advantage for part in parts]),
        weight=torch.cat([part.weight for part in parts]),
        pair=torch.cat([part.pair + start for part, start in zip(parts, first, strict=False)]),
        alpha=torch.cat([part.alpha for part in parts]) * share,
        beta=torch.cat([part.beta for part in parts]) * share,
        cross=torch.block_diag(*[part.cross for part in parts]) * share,
        slots=torch.cat([part.slots for part in parts]) * share,
        counts=parts[0].counts,
    )


def coefficients(here: Problem, method: Method, draws: Draws, *, normalize: Normalizer | None = None) -> Tensor:
    """The credit of every row of ``draws``, (n, T), from the method's own objective."""
    fixed = _with(normalize or normalizer_of(method, here), **draws.counts)
    out = []
    for rows in torch.arange(len(draws.response)).split(250_000):
        response = draws.response[rows]
        batch = rollout(here, response, torch.arange(len(response)))
        numbers = _numbers(here, method, batch, response, draws.advantage[rows])
        out.append(credit_of(here, method, response, draws.advantage[rows], normalize=fixed, **numbers))
    return torch.cat(out)


def credit_of(here: Problem, method: Method, response: Tensor, advantage: Tensor, **numbers: Any) -> Tensor:
    """−∂L/∂logp of a batch made of these responses; (n, T), 0 on padding."""
    mask = here.tree.mask[response]
    found = credit(method.objective, here.logp[response], here.logp_old[response], advantage, mask, **numbers)
    return found.where(mask, 0.0)


def expected(here: Problem, draws: Draws, coef: Tensor, *, spread: bool = False) -> Moments:
    """Mean and scatter of ĝ from the credit of every row, (n, T)."""
    if draws.together:
        return _expected_together(here, draws, coef, spread)
    tree, policy = here.tree, here.new
    branches, pairs = tree.n_nodes * tree.vocab, len(draws.alpha)
    if pairs * branches > NUMBERS:
        raise ValueError(
            f"{pairs} different (reward, advantage) pairs of {branches} numbers each are too many: "
            f"take fewer reward levels, a smaller group or a smaller tree"
        )
    weighted = coef * draws.weight.unsqueeze(1)
    at, real = tree.branches[draws.response] + branches * draws.pair.unsqueeze(1), tree.mask[draws.response]
    tables = coef.new_zeros(pairs * branches).index_add(0, at[real], weighted[real]).view(pairs, tree.n_nodes, -1)
    m = policy.combine(tables)  # (J, D)
    s = coef.new_zeros(pairs).index_add(0, draws.pair, draws.weight * policy.norms(coef, draws.response))
    mean = draws.alpha @ m
    second = (draws.beta * s).sum() + (draws.cross * (m @ m.T)).sum()
    trace = (second - mean.square().sum()).item()
    return Moments(mean, trace, _spread(here, draws, coef, tables.flatten(1)) if spread else None)


def of(
    here: Problem,
    method: Method,
    group: int = 0,
    *,
    normalize: Normalizer | None = None,
    spread: bool = False,
    standardised: bool = False,
) -> Moments:
    """The moments of a method: population advantages for ``group=0``, else groups, coupled ones by enumeration."""
    if not group:
        if not method.separable or method.fields is not None:
            raise Coupled(f"{name_of(method.objective)} couples responses, so none is a draw of its own: take a group")
        draws = population_draws(here, standardised=standardised)
    else:
        try:
            draws = group_draws(here, method, group, normalize=normalize)
        except Coupled:
            return enumerated(here, method, group, normalize=normalize, spread=spread)
    return expected(here, draws, coefficients(here, method, draws, normalize=normalize), spread=spread)


def enumerated(
    here: Problem, method: Method, group: int, *, normalize: Normalizer | None = None, spread: bool = False
) -> Moments:
    """The same by going through every group: for methods that couple responses, and to check the rest.

    Groups that differ in order alone are taken once, unless the method computes fields on them, where ties may fall by
    place.

    Raises:
        ValueError: more than two million ordered groups, or an objective that draws at random.
    """
    return expected(here, *every_group(here, method, group, normalize=normalize), spread=spread)


def every_group(
    here: Problem, method: Method, group: int, *, normalize: Normalizer | None = None
) -> tuple[Draws, Tensor]:
    """Every group with its chance and its credit (n, T), G rows each; errors as of ``enumerated``."""
    _check_group(method, group)
    tree = here.tree
    if tree.prompts * tree.responses**group > ORDERED:
        raise ValueError(
            f"{name_of(method.objective)} needs all {tree.prompts} × {tree.responses}^{group} groups, more than "
            f"{ORDERED}: take a smaller tree or group, or monte_carlo"
        )
    slots, chance = _all_groups(here, method, group)
    found = [_group_credit(here, method, rows, normalize) for rows in slots]
    one = chance.new_ones(1)
    draws = Draws(
        response=slots.flatten(),
        advantage=torch.cat([advantage for _, advantage in found]),
        weight=chance.repeat_interleave(group),
        pair=torch.zeros(slots.numel(), dtype=torch.int64),
        alpha=one,
        beta=one,
        cross=one.new_zeros(1, 1),
        slots=one / group,
        counts={},
        together=group,
    )
    return draws, torch.cat([credit for credit, _ in found])


def covariance(here: Problem, found: Moments) -> Tensor:
    """Cov[ĝ] (D, D) of moments taken with ``spread``; for small D."""
    if found.spread is None:
        raise ValueError("the moments hold no spread: take them with spread=True")
    half = _from_branches(here, found.spread)  # (N·V, D)
    return _from_branches(here, half.T.contiguous())


def eigenvalues(here: Problem, found: Moments, count: int = 20) -> Tensor:
    """The leading eigenvalues of Cov[ĝ], of moments taken with ``spread``; (count,) or fewer, largest first.

    Those of Hᵀ C H are those of √K C √K with K = H Hᵀ, whichever is smaller.
    """
    if found.spread is None:
        raise ValueError("the moments hold no spread: take them with spread=True")
    branches = len(found.spread)
    if here.new.vector.numel() <= branches:
        matrix = covariance(here, found)
    else:
        scores = _from_branches(here, torch.eye(branches, dtype=torch.float64))
        size, way = torch.linalg.eigh(scores @ scores.T)
        root = (way * size.clamp(min=0).sqrt()) @ way.T
        matrix = root @ found.spread @ root
    return torch.linalg.eigvalsh((matrix + matrix.T) / 2).flip(0)[:count].clamp(min=0)


@dataclass(frozen=True)
class Sampled:
    """A Monte Carlo estimate from n groups: the mean (D,) with its standard error (D,), and ‖ĝ‖² of each group (n,)."""

    mean: Tensor
    standard_error: Tensor
    norms: Tensor
    along: Tensor
    """(n, k) the projections ⟨ĝ, direction⟩."""


def monte_carlo(
    here: Problem,
    method: Method,
    group: int,
    *,
    groups: int = 1000,
    seed: int = 0,
    directions: Tensor | None = None,
    normalize: Normalizer | None = None,
) -> Sampled:
    """Sample groups and train on each, as a trainer would; shares no formula with ``expected``.

    A group drawn again, in whatever order, is counted again and not computed again, unless fields may see the order.

    ``directions`` (k, D) are looked along; none is the truth.
    """
    generator = torch.Generator().manual_seed(seed)
    tree = here.tree
    ways = here.truth.unsqueeze(0) if directions is None else directions
    drawn = []
    for prompt in torch.randint(tree.prompts, (groups,), generator=generator).tolist():
        chances = here.chances[prompt * tree.responses : (prompt + 1) * tree.responses]
        rows = torch.multinomial(chances, group, replacement=True, generator=generator)
        drawn.append((rows.sort().values if method.fields is None else rows) + prompt * tree.responses)
    total, square = torch.zeros_like(here.truth), torch.zeros_like(here.truth)
    norms, along = [], []
    all_rows, counts = torch.stack(drawn), torch.ones(groups, dtype=torch.int64)
    if method.fields is None:
        all_rows, counts = torch.unique(all_rows, dim=0, return_counts=True)
    for rows, times in zip(all_rows, counts, strict=True):
        g = here.new.combine(tree.sums(_group_credit(here, method, rows, normalize, generator)[0], rows))
        total, square = total + times * g, square + times * g.square()
        norms.append(g.square().sum().expand(int(times)))
        along.append((ways @ g).expand(int(times), -1))
    mean = total / groups
    variance = (square / groups - mean.square()).clamp(min=0) * groups / max(groups - 1, 1)
    return Sampled(mean, (variance / groups).sqrt(), torch.cat(norms), torch.cat(along))


def stale(here: Problem, method: Method, distance: float, *, updates: int = 4, group: int = 0) -> Problem:
    """The learner has made ``updates`` expected steps of the method on data of its old self, until KL = ``distance``.

    Other drifts move the sampler; this one moves the learner, and with it the truth.
    """
    start = replace(here, old=here.new.table.detach())

    def trained(size: float) -> Problem:
        now = start
        for _ in range(updates):
            now = replace(now, new=now.new.at(now.new.vector + size / updates * of(now, method, group).mean))
        return now

    size = reach(lambda size: kl(here.tree, start.old, trained(size).new.table.detach()), distance, "stale")
    return trained(size)


def rollout(here: Problem, rows: Tensor, group_ids: Tensor) -> Rollout:
    """Responses as a trainer sees them; the prompt is one token, its number after the vocabulary."""
    tree = here.tree
    prompt = (tree.vocab + tree.prompt[rows]).unsqueeze(1)
    reference = here.reference if here.reference is not None else here.old
    rewards = here.rewards[rows]
    return Rollout(
        tokens=torch.cat([prompt, tree.tokens[rows]], 1),
        prompt_mask=torch.ones_like(prompt, dtype=torch.bool),
        mask=tree.mask[rows],
        logp_old=here.logp_old[rows],
        rewards=rewards,
        group_ids=group_ids,
        truncated=~tree.finished[rows],
        parts={"correct": here.correct[rows].double()},
        logp_ref=tree.read(reference)[rows],
    )


def _draws_of_prompt(here: Problem, method: Method, group: int, prompt: int, by_tokens: bool) -> Draws:
    rows = (here.tree.prompt == prompt).nonzero().squeeze(1)
    length = here.tree.lengths[rows].double() if by_tokens else torch.zeros(len(rows), dtype=torch.float64)
    classes, member = torch.unique(torch.stack([here.rewards[rows], length], 1), dim=0, return_inverse=True)
    q = here.chances.new_zeros(len(classes)).index_add(0, member, here.chances[rows])
    if math.comb(len(classes) + group - 1, group) > KINDS:
        raise ValueError(
            f"{len(classes)} classes of responses in groups of {group} are more than {KINDS} kinds of group: "
            f"take fewer reward levels or a smaller group"
        )
    slots = torch.combinations(torch.arange(len(classes)), group, with_replacement=True)  # (k, G)
    chance = q[slots].prod(1) * math.factorial(group) / _repeats(slots)
    advantage = _advantages(method, classes[slots, 0], classes[slots, 1], here.tree.length, by_tokens)
    keys = torch.stack([slots.double(), advantage], -1).view(-1, 2)
    pairs, pair = torch.unique(keys, dim=0, return_inverse=True)
    if len(pairs) > PAIRS:
        raise ValueError(
            f"{len(pairs)} different (class, advantage) pairs are more than {PAIRS}: take fewer reward levels or a "
            f"smaller group"
        )
    f = 1 / classes[slots, 1].sum(1) if by_tokens else torch.ones_like(chance)
    alpha, beta, cross = _slot_sums(pair.view_as(slots), chance, f, len(pairs))
    each = chance.new_zeros(len(pairs)).index_add(0, pair, chance.repeat_interleave(group) / group)
    members = [(member == c).nonzero().squeeze(1) for c in range(len(classes))]
    inside = [members[int(c)] for c in pairs[:, 0]]
    size = torch.tensor([len(i) for i in inside])
    if int(size.sum()) > ROWS:
        raise ValueError(f"{int(size.sum())} pairs of response and advantage are more than {ROWS}: take fewer levels")
    response, number = torch.cat(inside), torch.arange(len(pairs)).repeat_interleave(size)
    counts: dict[str, float | Tensor] = {"responses": float(group), "tokens": 1.0}
    weight = here.chances[rows][response] / q[member[response]]
    return Draws(rows[response], pairs[number, 1:], weight, number, alpha, beta, cross, each, counts)


def _slot_sums(pair: Tensor, chance: Tensor, f: Tensor, pairs: int) -> tuple[Tensor, Tensor, Tensor]:
    """α, β and Q from the pair in each slot (k, G)."""
    group = pair.shape[1]
    alpha, beta, cross = (chance.new_zeros(n) for n in (pairs, pairs, pairs * pairs))
    for a in range(group):
        alpha.index_add_(0, pair[:, a], chance * f)
        beta.index_add_(0, pair[:, a], chance * f.square())
        for b in range(group):
            if b != a:
                cross.index_add_(0, pair[:, a] * pairs + pair[:, b], chance * f.square())
    return alpha, beta, cross.view(pairs, pairs)


def _spread(here: Problem, draws: Draws, coef: Tensor, tables: Tensor) -> Tensor:
    """Covariance of the credit that branches get, (N·V, N·V): the gradient's is Hᵀ · it · H."""
    branches = tables.shape[1]
    _check_spread(branches)
    at = here.tree.branches[draws.response]
    weight = draws.beta[draws.pair] * draws.weight
    out = coef.new_zeros(branches * branches)
    for t in range(at.shape[1]):
        for s in range(at.shape[1]):
            out.index_add_(0, at[:, t] * branches + at[:, s], weight * coef[:, t] * coef[:, s])
    mean = draws.alpha @ tables
    return out.view(branches, branches) + tables.T @ draws.cross @ tables - torch.outer(mean, mean)


def _from_branches(here: Problem, x: Tensor) -> Tensor:
    """(n, N·V) credit of branches → (n, D)."""
    return here.new.combine(x.view(len(x), here.tree.n_nodes, here.tree.vocab))


def _all_groups(here: Problem, method: Method, group: int) -> tuple[Tensor, Tensor]:
    """The responses of every group (k, G) and its chance (k,)."""
    tree = here.tree
    slots, chances = [], []
    for prompt in range(tree.prompts):
        first = torch.arange(tree.responses) + prompt * tree.responses
        if method.fields is None:
            rows = torch.combinations(first, group, with_replacement=True)
            orders = math.factorial(group) / _repeats(rows)
        else:
            rows = torch.cartesian_prod(*[first] * group)
            orders = torch.ones(len(rows), dtype=torch.float64)
        slots.append(rows)
        chances.append(here.chances[rows].prod(1) * orders / tree.prompts)
    return torch.cat(slots), torch.cat(chances)


def _expected_together(here: Problem, draws: Draws, coef: Tensor, spread: bool) -> Moments:
    """``expected`` where the rows of a group are known together: sums over groups, some at a time."""
    tree, group = here.tree, draws.together
    branches = tree.n_nodes * tree.vocab
    if spread:
        _check_spread(branches)
    mean, second = coef.new_zeros(branches), 0.0
    outer = mean.new_zeros(branches, branches) if spread else None
    at, real = tree.branches[draws.response], tree.mask[draws.response]
    for rows in torch.arange(len(coef)).split(1024 * group):
        own, number = real[rows], (torch.arange(len(rows)) // group).unsqueeze(1)
        place = (at[rows] + branches * number)[own]
        tables = coef.new_zeros(len(rows) // group * branches).index_add(0, place, coef[rows][own])
        tables = tables.view(-1, branches)
        chance = draws.weight[rows[::group]]
        mean = mean + chance @ tables
        second += (chance * _from_branches(here, tables).square().sum(1)).sum().item()
        outer = None if outer is None else outer + (tables.T * chance) @ tables
    gradient = here.new.combine(mean.view(tree.n_nodes, tree.vocab))
    spread_of = None if outer is None else outer - torch.outer(mean, mean)
    return Moments(gradient, second - gradient.square().sum().item(), spread_of)


def _group_credit(
    here: Problem, method: Method, rows: Tensor, normalize: Normalizer | None, generator: Generator | None = None
) -> tuple[Tensor, Tensor]:
    """The credit (G, T) of one group, trained as a batch of its own, and its advantages (G, 1)."""
    batch = rollout(here, rows, torch.zeros_like(rows))
    advantage = method.advantage(batch)
    numbers = _numbers(here, method, batch, rows, advantage, generator)
    if normalize is not None or method.normalizer is not None:
        numbers["normalize"] = normalize or normalizer_of(method, here)
    return credit_of(here, method, rows, advantage, **numbers), advantage


def _numbers(
    here: Problem, method: Method, batch: Rollout, rows: Tensor, advantage: Tensor, generator: Generator | None = None
) -> dict[str, Any]:
    """The extra fields that the objective needs, and its controller's first numbers; no generator allows no chance."""
    numbers: dict[str, Any] = dict(method.controller().hyper())
    made: Mapping[str, Tensor] = {}
    if method.fields is not None:
        chance = generator or torch.Generator().manual_seed(0)
        before = chance.get_state()
        made = method.fields(batch, advantage, here.logp[rows], chance)
        if generator is None and not torch.equal(before, chance.get_state()):
            raise ValueError(f"{name_of(method.objective)} draws at random within a step: use monte_carlo")
    for need in method.needs:
        value = made.get(need, getattr(batch, need, None))
        if value is None:
            raise ValueError(f"{name_of(method.objective)} needs {need!r}, which an enumerated problem does not have")
        numbers[need] = value
    return numbers


def _sees_classes_only(here: Problem, method: Method, group: int, by_tokens: bool) -> bool:
    """Whether advantages of real groups are those of blank ones with the same rewards (and lengths)."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(here.tree.responses, (64, group), generator=generator).flatten()
    real = method.advantage(rollout(here, rows, torch.arange(64).repeat_interleave(group)))
    rewards, length = here.rewards[rows].view(64, group), here.tree.lengths[rows].view(64, group)
    blank = _advantages(method, rewards, length, here.tree.length, by_tokens)
    return real.shape == (64 * group, 1) and torch.equal(real, blank.view(-1, 1))


def _advantages(method: Method, rewards: Tensor, length: Tensor, longest: int, by_tokens: bool) -> Tensor:
    """The advantages (k, G) of groups known by their rewards (k, G), and by their lengths where these count."""
    k, group = rewards.shape
    mask = torch.ones(k * group, longest, dtype=torch.bool)
    if by_tokens:
        mask = torch.arange(longest) < length.view(-1, 1)
    batch = Rollout(
        tokens=torch.zeros(k * group, 1 + longest, dtype=torch.int64),
        prompt_mask=torch.ones(k * group, 1, dtype=torch.bool),
        mask=mask,
        logp_old=torch.zeros(k * group, longest, dtype=torch.float64),
        rewards=rewards.flatten(),
        group_ids=torch.arange(k).repeat_interleave(group),
        truncated=torch.zeros(k * group, dtype=torch.bool),
    )
    found = method.advantage(batch)
    return found[:, :1].view(k, group)


def _counts_tokens(method: Method, normalize: Normalizer) -> bool:
    takes = inspect.signature(normalize).parameters
    if "tokens" in takes:
        one = torch.ones(1, 2, dtype=torch.float64)
        if not torch.isclose(2 * normalize(one, one, tokens=2.0), normalize(one, one, tokens=1.0)):
            raise Coupled(f"the normalizer of {name_of(method.objective)} is not 1/tokens: use enumerated")
        return True
    if "responses" not in takes:
        raise Coupled(
            f"the normalizer of {name_of(method.objective)} takes neither responses nor tokens, so its counts cannot "
            f"be fixed: use enumerated"
        )
    return False


def _with(normalize: Normalizer, **counts: float | Tensor) -> Normalizer:
    takes = inspect.signature(normalize).parameters
    return partial(normalize, **{name: count for name, count in counts.items() if name in takes})


def _check_group(method: Method, group: int) -> None:
    if group < 2:
        raise ValueError(f"group={group}: a group has 2 responses or more")
    if method.critic is not None:
        raise ValueError(f"{name_of(method.objective)} has a critic, not groups: use population advantages")


def _check_spread(branches: int) -> None:
    if branches > 4096:
        raise ValueError(f"a covariance of {branches} branches is too large to hold: take a smaller tree")


def _repeats(slots: Tensor) -> Tensor:
    """Π n_c! of each row's repeated entries; (k,)."""
    out = torch.ones(len(slots), dtype=torch.float64)
    for g in range(slots.shape[1]):
        out = out * (slots[:, : g + 1] == slots[:, g : g + 1]).sum(1)
    return out


def _of_prompts(here: Problem, x: Tensor) -> Tensor:
    """E_old[x] of each response's prompt; (R,)."""
    by_prompt = x.new_zeros(here.tree.prompts).index_add(0, here.tree.prompt, here.chances * x)
    return by_prompt[here.tree.prompt]
