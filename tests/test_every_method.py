"""Every row of the table trains, and a new row is seen everywhere that a row is read."""

import math
from pathlib import Path

import pytest
import torch

from sspo_teach import METHODS, Method, Verified, catalog, cli, gates
from sspo_teach.catalog import table
from sspo_teach.objectives import units
from sspo_teach.objectives.normalize import response_mean
from sspo_teach.tensors import checked, log_ratio
from sspo_teach.training.trainer import Trainer

TASKS = {
    "bandit": {"task": "bandit"},
    "arithmetic": {"task": "arithmetic", "options": ("digits=1", "operations=+"), "warmup_steps": 40},
}
TINY = {"steps": 2, "prompts": 8, "group_size": 4, "minibatches": 2, "lr_warmup": 0, "eval_problems": 4}


@pytest.fixture(scope="module", autouse=True)
def small_model():
    """A policy of a few thousand parameters stands in for the tiny one."""
    from tiny import policy

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "sspo_teach.training.trainer.tiny_qwen2",
            lambda vocab_size, *, seed, dtype: policy(vocab_size, seed=seed, dtype=dtype),
        )
        yield


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", METHODS)
def test_two_steps(name, task, config):
    """Finite rows, and a gradient; the second update of a batch is off-policy."""
    trainer = Trainer(config(**TINY, **TASKS[task], method=name, seed=1), quiet=True)
    before = torch.cat([weight.detach().flatten().clone() for weight in trainer.weights])
    rows = [trainer.iterate() for _ in range(2)]
    for row in rows:
        assert not {key: value for key, value in row.items() if not math.isfinite(value)}
        assert row["updates"] == 2 * row["step"] or METHODS[name].keep is not None  # which may leave one minibatch
        assert row["ratio_error"] < 1e-5
    assert max(row["grad_norm"] for row in rows) > 1e-4
    after = torch.cat([weight.detach().flatten() for weight in trainer.weights])
    assert after.isfinite().all()
    assert not after.equal(before)


@checked
def toy(logp, logp_old, advantages, mask, *, tau_pos=2.0, tau_neg=2.0, normalize=response_mean):
    """The arctan gate on the response's ratio.

    J = 1/R Σᵢ Aᵢ exp(arctan(τ(sᵢ − 1))/τ)

    Parts: sequence, then log_arctan, response_mean.
    Weight: f s/(1 + τ²(s − 1)²) A.
    Differs: from sspo by pooling before the gate.
    Paper: none; it lives in this test.
    """
    log_s = units.sequence(log_ratio(logp, logp_old, mask), mask)
    return -normalize(gates.log_arctan(log_s, advantages, tau_pos, tau_neg).exp() * advantages, mask)


class TestOneFunctionAndOneRow:
    @pytest.fixture(autouse=True)
    def row(self, monkeypatch):
        monkeypatch.setitem(METHODS, "toy", Method(toy, Verified.NOTES))

    def test_the_table(self):
        (line,) = [line for line in table().splitlines() if line.startswith("| `toy` |")]
        assert "tau_pos=2, tau_neg=2" in line
        assert "third-party notes" in line

    def test_by_name(self):
        assert catalog.method("toy").with_numbers(tau_pos=9.0).numbers == {"tau_pos": 9.0, "tau_neg": 2.0}
        with pytest.raises(ValueError, match="did you mean 'toy'"):
            catalog.method("toi")

    def test_laws_and_audit(self):
        assert METHODS["toy"].check()
        assert METHODS["toy"].audit()

    @pytest.mark.parametrize("words", [["methods"], ["methods", "toy"], ["audit", "toy"]])
    def test_the_commands_that_show_it(self, words, capsys):
        assert cli.main(words) == 0
        out = capsys.readouterr().out
        assert "tau_pos=2, tau_neg=2" in out
        assert ("The arctan gate on the response's ratio." in out) == (words[0] == "methods")

    def test_training(self, capsys, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        words = ["--task", "bandit", "--steps", "2", "--prompts", "4", "--minibatches", "2", "--eval-problems", "8"]
        assert cli.main(["train", "--method", "toy", "--numbers", "tau_pos=9", *words]) == 0
        assert "toy tau_pos=9 tau_neg=2" in capsys.readouterr().out
        assert len((tmp_path / "runs" / "bandit-toy-s0" / "history.csv").read_text().splitlines()) == 3

    def test_the_adapters(self):
        """Nothing stands in the way of a row without state, fields or rules around the loss."""
        limits = pytest.importorskip("sspo_teach.adapters.limits")
        assert limits.obstacles(METHODS["toy"]) == []


def test_the_smoke_table(tmp_path, capsys, monkeypatch):
    """Its script, on two methods of one step."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "benchmarks"))
    import smoke

    table = tmp_path / "new" / "table.csv"
    words = ["smoke.py", str(table), "--task", "bandit", "--steps", "1", "--seeds", "2", "--methods", "grpo,sspo"]
    monkeypatch.setattr("sys.argv", words)
    smoke.main()
    rows = smoke.read(table)
    assert [(row["method"], row["seed"], row["finite"]) for row in rows] == [
        ("grpo", "0", "True"), ("sspo", "0", "True"), ("grpo", "1", "True"), ("sspo", "1", "True"),
    ]  # fmt: skip
    assert all(0 <= float(row["sampled_after"]) <= 100 and float(row["grad_norm"]) > 0 for row in rows)
    smoke.main()
    assert smoke.read(table) == rows  # nothing is run twice
    assert "a smoke table, not a comparison" in capsys.readouterr().out
