"""KL estimators: values, gradients, expectations by enumeration, and edges."""

import math

import pytest
import torch

from sspo_teach.objectives.normalize import response_mean, sequence_sum, token_mean
from sspo_teach.objectives.regularizers import ESTIMATORS, k1, k2, k3, kl_penalty

ONES = torch.ones(1, 2)
P, Q = torch.tensor([[0.5, 0.5]], dtype=torch.float64), torch.tensor([[0.25, 0.75]], dtype=torch.float64)
KL = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)


@pytest.mark.parametrize("u", [-3.0, -0.5, 0.0, 0.2, 2.0])
def test_the_table(u):
    for estimator, value, slope in (
        (k1, u, 1),
        (k2, u * u / 2, u),
        (k3, math.exp(-u) + u - 1, 1 - math.exp(-u)),
    ):
        logp = torch.tensor([[u - 1]], dtype=torch.float64, requires_grad=True)
        out = estimator(logp, torch.tensor([[-1.0]]), torch.ones(1, 1))
        (grad,) = torch.autograd.grad(out, logp)
        assert out.item() == pytest.approx(value, abs=1e-14)
        assert grad.item() == pytest.approx(slope, abs=1e-14)


def test_expectations():
    """p = (.5, .5), q = (.25, .75): E[k1] = E[k3] = KL(p‖q) = 0.1438; with the sign swapped k3 would give 0.189."""
    assert pytest.approx(0.1438, abs=5e-5) == KL
    assert (P * k1(P.log(), Q.log(), ONES)).sum().item() == pytest.approx(KL)
    assert (P * k3(P.log(), Q.log(), ONES)).sum().item() == pytest.approx(KL)
    swapped = (P * k3(Q.log(), P.log(), ONES)).sum().item()
    assert swapped == pytest.approx(0.189, abs=1e-3)
    assert k1(P.log(), Q.log(), ONES).min() < 0  # a single sample may be negative, k3's may not
    assert k3(P.log(), Q.log(), ONES).min() > 0
    at_one = k3(torch.zeros(1, 1), -torch.ones(1, 1), torch.ones(1, 1)).item()
    assert at_one == pytest.approx(1 / math.e)


def test_expected_gradients():
    """As losses: k1 gives 0, k2 the gradient of KL(π‖ref), k3 that of KL(ref‖π)."""
    logits = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([-0.1, 0.4, 0.2], dtype=torch.float64).log_softmax(0)

    def gradient(loss):
        return torch.autograd.grad(loss, logits)[0]

    def expected(estimator):
        logp = logits.log_softmax(0).unsqueeze(0)
        return gradient((logp.exp().detach() * estimator(logp, ref.unsqueeze(0), torch.ones(1, 3))).sum())

    log_pi = logits.log_softmax(0)
    reverse = gradient((log_pi.exp() * (log_pi - ref)).sum())
    log_pi = logits.log_softmax(0)
    forward = gradient((ref.exp() * (ref - log_pi)).sum())
    assert expected(k1).abs().max() < 1e-15
    assert (expected(k2) - reverse).abs().max() < 1e-15
    assert (expected(k3) - forward).abs().max() < 1e-15
    assert (forward - reverse).abs().max() > 1e-3


@pytest.mark.parametrize("name", ESTIMATORS)
def test_padding_and_extremes(name):
    logp = torch.tensor([[-1.0, float("nan")], [-1000.0, -0.1]], requires_grad=True)
    ref = torch.tensor([[-1.5, float("inf")], [-1.0, -900.0]])
    mask = torch.tensor([[1, 0], [1, 1]])
    out = ESTIMATORS[name](logp, ref, mask)
    (grad,) = torch.autograd.grad(out.sum(), logp)
    assert out.isfinite().all()
    assert grad.isfinite().all()
    assert out[0, 1] == 0
    assert grad[0, 1] == 0
    assert grad[1].tolist() == [0, 0]  # beyond ±20


def test_no_gradient_into_the_reference():
    ref = torch.zeros(1, 1, requires_grad=True)
    assert not k3(torch.zeros(1, 1), ref, torch.ones(1, 1)).requires_grad


def test_penalty_takes_the_normalizer_of_the_objective():
    logp = torch.tensor([[0.1, 0.0, 0.0], [0.4, 0.5, 0.6]], dtype=torch.float64, requires_grad=True)
    ref, mask = torch.zeros(2, 3, dtype=torch.float64), torch.tensor([[1, 0, 0], [1, 1, 1]])
    for normalize in (response_mean, token_mean, sequence_sum):
        for name, estimator in ESTIMATORS.items():
            found = kl_penalty(logp, ref, mask, beta=0.04, estimator=name, normalize=normalize)
            assert found.item() == pytest.approx(0.04 * normalize(estimator(logp, ref, mask), mask).item())
    (grad,) = torch.autograd.grad(kl_penalty(logp, ref, mask, beta=0.04), logp)
    assert grad[0, 0].item() == pytest.approx(0.04 / 2 * (1 - math.exp(-0.1)))


def test_refusals():
    x = torch.zeros(1, 1)
    with pytest.raises(ValueError, match=r"beta must lie in \[0, inf\], got -0.1: it is the price"):
        kl_penalty(x, x, x + 1, beta=-0.1)
    with pytest.raises(ValueError, match=r"unknown KL estimator: 'k4'; did you mean 'k[123]'\? known: k1, k2, k3"):
        kl_penalty(x, x, x + 1, beta=0.1, estimator="k4")
