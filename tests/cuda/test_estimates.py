"""The shortcuts that start from a GPU's estimates are right for every operand (see estimates.cpp)."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = tmp_path_factory.mktemp("estimates") / "estimates"
    fused = ["-mfma"] if platform.machine() == "x86_64" else []
    source = str(HERE / "estimates.cpp")
    subprocess.run([compiler, "-std=c++17", "-O2", "-ffp-contract=off", *fused, "-o", str(program), source], check=True)
    try:
        done = subprocess.run([str(program)], capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as failure:  # a processor without fused multiply-add
        pytest.skip(f"the program ended with {failure.returncode}")
    return [line.split() for line in done.stdout.splitlines()]


def test_roots_and_reciprocals(results):
    """Correctly rounded whatever the estimate, as long as it is within 4 ulp."""
    rows = [row for row in results if row[0] == "root"]
    assert [int(row[1]) for row in rows] == list(range(-4, 5))
    assert all(row[2:] == ["0", "0"] for row in rows), rows


def test_quotients(results):
    """Right for each of the 65536 gates when the estimate is the correctly rounded reciprocal. An ulp beside it, one or
    two gates below 2^-21 fail (divisors next to 2): a GPU's own estimates are tried gate by gate, in test_plans.py."""
    rows = [row for row in results if row[0] in ("quick", "wide")]
    assert len(rows) == 24
    for _, _, _, k, wrong in rows:
        assert int(wrong) == 0 if k == "0" else int(wrong) <= 2, rows
