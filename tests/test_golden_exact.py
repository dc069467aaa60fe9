"""Decompositions: known numbers about gates, their bounds and a response of two tokens, and the parts of a method."""

from __future__ import annotations

import math

import pytest
import torch

from sspo_teach import METHODS
from sspo_teach.exact import decompose, moments
from sspo_teach.exact.decompose import attenuated, curves, gate_of_log_ratio, hard, log_gate_of_ratio
from sspo_teach.exact.problem import drifted, problem
from sspo_teach.objectives.advantages import group_normalized
from sspo_teach.objectives.normalize import response_mean, sequence_sum

HERE = problem(letters=2, length=3, prompts=2, levels=3, solved=0.6, seed=3)
FAR = drifted(HERE, "random", 0.2)


def double(*x):
    return torch.tensor(x, dtype=torch.float64)


def w(ratio, tau=1.0):
    """sech²(τ(ρ − 1)/2)."""
    return log_gate_of_ratio(torch.as_tensor(ratio, dtype=torch.float64).log(), tau).exp()


# --- gates, 9–19 and 39 ---


@pytest.mark.parametrize(
    ("tau", "ratio", "gate", "coefficient"),
    [
        (1.0, 2.0, 0.7864477, 1.5728955),
        (1.0, 4.0, 0.1807066, 0.7228266),
        (1.0, 0.5, 0.9400148, 0.4700074),
        (1.0, 1e-30, 0.786448, 0.0),
        (1.05, 2.0, 0.7681098, 1.5362196),
        (1.05, 4.0, 0.1576111, 0.6304446),
        (1.05, 0.5, 0.9341398, 0.4670699),
        (1.05, 1e-30, 0.768110, 0.0),
        (1.0, 1.0, 1.0, 1.0),
        (7.0, 1.0, 1.0, 1.0),
    ],
)
def test_gate_values(tau, ratio, gate, coefficient):
    assert w(ratio, tau).item() == pytest.approx(gate, abs=6e-7)
    assert (ratio * w(ratio, tau)).item() == pytest.approx(coefficient, abs=6e-7)


@pytest.mark.parametrize("tau", [0.5, 1.0, 1.05, 2.0])
def test_gate_identities(tau):
    ratio = torch.linspace(0.01, 10, 500, dtype=torch.float64)
    u = tau * (ratio - 1)
    assert torch.allclose(w(ratio, tau), (1 / (u / 2).cosh()).square(), rtol=0, atol=1e-12)
    assert torch.allclose(w(ratio, tau), 4 * u.sigmoid() * (-u).sigmoid(), rtol=0, atol=1e-12)
    assert ((w(ratio, tau) > 0) & (w(ratio, tau) <= 1)).all()
    d = 0.05 / tau
    assert ((w(1 + d, tau) - 1 + tau**2 * d**2 / 4) / (tau * d) ** 4).item() == pytest.approx(1 / 24, abs=1e-4)


def test_gate_constants():
    gap, leading = w(1.1, 1.0) - w(1.1, 1.05), (1.05**2 - 1) * 0.1**2 / 4
    assert (gap.item(), leading) == (pytest.approx(0.00025535, abs=5e-9), pytest.approx(0.00025625))
    for ratio, tail in ((10, 0.99975), (20, 1 - 4e-9)):
        assert (w(ratio) / (4 * math.exp(1 - ratio))).item() == pytest.approx(tail, abs=6e-6)
    for u, value in ((50, -48.6137), (-50, -48.6137), (2, -0.867562), (0, 0.0)):
        assert log_gate_of_ratio(double(1 + u / 100).log(), 100.0).item() == pytest.approx(value, abs=5e-5)
    naive = 4 * torch.tensor(17.0).sigmoid() * (1 - torch.tensor(17.0).sigmoid())
    assert naive == 0  # R3: the literal form vanishes in float32
    assert log_gate_of_ratio(torch.tensor(18.0).log(), 1.0).exp().item() == pytest.approx(1.7e-7, rel=0.05)


@pytest.mark.parametrize(("tau", "peak", "largest"), [(1.0, 2.0600904, 1.5746747), (1.05, 1.9916677, 1.5362556)])
def test_the_largest_coefficient(tau, peak, largest):
    ratio = torch.linspace(0.5, 5, 2001, dtype=torch.float64)
    assert (ratio * w(ratio, tau)).max().item() == pytest.approx(largest, abs=2e-6)
    assert (peak * w(peak, tau)).item() == pytest.approx(largest, abs=1e-7)
    assert tau * peak * math.tanh(tau * (peak - 1) / 2) == pytest.approx(1, abs=1e-6)


def test_curves_are_the_gates_weights():
    ratio = double(0.5, 2.0, 4.0)
    sapo = curves("sapo_sigmoid", ratio.log())
    assert torch.allclose(sapo["f'"], w(ratio), atol=1e-12)
    assert sapo["ρf'"].tolist() == pytest.approx([0.4700074, 1.5728955, 0.7228266], abs=1e-7)
    sspo = curves("sspo_arctan", ratio.log(), length=1)
    assert sspo["f"].tolist() == pytest.approx([0.62899, 2.19328, 3.48701], abs=5e-6)
    assert torch.allclose(sspo["S·ρℓ'"], sspo["ρf'"], atol=1e-12)  # one token: the pool is the token
    long = curves("sspo_arctan", ratio.log(), length=10**9)
    assert long["S·ρℓ'"].tolist() == pytest.approx([0.4, 1.0, 0.4], abs=1e-6)
    clip = curves("ppo_clip", double(0.7, 1.1, 1.3).log())
    assert clip["ρf'"].tolist() == pytest.approx([0.7, 1.1, 0.0])
    assert curves("ppo_clip", double(0.7, 1.1, 1.3).log(), sign=-1.0)["ρf'"].tolist() == pytest.approx([0, 1.1, 1.3])


# --- bounds, 22–34 ---


def test_the_second_derivative_of_the_gate():
    """g'' = α²(4 sech² − 6 sech⁴), α = τ/2; |g''| ≤ τ²/2, at z = 0; 4u − 6u² in [−2, 2/3]."""
    z = torch.linspace(-6, 6, 241, dtype=torch.float64).requires_grad_()
    for tau in (0.5, 1.0, 2.0):
        (first,) = torch.autograd.grad(((1 / (tau * z / 2).cosh()).square()).sum(), z, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), z)
        g = gate_of_log_ratio(z.detach(), tau)
        assert torch.allclose(second, tau**2 / 4 * (4 * g - 6 * g.square()), atol=1e-12)
        assert second.abs().max().item() == pytest.approx(tau**2 / 2, abs=1e-12)
    u = torch.linspace(0, 1, 30001, dtype=torch.float64)
    span = 4 * u - 6 * u.square()
    assert (span.min().item(), span.max().item()) == (pytest.approx(-2), pytest.approx(2 / 3, abs=1e-7))


@pytest.mark.parametrize("tau", [0.5, 1.0, 3.0])
def test_bounds_hold_on_random_responses(tau):
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(3000, 6, generator=generator, dtype=torch.float64)
    z = z * torch.rand(3000, 1, generator=generator, dtype=torch.float64)
    h = torch.randn(3000, 6, 4, generator=generator, dtype=torch.float64)
    mask = torch.arange(6) < torch.randint(1, 7, (3000, 1), generator=generator)
    split = decompose.token_and_sequence(z, h, mask, tau=tau)
    assert ((split.token - split.sequence) - (split.covariance + split.shift)).abs().max() < 1e-12
    assert (split.gap <= split.gap_bound + 1e-15).all()
    assert (split.covariance.norm(dim=1) <= split.covariance_bound + 1e-15).all()
    assert (split.covariance.norm(dim=1) / split.covariance_bound.clamp(min=1e-12)).max() > 0.9
    replaced = (log_gate_of_ratio(z, tau).exp() - gate_of_log_ratio(z, tau)).abs()
    assert (replaced <= decompose.substitution_bound(z, tau) + 1e-15).all()
    assert ((z.expm1() - z).abs() <= z.abs().exp() * z.square() / 2 + 1e-15).all()
    x = torch.linspace(-9, 9, 100001, dtype=torch.float64)
    slope = (gate_of_log_ratio(x, tau).diff() / x.diff()).abs().max()
    assert slope.item() == pytest.approx(2 * tau / (3 * math.sqrt(3)), rel=1e-4)


def test_the_variance_bound_is_tight_near_one():
    z = double(-1e-3, 1e-3).unsqueeze(0)
    split = decompose.token_and_sequence(z, torch.zeros(1, 2, 1, dtype=torch.float64), torch.ones(1, 2))
    assert (split.gap / split.gap_bound).item() == pytest.approx(1, abs=1e-5)


def split_of(*z):
    return decompose.token_and_sequence(double(*z).unsqueeze(0), double(1, -1).view(1, 2, 1), torch.ones(1, 2))


def test_figure_5():
    """z = (−.4, .4), h = (1, −1), τ = 1: equal gates, so the covariance term is 0 and all of −.3763 is ρ, dropped."""
    z = double(-0.4, 0.4)
    split = split_of(-0.4, 0.4)
    assert (z.exp() * log_gate_of_ratio(z, 1.0).exp()).tolist() == pytest.approx([0.6524309, 1.4051260], abs=1e-7)
    assert log_gate_of_ratio(z, 1.0).exp().tolist() == pytest.approx([0.9733125, 0.9418841], abs=1e-7)
    assert gate_of_log_ratio(z, 1.0).tolist() == pytest.approx([0.9610430] * 2, abs=1e-7)
    assert (log_gate_of_ratio(z, 1.0).exp() - gate_of_log_ratio(z, 1.0)).tolist() == pytest.approx(
        [0.01227, -0.01916], abs=5e-6
    )
    assert split.gap.item() == pytest.approx(0.0389570, abs=1e-7)
    assert split.gap_bound.item() == pytest.approx(0.04)
    assert split.exact.item() == pytest.approx(-0.3763475, abs=1e-7)
    assert split.sequence.item() == split.covariance.item() == split.token.item() == 0.0
    assert (log_gate_of_ratio(z, 1.0).exp() * double(1, -1)).mean().item() == pytest.approx(0.01571, abs=5e-6)


def test_the_companion_of_figure_5():
    """z = (0, .8): gates differ, h̄ = 0, and the covariance term is all."""
    split = split_of(0.0, 0.8)
    assert gate_of_log_ratio(double(0, 0.8), 1.0).tolist() == pytest.approx([1, 0.8556388], abs=1e-7)
    assert split.covariance.item() == pytest.approx(0.0721806, abs=1e-7)
    assert split.shift.item() == 0.0
    assert split.gap.item() == pytest.approx(0.0332236, abs=1e-7)
    assert split.gap_bound.item() == pytest.approx(0.04)
    assert split.exact.item() == pytest.approx(-0.2809454, abs=1e-7)


def test_a_split_reads_no_padding():
    z, h, mask = double(-0.4, 0.4, math.nan), double(1, -1, math.nan), torch.tensor([[1, 1, 0]])
    split = decompose.token_and_sequence(z.unsqueeze(0), h.view(1, 3, 1), mask)
    assert split.exact.item() == pytest.approx(-0.3763475, abs=1e-7)
    with pytest.raises(ValueError, match="tau must be a positive"):
        decompose.token_and_sequence(z.unsqueeze(0), h.view(1, 3, 1), mask, tau=0.0)


# --- a mean of means, and the four variants: side and kernel apart ---


def test_a_weight_that_is_not_detached_is_another_gradient():
    """d(ρ w)/dz = w ρ + ρ² w': .0596 at ρ = 2 where SAPO's is 1.573 (per ρ: .786); equal at 1, so no on-policy test
    can tell them apart."""
    for ratio, wrong in ((2.0, 0.0596), (1.0, 1.0)):
        r = double(ratio).requires_grad_()
        (slope,) = torch.autograd.grad((r * (1 / ((r - 1) / 2).cosh()).square()).sum(), r)
        assert slope.item() == pytest.approx(wrong, abs=5e-5)


@pytest.mark.parametrize(
    ("ratio", "kind", "positive", "negative"),
    [
        (0.5, "hard", 0.5, 0.0),
        (0.5, "directional", 0.5, 0.4700),
        (0.5, "bidirectional", 0.4700, 0.4700),
        (0.5, "gaussian", 0.4697, 0.4697),
        (1.2 - 1e-9, "hard", 1.2, 1.2),
        (1.2, "directional", 1.1881, 1.2),
        (1.2, "bidirectional", 1.1881, 1.1881),
        (2.0, "hard", 0.0, 2.0),
        (2.0, "directional", 1.5729, 2.0),
        (2.0, "bidirectional", 1.5729, 1.5729),
        (2.0, "gaussian", 1.5576, 1.5576),
        (4.0, "hard", 0.0, 4.0),
        (4.0, "directional", 0.7228, 4.0),
        (4.0, "bidirectional", 0.7228, 0.7228),
        (4.0, "gaussian", 0.4216, 0.4216),
    ],
)
def test_four_variants(ratio, kind, positive, negative):
    z = double(ratio).log().view(1, 1)
    for sign, wanted in ((1.0, positive), (-1.0, negative)):
        A = torch.full_like(z, sign)
        found = {
            "hard": lambda z=z, A=A: hard(z, A),
            "directional": lambda z=z, A=A: attenuated(z, A, directional=True),
            "bidirectional": lambda z=z, A=A: attenuated(z, A),
            "gaussian": lambda z=z, A=A: attenuated(z, A, kernel="gaussian"),
        }[kind]()
        assert found.item() == pytest.approx(wanted, abs=5e-5)


@pytest.mark.parametrize(
    ("kernel", "width", "largest", "at"),
    [
        ("sech²", 1.76275, 1.57467, 2.06009),
        ("gaussian", 1.66511, 1.55760, 2.0),
        ("cauchy", 2.0, 1.61803, 5**0.5),
    ],
)
def test_kernels_match_in_slope_and_curvature_not_in_width(kernel, width, largest, at):
    k = decompose.KERNELS[kernel]
    assert k(double(width / 1.5), 1.5).item() == pytest.approx(0.5, abs=2e-6)
    d = 1e-3
    assert ((k(double(d), 2.0) + k(double(-d), 2.0) - 2) / d**2).item() == pytest.approx(-2.0, abs=1e-4)
    ratio = torch.linspace(1, 4, 30001, dtype=torch.float64)
    weight = attenuated(ratio.log(), torch.ones_like(ratio), kernel=kernel)
    assert weight.max().item() == pytest.approx(largest, abs=5e-6)
    assert ratio[weight.argmax()].item() == pytest.approx(at, abs=2e-3)


def test_directions_are_the_methods():
    """Hard and directional is grpo, smooth and bidirectional is sapo at one temperature."""
    found = decompose.directions()
    for name, row in (("directional hard", "grpo"), ("bidirectional smooth", "sapo")):
        numbers = {"tau_neg": 1.0} if row == "sapo" else {}
        theirs = moments.of(FAR, METHODS[row].with_numbers(**numbers), 3)
        ours = moments.of(FAR, found[name], 3)
        assert torch.allclose(ours.mean, theirs.mean, rtol=0, atol=1e-12)
        assert ours.trace == pytest.approx(theirs.trace, abs=1e-12)


# --- gate, unit, order ---


@pytest.mark.parametrize(
    ("name", "gate", "unit", "order"),
    [
        ("grpo", "ppo_clip", "arithmetic", "gate first"),
        ("gspo", "gspo_clip", "geometric", "pool first"),
        ("gmpo", "gmpo_clip", "geometric", "gate first"),
        ("sapo", "sapo_sigmoid", "arithmetic", "gate first"),
        ("sspo", "sspo_arctan", "geometric", "gate first"),
        ("sspo_sigmoid", "sapo_sigmoid", "geometric", "gate first"),
        ("sspo_log_ratio", "arctan_log_ratio", "geometric", "gate first"),
    ],
)
def test_methods_are_cells_of_the_grid(name, gate, unit, order):
    cell = decompose.grid()[gate, unit, order]
    ours, theirs = moments.of(FAR, cell, 3), moments.of(FAR, METHODS[name], 3)
    assert torch.allclose(ours.mean, theirs.mean, rtol=0, atol=1e-12)
    assert ours.trace == pytest.approx(theirs.trace, abs=1e-12)


def test_every_cell_is_the_truth_on_policy_and_no_two_agree_off_policy():
    cells = decompose.grid(group_normalized)
    assert len(cells) == 49
    seen = []
    for (_, unit, _), cell in cells.items():
        normalize = response_mean if unit == "product" else sequence_sum  # a product carries its L by itself
        assert (moments.of(HERE, cell, normalize=normalize).mean - HERE.truth).abs().max() < 1e-12
        seen.append(moments.of(FAR, cell).mean)
    means = torch.stack(seen)
    apart = (means.unsqueeze(0) - means.unsqueeze(1)).norm(dim=2) + torch.eye(49)
    same = {tuple(sorted(pair)) for pair in (apart < 1e-9).nonzero().tolist()}
    names = list(cells)
    # without a gate the order means nothing
    assert {(names[a][0], names[b][0], names[a][1]) for a, b in same} == {
        ("none", "none", unit) for unit in ("geometric", "product", "prefix")
    }
    with pytest.raises(ValueError, match="unknown gate: 'sspo'"):
        decompose.composed("sspo", "geometric", "gate first")


def test_normalizers_decide_the_direction_even_on_policy():
    rows = {row["normalizer"]: row for row in decompose.normalizers(HERE, METHODS["grpo"])}
    assert rows["response_mean"]["cosine"] < 0.999
    assert all(rows[name]["cosine"] == pytest.approx(1) for name in ("token_mean", "sequence_sum", "constant"))
    lengths = [f"length {n}" for n in (1, 2, 3)]
    assert sum(rows["sequence_sum"][n] for n in lengths) == pytest.approx(1)
    weighed = [rows["response_mean"][n] / rows["sequence_sum"][n] for n in lengths]
    assert weighed == sorted(weighed, reverse=True)  # a short response counts more
    grouped = {row["normalizer"]: row for row in decompose.normalizers(HERE, METHODS["rloo"], 2)}
    assert grouped["token_mean"]["cosine"] < 1 - 1e-6  # within a group, lengths and advantages go together
