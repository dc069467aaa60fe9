"""One policy class over any transformers causal language model, from a 0.3 M parameter Qwen2 to Qwen2.5-0.5B."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, DynamicCache, Qwen2Config, Qwen2ForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from sspo_teach.policies import attention, lora, projection
from sspo_teach.policies.sampling import Sampling

M = TypeVar("M", bound=Callable[..., Any])

COMPACT = 0.8
"""Finished responses leave the batch once less than this share of it still grows, since leaving copies the cache."""

PACK = 256
"""Responses to one prompt share a row up to this width: fewer, larger operations, but a larger attention matrix."""

SMALL = 4096
"""The largest vocabulary whose logits are made all at once where nobody says otherwise: they cost less than chunks."""


def _casting(method: M) -> M:
    @wraps(method)
    def casting(self: CausalLM, *args: Any, **kwargs: Any) -> Any:
        with self.casts():
            return method(self, *args, **kwargs)

    return cast(M, casting)


@dataclass(frozen=True)
class Generated:
    """B sampled responses.

    Attributes:
        tokens: (B, T) int64, padding after the first stop token.
        mask: (B, T) bool, True up to and including the first stop token.
        logp: (B, T) float32 log-probabilities at the sampling temperature, before any truncation; 0 on padding.
        entropy: (B, T) float32 entropy of the next-token distribution at each position; 0 on padding.
        truncated: (B,) bool, True where no stop token came in time.
    """

    tokens: Tensor
    mask: Tensor
    logp: Tensor
    entropy: Tensor
    truncated: Tensor


class CausalLM(nn.Module):
    """A language model that samples responses and scores them, in one convention.

    Prompts are left-padded, responses right-padded; position ids follow the mask; dropout is off; the log-softmax is
    taken in float32 of ``logits / temperature``, so what is sampled and what is scored are the same distribution.
    Of a large vocabulary the logits of all tokens never exist together.

    Args:
        model: a transformers causal language model. It is put in evaluation mode and stays there.
    """

    chunk = 0
    """Tokens whose logits exist together when responses are scored; 0 chooses."""
    autocast: torch.dtype | None = None
    """Of matrix products, where it is not that of the weights."""
    recomputes = False
    """Whether layers keep only their input for the backward pass."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.eval()
        # transformers renames the argument during 5.x
        self._cache_name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        config = model.config.get_text_config()
        kinds = getattr(config, "layer_types", None) or ["full_attention"]
        self._plain_head: bool | None = None  # looked at when first needed
        self._packs = config._attn_implementation in ("sdpa", attention.NAME) and set(kinds) == {"full_attention"}
        if self._packs and config is model.config and config.hidden_size <= attention.SMALL:
            model.set_attn_implementation(attention.NAME)

    def train(self, mode: bool = True) -> CausalLM:
        """Keep dropout off: a ratio between two passes is only 1 when both compute the same function."""
        return super().train(False)

    def spare(self, *, chunk: int = 0, recompute: bool = False, autocast: torch.dtype | None = None) -> CausalLM:
        """Choose what memory is spent on; the function stays the same, up to the rounding of ``autocast``.

        Args:
            chunk: tokens whose logits exist together when responses are scored; 0 chooses.
            recompute: keep only each layer's input for the backward pass (gradient checkpointing).
            autocast: bfloat16 or float16 for matrix products; log-softmax and log-probabilities stay in float32.
        """
        if recompute and not self.recomputes:
            _recompute_layers(self.model)
        self.chunk, self.autocast, self.recomputes = chunk, autocast, recompute or self.recomputes
        return self

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def vocab_size(self) -> int:
        return self.model.config.get_text_config().vocab_size

    def logp(
        self, tokens: Tensor, prompt_mask: Tensor, *, temperature: float = 1.0, group_ids: Tensor | None = None
    ) -> Tensor:
        """Log-probability of each response token.

        Args:
            tokens: (B, P+T) int64, prompt and response.
            prompt_mask: (B, P) bool.
            temperature: of the distribution that sampled the tokens; > 0.
            group_ids: (B,) which prompt each row answers. When given, each prompt goes through the model once and its
                keys and values are shared by its group: the same function, fewer multiplications.

        Returns:
            (B, T) float32 (float64 for a float64 model), differentiable.
        """
        return self._scored(tokens, prompt_mask, temperature, group_ids, entropy=False)[0]

    @torch.no_grad()
    def logp_and_entropy(
        self, tokens: Tensor, prompt_mask: Tensor, *, temperature: float = 1.0, group_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """``logp`` without gradient, and the entropy (B, T) in nats of the distribution at each response token."""
        logp, entropy = self._scored(tokens, prompt_mask, temperature, group_ids, entropy=True)
        return logp, entropy

    def _scored(
        self, tokens: Tensor, prompt_mask: Tensor, temperature: float, group_ids: Tensor | None, *, entropy: bool
    ) -> tuple[Tensor, ...]:
        if not temperature > 0:
            raise ValueError(
                f"temperature={temperature}: scoring needs a positive temperature; greedy has no log-probability"
            )
        head = self._head() if self.chunk or self.vocab_size > SMALL else None
        if group_ids is None:
            states = self._states(tokens, prompt_mask, head)
        else:
            states = self._states_of_groups(tokens, prompt_mask, group_ids, head)
        response = tokens[:, prompt_mask.shape[1] :]
        if head is not None:
            score = projection.token_logp_and_entropy if entropy else projection.token_logp
            chunk = self.chunk or projection.automatic_chunk(self.vocab_size)
            out = score(
                states, head.weight, head.bias, response, temperature=temperature, chunk=chunk, dtype=self.autocast
            )
            return out if isinstance(out, tuple) else (out,)
        all_logp = _log_softmax(states, temperature)
        logp = all_logp.gather(-1, response.unsqueeze(-1)).squeeze(-1)
        return (logp, _entropy(all_logp)) if entropy else (logp,)

    def _head(self) -> nn.Linear | None:
        """The vocabulary projection, where logits are nothing but its product with the last hidden states."""
        if self._plain_head is None:
            head = self.model.get_output_embeddings()
            self._plain_head = type(head) is nn.Linear and self._projects(head)
            if not self._plain_head:
                warnings.warn(
                    f"{type(self.model).__name__} does more to its logits than one projection, so those of a whole "
                    "micro-batch are made at once; a small micro_batch keeps them small",
                    stacklevel=4,
                )
        return self.model.get_output_embeddings() if self._plain_head else None

    @torch.no_grad()
    def _projects(self, head: nn.Linear) -> bool:
        ids = torch.zeros((1, 2), dtype=torch.int64, device=self.device)
        logits = self.model(input_ids=ids, use_cache=False).logits
        return torch.equal(logits, head(self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state))

    def _states(self, tokens: Tensor, prompt_mask: Tensor, head: nn.Linear | None = None) -> Tensor:
        """(B, T, V) logits, or with a ``head`` to come the (B, T, D) hidden states that it reads.

        Position P−1 predicts the first response token, the last token predicts nothing that is scored.
        """
        length = tokens.shape[1] - prompt_mask.shape[1]
        return self._forward(tokens[:, :-1], _extend(prompt_mask, length - 1), keep=length, head=head)

    @_casting  # both passes read one copy of the weights
    def _states_of_groups(
        self, tokens: Tensor, prompt_mask: Tensor, group_ids: Tensor, head: nn.Linear | None
    ) -> Tensor:
        """``_states`` with one pass over each prompt: short responses share its row, long ones read its cache.

        Layers that recompute cannot read a cache that has grown since; long responses then bring their own prompts.
        """
        width = prompt_mask.shape[1]
        _, row_to_prompt, sizes = group_ids.unique(return_inverse=True, return_counts=True)
        order = row_to_prompt.argsort(stable=True)
        first = order[sizes.cumsum(0) - sizes]
        packed_width = width + int(sizes.max()) * (tokens.shape[1] - width - 1)
        if self._packs and packed_width <= PACK:
            return self._states_packed(tokens, prompt_mask, row_to_prompt, order, first, sizes, head)
        if self.recomputes:
            return self._states(tokens, prompt_mask, head)
        cache = DynamicCache(config=self.model.config)
        after_prompt = self._forward(tokens[first, :width], prompt_mask[first], cache=cache, keep=1, head=head)
        start = after_prompt[row_to_prompt]
        if tokens.shape[1] == width + 1:
            return start
        cache.batch_select_indices(row_to_prompt)
        response = tokens[:, width:-1]
        rest = self._forward(response, _extend(prompt_mask, response.shape[1]), cache=cache, head=head)
        return torch.cat([start, rest], dim=1)

    def _states_packed(
        self,
        tokens: Tensor,
        prompt_mask: Tensor,
        row_to_prompt: Tensor,
        order: Tensor,
        first: Tensor,
        sizes: Tensor,
        head: nn.Linear | None,
    ) -> Tensor:
        """One row per prompt: the prompt, then all its responses, each of which sees the prompt and itself alone."""
        (batch, width), device = prompt_mask.shape, tokens.device
        inner = tokens.shape[1] - width - 1  # the last response token predicts nothing
        rank = torch.empty_like(order)  # a row's place among the responses to its prompt
        rank[order] = torch.arange(batch, device=device) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        places = width + rank.unsqueeze(1) * inner + torch.arange(inner, device=device)  # (B, T−1)
        packed = tokens.new_zeros(len(first), width + int(sizes.max()) * inner)
        packed[:, :width] = tokens[first, :width]
        packed[row_to_prompt.unsqueeze(1), places] = tokens[:, width:-1]

        at = torch.arange(packed.shape[1], device=device)
        owner = torch.where(at < width, -1, (at - width).div(max(inner, 1), rounding_mode="floor"))
        sees = (at <= at.unsqueeze(1)) & ((owner == -1) | (owner == owner.unsqueeze(1)))  # (N, N), query by key
        real = torch.cat([prompt_mask[first], prompt_mask.new_ones(len(first), len(at) - width)], dim=1)
        # padding sees itself, or its softmax over nothing would be NaN
        mask = (sees & real.unsqueeze(1)) | torch.eye(len(at), dtype=torch.bool, device=device)
        mask = attention.additive(mask, self.model.dtype).unsqueeze(1)
        positions = (prompt_mask[first].long().cumsum(-1) - 1).clamp(min=0)
        inside = (at[width:] - width).remainder(max(inner, 1)) + 1
        positions = torch.cat([positions, positions[:, -1:] + inside], dim=1)
        states = self._run(head, input_ids=packed, attention_mask=mask, position_ids=positions, use_cache=False)
        start = states[row_to_prompt, width - 1].unsqueeze(1)
        return torch.cat([start, states[row_to_prompt.unsqueeze(1), places]], dim=1)

    def _forward(
        self,
        tokens: Tensor,
        mask: Tensor,
        *,
        cache: DynamicCache | None = None,
        keep: int = 0,
        head: nn.Linear | None = None,
    ) -> Tensor:
        """Logits of ``tokens`` (B, N), the last N of the positions that ``mask`` (B, M ≥ N) describes.

        Of the last ``keep`` tokens, or of all (0); hidden states instead where a ``head`` is still to read them.
        """
        return self._run(
            head,
            keep,
            input_ids=tokens,
            attention_mask=None if bool(mask.all()) else mask.long(),
            position_ids=(mask.long().cumsum(-1) - 1).clamp(min=0)[:, -tokens.shape[1] :],
            use_cache=cache is not None,
            **({} if cache is None else {self._cache_name: cache}),
        )

    def _run(self, head: nn.Linear | None, keep: int = 0, **inputs: Any) -> Tensor:
        with self.casts():
            if head is None:
                return self.model(**inputs, logits_to_keep=keep).logits
            return self.model.base_model(**inputs).last_hidden_state[:, -keep:]

    def casts(self) -> AbstractContextManager[Any]:
        """``autocast`` as a context; one around many passes casts each weight once for all of them."""
        return torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None)

    @torch.no_grad()
    @_casting
    def generate(
        self,
        prompts: Tensor,
        prompt_mask: Tensor,
        *,
        max_new_tokens: int,
        stop_ids: tuple[int, ...],
        pad_id: int,
        sampling: Sampling = Sampling(),  # noqa: B008  (frozen)
        group_size: int = 1,
        generator: torch.Generator | None = None,
    ) -> Generated:
        """Sample ``group_size`` responses to each prompt; row i answers prompt i // group_size.

        Args:
            prompts: (n, P) int64, left-padded.
            prompt_mask: (n, P) bool.
            max_new_tokens: T, at least 1.
            stop_ids: tokens that end a response; the first one belongs to it.
            pad_id: fills what comes after.
            sampling: temperature, top-k and top-p, complete.
            group_size: G, at least 1.
            generator: source of randomness on the model's device.

        Returns:
            ``Generated`` with B = n·G rows.
        """
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={max_new_tokens}: must be at least 1")
        batch = len(prompts) * group_size
        device = prompts.device
        tokens = torch.full((batch, max_new_tokens), pad_id, device=device)
        mask = torch.zeros((batch, max_new_tokens), dtype=torch.bool, device=device)
        logp = torch.zeros((batch, max_new_tokens), device=device)
        entropy = torch.zeros_like(logp)
        stops = torch.tensor(stop_ids, device=device)

        cache = DynamicCache(config=self.model.config)
        logits = self._forward(prompts, prompt_mask, cache=cache, keep=1)[:, -1]
        row_to_prompt = torch.arange(len(prompts), device=device).repeat_interleave(group_size)
        cache.batch_select_indices(row_to_prompt)
        logits, seen = logits[row_to_prompt], prompt_mask[row_to_prompt]
        rows = torch.arange(batch, device=device)  # the responses that go through the model
        alive = torch.ones(batch, dtype=torch.bool, device=device)  # those of them that still grow
        for t in range(max_new_tokens):
            token = sampling.draw(logits, generator)
            all_logp = _log_softmax(logits, sampling.temperature or 1.0)
            tokens[rows, t] = token.where(alive, pad_id)
            mask[rows, t] = alive
            logp[rows, t] = all_logp.gather(-1, token.unsqueeze(-1)).squeeze(-1).float().where(alive, 0.0)
            entropy[rows, t] = _entropy(all_logp).float().where(alive, 0.0)
            alive = alive & ~torch.isin(token, stops)
            if t == max_new_tokens - 1 or not alive.any():
                break
            if alive.float().mean() < COMPACT:
                keep = alive.nonzero().squeeze(-1)
                rows, token, seen, alive = rows[keep], token[keep], seen[keep], alive[keep]
                cache.batch_select_indices(keep)
            seen = _extend(seen, 1)
            logits = self._forward(token.unsqueeze(-1), seen, cache=cache)[:, -1]
        last = tokens.gather(1, mask.sum(1, keepdim=True) - 1).squeeze(1)
        return Generated(tokens, mask, logp, entropy, truncated=~torch.isin(last, stops))

    def save(self, folder: str | Path) -> None:
        """Write weights (safetensors) and config so that ``load_policy(folder)`` and ``from_pretrained`` read them.

        Adapters are merged into the weights: what is read again computes the same and needs no peft.
        """
        weights = {"state_dict": lora.merged(self.model)} if lora.adapted(self.model) else {}
        self.model.save_pretrained(folder, **weights)


def tiny_qwen2(
    vocab_size: int,
    *,
    hidden_size: int = 128,
    intermediate_size: int = 256,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    max_length: int = 512,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> CausalLM:
    """A small Qwen2 with random weights: at the defaults two layers and about 0.3 million parameters.

    The architecture is Qwen2.5-0.5B's (grouped-query attention, rotary positions, SwiGLU, tied embeddings), so that all
    that is learnt here holds there.
    """
    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=max_length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    return CausalLM(model).to(dtype)


def load_policy(source: str | Path, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> CausalLM:
    """A pretrained policy from a folder, a hub id, or a GGUF file (which is dequantised to ``dtype``).

    Raises:
        ValueError: nothing can be loaded from ``source``; the message says what was tried and how to go on.
    """
    name, extra = locate(source)
    safe = {"trust_remote_code": False, "use_safetensors": True}  # no code and no pickle of a stranger's
    read: Any = AutoModelForCausalLM.from_pretrained
    try:
        model, report = read(name, dtype=dtype, output_loading_info=True, **safe, **extra)
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        raise ValueError(cannot_load("model", source, error)) from error
    if missing := sorted(report["missing_keys"]):  # transformers would leave them random
        raise ValueError(cannot_load("model", source, ValueError(f"it lacks {', '.join(missing[:3])}.")))
    return CausalLM(model).to(device)


def load_tokenizer(source: str | Path) -> Any:
    """The tokenizer that belongs to ``source`` (as in ``load_policy``)."""
    from transformers import AutoTokenizer

    name, extra = locate(source)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False, **extra)
    except (OSError, ValueError, ImportError) as error:
        raise ValueError(cannot_load("tokenizer of model", source, error)) from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # what transformers makes of a folder without its files
        raise ValueError(cannot_load("tokenizer of model", source, ValueError("its vocabulary is empty.")))
    return tokenizer


def locate(source: str | Path) -> tuple[str, dict[str, str]]:
    """Split a source into what ``from_pretrained`` wants: a name or folder, and the GGUF file in it if there is one."""
    path = Path(source).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ValueError(f"model={str(source)!r}: there is no such file")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir() and not (path / "config.json").exists():
        found = sorted(path.glob("*.gguf"))
        if len(found) == 1:
            return str(path), {"gguf_file": found[0].name}
        raise ValueError(
            f"model={str(source)!r}: the folder holds no config.json and {len(found)} GGUF files; "
            "name a folder written by save_pretrained, or one .gguf file"
        )
    return str(path) if path.is_dir() else str(source), {}


def cannot_load(what: str, source: str | Path, error: Exception) -> str:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return (
        f"{what}={str(source)!r} cannot be loaded: {reason} "
        "Give a folder written by save_pretrained, a .gguf file (pip install gguf accelerate), a hub id, or 'tiny'."
    )


def _recompute_layers(model: nn.Module) -> None:
    """Gradient checkpointing that needs no training mode, which would switch dropout on."""
    for layer in model.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.forward = partial(_recomputed, layer.forward)


def _recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


def _extend(mask: Tensor, n: int) -> Tensor:
    return torch.cat([mask, mask.new_ones(len(mask), n)], dim=1)


def _log_softmax(logits: Tensor, temperature: float) -> Tensor:
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return (logits / temperature).log_softmax(-1)


def _entropy(all_logp: Tensor) -> Tensor:
    return -(all_logp.exp() * projection.finite_(all_logp)).sum(-1)
