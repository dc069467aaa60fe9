"""The script for a machine with a GPU, rehearsed: what was never run would fail there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent / "gpu" / "run_gpu_checks.sh"


@pytest.mark.skipif(os.name != "posix", reason="a shell script")
def test_the_rehearsal_fills_every_entry(tmp_path):
    out = tmp_path / "found.json"
    command = ["bash", str(SCRIPT), "--rehearse", "--out", str(out)]
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    checks = found["checks"]
    assert len(checks) == 7
    assert all(result["ok"] for result in checks.values())
    assert "7 of 7 checks hold" in done.stdout
    assert checks["chunked = full, float32"]["weight"] < 1e-6
    ratios = checks["ratio at zero updates"]
    names = ("float32 over bfloat16 log-softmax", "shared/repeated, float32 log-softmax")
    coarse, fine = (ratios[name]["largest |log r|"] for name in names)
    assert coarse > 10 * fine  # a log-probability of −8.5 is rounded to thirty-seconds
    assert checks["generation"]["tokens/s"] > 0
    assert found["environment"]["rehearsal"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what to do without a GPU")
def test_without_a_gpu_it_says_so(tmp_path):
    command = ["bash", str(SCRIPT), "--out", str(tmp_path / "found.json")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHON": sys.executable})
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "--rehearse" in done.stderr


@pytest.mark.gpu
def test_all_checks_hold(tmp_path):
    done = subprocess.run(["bash", str(SCRIPT), "--out", str(tmp_path / "found.json")], timeout=500)
    assert done.returncode == 0
