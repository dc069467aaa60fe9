"""The vocabulary projection in chunks: the same numbers and gradients as all logits at once, and never all logits."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from tiny import left_padded, policy, take_gradient
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sspo_teach.policies import projection
from sspo_teach.policies.causal_lm import CausalLM
from sspo_teach.policies.projection import token_logp, token_logp_and_entropy

VOCAB = 37


def batch(length: int = 5, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Two prompts of different lengths with three responses each: tokens, prompt mask, group ids."""
    prompts, mask = left_padded([3, 4, 5, 6], [7])
    rows = torch.arange(2).repeat_interleave(3)
    responses = torch.randint(1, VOCAB, (len(rows), length), generator=torch.Generator().manual_seed(seed))
    return torch.cat([prompts[rows], responses], dim=1), mask[rows], rows


def pull_of(logp: Tensor, seed: int = 1) -> Tensor:
    """A credit per token, some of them 0 as padding and clipped tokens have."""
    pull = torch.randn(logp.shape, generator=torch.Generator().manual_seed(seed), dtype=logp.dtype)
    return pull.where(pull > -0.7, 0.0)


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """1e-12 in float64, 1e-6 in float32, of the largest entry."""
    error = (found - expected).abs().max() / expected.abs().max()
    assert found.dtype == expected.dtype
    assert error < (1e-12 if dtype == torch.float64 else 1e-6), error


def scores(one: CausalLM, chunk: int, *, shared: bool = False, temperature: float = 1.0) -> tuple[Tensor, ...]:
    """log-probabilities, their gradient under ``pull_of``, then log-probabilities and entropies without gradient."""
    tokens, mask, groups = batch()
    one.spare(chunk=chunk)
    settings: dict[str, Any] = {"temperature": temperature, "group_ids": groups if shared else None}
    logp = one.logp(tokens, mask, **settings)
    logp.backward(pull_of(logp))
    return logp.detach(), take_gradient(one), *one.logp_and_entropy(tokens, mask, **settings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("chunk", "temperature"), [(1, 1.0), (7, 0.6), (1000, 1.0)])
def test_chunks_change_nothing(dtype, shared, chunk, temperature):
    one = policy(VOCAB, dtype=dtype)
    whole, parts = (scores(one, size, shared=shared, temperature=temperature) for size in (0, chunk))
    for found, expected in zip(parts, whole, strict=True):
        close(found, expected, dtype)


class Widest(TorchDispatchMode):
    """Notes the most entries that any floating-point result had, and the most rows of a matrix as wide as the words."""

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.vocab, self.entries, self.rows = vocab, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, Tensor) and x.is_floating_point():
                self.entries = max(self.entries, x.numel())
                if x.ndim and x.shape[-1] == self.vocab:
                    self.rows = max(self.rows, x.numel() // self.vocab)
        return out


@pytest.mark.parametrize("shared", [False, True])
def test_the_logits_of_all_tokens_never_exist(shared):
    one, (tokens, mask, groups) = policy(5000), batch(length=40)
    every = len(tokens) * 40 * 5000
    for chunk, seen in ((5, Widest(5000)), (100_000, Widest(5000))):
        one.spare(chunk=chunk)
        with seen:
            logp = one.logp(tokens, mask, group_ids=groups if shared else None)
            logp.backward(torch.ones_like(logp))
            one.logp_and_entropy(tokens, mask, group_ids=groups if shared else None)
        if chunk == 5:
            assert seen.rows == 16  # of the transposed weight, D × V; a chunk has 5
            assert seen.entries < every / 10
        else:
            assert seen.entries == every  # the measure works


def test_a_large_vocabulary_is_cut_unasked_and_a_small_one_is_not(monkeypatch):
    asked = []
    real = projection.token_logp
    monkeypatch.setattr(projection, "token_logp", lambda *a, **k: asked.append(k["chunk"]) or real(*a, **k))
    tokens, mask, _ = batch()
    policy(4096).logp(tokens, mask)
    assert asked == []
    policy(4097).logp(tokens, mask)
    assert asked == [projection.BUDGET // 4097]
    assert projection.automatic_chunk(151_936) == 220
    assert projection.automatic_chunk(10**9) == 1


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("there", ["nothing", "a gradient"])
def test_two_passes_before_the_backward_add_up(tied, there):
    """Credit first, gradient later; two micro-batches alive at once; the same graph walked twice."""
    found = []
    for chunk in (0, 4):
        one = untied(policy(VOCAB, dtype=torch.float64)) if not tied else policy(VOCAB, dtype=torch.float64)
        one.spare(chunk=chunk)
        if there == "a gradient":
            for weight in one.model.parameters():
                weight.grad = torch.full_like(weight, 0.5)
        (first, mask, _), (second, _, _) = batch(seed=0), batch(seed=3)
        with torch.no_grad():
            one.logp(first, mask)
        logps = [one.logp(first, mask), one.logp(second, mask)]
        for logp in logps:
            logp.backward(pull_of(logp), retain_graph=True)
        logps[1].backward(pull_of(logps[1], seed=2))
        found.append(take_gradient(one))
    close(found[1], found[0], torch.float64)


def untied(one: CausalLM) -> CausalLM:
    one.model.lm_head.weight = nn.Parameter(one.model.lm_head.weight.detach().clone())
    return one


def pieces(bias: bool = True) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    chance = torch.Generator().manual_seed(0)
    draw = lambda *size: torch.randn(size, generator=chance, dtype=torch.float64).requires_grad_()  # noqa: E731
    tokens = torch.randint(0, 9, (2, 5), generator=chance)
    return draw(2, 5, 3), draw(9, 3), draw(9) if bias else None, tokens


def plainly(hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, temperature: float) -> Tensor:
    logits = nn.functional.linear(hidden, weight, bias) / temperature
    return logits.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


@pytest.mark.parametrize("bias", [True, False])
def test_gradients_are_those_of_finite_differences(bias):
    hidden, weight, shift, tokens = pieces(bias)
    leaves = [hidden, weight, *([shift] if bias else [])]

    def scored(*given: Tensor) -> Tensor:
        return token_logp(given[0], given[1], given[2] if bias else None, tokens, temperature=0.7, chunk=3)

    assert torch.autograd.gradcheck(scored, leaves)
    expected = plainly(hidden, weight, shift, tokens, 0.7)
    assert (scored(*leaves) - expected).abs().max() < 1e-14


def test_who_asks_for_the_gradient_of_the_projection_gets_it():
    """``autograd.grad`` and hooks are handed it, and ``.grad`` stays as it was; ``backward`` adds to it in place."""
    hidden, weight, bias, tokens = pieces()
    weight.grad = start = torch.ones_like(weight)
    expected = torch.autograd.grad(plainly(hidden, weight, bias, tokens, 1.0).sum(), [hidden, weight, bias])
    given = torch.autograd.grad(token_logp(hidden, weight, bias, tokens, chunk=4).sum(), [hidden, weight, bias])
    for found, right in zip(given, expected, strict=True):
        close(found, right, torch.float64)
    assert torch.equal(weight.grad, torch.ones_like(weight))

    token_logp(hidden, weight, bias, tokens, chunk=4).sum().backward()
    assert weight.grad is start
    close(start - 1, expected[1], torch.float64)

    seen = []
    weight.register_hook(lambda grad: seen.append(grad.clone()))
    token_logp(hidden, weight, bias, tokens, chunk=4).sum().backward()
    close(seen[0], expected[1], torch.float64)
    close(start - 1, 2 * expected[1], torch.float64)

    doubled = 2 * weight  # no leaf
    token_logp(hidden.detach(), doubled, None, tokens, chunk=4).sum().backward()
    assert len(seen) == 2

    frozen = weight.detach()
    token_logp(hidden, frozen, None, tokens, chunk=4).sum().backward()
    assert frozen.grad is None


def test_tokens_without_credit_cost_nothing(monkeypatch):
    counted = []
    real = projection.pulled
    monkeypatch.setattr(projection, "pulled", lambda *a: counted.append(len(a[1])) or real(*a))
    hidden, weight, bias, tokens = pieces()
    pull = torch.zeros(2, 5, dtype=torch.float64)
    token_logp(hidden, weight, bias, tokens, chunk=2).backward(pull)
    assert counted == []
    assert weight.grad.abs().max() == 0
    pull[0, 1] = pull[1, 2] = pull[1, 4] = 1.0
    token_logp(hidden, weight, bias, tokens, chunk=2).backward(pull)
    assert counted == [2, 1]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_no_responses_and_empty_ones_have_no_log_probabilities(shape):
    hidden, weight = torch.randn(*shape, 4, requires_grad=True), torch.randn(7, 4, requires_grad=True)
    tokens = torch.zeros(shape, dtype=torch.int64)
    logp = projection.token_logp(hidden, weight, None, tokens, chunk=2)
    logp.sum().backward()
    assert logp.shape == shape
    assert not weight.grad.any()
    assert [x.shape for x in projection.token_logp_and_entropy(hidden, weight, None, tokens, chunk=2)] == [shape, shape]


def test_entropy_in_nats():
    hidden, weight, bias, tokens = pieces()
    logp, entropy = token_logp_and_entropy(hidden, weight, bias, tokens, temperature=2.0, chunk=3)
    every = (nn.functional.linear(hidden, weight, bias) / 2).log_softmax(-1)
    assert (entropy + (every.exp() * every).sum(-1)).abs().max() < 1e-14
    assert not logp.requires_grad


def test_a_word_that_cannot_come_has_no_part_in_entropy_and_gradient():
    """SkyRL#1633's kind, 0 · ∞: without the word all is the same."""
    hidden, weight, bias, tokens = pieces()
    never = torch.cat([bias, bias.new_tensor([-torch.inf])])
    wide = torch.cat([weight, weight[:1]]).detach()
    found = token_logp_and_entropy(hidden, wide, never, tokens, chunk=3)
    torch.testing.assert_close(found, token_logp_and_entropy(hidden, weight, bias, tokens, chunk=3))
    slopes = []
    for w, b in ((weight, bias), (wide, never)):
        leaf = hidden.detach().requires_grad_()
        slopes.append(torch.autograd.grad(token_logp(leaf, w, b, tokens, chunk=3).sum(), leaf)[0])
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_lowers_products_and_no_log_softmax(dtype):
    """The chunked path rounds where the full one does: products in ``dtype``, everything after them in float32."""
    one, (tokens, mask, _) = policy(VOCAB), batch()
    exact = one.logp(tokens, mask).detach()
    found = []
    for chunk in (0, 4):
        one.spare(chunk=chunk, autocast=dtype)
        logp = one.logp(tokens, mask)
        logp.backward(pull_of(logp))
        gradient = take_gradient(one)
        assert logp.dtype == gradient.dtype == torch.float32
        found.append((logp.detach(), gradient))
    assert 1e-6 < (found[1][0] - exact).abs().max() < 0.05
    assert (found[1][0] - found[0][0]).abs().max() < 1e-4  # a log-softmax in 16 bits would be off by 1e-3
    assert (found[1][1] - found[0][1]).norm() < 0.02 * found[0][1].norm()


def test_autocast_holds_while_sampling():
    one, (prompts, mask) = policy(VOCAB).spare(autocast=torch.bfloat16), left_padded([3, 4], [5])
    seen = []
    one.model.model.layers[0].mlp.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    out = one.generate(prompts, mask, max_new_tokens=3, stop_ids=(), pad_id=0)
    assert set(seen) == {torch.bfloat16}
    assert out.logp.dtype == torch.float32


@pytest.mark.parametrize("chunk", [0, 4])
@pytest.mark.parametrize("pack", [0, 256])
def test_recomputing_layers_changes_nothing(monkeypatch, chunk, pack):
    monkeypatch.setattr("sspo_teach.policies.causal_lm.PACK", pack)
    found = []
    for recompute in (False, True):
        one = policy(VOCAB, dtype=torch.float64).spare(chunk=chunk, recompute=recompute)
        assert one.spare(chunk=chunk, recompute=recompute) is one  # twice wraps no layer twice
        passes = []
        one.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_, passes=passes: passes.append(1))
        tokens, mask, groups = batch()
        logp = one.logp(tokens, mask, group_ids=groups)
        before = len(passes)
        logp.backward(pull_of(logp))
        assert len(passes) - before == recompute
        assert not any(module.training for module in one.model.modules())
        out = one.generate(
            *left_padded([3, 4]), max_new_tokens=4, stop_ids=(), pad_id=0, generator=torch.Generator().manual_seed(0)
        )
        found.append((logp.detach(), take_gradient(one), out.logp))
    for plain, lean in zip(*found, strict=True):  # Qwen2 normalizes in float32 inside
        assert (plain - lean).abs().max() < 1e-7 * max(1, plain.abs().max())


def test_a_head_that_does_more_is_left_whole():
    one, (tokens, mask, _) = policy(VOCAB), batch()
    plain = one.model.forward

    def capped(*args: Any, **kwargs: Any) -> Any:
        out = plain(*args, **kwargs)
        out.logits = 0.1 * (out.logits / 0.1).tanh()
        return out

    one.model.forward = capped
    expected = one.logp(tokens, mask)
    with pytest.warns(UserWarning, match="Qwen2ForCausalLM does more to its logits than one projection"):
        found = one.spare(chunk=4).logp(tokens, mask)
    assert torch.equal(found, expected)


def test_liger_s_kernel_stands_in_on_a_gpu(monkeypatch):
    """A stand-in with liger's signature and habit: it writes the gradient over the logits."""
    calls = []

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits, target, reduction):
            calls.append((tuple(logits.shape), reduction))
            loss = nn.functional.cross_entropy(logits, target, reduction=reduction)
            logits.copy_(logits.softmax(-1) - nn.functional.one_hot(target, logits.shape[-1]))
            ctx.save_for_backward(logits.detach())
            return loss

        @staticmethod
        def backward(ctx, grad):
            return ctx.saved_tensors[0] * grad, None, None

    module = ModuleType("liger_kernel.transformers.functional")
    module.liger_cross_entropy = lambda logits, target, reduction="mean": Fused.apply(logits, target, reduction)
    for name in ("liger_kernel", "liger_kernel.transformers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    one = policy(VOCAB)
    expected = scores(one, 4)
    assert calls == []  # not on a CPU
    monkeypatch.setattr(projection, "_on_gpu", lambda x: True)
    for found, right in zip(scores(one, 4), expected, strict=True):
        close(found, right, torch.float32)
    assert {reduction for _, reduction in calls} == {"sum"}
    assert max(shape[0] for shape, _ in calls) == 4


def test_scoring_and_training_take_the_same_steps():
    """Else the ratio is not 1 before the first update."""
    chance = torch.Generator().manual_seed(5)
    hidden = torch.randn(3, 7, 16, generator=chance)
    weight, tokens = torch.randn(5003, 16, generator=chance), torch.randint(0, 5003, (3, 7), generator=chance)
    for temperature in (1.0, 0.7):
        trained = token_logp(hidden, weight, None, tokens, temperature=temperature, chunk=4)
        scored, entropy = token_logp_and_entropy(hidden, weight, None, tokens, temperature=temperature, chunk=4)
        assert torch.equal(trained, scored)
        whole = (hidden @ weight.T / temperature).log_softmax(-1)
        torch.testing.assert_close(entropy, -(whole.exp() * whole).sum(-1))
