"""The command line: a mistake is one sentence, help explains every option, and reports say what the files say."""

from __future__ import annotations

import csv
import dataclasses
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import torch

from sspo_teach import cli
from sspo_teach.catalog import KNOWN, METHODS, entries
from sspo_teach.training.config import TASK_DEFAULTS, Config

SMALL = shlex.split(
    "--task bandit --prompts 4 --group-size 4 --minibatches 2 --eval-problems 8 --eval-every 3 --steps 3 --lr 1e-3"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, trained by the command."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert cli.main(["train", *SMALL, "--seed", "5", "--temperature", "0.8", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch):
    """Runs without --out go to runs/ of the working folder."""
    monkeypatch.chdir(tmp_path)


def status(words: list[str]) -> int:
    try:
        return cli.main(words)
    except SystemExit as left:
        return int(left.code or 0)


MISTAKES = {
    "train --method spso": "unknown method: 'spso'; did you mean 'sspo'?",
    "train --method sspo:gate-studi": "unknown preset of sspo: 'gate-studi'; did you mean 'gate-study'?",
    "train --method grpo:": "unknown preset of grpo: ''",
    "train --task arithmetics": "unknown task: 'arithmetics'; did you mean 'arithmetic'?",
    "train --task=arithmetik": "unknown task: 'arithmetik'; did you mean 'arithmetic'?",
    "train --numbers tau=2": "unknown name in numbers: 'tau'; did you mean 'tau_pos'?",
    "train --numbers tau_pos": "numbers='tau_pos': write NAME=VALUE",
    "train --numbers tau_pos=x": "numbers='tau_pos=x': 'x' does not fit tau_pos",
    "train --numbers tau_pos=0": "tau_pos must be",
    "train --numbers tau_pos=nan": "'nan' does not fit tau_pos: a finite number",
    "train --method grpo --numbers eps_low=-0.1": "eps_low must",
    "train --method grpo --numbers eps_low=1.5": "eps_low must",
    "train --method cispo --numbers ratio_cap=0": "ratio_cap must",
    "train --options digit=3": "unknown name in options: 'digit'; did you mean 'digits'?",
    "train --options digits=x": "options='digits=x': 'x' does not fit digits",
    "train --options digits=1,2,3": "write 2 values",
    "train --options digits=0": "digits",
    "train --options carry_rich=maybe": "write true or false",
    "train --task bandit --options rule=nope": "rule: 'nope', expected",
    "train --task bandit --options contexts=1000": "contexts: 1000, expected 1 to",
    "train --max-new-tokens 1": "max_new_tokens: 1, expected",
    "train --lr 0": "lr=0.0: must be a positive number",
    "train --lr nan": "lr=nan: must be a positive number",
    "train --temperature 0": "temperature=0.0: must be a positive number",
    "train --beta -1": "beta=-1.0: must be 0 or a positive number",
    "train --beta 0.1 --kl k1": "kl='k1': its gradient as a loss is 0 on average",
    "train --max-grad-norm inf": "max_grad_norm=inf: must be",
    "train --weight-decay -0.1": "weight_decay=-0.1: must be",
    "train --staleness-limit nan": "staleness_limit=nan: must be",
    "train --group-size 1": "group_size=1: sspo compares the responses to one prompt; use 2 or more",
    "train --group-size 0": "group_size=0: must be at least 1",
    "train --prompts 6": "minibatches=4: must divide prompts=6",
    "train --prompts 64 --minibatches 5": "whole groups; nearest: 4 or 8",
    "train --prompts 6 --minibatches 9": "whole groups; nearest: 6",
    "plan --beta nan": "beta=nan: must be 0 or a positive number",
    "train --steps -1": "steps=-1: must be at least 0",
    "train --seed -1": "seed=-1: must be at least 0",
    "train --seed 9223372036854775808": "seed=9223372036854775808: must be at most",
    "train --threads 100000": "threads=100000: must be at most 1024",
    "train --epochs 0": "epochs=0: must be at least 1",
    "train --eval-every 0": "eval_every=0: must be at least 1",
    "train --micro-batch -2": "micro_batch=-2: must be at least 0",
    "train --device nowhere": "device='nowhere'",
    "train --resume": "runs/arithmetic-sspo-s0 holds no run: config.json is missing",
    "train --resume --overwrite": "resume=True and overwrite=True contradict each other",
    "train --model ./nowhere": "model='./nowhere' cannot be loaded",
    "train --model nowhere.gguf": "model='nowhere.gguf': there is no such file",
    "train --model .": "the folder holds no config.json and 0 GGUF files",
    "train --task gsm8k": "task='gsm8k' needs a pretrained model: give --model",
    "train --task gsm8k --model tiny": "task='gsm8k' needs a pretrained model: give --model",
    "train --task arithmetic-text --model .": "the folder holds no config.json",
    "train --out a-file": "out='a-file': a-file is no folder to write to",
    "train --out a-file/b/run": "out='a-file/b/run': a-file is no folder to write to",
    "compare --methods sspo": "methods=sspo: name at least two different ones",
    "compare --methods sspo,sspo": "methods=sspo,sspo: name at least two different ones",
    "compare --methods grpo,gmqo": "unknown method: 'gmqo'; did you mean 'gmpo'?",
    "compare --methods sspo,grpo --numbers tau_pos=2": "unknown name in numbers: 'tau_pos'",
    "compare --seeds 0": "seeds=0: must be at least 1",
    "evaluate nowhere": "nowhere holds no run: config.json is missing",
    "evaluate . --problems -1": "problems=-1: must be 0",
    "evaluate broken": "config.json is not JSON",
    "evaluate wrong": "config.json holds a value of the wrong kind",
    "evaluate unfinished": "holds no checkpoint",
    "exact --methods spso": "unknown method: 'spso'; did you mean 'sspo'?",
    "exact --drift randm": "unknown drift: 'randm'; did you mean 'random'?",
    "exact --distances 0,x": "distances: 'x' is no distance",
    "exact --distances 0,-1": "distances: '-1' is no distance",
    "exact --group 1": "group=1: a group has 2 responses or more",
    "exact --group -1": "group=-1: must be at least 0",
    "exact --batch 0": "batch=0: must be at least 1",
    "exact --methods ,": "name at least one of each",
    "exact --letters 0": "letters=0: must be at least 1",
    "exact --levels 1": "levels=1: must be at least 2",
    "exact --length 30": "more than 200000: take fewer letters",
    "methods spso": "unknown method: 'spso'; did you mean 'sspo'?",
    "audit spso": "unknown method: 'spso'; did you mean 'sspo'?",
    "audit sspo:gate-studi": "unknown preset of sspo: 'gate-studi'; did you mean 'gate-study'?",
    "audit sspo --numbers tau=2": "unknown name in numbers: 'tau'; did you mean 'tau_pos'?",
    "audit sspo --numbers tau_pos=0": "tau_pos must be a positive finite number, got 0.0",
    "audit all --numbers tau_pos=2": "numbers=tau_pos=2: name one method",
    "adit": "unknown command 'adit'; did you mean 'audit'?",
    "tarin": "unknown command 'tarin'; did you mean 'train'?",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_answered_in_one_line(words, capsys, tmp_path):
    (tmp_path / "a-file").touch()
    texts = {"broken": '{"task": ', "unfinished": '{"task": "bandit"}', "wrong": '{"steps": "many"}'}
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    before = sorted(tmp_path.rglob("*"))
    assert status(words.split()) in (1, 2)
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith(("Writing", "Loading"))]
    assert len(lines) == 1, err
    assert lines[0].startswith("sspo-teach: ")
    assert MISTAKES[words] in lines[0]
    assert not out
    assert sorted(tmp_path.rglob("*")) == before  # and nothing is left behind


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("train --step 3", "--steps"),
        ("train --steps three", "--steps"),
        ("train --kl k4", "k4"),
        ("train --lr", "--lr"),
        ("train now", "now"),
        ("evaluate", "run"),
        ("audit", "name"),
        ("audit sspo --ful", "--full"),
        ("compare --seeds x", "--seeds"),
    ],
)
def test_words_that_are_no_options_are_named(words, named, capsys):
    assert status(words.split()) == 2
    out, err = capsys.readouterr()
    assert named in err
    assert "Traceback" not in out + err
    assert "--help" in err


def test_a_full_disk_is_one_line_too(monkeypatch, capsys):
    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sspo_teach.training.trainer.Trainer.run", full)
    assert status(["train", *SMALL]) == 1
    assert capsys.readouterr().err == "sspo-teach: [Errno 28] No space left on device\n"


def test_a_folder_that_holds_a_run_is_refused(run, capsys):
    assert status(["train", *SMALL, "--out", str(run)]) == 1
    assert "already holds a run: --resume" in capsys.readouterr().err


def test_a_run_resumed_with_another_option_is_refused(run, capsys):
    words = ["train", *SMALL, "--seed", "5", "--temperature", "0.9", "--out", str(run), "--resume"]
    assert status(words) == 1
    assert "temperature=0.9: the run in" in capsys.readouterr().err


def squeezed(text: str) -> str:
    """Without boxes, line ends and hyphenation."""
    return re.sub(r"[\s│╭╮╰╯─]+", "", text)


def documented(kind: type) -> dict[str, str]:
    """Field → the line of doc below it."""
    source = inspect.getsource(kind)
    return dict(re.findall(r'^    (\w+): .+\n    """(.+)"""$', source, flags=re.MULTILINE))


def test_every_field_has_its_line():
    assert documented(Config).keys() == {field.name for field in dataclasses.fields(Config)}


@pytest.mark.parametrize(
    ("command", "kinds"),
    [
        ("train", [Config]),
        ("compare", [Config, cli.CompareConfig]),
        ("evaluate", [cli.EvaluateConfig]),
        ("audit", [cli.AuditConfig]),
        ("exact", [cli.ExactConfig]),
    ],
)
def test_help_explains_every_option(command, kinds, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert status([command, "--help"]) == 0
    shown = squeezed(capsys.readouterr().out)
    for kind in kinds:
        for name, doc in documented(kind).items():
            if (command, name) in {("compare", "method"), ("evaluate", "run"), ("audit", "name")}:
                continue
            assert "--" + name.replace("_", "-") in shown, name
            assert squeezed(doc) in shown, name


def test_help_shows_the_task_s_own_defaults(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    for task, defaults in TASK_DEFAULTS.items():
        status(["train", "--task", task, "--help"])
        shown = squeezed(capsys.readouterr().out)
        assert f"(default:{defaults['steps']})" in shown
        assert f"(default:{defaults['lr']})" in shown
        assert "None" not in shown


def test_help_of_all(capsys):
    for words in ([], ["-h"], ["--help"]):
        assert status(words) == 0
        out = capsys.readouterr().out
        names = ("train", "compare", "evaluate", "exact", "claim", "methods", "audit")
        assert all(f"\n  {command} " in out for command in names)


def test_methods_shows_every_row(capsys):
    assert status(["methods"]) == 0
    out = capsys.readouterr().out
    rows, known = out.split("Known, not implemented:")
    assert re.findall(r"^(\w+) ", rows, flags=re.MULTILINE) == list(METHODS)
    assert re.findall(r"^(\w+) +arXiv", known, flags=re.MULTILINE) == list(KNOWN)
    for row in METHODS.values():
        assert entries(row.objective)["Parts"] in out
        assert all(f"{name}={value:g}" in out for name, value in row.numbers.items())


@pytest.mark.parametrize("name", [*METHODS, "sspo:gate-study"])
def test_methods_shows_all_about_one(name, capsys):
    assert status(["methods", name]) == 0
    out = capsys.readouterr().out
    assert METHODS[name.partition(":")[0]].verified.value in out
    assert all(entry in out for entry in ("Parts:", "Weight:", "Differs:", "Paper:", "numbers:", "presets:"))
    if name == "sspo:gate-study":
        assert "numbers: tau_pos=10, tau_neg=12" in out


def test_audit_shows_laws_tokens_and_other_numbers(capsys):
    assert status(["audit", "sspo:gate-study"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("sspo:gate-study: tau_pos=10, tau_neg=12\n\nlaws\n  padding         holds\n")
    assert re.search(r"^  group names     does not apply$", out, re.MULTILINE)
    tokens = re.findall(r"^  ([+-])1 +(\S+) +\S+ +\S+ +\S+  ok$", out, re.MULTILINE)
    assert len(tokens) == 30
    assert set(tokens) >= {("+", "0.1"), ("+", "1"), ("-", "10"), ("-", "e^-1000"), ("+", "e^30")}
    assert re.findall(r"^at (\S+), (\S+): 30 of 30 credits agree", out, re.MULTILINE) == [
        ("tau_pos=5", "tau_neg=6"), ("tau_pos=20", "tau_neg=24"), ("tau_pos=100", "tau_neg=120"),
    ]  # fmt: skip
    last = out.splitlines()[-1]
    assert re.fullmatch(r"sspo:gate-study +passes: 19 of 19 laws hold; 120 of 120 credits agree .*", last)


def test_audit_tells_what_a_method_breaks_by_design(capsys):
    assert status(["audit", "rloo", "--full"]) == 0
    out = capsys.readouterr().out
    assert "  stale           by design: arXiv 2402.14740 has no ratio" in out
    assert "18 of 18 laws hold (by design not: stale)" in out


@pytest.fixture
def wrong(monkeypatch):
    """A method whose gradient is wrong for A > 0, and whose padding leaks."""
    from sspo_teach.catalog import Method
    from sspo_teach.types import Verified

    def wrong(logp, logp_old, advantages, mask, *, eps_high=0.2):
        """.

        f

        Parts: none.
        Weight: wrong.
        """
        log_r = logp - logp_old.detach()
        if log_r.requires_grad:
            log_r.register_hook(lambda g: torch.where(advantages > 0, 2 * g, g))
        return -(log_r.clamp(max=eps_high) * advantages * mask).sum() / mask.sum()

    monkeypatch.setitem(METHODS, "wrong", Method(wrong, Verified.NOTES))


def test_audit_fails_where_a_method_fails(wrong, capsys):
    assert status(["audit", "wrong"]) == 1
    out = capsys.readouterr().out
    assert "\n  padding         BROKEN: loss with nan on padding: expected -0.089207, found nan (padding may" in out
    assert "not the slope of the loss" in out
    assert re.search(r"^wrong +BROKEN: \d+ of 18 laws hold; \d+ of 120 credits agree", out.splitlines()[-1])


def test_audit_of_all_names_those_that_fail(wrong, capsys, monkeypatch):
    few = {name: METHODS[name] for name in ("grpo", "cispo", "wrong")}
    monkeypatch.setattr("sspo_teach.catalog.METHODS", few)
    assert status(["audit", "all"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [["grpo", "passes:"], ["cispo", "passes:"]]
    assert lines[-2:] == ["2 of 3 methods pass", "  not wrong"]
    del few["wrong"]
    assert status(["audit", "all"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 of 2 methods pass"


def test_train_reports_what_its_files_say(tmp_path, capsys):
    assert status(["train", *SMALL, "--numbers", "tau_pos=2", "tau_neg=3"]) == 0
    out, err = capsys.readouterr()
    folder = Path("runs/bandit-sspo-s0")
    assert "bandit, sspo tau_pos=2 tau_neg=3, seed 0: 3 iterations of 4×4 responses, 2 updates each" in out
    first, *_, last = json.loads((folder / "evaluation.json").read_text())
    for way in ("greedy", "sampled"):
        a, b = first[way]["finished"], last[way]["finished"]
        row = next(line for line in out.splitlines() if line.startswith(f"{way} finished"))
        numbers = [float(x) for x in re.findall(r"[-+]?\d+\.\d", row)]
        expected = [
            *(100 * x[name] for x in (a, b) for name in ("share", "low", "high")),
            100 * (b["share"] - a["share"]),
        ]
        assert numbers == pytest.approx(expected, abs=0.051)
    assert (folder / "curve.png").stat().st_size > 5000
    assert f"learning curve: {folder}/curve.png" in out
    assert "3 iterations in" in out
    assert "Traceback" not in err


def test_no_steps_is_a_report_too(capsys):
    assert status(["train", *SMALL, "--steps", "0"]) == 0
    assert "before" in capsys.readouterr().out


@pytest.mark.parametrize("step", [0, 3])
def test_evaluate_agrees_with_the_run(run, capsys, step, tmp_path):
    recorded = next(e for e in json.loads((run / "evaluation.json").read_text()) if e["step"] == step)
    if step == 0:
        shutil.copytree(run, tmp_path / "run")
        shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-3")
        run = tmp_path / "run"
    capsys.readouterr()
    assert status(["evaluate", str(run), "--seed", "5"]) == 0
    out = capsys.readouterr().out
    assert f"sspo on bandit after {step} iterations" in out
    for way in ("greedy", "sampled"):
        for part in ("correct", "format", "finished", "correct_given_format", "correct_given_finished"):
            line = next(x for x in out.splitlines() if x.startswith(f"{way} {part.replace('_', ' ')}  "))
            assert line.endswith(f"{cli._percent(recorded[way][part])}  of {recorded[way][part]['n']}")
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    for sample in samples:
        if (sample["step"], sample["way"]) == (step, "sampled"):
            assert repr(sample["text"]) in out


def test_a_run_made_on_a_gpu_is_judged_on_a_laptop(run, capsys, tmp_path):
    assert status(["evaluate", str(run), "--seed", "5"]) == 0
    here = capsys.readouterr().out
    shutil.copytree(run, tmp_path / "away")
    file = tmp_path / "away" / "config.json"
    there = {"device": "cuda:77", "autocast": "fp16", "optimizer": "adamw_8bit"}
    file.write_text(json.dumps({**json.loads(file.read_text()), **there}))
    assert status(["evaluate", str(file.parent), "--seed", "5"]) == 1
    assert "--device cpu always works" in capsys.readouterr().err
    assert status(["evaluate", str(file.parent), "--seed", "5", "--device", "cpu"]) == 0
    assert capsys.readouterr().out == here


def test_evaluate_with_several_answers_to_all_problems(run, capsys):
    assert status(["evaluate", str(run), "--k", "4", "--problems", "all", "--batch", "6"]) == 0
    out = capsys.readouterr().out
    found = json.loads((run / "evaluation-4.json").read_text())
    assert (found["step"], found["k"], found["n"]) == (3, 4, 8)
    assert f"{found['n']} problems, 4 answers each at T = 0.8" in out
    for name in ("pass@1", "pass@2", "pass@4", "maj@4", "format", "truncated", "correct_given_format"):
        line = next(x for x in out.splitlines() if x.startswith(name.replace("_", " ")))
        assert line.endswith(cli._percent(found[name]))


def test_compare_writes_its_table_and_figure(tmp_path, capsys):
    words = ["compare", *SMALL, "--methods", "grpo,sspo:gate-study", "--seeds", "2", "--out", "cmp"]
    assert status(words) == 0
    out = capsys.readouterr().out
    runs = json.loads((tmp_path / "cmp" / "comparison.json").read_text())
    assert runs["command"] == "sspo-teach " + " ".join(words)
    assert [(name, len(seeds)) for name, seeds in runs["runs"].items()] == [("grpo", 2), ("sspo:gate-study", 2)]
    with (tmp_path / "cmp" / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["way"]) for row in rows] == [
        ("grpo", "greedy"), ("grpo", "sampled"), ("sspo:gate-study", "greedy"), ("sspo:gate-study", "sampled"),
    ]  # fmt: skip
    assert (tmp_path / "cmp" / "comparison.png").read_bytes()[:4] == b"\x89PNG"
    assert "sspo:gate-study − grpo, sampled:" in out
    assert {path.name for path in (tmp_path / "cmp").iterdir() if path.is_dir()} == {
        "grpo-s0", "grpo-s1", "sspo-gate-study-s0", "sspo-gate-study-s1",
    }  # fmt: skip
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cmp").rglob("history.csv")}
    (tmp_path / "cmp" / "comparison.json").unlink()
    assert status(words) == 0  # again: the runs are there and are taken as they are
    assert json.loads((tmp_path / "cmp" / "comparison.json").read_text()) == runs
    assert len(before) == 4


def test_exact_writes_tidy_tables_and_figures(tmp_path, capsys):
    words = "exact --methods sequence_is,sspo,dapo --drift random,outlier --distances 0,0.1,9 --letters 2 --length 3"
    assert status([*words.split(), "--group", "2", "--out", "lab"]) == 0
    out, err = capsys.readouterr()
    assert re.match(r"3 methods, 2 drifts, 3 distances, \d+ responses: about \d+ s of one core\n", out)
    assert err.splitlines()[-1] == "exact: 100 %"
    for drift in ("random", "outlier"):
        assert f"left out: all methods: distance=9 is out of reach of the drift '{drift}'" in out
    assert "a table of softmaxes is no language model" in out
    lab = tmp_path / "lab"
    tables = {path.stem: list(csv.DictReader(path.open())) for path in lab.glob("*.csv")}
    assert set(tables) == {"summary", "parts", "eigenvalues", "grid", "verdicts"}
    places = [(row["method"], row["drift"], float(row["distance"])) for row in tables["summary"]]
    assert len(places) == len(set(places)) == 3 * 2 * 2
    for row in tables["summary"]:
        assert float(row["kl"]) == pytest.approx(float(row["distance"]), rel=1e-6, abs=1e-12)
        if row["method"] == "sequence_is":
            assert float(row["bias"]) < 1e-9
    assert {row["part"] for row in tables["parts"]} >= {"positive", "negative", "corrective", "extending", "length 1"}
    assert all(f"{row['best']} {float(row['error']):.3f}" in out for row in tables["verdicts"])
    for figure in ("frontier-random", "cosine-outlier", "removed-random", "which-gate-outlier", "curves-random"):
        assert (lab / f"{figure}.png").read_bytes()[:4] == b"\x89PNG"


def test_a_reader_that_leaves_early_is_no_error():
    command = f"{sys.executable} -m sspo_teach.cli methods | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env={**os.environ})
    assert done.stdout.startswith("reinforce ")
    assert not done.stderr


def test_warnings_of_the_trainer_are_one_line_each(tmp_path, capsys):
    assert status(["train", *SMALL, "--minibatches", "1", "--steps", "1"]) == 0
    _, err = capsys.readouterr()
    said = [line for line in err.splitlines() if "warning" in line]
    assert said == ["sspo-teach: warning: one update per rollout batch: every ratio is 1, so no clip and no gate can "
                    "ever act"]  # fmt: skip
    assert len(tiny.history(tmp_path / "runs" / "bandit-sspo-s0")) == 1
