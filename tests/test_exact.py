"""The exact laboratory: sums over all responses, against other ways to the same numbers."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from exceptions import LAWS, WEIGHT

from sspo_teach import METHODS, gates
from sspo_teach.catalog import Method
from sspo_teach.exact import decompose, moments
from sspo_teach.exact.problem import DRIFTS, drifted, kl, problem, sequence_is
from sspo_teach.objectives import units
from sspo_teach.objectives.advantages import group_centered, group_leave_one_out, normalized
from sspo_teach.objectives.normalize import constant, response_mean, sequence_sum, token_mean
from sspo_teach.policies.tabular import Tabular, Tree
from sspo_teach.tensors import checked, log_ratio
from sspo_teach.types import Verified

HERE = problem(letters=2, length=3, prompts=2, levels=3, solved=0.6, seed=3)
TINY = problem(letters=2, length=2, prompts=2, levels=3, solved=0.6, seed=1)
FAR = drifted(HERE, "random", 0.2)
RANDOM = {"clip_cov"}
"""Draw at random within a step: there is nothing to enumerate."""

COUPLED = [name for name, row in METHODS.items() if not row.separable or row.fields is not None]
SAMPLED = [
    "reinforce",
    "rloo",
    "grpo",
    "dr_grpo",
    "dapo",
    "cispo",
    "gspo",
    "gmpo",
    "sapo",
    "sspo",
    "gepo",
    "ctpo",
    "vespo",
]
NAMES = [name for name, row in METHODS.items() if row.critic is None and name not in RANDOM]


def close(a, b, tolerance=1e-12):
    return torch.as_tensor(a, dtype=torch.float64).sub(b).abs().max().item() < tolerance


def autograd(here, loss_of):
    """The gradient of a function of the table of log-probabilities, by autograd through the log-softmax."""
    logits = here.new.logits.clone().requires_grad_()
    (g,) = torch.autograd.grad(loss_of(logits.log_softmax(1)), logits)
    return g.flatten()


# --- the tree and the truth ---


def test_the_tree_holds_every_response_once():
    tree = Tree(letters=3, length=4, prompts=2)
    said = [tuple(row[mask].tolist()) for row, mask in zip(tree.tokens, tree.mask, strict=True)]
    assert len(set(said)) == len(said) / 2 == tree.responses == 121
    assert said[: tree.responses] == said[tree.responses :]
    assert all((0 in word) == (len(word) < 4 or word[-1] == 0) and 0 not in word[:-1] for word in said)
    assert int(tree.lengths.min()) == 1
    seen = {}
    for row, mask, nodes in zip(tree.tokens, tree.mask, tree.nodes, strict=True):
        for t in range(int(mask.sum())):
            key = (int(nodes[0]), *row[:t].tolist())
            assert seen.setdefault(key, int(nodes[t])) == int(nodes[t])
    assert len(set(seen.values())) == len(seen) == tree.n_nodes


def test_the_tree_is_the_bandits():
    from toy_envs.bandit import Bandit

    tokens, mask = Bandit(letters=3, max_new_tokens=4).responses()
    tree = Tree(letters=3, length=4)
    assert (torch.from_numpy(mask) == tree.mask).all()
    assert (torch.from_numpy(tokens)[tree.mask] == tree.tokens[tree.mask] + 1).all()  # there, EOS is 1


@pytest.mark.parametrize("here", [HERE, FAR], ids=["near", "far"])
def test_chances_are_chances(here):
    for logp in (here.logp, here.logp_old):
        each = torch.stack([logp.sum(1).exp()[here.tree.prompt == p].sum() for p in range(2)])
        assert close(each, 1.0)
    assert close((here.chances * here.ratio).sum() / 2, 1.0)


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_truth_is_the_gradient_of_the_value(beta):
    reference = Tabular.random(HERE.tree, seed=9).table
    here = replace(HERE, reference=reference, beta=beta)

    def value(table):
        p = here.tree.log_prob(table).exp()
        gap = here.tree.log_prob(table) - here.tree.log_prob(reference)
        return (p * (here.rewards - beta * gap)).sum() / 2

    assert close(here.truth, autograd(here, value))
    assert close(here.value, value(here.new.table))


@pytest.mark.parametrize("kind", DRIFTS)
@pytest.mark.parametrize("distance", [1e-4, 0.03, 0.3])
def test_a_drift_is_as_far_as_it_is_marked(kind, distance):
    far = drifted(HERE, kind, distance, seed=4)
    assert far.distance == pytest.approx(distance, rel=1e-8)
    by_node = (far.old.exp() * (far.old - far.new.table)).sum(1)
    visits = torch.zeros(far.tree.n_nodes, dtype=torch.float64)
    for y in range(far.tree.size):
        for t in range(int(far.tree.lengths[y])):
            visits[far.tree.nodes[y, t]] += far.chances[y]
    assert float((visits * by_node).sum() / 2) == pytest.approx(distance, rel=1e-8)  # conditional KLs add up
    assert drifted(HERE, kind, 0.0).distance == pytest.approx(0.0, abs=1e-12)


def test_a_drift_out_of_reach_says_how_far_it_goes():
    with pytest.raises(ValueError, match=r"distance=5 is out of reach of the drift 'outlier', which ends at KL = 0\."):
        drifted(HERE, "outlier", 5.0)
    with pytest.raises(ValueError, match="unknown drift: 'randm'; did you mean 'random'"):
        drifted(HERE, "randm", 0.1)
    with pytest.raises(ValueError, match="distance=-1"):
        drifted(HERE, "random", -1)


@pytest.mark.parametrize("name", ["grpo", "sspo"])
def test_stale_updates_move_the_learner(name):
    far = moments.stale(HERE, METHODS[name], 0.05)
    assert far.distance == pytest.approx(0.05, rel=1e-8)
    assert torch.equal(far.old, HERE.new.table)
    assert far.value > HERE.value


# --- moments, by classes and by brute force ---


@pytest.mark.parametrize(("name", "group"), [*((name, 2) for name in NAMES), ("dapo", 3), ("sspo", 3)])
def test_classes_give_what_all_ordered_groups_give(name, group):
    """N^G groups, each trained by the objective itself; mean and covariance."""
    here, row = drifted(TINY, "random", 0.3), METHODS[name]
    tree, D = here.tree, here.truth.numel()
    mean, outer = torch.zeros(D, dtype=torch.float64), torch.zeros(D, D, dtype=torch.float64)
    for p in range(2):
        for rows in itertools.product(range(p * tree.responses, (p + 1) * tree.responses), repeat=group):
            rows = torch.tensor(rows)
            chance = here.chances[rows].prod() / 2
            g = here.new.combine(tree.sums(moments._group_credit(here, row, rows, None)[0], rows))
            mean, outer = mean + chance * g, outer + chance * torch.outer(g, g)
    found = moments.of(here, row, group, spread=True)
    covariance = outer - torch.outer(mean, mean)
    assert close(found.mean, mean)
    assert found.trace == pytest.approx(covariance.trace().item(), abs=1e-12)
    assert close(moments.covariance(here, found), covariance)


@pytest.mark.parametrize(("name", "group"), [*((name, 3) for name in NAMES if name not in COUPLED), ("dapo", 4)])
def test_classes_and_enumeration_agree(name, group):
    here, row = drifted(TINY, "gradient", 0.1), METHODS[name]
    a, b = moments.of(here, row, group, spread=True), moments.enumerated(here, row, group, spread=True)
    assert close(a.mean, b.mean)
    assert close(a.spread, b.spread)


@pytest.mark.parametrize("standardised", [False, True])
def test_population_is_one_pass_over_responses(standardised):
    """Mean and covariance against a loop over responses, with gradients by autograd."""
    row, here = METHODS["sspo"], FAR
    A = moments.population_draws(here, standardised=standardised).advantage
    mean, second = torch.zeros_like(here.truth), 0.0
    for y in range(here.tree.size):
        rows = torch.tensor([y])
        c = moments.credit_of(here, row, rows, A[rows])
        g = autograd(here, lambda table, c=c, rows=rows: (here.tree.read(table)[rows] * c).sum())
        mean, second = mean + here.chances[y] / 2 * g, second + (here.chances[y] / 2 * g.square().sum()).item()
    found = moments.of(here, row, standardised=standardised, spread=True)
    assert close(found.mean, mean)
    assert found.trace == pytest.approx(second - mean.square().sum().item(), abs=1e-12)
    assert moments.covariance(here, found).trace().item() == pytest.approx(found.trace, abs=1e-12)


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("kind", ["random", "outlier", "precision"])
def test_exact_and_monte_carlo_agree(name, kind):
    """Within 4 standard errors, along the truth, along a random direction, and in the second moment."""
    here, row = drifted(TINY, kind, 0.1), METHODS[name]
    exact = moments.of(here, row, 3)
    ways = torch.stack([here.truth, torch.linspace(-1, 1, here.truth.numel(), dtype=torch.float64)])
    sampled = moments.monte_carlo(here, row, 3, groups=400, seed=7, directions=ways)
    error = sampled.along.std(0) / 20
    assert ((sampled.along.mean(0) - ways @ exact.mean).abs() < 4 * error).all()
    second = exact.trace + exact.mean.square().sum()
    assert (sampled.norms.mean() - second).abs() < 4 * sampled.norms.std() / 20
    assert (error > 0).all()


def test_a_large_tree_is_no_matrix():
    """19 531 responses, 23 436 parameters: a dense matrix of scores would take 3.7 GB."""
    far = drifted(problem(letters=5, length=6, prompts=1), "random", 0.1)
    found = moments.of(far, METHODS["dapo"], 4)
    assert found.mean.numel() == 23436
    assert torch.cosine_similarity(found.mean, far.truth, dim=0) > 0.7


# --- on-policy ---


@pytest.mark.parametrize("name", NAMES)
def test_on_policy_every_method_follows_the_truth(name):
    """With population advantages and a plain sum over tokens, times the method's weight on-policy."""
    row = METHODS[name]
    if not row.separable or row.fields is not None:
        with pytest.raises(moments.Coupled, match="take a group"):
            moments.of(HERE, row)
        return
    found = moments.of(HERE, row, normalize=sequence_sum).mean
    if "on-policy" in LAWS.get(name, {}):
        assert (found - HERE.truth).norm() > 0.1 * HERE.truth.norm()
    else:
        assert close(found, {"pspo": 0.9, **WEIGHT}.get(name, 1.0) * HERE.truth)


@pytest.mark.skipif("fspo" not in METHODS, reason="no such row")
def test_a_product_carries_the_length_by_itself():
    """FSPO under its own response mean: the gradient of Π ρ is that of the whole response."""
    assert close(moments.of(HERE, METHODS["fspo"]).mean, HERE.truth)


@pytest.mark.parametrize("name", sorted(RANDOM & set(METHODS)))
def test_chance_within_a_step_is_sampled_and_not_enumerated(name):
    with pytest.raises(ValueError, match="clip_cov draws at random within a step: use monte_carlo"):
        moments.of(TINY, METHODS[name], 2)
    assert moments.monte_carlo(TINY, METHODS[name], 2, groups=50).norms.mean() > 0


@pytest.mark.parametrize("group", [2, 3, 4])
def test_group_baselines_are_unbiased_up_to_a_constant(group):
    """RLOO is unbiased, Dr. GRPO is (G − 1)/G of it, over the longest length where the trainer divides by it."""
    rloo = moments.of(HERE, METHODS["rloo"], group)
    assert close(rloo.mean, HERE.truth)
    printed = moments.of(HERE, METHODS["dr_grpo"], group, normalize=sequence_sum)
    assert close(printed.mean, (group - 1) / group * rloo.mean)
    trained = moments.of(HERE, METHODS["dr_grpo"], group)
    assert close(trained.mean, (group - 1) / group / HERE.tree.length * HERE.truth)
    assert close(moments.of(HERE, METHODS["reinforce"], group).mean, (group - 1) / group * HERE.truth)


@pytest.mark.parametrize("group", [2, 3, 4])
@pytest.mark.parametrize("name", ["grpo", "sapo", "sspo", "gspo", "cispo"])
def test_the_standard_deviation_reweights_prompts_by_a_known_factor(name, group):
    """Binary rewards, p solved: E[ĝ] of a prompt is κ ∇J with κ = E[A | R = 1] − E[A | R = 0], a binomial sum.

    Groups of 2 and 3 have but one standard deviation: κ is the same for every prompt, and there is no bias.
    """
    here = problem(letters=2, length=3, prompts=2, solved=0.5, seed=5)
    wanted = torch.zeros_like(here.truth).view(2, -1)
    for prompt in range(2):
        rows = here.tree.prompt == prompt
        p = (here.chances * here.rewards)[rows].sum().item()
        kappa = 0.0
        for others in range(group):
            chance = math.comb(group - 1, others) * p**others * (1 - p) ** (group - 1 - others)
            for mine, sign in ((1.0, 1), (0.0, -1)):
                rewards = torch.tensor([mine] + [1.0] * others + [0.0] * (group - 1 - others), dtype=torch.float64)
                kappa += sign * chance * normalized(rewards, torch.zeros(group, dtype=torch.int64))[0].item()
        wanted[prompt] = kappa * here.truth.view(2, -1)[prompt]
    assert close(moments.of(here, METHODS[name], group, normalize=sequence_sum).mean, wanted.flatten())
    cosine = torch.cosine_similarity(wanted.flatten(), here.truth, dim=0).item()
    assert (cosine < 1 - 1e-6) if group == 4 else cosine == pytest.approx(1, abs=1e-10)


def test_the_response_mean_is_biased_towards_short_responses():
    """E[ĝ] = Σ π A/L ∇log π, the gradient of another goal; the token mean of the infinite batch has no such bias."""
    A = moments.population_draws(HERE).advantage
    weight = (HERE.chances.unsqueeze(1) * A / HERE.tree.lengths.unsqueeze(1) / 2).expand_as(HERE.logp)
    wanted = HERE.new.combine(HERE.tree.sums(weight))
    found = moments.of(HERE, METHODS["grpo"]).mean
    assert close(found, wanted)
    assert torch.cosine_similarity(found, HERE.truth, dim=0) < 0.99
    length = (HERE.chances * HERE.tree.lengths).sum() / 2
    assert close(moments.of(HERE, METHODS["grpo"], normalize=token_mean).mean, HERE.truth / length)


# --- off-policy ---

SEQUENCE_IS = Method(sequence_is, Verified.NOTES, advantage=group_leave_one_out)


@pytest.mark.parametrize("kind", DRIFTS)
def test_sequence_weights_are_unbiased_however_stale(kind):
    far = drifted(HERE, kind, 0.2)
    assert close(moments.of(far, SEQUENCE_IS).mean, far.truth)
    if kind == "random":  # the old policy's baseline is no function of the new one, and need not be
        near = moments.of(HERE, SEQUENCE_IS)
        assert moments.of(far, SEQUENCE_IS).trace > near.trace


def test_group_baselines_and_sequence_weights_go_together():
    """E[W A] with A from the others: they are independent of the response, so RLOO's advantage stays unbiased."""
    assert close(moments.of(FAR, SEQUENCE_IS, 3).mean, FAR.truth)


def test_token_weights_are_biased_off_policy():
    found = moments.of(FAR, METHODS["reinforce"]).mean
    assert (found - FAR.truth).norm() > 0.01 * FAR.truth.norm()


@checked
def prefix_is(logp, logp_old, advantages, mask, *, normalize=sequence_sum):
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(gates.score(units.prefix(log_r, mask).exp(), log_r) * advantages, mask)


def test_prefix_weights_suit_action_values_and_not_outcomes():
    """Exact for Q(y≤t) of the new policy, not for the outcome of a suffix that the old policy wrote."""
    tree, p = FAR.tree, FAR.logp.sum(1).exp()
    every = torch.ones_like(FAR.logp)
    reach, gain = tree.sums(p.unsqueeze(1) * every), tree.sums((p * FAR.rewards).unsqueeze(1) * every)
    Q = tree.read(gain / reach)
    draws = moments.population_draws(FAR)
    method = Method(prefix_is, Verified.CODE)
    values = replace(draws, advantage=Q)
    assert close(moments.expected(FAR, values, moments.coefficients(FAR, method, values)).mean, FAR.truth)
    whole = replace(draws, advantage=FAR.rewards.unsqueeze(1))
    assert close(moments.expected(FAR, whole, moments.coefficients(FAR, SEQUENCE_IS, whole)).mean, FAR.truth)
    outcome = moments.expected(FAR, whole, moments.coefficients(FAR, method, whole)).mean
    token = moments.expected(FAR, whole, moments.coefficients(FAR, METHODS["reinforce"], whole)).mean
    assert (outcome - FAR.truth).abs().max() > 1e-3
    assert (token - FAR.truth).abs().max() > 1e-3


@pytest.mark.skipif("ctpo" not in METHODS, reason="no such row")
def test_ctpo_unclipped_is_the_prefix_weight():
    wide = partial(METHODS["ctpo"].objective, eps_low=50.0, eps_high=50.0) if "ctpo" in METHODS else None
    draws = moments.population_draws(FAR)
    a, b = (
        moments.coefficients(FAR, Method(objective, Verified.CODE), draws, normalize=sequence_sum)
        for objective in (wide, prefix_is)
    )
    assert close(a, b)


# --- KL ---

REFERENCE = Tabular.random(HERE.tree, seed=11).table


def kl_gradient(estimator, per):
    return decompose.kl_gradient(HERE, REFERENCE, estimator, per=per)


def reverse_kl(table):
    return (HERE.tree.log_prob(table).exp() * (HERE.tree.log_prob(table) - HERE.tree.log_prob(REFERENCE))).sum() / 2


def forward_kl(table):
    log_q = HERE.tree.log_prob(REFERENCE)
    return (log_q.exp() * (log_q - HERE.tree.log_prob(table))).sum() / 2


@pytest.mark.parametrize("per", ["token", "sequence"])
def test_k1_teaches_nothing_on_average(per):
    assert close(kl_gradient("k1", per), 0.0)


def test_k2_and_k3_of_the_sequence_are_reverse_and_forward_kl():
    assert close(kl_gradient("k2", "sequence"), autograd(HERE, reverse_kl))
    assert close(kl_gradient("k3", "sequence"), autograd(HERE, forward_kl))


@pytest.mark.parametrize(("estimator", "goal"), [("k2", reverse_kl), ("k3", forward_kl)])
def test_per_token_the_prefix_terms_are_dropped(estimator, goal):
    """What is left is Σ over prefixes of reach · ∇ of the conditional KL (k2), and for k3 reach is π's, not π_ref's."""
    tree, truth = HERE.tree, autograd(HERE, goal)
    found = kl_gradient(estimator, "token")
    assert (found - truth).norm() > 0.1 * truth.norm()
    reach = tree.sums(HERE.chances.unsqueeze(1).expand_as(HERE.logp)).sum(1).detach() / 2

    def conditional(table):
        p, q = (table, REFERENCE) if estimator == "k2" else (REFERENCE, table)
        return (reach * (p.exp() * (p - q)).sum(1)).sum()

    assert close(found, autograd(HERE, conditional))


@pytest.mark.parametrize(("estimator", "goal"), [("k2", reverse_kl), ("k3", forward_kl)])
def test_one_token_has_no_prefix(estimator, goal, monkeypatch):
    here = problem(letters=4, length=1, prompts=2, solved=0.5)
    monkeypatch.setitem(globals(), "HERE", here)
    monkeypatch.setitem(globals(), "REFERENCE", Tabular.random(here.tree, seed=11).table)
    assert close(kl_gradient(estimator, "token"), autograd(here, goal))


def test_a_kl_gradient_of_unknown_words_is_refused():
    with pytest.raises(ValueError, match="unknown KL estimator: 'k4'"):
        kl_gradient("k4", "token")
    with pytest.raises(ValueError, match="unknown per: 'tokens'; did you mean 'token'"):
        kl_gradient("k2", "tokens")


def test_correct_is_the_best_of_a_prompt():
    rows = torch.arange(HERE.tree.size)
    batch = moments.rollout(HERE, rows, HERE.tree.prompt)
    for p in range(2):
        own = HERE.tree.prompt == p
        assert torch.equal(batch.parts["correct"][own] == 1, HERE.rewards[own] == HERE.rewards[own].max())
    some = moments.rollout(HERE, (HERE.rewards == 0).nonzero().squeeze(1)[:2], torch.zeros(2))
    assert some.parts["correct"].tolist() == [0, 0]  # the best of what was drawn is not the best


def test_the_kl_of_responses_is_the_sum_of_conditional_kls():
    table = HERE.new.table
    reach = HERE.tree.sums(HERE.chances.unsqueeze(1).expand_as(HERE.logp)).sum(1) / 2
    assert kl(HERE.tree, table, REFERENCE) == pytest.approx(
        (reach * (table.exp() * (table - REFERENCE)).sum(1)).sum().item(), abs=1e-12
    )


# --- what is refused ---


@checked
def whole_batch(logp, logp_old, advantages, mask, *, normalize=response_mean):
    """Couples responses: the batch's mean ratio stands in every weight."""
    log_r = log_ratio(logp, logp_old, mask)
    return -normalize(log_r * log_r.exp().mean().detach() * advantages, mask)


def test_coupled_objectives_are_enumerated():
    method = Method(whole_batch, Verified.NOTES, separable=False, advantage=group_centered)
    with pytest.raises(moments.Coupled, match="whole_batch couples the responses of a group"):
        moments.group_draws(TINY, method, 2)
    here = drifted(TINY, "random", 0.1)
    found = moments.of(here, method, 2)
    sampled = moments.monte_carlo(here, method, 2, groups=400, seed=1)
    assert (sampled.along.mean() - here.truth @ found.mean).abs() < 4 * sampled.along.std() / 20
    with pytest.raises(ValueError, match=r"whole_batch needs all 2 × 121\^4 groups, more than 2000000"):
        moments.of(problem(), method, 4)


def test_an_advantage_that_sees_more_than_rewards_is_noticed():
    method = Method(METHODS["rloo"].objective, Verified.NOTES, advantage=lambda r: r.logp_old.sum(1, keepdim=True))
    with pytest.raises(moments.Coupled, match="couples"):
        moments.group_draws(TINY, method, 2)
    longest = Method(
        METHODS["rloo"].objective, Verified.NOTES, advantage=lambda r: r.mask.sum(1, keepdim=True).double()
    )
    with pytest.raises(moments.Coupled, match="couples"):
        moments.group_draws(TINY, longest, 2)


def test_a_normalizer_of_its_own_counts_is_enumerated():
    def odd(x, mask):
        return x.where(mask, 0.0).sum() / 7

    assert close(
        moments.of(TINY, METHODS["rloo"], 2, normalize=odd).mean,
        moments.of(TINY, METHODS["rloo"], 2, normalize=sequence_sum).mean * 2 / 7,
    )
    assert moments.of(TINY, METHODS["rloo"], 2, normalize=constant(5)).trace > 0


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: moments.of(TINY, METHODS["grpo"], 1), "group=1: a group has 2 responses or more"),
        (lambda: problem(levels=1), "levels=1: must be at least 2"),
        (lambda: problem(letters=0), "letters=0: must be at least 1"),
        (lambda: Tree(9, 9), "make 435848050 responses, more than 200000"),
        (lambda: Tabular(Tree(2, 2), torch.zeros(3, 2)), r"logits has shape \(3, 2\): this tree's table is \(3, 3\)"),
        (lambda: replace(TINY, rewards=torch.zeros(3)), r"rewards has shape \(3,\): one per response is \(14,\)"),
        (lambda: replace(TINY, beta=0.1), "beta=0.1 needs a reference"),
        (lambda: moments.of(problem(levels=40), METHODS["grpo"], 4), "pairs are more than 4000"),
        (
            lambda: moments.of(problem(length=5, levels=999, solved=1.0), METHODS["grpo"], 4),
            "classes of responses in groups of 4 are more than 200000 kinds of group",
        ),
    ],
)
def test_refusals_name_the_fix(call, said):
    with pytest.raises(ValueError, match=said):
        call()
