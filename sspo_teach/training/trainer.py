"""The trainer: sample, score, several updates per batch, look at the credit, write it down. One for every method."""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from sspo_teach.catalog import Method
from sspo_teach.credit import credit, loss_and_credit
from sspo_teach.critics import Critic
from sspo_teach.objectives.normalize import Normalizer, with_counts
from sspo_teach.objectives.regularizers import kl_penalty
from sspo_teach.policies.causal_lm import CausalLM, load_policy, load_tokenizer, tiny_qwen2
from sspo_teach.policies.engines import Engine, OwnEngine, VLLMEngine
from sspo_teach.policies.lora import add_lora
from sspo_teach.policies.reference import Reference, Unadapted
from sspo_teach.policies.sampling import Sampling
from sspo_teach.tasks import TEXTS, TOYS
from sspo_teach.tasks.text import TextTask
from sspo_teach.training import checkpoint, diagnostics
from sspo_teach.training.collapse import collapsed
from sspo_teach.training.config import AUTOCAST, Config, method_of, options_of, resolve
from sspo_teach.training.evaluation import evaluate
from sspo_teach.training.folder import RunFolder, read_config
from sspo_teach.training.probe import spread
from sspo_teach.training.rollout import (
    Batch,
    collect,
    forward,
    micro_batches,
    minibatches,
    rescored,
    sample,
    score_rows,
)
from sspo_teach.training.warmup import warmed
from sspo_teach.types import Rollout, Task

PATIENCE = 5  # iterations without any signal before a warning
PROBE = 20_240_229  # seed of the prompts that the gradient is looked at on: the same in every run of a task

OnStep = Callable[[Mapping[str, float], "Trainer"], None]


class TrainingWarning(UserWarning):
    """The run goes on, but a reader should know."""


@dataclass(frozen=True)
class Update:
    """What one minibatch left behind; tensors are (rows, T) or (rows, 1)."""

    rows: Tensor
    logp: Tensor
    credit: Tensor
    aggregation: Tensor
    loss: float
    grad_norm: float
    applied: bool


class Trainer:
    """One run. ``Trainer(Config(...)).run()`` trains; everything it made lies in ``config.folder``.

    Args:
        config: what to do; what depends on the task is filled in.
        on_step: called after each iteration with the history row and the trainer, so that any logger attaches.
        quiet: no progress bar.

    Raises:
        ValueError: an option that cannot work, by name.
    """

    def __init__(self, config: Config, *, on_step: OnStep | None = None, quiet: bool = False) -> None:
        self.config = config = resolve(config)
        self.method: Method = method_of(config)
        self.on_step, self.quiet = on_step, quiet
        if config.threads:
            torch.set_num_threads(config.threads)
        self.folder = RunFolder(config.folder)
        if config.resume:
            self.folder.reopen(config)
            self.task, self.policy = build(dataclasses.replace(config, warmup_steps=0))  # the checkpoint has it all
        else:
            self.folder.check_free(config)
            self.task, self.policy = build(config, quiet=quiet)
        self.engine = self._engine()
        if not config.resume:  # late: what cannot be built deletes no run
            self.folder.create(config, self.method.numbers, self._header())
        self.normalizer: Normalizer = self.method.normalize(self.task.max_new_tokens)
        self.controller = self.method.controller()
        self.critic = self._critic()
        self.reference = self._reference()
        self.weights = [weight for weight in self.policy.model.parameters() if weight.requires_grad]
        self.optimizer = optimizer_of(self.weights, config)
        # float16 ends at 6e-8: gradients travel enlarged, and an update that overflowed is skipped
        self.scaler = torch.amp.GradScaler(self.policy.device.type, enabled=config.autocast == "fp16")
        self.step = 0
        self.counts = {"responses": 0, "tokens": 0, "updates": 0, "rejected": 0}
        self.without_signal = 0
        self.rows: list[Mapping[str, float]] = []  # the history so far
        self.warned = False
        self.stop = False  # set it from a signal handler or a callback: the run ends after this iteration
        self.clock = Clock()
        if config.resume:
            self._restore()
        if config.minibatches * config.epochs == 1:
            self._warn("one update per rollout batch: every ratio is 1, so no clip and no gate can ever act")

    def run(self) -> Path:
        """Train until the run is ``done`` or ``stop`` is set; returns the run's folder.

        Ctrl-C sets ``stop``: the iteration is finished and saved. A second Ctrl-C leaves at once; what was saved last
        stands.
        """
        config = self.config
        if self.step == 0 and not config.resume:
            self.evaluate()
            self.save()
        spent, all_of_it, unit = self._spent()
        bar = tqdm(total=all_of_it, initial=spent, desc=f"{config.task} {config.method}", unit=unit, disable=self.quiet)
        with bar, self._interruptible():
            while not self.done and not self.stop:
                row = self.iterate()
                bar.update(self._spent()[0] - bar.n)
                bar.set_postfix_str(
                    f"reward {row['reward']:.3f}  entropy {row['entropy']:.2f}  moved {row['moved']:.1%}"
                )
                if self.step % config.eval_every == 0 or self.done:
                    self.evaluate()
                if self.step % config.save_every == 0 or self.done:
                    self.save()
            if self.collapse is not None:
                self.folder.add_collapse(self.collapse)
            if self.stop and self.step not in checkpoint.found(self.folder.checkpoints):
                self.save()
        return self.folder.path

    @property
    def done(self) -> bool:
        """Whether the steps are made, the tokens spent, or the run lost by its own criterion."""
        spent, all_of_it, _ = self._spent()
        return spent >= all_of_it or self.collapse is not None

    @property
    def collapse(self) -> dict[str, Any] | None:
        """What the criterion of the config says of the history so far; None as long as all is well."""
        return collapsed(self.rows, self.config)

    def _spent(self) -> tuple[int, int, str]:
        """(what is done, of what, in which unit): iterations, or sampled tokens where there is a budget."""
        if self.config.token_budget:
            return self.counts["tokens"], self.config.token_budget, "token"
        return self.step, self.config.steps, "it"

    def iterate(self) -> dict[str, float]:
        """One iteration: sample a batch, make ``epochs × minibatches`` updates, write a row of history."""
        began = time.perf_counter()
        self.step += 1
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, self.step, self.counts["tokens"])
        batch = self._collect()
        probe = self._probe() if self.config.probe_every and self.step % self.config.probe_every == 0 else None
        self.controller.begin()
        with self.clock("train"):
            if self.critic is not None:
                values = self.critic.values(batch.rollout)
                batch = dataclasses.replace(batch, rollout=dataclasses.replace(batch.rollout, values=values))
            advantages = self.method.advantage(batch.rollout)
            passes = minibatches(batch.rollout, self.config) * self.config.epochs
            updates = [self.update(batch.rollout, advantages, rows) for rows in passes]
            row = self._row(batch, advantages, updates)
            if probe is not None:
                row |= self._spread(probe)
            if self.critic is not None:
                row |= self.critic.update(batch.rollout, passes)
        self.rows.append(row)
        self.folder.append(row, {"step": self.step, **self.clock.take(), "total": time.perf_counter() - began})
        self._look(row)
        if self.on_step is not None:
            self.on_step(row, self)
        return row

    def stale_minibatch(self) -> tuple[Rollout, Tensor]:
        """Begin an iteration, make every update but its last, and return that last minibatch with its advantages.

        Real off-policy data for the policy as it now is; nothing is written to the history. For looking only: the run
        should not go on from here.
        """
        self.step += 1
        batch = self._collect()
        self.controller.begin()
        advantages = self.method.advantage(batch.rollout)
        passes = minibatches(batch.rollout, self.config) * self.config.epochs
        for rows in passes[:-1]:
            self.update(batch.rollout, advantages, rows)
        return batch.rollout.select(passes[-1]), advantages[passes[-1]]

    def _collect(self) -> Batch:
        spent, all_of_it, unit = self._spent()
        progress = min(1.0, (spent if unit == "token" else self.step) / max(all_of_it, 1))
        parts = (self.policy, self.reference, self.task, self.method, self.config, self.step, self.clock)
        return collect(*parts, engine=self.engine, progress=progress)

    def _probe(self) -> Rollout:
        """Responses to the fixed prompts, sampled before the updates: they are as stale after them as training data."""
        config, task = self.config, self.task
        with self.clock("sample"):
            prompts = task.prompts(config.probe_prompts, rng=np.random.default_rng(PROBE), split="train")
            seed = int(np.random.default_rng([config.seed, self.step, 4]).integers(2**62))
            rollout, _ = sample(self.engine, self.policy.device, task, prompts, config, seed)
        with self.clock("score"):
            if not config.reuse_sampler_logp:
                rollout, _ = rescored(self.policy, rollout, config)
            if self.reference is not None:
                with self.reference.scoring() as score:
                    rollout = dataclasses.replace(rollout, logp_ref=score_rows(score, rollout, config)[0])
        if self.method.reward is not None:
            shaped = self.method.reward(rollout, task.max_new_tokens)
            rollout = dataclasses.replace(rollout, rewards=shaped)
        return rollout

    def _spread(self, rollout: Rollout) -> dict[str, float]:
        """Norm and variance of the gradients of the probe's groups, each a batch of its own; nothing is learnt."""
        if self.critic is not None:
            rollout = dataclasses.replace(rollout, values=self.critic.values(rollout))
        advantages, hyper = self.method.advantage(rollout), dict(self.controller.hyper())
        logps = []

        def gradient(i: int) -> list[Tensor]:
            self.optimizer.zero_grad(set_to_none=True)
            rows = (rollout.group_ids == i).nonzero().squeeze(1)
            group = rollout.select(rows)
            logps.append(self._push(group, advantages[rows], with_counts(self.normalizer, group.mask), hyper)[0])
            return [torch.zeros_like(w) if w.grad is None else w.grad for w in self.weights]

        norm, variance = spread(gradient, self.config.probe_prompts)
        scale = self.scaler.get_scale()  # what float16 gradients are multiplied by
        norm, variance = norm / scale, variance / scale**2
        self.optimizer.zero_grad(set_to_none=True)
        return {
            "probe_norm": norm,
            "probe_variance": variance,
            "probe_noise": variance / norm**2 if norm else float("nan"),
            "probe_kl": diagnostics.behaviour_kl(torch.cat(logps), rollout),
        }

    def update(self, rollout: Rollout, advantages: Tensor, rows: Tensor) -> Update:
        """One optimizer step on the minibatch ``rows``; its gradient does not depend on how micro-batches cut it."""
        batch, advantages = rollout.select(rows), advantages[rows]
        hyper = dict(self.controller.hyper())
        normalize = with_counts(self.normalizer, batch.mask)
        logp, pull, loss = self._push(batch, advantages, normalize, hyper)
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.weights, self.config.max_grad_norm or torch.inf)
        limit = self.config.staleness_limit
        applied = bool(norm.isfinite()) and not (limit and diagnostics.behaviour_kl(logp, batch) > limit)
        if applied:
            self.optimizer.step()
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.counts["updates" if applied else "rejected"] += 1
        self.controller.observe(batch, logp)
        aggregation = diagnostics.aggregation_of(normalize, batch.mask)
        return Update(rows, logp, pull, aggregation, loss, norm.item(), applied)

    def _push(
        self, batch: Rollout, advantages: Tensor, normalize: Normalizer, hyper: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor, float]:
        """Leave the minibatch's gradient in the model; returns (rows, T) log-probabilities and credit, and the loss.

        Credit is all that the objective says, so a micro-batch only needs its rows of it. Where credit couples
        the rows, it is taken first, from a pass without gradient over all of them.
        """
        pieces = micro_batches(torch.arange(len(batch.mask)), self.config)
        coupled, loss = None, 0.0
        if len(pieces) > 1 and (not self.method.separable or self.method.fields is not None):
            with torch.no_grad():
                whole = torch.cat([self._logp(batch.select(piece)) for piece in pieces])
            loss, coupled = self._credit(whole, batch, advantages, normalize, hyper)
        logps, credits = [], []
        for piece in pieces:
            part = batch.select(piece)
            logp = self._logp(part)
            if coupled is None:
                share, found = self._credit(logp.detach(), part, advantages[piece], normalize, hyper)
                loss += share
            else:
                found = coupled[piece]
            pull = found if self._kl_free else found + self._kl_credit(logp.detach(), part, normalize)
            logp.backward(self.scaler.scale(-pull.to(logp.dtype)))
            logps.append(logp.detach())
            credits.append(found)
        return torch.cat(logps), torch.cat(credits), loss

    def _logp(self, part: Rollout) -> Tensor:
        return forward(self.policy.logp, part, self.config)[0]

    def _credit(
        self, logp: Tensor, part: Rollout, advantages: Tensor, normalize: Normalizer, hyper: Any
    ) -> tuple[float, Tensor]:
        computed: Mapping[str, Tensor] = {}
        if self.method.fields is not None:
            key = [self.config.seed, self.step, 3, self.counts["updates"] + self.counts["rejected"]]
            chance = torch.Generator().manual_seed(int(np.random.default_rng(key).integers(2**62)))
            computed = self.method.fields(part, advantages, logp, chance)
        fields = {name: computed[name] if name in computed else getattr(part, name) for name in self.method.needs}
        loss, found = loss_and_credit(
            self.method.objective, logp, part.logp_old, advantages, part.mask, normalize=normalize, **fields, **hyper
        )
        return loss.item(), found

    @property
    def _kl_free(self) -> bool:
        return self.reference is None or self.config.kl_in == "reward"

    def _kl_credit(self, logp: Tensor, part: Rollout, normalize: Normalizer) -> Tensor:
        assert part.logp_ref is not None
        beta, estimator, reference = self.config.beta, self.config.kl, part.logp_ref

        def penalty(logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
            return kl_penalty(logp, reference, mask, beta=beta, estimator=estimator, normalize=normalize)

        return credit(penalty, logp, part.logp_old, part.logp_old, part.mask)

    def evaluate(self) -> dict[str, Any]:
        """Judge the policy on held-out problems and write it down."""
        config = self.config
        sampling = Sampling(temperature=config.temperature)
        found = evaluate(
            self.policy,
            self.task,
            config.eval_problems,
            max_new_tokens=config.eval_new_tokens,
            seed=config.seed,
            sampling=sampling,
            batch=config.generation_batch,
        )
        self.folder.add_evaluation(self.step, self.counts["tokens"], found)
        return found

    def save(self) -> None:
        """Write a checkpoint from which the run goes on to the same bits."""
        state = {
            "counts": self.counts,
            "without_signal": self.without_signal,
            "controller": self.controller.state_dict(),
            "scaler": self.scaler.state_dict(),
        }
        self.folder.sync()
        checkpoint.save(self.folder.checkpoints, self.step, self.policy.model, self.optimizer, state, self.critic)

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.getsignal(signal.SIGINT)

        def finish(*_: Any) -> None:
            self.stop = True
            signal.signal(signal.SIGINT, before)
            tqdm.write("finishing this iteration, then saving; Ctrl-C again leaves at once")

        signal.signal(signal.SIGINT, finish)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _restore(self) -> None:
        found = checkpoint.load(self.folder.checkpoints, critic=self.critic is not None)
        checkpoint.restore_model(self.policy.model, found.model)
        checkpoint.restore_optimizer(self.optimizer, found.optimizer)
        if self.critic is not None:
            checkpoint.restore_model(self.critic.model, found.critic)
            checkpoint.restore_optimizer(self.critic.optimizer, found.critic_optimizer)
        self.step, self.counts = found.step, dict(found.state["counts"])
        self.without_signal = found.state["without_signal"]
        self.controller.load_state_dict(found.state["controller"])
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(found.state["scaler"])
        self.folder.trim(self.step)
        self.rows = list(self.folder.history())

    def _header(self) -> dict[str, Any]:
        """What a number of this run depends on beside the config: how was sampled, asked, judged and evaluated."""
        config, task = self.config, self.task
        sampling = Sampling(temperature=config.temperature)
        return {
            "generation": self.engine.settings(sampling, task.max_new_tokens, task.stop_ids),
            "prompt": task.prompt("{question}") if isinstance(task, TextTask) else "the problem's own characters",
            "judge": f"{type(task).__module__}.{type(task).__name__}.score",
            "evaluation": {
                "problems": f"the first {config.eval_problems} of the test split",
                "temperatures": {"greedy": 0.0, "sampled": config.temperature},
                "max_new_tokens": config.eval_new_tokens or task.max_new_tokens,
                "seed": config.seed,
            },
        }

    def _engine(self) -> Engine:
        if self.config.engine == "vllm":
            return VLLMEngine(self.policy, self.folder.path / "vllm")
        return OwnEngine(self.policy, self.config.generation_batch)

    def _critic(self) -> Critic | None:
        if self.method.critic is None:
            return None
        lr, limit = self.config.critic_lr or 5 * self.config.lr, self.config.max_grad_norm
        return self.method.critic(self.policy, lr=lr, micro_batch=self.config.micro_batch, max_grad_norm=limit)

    def _reference(self) -> Reference | Unadapted | None:
        """The frozen initial policy, kept in the run's folder so that a resumed run has the same one."""
        if self.config.beta == 0:
            return None
        if self.config.lora_rank:
            return Unadapted(self.policy)
        path = self.folder.path / "reference"
        if not (path / "config.json").exists():
            self.policy.save(path)
        dtype = next(self.policy.model.parameters()).dtype
        policy = _spare(load_policy(path, device=self.config.device, dtype=dtype), self.config)
        return Reference(policy, offload=self.config.reference_offload)

    def _row(self, batch: Batch, advantages: Tensor, updates: list[Update]) -> dict[str, float]:
        rollout = batch.rollout
        self.counts["responses"] += batch.responses
        self.counts["tokens"] += int(batch.tokens)
        first, rows = updates[0], torch.cat([update.rows for update in updates])
        start = rollout.select(first.rows)
        away = (first.logp - start.logp_old).exp().sub(1).abs()[start.mask]
        seen = diagnostics.summarize(
            torch.cat([update.credit for update in updates]),
            rollout.select(rows),
            torch.cat([update.logp for update in updates]),
            advantages[rows],
            torch.cat([update.aggregation for update in updates]),
        )
        return {
            "step": self.step,
            **self.counts,
            "resampled": batch.resampled,
            "dropped": batch.dropped,
            **diagnostics.of_samples(rollout, batch.task_rewards, batch.entropy),
            "grad_norm": sum(update.grad_norm for update in updates) / len(updates),
            "loss": sum(update.loss for update in updates) / len(updates),
            "ratio_error": away.max().item() if away.numel() else 0.0,
            **diagnostics.of_sampler(start, first.logp),
            **seen,
        }

    def _look(self, row: Mapping[str, float]) -> None:
        silent = row["dead_groups"] == 1 and self.critic is None  # a critic needs no difference within a group
        self.without_signal = self.without_signal + 1 if silent else 0
        if self.without_signal == PATIENCE:
            self._warn(
                f"no group had two different rewards for {PATIENCE} iterations: nothing is learnt. Mean reward "
                f"{row['reward']:.3f}; take easier or harder problems, a larger group, or a longer warm-up"
            )
        if row["finished"] == 0 and not self.warned:
            self.warned = True
            self._warn(
                "no response ended within max_new_tokens: take more tokens, or check the prompt and its chat template"
            )

    def _warn(self, message: str) -> None:
        warnings.warn(message, TrainingWarning, stacklevel=3)


class Clock:
    """Seconds by name. ``with clock("sample"): …`` adds; ``take()`` reads and starts again."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(("sample", "score", "train"), 0.0)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - began

    def take(self) -> dict[str, float]:
        taken, self.seconds = self.seconds, dict.fromkeys(self.seconds, 0.0)
        return taken


def build(config: Config, *, quiet: bool = False) -> tuple[Task, CausalLM]:
    """The task and the initial policy of a run; a tiny model is warmed up first."""
    dtype = getattr(torch, config.dtype)
    length = {"max_new_tokens": config.max_new_tokens} if config.max_new_tokens else {}
    if config.task in TOYS:
        make, options = TOYS[config.task]
        task: Task = make(**options_of(config, options), **length)
        tokenizer = None
    else:
        tokenizer = load_tokenizer(config.model)
        make = TEXTS[config.task]
        task = make(tokenizer, **options_of(config, make), **length)
    if config.model == "tiny":
        policy = tiny_qwen2(task.vocab_size, seed=config.seed, dtype=dtype)
        policy = policy.to(config.device)
        if config.warmup_steps:
            label = f"{config.task} {sorted(config.options)} {config.max_new_tokens}"
            steps, target = config.warmup_steps, config.warmup_target
            policy = warmed(policy, task, steps, seed=config.seed, label=label, target=target, quiet=quiet)
    else:
        policy = load_policy(config.model, device=config.device, dtype=dtype)
    if policy.vocab_size < task.vocab_size:
        raise ValueError(
            f"model={config.model!r} knows {policy.vocab_size} tokens, the task needs {task.vocab_size}; "
            "take a model with this tokenizer"
        )
    if config.lora_rank:
        add_lora(policy.model, config.lora_rank, seed=config.seed)
    return task, _spare(policy, config)


def _spare(policy: CausalLM, config: Config) -> CausalLM:
    return policy.spare(chunk=config.chunk, recompute=config.gradient_checkpointing, autocast=AUTOCAST[config.autocast])


def optimizer_of(weights: list[Tensor], config: Config) -> torch.optim.Optimizer:
    """AdamW as ``--optimizer`` says."""
    settings: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    if config.optimizer == "adamw_8bit":
        from bitsandbytes.optim import AdamW8bit

        return AdamW8bit(weights, **settings)
    return torch.optim.AdamW(weights, fused=config.optimizer == "adamw_fused", foreach=False, **settings)


def learning_rate(config: Config, step: int, tokens: int = 0) -> float:
    """The rate of iteration ``step`` (from 1): a linear rise, then constant or a linear fall that ends just above 0.

    Where the run ends with its token budget, it falls with the ``tokens`` that were spent before this iteration.
    """
    rise = min(1.0, step / max(config.lr_warmup, 1))
    left = 1 - tokens / config.token_budget if config.token_budget else (config.steps - step + 1) / config.steps
    return config.lr * min(rise, 1.0 if config.lr_decay == "constant" else left)


def restored(path: Path, *, device: str = "") -> tuple[Task, CausalLM, Config, int]:
    """The task, the policy at its last checkpoint, the config and the iteration of the run in ``path``.

    On another ``device`` than the run's own the precision of matrix products is chosen anew.
    """
    try:
        config = read_config(path)
        if device and device != config.device:
            config = dataclasses.replace(config, device=device, autocast="auto")
        # no step is made, so what the optimizer needs may be missing
        config = resolve(dataclasses.replace(config, optimizer="adamw"))
    except TypeError as error:
        raise ValueError(f"{path / 'config.json'} holds a value of the wrong kind: {error}") from error
    found = checkpoint.load(path / "checkpoints")
    task, policy = build(dataclasses.replace(config, warmup_steps=0))  # the checkpoint holds what was learnt
    checkpoint.restore_model(policy.model, found.model)
    return task, policy, config, found.step


def train(config: Config, *, on_step: OnStep | None = None, quiet: bool = False) -> Path:
    """Run ``config`` from start (or checkpoint) to end; returns the run's folder."""
    return Trainer(config, on_step=on_step, quiet=quiet).run()
