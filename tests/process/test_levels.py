"""The exact tests on every ISA level: those below the host's highest, and on emulated older processors."""

import platform
import re
import shutil

import pytest

from edge_ops import native
from support.processes import TESTS, python
from support.values import DEVICE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native.extension is None or DEVICE != "cpu", reason="levels are the native CPU code's"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64's levels"),
]

QEMU = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64")
LOWER = [level for level in native.build_info()["isa_offered"] if level != native.build_info()["isa_chosen"]]


def passed(level, selection, profile, changes=None, prefix=(), timeout=900):
    """How many tests passed in another pytest, none of which may fail or find another level."""
    changes = {**(changes or {}), "EDGE_OPS_TEST_EXPECT_ISA": level, "EDGE_OPS_TEST_PROFILE": profile}
    arguments = ["-m", "pytest", "-q", "-m", "core", "-p", "no:cacheprovider", *selection]
    done = python(arguments, changes, prefix=prefix, timeout=timeout)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
    return int(re.search(r"(\d+) passed", done.stdout)[1])


@pytest.mark.parametrize("level", LOWER)
def test_a_lower_level(level):
    # the reference does not depend on the level, and the dispatcher's kernels are the direct route's
    selection = [str(TESTS / "exact"), "-k", "public or level or any_call and dispatcher"]
    assert passed(level, selection, "ci", {"EDGE_OPS_CPU_ISA": level}) > 400


# Nehalem has SSE4.2 and nothing of AVX: an instruction above the baseline anywhere in an executed path ends the
# process. Haswell has AVX2, FMA and F16C and nothing of AVX-512.
@pytest.mark.skipif(QEMU is None, reason="needs qemu-user")
@pytest.mark.parametrize(("processor", "level"), (("Nehalem", "baseline"), ("Haswell", "avx2")))
def test_an_emulated_processor(processor, level):
    selection = [str(TESTS / "exact"), "-k", "level or any_call and not reference or public and sizes"]
    assert passed(level, selection, "emulated", prefix=[QEMU, "-cpu", processor], timeout=1800) > 50
