"""Memory and time of one GRPO loss step at the size of Qwen2.5-0.5B, on a CPU, random weights, against TRL's ways.

    pip install -e ".[trl]" && python tests/benchmarks/bench_scale.py

One step is forward, loss and backward of 8 responses of 256 tokens to prompts of 64, in float32. Three sides:

- plain: the logits of the completion, then TRL's ``selective_log_softmax`` (spelled here where TRL is not installed);
- trl: what ``GRPOTrainer`` does in TRL 1.16, a fused projection in tiles (left out where TRL is not installed);
- ours: ``CausalLM.logp``, credit, and one backward pass.

Each side has a process of its own. Memory is the highest resident size during the step above that before it, when
weights and gradients are there already. On a machine with other work the processor's seconds are the fairer clock.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from sspo_teach import METHODS
from sspo_teach.credit import credit
from sspo_teach.policies.causal_lm import CausalLM

QWEN: dict[str, Any] = {
    "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
    "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32768, "rope_theta": 1e6,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
"""Qwen2.5-0.5B's config.json, as far as it shapes the model."""

GRPO = METHODS["grpo"].objective
LOOKED_AT = ("layers.0.self_attn.q_proj", "mlp.down_proj", "model.norm", "input_layernorm")


def model_of(sizes: dict[str, Any]) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**sizes))


def batch_of(sizes: dict[str, Any], batch: int, prompt: int, length: int) -> SimpleNamespace:
    """Random tokens without padding, an advantage for each response."""
    chance = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, sizes["vocab_size"], (batch, prompt + length), generator=chance)
    return SimpleNamespace(
        tokens=tokens,
        prompt_mask=torch.ones(batch, prompt, dtype=torch.bool),
        mask=torch.ones(batch, length, dtype=torch.bool),
        advantages=torch.randn(batch, 1, generator=chance),
    )


def selective_log_softmax(logits: Tensor, index: Tensor) -> Tensor:
    """As TRL spells it for float32 logits."""
    picked = logits.gather(-1, index.unsqueeze(-1)).squeeze(-1)
    return picked - torch.stack([row.logsumexp(-1) for row in logits])


def by_plain(model: Any, data: Any) -> Callable[[], None]:
    try:
        from trl.trainer.utils import selective_log_softmax as select
    except ImportError:
        select = selective_log_softmax
    length = data.mask.shape[1]
    seen = torch.ones_like(data.tokens)

    def step() -> None:
        logits = model(input_ids=data.tokens, attention_mask=seen, use_cache=False, logits_to_keep=length + 1).logits
        logp = select(logits[:, :-1], data.tokens[:, -length:])
        GRPO(logp, logp.detach(), data.advantages, data.mask).backward()

    return step


def by_trl(model: Any, data: Any) -> Callable[[], None]:
    from trl import GRPOTrainer
    from trl.trainer.utils import add_fused_lm_head

    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    stand_in = SimpleNamespace(accelerator=SimpleNamespace(autocast=nullcontext))
    score = inspect.unwrap(GRPOTrainer._get_per_token_logps_and_entropies)  # without its reports to loggers
    length, seen = data.mask.shape[1], torch.ones_like(data.tokens)

    def step() -> None:
        logp, _, _ = score(stand_in, model, data.tokens, seen, length, compute_entropy=True)
        GRPO(logp, logp.detach(), data.advantages, data.mask).backward()

    return step


def by_ours(model: Any, data: Any, rows: int = 0) -> Callable[[], None]:
    policy = CausalLM(model).spare(recompute=model.is_gradient_checkpointing)
    pieces = torch.arange(len(data.mask)).split(rows or len(data.mask))
    normalize = METHODS["grpo"].normalize(data.mask.shape[1])

    def step() -> None:
        from sspo_teach.objectives.normalize import with_counts

        counted = with_counts(normalize, data.mask)
        for piece in pieces:
            logp = policy.logp(data.tokens[piece], data.prompt_mask[piece])
            old = logp.detach()
            logp.backward(-credit(GRPO, old, old, data.advantages[piece], data.mask[piece], normalize=counted))

    return step


SIDES: dict[str, Callable[..., Callable[[], None]]] = {"plain": by_plain, "trl": by_trl, "ours": by_ours}


def resident(name: str) -> float:
    """VmRSS (now) or VmHWM (highest since ``forget_peak``), GB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024 / 1e9


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def looked_at(model: Any) -> Tensor:
    """The gradients of some layers and of every 97th word, as one vector."""
    named = [p.grad.flatten() for name, p in model.named_parameters() if any(part in name for part in LOOKED_AT)]
    return torch.cat([*named, model.get_input_embeddings().weight.grad[::97].flatten()])


def measure(side: str, recompute: bool, sizes: dict[str, Any], shape: tuple[int, int, int], out: str) -> dict[str, Any]:
    """One step of one side; its gradient goes to ``out``."""
    model = model_of(sizes).train()
    if recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    SIDES[side](model, batch_of(sizes, 1, 4, 4))()  # thread pools, kernels, caches; and gradients exist from here on
    if side == "trl":
        model.forward = type(model).forward.__get__(model)
    for weight in model.parameters():
        weight.grad.zero_()
    step = SIDES[side](model, batch_of(sizes, *shape))
    gc.collect()
    before = resident("VmRSS")
    forget_peak()
    wall, used = time.perf_counter(), time.process_time()
    step()
    found = {
        "side": side, "recompute": recompute, "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - used, "peak_GB": resident("VmHWM") - before,
    }  # fmt: skip
    torch.save(looked_at(model), out)
    return found


def halved(recompute: bool, sizes: dict[str, Any], shape: tuple[int, int, int]) -> float:
    """The largest change of a gradient entry with micro-batches half as large, as a share of the largest entry."""
    model, data = model_of(sizes).eval(), batch_of(sizes, *shape)
    if recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    by_ours(model, data)()
    whole = [weight.grad for weight in model.parameters()]
    model.zero_grad(set_to_none=True)
    by_ours(model, data, rows=shape[0] // 2)()
    largest = max(float(grad.abs().max()) for grad in whole)
    pairs = zip(whole, model.parameters(), strict=True)
    return max(float((weight.grad - grad).abs_().max()) for grad, weight in pairs) / largest


def child(pipe: Any, threads: int, call: Callable[..., Any], *arguments: Any) -> None:
    torch.set_num_threads(threads)
    pipe.send(call(*arguments))


def apart(threads: int, call: Callable[..., Any], *arguments: Any) -> Any:
    """``call`` in a fresh process."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=child, args=(there, threads, call, *arguments))
    process.start()
    there.close()
    found = here.recv()
    process.join()
    return found


def rows_of(asked: argparse.Namespace, scratch: Path) -> Iterator[dict[str, Any]]:
    shape = (asked.batch, asked.prompt, asked.length)
    for recompute in (True, False):
        if recompute not in asked.recompute:
            continue
        for side in asked.sides:
            for turn in range(asked.turns):
                yield {
                    **apart(asked.threads, measure, side, recompute, QWEN, shape, str(scratch / f"{side}-{recompute}")),
                    "turn": turn,
                }


def table(rows: list[dict[str, Any]], scratch: Path) -> str:
    titles = ("checkpointing", "peak GB", "of plain", "wall s", "cpu s", "gradient − plain")
    lines = [f"{'side':<8}" + "".join(f"{title:>{max(10, len(title) + 2)}}" for title in titles)]
    best = {}
    for row in rows:
        key = row["side"], row["recompute"]
        best[key] = min(best.get(key, row), row, key=lambda row: row["wall_s"])
    for (side, recompute), row in best.items():
        plain = best.get(("plain", recompute), row)
        expected = scratch / f"plain-{recompute}"
        off = float("nan")
        if expected.exists():
            plain_gradient = torch.load(expected)
            off = float((torch.load(scratch / f"{side}-{recompute}") - plain_gradient).abs().max())
            off /= float(plain_gradient.abs().max())
        lines.append(
            f"{side:<8}{'yes' if recompute else 'no':>15}{row['peak_GB']:>10.2f}"
            f"{row['peak_GB'] / plain['peak_GB']:>10.2f}{row['wall_s']:>10.1f}{row['cpu_s']:>10.1f}{off:>18.1e}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=1, help="processes per side; the fastest counts")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--checkpointing", choices=("both", "yes", "no"), default="both")
    parser.add_argument("--halved", action="store_true", help="also halve the micro-batch and compare gradients")
    asked = parser.parse_args()
    asked.recompute = {"both": (True, False), "yes": (True,), "no": (False,)}[asked.checkpointing]
    try:
        print(f"TRL {version('trl')}")
    except PackageNotFoundError:
        print("TRL is not installed: its path is spelled here, and its fused projection is left out")
        asked.sides = [side for side in asked.sides if side != "trl"]
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    # read when a process starts: what is freed goes back to the system, so that its fragments count on no side
    os.environ["MALLOC_MMAP_THRESHOLD_"] = os.environ["MALLOC_TRIM_THRESHOLD_"] = str(2**20)
    with tempfile.TemporaryDirectory() as scratch:
        rows = []
        for row in rows_of(asked, Path(scratch)):
            print(json.dumps(row), flush=True)
            rows.append(row)
        print(table(rows, Path(scratch)))
    if asked.halved:
        shape = (asked.batch, asked.prompt, asked.length)
        change = apart(asked.threads, halved, True, QWEN, shape)
        print(f"micro-batch halved: largest change of an entry {change:.1e} of the largest entry")


if __name__ == "__main__":
    main()
