"""What only a GPU can tell: chunks against the whole, ratios in bfloat16, speed, memory against the plan, learning.

Every check fills one entry of the JSON file, which is written after each, so that a run that is cut short leaves what
it found. Numbers that a machine decides (speed) are reported; those that must hold carry ``ok``.
"""

from __future__ import annotations

import argparse
import inspect
import json
import platform
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[1])]

from peak import allocated  # noqa: E402

from sspo_teach import memory  # noqa: E402
from sspo_teach.memory import MODELS, Load, Sizes  # noqa: E402
from sspo_teach.policies.causal_lm import CausalLM  # noqa: E402
from sspo_teach.policies.projection import token_logp  # noqa: E402
from sspo_teach.training.config import Config  # noqa: E402
from sspo_teach.training.trainer import Trainer  # noqa: E402

DTYPES = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Plan:
    """How large everything is."""

    device: str
    training: Load
    rows: int  # of the projection check
    steps: int  # of the learning run
    last: float = 420.0  # seconds after which no check begins


GPU = Plan(
    device="cuda",
    training=Load(MODELS["Qwen2.5-0.5B"], prompts=2, group_size=8, minibatches=1, prompt_tokens=128,
                  max_new_tokens=384, micro_batch=8, gradient_checkpointing=True, autocast="bf16"),
    rows=2048, steps=60,
)  # fmt: skip
REHEARSAL = Plan(
    device="cpu",
    training=Load(Sizes(5000, 128, 256, 2, 4, 2, 32), prompts=2, group_size=4, minibatches=1, prompt_tokens=48,
                  device="cpu", max_new_tokens=80, micro_batch=4, gradient_checkpointing=True, autocast="bf16"),
    rows=64, steps=2,
)  # fmt: skip


def policy_of(load: Load, plan: Plan) -> CausalLM:
    """Random weights of the load's sizes."""
    s = load.sizes
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=s.vocab_size, hidden_size=s.hidden_size, intermediate_size=s.intermediate_size,
        num_hidden_layers=s.num_hidden_layers, num_attention_heads=s.num_attention_heads,
        num_key_value_heads=s.num_key_value_heads, tie_word_embeddings=s.tie_word_embeddings,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    one = CausalLM(Qwen2ForCausalLM(config)).to(plan.device)
    one.model.set_attn_implementation("sdpa")
    return one.spare(
        chunk=load.chunk, recompute=load.gradient_checkpointing, autocast=DTYPES[load.autocast]
    )  # fmt: skip


def batch_of(load: Load, plan: Plan) -> SimpleNamespace:
    """Random tokens at full length, some prompts padded, and a pull for each token."""
    chance = torch.Generator().manual_seed(0)
    groups = torch.arange(load.prompts).repeat_interleave(load.group_size)
    prompts = torch.randint(load.sizes.vocab_size, (load.prompts, load.prompt_tokens), generator=chance)
    answers = torch.randint(load.sizes.vocab_size, (len(groups), load.max_new_tokens), generator=chance)
    prompt_mask = torch.ones(load.prompts, load.prompt_tokens, dtype=torch.bool)
    prompt_mask[::2, :3] = False
    put = lambda x: x.to(plan.device)  # noqa: E731
    return SimpleNamespace(
        prompts=put(prompts), prompt_mask=put(prompt_mask), groups=put(groups),
        tokens=put(torch.cat([prompts[groups], answers], dim=1)), row_mask=put(prompt_mask[groups]),
        pull=put(torch.randn(answers.shape, generator=chance)),
    )  # fmt: skip


def seconds(act: Callable[[], object], plan: Plan, *, repeats: int = 2) -> float:
    """The fastest of a few, after one that warms up."""
    best = float("inf")
    for turn in range(repeats + 1):
        if plan.device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        act()
        if plan.device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began) if turn else best
    return best


# ---- the checks


def chunked(plan: Plan, dtype: torch.dtype) -> dict[str, Any]:
    """The chunked projection against a log-softmax over all logits, value and gradient, relative to the largest."""
    s, n = plan.training.sizes, plan.rows
    chance = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, n, s.hidden_size, generator=chance).to(plan.device)
    weight = (torch.randn(s.vocab_size, s.hidden_size, generator=chance) / s.hidden_size**0.5).to(plan.device)
    tokens = torch.randint(s.vocab_size, (1, n), generator=chance).to(plan.device)
    pull = torch.randn(1, n, generator=chance).to(plan.device)

    def whole(h: Tensor, w: Tensor) -> Tensor:
        logits = (h.to(dtype) @ w.to(dtype).T).float()
        return logits.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)

    def pieces(h: Tensor, w: Tensor) -> Tensor:
        return token_logp(h, w, None, tokens, chunk=max(1, n // 5), dtype=dtype)

    results = []
    for score in (whole, pieces):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        logp = score(h, w)
        logp.backward(pull)
        results.append((logp.detach(), h.grad, w.grad))
    names = ("value", "hidden", "weight")
    errors = {
        name: ((a - b).abs().max() / a.abs().max()).item() for name, a, b in zip(names, *results, strict=True)
    }  # fmt: skip
    limit = 1e-5 if dtype == torch.float32 else 2e-2  # bfloat16 rounds to 2⁻⁸; sums have another order
    return {**errors, "limit": limit, "ok": max(errors.values()) < limit}


def ratio_at_zero(plan: Plan) -> dict[str, Any]:
    """No update was made, so every ratio should be 1; two passes of different shape round differently.

    Sampler against scorer, and prompts shared by cache against prompts repeated, each with the log-softmax taken in
    float32 and in bfloat16.
    """
    load = replace(plan.training, autocast="bf16", gradient_checkpointing=False)
    one, data = policy_of(load, plan), batch_of(load, plan)
    short = load.prompt_tokens + min(64, load.max_new_tokens)
    tokens = data.tokens[: load.group_size, :short]
    mask, groups = data.row_mask[: load.group_size], data.groups[: load.group_size]
    answers = tokens[:, load.prompt_tokens :].unsqueeze(-1)
    with torch.no_grad():
        repeated = one._states(tokens, mask)  # all logits, in bfloat16
        shared = one._states_of_groups(tokens, mask, groups, None)
    precise, coarse = (
        [x.to(dtype).log_softmax(-1).gather(-1, answers).squeeze(-1).float() for x in (repeated, shared)]
        for dtype in (torch.float32, torch.bfloat16)
    )
    found: dict[str, Any] = {
        "shared/repeated, float32 log-softmax": spread(precise[0] - precise[1]),
        "shared/repeated, bfloat16 log-softmax": spread(coarse[0] - coarse[1]),
        "float32 over bfloat16 log-softmax": spread(precise[0] - coarse[1]),  # a trainer and a sampler that differ
    }
    made = one.generate(
        data.prompts[:1], data.prompt_mask[:1], max_new_tokens=short - load.prompt_tokens, pad_id=0,
        stop_ids=(load.sizes.vocab_size,), group_size=load.group_size,
        generator=torch.Generator(plan.device).manual_seed(0),
    )  # fmt: skip
    rows = torch.cat([data.prompts[:1].expand(load.group_size, -1), made.tokens], dim=1)
    with torch.no_grad():
        scored = one.logp(rows, data.prompt_mask[:1].expand(load.group_size, -1))
        again = one.logp(rows, data.prompt_mask[:1].expand(load.group_size, -1))
    found["sampler/scorer, float32 log-softmax"] = spread(scored - made.logp)
    found["ok"] = bool(torch.equal(scored, again))  # the same pass twice: exactly 1
    return found


def spread(log_r: Tensor) -> dict[str, float]:
    ratio = log_r.exp().flatten()
    low, middle, high = ratio.quantile(torch.tensor([0.01, 0.5, 0.99], device=ratio.device)).tolist()
    outside = ((ratio < 0.9) | (ratio > 1.1)).float().mean().item()
    return {
        "outside 0.9-1.1": outside,
        "p01": low,
        "p50": middle,
        "p99": high,
        "largest |log r|": log_r.abs().max().item(),
    }


def training(plan: Plan, *, checkpointing: bool) -> dict[str, Any]:
    """One update: tokens per second, and its peak against the plan; TRL's loss step on the same batch beside it."""
    load = replace(plan.training, gradient_checkpointing=checkpointing)
    data = batch_of(load, plan)
    found = our_update(load, plan, data)
    try:
        return {**found, "trl": trl_step(load, plan, data)}
    except Exception as error:  # of another version, say; our numbers stand
        return {**found, "trl": {"left out": f"{type(error).__name__}: {error}"}}


def our_update(load: Load, plan: Plan, data: SimpleNamespace) -> dict[str, Any]:
    one = policy_of(load, plan)
    optimizer = torch.optim.AdamW(one.parameters(), lr=1e-6, fused=True)

    def passes() -> None:
        for rows in torch.arange(load.minibatch, device=plan.device).split(load.rows):
            groups = data.groups[rows] if load.share_prompts else None
            one.logp(data.tokens[rows], data.row_mask[rows], group_ids=groups).backward(-data.pull[rows])

    def update() -> None:
        passes()
        torch.nn.utils.clip_grad_norm_(one.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def losses_alone() -> None:
        passes()
        one.zero_grad(set_to_none=True)

    update()
    measured, items = allocated(update, cuda=plan.device == "cuda"), memory.peak(load, "training")[1]
    predicted = sum(items.values()) - items["weights"] - items["optimizer"]
    ours, alone = seconds(update, plan), seconds(losses_alone, plan)
    out = {
        "response tokens/s": load.minibatch * load.max_new_tokens / ours, "update_s": ours, "loss_step_s": alone,
        "peak above weights and optimizer, GB": measured / 1e9, "predicted, GB": predicted / 1e9,
        "predicted/measured": predicted / measured, "ok": abs(predicted / measured - 1) <= 0.15,
    }  # fmt: skip
    if plan.device == "cuda":
        out["reserved, GB"] = torch.cuda.max_memory_reserved() / 1e9
        out["needed by plan, GB"] = memory.needed(load) / 1e9
    return out


def trl_step(load: Load, plan: Plan, data: SimpleNamespace) -> dict[str, Any]:
    """The same forward and backward through ``GRPOTrainer``'s own log-probabilities, micro-batch by micro-batch."""
    try:
        from trl import GRPOTrainer
        from trl.trainer.utils import add_fused_lm_head
    except ImportError as error:
        return {"left out": f"TRL is not here: {error}"}
    if plan.device == "cuda":
        torch.cuda.empty_cache()
    model = policy_of(replace(load, gradient_checkpointing=False), plan).model.train()
    if load.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    stand_in = SimpleNamespace(accelerator=SimpleNamespace(autocast=nullcontext))
    score = inspect.unwrap(GRPOTrainer._get_per_token_logps_and_entropies)  # without its reports to loggers
    seen = torch.cat([data.row_mask, torch.ones_like(data.tokens[:, load.prompt_tokens :]).bool()], dim=1).long()
    lowered = torch.autocast(plan.device, dtype=DTYPES[load.autocast], enabled=load.autocast != "none")

    def step() -> None:
        for rows in torch.arange(load.minibatch, device=plan.device).split(load.rows):
            with lowered:
                logp, _, _ = score(
                    stand_in, model, data.tokens[rows], seen[rows], load.max_new_tokens, compute_entropy=True
                )
            logp.backward(-data.pull[rows])
        model.zero_grad(set_to_none=True)

    step()
    return {
        "peak above weights, GB": allocated(step, cuda=plan.device == "cuda") / 1e9,
        "loss_step_s": seconds(step, plan),
        "trl": version("trl"),
    }


def generation(plan: Plan) -> dict[str, Any]:
    """Sampling: tokens per second and peak against the plan; beside it transformers' ``generate``, which TRL calls."""
    load = replace(plan.training, prompts=4 * plan.training.prompts, gradient_checkpointing=False)
    load = replace(load, max_new_tokens=load.max_new_tokens // 3)
    one, data = policy_of(load, plan), batch_of(load, plan)

    def ours() -> None:
        one.generate(
            data.prompts, data.prompt_mask, max_new_tokens=load.max_new_tokens, pad_id=0,
            stop_ids=(load.sizes.vocab_size,), group_size=load.group_size,
        )  # fmt: skip

    def theirs() -> None:
        with torch.autocast(plan.device, dtype=DTYPES[load.autocast]), torch.no_grad():
            one.model.generate(
                data.tokens[:, : load.prompt_tokens], attention_mask=data.row_mask.long(), do_sample=True,
                max_new_tokens=load.max_new_tokens, min_new_tokens=load.max_new_tokens, top_k=0, top_p=1.0,
                pad_token_id=0,
            )  # fmt: skip

    measured, items = allocated(ours, cuda=plan.device == "cuda"), memory.peak(load, "generation")[1]
    predicted = sum(items.values()) - items["weights"] - items["optimizer"]
    tokens = len(data.tokens) * load.max_new_tokens
    return {
        "tokens/s": tokens / seconds(ours, plan, repeats=1),
        "transformers generate, tokens/s": tokens / seconds(theirs, plan, repeats=1),
        "transformers generate, peak GB": allocated(theirs, cuda=plan.device == "cuda") / 1e9,
        "peak above weights, GB": measured / 1e9, "predicted, GB": predicted / 1e9,
        "predicted/measured": predicted / measured, "ok": abs(predicted / measured - 1) <= 0.15,
    }  # fmt: skip


def learning(plan: Plan) -> dict[str, Any]:
    """The tiny transformer on additions with SSPO, on this device: held-out accuracy before and after."""
    rehearsal = plan.device == "cpu"
    with tempfile.TemporaryDirectory() as folder:
        config = Config(
            task="bandit" if rehearsal else "arithmetic", method="sspo", steps=plan.steps, device=plan.device,
            eval_every=max(plan.steps, 1), eval_problems=8 if rehearsal else 500, out=f"{folder}/run",
            prompts=8 if rehearsal else 128,
        )  # fmt: skip
        trainer = Trainer(config, quiet=True)
        trainer.run()
        evaluations, history = trainer.folder.evaluations(), trainer.folder.history()
    before, after = (entry["sampled"]["reward"] for entry in (evaluations[0], evaluations[-1]))
    error = max(row["ratio_error"] for row in history)
    learnt = after > before + 0.05 or rehearsal  # two iterations teach nothing
    return {"reward before": before, "after": after, "iterations": plan.steps, "ratio_error": error, "ok": learnt}


CHECKS: dict[str, Callable[[Plan], dict[str, Any]]] = {
    "chunked = full, float32": lambda plan: chunked(plan, torch.float32),
    "chunked = full, bfloat16": lambda plan: chunked(plan, torch.bfloat16),
    "ratio at zero updates": ratio_at_zero,
    "training, checkpointing": lambda plan: training(plan, checkpointing=True),
    "training, no checkpointing": lambda plan: training(plan, checkpointing=False),
    "generation": generation,
    "learning": learning,
}


def environment(plan: Plan) -> dict[str, Any]:
    cuda = plan.device == "cuda"
    return {
        "date": time.strftime("%Y-%m-%d"),
        "device": torch.cuda.get_device_name() if cuda else f"cpu, {torch.get_num_threads()} threads",
        "memory": torch.cuda.get_device_properties(0).total_memory if cuda else None,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in ("torch", "transformers", "trl", "liger_kernel", "bitsandbytes")},
        "rehearsal": not cuda,
        "load": asdict(plan.training),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def lines(name: str, found: dict[str, Any], indent: str = "  ") -> list[str]:
    """A check as rows of a table, nested entries below their name."""
    out = []
    for key, value in found.items():
        if isinstance(value, dict):
            out += [f"{indent}{key}", *lines(name, value, indent + "  ")]
        elif key != "ok":
            shown = f"{value:.4g}" if isinstance(value, float) else str(value)
            out.append(f"{indent + key:<52}{shown:>16}")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rehearse", action="store_true", help="everything at tiny size on a CPU")
    parser.add_argument("--out", default="gpu_checks.json", help="the JSON file")
    asked = parser.parse_args()
    if not asked.rehearse and not torch.cuda.is_available():
        print("no CUDA device is visible; --rehearse runs everything at tiny size on the CPU", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")
    plan = REHEARSAL if asked.rehearse else GPU
    found: dict[str, Any] = {"environment": environment(plan), "checks": {}}
    began = time.perf_counter()
    for name, check in CHECKS.items():
        start = time.perf_counter()
        if start - began > plan.last:
            result: dict[str, Any] = {"left out": "no time was left", "ok": False}
        else:
            try:
                result = check(plan)
            except Exception as error:  # the other checks still tell something
                traceback.print_exc()
                result = {"error": f"{type(error).__name__}: {error}", "ok": False}
        result["seconds"] = time.perf_counter() - start
        found["checks"][name] = result
        Path(asked.out).write_text(json.dumps(found, indent=1))
        print(f"{name}: {'ok' if result['ok'] else 'NOT OK'}", *lines(name, result), sep="\n", flush=True)
        if plan.device == "cuda":
            torch.cuda.empty_cache()
    failed = [name for name, result in found["checks"].items() if not result["ok"]]
    print(f"\n{len(CHECKS) - len(failed)} of {len(CHECKS)} checks hold; numbers: {asked.out}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
