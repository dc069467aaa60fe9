"""A problem whose every response is known: the truth about it, and behaviour policies at a marked distance.

Prompts are drawn with equal chances, responses by the behaviour policy ``old``; what is trained is ``new``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from sspo_teach import gates
from sspo_teach.objectives import units
from sspo_teach.objectives.normalize import Normalizer, sequence_sum
from sspo_teach.policies.tabular import Tabular, Tree, TreePolicy
from sspo_teach.tensors import check_positive, checked, log_ratio, unknown


@dataclass(frozen=True)
class Problem:
    """Rewards of all responses, the policy to be trained and the one that samples.

    Attributes:
        new: π_θ; its tree is the problem's.
        old: (N, V) log-probabilities of the behaviour policy; only its table matters.
        rewards: (R,) float64. Few different values keep groups countable.
        reference: (N, V) log-probabilities of a frozen reference, where a KL term or a method wants one.
        beta: the price of KL(π_θ ‖ reference) in the truth.
    """

    new: TreePolicy
    old: Tensor
    rewards: Tensor
    reference: Tensor | None = None
    beta: float = 0.0

    def __post_init__(self) -> None:
        if self.rewards.shape != (self.tree.size,):
            raise ValueError(f"rewards has shape {tuple(self.rewards.shape)}: one per response is ({self.tree.size},)")
        if self.beta and self.reference is None:
            raise ValueError(f"beta={self.beta:g} needs a reference: give its table of log-probabilities (N, V)")

    @property
    def tree(self) -> Tree:
        return self.new.tree

    @cached_property
    def logp(self) -> Tensor:
        """(R, T) log π_θ of each token, without gradient."""
        return self.tree.read(self.new.table.detach())

    @cached_property
    def logp_old(self) -> Tensor:
        """(R, T) log π_old of each token."""
        return self.tree.read(self.old)

    @cached_property
    def chances(self) -> Tensor:
        """(R,) π_old(y) of a response given its prompt; sums to 1 for each prompt."""
        return self.logp_old.sum(1).exp()

    @cached_property
    def ratio(self) -> Tensor:
        """(R,) W = π_θ(y)/π_old(y), the importance weight of a whole response."""
        return (self.logp - self.logp_old).sum(1).exp()

    @cached_property
    def target(self) -> Tensor:
        """(R,) what is maximised: R − β log(π_θ/π_ref)."""
        if not self.beta or self.reference is None:
            return self.rewards
        return self.rewards - self.beta * (self.logp - self.tree.read(self.reference)).sum(1)

    @cached_property
    def correct(self) -> Tensor:
        """(R,) bool, whether no response to the same prompt earns more."""
        best = self.rewards.new_full((self.tree.prompts,), -torch.inf)
        best = best.scatter_reduce(0, self.tree.prompt, self.rewards, "amax")
        return self.rewards == best[self.tree.prompt]

    @cached_property
    def value(self) -> float:
        """J = E_{π_θ}[R] − β KL(π_θ ‖ π_ref), the mean over prompts."""
        return (self.logp.sum(1).exp() * self.target).sum().item() / self.tree.prompts

    @cached_property
    def truth(self) -> Tensor:
        """(D,) ∇J = Σ π_θ(y) (R − β log(π_θ/π_ref)) ∇ log π_θ(y), the mean over prompts; E[∇ log π_θ] = 0."""
        weight = self.logp.sum(1).exp() * self.target / self.tree.prompts
        return self.new.combine(self.tree.sums(weight.unsqueeze(1).expand_as(self.logp)))

    @cached_property
    def distance(self) -> float:
        """KL(old ‖ new) of whole responses, the mean over prompts."""
        return kl(self.tree, self.old, self.new.table.detach())

    @cached_property
    def sample_size(self) -> float:
        """Effective share of the samples under importance weighting of responses, 1/E[W²]."""
        return self.tree.prompts / (self.chances * self.ratio.square()).sum().item()

    def dead(self, group: int) -> float:
        """The probability that all rewards of a group are equal."""
        equal = self.rewards.unsqueeze(1) == self.rewards.unique()
        share = self.chances.unsqueeze(1) * equal
        each = torch.stack([share[self.tree.prompt == p].sum(0) for p in range(self.tree.prompts)])
        return each.pow(group).sum(1).mean().item()


@checked
def sequence_is(
    logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, *, normalize: Normalizer = sequence_sum
) -> Tensor:
    """J = 1/R Σᵢ sg[Πₜ ρᵢₜ] Aᵢ Σₜ log π_θ: the yardstick, unbiased however stale the data, and as noisy as W."""
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.score(units.product(log_r, mask).exp(), log_r) * advantages, mask)


def kl(tree: Tree, p: Tensor, q: Tensor) -> float:
    """KL(p ‖ q) of whole responses from two tables (N, V) of log-probabilities, the mean over prompts."""
    log_p = tree.log_prob(p)
    return (log_p.exp() * (log_p - tree.log_prob(q))).sum().item() / tree.prompts


def problem(
    *,
    letters: int = 3,
    length: int = 4,
    prompts: int = 2,
    levels: int = 2,
    solved: float = 0.3,
    scale: float = 0.7,
    seed: int = 0,
) -> Problem:
    """A problem at hand: random logits, and rewards 0, …, 1 in ``levels`` steps at random responses that finished.

    Args:
        letters: K.
        length: T.
        prompts: P, each with its own table and rewards.
        levels: how many different rewards.
        solved: share of the finished responses with a reward above 0.
        scale: standard deviation of the logits.
        seed: of both.
    """
    check_positive(scale=scale)
    if levels < 2:
        raise ValueError(f"levels={levels}: must be at least 2, or no response is better than another")
    tree = Tree(letters, length, prompts)
    policy = Tabular.random(tree, scale=scale, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    luck, height = torch.rand((2, tree.size), generator=generator, dtype=torch.float64)
    rewards = (1 + (height * (levels - 1)).floor()) / (levels - 1) * ((luck < solved) & tree.finished)
    return Problem(policy, policy.table, rewards)


Drift = Callable[[Problem, float, int], Tensor]
"""(problem, size, seed) → (N, V) the behaviour policy's table; at size 0 it is the new policy's."""


def along_random(here: Problem, size: float, seed: int) -> Tensor:
    """Parameters moved along a random direction of unit length."""
    generator = torch.Generator().manual_seed(seed + 2)  # not the stream that drew the logits
    way = torch.randn(here.new.vector.shape, generator=generator, dtype=torch.float64)
    return _moved(here.new, -size * way / way.norm())


def along_gradient(here: Problem, size: float, seed: int) -> Tensor:
    """The learner has gone up the true gradient, so the sampler stands behind it."""
    return _moved(here.new, -size * here.truth / here.truth.norm())


def by_temperature(here: Problem, size: float, seed: int) -> Tensor:
    """The sampler is colder, at T = 1/(1 + size); a hotter one would not get far."""
    return (here.new.table.detach() * (1 + size)).log_softmax(1)


def by_outlier(here: Problem, size: float, seed: int) -> Tensor:
    """The sampler nearly lost one token, the likeliest first one of each prompt: its ratio is large and rare."""
    table = here.new.table.detach().clone()
    roots = torch.arange(here.tree.prompts) * here.tree.nodes_each
    table[roots, table[roots].argmax(1)] -= size
    return table.log_softmax(1)


def by_precision(here: Problem, size: float, seed: int) -> Tensor:
    """The sampler computes coarsely: bfloat16's rounding errors of the log-probabilities, magnified."""
    table = here.new.table.detach()
    error = table.bfloat16().double() - table
    return (table + size * error / error.norm()).log_softmax(1)


DRIFTS: Mapping[str, Drift] = {
    "random": along_random,
    "gradient": along_gradient,
    "temperature": by_temperature,
    "outlier": by_outlier,
    "precision": by_precision,
}
"""Ways to part that move the sampler and leave new policy and truth alone; ``moments.stale`` moves the learner."""


def drifted(here: Problem, kind: str, distance: float, *, seed: int = 0) -> Problem:
    """``here`` with the behaviour policy at KL(old ‖ new) = ``distance`` (relative 1e-9)."""
    if kind not in DRIFTS:
        raise ValueError(unknown("drift", kind, DRIFTS))
    now = here.new.table.detach()

    def table(size: float) -> Tensor:
        return DRIFTS[kind](here, size, seed)

    size = reach(lambda size: kl(here.tree, table(size), now), distance, kind)
    return replace(here, old=table(size))


def reach(f: Callable[[float], float], wanted: float, name: str, *, most: float = 1e6) -> float:
    """The size at which f, 0 at 0 and growing, is ``wanted`` (relative 1e-9); 0 for 0.

    A divergence grows like the square of a small step, so √f is nearly straight: regula falsi on it, in the Illinois
    form, which halves the weight of an end that stays.
    """
    if not wanted >= 0:
        raise ValueError(f"distance={wanted}: a KL divergence is 0 or positive")
    if wanted == 0:
        return 0.0
    aim = wanted**0.5
    low, high, below = 0.0, 1e-3, -aim
    while (found := f(high)) < wanted:
        straight = 1.1 * aim / found**0.5 if found > 0 else 10.0
        low, high, below = high, high * min(max(straight, 2.0), 10.0), found**0.5 - aim
        if high > most:
            raise ValueError(
                f"distance={wanted:g} is out of reach of the drift {name!r}, which ends at KL = {found:.4g}: "
                f"take a smaller one"
            )
    above, side = found**0.5 - aim, 0
    middle = high
    for _ in range(200):
        if abs(found - wanted) <= 1e-9 * wanted or high - low <= 1e-15 * high:
            break
        middle = (low * above - high * below) / (above - below)
        found = f(middle)
        gap = found**0.5 - aim
        if gap > 0:
            high, above = middle, gap
            below, side = (below / 2, 1) if side == 1 else (below, 1)
        else:
            low, below = middle, gap
            above, side = (above / 2, -1) if side == -1 else (above, -1)
    return middle


def _moved(policy: TreePolicy, step: Tensor) -> Tensor:
    return policy.at(policy.vector + step).table.detach()
