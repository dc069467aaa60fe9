"""A run in one frozen record: every field is a command-line option and a line of config.json."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from sspo_teach.catalog import Method, method
from sspo_teach.objectives.compose import corrected
from sspo_teach.objectives.corrections import SAMPLER, off_policy_sequence_mask
from sspo_teach.policies.lora import MISSING
from sspo_teach.tensors import unknown
from sspo_teach.training import hardware
from sspo_teach.types import Rollout

AUTO: Any = None  # "choose by hardware and task": filled in by resolve()

TASK_DEFAULTS: dict[str, dict[str, Any]] = {
    "arithmetic": {
        "model": "tiny", "steps": 150, "prompts": 128, "minibatches": 4, "micro_batch": 0, "max_new_tokens": 0,
        "lr": 3e-4, "lr_warmup": 10, "lr_decay": "linear", "warmup_steps": 800,
        "eval_problems": 1000, "eval_new_tokens": 0, "eval_every": 25,
    },
    "bandit": {
        "model": "tiny", "steps": 100, "prompts": 64, "minibatches": 4, "micro_batch": 0, "max_new_tokens": 0,
        "lr": 3e-4, "lr_warmup": 10, "lr_decay": "linear", "warmup_steps": 0,
        "eval_problems": 1000, "eval_new_tokens": 0, "eval_every": 20,
    },
    "arithmetic-text": {
        "model": "", "steps": 20, "prompts": 6, "minibatches": 2, "micro_batch": 24, "max_new_tokens": 12,
        "lr": 5e-6, "lr_warmup": 0, "lr_decay": "constant", "warmup_steps": 0,
        "eval_problems": 100, "eval_new_tokens": 32, "eval_every": 10,
    },
    "gsm8k": {
        "model": "", "steps": 100, "prompts": 8, "minibatches": 2, "micro_batch": 8, "max_new_tokens": 256,
        "lr": 1e-6, "lr_warmup": 0, "lr_decay": "constant", "warmup_steps": 0,
        "eval_problems": 200, "eval_new_tokens": 0, "eval_every": 20,
    },
    "word-problems": {
        "model": "", "steps": 100, "prompts": 8, "minibatches": 2, "micro_batch": 8, "max_new_tokens": 256,
        "lr": 1e-6, "lr_warmup": 0, "lr_decay": "constant", "warmup_steps": 0,
        "eval_problems": 200, "eval_new_tokens": 0, "eval_every": 20,
    },
}  # fmt: skip
"""What depends on the task: a model from nothing wants other numbers than a pretrained one."""

TEXT_FIELDS = ("data", "question_field", "answer_field", "system", "prompt_format", "shots")
"""Options of text tasks that are fields of the config; left as they are, the task's own defaults hold."""
DEFAULTS: dict[str, Any] = {
    "device": "cpu", "group_size": 8, "chunk": 0, "gradient_checkpointing": False, "autocast": "auto",
    "optimizer": "adamw_fused", "reference_offload": False, "generation_batch": 0,
}  # fmt: skip
"""What a hardware preset may choose, where none was named."""

Correction = Literal["none", "tis", "tis_sequence", "mis", "mis_sequence", "icepop", "geo_mask", "sequence_mask"]

AUTOCAST: Mapping[str, torch.dtype | None] = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}
OPTIMIZERS = ("adamw", "adamw_fused", "adamw_8bit")


@dataclass(frozen=True)
class Config:
    """Train a policy with one method on one task."""

    task: Literal["arithmetic", "bandit", "arithmetic-text", "word-problems", "gsm8k"] = "arithmetic"
    """What to learn. The first two need no download; the text tasks need --model."""
    method: str = "sspo"
    """A row of `sspo-teach methods`, with a preset after a colon if you like: sspo, grpo, sspo:gate-study."""
    numbers: tuple[str, ...] = ()
    """The method's own numbers as NAME=VALUE, e.g. --numbers tau_pos=10 tau_neg=12."""
    model: str = AUTO
    """'tiny' (a 0.3 M parameter Qwen2), or a folder, a .gguf file or a hub id."""
    options: tuple[str, ...] = ()
    """The task's own options as NAME=VALUE, e.g. --options digits=3 operations=+-."""
    data: str = ""
    """For gsm8k: a folder with train.jsonl and test.jsonl, or one JSONL file; by default $GSM8K_DIR, else the hub."""
    question_field: str = ""
    """The field of that data with the question; by default question."""
    answer_field: str = ""
    """The field with the answer, worked or a number alone; by default answer (DeepMath-103K: final_answer)."""
    system: str = ""
    """What a text task says before everything else; by default its own words, and none for nothing at all."""
    prompt_format: str = ""
    """Of text tasks: auto (the default), chat, plain, or a text of your own with {question} in it."""
    shots: int = 0
    """Worked examples before every question of a text task; the first training problems, which then only serve so."""
    seed: int = 0
    """Fixes prompts, samples and initial weights: same seed, same machine, same run."""
    steps: int = AUTO
    """Training iterations; each samples, scores and makes several updates."""
    token_budget: int = 0
    """End with the iteration that reaches so many sampled response tokens, whatever --steps says; 0 counts steps."""
    prompts: int = AUTO
    """Prompts per iteration."""
    group_size: int = AUTO
    """G: responses per prompt, at least 2 where advantages use group statistics."""
    minibatches: int = AUTO
    """Optimizer updates per pass over a rollout batch. With one in all, ratios stay 1 and every gate is inert."""
    epochs: int = 1
    """Passes over each rollout batch."""
    micro_batch: int = AUTO
    """Responses per forward and backward pass; 0 takes a whole minibatch. Changes memory, never the gradient."""
    lr: float = AUTO
    """Learning rate of AdamW."""
    lr_warmup: int = AUTO
    """Iterations over which the learning rate rises to its value: Adam's first steps know too little to be large."""
    lr_decay: Literal["linear", "constant"] = AUTO
    """What becomes of the learning rate: down to 0 at the last iteration, or as it is."""
    critic_lr: float = 0.0
    """Constant learning rate of the critic, where the method has one; 0 takes 5 × lr (SPPO's 5e-6 to 1e-6)."""
    weight_decay: float = 0.0
    """Weight decay of AdamW."""
    max_grad_norm: float = 1.0
    """The gradient's norm is limited to this; 0 leaves it as it is."""
    beta: float = 0.0
    """Weight of the KL divergence to the frozen initial policy."""
    kl: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of that divergence in the loss; the reward takes k1."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where it enters: added to the loss, or subtracted from the reward (summed over tokens)."""
    temperature: float = 1.0
    """Of training samples; it enters the scored log-probabilities too."""
    max_new_tokens: int = AUTO
    """Longest response, counting its end token; 0 takes what the task's longest answer needs."""
    warmup_steps: int = AUTO
    """At most so many supervised steps give the tiny model a start worth training, as pretraining does. Cached."""
    warmup_target: float = 0.35
    """The warm-up ends when the model answers this share of training problems right, sampled; 1 takes all steps."""
    eval_problems: int = AUTO
    """Held-out problems for the evaluation before, during and after."""
    eval_new_tokens: int = AUTO
    """Longest response in evaluations; 0 is as in training. Larger tells "has not finished" from "cannot answer"."""
    eval_every: int = AUTO
    """Iterations between evaluations."""
    save_every: int = 20
    """Iterations between checkpoints; the last iteration is always saved."""
    staleness_limit: float = 0.0
    """Skip an update whose batch lies further than this mean k3 KL from its sampler; 0 never skips. Counted."""
    resample_limit: int = 3
    """How often a method that keeps only groups with signal (DAPO) may sample again; then it takes what is there."""
    correction: Correction = "none"
    """Factor on the advantages for what the sampler drew too seldom or too often, or what the policy has left."""
    correction_numbers: tuple[str, ...] = ()
    """The correction's own numbers as NAME=VALUE, e.g. --correction-numbers cap=3."""
    reuse_sampler_logp: bool = False
    """Take the sampler's own log-probabilities as the old ones; saves the scoring pass, differs by about 1e-6."""
    engine: Literal["own", "vllm"] = "own"
    """Who samples: the policy itself, or vLLM (extra `vllm`, on cuda), whose log-probabilities need a --correction."""
    generation_batch: int = AUTO
    """Responses that grow at a time, prompts of like length together; 0 takes all. Changes memory, and the draws."""
    share_prompts: bool = True
    """Send each prompt through the model once and share its keys and values within the group."""
    probe_every: int = 0
    """Iterations between looks at the gradient's norm and variance on fixed prompts, for the history; 0 never looks."""
    probe_prompts: int = 8
    """Prompts of that look, at least 2; each costs a group of responses and a backward pass."""
    collapse_below: float = 0.0
    """Stop when a watched number stays below this share of its start; e.g. 0.2, and 0 never stops."""
    collapse_window: int = 10
    """For so many iterations in a row; its start is the mean of as many first ones."""
    collapse_of: tuple[Literal["reward", "correct", "finished", "entropy"], ...] = ("reward", "finished")
    """The numbers that are watched for it."""
    shuffle_rewards: bool = False
    """Control experiment: permute rewards over the batch, so that nothing true can be learnt."""
    hardware: str = ""
    """Settings for a GPU of this kind, where no option says otherwise: 12gb, t4, 24gb, 40gb or 80gb."""
    device: str = AUTO
    """cpu, cuda or mps."""
    dtype: Literal["float32", "float64"] = "float32"
    """Of weights, and of activations where no autocast lowers them; log-softmax and ratios take float32 at least."""
    chunk: int = AUTO
    """Tokens per piece of the vocabulary projection; 0 chooses. Changes memory, never the gradient."""
    gradient_checkpointing: bool = AUTO
    """Keep only each layer's input and compute the rest again going backward: less memory, a third more arithmetic."""
    autocast: Literal["auto", "none", "bf16", "fp16"] = AUTO
    """Precision of matrix products. auto: bf16 or else fp16 for pretrained models on cuda, none anywhere else."""
    optimizer: Literal["adamw", "adamw_fused", "adamw_8bit"] = AUTO
    """AdamW tensor by tensor, in one kernel, or with its state in 8 bits (on cuda, needs bitsandbytes)."""
    lora_rank: int = 0
    """Train low-rank adapters on all linear layers instead of the weights themselves (needs peft); 0 trains all."""
    reference_offload: bool = AUTO
    """Keep the reference model, which beta > 0 needs, in CPU memory while it does not score."""
    threads: int = 0
    """CPU threads; 0 leaves torch's choice."""
    out: str = ""
    """The run's folder; by default runs/TASK-METHOD-sSEED."""
    resume: bool = False
    """Go on from the last checkpoint in the run's folder."""
    overwrite: bool = False
    """Delete a finished or interrupted run in that folder first."""

    @property
    def folder(self) -> Path:
        return (
            Path(self.out) if self.out else Path("runs") / f"{self.task}-{self.method.replace(':', '-')}-s{self.seed}"
        )

    @property
    def rollouts(self) -> int:
        """B: responses per iteration."""
        return self.prompts * self.group_size


def defaults(task: str, preset: str = "") -> dict[str, Any]:
    """Every field that depends on task and hardware, under a preset or none.

    Raises:
        ValueError: task or preset is unknown.
    """
    if task not in TASK_DEFAULTS:
        raise ValueError(unknown("task", task, TASK_DEFAULTS))
    known = {**DEFAULTS, **TASK_DEFAULTS[task]}
    return {**known, **hardware.settings(preset, known["max_new_tokens"])}


def filled(config: Config) -> Config:
    """``config`` with every field it left open chosen by its hardware and its task."""
    known = defaults(config.task, config.hardware)
    return dataclasses.replace(
        config, **{name: value for name, value in known.items() if getattr(config, name) is None}
    )


def resolve(config: Config) -> Config:
    """Fill in what depends on task and hardware and refuse what cannot work.

    Raises:
        ValueError: names the option, its value and the fix.
    """
    config = filled(config)
    known = TASK_DEFAULTS[config.task]
    if not config.model or (config.model == "tiny" and not known["model"]):  # tiny has no tokenizer
        raise ValueError(
            f"task={config.task!r} needs a pretrained model: give --model a folder, a .gguf file or a hub id "
            "such as Qwen/Qwen2.5-0.5B-Instruct"
        )
    row = method_of(config)  # refuses unknown names now, not after minutes of warm-up
    positive = ("prompts", "group_size", "minibatches", "epochs", "eval_problems", "eval_every", "save_every",
                "collapse_window")  # fmt: skip
    counts = ("seed", "steps", "micro_batch", "max_new_tokens", "eval_new_tokens", "warmup_steps", "lr_warmup", "chunk",
              "lora_rank", "generation_batch", "shots", "token_budget", "probe_every", "resample_limit",
              "threads")  # fmt: skip
    at_least = {**dict.fromkeys(positive, 1), **dict.fromkeys(counts, 0), "probe_prompts": 2}
    for name, least in at_least.items():
        if getattr(config, name) < least:
            raise ValueError(f"{name}={getattr(config, name)}: must be at least {least}")
    for name, most in {"seed": 2**63 - 1, "threads": 1024}.items():  # beyond these torch fails, and not by name
        if getattr(config, name) > most:
            raise ValueError(f"{name}={getattr(config, name)}: must be at most {most}")
    try_out(row)
    try:
        torch.empty(0, device=config.device)
    except (AssertionError, RuntimeError, NotImplementedError) as error:  # whichever torch chooses
        reason = str(error).splitlines()[0]
        raise ValueError(f"device={config.device!r}: {reason}; --device cpu always works") from error
    config = _lean(config)
    for name in ("lr", "temperature"):
        value = getattr(config, name)
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name}={value}: must be a positive number")
    if not 0 < config.warmup_target <= 1:
        raise ValueError(f"warmup_target={config.warmup_target}: must lie in (0, 1]; it is a share of right answers")
    if not 0 <= config.collapse_below < 1:
        raise ValueError(f"collapse_below={config.collapse_below}: must lie in [0, 1); it is a share of the start")
    for name in ("critic_lr", "weight_decay", "max_grad_norm", "beta", "staleness_limit"):
        value = getattr(config, name)
        if not (value >= 0 and math.isfinite(value)):
            raise ValueError(f"{name}={value}: must be 0 or a positive number")
    if config.beta and (config.kl, config.kl_in) == ("k1", "loss"):
        raise ValueError("kl='k1': its gradient as a loss is 0 on average; use k2 or k3, or --kl-in reward")
    if row.critic is None and config.group_size < 2:
        raise ValueError(
            f"group_size={config.group_size}: {config.method} compares the responses to one prompt; use 2 or more"
        )
    if config.prompts % config.minibatches:
        raise ValueError(
            f"minibatches={config.minibatches}: must divide prompts={config.prompts}, because a minibatch is made of "
            f"whole groups; nearest: {_divisors_near(config.prompts, config.minibatches)}"
        )
    if config.resume and config.overwrite:
        raise ValueError("resume=True and overwrite=True contradict each other; give one of them")
    return config


def _lean(config: Config) -> Config:
    """Settle the precision of matrix products, and refuse what cannot be had here."""
    if config.autocast not in ("auto", *AUTOCAST):
        raise ValueError(unknown("autocast", config.autocast, ("auto", *AUTOCAST)))
    if config.autocast == "auto":
        config = dataclasses.replace(config, autocast=_precision(config))
    if config.autocast != "none" and config.dtype != "float32":
        raise ValueError(f"autocast={config.autocast!r}: lowers float32 weights, not dtype={config.dtype!r}; use none")
    if config.optimizer not in OPTIMIZERS:
        raise ValueError(unknown("optimizer", config.optimizer, OPTIMIZERS))
    if config.optimizer == "adamw_8bit" and find_spec("bitsandbytes") is None:
        raise ValueError(
            "optimizer='adamw_8bit': bitsandbytes is not installed; pip install bitsandbytes, or take adamw_fused"
        )
    if config.lora_rank and find_spec("peft") is None:
        raise ValueError(f"lora_rank={config.lora_rank}: {MISSING}")
    return config


def _precision(config: Config) -> Literal["none", "bf16", "fp16"]:
    """What ``auto`` means: a tiny model gains nothing, a CPU loses time, a GPU before Ampere has no bfloat16."""
    if config.model == "tiny" or config.dtype != "float32" or not config.device.startswith("cuda"):
        return "none"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


def try_out(row: Method) -> None:
    """Call the objective on two tokens, so that a number out of range is refused now, not after minutes of warm-up."""
    logp = torch.full((2, 2), -1.0)
    plain = {"group_ids": torch.zeros(2, dtype=torch.int64)}
    if set(row.needs) <= plain.keys():
        needed = {name: plain[name] for name in row.needs}
        row.objective(logp, logp, torch.tensor([[1.0], [-1.0]]), torch.ones(2, 2), **needed)


def method_of(config: Config) -> Method:
    """The row of ``--method`` at ``--numbers``, which overrule its preset's, under ``--correction``."""
    row = method(config.method)
    row = row.with_numbers(**parse_pairs("numbers", config.numbers, dict.fromkeys(row.numbers, _number)))
    return with_correction(row, config)


def with_correction(row: Method, config: Config) -> Method:
    """``row`` under ``--correction`` at ``--correction-numbers``, tried out so that a bad number is refused now.

    What compares with the sampler multiplies the advantages once; the sequence mask looks at the policy of the moment,
    so it acts inside the objective.
    """
    known: dict[str, Callable[..., Tensor]] = {**SAMPLER, "sequence_mask": off_policy_sequence_mask}
    if config.engine == "vllm" and config.lora_rank:
        raise ValueError(f"engine='vllm', lora_rank={config.lora_rank}: adapters are not handed over; take 0")
    if config.engine == "vllm" and config.reuse_sampler_logp:
        raise ValueError("engine='vllm': its log-probabilities are not the policy's; leave --reuse-sampler-logp out")
    if config.engine == "vllm" and config.correction not in SAMPLER:
        raise ValueError(
            f"engine='vllm', correction={config.correction!r}: vLLM samples from another distribution than the "
            f"one that is scored; choose a --correction for it, one of {', '.join(SAMPLER)}"
        )
    if config.correction == "none":
        if config.correction_numbers:
            raise ValueError(f"correction_numbers={config.correction_numbers[0]!r}: correction='none' takes no numbers")
        return row
    if config.correction not in known:
        raise ValueError(unknown("correction", config.correction, ("none", *known)))
    if config.correction in SAMPLER and config.reuse_sampler_logp:
        raise ValueError(
            f"correction={config.correction!r}: with reuse_sampler_logp=True the sampler's log-probabilities are the "
            "old ones and nothing is corrected; leave one of the two out"
        )
    named = inspect.signature(known[config.correction]).parameters.values()
    readers = {p.name: _number for p in named if isinstance(p.default, float)}
    numbers = parse_pairs("correction_numbers", config.correction_numbers, readers)
    factor, one = partial(known[config.correction], **numbers), torch.ones(1, 1)
    factor(*([one] * (3 if config.correction in SAMPLER else 4)))
    if config.correction not in SAMPLER:
        return dataclasses.replace(row, objective=corrected(row.objective, factor))

    def advantage(rollout: Rollout) -> Tensor:
        return row.advantage(rollout) * factor(rollout.logp_old, rollout.logp_sampler, rollout.mask)

    return dataclasses.replace(row, advantage=advantage)


def options_of(config: Config, kind: Callable[..., Any]) -> dict[str, Any]:
    """``--options`` as keywords of ``kind``, each converted to the type of its default, with ``TEXT_FIELDS``."""
    parameters = inspect.signature(kind).parameters.values()
    readers = {
        p.name: _reader(p.default) for p in parameters if p.default is not p.empty and p.name != "max_new_tokens"
    }
    out = parse_pairs("options", config.options, readers)
    for name in TEXT_FIELDS:
        value = getattr(config, name)
        if not value:
            continue
        if name not in readers:
            raise ValueError(f"{name}={value!r}: task={config.task!r} has nothing of that name; leave it out")
        if name in out:
            raise ValueError(f"{name}={value!r}: it stands in --options too; give it once")
        out[name] = "" if (name, value) == ("system", "none") else value
    return out


def parse_pairs(argument: str, pairs: tuple[str, ...], readers: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    """Read NAME=VALUE words; an unknown name or a value that does not fit is refused by name."""
    out: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"{argument}={pair!r}: write NAME=VALUE, e.g. {next(iter(readers), 'name')}=1")
        if name not in readers:
            raise ValueError(unknown(f"name in {argument}", name, readers))
        try:
            out[name] = readers[name](text)
        except ValueError as error:
            raise ValueError(f"{argument}={pair!r}: {text!r} does not fit {name}: {error}") from error
    return out


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a finite number is needed")
    return value


def _reader(default: Any) -> Callable[[str], Any]:
    if isinstance(default, bool):
        return _yes_or_no
    if isinstance(default, tuple):
        return lambda text: _tuple(text, default)
    return type(default) if isinstance(default, (int, float)) else str


def _tuple(text: str, default: tuple[Any, ...]) -> tuple[Any, ...]:
    """ "1,3" as (1, 3); a single value stands for all, so "3" is (3, 3)."""
    kind = type(default[0]) if default else str
    values = tuple(kind(part) for part in text.split(","))
    if default and len(values) not in (1, len(default)):
        raise ValueError(f"write {len(default)} values with a comma between, or one for all")
    return values * len(default) if len(values) == 1 and default else values


def _yes_or_no(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("write true or false")
    return text.lower() == "true"


def _divisors_near(n: int, wanted: int) -> str:
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    below, above = [d for d in divisors if d < wanted], [d for d in divisors if d > wanted]
    return " or ".join(map(str, below[-1:] + above[:1]))
