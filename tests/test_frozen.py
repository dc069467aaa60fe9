"""What leaves the graph stands still, however it left, and nothing else does: differences then are autograd's slope."""

import pytest
import torch

from sspo_teach.frozen import freeze
from sspo_teach.tensors import with_value

AT = torch.tensor([0.3, -0.7, 1.1, 0.2], dtype=torch.float64)


def no_grad_block(z):
    with torch.no_grad():
        weight = z.exp()
        weight.mul_(2).add_(z)
    return weight * z


def inference_block(z):
    with torch.inference_mode():
        weight = z.exp()
    return weight.clone() * z


@torch.no_grad()
def searched(z):
    """A bound found on the data, in a loop whose length depends on them."""
    bound = torch.tensor(0.0, dtype=torch.float64)
    while (z.exp() > bound).sum() > 2:
        bound = bound + 0.1
    return bound


def in_place(z):
    y = z.exp()
    return z * y.detach_()


def of_data_in_place(z):
    weight = z.exp().data.clone()
    weight *= z.detach()
    return weight * z


def other_grad(z):
    (slope,) = torch.autograd.grad(z.exp().sum(), z)
    return slope * z


def branch(z):
    return z * z.square() if z.detach().sum() > 0.5 else z


class Cube(torch.autograd.Function):
    """Right, with a detach in a forward, where it means nothing."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z.detach() ** 3

    @staticmethod
    def backward(ctx, above):
        return 3 * ctx.saved_tensors[0] ** 2 * above


FUNCTIONS = {
    "nothing": lambda z: z.exp() * z.sum(),
    "detach": lambda z: z.exp().detach() * z,
    "torch.detach": lambda z: torch.detach(z.exp()) * z,
    "data": lambda z: z.exp().data * z,
    "detach_": in_place,
    "no_grad": no_grad_block,
    "inference_mode": inference_block,
    "search": lambda z: z.exp().clamp(max=searched(z)) * z,
    "item": lambda z: z * z.mean().item(),
    "float": lambda z: z * float(z.mean().detach()),
    "tolist": lambda z: z * torch.tensor(z.tolist(), dtype=z.dtype),
    "numpy": lambda z: z * torch.from_numpy(z.detach().exp().numpy()),
    "data in place": of_data_in_place,
    "autograd.grad": other_grad,
    "straight through": lambda z: z + (z.round() - z).detach(),
    "value and gradient apart": lambda z: with_value(z.square(), z.exp()) * z,
    "two outputs": lambda z: z.max(0).values * z + z[z.max(0).indices] ** 2,
    "sort": lambda z: z.sort().values * torch.arange(4),
    "mask": lambda z: torch.where(z > 0, z.exp(), 0.0) + z[z > 0.25].square().sum(),
    "branch": branch,
    "list": lambda z: torch.stack([z.detach(), z]).prod(0),
    "autograd.Function": Cube.apply,
    "torch.nn.functional": lambda z: torch.nn.functional.softplus(z) * z,
}


def slopes(function, at=AT):
    """Autograd's and the frozen function's, by differences."""
    leaf = at.clone().requires_grad_()
    (expected,) = torch.autograd.grad(function(leaf).sum(), leaf)
    still = freeze(lambda z: function(z).sum(), at)
    steps = 1e-6 * torch.eye(len(at), dtype=at.dtype)
    return expected, torch.stack([(still(at + h) - still(at - h)) / 2e-6 for h in steps])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_differences_are_the_gradient(name):
    expected, found = slopes(FUNCTIONS[name])
    assert torch.allclose(expected, found, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["detach", "data", "no_grad", "item", "straight through", "value and gradient apart"])
def test_without_it_they_are_not(name):
    expected, _ = slopes(FUNCTIONS[name])
    h = 1e-6 * torch.eye(4, dtype=torch.float64)
    plain = torch.stack([(FUNCTIONS[name](AT + x).sum() - FUNCTIONS[name](AT - x).sum()) / 2e-6 for x in h])
    assert not torch.allclose(expected, plain, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_at_the_point_itself_it_is_the_function(name):
    still = freeze(FUNCTIONS[name], AT)
    for _ in range(2):
        assert still(AT).equal(FUNCTIONS[name](AT.clone().requires_grad_()).detach())


class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        return z.exp()

    @staticmethod
    def backward(ctx, above):
        return 2 * above


def test_a_wrong_backward_is_found():
    expected, found = slopes(Wrong.apply)
    assert not torch.allclose(expected, found, rtol=0.1)


def test_a_hook_that_changes_the_gradient_is_found():
    def hooked(z):
        y = z.exp()
        if y.requires_grad:
            y.register_hook(lambda g: 2 * g)
        return y

    expected, found = slopes(hooked)
    assert torch.allclose(expected, 2 * found)


def test_another_path_is_refused():
    """The number of detached values depends on the argument through what no tensor shows."""
    seen = []

    def moody(z):
        seen.append(0)
        for _ in seen:
            z = z + z.detach()
        return z

    still = freeze(moody, AT)
    with pytest.raises(RuntimeError, match="takes another path"):
        still(AT)


def test_the_argument_and_the_modes_stay_as_they_were():
    before = AT.clone()
    with torch.no_grad():
        still = freeze(lambda z: z.detach() * z.mul(2), AT)
        still(AT + 1)
        assert not torch.is_grad_enabled()
    assert AT.equal(before)
    assert not AT.requires_grad
    assert torch.is_grad_enabled()


def test_gradients_stay_off_where_the_function_turned_them_off():
    def unbalanced(z):
        torch.set_grad_enabled(False)
        out = z.exp()
        torch.set_grad_enabled(True)
        return out * z

    expected, found = slopes(unbalanced)
    assert torch.allclose(expected, found, rtol=1e-8)
