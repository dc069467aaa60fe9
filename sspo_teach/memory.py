"""Where the memory of a training step goes, in bytes and before anything runs.

A run's peak is the largest of a few moments: sampling the last token, scoring, the start of the backward pass, its end,
the optimizer's step. At each of them lies what stays (weights, gradients, optimizer state) and what passes
(activations, logits, keys and values). Each function below counts one of these and says why; ``moments`` puts them
together, ``peak`` takes the largest, ``largest_micro_batch`` turns the question round.

Counted are the tensors of the transformers' Qwen2 and Llama code under ``scaled_dot_product_attention``, with padded
prompts. What an allocator adds to them is the allowance: the CUDA context and what its blocks leave unused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from sspo_teach.policies.projection import automatic_chunk
from sspo_teach.tensors import unknown

FLOAT = 4  # bytes of a float32: weights, gradients, optimizer state, residual stream, log-softmax
CONTEXT = 500_000_000  # bytes of a CUDA context with its libraries' kernels and workspaces
UNUSED = 0.08  # share of all tensors that rounding and fragmentation add, an assumption: measure with your own driver

Autocast = Literal["none", "bf16", "fp16"]
Optimizer = Literal["adamw", "adamw_fused", "adamw_8bit"]
Items = dict[str, int]


@dataclass(frozen=True)
class Sizes:
    """The numbers of a Qwen2 or Llama that decide its memory; names as in its config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    tie_word_embeddings: bool = True
    attention_bias: bool = True

    @property
    def queries(self) -> int:
        """Width of a token's queries, all heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of a token's keys, and of its values."""
        return self.num_key_value_heads * self.head_dim

    @property
    def projection(self) -> int:
        """V·h: entries of the embedding, which is the vocabulary projection too where they are tied."""
        return self.vocab_size * self.hidden_size

    @property
    def layer_linear(self) -> int:
        """Entries of the seven matrices of a layer: queries and output, keys and values, gate, up and down."""
        return self.hidden_size * (2 * self.queries + 2 * self.keys + 3 * self.intermediate_size)

    @property
    def parameters(self) -> int:
        """All weights; tied ones count once."""
        bias = (self.queries + 2 * self.keys) if self.attention_bias else 0
        layer = self.layer_linear + bias + 2 * self.hidden_size
        embeddings = self.projection * (1 if self.tie_word_embeddings else 2)
        return embeddings + self.num_hidden_layers * layer + self.hidden_size


def _qwen(vocab: int, hidden: int, intermediate: int, layers: int, heads: int, kv: int, tied: bool = True) -> Sizes:
    return Sizes(vocab, hidden, intermediate, layers, heads, kv, hidden // heads, tied)


def _smol(hidden: int, intermediate: int, layers: int, heads: int, kv: int) -> Sizes:
    return Sizes(49152, hidden, intermediate, layers, heads, kv, hidden // heads, attention_bias=False)


MODELS: dict[str, Sizes] = {
    "Qwen2.5-0.5B": _qwen(151936, 896, 4864, 24, 14, 2),
    "Qwen2.5-1.5B": _qwen(151936, 1536, 8960, 28, 12, 2),
    "Qwen2.5-3B": _qwen(151936, 2048, 11008, 36, 16, 2),
    "Qwen2.5-7B": _qwen(152064, 3584, 18944, 28, 28, 4, tied=False),
    "SmolLM2-135M": _smol(576, 1536, 30, 9, 3),
    "SmolLM2-360M": _smol(960, 2560, 32, 15, 5),
    "SmolLM2-1.7B": _smol(2048, 8192, 24, 32, 32),
}
"""As their published config.json says; the -Instruct and -Base models have the sizes of their name."""


def sizes_of(model: str) -> Sizes:
    """Sizes of a name in ``MODELS`` (an owner before it and -Instruct behind it are allowed), a folder or config.json.

    Raises:
        ValueError: it is none of these, or a config of another kind of model.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return _read(path)
    name = model.rpartition("/")[2].removesuffix("-Instruct")
    if name not in MODELS:
        raise ValueError(f"{unknown('model', name, MODELS)}; or give a folder with a config.json")
    return MODELS[name]


def _read(path: Path) -> Sizes:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"model={str(path)!r} is not JSON: {error}") from error
    kind = found.get("model_type") if isinstance(found, dict) else None
    if kind not in ("qwen2", "llama"):
        raise ValueError(f"model={str(path)!r}: model_type={kind!r}; the formulas hold for qwen2 and llama")
    heads, hidden = (_count(path, found, name) for name in ("num_attention_heads", "hidden_size"))
    known = {
        "num_key_value_heads": heads,
        "head_dim": max(1, hidden // heads),
        "tie_word_embeddings": False,  # what transformers takes where a config is silent
        "attention_bias": kind == "qwen2",
    }
    names = [field.name for field in fields(Sizes)]
    known |= {name: found[name] for name in names if found.get(name) is not None}
    flags = ("tie_word_embeddings", "attention_bias")
    sizes: dict[str, Any] = {n: bool(known[n]) if n in flags else _count(path, known, n) for n in names}
    return Sizes(**sizes)


def _count(path: Path, found: Mapping[str, Any], name: str) -> int:
    """A size that a config must hold."""
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"model={str(path)!r}: {name}={value!r}: must be a positive whole number")
    return value


@dataclass(frozen=True)
class Load:
    """What is trained, and how: the settings of a run that decide its memory, under the names they have there.

    Attributes:
        sizes: of the model.
        prompts, group_size, minibatches: n prompts make n·G responses, in so many updates per pass.
        prompt_tokens: P, the longest prompt.
        max_new_tokens: T, the longest response; the peak belongs to a batch in which one response gets there.
        micro_batch: responses per forward and backward pass; 0 is a whole minibatch.
        chunk: tokens whose logits exist together; 0 takes as many as fill 128 MiB in float32.
        gradient_checkpointing: only the layers' inputs are kept.
        autocast: of matrix products.
        optimizer: AdamW's state in float32, or in 8 bits.
        lora_rank: of adapters on all linear layers; 0 trains the weights.
        reference: a second set of weights, if beta > 0.
        reference_offload: those are on the device only while they score.
        generation_batch: responses sampled at a time; 0 is all.
        share_prompts: each prompt goes through the model once per group.
        device: a CPU raises a bfloat16 summand to float32 in memory of its own, a GPU while it adds.
    """

    sizes: Sizes
    prompts: int = 8
    group_size: int = 8
    minibatches: int = 2
    prompt_tokens: int = 256
    max_new_tokens: int = 256
    micro_batch: int = 8
    chunk: int = 0
    gradient_checkpointing: bool = False
    autocast: Autocast = "none"
    optimizer: Optimizer = "adamw_fused"
    lora_rank: int = 0
    reference: bool = False
    reference_offload: bool = False
    generation_batch: int = 0
    share_prompts: bool = True
    device: Literal["cuda", "cpu"] = "cuda"

    @property
    def low(self) -> int:
        """Bytes of an entry that a matrix product reads or writes."""
        return FLOAT if self.autocast == "none" else 2

    @property
    def minibatch(self) -> int:
        """Responses per update."""
        return -(-self.prompts // self.minibatches) * self.group_size

    @property
    def rows(self) -> int:
        """Responses that go through the model together."""
        return min(self.micro_batch, self.minibatch) if self.micro_batch else self.minibatch

    @property
    def sampled(self) -> int:
        """Responses that grow together."""
        every = self.prompts * self.group_size
        return min(self.generation_batch, every) if self.generation_batch else every

    @property
    def trained(self) -> int:
        """Weights with a gradient. An adapter of rank r on a matrix (m, n) has r (m + n)."""
        s = self.sizes
        if not self.lora_rank:
            return s.parameters
        ends = 2 * (s.hidden_size + s.queries) + 2 * (s.hidden_size + s.keys)
        ends += 3 * (s.hidden_size + s.intermediate_size)
        return self.lora_rank * ends * s.num_hidden_layers

    @property
    def tokens_per_step(self) -> int:
        """Response tokens of one iteration, if every response is as long as it may be."""
        return self.prompts * self.group_size * self.max_new_tokens


# What stays


def weights(load: Load) -> int:
    """Float32, whatever autocast does: a step of 1e-6 is lost in bfloat16. Adapters come on top."""
    added = load.trained if load.lora_rank else 0
    return FLOAT * (load.sizes.parameters + added)


def gradients(load: Load) -> int:
    """One float32 per trained weight, from the first backward pass of an update to its end."""
    return FLOAT * load.trained


def optimizer(load: Load) -> int:
    """AdamW's two moments: float32, or 8 bits with a float32 scale for each block of 256 (Dettmers, 2110.02861)."""
    each = 2 * (1 + FLOAT / 256) if load.optimizer == "adamw_8bit" else 2 * FLOAT
    return round(each * load.trained)


def reference(load: Load, *, scoring: bool = False) -> int:
    """A second set of weights, for good or only while it scores. With adapters it is the model without them."""
    if not load.reference or load.lora_rank or (load.reference_offload and not scoring):
        return 0
    return FLOAT * load.sizes.parameters


# What passes


def tokens_forward(load: Load) -> int:
    """Positions that go through the layers in one pass: shared prompts once per group, the last token never.

    Layers that recompute cannot share: they would read a cache that has grown since.
    """
    own, inner = load.prompt_tokens, load.max_new_tokens - 1
    if not load.share_prompts or load.gradient_checkpointing:
        return load.rows * (own + inner)
    return _prompts(load, load.rows) * own + load.rows * inner


def keys_read(load: Load) -> int:
    """Positions whose keys and values attention reads: each response reads its prompt's, also where that is shared."""
    shared = load.share_prompts and not load.gradient_checkpointing
    again = _prompts(load, load.rows) * load.prompt_tokens if shared else 0
    return load.rows * (load.prompt_tokens + load.max_new_tokens - 1) + again


def mask_entries(load: Load) -> int:
    """Query-key pairs of one pass."""
    width, inner = load.prompt_tokens, load.max_new_tokens - 1
    if not load.share_prompts or load.gradient_checkpointing:
        return load.rows * (width + inner) ** 2
    return _prompts(load, load.rows) * width**2 + load.rows * inner * (width + inner)


def layer_saved(load: Load) -> int:
    """What one layer keeps for its backward pass.

    Per token: two norms keep their input and the normalised input in float32 (4 h); the linear layers keep what they
    read, which is one tensor in float32 (2 h) and one copy for each reader in lower precision (5 h: q, k, v, gate, up);
    attention keeps queries and output; the MLP gate, up, silu(gate) and their product (4 m). Per key: key and value,
    repeated for all heads, since attention with a mask shares none. Per pair: the mask as numbers.
    """
    s, low = load.sizes, load.low
    norms = 4 * s.hidden_size if not load.lora_rank else 2 * s.hidden_size  # frozen, they keep no normalised input
    read = (2 if low == FLOAT else 5) * s.hidden_size
    per_token = FLOAT * norms + low * (read + 2 * s.queries + 4 * s.intermediate_size)
    return tokens_forward(load) * per_token + keys_read(load) * 2 * s.queries * low + mask_entries(load) * low


def layer_copies(load: Load) -> int:
    """Under autocast, a layer's matrices in lower precision, which its backward pass reads again."""
    return 0 if load.low == FLOAT else load.low * load.sizes.layer_linear


def layer_input(load: Load) -> int:
    """The residual stream between two layers, float32 also under autocast."""
    return FLOAT * load.sizes.hidden_size * tokens_forward(load)


def layer_kept(load: Load) -> int:
    """What a layer holds until its turn: with checkpointing its input alone."""
    return layer_input(load) if load.gradient_checkpointing else layer_saved(load) + layer_copies(load)


def kept(load: Load) -> int:
    """What all layers hold when the backward pass begins, and the final norm's input and output."""
    return (
        load.sizes.num_hidden_layers * layer_kept(load)
        + 2 * layer_input(load)
        + FLOAT * load.sizes.hidden_size * load.rows * load.max_new_tokens
    )


def layer_backward(load: Load) -> int:
    """What one layer's backward pass adds: two gradients of the MLP's width, two of the stream's, one of a matrix.

    And with checkpointing, all that the layer would have kept, since it is computed again.
    """
    s = load.sizes
    passing = tokens_forward(load) * (2 * s.intermediate_size * load.low + 2 * s.hidden_size * FLOAT)
    passing += 0 if load.lora_rank else s.hidden_size * s.intermediate_size * FLOAT
    return passing + (layer_saved(load) + layer_copies(load) if load.gradient_checkpointing else 0)


SMALL = 4096  # vocabularies up to this size are not cut unless asked


def chunk_of(load: Load) -> int:
    """Tokens whose logits exist together."""
    every = load.rows * load.max_new_tokens
    if not load.chunk and load.sizes.vocab_size <= SMALL:
        return every
    return min(load.chunk or automatic_chunk(load.sizes.vocab_size), every)


def logits_training(load: Load) -> int:
    """A chunk's logits going backward: all chunks share one piece of memory, in which the slope is made too.

    Autocast's logits are made in lower precision, raised to float32 and their slope lowered again, while those of the
    chunk before are still there. It also needs the projection in lower precision, and its gradient's summand.
    """
    raised = FLOAT * load.sizes.projection if load.device == "cpu" and load.low < FLOAT and not load.lora_rank else 0
    return _per_logit(load, FLOAT, FLOAT, 8, 12) + _lowered_projection(load, 1 if load.lora_rank else 2) + raised


def logits_scoring(load: Load) -> int:
    """As in training, but all log-probabilities of a chunk stand beside its logits, for the entropy."""
    return _per_logit(load, 2 * FLOAT, 3 * FLOAT, 10, 14) + _lowered_projection(load, 1)


def _per_logit(load: Load, one: int, more: int, one_lowered: int, more_lowered: int) -> int:
    """Bytes of a chunk, given those of a logit where one chunk is all, and where there are more."""
    tokens = chunk_of(load)
    single, several = (one, more) if load.low == FLOAT else (one_lowered, more_lowered)
    if not load.chunk and load.sizes.vocab_size <= SMALL:  # autograd's own: scaled, softmax, two slopes
        single = 4 * FLOAT
    return (single if tokens == load.rows * load.max_new_tokens else several) * tokens * load.sizes.vocab_size


def _lowered_projection(load: Load, copies: int) -> int:
    return 0 if load.low == FLOAT else copies * load.low * load.sizes.projection


def keys_and_values(load: Load, positions: int) -> int:
    """The cache of so many positions, and one layer's twice, since a cache grows by being copied.

    Keys are float32 also under autocast: rotary positions are, and so is the product of both.
    """
    return positions * load.sizes.keys * (FLOAT + load.low) * (load.sizes.num_hidden_layers + 1)


def logits_sampling(load: Load) -> int:
    """Of one position of every response: as projected, and scaled, softmax, and a copy to draw with, in float32."""
    return load.sampled * load.sizes.vocab_size * (load.low + 3 * FLOAT)


def all_copies(load: Load) -> int:
    """Under autocast, all matrices in lower precision for as long as responses grow."""
    s = load.sizes
    return 0 if load.low == FLOAT else load.low * (s.num_hidden_layers * s.layer_linear + s.projection)


def forward_only(load: Load, positions: int) -> int:
    """A layer without gradient: three tensors of the MLP's width and four of the stream's pass at a time."""
    s = load.sizes
    return positions * (3 * s.intermediate_size * load.low + 4 * s.hidden_size * FLOAT)


def _prompts(load: Load, rows: int) -> int:
    return -(-rows // load.group_size)


# Together


def moments(load: Load) -> dict[str, Items]:
    """Bytes by item at each moment that can be the peak; the phase comes before the colon."""
    s = load.sizes
    stays = {"weights": weights(load), "optimizer": optimizer(load), "reference": reference(load)}
    prompts = _prompts(load, load.sampled) * load.prompt_tokens
    grown = load.sampled * (load.prompt_tokens + load.max_new_tokens)
    whole, copies = gradients(load), s.num_hidden_layers * layer_copies(load)
    # with one micro-batch per update, gradients appear as activations go; with more, those of the first are there
    first, alone = whole, load.rows == load.minibatch and not load.lora_rank
    if alone:
        first = FLOAT * s.projection
    last = whole - FLOAT * s.layer_linear if alone else whole
    full = 0 if load.lora_rank else FLOAT * s.projection
    found: dict[str, Items] = {
        "generation: prompts": {
            **stays,
            "activations": forward_only(load, prompts) + copies,
            "keys and values": keys_and_values(load, prompts),
        },
        "generation: last token": {
            **stays,
            "activations": all_copies(load),
            "logits": logits_sampling(load),
            "keys and values": keys_and_values(load, grown),
        },
        "scoring: layer": {
            **stays,
            "reference": reference(load, scoring=True),
            "activations": forward_only(load, tokens_forward(load)) + copies,
        },
        "scoring: projection": {
            **stays,
            "reference": reference(load, scoring=True),
            "activations": layer_input(load),
            "logits": logits_scoring(load),
        },
        "training: projection": {
            **stays,
            "gradients": first,
            "activations": kept(load),
            "logits": logits_training(load),
        },
        "training: last layer": {
            **stays,
            "gradients": first,
            "activations": kept(load) + layer_backward(load),
        },
        "training: first layer": {
            **stays,
            "gradients": last,
            "activations": layer_kept(load) + layer_backward(load),
        },
        "training: embedding": {  # its gradient is summed up apart, then added
            **stays,
            "gradients": whole + full,
            "activations": 3 * layer_input(load),
        },
        "training: optimizer step": {
            **stays,
            "gradients": whole,
            "activations": 2 * full if load.optimizer == "adamw" else 0,  # two of the largest weight's size pass
        },
    }
    if load.gradient_checkpointing:  # going forward, autocast keeps every copy until its pass ends
        passing = kept(load) + forward_only(load, tokens_forward(load)) + copies
        found["training: forward"] = {**stays, "gradients": first, "activations": passing}
    return {moment: {name: value for name, value in items.items() if value} for moment, items in found.items()}


def peak(load: Load, phase: str = "") -> tuple[str, Items]:
    """The moment with the most bytes, of all or of one phase (generation, scoring, training), and its items."""
    found = {moment: items for moment, items in moments(load).items() if moment.startswith(phase)}
    if not found:
        raise ValueError(unknown("phase", phase, {moment.partition(":")[0] for moment in moments(load)}))
    return max(found.items(), key=lambda pair: sum(pair[1].values()))


def allowance(tensors: int) -> int:
    """What a GPU needs beside ``tensors`` bytes of them: its context, and what the allocator's blocks leave unused."""
    return CONTEXT + round(UNUSED * tensors)


def needed(load: Load) -> int:
    """Bytes of a GPU that the run needs: its highest moment with the allowance."""
    tensors = sum(peak(load)[1].values())
    return tensors + allowance(tensors)


def largest_micro_batch(load: Load, budget: int) -> int:
    """The most responses per pass, up to a whole minibatch, with which a run fits ``budget`` bytes; 0 if none does."""
    low, high = 0, load.minibatch
    while low < high:  # more responses never need less
        middle = (low + high + 1) // 2
        low, high = (middle, high) if needed(replace(load, micro_batch=middle)) <= budget else (low, middle - 1)
    return low


def table(load: Load) -> str:
    """Items by moment in GB (10⁹ bytes), the highest moment marked."""
    found, top = moments(load), peak(load)[0]
    names = list(dict.fromkeys(name for items in found.values() for name in items))
    lines = [f"{'GB (10⁹ bytes)':<26}" + "".join(f"{name:>{max(len(name), 8) + 2}}" for name in names) + f"{'sum':>9}"]
    for moment, items in found.items():
        cells = (f"{items[name] / 1e9:.2f}" if name in items else "–" for name in names)
        row = "".join(f"{cell:>{max(len(name), 8) + 2}}" for name, cell in zip(names, cells, strict=True))
        mark = "  ← peak" if moment == top else ""
        lines.append(f"{moment:<26}{row}{sum(items.values()) / 1e9:>9.2f}{mark}")
    return "\n".join(lines)
