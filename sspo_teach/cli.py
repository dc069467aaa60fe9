"""The command line: ``sspo-teach train | compare | evaluate | plan | exact | methods | audit``."""

from __future__ import annotations

import os

# Read when torch is loaded. Threads that spin while they wait starve each other as soon as another program is busy:
# on two cores a training step then takes ten times as long. Waiting without spinning costs little on an idle machine.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import dataclasses
import difflib
import json
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from logging import ERROR, getLogger
from pathlib import Path
from typing import Any

import tyro

from sspo_teach.catalog import Method
from sspo_teach.checks import OBJECTIVE_LAWS, Audit, grid
from sspo_teach.dialects import Preset
from sspo_teach.training.config import Config, defaults

HELP = """usage: sspo-teach COMMAND [OPTIONS]

Soft Sequence Policy Optimization and its family, from a bandit to a real language model.

  train      train a policy with one method on one task; SSPO on arithmetic if you say nothing
  compare    the same start and budget for several methods and seeds, in one figure
  evaluate   judge a finished run on held-out problems
  plan       the memory of a run before it starts, and what fits which GPU
  exact      bias and noise of methods on a problem whose every response is written down
  claim      is SSPO's trade-off of bias and variance better? the answer in numbers
  methods    the table of methods: parts, weight, numbers, where each formula was read
  audit      put a method on trial: its laws, and its gradient against differences of its loss

`sspo-teach COMMAND --help` explains every option."""


EVERY = 100_000
"""More problems than any test set here has."""


@dataclass(frozen=True)
class CompareConfig(Config):
    """Train several methods on several seeds, all else equal."""

    method: tyro.conf.Suppress[str] = "sspo"
    methods: str = "grpo,gmpo,sapo,sspo"
    """Rows of `sspo-teach methods`, with presets if you like, separated by commas."""
    seeds: int = 3
    """How many seeds; the first is --seed."""


@dataclass(frozen=True)
class EvaluateConfig:
    """Judge a run's last checkpoint on held-out problems."""

    run: tyro.conf.Positional[str]
    """The run's folder."""
    problems: str = "0"
    """How many held-out problems; 0 takes the run's own number, all takes the whole test set."""
    k: int = 1
    """Answers per problem; with more than one come Pass@k, maj@k and the file evaluation-k.json in the run's folder."""
    seed: int = 0
    """Of the sampled answers."""
    batch: int = 256
    """Responses that grow at a time: less memory with fewer."""
    device: str = ""
    """Where to judge it, such as cpu for a run that was trained on cuda; nothing takes the run's own device."""


@dataclass(frozen=True)
class ExactConfig:
    """Bias and noise of methods' gradients as the policies drift apart, by sums over all responses."""

    methods: str = "sequence_is,reinforce,rloo,grpo,dapo,cispo,gspo,gmpo,sapo,sspo"
    """Rows of `sspo-teach methods`, with presets if you like, and commas; sequence_is is the yardstick; or `all`."""
    drift: str = "random"
    """How the sampler parts from the learner: random, gradient, temperature, outlier, precision, or own (its own
    updates); commas; or `all`."""
    distances: str = "0,0.01,0.03,0.1,0.3,1"
    """KL(old ‖ new) in nats per response, separated by commas."""
    group: int = 4
    """Responses per prompt; 0 takes advantages of the whole population."""
    batch: int = 64
    """Groups in a batch, for the mean squared error."""
    letters: int = 3
    """Letters of the vocabulary, beside EOS."""
    length: int = 4
    """Longest response in tokens."""
    prompts: int = 2
    """Prompts, each with a table of its own."""
    levels: int = 2
    """Different rewards between 0 and 1."""
    seed: int = 0
    """Of logits, rewards and directions."""
    out: str = "runs/exact"
    """Folder of the tables and figures; what is there is replaced."""


@dataclass(frozen=True)
class ClaimConfig:
    """Is SSPO's trade-off of bias and variance better? SSPO against GRPO, GMPO, GSPO and SAPO on many small problems.

    On each problem all is exact; the intervals are for the choice of problems.
    """

    problems: int = 40
    """How many, at least 6; a quarter of them for each method's own drift, which takes longest."""
    out: str = "runs/claim"
    """Folder of the tables and figures; what is there is replaced."""


@dataclass(frozen=True)
class MethodsConfig:
    """Show the table of methods, or all about one."""

    name: tyro.conf.Positional[str] = ""
    """A method's name; nothing shows the table."""


@dataclass(frozen=True)
class AuditConfig:
    """Run the laws on a method, and compare the credit of single tokens with differences of its loss.

    Credit is −∂L/∂logp. What an objective detaches stands still while differences are taken, so stop-gradient rules are
    judged like all others. The table has both signs of the advantage A, ratios from 0.1 to 10, and log-ratios beyond
    the limit, where credit must be 0; then the same at other numbers (temperatures, bounds). Ends with status 1 if
    anything fails.
    """

    name: tyro.conf.Positional[str]
    """A method's name, with a preset if you like, or all."""
    numbers: tuple[str, ...] = ()
    """The method's own numbers as NAME=VALUE, e.g. --numbers tau_pos=10 tau_neg=12."""
    full: bool = False
    """Show every token at the other numbers too, not only those that fail."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 done, 1 a user's mistake, 2 unknown words, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    commands: Mapping[str, Callable[[list[str]], int]] = {
        "train": train,
        "compare": compare,
        "evaluate": evaluate,
        "plan": plan,
        "exact": exact,
        "claim": claim,
        "methods": methods,
        "audit": audit,
    }
    if not words or words[0] in ("-h", "--help"):
        print(HELP)
        return 0
    if words[0] not in commands:
        near = difflib.get_close_matches(words[0], commands, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        print(f"sspo-teach: unknown command {words[0]!r}; {hint}known: {', '.join(commands)}", file=sys.stderr)
        return 2
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        status = commands[words[0]](words[1:])
        sys.stdout.flush()  # a reader that left is noticed here, not at exit
        return status
    except ValueError as error:
        print(f"sspo-teach: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nsspo-teach: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a folder that may not be written
        print(f"sspo-teach: {error}", file=sys.stderr)
        return 1


def train(words: list[str]) -> int:
    """``sspo-teach train``: run, then a table before and after, and a learning curve."""
    config = tyro.cli(Config, prog="sspo-teach train", args=words, default=Config(**_defaults(words)))
    _quiet_transformers()
    from sspo_teach.training import checkpoint
    from sspo_teach.training.trainer import Trainer

    trainer = Trainer(config)
    config = trainer.config
    numbers = " ".join(f"{name}={value:g}" for name, value in trainer.method.numbers.items())
    print(
        f"{config.task}, {config.method} {numbers}, seed {config.seed}: {_length(config)} of "
        f"{config.prompts}×{config.group_size} responses, {config.minibatches * config.epochs} updates each, "
        f"lr {config.lr:g}, T = {config.temperature:g}, on {config.device}"
    )
    go_on = f"go on with\n  sspo-teach train {shlex.join([*_without(words), '--resume'])}"
    try:
        path = trainer.run()
    except KeyboardInterrupt:
        if not checkpoint.found(trainer.folder.checkpoints):
            raise
        print(f"\nleft at once, the last checkpoint stands; {go_on}")
        return 130
    if not trainer.done:
        print(f"\nstopped after iteration {trainer.step}, all saved; {go_on}")
        return 130
    print(report(path))
    if trainer.collapse is not None:
        print(f"collapsed at iteration {trainer.step} and stopped: {trainer.collapse['criterion']}")
    return 0


def _length(config: Config) -> str:
    return f"{config.token_budget:,} tokens in iterations" if config.token_budget else f"{config.steps} iterations"


def report(path: Path) -> str:
    """What a run learnt, as a table, and its learning curve; draws ``curve.png``."""
    from sspo_teach import plotting
    from sspo_teach.training.folder import RunFolder, read_config, read_rows

    folder, config = RunFolder(path), read_config(path)
    evaluations, history = folder.evaluations(), folder.history()
    title = f"{config.method} on {config.task}, seed {config.seed}"
    figure = plotting.learning_curve(history, evaluations, title=title, temperature=config.temperature)
    curve = plotting.save(figure, path / "curve.png")
    before, after = evaluations[0], evaluations[-1]
    lines = ["", f"{'held-out problems, percent':<33}{'before':>22}{'after':>22}{'gain':>8}"]
    for way in ("greedy", "sampled"):
        for part in ("correct", "format", "finished", "correct_given_finished"):
            a, b = before[way][part], after[way][part]
            gain = "" if a["share"] is None or b["share"] is None else f"{100 * (b['share'] - a['share']):+.1f}"
            lines.append(f"{way + ' ' + part.replace('_', ' '):<33}{_percent(a):>22}{_percent(b):>22}{gain:>8}")
        a, b = before[way]["reward"], after[way]["reward"]
        lines.append(f"{way + ' mean reward':<33}{a:>22.3f}{b:>22.3f}{b - a:>+8.3f}")
    seconds = {
        name: sum(float(row[name]) for row in read_rows(path / "timing.csv"))
        for name in ("sample", "score", "train", "total")
    }
    if history:
        spent = ", ".join(f"{name} {seconds[name] / seconds['total']:.0%}" for name in ("sample", "score", "train"))
        tested = sum(row["moved"] for row in history) / len(history)
        lines += [
            "",
            f"{len(history)} iterations in {seconds['total']:.0f} s ({spent}); "
            f"{tested:.1%} of trained tokens had moved by more than 0.1 in ratio",
        ]
    lines += [f"all of it: {path}", f"learning curve: {curve}"]
    return "\n".join(lines)


def compare(words: list[str]) -> int:
    """``sspo-teach compare``: every method on every seed, then a table and a figure with bands."""
    asked = tyro.cli(CompareConfig, prog="sspo-teach compare", args=words, default=CompareConfig(**_defaults(words)))
    _quiet_transformers()
    from sspo_teach import plotting, study

    folder = Path(asked.out or f"runs/{asked.task}-compare")
    base = Config(**{field.name: getattr(asked, field.name) for field in dataclasses.fields(Config)})
    names = [name.strip() for name in asked.methods.split(",") if name.strip()]
    try:
        runs = study.compare(base, names, asked.seeds, folder, fresh=asked.overwrite)
    except KeyboardInterrupt:
        print(f"\nstopped; what is done is kept, go on with\n  sspo-teach compare {shlex.join(_without(words))}")
        return 130
    figure = study.write(runs, folder, f"sspo-teach compare {shlex.join(words)}")
    if base.probe_every:
        seeds = range(base.seed, base.seed + asked.seeds)
        probes = plotting.probed(study.histories(folder, names, seeds))
        print(f"gradients on the same prompts: {plotting.save(probes, folder / 'gradients.png')}")
    print("\n" + study.table(study.summarize(runs)))
    for name, (mean, half) in study.differences(runs, names[0]).items():
        verdict = "one seed cannot tell" if half != half else "not told apart" if abs(mean) <= half else "told apart"
        print(f"{name} − {names[0]}, sampled: {mean:+.1f} ± {half:.1f} points ({verdict} at 95 %)")
    print(f"figure: {figure}")
    return 0


def evaluate(words: list[str]) -> int:
    """``sspo-teach evaluate RUN``."""
    asked = tyro.cli(EvaluateConfig, prog="sspo-teach evaluate", args=words)
    _quiet_transformers()
    from sspo_teach.policies.sampling import Sampling
    from sspo_teach.training.evaluation import evaluate as judge
    from sspo_teach.training.trainer import restored

    problems = _problems(asked.problems)
    for name in ("k", "batch"):
        if getattr(asked, name) < 1:
            raise ValueError(f"{name}={getattr(asked, name)}: must be at least 1")
    task, policy, config, step = restored(Path(asked.run), device=asked.device)
    sampling = Sampling(temperature=config.temperature)
    problems, length = problems or config.eval_problems, config.eval_new_tokens
    if asked.k > 1:
        return _many(asked, task, policy, config, step, problems)
    found = judge(policy, task, problems, max_new_tokens=length, seed=asked.seed, sampling=sampling, batch=asked.batch)
    print(f"{config.method} on {config.task} after {step} iterations")
    for way in ("greedy", "sampled"):
        for part in ("correct", "format", "finished", "correct_given_format", "correct_given_finished"):
            print(
                f"{way + ' ' + part.replace('_', ' '):<34}{_percent(found[way][part]):>18}  of {found[way][part]['n']}"
            )
    for text in found["sampled"]["samples"]:
        print(f"  {text!r}")
    return 0


def plan(words: list[str]) -> int:
    """``sspo-teach plan``."""
    from sspo_teach import planning

    print(planning.plan(words, _said_in(words, "--hardware", "")))
    return 0


def _problems(text: str) -> int:
    """0 for the run's own number, or a number that no test set reaches for all of it."""
    if text == "all":
        return EVERY
    if not text.isdigit():
        raise ValueError(f"problems={text}: must be 0 (the run's own number), a positive number, or all")
    return int(text)


def _many(asked: EvaluateConfig, task: Any, policy: Any, config: Config, step: int, problems: int) -> int:
    """Several answers to each problem, as a table and as ``evaluation-k.json``."""
    from sspo_teach.policies.sampling import Sampling
    from sspo_teach.training.checkpoint import write_text
    from sspo_teach.training.passk import sample_many

    length, sampling = config.eval_new_tokens, Sampling(temperature=config.temperature)
    found = sample_many(
        policy, task, problems, asked.k, max_new_tokens=length, seed=asked.seed, sampling=sampling, batch=asked.batch
    )
    file = Path(asked.run) / f"evaluation-{asked.k}.json"
    write_text(file, json.dumps({"step": step, "max_new_tokens": length or task.max_new_tokens, **found}, indent=1))
    print(
        f"{config.method} on {config.task} after {step} iterations: {found['n']} problems, {asked.k} answers each at "
        f"T = {config.temperature:g}; 95 % intervals over problems"
    )
    for name, share in found.items():
        if isinstance(share, dict) and "share" in share:
            print(f"{name.replace('_', ' '):<24}{_percent(share):>22}")
    print(f"mean length {found['length']:.1f} tokens; all of it: {file}")
    return 0


def _said(chosen: Preset) -> str:
    """What a preset changes, in a few words."""
    return ", ".join(word for word in (_pairs(chosen.numbers), *chosen.row) if word)


def exact(words: list[str]) -> int:
    """``sspo-teach exact``: tidy tables, figures, and which method erred least where."""
    from sspo_teach.catalog import METHODS
    from sspo_teach.exact import problem, sweep

    asked = tyro.cli(ExactConfig, prog="sspo-teach exact", args=words)
    names = [sweep.YARDSTICK, *METHODS] if asked.methods == "all" else _commas(asked.methods)
    drifts = list(sweep.WAYS) if asked.drift == "all" else _commas(asked.drift)
    distances = [_number("distances", word) for word in _commas(asked.distances)]
    for name, least in (("batch", 1), ("group", 0), ("seed", 0)):
        if getattr(asked, name) < least:
            raise ValueError(f"{name}={getattr(asked, name)}: must be at least {least}")
    if asked.group == 1:
        raise ValueError("group=1: a group has 2 responses or more; 0 takes advantages of the whole population")
    if not names or not drifts or not distances:
        raise ValueError("methods, drift and distances: name at least one of each")
    here = problem(
        letters=asked.letters, length=asked.length, prompts=asked.prompts, levels=asked.levels, seed=asked.seed
    )
    known = sweep.known(names, drifts)
    places, size = len(known) * len(drifts) * len(distances), here.tree.size
    print(
        f"{_several(len(known), 'method')}, {_several(len(drifts), 'drift')}, {_several(len(distances), 'distance')}, "
        f"{size} responses: about {_long(places * sweep.SECONDS * size / 242)} of one core",
        flush=True,
    )
    with _bar(places, "exact", "place") as done:
        tables = sweep.sweep(
            here, names, drifts=drifts, distances=distances, group=asked.group, batch=asked.batch, seed=asked.seed,
            done=done,
        )  # fmt: skip
    skipped = dict.fromkeys(f"{name}: {why}" for name, _, _, why in tables.skipped)
    if not tables.summary:
        raise ValueError(f"nothing was left to compare; {next(iter(skipped))}")
    for reason in skipped:
        print(f"left out: {reason}")
    folder = Path(asked.out)
    folder.mkdir(parents=True, exist_ok=True)
    verdicts = sweep.verdicts(tables.summary)
    middle = sorted(distances)[len(distances) // 2]
    try:
        grid = sweep.grid_table(
            sweep.apart(here, drifts[0], middle, group=asked.group, seed=asked.seed),
            group=asked.group,
            batch=asked.batch,
        )
    except ValueError:  # the drift ends before that distance
        grid = []
    files = {
        "summary": tables.summary,
        "parts": tables.parts,
        "eigenvalues": tables.eigenvalues,
        "grid": grid,
        "verdicts": verdicts,
    }
    for name, rows in files.items():
        sweep.write(folder / f"{name}.csv", rows)
    figures = _exact_figures(folder, here, tables.summary, asked, middle)
    groups = f"groups of {asked.group}" if asked.group else "advantages of the population"
    print(f"{here.tree.size} responses to {here.tree.prompts} prompts, J = {here.value:.3f}, {groups}")
    print(f"{'drift':<12}{'KL':>6}{'groups':>8}  least error of a step (0 exact, 1 none)")
    for row in verdicts:
        near = ", ".join(row["near"][:4]) + (", …" if len(row["near"]) > 4 else "")
        beside = f"; within a tenth: {near}" if near else ""
        print(f"{row['drift']:<12}{row['distance']:>6g}{row['batch']:>8}  {row['best']} {row['error']:.3f}{beside}")
    print(*sweep.LIMITS, sep="\n")
    print(f"tables and figures: {folder} ({', '.join([*(f'{name}.csv' for name in files), *figures])})")
    return 0


def claim(words: list[str]) -> int:
    """``sspo-teach claim``: SSPO's error over each rival's; what is the gate's part, what the pooling's."""
    import torch

    from sspo_teach import plotting
    from sspo_teach.exact import claim, sweep

    asked = tyro.cli(ClaimConfig, prog="sspo-teach claim", args=words)
    if asked.problems < claim.LEAST:
        raise ValueError(
            f"problems={asked.problems}: take at least {claim.LEAST}, fewer say nothing about the next one"
        )
    torch.set_num_threads(1)  # many small sums: a second thread waits more than it works
    print(
        f"{asked.problems} problems, {_several(len(claim.METHODS), 'method')}, {len(claim.DRIFTS) + 1} drifts, "
        f"{_several(len(claim.DISTANCES), 'distance')}: about {_long(asked.problems * claim.SECONDS)} of one core",
        flush=True,
    )
    with _bar(claim.work(asked.problems), "claim", "row") as done:
        tables = claim.tables(asked.problems, done=done)
    answers = claim.answer(tables)
    folder = Path(asked.out)
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in tables.items():
        sweep.write(folder / f"by-{name}.csv", rows)
    for name, rows in answers.items():
        sweep.write(folder / f"answer-{name}.csv", rows)
    figures = {
        "trade-off": plotting.trade_off(tables["knob"]),
        "error-ratio": plotting.error_ratio(answers["method"]),
        "along-tau": plotting.along_tau(tables["tau"]),
    }
    for name, figure in figures.items():
        plotting.save(figure, folder / f"{name}.png")
    print("\n".join(claim.lines(answers)))
    print(*sweep.LIMITS, sep="\n")
    print(f"tables and figures: {folder}")
    return 0


def _exact_figures(folder: Path, here: Any, summary: Sequence[Mapping[str, Any]], asked: ExactConfig, at: float):
    """Draw every figure of ``exact``; the names of the files."""
    import torch

    from sspo_teach import plotting
    from sspo_teach.exact import decompose, sweep

    figures = {}
    for drift in dict.fromkeys(row["drift"] for row in summary):
        rows = [row for row in summary if row["drift"] == drift]
        figures[f"frontier-{drift}"] = plotting.frontier(rows, batch=asked.batch)
        figures[f"cosine-{drift}"] = plotting.cosine_to_truth(rows)
        figures[f"removed-{drift}"] = plotting.removed_signal(rows)
        title = f"Which gate when: error of one step, drift {drift}"
        figures[f"which-gate-{drift}"] = plotting.which_gate(rows, sweep.BATCHES, title=title, limits=sweep.LIMITS)
        if any(row["distance"] == at for row in rows):
            far = sweep.apart(here, drift, at, group=asked.group, seed=asked.seed)
            ratios = (far.logp - far.logp_old)[far.tree.mask].exp()
            often = far.chances.unsqueeze(1).expand(far.logp.shape)[far.tree.mask]
            z = torch.linspace(-2.5, 2.5, 401, dtype=torch.float64)
            lines = {
                gate: {name: curve.numpy() for name, curve in decompose.curves(gate, z).items()}
                for gate in decompose.GATES
            }
            figures[f"curves-{drift}"] = plotting.coefficient_curves(z.numpy(), lines, ratios.numpy(), often.numpy())
    return [plotting.save(figure, folder / f"{name}.png").name for name, figure in figures.items()]


def _several(count: int, what: str) -> str:
    return f"{count} {what}" + "s" * (count != 1)


def _long(seconds: float) -> str:
    return f"{max(1, round(seconds))} s" if seconds < 100 else f"{seconds / 60:.0f} min"


@contextmanager
def _bar(total: int, what: str, unit: str) -> Iterator[Callable[[int], object]]:
    """A progress bar on stderr; where that is no terminal, a line at each tenth."""
    if sys.stderr.isatty():
        from tqdm.auto import tqdm

        with tqdm(total=total, desc=what, unit=unit, leave=False, smoothing=0) as bar:
            yield bar.update
        return
    counted = [0]

    def done(more: int) -> None:
        before, counted[0] = counted[0], counted[0] + more
        if 10 * before // total < 10 * counted[0] // total:
            print(f"{what}: {100 * counted[0] // total} %", file=sys.stderr, flush=True)

    yield done


def _commas(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _number(name: str, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = float("nan")
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name}: {word!r} is no distance; write numbers from 0 on, e.g. {name} 0,0.1,1")
    return value


def methods(words: list[str]) -> int:
    """``sspo-teach methods [NAME]``."""
    from sspo_teach.catalog import KNOWN, METHODS, entries, method

    asked = tyro.cli(MethodsConfig, prog="sspo-teach methods", args=words)
    if asked.name:
        row = method(asked.name)
        base = METHODS[asked.name.partition(":")[0]]
        print((base.objective.__doc__ or "").strip())
        print(f"\n    formula: {row.verified.value}")
        print("    numbers:", _pairs(row.numbers) or "none")
        told = {name: chosen for name, chosen in row.presets.items() if not chosen.besides}
        print("    presets:", ", ".join(f"{name} ({_said(chosen)})" for name, chosen in told.items()) or "none")
        return 0
    for name, row in METHODS.items():
        entry = entries(row.objective)
        print(f"{name:<18}{entry['summary']}")
        print(f"{'':<18}{entry['Parts']}")
        print(f"{'':<18}{_pairs(row.numbers) or 'no numbers'}; {row.verified.value}\n")
    print("Known, not implemented:")
    for name, reason in KNOWN.items():
        print(f"{name:<18}{reason}")
    print("\n`sspo-teach methods NAME` shows formula, weight and source.")
    return 0


def audit(words: list[str]) -> int:
    """``sspo-teach audit METHOD | all``."""
    from sspo_teach.catalog import METHODS
    from sspo_teach.training.config import method_of

    asked = tyro.cli(AuditConfig, prog="sspo-teach audit", args=words)
    if asked.name != "all":
        lines, broken = _trial(asked.name, method_of(Config(method=asked.name, numbers=asked.numbers)), full=asked.full)
        print("\n".join(lines))
        return int(broken)
    if asked.numbers:
        raise ValueError(f"numbers={' '.join(asked.numbers)}: name one method; each has numbers of its own")
    failed = []
    for name, row in METHODS.items():
        lines, broken = _trial(name, row, full=asked.full)
        print("\n".join(lines) if broken or asked.full else lines[-1], flush=True)
        failed += [name] if broken else []
    print(f"\n{len(METHODS) - len(failed)} of {len(METHODS)} methods pass" + "".join(f"\n  not {x}" for x in failed))
    return int(bool(failed))


def _trial(name: str, row: Method, *, full: bool) -> tuple[list[str], bool]:
    """Laws and audits of one method: lines whose last sums up, and whether anything failed."""
    audits = [row.audit()]  # first: numbers out of range are refused here, in one line
    others = []
    for numbers in grid(row.numbers)[1:]:
        with suppress(ValueError):  # half or ten times a number may be none
            others.append((numbers, row.audit(**numbers)))
    report = row.check()
    lines = [f"{name}: {_pairs(row.numbers) or 'no numbers'}", "", "laws"]
    failures = {failure.law: str(failure).partition(": ")[2] for failure in report.failures}
    for law in OBJECTIVE_LAWS:
        if law in row.breaks:
            verdict = f"by design: {row.breaks[law]}"
        elif law not in report.laws:
            verdict = "does not apply"
        else:
            verdict = f"BROKEN: {failures[law]}" if law in failures else "holds"
        lines.append(f"  {law:<16}{verdict}")
    lines += ["", "credit beside differences of the loss, its detached parts held still", *_table(audits[0])]
    for numbers, found in others:
        shown = _table(found) if full else [str(entry) for entry in found.wrong]
        lines += ["", f"at {_pairs(numbers)}: {found.summary.partition(': ')[2]}", *shown]
    audits += [found for _, found in others]
    wrong, total = sum(len(found.wrong) for found in audits), sum(len(found.entries) for found in audits)
    designed = f" (by design not: {', '.join(row.breaks)})" if row.breaks else ""
    held = f"{len(report.laws) - len(failures)} of {len(report.laws)} laws hold{designed}"
    agree = f"{total - wrong} of {total} credits agree with differences, to {max(found.error for found in audits):.0e}"
    lines += ["", f"{name:<16}{'BROKEN' if failures or wrong else 'passes'}: {held}; {agree}"]
    return lines, bool(failures or wrong)


def _table(found: Audit) -> list[str]:
    return str(found).splitlines()[1:]


def _defaults(words: Sequence[str]) -> dict[str, Any]:
    """What goes with the task and hardware named in ``words``, so that --help and the run show real numbers."""
    task, hardware = _said_in(words, "--task", "arithmetic"), _said_in(words, "--hardware", "")
    return {"task": task, "hardware": hardware, **defaults(task, hardware)}


def _said_in(words: Sequence[str], option: str, otherwise: str) -> str:
    """The value of an option before all words are read; the last one counts, as it will then."""
    for i, word in enumerate(words):
        if word == option and i + 1 < len(words):
            otherwise = words[i + 1]
        elif word.startswith(f"{option}="):
            otherwise = word.partition("=")[2]
    return otherwise


def _without(words: Sequence[str]) -> list[str]:
    return [word for word in words if word not in ("--resume", "--overwrite")]


def _percent(share: Mapping[str, Any]) -> str:
    if share["share"] is None:
        return "–"
    return f"{100 * share['share']:.1f} [{100 * share['low']:.1f}, {100 * share['high']:.1f}]"


def _pairs(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={value:g}" for name, value in numbers.items())


def _show_warning(message: Any, category: type[Warning], *rest: Any) -> None:
    if category.__module__.startswith("sspo_teach") or category is UserWarning:
        print(f"sspo-teach: warning: {message}", file=sys.stderr)


def _quiet_transformers() -> None:
    """Its bars and notes would drown the run's own."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    getLogger("huggingface_hub").setLevel(ERROR)
    logging.disable_progress_bar()


if __name__ == "__main__":
    sys.exit(main())
