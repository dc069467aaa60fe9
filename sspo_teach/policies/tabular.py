"""A policy small enough to write down: one softmax per prefix, and the tree of all responses that it can give.

Shapes: P prompts; K letters and EOS, V = K + 1; responses of at most T tokens, R of them over all prompts; N prefixes
(nodes) over all prompts. Token 0 is EOS. A table (N, V) holds log π(token | prefix) of every branch. In float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Protocol

import torch
from torch import Tensor

from sspo_teach.tensors import masked_sum

LARGEST = 200_000
"""More responses than this are not enumerated."""


@dataclass(frozen=True)
class Tree:
    """All responses of at most ``length`` tokens over ``letters`` letters and EOS, to each of ``prompts`` prompts.

    A response is a word of fewer than T letters and EOS, or T letters without; short before long, prompt after prompt.
    A prefix of fewer than T letters is a node, in the order of words.
    """

    letters: int
    length: int
    prompts: int = 1

    def __post_init__(self) -> None:
        for name in ("letters", "length", "prompts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.size > LARGEST:
            raise ValueError(
                f"letters={self.letters}, length={self.length}, prompts={self.prompts} make {self.size} responses, "
                f"more than {LARGEST}: take fewer letters or a smaller length"
            )

    @property
    def vocab(self) -> int:
        """V, the letters and EOS."""
        return self.letters + 1

    @property
    def responses(self) -> int:
        """Responses to one prompt, 1 + K + … + K^T."""
        return sum(self.letters**n for n in range(self.length + 1))

    @property
    def nodes_each(self) -> int:
        """Prefixes of one prompt, 1 + K + … + K^(T−1)."""
        return sum(self.letters**n for n in range(self.length))

    @property
    def size(self) -> int:
        """R, the responses to all prompts."""
        return self.prompts * self.responses

    @property
    def n_nodes(self) -> int:
        """N, the prefixes of all prompts."""
        return self.prompts * self.nodes_each

    @cached_property
    def words(self) -> Tensor:
        """(R/P, T) int64 letters from 1, then zeros: the responses to one prompt."""
        rows = [word for n in range(self.length + 1) for word in product(range(1, self.vocab), repeat=n)]
        return torch.tensor([[*word, *[0] * (self.length - len(word))] for word in rows])

    @cached_property
    def tokens(self) -> Tensor:
        """(R, T) int64; EOS is 0, and so is the padding behind it."""
        return self.words.repeat(self.prompts, 1)

    @cached_property
    def mask(self) -> Tensor:
        """(R, T) bool, True up to and including EOS."""
        return torch.arange(self.length) < self.lengths.unsqueeze(1)

    @cached_property
    def lengths(self) -> Tensor:
        """(R,) L, EOS included."""
        return ((self.tokens > 0).sum(1) + 1).clamp(max=self.length)

    @cached_property
    def finished(self) -> Tensor:
        """(R,) bool, whether the response says EOS."""
        return self.tokens[:, -1] == 0

    @cached_property
    def prompt(self) -> Tensor:
        """(R,) int64, which prompt a response answers."""
        return torch.arange(self.prompts).repeat_interleave(self.responses)

    @cached_property
    def nodes(self) -> Tensor:
        """(R, T) int64, the prefix before each token; on padding, the last real one."""
        K = self.letters
        start = torch.tensor([sum(K**m for m in range(n)) for n in range(self.length)])
        place = torch.zeros(self.size, dtype=torch.int64)
        columns = []
        for t in range(self.length):
            columns.append(start[t] + place)
            place = place * K + (self.tokens[:, t] - 1).clamp(min=0)
        nodes = torch.stack(columns, 1)
        last = nodes.gather(1, self.lengths.unsqueeze(1) - 1)
        return nodes.where(self.mask, last) + (self.prompt * self.nodes_each).unsqueeze(1)

    @cached_property
    def branches(self) -> Tensor:
        """(R, T) int64, node · V + token: where each token stands in a flattened table."""
        return self.nodes * self.vocab + self.tokens

    def read(self, table: Tensor) -> Tensor:
        """The numbers of each response's tokens from a table (N, V); (R, T), 0 on padding."""
        return table.flatten()[self.branches].where(self.mask, 0.0)

    def sums(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Add (R, T) numbers of tokens into a table (N, V): token-by-token credit becomes credit of branches."""
        at, real = (self.branches, self.mask) if rows is None else (self.branches[rows], self.mask[rows])
        flat = x.new_zeros(self.n_nodes * self.vocab)
        return flat.index_add(0, at[real], x[real]).view(self.n_nodes, self.vocab)

    def log_prob(self, table: Tensor) -> Tensor:
        """log π(y) of whole responses; (R,)."""
        return masked_sum(self.read(table), self.mask).squeeze(1)


class TreePolicy(Protocol):
    """A policy over a tree, and what its scores h = ∇ log π(token | prefix) add up to; D parameters."""

    @property
    def tree(self) -> Tree: ...

    @property
    def table(self) -> Tensor:
        """(N, V) log-probabilities."""
        ...

    @property
    def vector(self) -> Tensor:
        """(D,) the parameters."""
        ...

    def at(self, vector: Tensor) -> TreePolicy:
        """The policy with other parameters (D,)."""
        ...

    def combine(self, weights: Tensor) -> Tensor:
        """Σ over branches of weight · h: (…, N, V) → (…, D)."""
        ...

    def norms(self, x: Tensor, rows: Tensor) -> Tensor:
        """‖Σₜ xₜ hₜ‖² of each response of ``rows`` (n,), from x (n, T); (n,)."""
        ...


@dataclass(frozen=True)
class Tabular:
    """π(token | prefix) = softmax of the prefix's own logits; ``logits`` (N, V) float64 are the parameters.

    h = e_token − π(· | prefix) lives in the block of one prefix, and the prefixes of one response differ: its tokens'
    scores are orthogonal, so nothing of size responses × parameters is ever needed.
    """

    tree: Tree
    logits: Tensor

    def __post_init__(self) -> None:
        wanted = (self.tree.n_nodes, self.tree.vocab)
        if self.logits.shape != wanted:
            raise ValueError(f"logits has shape {tuple(self.logits.shape)}: this tree's table is {wanted}")

    @staticmethod
    def random(tree: Tree, *, scale: float = 0.7, seed: int = 0) -> Tabular:
        """Normal logits of standard deviation ``scale``."""
        generator = torch.Generator().manual_seed(seed)
        shape = (tree.n_nodes, tree.vocab)
        return Tabular(tree, scale * torch.randn(shape, generator=generator, dtype=torch.float64))

    @cached_property
    def table(self) -> Tensor:
        """(N, V) log-probabilities."""
        return self.logits.log_softmax(1)

    @cached_property
    def vector(self) -> Tensor:
        """(D,) = N · V logits."""
        return self.logits.flatten()

    def at(self, vector: Tensor) -> Tabular:
        """The policy with other logits, (D,)."""
        return Tabular(self.tree, vector.view_as(self.logits))

    def combine(self, weights: Tensor) -> Tensor:
        """Σ w (e − π) = w − π Σᵥ w, prefix by prefix."""
        return (weights - self.table.exp() * weights.sum(-1, keepdim=True)).flatten(-2)

    def norms(self, x: Tensor, rows: Tensor) -> Tensor:
        """Σₜ xₜ² ‖e − π‖², with ‖e − π‖² = 1 − 2π(token) + Σᵥ πᵥ²."""
        p = self.table.exp()
        square = 1 - 2 * p + p.square().sum(1, keepdim=True)
        return masked_sum(x.square() * self.tree.read(square)[rows], self.tree.mask[rows]).squeeze(1)
