"""Masks, log-ratios and the pools: the small things that everything else trusts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sspo_teach.objectives import units
from sspo_teach.objectives.normalize import constant, response_mean, sequence_sum, token_mean, with_counts
from sspo_teach.tensors import LIMIT, lengths, log_ratio, masked_mean, masked_sum, stale, with_value

MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
X = torch.tensor([[1.0, 2.0, float("nan"), 4.0], [1.0, 2.0, 3.0, 4.0], [9.0, float("inf"), 9.0, 9.0]])


def test_masked_pools():
    assert masked_sum(X, MASK).squeeze(1).tolist() == [3.0, 10.0, 0.0]
    assert masked_mean(X, MASK).squeeze(1).tolist() == [1.5, 2.5, 0.0]
    assert lengths(MASK).squeeze(1).tolist() == [2, 4, 0]


def test_log_ratio_is_zero_on_padding_and_never_nan():
    logp = X.clone().requires_grad_()
    out = log_ratio(logp, torch.zeros_like(X), MASK)
    assert out.tolist() == [[1.0, 2.0, 0.0, 0.0], [1.0, 2.0, 3.0, 4.0], [0.0] * 4]
    (grad,) = torch.autograd.grad(out.sum(), logp)
    assert grad.equal(MASK.float())


@pytest.mark.parametrize("gap", [1000.0, 20.5, 100.0])
def test_log_ratio_is_limited_with_zero_gradient(gap):
    logp = torch.tensor([[gap, -gap, 19.9, -19.9]], requires_grad=True)
    out = log_ratio(logp, torch.zeros(1, 4), torch.ones(1, 4))
    assert out.tolist() == [pytest.approx([LIMIT, -LIMIT, 19.9, -19.9])]
    (grad,) = torch.autograd.grad(out.sum(), logp)
    assert grad.tolist() == [[0, 0, 1, 1]]
    assert stale(logp, torch.zeros(1, 4), torch.ones(1, 4)).item() == 0.5


def test_stale_counts_real_tokens_only():
    logp = torch.tensor([[30.0, 0.0, 30.0], [0.0, 0.0, -30.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert stale(logp, torch.zeros(2, 3), mask).item() == pytest.approx(1 / 3)
    assert stale(logp, torch.zeros(2, 3), torch.zeros(2, 3)).item() == 0


@pytest.mark.parametrize(
    ("dtype", "promoted"),
    [(torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float64, torch.float64)],
)
def test_promotes_before_it_subtracts(dtype, promoted):
    """−0.0101 + 1 is no bfloat16 number: a difference taken before promotion would be rounded."""
    logp, logp_old = torch.tensor([[-0.0101]], dtype=dtype), torch.tensor([[-200.0]], dtype=dtype)
    out = log_ratio(logp, logp_old + 199.0, torch.ones(1, 1))
    assert out.dtype == promoted
    assert out.equal(logp.to(promoted) + 1.0)


def test_no_gradient_into_logp_old():
    old = torch.zeros(1, 2, requires_grad=True)
    assert not log_ratio(torch.zeros(1, 2), old, torch.ones(1, 2)).requires_grad


def test_with_value():
    x = torch.tensor([0.1, 0.7], requires_grad=True)
    out = with_value(torch.tensor([5.0, 6.0]), x.square())
    assert out.tolist() == [5, 6]
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert grad.tolist() == pytest.approx([0.2, 1.4])


class TestUnits:
    log_r = torch.tensor([[0.2, -0.4, 0.0], [0.3, 0.6, 0.9]], dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("token", [[0.2, -0.4], [0.3, 0.6, 0.9]]),
            ("sequence", [[-0.1, -0.1], [0.6, 0.6, 0.6]]),
            ("product", [[-0.2, -0.2], [1.8, 1.8, 1.8]]),
            ("prefix", [[0.2, -0.2], [0.3, 0.9, 1.8]]),
        ],
    )
    def test_values(self, name, values):
        out = getattr(units, name)(self.log_r, self.mask)
        assert out[0, :2].tolist() == pytest.approx(values[0])
        assert out[1].tolist() == pytest.approx(values[1])

    @pytest.mark.parametrize(("name", "scale"), [("token", 1), ("sequence", 1), ("product", 3), ("prefix", 1)])
    def test_own_gradient(self, name, scale):
        leaf = self.log_r.clone().requires_grad_()
        out = getattr(units, name)(leaf, self.mask)
        (grad,) = torch.autograd.grad((out[1] * torch.tensor([1.0, 10.0, 100.0])).sum(), leaf)
        assert grad.tolist() == [[0, 0, 0], [scale, 10 * scale, 100 * scale]]

    def test_long_products_are_limited(self):
        leaf = torch.full((1, 50), 0.5, requires_grad=True)
        for unit in (units.product, units.prefix):
            out = unit(leaf, torch.ones(1, 50))
            assert out.max().item() == LIMIT
            (grad,) = torch.autograd.grad(out.sum(), leaf)
            assert grad[0, -1] == 0

    def test_prefixes_of_ctpo(self):
        """z = log(1.1, .9, 1.2, 1.05): token t touches its own term only; autodiff of the sum is another estimator."""
        z = torch.tensor([[1.1, 0.9, 1.2, 1.05]], dtype=torch.float64).log().requires_grad_()
        ones = torch.ones(1, 4)
        (own,) = torch.autograd.grad(response_mean(units.prefix(z, ones).exp(), ones), z)
        (full,) = torch.autograd.grad(response_mean(z.cumsum(1).exp(), ones), z)
        assert own[0].tolist() == pytest.approx([0.275, 0.2475, 0.297, 0.31185])
        assert full[0].tolist() == pytest.approx([1.13135, 0.85635, 0.60885, 0.31185])


class TestNormalizers:
    x = torch.tensor([[6.0, 0, 0], [1.0, 2.0, 3.0]])
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]])

    def test_they_differ(self):
        """Lengths 1 and 3: response mean (6 + 2)/2, token mean 12/4, sum 12/2, constant 12/(2·10)."""
        assert response_mean(self.x, self.mask).item() == 4
        assert token_mean(self.x, self.mask).item() == 3
        assert sequence_sum(self.x, self.mask).item() == 6
        assert constant(10)(self.x, self.mask).item() == pytest.approx(0.6)

    @pytest.mark.parametrize("normalize", [response_mean, token_mean, sequence_sum, constant(4)])
    def test_empty_rows_leave_and_nothing_is_zero(self, normalize):
        more = torch.cat([self.x, torch.full((2, 3), float("nan"))]).requires_grad_()
        mask = torch.cat([self.mask, torch.zeros(2, 3, dtype=torch.int64)])
        assert normalize(more, mask).item() == normalize(self.x, self.mask).item()
        out = normalize(more, torch.zeros(4, 3))
        (grad,) = torch.autograd.grad(out, more)
        assert out.item() == 0
        assert not grad.any()

    @pytest.mark.parametrize("normalize", [response_mean, token_mean, sequence_sum, constant(4)])
    @given(cut=st.integers(1, 5), seed=st.integers(0, 10_000))
    @settings(max_examples=20, deadline=None)
    def test_parts_add_up(self, normalize, cut, seed):
        draw = torch.Generator().manual_seed(seed)
        x = torch.randn(6, 4, generator=draw, dtype=torch.float64)
        mask = torch.rand(6, 4, generator=draw) < 0.6  # rows without tokens among them
        counted = with_counts(normalize, mask)
        parts = counted(x[:cut], mask[:cut]) + counted(x[cut:], mask[cut:])
        assert parts.item() == pytest.approx(normalize(x, mask).item(), abs=1e-12)

    def test_counts_by_hand(self):
        assert response_mean(self.x, self.mask, responses=4).item() == 2
        assert token_mean(self.x, self.mask, tokens=torch.tensor(12)).item() == 1
        assert sequence_sum(self.x, self.mask, responses=4.0).item() == 3

    def test_own_normalizers_may_count_too(self):
        def half_mean(x, mask, *, tokens=None):
            return masked_sum(x, mask).sum() / (2 * tokens)

        assert with_counts(half_mean, self.mask)(self.x[:1], self.mask[:1]).item() == 6 / 8

    def test_one_value_per_response_is_refused(self):
        with pytest.raises(ValueError, match=r"x has shape \(2, 1\) but mask has \(2, 3\): give one term per token"):
            response_mean(torch.ones(2, 1), self.mask)
