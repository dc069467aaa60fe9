"""A transformer on the tree: the same questions as of a table, answered through its own gradients."""

from __future__ import annotations

import copy

import pytest
import torch

from sspo_teach import METHODS
from sspo_teach.exact import moments
from sspo_teach.exact.problem import DRIFTS, Problem, drifted, problem
from sspo_teach.policies.causal_lm import tiny_qwen2
from sspo_teach.policies.on_tree import OnTree
from sspo_teach.policies.tabular import Tree

FLOAT32 = 1e-6
"""Qwen2 takes its norms in float32, whatever the parameters: its gradients are not exact to more."""

TREE = Tree(letters=2, length=3, prompts=2)
POLICY = OnTree.tiny(TREE, hidden_size=8)
HERE = Problem(POLICY, POLICY.table, problem(letters=2, length=3, prompts=2, solved=0.6).rewards)


def by_autograd(policy, weights):
    """∇ Σ weights · log π through the model's own ``forward``, padded prompts and all."""
    model, tree = copy.deepcopy(policy.model), policy.tree
    with torch.no_grad():
        start = 0
        for parameter in model.parameters():
            parameter.copy_(policy.vector[start : start + parameter.numel()].view_as(parameter))
            start += parameter.numel()
    prompt = (tree.vocab + tree.prompt).unsqueeze(1)
    tokens = torch.cat([prompt, tree.tokens], 1)
    logits = model._states(tokens, torch.ones_like(prompt, dtype=torch.bool))[..., : tree.vocab]
    logp = logits.log_softmax(-1).gather(-1, tree.tokens.unsqueeze(-1)).squeeze(-1)
    model.zero_grad()
    (logp * weights).where(tree.mask, 0.0).sum().backward()
    return logp.detach().where(tree.mask, 0.0), torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("moved", [False, True])
def test_table_and_scores_are_the_models(moved):
    policy = POLICY.at(POLICY.vector + 0.1 * torch.linspace(-1, 1, len(POLICY.vector))) if moved else POLICY
    weights = torch.linspace(-1, 2, TREE.size * 3, dtype=torch.float64).view(-1, 3)
    logp, wanted = by_autograd(policy, weights)
    assert torch.allclose(TREE.read(policy.table), logp, rtol=0, atol=1e-12)
    found = policy.combine(TREE.sums(weights))
    assert (found - wanted).norm() < FLOAT32 * wanted.norm()
    for row in (0, 7, TREE.size - 1):
        one = weights.where(torch.arange(TREE.size).unsqueeze(1) == row, 0.0)
        norm = policy.norms(weights[[row]], torch.tensor([row]))
        assert norm.item() == pytest.approx(by_autograd(policy, one)[1].square().sum().item(), rel=FLOAT32)


@pytest.mark.parametrize("kind", DRIFTS)
def test_drifts_reach_their_distance(kind):
    far = drifted(HERE, kind, 0.05)
    assert far.distance == pytest.approx(0.05, rel=1e-6)
    assert (moments.of(far, METHODS["reinforce"]).mean - far.truth).norm() > 1e-4


@pytest.mark.parametrize("name", ["rloo", "sspo", "dapo"])
def test_classes_are_brute_force(name):
    small = Tree(letters=2, length=2, prompts=2)
    policy = OnTree.tiny(small, hidden_size=8, seed=1)
    rewards = problem(letters=2, length=2, prompts=2, levels=3, solved=0.6).rewards
    here = drifted(Problem(policy, policy.table, rewards), "random", 0.1)
    a, b = moments.of(here, METHODS[name], 2, spread=True), moments.enumerated(here, METHODS[name], 2, spread=True)
    assert torch.allclose(a.mean, b.mean, rtol=0, atol=1e-12)
    assert a.trace == pytest.approx(b.trace, rel=1e-10)
    eigen = moments.eigenvalues(here, a, 1000)
    assert eigen.sum().item() == pytest.approx(a.trace, rel=1e-8)
    assert eigen[0].item() == pytest.approx(torch.linalg.matrix_norm(moments.covariance(here, b), 2).item(), rel=1e-8)


def test_on_policy_the_truth():
    found = moments.of(HERE, METHODS["rloo"], 3).mean
    assert (found - HERE.truth).norm() < FLOAT32 * HERE.truth.norm()


def test_the_learner_moves_and_the_model_stays():
    before = [p.clone() for p in POLICY.model.parameters()]
    far = moments.stale(HERE, METHODS["sspo"], 0.02, updates=2)
    assert far.distance == pytest.approx(0.02, rel=1e-6)
    assert far.value > HERE.value
    assert all(torch.equal(a, b) for a, b in zip(before, POLICY.model.parameters(), strict=True))


def test_refusals():
    with pytest.raises(ValueError, match="model knows 4 tokens: 3 of the tree and a prompt each make 5"):
        OnTree(TREE, tiny_qwen2(4, hidden_size=8, heads=2, kv_heads=1))
    with pytest.raises(ValueError, match="take a smaller tree"):
        OnTree(Tree(5, 6), tiny_qwen2(16, dtype=torch.float64))
