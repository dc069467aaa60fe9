"""A transformer on the tree of all responses: what ``Tabular`` is in closed form, here by one gradient per branch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sspo_teach.policies.causal_lm import CausalLM, tiny_qwen2
from sspo_teach.policies.tabular import Tree

NUMBERS = 1.5e8
"""Most numbers that the scores of all branches may hold, 1.2 GB in float64."""


@dataclass(frozen=True)
class OnTree:
    """A language model over a tree's V tokens; prompt p is the single token V + p, which no response says.

    Responses that share a prefix share its scores: there are N · V of them, not R · T. The table is exact for what the
    model computes; its gradients are good to 1e-6, since Qwen2 takes its norms in float32.

    Attributes:
        tree: all responses.
        model: its vocabulary holds V + P tokens at least; float64 for exact sums.
        shift: (D,) added to the model's parameters, so that policies can share one model.
        chunk: scores taken in one backward pass.
    """

    tree: Tree
    model: CausalLM
    shift: Tensor | None = None
    chunk: int = 64

    def __post_init__(self) -> None:
        need, have = self.tree.vocab + self.tree.prompts, self.model.vocab_size
        if have < need:
            raise ValueError(f"model knows {have} tokens: {self.tree.vocab} of the tree and a prompt each make {need}")
        size = self.tree.n_nodes * self.tree.vocab * sum(p.numel() for p in self.model.parameters())
        if size > NUMBERS:
            raise ValueError(
                f"the scores of {self.tree.n_nodes * self.tree.vocab} branches hold {size} numbers, more than "
                f"{NUMBERS:g}: take a smaller tree (about 500 responses) or a smaller model"
            )

    @staticmethod
    def tiny(tree: Tree, *, hidden_size: int = 16, seed: int = 0, scale: float = 4.0) -> OnTree:
        """One layer of Qwen2 in float64, a few thousand parameters; ``scale`` makes its random answers less uniform."""
        vocab = tree.vocab + tree.prompts
        model = tiny_qwen2(
            vocab, hidden_size=hidden_size, intermediate_size=2 * hidden_size, layers=1, heads=2, kv_heads=1, seed=seed,
            dtype=torch.float64,
        )  # fmt: skip
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(scale if parameter.ndim > 1 else 1.0)
        return OnTree(tree, model)

    @cached_property
    def vector(self) -> Tensor:
        """(D,) all parameters, one after the other."""
        own = torch.cat([p.detach().flatten() for p in self.model.parameters()])
        return own if self.shift is None else own + self.shift

    def at(self, vector: Tensor) -> OnTree:
        """The policy with other parameters (D,); the model itself stays as it is."""
        own = torch.cat([p.detach().flatten() for p in self.model.parameters()])
        return OnTree(self.tree, self.model, vector - own, self.chunk)

    @cached_property
    def table(self) -> Tensor:
        """(N, V) log-probabilities, without gradient."""
        with torch.no_grad():
            return self._table(self._parameters(grad=False))

    @cached_property
    def scores(self) -> Tensor:
        """(N · V, D) h = ∇ log π of every branch."""
        named = self._parameters(grad=True)
        table, leaves = self._table(named).flatten(), list(named.values())
        rows = torch.eye(len(table), dtype=table.dtype)
        parts = []
        for some in rows.split(self.chunk):
            taken = torch.autograd.grad(table, leaves, some, retain_graph=True, is_grads_batched=True)
            parts.append(torch.cat([g.flatten(1) for g in taken], 1))
        return torch.cat(parts)

    @cached_property
    def gram(self) -> Tensor:
        """(N · V, N · V) ⟨h, h'⟩."""
        return self.scores @ self.scores.T

    def combine(self, weights: Tensor) -> Tensor:
        """Σ over branches of weight · h: (…, N, V) → (…, D)."""
        return weights.flatten(-2) @ self.scores

    def norms(self, x: Tensor, rows: Tensor) -> Tensor:
        """‖Σₜ xₜ hₜ‖² = Σₜₛ xₜ xₛ ⟨hₜ, hₛ⟩ of each response; (n,)."""
        real, at = x.where(self.tree.mask[rows], 0.0), self.tree.branches[rows]
        out = x.new_zeros(len(rows))
        for t in range(self.tree.length):
            for s in range(self.tree.length):
                out += real[:, t] * real[:, s] * self.gram[at[:, t], at[:, s]]
        return out

    def _parameters(self, *, grad: bool) -> dict[str, Tensor]:
        out, start = {}, 0
        for name, parameter in self.model.named_parameters():
            piece = self.vector[start : start + parameter.numel()].view_as(parameter)
            out[name] = piece.clone().requires_grad_(grad)
            start += parameter.numel()
        return out

    def _table(self, named: dict[str, Tensor]) -> Tensor:
        """One forward pass over the longest prefixes; each node is read where it is met first."""
        tree = self.tree
        inside = tree.lengths == tree.length
        tokens, nodes = tree.tokens[inside], tree.nodes[inside]
        prompt = (tree.vocab + tree.prompt[inside]).unsqueeze(1)
        words = torch.cat([prompt, tokens[:, :-1]], 1)
        words, first = _unique_rows(words)
        nodes = nodes[first]
        logits = torch.func.functional_call(self.model.model, _inner(named), (), {"input_ids": words}).logits
        flat, where = nodes.flatten(), torch.empty(tree.n_nodes, dtype=torch.int64)
        where[flat.flip(0)] = torch.arange(len(flat)).flip(0)
        return logits[..., : tree.vocab].flatten(0, 1)[where].log_softmax(1)


def _inner(named: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("model."): value for name, value in named.items()}


def _unique_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """The different rows of x, and where each stands first."""
    rows, inverse = torch.unique(x, dim=0, return_inverse=True)
    first = torch.full((len(rows),), len(x)).scatter_reduce(0, inverse, torch.arange(len(x)), "amin")
    return rows, first
