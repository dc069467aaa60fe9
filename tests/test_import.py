"""``import sspo_teach`` is light: it brings no heavy library and little time beyond torch."""

import subprocess
import sys


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_nothing_heavy_comes_along():
    code = "import sys, torch; before = set(sys.modules); import sspo_teach; print(*(set(sys.modules) - before))"
    brought = {name.split(".")[0] for name in run(code).split()}
    assert "sspo_teach" in brought
    assert brought <= {"sspo_teach", *sys.stdlib_module_names}


def test_it_adds_at_most_a_second_to_torch():
    """One of three tries, since the machine may be busy."""
    code = "import torch, time; start = time.perf_counter(); import sspo_teach; print(time.perf_counter() - start)"
    assert any(float(run(code)) < 1.0 for _ in range(3))


def test_public_names():
    import sspo_teach

    wanted = {"METHODS", "method", "credit", "Rollout", "Verified", "check_gate", "check_unit", "check_objective"}
    assert wanted <= set(sspo_teach.__all__)
    assert all(hasattr(sspo_teach, name) for name in sspo_teach.__all__)
