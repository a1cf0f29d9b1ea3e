"""The CPU backend under ThreadSanitizer, without PyTorch: callers, pool and tuning at the same time."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
# The level that runs is instrumented; the others are linked and not used.
INSTRUMENTED = ("tests/native/threads.cpp", "csrc/cpu/dispatch.cpp", "csrc/ops/ops.cpp", "csrc/ops/tensor.cpp",
                "csrc/cpu/isa_baseline.cpp")  # fmt: skip
OTHERS = ("csrc/cpu/isa_avx2.cpp", "csrc/cpu/isa_avx512.cpp")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="an x86-64 machine runs this"),
]


def run(command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("threads")
    flags = ["-std=c++17", "-ffp-contract=off", "-g", "-c", "-o"]
    objects = []
    for sources, options in ((INSTRUMENTED, ("-O1", "-fsanitize=thread")), (OTHERS, ("-O0",))):
        for source in sources:
            objects.append(str(folder / f"{Path(source).stem}.o"))
            done = run(["g++", *options, *flags, objects[-1], source])
            assert done.returncode == 0, done.stderr
    built = str(folder / "threads")
    done = run(["g++", "-fsanitize=thread", *objects, "-pthread", "-o", built])
    if done.returncode != 0:
        pytest.skip(f"the compiler has no ThreadSanitizer: {done.stderr[-300:]}")
    # address randomization of newer kernels is more than this sanitizer takes
    return [*([shutil.which("setarch"), platform.machine(), "-R"] if shutil.which("setarch") else []), built]


def test_no_race(program):
    done = run(program)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr[-4000:]
    digests = done.stdout.split()
    assert len(digests) == 6 and len(set(digests)) == 1, digests


def test_a_race_is_seen(program):
    done = run([*program, "race"])
    assert "ThreadSanitizer: data race" in done.stderr and done.returncode != 0
