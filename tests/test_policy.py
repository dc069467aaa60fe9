"""One convention for what is sampled and what is scored: padding, positions, temperature, end tokens, precision."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import left_padded, policy, take_gradient
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from sspo_teach.policies import attention, causal_lm
from sspo_teach.policies.causal_lm import CausalLM, load_policy, load_tokenizer
from sspo_teach.policies.sampling import GREEDY, Sampling, truncate

PROMPTS = left_padded([3, 4, 5, 6], [7], [8, 9])
STOP, PAD = 2, 0


class Says(nn.Module):
    """A hand-made model: its logits are a function of the tokens and of nothing else."""

    def __init__(self, logits: Any, vocab_size: int) -> None:
        super().__init__()
        self.logits, self.weight = logits, nn.Parameter(torch.zeros(()))
        self.config = Qwen2Config(vocab_size=vocab_size, num_hidden_layers=1)

    def forward(self, input_ids: Tensor, past_key_values: Any = None, logits_to_keep: int = 0, **_: Any) -> Any:
        return SimpleNamespace(logits=self.logits(input_ids)[:, -logits_to_keep:])


def fixed(logits: list[float]) -> CausalLM:
    return CausalLM(Says(lambda ids: torch.tensor(logits).expand(*ids.shape, -1), len(logits)))


def batch(group_size: int = 2, length: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Prompts of different lengths with responses of random tokens: tokens, prompt mask, group ids."""
    prompts, mask = PROMPTS
    rows = torch.arange(len(prompts)).repeat_interleave(group_size)
    responses = torch.randint(1, 11, (len(rows), length), generator=torch.Generator().manual_seed(0))
    return torch.cat([prompts[rows], responses], dim=1), mask[rows], rows


def test_scores_are_those_of_the_naive_forward():
    tokens, mask, _ = batch()
    one = policy()
    for row, real, scored in zip(tokens, mask, one.logp(tokens, mask), strict=True):
        prompt = row[: mask.shape[1]][real]
        alone = torch.cat([prompt, row[mask.shape[1] :]])
        logp = one.model(alone.unsqueeze(0)).logits[0].log_softmax(-1)
        expected = logp[len(prompt) - 1 : -1].gather(1, alone[len(prompt) :].unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(scored, expected, atol=1e-6, rtol=0)


def test_next_is_current_plus_one():
    counting = CausalLM(Says(lambda ids: 50.0 * torch.eye(9)[(ids + 1) % 9], 9))
    logp = counting.logp(torch.tensor([[1, 2, 3, 4]]), torch.tensor([[True]]))
    assert logp.shape == (1, 3)
    assert logp.abs().max() < 1e-6
    assert counting.logp(torch.tensor([[1, 2, 4, 4]]), torch.tensor([[True]]))[0, 1] < -40


@pytest.mark.parametrize("length", [1, 2, 6])
def test_one_score_per_response_token(length):
    tokens, mask, groups = batch(length=length)
    assert policy().logp(tokens, mask).shape == (len(tokens), length)
    assert policy().logp(tokens, mask, group_ids=groups).shape == (len(tokens), length)


@pytest.mark.parametrize("pack", [0, 256])  # the prompt's cache, and one row under a tree mask
@pytest.mark.parametrize("length", [1, 2, 5])
def test_shared_prompts_are_the_same_function(monkeypatch, length, pack):
    monkeypatch.setattr(causal_lm, "PACK", pack)
    one = policy(dtype=torch.float64)
    tokens, mask, groups = batch(group_size=3, length=length)
    order = torch.tensor([4, 0, 8, 1, 3, 7, 2])  # groups of unequal size, in any order
    tokens, mask, groups = tokens[order], mask[order], 10 - groups[order]
    plain, shared = one.logp(tokens, mask), one.logp(tokens, mask, group_ids=groups)
    torch.testing.assert_close(shared, plain, atol=1e-7, rtol=0)  # Qwen2 normalizes in float32 inside
    weights = torch.randn(plain.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = []
    for logp in (plain, shared):
        (logp * weights).sum().backward()
        found.append(take_gradient(one))
    assert (found[0] - found[1]).abs().max() < 1e-6 * found[0].abs().max()


@pytest.mark.parametrize(("shared", "pack"), [(False, 0), (True, 0), (True, 256)])
def test_padding_does_not_matter(monkeypatch, shared, pack):
    monkeypatch.setattr(causal_lm, "PACK", pack)
    one, (tokens, mask, groups) = policy(), batch()
    ids = groups if shared else None
    plain = one.logp(tokens, mask, group_ids=ids)
    left = torch.full((len(tokens), 7), 5)  # any token may stand under a mask
    wide = one.logp(torch.cat([left, tokens], 1), torch.cat([left != 5, mask], 1), group_ids=ids)
    torch.testing.assert_close(wide, plain, atol=1e-5, rtol=0)
    long = one.logp(torch.cat([tokens, left], 1), mask, group_ids=ids)
    torch.testing.assert_close(long[:, : plain.shape[1]], plain, atol=1e-5, rtol=0)


def test_position_ids_follow_the_mask():
    seen = []

    def look(ids: Tensor) -> Tensor:
        return torch.zeros(*ids.shape, 11)

    model = Says(look, 11)
    plain = model.forward
    model.forward = lambda input_ids, past_key_values=None, position_ids=None, **rest: (  # type: ignore[method-assign]
        seen.append(position_ids.tolist()) or plain(input_ids, **rest)
    )
    CausalLM(model).logp(torch.tensor([[0, 0, 3, 4, 5], [6, 7, 8, 9, 9]]), torch.tensor([[0, 0, 1], [1, 1, 1]]).bool())
    assert seen == [[[0, 0, 0, 1], [0, 1, 2, 3]]]


def test_temperature_enters_the_scores():
    one, ids, mask = fixed([0.0, math.log(3)]), torch.tensor([[0, 1]]), torch.tensor([[True]])
    assert one.logp(ids, mask, temperature=0.5).item() == pytest.approx(math.log(9 / 10), abs=1e-6)  # −0.1054
    assert one.logp(ids, mask).item() == pytest.approx(math.log(3 / 4), abs=1e-6)  # −0.2877
    with pytest.raises(ValueError, match=r"temperature=0\.0.*positive"):
        one.logp(ids, mask, temperature=0.0)


@pytest.mark.parametrize("settings", [{"top_k": 2}, {"top_p": 0.8}, {"top_p": 0.7}, {"top_k": 2, "top_p": 0.9}])
def test_truncation_renormalizes_the_sampler_only(settings):
    logits = torch.tensor([[0.2, 0.5, 0.3]]).log()
    truncated = truncate(logits, **settings).softmax(-1)
    assert truncated[0].tolist() == pytest.approx([0, 0.5 / 0.8, 0.3 / 0.8])
    torch.testing.assert_close(logits.exp()[truncated > 0] / truncated[truncated > 0], torch.tensor([0.8, 0.8]))
    assert Sampling(**settings).truncated
    assert not Sampling(temperature=0.3).truncated


def test_truncation_keeps_ties_apart_and_the_likeliest_always():
    assert truncate(torch.zeros(1, 5), top_k=2).isfinite().sum() == 2
    assert truncate(torch.tensor([[0.0, 9.0]]), top_p=1e-9).isfinite().tolist() == [[False, True]]
    assert truncate(torch.zeros(1, 3), top_k=7).isfinite().all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": -1.0}, "temperature=-1.0: must be 0"),
        ({"temperature": math.nan}, "temperature=nan: must be 0"),
        ({"top_k": -1}, "top_k=-1: must be 0"),
        ({"top_p": 0.0}, "top_p=0.0: must lie in"),
        ({"top_p": 1.5}, "top_p=1.5: must lie in"),
    ],
)
def test_impossible_sampling_is_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Sampling(**settings)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_draws_follow_the_scored_softmax(temperature):
    """Pearson's chi-square of 4000 draws over 6 tokens; 20.5 is its 99.9 % point for 5 degrees of freedom."""
    logits = [0.0, 0.5, 1.0, -1.0, 1.5, 0.2]
    out = fixed(logits).generate(
        *left_padded([1]), max_new_tokens=1, stop_ids=(), pad_id=PAD, group_size=4000,
        sampling=Sampling(temperature=temperature), generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    expected = 4000 * (torch.tensor(logits) / temperature).softmax(0)
    found = out.tokens.flatten().bincount(minlength=6)
    assert ((found - expected).square() / expected).sum() < 20.5


NASTY = {
    "do_sample": True, "temperature": 0.1, "top_k": 1, "top_p": 0.1, "repetition_penalty": 5.0, "min_p": 0.5,
    "eos_token_id": 3, "max_new_tokens": 1, "no_repeat_ngram_size": 1,
}  # fmt: skip


def test_a_checkpoint_s_generation_settings_change_nothing(tmp_path):
    one = policy()
    one.save(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(NASTY))
    other = load_policy(tmp_path)
    assert other.model.generation_config.repetition_penalty == 5.0  # it was read, and is not heard
    first, second = (
        p.generate(
            *PROMPTS, max_new_tokens=8, stop_ids=(STOP,), pad_id=PAD, group_size=5,
            generator=torch.Generator().manual_seed(0),
        )
        for p in (one, other)
    )  # fmt: skip
    assert torch.equal(first.tokens, second.tokens)
    assert torch.equal(first.logp, second.logp)
    assert first.mask.sum(1).max() == 8


def sample(one: CausalLM, **other: Any) -> Any:
    settings = {"max_new_tokens": 8, "stop_ids": (STOP, 5), "pad_id": PAD, "group_size": 6}
    return one.generate(*PROMPTS, **{**settings, "generator": torch.Generator().manual_seed(0), **other})


@pytest.mark.parametrize("pad", [PAD, STOP])
def test_mask_ends_with_the_first_stop_token(pad):
    out = sample(policy(), pad_id=pad, group_size=40)
    assert 0 < out.truncated.sum() < out.mask.all(1).sum() < len(out.mask)  # some end with their last token
    for tokens, mask, truncated in zip(out.tokens.tolist(), out.mask.tolist(), out.truncated.tolist(), strict=True):
        stops = [t for t, token in enumerate(tokens) if token in (STOP, 5)]
        length = stops[0] + 1 if stops and (not truncated) else 8
        assert mask == [True] * length + [False] * (8 - length)
        assert tokens[length:] == [pad] * (8 - length)
        assert truncated == (not stops)
    assert (out.logp[~out.mask] == 0).all()
    assert (out.entropy[~out.mask] == 0).all()


def test_mask_does_not_come_from_token_values():
    """Tokens 5, 6 and then end tokens, with pad = eos: the first end token is trained on, those after it are not."""
    script = {1: 5, 5: 6, 6: 2, 2: 2}
    following = torch.tensor([script.get(token, 0) for token in range(7)])
    scripted = CausalLM(Says(lambda ids: 50 * torch.eye(7)[following[ids]], 7))
    prompts, mask = left_padded([1], [5])
    out = scripted.generate(prompts, mask, max_new_tokens=4, stop_ids=(2,), pad_id=2, sampling=GREEDY)
    assert out.tokens.tolist() == [[5, 6, 2, 2], [6, 2, 2, 2]]
    assert out.mask.int().tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]
    assert not out.truncated.any()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampled_and_scored_numbers_agree(temperature):
    one = policy()
    out = sample(one, sampling=Sampling(temperature=temperature))
    prompts, mask = PROMPTS
    rows = torch.arange(3).repeat_interleave(6)
    tokens = torch.cat([prompts[rows], out.tokens], dim=1)
    for ids in (None, rows):
        logp, entropy = one.logp_and_entropy(tokens, mask[rows], temperature=temperature, group_ids=ids)
        assert (logp - out.logp)[out.mask].abs().max() < 1e-6
        assert (entropy - out.entropy)[out.mask].abs().max() < 1e-5
    assert not logp.requires_grad


def test_entropy_of_known_distributions():
    half = fixed([0.0, 0.0, -1e4])
    _, entropy = half.logp_and_entropy(torch.tensor([[0, 1]]), torch.tensor([[True]]))
    assert entropy.item() == pytest.approx(math.log(2), abs=1e-6)


def test_a_word_that_cannot_come_has_no_part_in_the_entropy():
    """SkyRL#1633's kind, 0 · ∞: a logit of −∞ leaves log-probabilities and entropy finite."""
    never = fixed([0.0, 0.0, -math.inf])
    out = never.generate(*left_padded([1]), max_new_tokens=3, stop_ids=(), pad_id=PAD)
    logp, entropy = never.logp_and_entropy(torch.cat([torch.ones(1, 1).long(), out.tokens], 1), torch.tensor([[True]]))
    for found in (out.entropy, entropy, -out.logp, -logp):
        torch.testing.assert_close(found, torch.full((1, 3), math.log(2)))


@dataclass(frozen=True)
class Ranked(Sampling):
    """A sampler without chance, so that a row's tokens depend on the row alone."""

    rank: int = 2

    def draw(self, logits: Tensor, generator: Any = None) -> Tensor:
        return logits.topk(self.rank).indices[:, -1]


@pytest.mark.parametrize("sampling", [Ranked(rank=2), Ranked(rank=5)])
@pytest.mark.parametrize("compact", [0.0, 0.8, 1.0])
def test_dropping_finished_rows_leaves_the_others_alone(monkeypatch, sampling, compact):
    monkeypatch.setattr(causal_lm, "COMPACT", compact)
    one = policy()
    prompts, mask = left_padded(*[[a, b] for a in range(1, 11) for b in (3, 7)], [4], [5, 6, 7])
    out = one.generate(prompts, mask, max_new_tokens=8, stop_ids=(STOP, 5, 9), pad_id=PAD, sampling=sampling)
    assert out.mask.sum(1).unique().numel() > 1
    for row in range(len(prompts)):
        alone = prompts[row][mask[row]].unsqueeze(0)
        for t in range(int(out.mask[row].sum())):
            token = sampling.draw(one.model(alone).logits[:, -1])
            assert token.item() == out.tokens[row, t]
            alone = torch.cat([alone, token.unsqueeze(0)], dim=1)
        assert (out.tokens[row][~out.mask[row]] == PAD).all()
        assert (out.logp[row][~out.mask[row]] == 0).all()


def test_groups_lie_together_and_greedy_ones_are_equal():
    out = sample(policy(), sampling=GREEDY, group_size=3)
    alone = sample(policy(), sampling=GREEDY, group_size=1)
    assert torch.equal(out.tokens, alone.tokens.repeat_interleave(3, 0))
    assert torch.equal(out.mask, alone.mask.repeat_interleave(3, 0))
    with pytest.raises(ValueError, match="max_new_tokens=0: must be at least 1"):
        sample(policy(), max_new_tokens=0)


def test_same_generator_same_responses():
    one = policy()
    assert torch.equal(sample(one).tokens, sample(one).tokens)
    assert not torch.equal(sample(one).tokens, sample(one, generator=torch.Generator().manual_seed(1)).tokens)


def test_dropout_stays_off():
    config = Qwen2Config(
        vocab_size=11, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, attention_dropout=0.9,
    )  # fmt: skip
    noisy = Qwen2ForCausalLM(config).train()
    one, (tokens, mask, _) = CausalLM(noisy), batch()
    expected = one.logp(tokens, mask)
    assert not one.train().training
    assert not any(module.training for module in one.modules())
    assert torch.equal(one.logp(tokens, mask), expected)


def test_softmax_in_float32_for_a_bfloat16_model():
    one, (tokens, mask, _) = policy(dtype=torch.bfloat16), batch()
    scored = one.logp(tokens, mask)
    assert scored.dtype == torch.float32
    logits = one._states(tokens, mask)
    assert logits.dtype == torch.bfloat16
    exact = logits.double().log_softmax(-1).gather(-1, tokens[:, 4:].unsqueeze(-1)).squeeze(-1)
    assert (scored - exact).abs().max() < 1e-6
    out = sample(one)
    assert out.logp.dtype == torch.float32
    assert policy(dtype=torch.float64).logp(tokens, mask).dtype == torch.float64


def test_weights_come_from_the_seed_and_leave_chance_alone():
    torch.manual_seed(5)
    first, state = policy(seed=1), torch.get_rng_state()
    same, other = policy(seed=1), policy(seed=2)
    assert torch.equal(state, torch.get_rng_state())
    weights = [next(p.model.parameters()) for p in (first, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_the_tiny_model_has_about_0_3_million_parameters():
    from sspo_teach.policies.causal_lm import tiny_qwen2

    assert 250_000 < sum(p.numel() for p in tiny_qwen2(16).parameters()) < 350_000


def test_saved_and_loaded_to_the_bit(tmp_path):
    one, (tokens, mask, _) = policy(), batch()
    one.save(tmp_path / "saved")
    assert not list((tmp_path / "saved").glob("*.bin"))
    assert torch.equal(load_policy(tmp_path / "saved").logp(tokens, mask), one.logp(tokens, mask))
    half = load_policy(str(tmp_path / "saved"), dtype=torch.float64)
    assert next(half.parameters()).dtype == torch.float64


def folder_of(tmp_path: Any, **files: str) -> str:
    for name, text in files.items():
        (tmp_path / name.replace("__", ".")).write_text(text)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda tmp: f"{tmp}/missing", "cannot be loaded"),
        (lambda tmp: f"{tmp}/missing.gguf", "there is no such file"),
        (lambda tmp: folder_of(tmp), "no config.json and 0 GGUF files"),
        (lambda tmp: folder_of(tmp, a__gguf="", b__gguf=""), "no config.json and 2 GGUF files"),
        (lambda tmp: folder_of(tmp, a__gguf="nonsense"), "cannot be loaded"),
        (lambda tmp: folder_of(tmp, config__json="{"), "cannot be loaded"),
        (lambda tmp: folder_of(tmp, config__json='{"model_type": "qwen2"}'), "cannot be loaded"),
        (lambda tmp: folder_of(tmp, config__json='{"model_type": "nope"}'), "cannot be loaded"),
        (lambda tmp: folder_of(tmp, config__json='{"model_type": "qwen2"}', model__safetensors="no"), "cannot be load"),
    ],
)
@pytest.mark.parametrize("load", [load_policy, load_tokenizer])
def test_what_cannot_be_loaded_is_named(tmp_path, load, make, words):
    source = make(tmp_path)
    if load is load_tokenizer and "safetensors" in str(list(tmp_path.iterdir())):
        pytest.skip("a tokenizer has no weights")
    with pytest.raises(ValueError, match=words) as error:
        load(source)
    assert source in str(error.value)
    assert "\n" not in str(error.value)


def test_a_model_without_a_weight_is_refused(tmp_path):
    policy().save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"it lacks model\.norm\.weight"):
        load_policy(tmp_path)


def test_a_pickle_is_never_loaded(tmp_path):
    one = policy()
    one.save(tmp_path)
    torch.save(one.model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="cannot be loaded"):
        load_policy(tmp_path)


class TestStackedAttention:
    @pytest.mark.parametrize(
        ("heads", "kv_heads", "queries", "keys"), [(4, 2, 5, 5), (4, 2, 1, 7), (6, 1, 3, 8), (2, 2, 4, 4)]
    )
    @pytest.mark.parametrize("masked", [True, False])
    def test_is_scaled_dot_product_attention(self, heads, kv_heads, queries, keys, masked):
        draw = torch.Generator().manual_seed(0)
        shapes = [(3, heads, queries, 8), (3, kv_heads, keys, 8), (3, kv_heads, keys, 8)]
        q, k, v = (torch.randn(s, generator=draw, dtype=torch.float64, requires_grad=True) for s in shapes)
        sees = torch.rand(3, 1, queries, keys, generator=draw) < 0.6
        sees[..., 0] = True
        mask = attention.additive(sees, torch.float64) if masked else None
        ours, _ = attention.stacked(None, q, k, v, mask, scaling=8**-0.5)
        repeat = heads // kv_heads
        theirs = nn.functional.scaled_dot_product_attention(
            q, k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1), attn_mask=sees if masked else None
        ).transpose(1, 2)
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-12)
        weight = torch.randn(ours.shape, generator=draw, dtype=torch.float64)
        for a, b in zip(*(torch.autograd.grad((x * weight).sum(), (q, k, v)) for x in (ours, theirs)), strict=True):
            assert torch.allclose(a, b, rtol=1e-10, atol=1e-12)

    def test_small_models_have_it_and_large_ones_the_library_s(self):
        assert policy().model.config._attn_implementation == attention.NAME
        large = Qwen2ForCausalLM(Qwen2Config(vocab_size=11, hidden_size=512, intermediate_size=8, num_hidden_layers=1))
        assert CausalLM(large).model.config._attn_implementation == "sdpa"

    def test_it_is_the_model_that_the_library_runs(self):
        """With padding and without, in one pass and token by token: the logits are sdpa's."""
        ours = policy(dtype=torch.float64)
        ids = torch.randint(3, 11, (3, 6), generator=torch.Generator().manual_seed(1))
        for mask in (None, torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6, [0, 1, 1, 1, 1, 1]])):
            found = {}
            for name in (attention.NAME, "sdpa"):
                ours.model.set_attn_implementation(name)
                whole = ours.model(input_ids=ids, attention_mask=mask).logits
                steps = ours.model.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False, pad_token_id=0)
                found[name] = whole, steps
            real = torch.ones(3, 6, dtype=torch.bool) if mask is None else mask.bool()
            assert torch.allclose(found[attention.NAME][0][real], found["sdpa"][0][real], atol=1e-6)
            assert found[attention.NAME][1].equal(found["sdpa"][1])
