"""A run by tokens, the look at the gradient on fixed prompts, the end of a lost run, and batches of like length."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from transformers import AutoModelForCausalLM

from sspo_teach import cli, plotting, study
from sspo_teach.objectives.corrections import tis
from sspo_teach.policies.causal_lm import CausalLM, load_policy, tiny_qwen2
from sspo_teach.policies.engines import OwnEngine
from sspo_teach.policies.sampling import GREEDY, Sampling
from sspo_teach.tasks.gsm8k import SYSTEM
from sspo_teach.training.collapse import collapsed
from sspo_teach.training.config import TASK_DEFAULTS, Config, method_of, resolve
from sspo_teach.training.probe import spread
from sspo_teach.training.trainer import Trainer, TrainingWarning, learning_rate

# --- a budget of tokens ---------------------------------------------------------------------------------------------


def test_a_run_ends_with_the_iteration_that_spends_its_tokens(trainer):
    one = trainer(token_budget=150, steps=0, eval_every=100)
    one.run()
    rows = tiny.history(one.folder.path)
    spent = [int(row["tokens"]) for row in rows]
    assert spent[-2] < 150 <= spent[-1]
    assert [(e["step"], e["tokens"]) for e in one.folder.evaluations()] == [(0, 0), (len(rows), spent[-1])]
    again = Trainer(dataclasses.replace(one.config, resume=True), quiet=True)
    assert again.done
    again.run()
    assert tiny.history(one.folder.path) == rows


def test_the_rate_falls_with_the_tokens_that_are_spent():
    config = Config(lr=1.0, lr_decay="linear", lr_warmup=2, token_budget=100, steps=3)
    assert [learning_rate(config, step, spent) for step, spent in ((1, 0), (2, 20), (9, 75))] == [0.5, 0.8, 0.25]
    assert learning_rate(dataclasses.replace(config, lr_decay="constant"), 9, 75) == 1.0


def test_compare_gives_every_method_the_same_tokens(config, tmp_path):
    base = config(token_budget=120, prompts=2, group_size=2)
    runs = study.compare(base, ["grpo", "sspo"], 1, tmp_path / "cmp", quiet=True)
    spent = [seeds[0][-1]["tokens"] for seeds in runs.values()]
    assert all(120 <= tokens < 120 + 2 * 2 * 4 for tokens in spent)  # over by less than one batch
    rows = study.summarize(runs)
    assert {row["tokens"] for row in rows} == set(spent)
    assert f"{spent[0]:,}" in study.table(rows)


def test_a_comparison_by_tokens_shows_every_run_to_its_end():
    def run(*ends: tuple[int, int, float]) -> list[dict[str, Any]]:
        share = lambda x: {way: {"correct": {"share": x}} for way in ("greedy", "sampled")}  # noqa: E731
        return [{"step": step, "tokens": tokens, **share(x)} for step, tokens, x in ends]

    runs = {"grpo": [run((0, 0, 0.1), (9, 500, 0.2)), run((0, 0, 0.2), (5, 300, 0.1), (8, 520, 0.4))]}
    axes = plotting.comparison(runs).axes[1]
    assert axes.get_xlabel() == "sampled tokens"
    assert axes.lines[0].get_xydata() == pytest.approx(np.array([[0, 0.15], [510, 0.3]]))


def test_compare_draws_the_gradients(tmp_path):
    words = "compare --task bandit --prompts 4 --group-size 4 --minibatches 2 --eval-problems 8 --methods grpo,sspo"
    out = tmp_path / "cmp"
    assert (
        cli.main([*words.split(), "--token-budget", "150", "--seeds", "2", "--probe-every", "1", "--out", str(out)])
        == 0
    )
    assert (out / "gradients.png").read_bytes()[:4] == b"\x89PNG"
    rows = study.histories(out, ["grpo", "sspo"], range(2))
    left, right = plotting.probed(rows).axes
    for axes, column in ((left, "probe_norm"), (right, "probe_noise")):
        assert [line.get_label() for line in axes.lines] == ["grpo", "sspo"]
        least = min(map(len, rows["sspo"]))
        mean = np.mean([[row[column] for row in seed[:least]] for seed in rows["sspo"]], axis=0)
        assert axes.lines[1].get_ydata() == pytest.approx(mean)


# --- the look at the gradient ---------------------------------------------------------------------------------------


def test_spread_is_the_trace_of_the_covariance():
    gradients = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    norm, variance = spread(lambda i: [gradients[i, :3], gradients[i, 3:]], 5)
    assert norm == pytest.approx(gradients.mean(0).norm().item())
    assert variance == pytest.approx(gradients.T.cov().trace().item())
    with pytest.raises(ValueError, match="n=1: a variance needs at least 2"):
        spread(lambda i: [gradients[i]], 1)


def columns(folder: Path, probe: bool) -> list[dict[str, str]]:
    return [{k: v for k, v in row.items() if k.startswith("probe_") == probe} for row in tiny.history(folder)]


@pytest.mark.parametrize(("method", "beta"), [("sspo", 0.1), ("dapo", 0.0), ("sppo", 0.0), ("conspo", 0.0)])
def test_looking_changes_nothing(trainer, tmp_path, method, beta):
    plain = trainer(method=method, beta=beta, out=str(tmp_path / "plain"))
    looked = trainer(method=method, beta=beta, out=str(tmp_path / "looked"), probe_every=2, probe_prompts=3)
    plain.run()
    looked.run()
    assert columns(plain.folder.path, probe=False) == columns(looked.folder.path, probe=False)
    assert all(not any(row.values()) for row in columns(plain.folder.path, probe=True))
    for i, row in enumerate(columns(looked.folder.path, probe=True), start=1):
        assert all(row.values()) == (i % 2 == 0)
    assert float(columns(looked.folder.path, probe=True)[1]["probe_variance"]) > 0


def test_the_look_is_at_the_gradient_of_each_group(trainer):
    """By autograd alone, one prompt after the other, after an update: so the ratios are not 1."""
    one = trainer(probe_every=1, probe_prompts=3, lr=1e-2, dtype="float64")
    one.step = 1
    probe = one._probe()
    batch = one._collect()
    one.update(batch.rollout, one.method.advantage(batch.rollout), torch.arange(16))
    found, gradients = one._spread(probe), []
    assert all(w.grad is None for w in one.weights)
    logp = one.policy.logp(probe.tokens, probe.prompt_mask)
    advantages = one.method.advantage(probe)
    for i in range(3):
        rows = probe.group_ids == i
        loss = one.method.objective(
            logp[rows], probe.logp_old[rows], advantages[rows], probe.mask[rows], normalize=one.normalizer
        )
        loss.backward(retain_graph=True)
        gradients.append(tiny.take_gradient(one.policy))
    stacked = torch.stack(gradients)
    assert found["probe_norm"] == pytest.approx(stacked.mean(0).norm().item(), rel=1e-5)
    assert found["probe_variance"] == pytest.approx(stacked.var(0).sum().item(), rel=1e-5)
    assert found["probe_noise"] == pytest.approx(found["probe_variance"] / found["probe_norm"] ** 2)
    assert found["probe_kl"] > 0
    one.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)  # as float16 has it: the gradient is 64 times as large
    assert one._spread(probe) == pytest.approx(found)
    assert torch.equal(one._probe().prompt_mask, probe.prompt_mask)


def test_the_prompts_of_the_look_are_always_the_same(trainer, tmp_path):
    prompts = set()
    for seed, step in ((0, 1), (0, 2), (5, 1)):
        one = trainer(seed=seed, probe_every=1, out=str(tmp_path / f"{seed}-{step}"))
        one.step = step
        prompts.add(tuple(one._probe().problems))
    assert len(prompts) == 1


# --- a lost run -----------------------------------------------------------------------------------------------------


def history(*rewards: float, finished: float = 1.0) -> list[dict[str, float]]:
    return [{"step": i, "reward": r, "finished": finished} for i, r in enumerate(rewards, start=1)]


def test_collapse_is_a_window_below_a_share_of_the_start():
    config = Config(collapse_below=0.5, collapse_window=2)
    assert collapsed(history(0.4, 0.6, 0.24, 0.26), config) is None
    found = collapsed(history(0.4, 0.6, 0.9, 0.24, 0.1), config)
    assert (found["step"], found["what"], found["start"], found["last"]) == (5, "reward", 0.5, [0.24, 0.1])
    assert found["criterion"] == "reward below 0.5 of its mean over the first 2 iterations, for 2"
    assert collapsed(history(0.4, 0.1, 0.0), config) is None  # the windows must not overlap
    assert collapsed(history(0.0, 0.0, 0.0, 0.0), config) is None  # nothing to lose
    assert collapsed(history(-1.0, -1.0, -0.6, -0.6), config) is None  # a task that fines: it has got better
    assert collapsed(history(1.0, 1.0, math.nan, math.nan), config) is not None
    assert collapsed(history(0.4, 0.6, 0.0, 0.0), dataclasses.replace(config, collapse_below=0.0)) is None
    assert collapsed(history(0.4, 0.6, 0.0, 0.0), dataclasses.replace(config, collapse_of=("finished",))) is None


def test_a_collapsed_run_ends_is_judged_saved_and_stays_ended(trainer, monkeypatch):
    one = trainer(steps=50, collapse_below=0.5, collapse_window=2, eval_every=100, save_every=100, method="grpo")
    score = one.task.score

    def lost(problems, tokens, mask):
        scores = score(problems, tokens, mask)
        return dataclasses.replace(scores, rewards=scores.rewards * 0 + (one.step < 4))

    monkeypatch.setattr(one.task, "score", lost)
    with pytest.warns(TrainingWarning, match="no group had two different rewards"):
        one.run()
    assert one.step == 5
    told = json.loads((one.folder.path / "collapse.json").read_text())
    assert (told["step"], told["what"], told["start"], told["last"]) == (5, "reward", 1.0, [0.0, 0.0])
    assert one.folder.evaluations()[-1]["step"] == 5
    again = Trainer(dataclasses.replace(one.config, resume=True), quiet=True)
    assert again.done
    assert again.step == 5
    fresh = Trainer(dataclasses.replace(one.config, overwrite=True), quiet=True)
    assert not (one.folder.path / "collapse.json").exists()
    assert not fresh.done


# --- batches of like length -----------------------------------------------------------------------------------------

PROMPTS = tiny.left_padded([3, 4], [5, 6, 7, 8, 9], [4], [9, 8, 7], [6, 5, 4, 3])
SETTINGS = {"max_new_tokens": 6, "stop_ids": (1, 2), "pad_id": 0}


@pytest.mark.parametrize("batch", [1, 2, 3, 6, 7, 100])
def test_batches_are_the_same_responses_in_the_order_of_the_prompts(batch):
    one = tiny.policy()
    whole = one.generate(*PROMPTS, sampling=GREEDY, group_size=3, **SETTINGS)
    parts = OwnEngine(one, batch).generate(*PROMPTS, sampling=GREEDY, group_size=3, **SETTINGS)
    for name in ("tokens", "mask", "truncated"):
        assert torch.equal(getattr(whole, name), getattr(parts, name))
    for name in ("logp", "entropy"):
        torch.testing.assert_close(getattr(whole, name), getattr(parts, name), atol=1e-5, rtol=1e-5)


def test_a_batch_is_never_larger_than_asked_and_padded_to_its_own_longest(monkeypatch):
    one, seen = tiny.policy(), []
    generate = one.generate
    monkeypatch.setattr(
        one, "generate", lambda p, m, **o: (seen.append((tuple(p.shape), o["group_size"])), generate(p, m, **o))[1]
    )
    OwnEngine(one, 4).generate(*PROMPTS, sampling=Sampling(), group_size=2, **SETTINGS)
    assert seen == [((2, 5), 2), ((2, 3), 2), ((1, 1), 2)]
    seen.clear()
    OwnEngine(one, 2).generate(*PROMPTS, sampling=Sampling(), group_size=3, **SETTINGS)
    assert seen[:4] == [((1, 5), 2), ((1, 5), 1), ((1, 4), 2), ((1, 4), 1)]


def test_a_group_in_two_batches_is_two_draws():
    out = OwnEngine(tiny.policy(), 2).generate(
        *PROMPTS, sampling=Sampling(), group_size=4, generator=torch.Generator().manual_seed(0), **SETTINGS
    )
    groups = out.tokens.view(5, 4, 6)
    assert not all(torch.equal(group[:2], group[2:]) for group in groups)


def test_the_header_holds_every_generation_setting(trainer):
    one = trainer(temperature=0.7, generation_batch=5)
    one.policy.model.generation_config.repetition_penalty = 3.0
    found = one.engine.settings(Sampling(temperature=0.7), 4, (1,))
    assert found.pop("not taken from the checkpoint")["repetition_penalty"] == 3.0
    assert found == {
        "engine": "own", "temperature": 0.7, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "max_new_tokens": 4, "min_new_tokens": 0, "stop_ids": [1],
        "batch": 5,
    }  # fmt: skip
    header = json.loads((one.folder.path / "environment.json").read_text())
    assert header["generation"]["temperature"] == 0.7
    assert {"torch", "transformers", "tokenizers"} <= header["packages"].keys()
    assert header["evaluation"] == {
        "problems": "the first 8 of the test split", "temperatures": {"greedy": 0.0, "sampled": 0.7},
        "max_new_tokens": one.task.max_new_tokens, "seed": 0,
    }  # fmt: skip


@pytest.mark.parametrize("task", TASK_DEFAULTS)
def test_every_preset_keeps_off_policy_pressure(task):
    known = TASK_DEFAULTS[task]
    assert known["minibatches"] * known.get("epochs", Config().epochs) >= 2


# --- another engine ---------------------------------------------------------------------------------------------------


class FakeVLLM:
    """The package's face: it samples from the weights that were handed over, at logits that are a little off."""

    def __init__(self, policy: CausalLM, off: float = 0.3) -> None:
        self.own, self.off, self.told, self.resets = policy, off, {}, 0
        self.SamplingParams = SimpleNamespace

    def LLM(self, **told):
        self.told = told
        self.copy = load_policy(told["model"])
        inside = SimpleNamespace(load_weights=lambda named: self.copy.model.load_state_dict(dict(named)))
        runner = SimpleNamespace(model_runner=SimpleNamespace(model=inside))
        self.llm_engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=runner))
        return self

    def reset_prefix_cache(self):
        self.resets += 1

    def generate(self, prompts, params, use_tqdm):
        self.params, requests = params, []
        chance = torch.Generator().manual_seed(params.seed)
        for prompt in prompts:
            ids = torch.tensor([prompt["prompt_token_ids"]])
            colder = Sampling(temperature=params.temperature * (1 + self.off))
            out = self.copy.generate(
                ids, torch.ones_like(ids, dtype=torch.bool), max_new_tokens=params.max_tokens, pad_id=0,
                stop_ids=tuple(params.stop_token_ids), sampling=colder, group_size=params.n, generator=chance,
            )  # fmt: skip
            answers = []
            for tokens, mask, logp in zip(out.tokens, out.mask, out.logp, strict=True):
                pairs = list(zip(tokens[mask].tolist(), logp[mask].tolist(), strict=True))
                places = [{token: SimpleNamespace(logprob=value)} for token, value in pairs]
                answers.append(SimpleNamespace(token_ids=[token for token, _ in pairs], logprobs=places))
            requests.append(SimpleNamespace(outputs=answers))
        return requests


def with_vllm(monkeypatch, trainer, **other) -> tuple[Trainer, FakeVLLM]:
    fake = FakeVLLM(tiny.policy())
    monkeypatch.setitem(sys.modules, "vllm", fake)
    return trainer(engine="vllm", **{"correction": "tis", **other}), fake


def test_another_engine_s_samples_are_scored_again_and_weighed(trainer, monkeypatch):
    one, fake = with_vllm(monkeypatch, trainer, temperature=0.8)
    assert fake.told["generation_config"] == "vllm"
    assert fake.told["skip_tokenizer_init"]
    assert fake.told["logprobs_mode"] == "processed_logprobs"
    rollout = one._collect().rollout
    gap = (rollout.logp_old - rollout.logp_sampler)[rollout.mask]
    assert gap.abs().max() > 0.01
    plain = method_of(dataclasses.replace(one.config, engine="own", correction="none")).advantage(rollout)
    weight = tis(rollout.logp_old, rollout.logp_sampler, rollout.mask)
    torch.testing.assert_close(one.method.advantage(rollout), plain * weight)
    wide = rollout.prompt_mask.shape[1]
    own = one.policy.logp(rollout.tokens, rollout.prompt_mask, temperature=0.8)
    torch.testing.assert_close(own.where(rollout.mask, 0.0), rollout.logp_old.where(rollout.mask, 0.0))
    assert (rollout.tokens[:, wide:][~rollout.mask] == one.task.pad_id).all()
    last = rollout.tokens[:, wide:].gather(1, rollout.mask.sum(1, keepdim=True) - 1).squeeze(1)
    assert torch.equal(rollout.truncated, last != one.task.eos_id)


def test_another_engine_gets_the_weights_of_the_moment_and_a_run_ends(trainer, monkeypatch):
    one, fake = with_vllm(monkeypatch, trainer)
    one.run()
    history = tiny.history(one.folder.path)
    assert all(float(row["ratio_error"]) == 0 and float(row["sampler_sd"]) > 0.05 for row in history)
    sampled = len(history)
    assert fake.resets == sampled == 6
    assert not torch.equal(fake.copy.model.lm_head.weight, one.policy.model.lm_head.weight)  # those of the last batch
    one._collect()
    assert torch.equal(fake.copy.model.lm_head.weight, one.policy.model.lm_head.weight)
    assert json.loads((one.folder.path / "environment.json").read_text())["generation"]["engine"] == "vllm"


def test_an_engine_that_changes_what_was_asked_for_is_refused(trainer, monkeypatch):
    one, fake = with_vllm(monkeypatch, trainer)
    fake.SamplingParams = lambda **told: SimpleNamespace(**{**told, "repetition_penalty": 1.1})
    with pytest.raises(ValueError, match=r"its repetition_penalty is 1\.1 where 1\.0 was asked for"):
        one._collect()


def test_another_engine_needs_its_package_and_a_correction(config, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ValueError, match=r"pip install 'sspo_teach\[vllm\]', or --engine own"):
        Trainer(config(engine="vllm", correction="mis"), quiet=True)
    for correction in ("none", "sequence_mask"):
        with pytest.raises(ValueError, match=f"engine='vllm', correction='{correction}': vLLM samples from another"):
            resolve(config(engine="vllm", correction=correction))
    with pytest.raises(ValueError, match="engine='vllm', lora_rank=4: adapters are not handed over"):
        Trainer(config(engine="vllm", correction="mis", lora_rank=4), quiet=True)
    with pytest.raises(ValueError, match="engine='vllm': its log-probabilities are not the policy's"):
        resolve(config(engine="vllm", correction="none", reuse_sampler_logp=True))


# --- from a plain folder ----------------------------------------------------------------------------------------------


def test_a_saved_tiny_qwen2_is_trained_on_from_its_folder(tmp_path):
    """With the library's own classes on both sides: saved, read by from_pretrained, trained, read again."""
    from test_tasks_text import TOK

    folder, out = tmp_path / "model", tmp_path / "run"
    tiny_qwen2(len(TOK), hidden_size=32, intermediate_size=64, max_length=1024).save(folder)
    TOK.save_pretrained(folder)
    config = Config(
        task="word-problems", model=str(folder), steps=2, prompts=2, group_size=4, minibatches=2, max_new_tokens=6,
        micro_batch=0, eval_problems=2, eval_every=2, lr=1e-3, options=("train=20", "test=5"), method="reinforce",
        out=str(out), generation_batch=4,
    )  # fmt: skip
    one = Trainer(config, quiet=True)
    header = json.loads((out / "environment.json").read_text())  # open-r1#673: the same answers need the same question
    asked = one.task.prompts(1, rng=np.random.default_rng(0), split="test")
    said = header["prompt"].replace("{question}", asked.problems[0].question)
    assert TOK.decode(asked.tokens[0][asked.mask[0]]).strip() == said.strip()
    assert SYSTEM in said
    assert header["judge"] == "sspo_teach.tasks.word_problems.WordProblemsTask.score"
    before = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    score = one.task.score
    one.task.score = lambda p, t, m: dataclasses.replace(score(p, t, m), rewards=(t[:, 0] % 2).float())  # some signal
    one.run()
    one.policy.save(tmp_path / "after")
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "after").state_dict()
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    again = load_policy(tmp_path / "after")
    tokens = torch.arange(12).view(2, 6) + 3
    mine, theirs = (p.logp(tokens, torch.ones(2, 2, dtype=torch.bool)) for p in (one.policy, again))
    assert torch.equal(mine, theirs)
    TOK.save_pretrained(tmp_path / "after")
    more = Trainer(dataclasses.replace(config, model=str(tmp_path / "after"), out=str(tmp_path / "more")), quiet=True)
    assert torch.equal(more.policy.model.lm_head.weight, after["lm_head.weight"])
