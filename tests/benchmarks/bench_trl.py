"""One training iteration against TRL's GRPOTrainer, side by side: the same model, prompts, rewards and settings.

    pip install -e ".[trl]" && python tests/benchmarks/bench_trl.py

512 rollouts (64 prompts × 8), 4 optimizer updates of 128 rollouts each, a 0.3 M parameter Qwen2, float32, AdamW. The
sides take turns of a few iterations, so that a busy machine is busy for all and no side starts each iteration on the
other's caches; the ratio of medians is what counts, never the seconds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from sspo_teach.tasks import ArithmeticTask
from sspo_teach.training.config import Config
from sspo_teach.training.trainer import Trainer

PROMPTS, GROUP, UPDATES = 64, 8, 4
TURN = 4  # iterations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=8, help=f"measured turns of {TURN} iterations of each")
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    print(json.dumps(measure(asked.turns, asked.threads), indent=1))


def measure(turns: int, threads: int, *, warm: int = 2) -> dict[str, object]:
    """Median seconds per iteration of each side, the ratios, and where our time goes.

    TRL comes twice: as it is by default, which recomputes activations in the backward pass, and without that.
    """
    spawn = multiprocessing.get_context("spawn")  # each side has a process, and so a pool of threads, of its own
    with tempfile.TemporaryDirectory() as scratch:
        players = {}
        for name, side in SIDES.items():
            players[name], there = spawn.Pipe()
            arguments = (side, there, str(Path(scratch) / name), turns + warm, threads)
            spawn.Process(target=take_turns, args=arguments, daemon=True).start()
        seconds: dict[str, list[float]] = {name: [] for name in SIDES}
        for _ in range(turns + warm):
            for name, player in players.items():
                player.send("go")
                seconds[name].append(player.recv() / TURN)
        shares = {name: where_time_goes(Path(scratch) / name, warm * TURN) for name in ("scored", "reused")}
    median = {name: statistics.median(times[warm:]) for name, times in seconds.items()}
    return {
        "median_seconds": {name: round(value, 4) for name, value in median.items()},
        "times_faster_than": {
            peer: {name: round(median[peer] / median[name], 2) for name in ("scored", "reused")}
            for peer in ("trl", "trl_without_checkpointing")
        },
        "shares": shares,
        "threads": threads,
        "torch": torch.__version__,
    }


def take_turns(side, turn, folder: str, turns: int, threads: int) -> None:
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    side(Path(folder), turns, turn)


def scored(folder: Path, turns: int, turn) -> None:
    """Our trainer as it is: old log-probabilities come from a forward pass of their own, as TRL's do."""
    ours(folder, turns, turn, reuse_sampler_logp=False)


def reused(folder: Path, turns: int, turn) -> None:
    """Our trainer with the sampler's own log-probabilities, which are the same numbers."""
    ours(folder, turns, turn, reuse_sampler_logp=True)


def ours(folder: Path, turns: int, turn, *, reuse_sampler_logp: bool) -> None:
    config = Config(
        method="grpo", prompts=PROMPTS, group_size=GROUP, minibatches=UPDATES, steps=10**6, lr_decay="constant",
        warmup_steps=0, reuse_sampler_logp=reuse_sampler_logp, out=str(folder),
    )  # fmt: skip
    trainer = Trainer(config, quiet=True)
    for _ in range(turns):
        turn.recv()
        began = time.perf_counter()
        for _ in range(TURN):
            trainer.iterate()
        turn.send(time.perf_counter() - began)


def where_time_goes(folder: Path, warm: int) -> dict[str, float]:
    rows = [line.split(",") for line in (folder / "timing.csv").read_text().split()]
    table = {name: [float(row[i]) for row in rows[1 + warm :]] for i, name in enumerate(rows[0])}
    total = statistics.median(table["total"])
    return {name: round(statistics.median(table[name]) / total, 3) for name in ("sample", "score", "train")}


def trl(folder: Path, turns: int, turn) -> None:
    """TRL's trainer on the same model, prompts and reward."""
    peer(folder, turns, turn, gradient_checkpointing=True)


def trl_without_checkpointing(folder: Path, turns: int, turn) -> None:
    """The same, told not to save memory."""
    peer(folder, turns, turn, gradient_checkpointing=False)


def peer(folder: Path, turns: int, turn, *, gradient_checkpointing: bool) -> None:
    import logging

    from datasets import Dataset, disable_progress_bars
    from transformers import PreTrainedTokenizerFast, PrinterCallback, TrainerCallback
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error
    from trl import GRPOConfig, GRPOTrainer

    from sspo_teach.policies.causal_lm import tiny_qwen2

    disable_progress_bars()
    disable_progress_bar()
    set_verbosity_error()
    logging.disable(logging.WARNING)
    task = ArithmeticTask()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=characters(task.game.alphabet), pad_token="␣", eos_token="⏎")
    model = tiny_qwen2(task.vocab_size, seed=0).model
    model.set_attn_implementation("sdpa")  # what the model would have outside this package
    model.config.eos_token_id = model.generation_config.eos_token_id = task.eos_id
    model.config.pad_token_id = model.generation_config.pad_token_id = task.pad_id
    prompts = task.prompts(PROMPTS * (turns * TURN + 1), rng=np.random.default_rng(0))
    problems = task.game.texts(np.array(prompts.problems))
    answers = [task.decode(ids) for ids in task.answers(prompts.problems)]

    def reward(prompts, completions, answer, **_):
        return [float(completion == right) for completion, right in zip(completions, answer, strict=True)]

    class Turns(TrainerCallback):
        """After the updates of TURN iterations it is the others' turn."""

        def on_train_begin(self, *_, **__):
            turn.recv()
            self.began = time.perf_counter()

        def on_step_end(self, args, state, control, **_):
            if state.global_step % (UPDATES * TURN) == 0:
                turn.send(time.perf_counter() - self.began)
                if state.global_step < UPDATES * TURN * turns:
                    turn.recv()
                    self.began = time.perf_counter()

    config = GRPOConfig(
        output_dir=str(folder), per_device_train_batch_size=PROMPTS * GROUP // UPDATES, num_generations=GROUP,
        steps_per_generation=UPDATES, gradient_accumulation_steps=1, num_iterations=1, max_completion_length=4,
        max_steps=UPDATES * TURN * turns, learning_rate=3e-4, lr_scheduler_type="constant", weight_decay=0.0, beta=0.0,
        loss_type="grpo", temperature=1.0, top_k=0, top_p=1.0, max_grad_norm=1.0, use_cpu=True, bf16=False,
        gradient_checkpointing=gradient_checkpointing, report_to=[], save_strategy="no", logging_strategy="no",
        disable_tqdm=True, shuffle_dataset=False,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model, reward_funcs=reward, args=config, processing_class=tokenizer, callbacks=[Turns()],
        train_dataset=Dataset.from_dict({"prompt": problems, "answer": answers}),
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def characters(alphabet: str):
    """A tokenizer of single characters with the task's ids; padding and EOS get visible names."""
    from tokenizers import Regex, Tokenizer
    from tokenizers.decoders import Fuse
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split

    names = ["␣", "⏎", *alphabet[2:]]
    tokenizer = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token="␣"))
    tokenizer.pre_tokenizer = Split(Regex("."), "isolated")
    tokenizer.decoder = Fuse()
    return tokenizer


SIDES = {"scored": scored, "reused": reused, "trl": trl, "trl_without_checkpointing": trl_without_checkpointing}

if __name__ == "__main__":
    main()
