"""The row kernels alone, without PyTorch: every level and processor gives the same digests.

The AArch64 kernels run in a static program under an emulator, so that their bits are known on any machine.
"""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FLAGS = ["-std=c++17", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
PROGRAM = "tests/native/row_digests.cpp"


def levels(*command: str) -> dict[str, list[str]]:
    """Digest lines by level."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        level, rest = line.split(" ", 1)
        found.setdefault(level, []).append(rest)
    return found


def built(compiler: str, folder: Path, sources: tuple[str, ...], *flags: str) -> str:
    program = folder / "row_digests"
    subprocess.run([compiler, *FLAGS, *flags, *sources, PROGRAM, "-o", str(program)], cwd=ROOT, check=True, timeout=300)
    return str(program)


@pytest.fixture(scope="module")
def x86(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("an x86-64 machine runs this")
    sources = tuple(f"csrc/cpu/isa_{level}.cpp" for level in ("baseline", "avx2", "avx512"))
    return levels(built("g++", tmp_path_factory.mktemp("x86"), sources))


def test_every_level_of_this_machine(x86: dict[str, list[str]]) -> None:
    assert len(x86["baseline"]) > 1000
    for level, lines in x86.items():
        assert lines == x86["baseline"], f"{level} and baseline part"


def test_aarch64(x86: dict[str, list[str]], tmp_path: Path) -> None:
    compiler, emulator = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
    if shutil.which(compiler) is None or shutil.which(emulator) is None:
        pytest.skip(f"needs {compiler} and {emulator}")
    program = built(compiler, tmp_path, ("csrc/cpu/isa_neon.cpp",), "-static")
    assert levels(emulator, program) == {"neon": x86["baseline"]}


def test_a_changed_kernel_changes_a_digest(x86: dict[str, list[str]], tmp_path: Path) -> None:
    """One contracted multiply-add, by the flag that the build must never lose."""
    source = (ROOT / "csrc/cpu/isa_avx2.cpp").read_text().replace('"table.h"', f'"{ROOT}/csrc/cpu/table.h"')
    source = source.replace('"../numerics', f'"{ROOT}/csrc/numerics')
    for name in ("storage.h", "vec_avx2.h", "four_x86.h", "rows.inl"):
        source = source.replace(f'"{name}"', f'"{ROOT}/csrc/cpu/{name}"')
    (tmp_path / "isa.cpp").write_text(source)
    others = ("csrc/cpu/isa_baseline.cpp", "csrc/cpu/isa_avx512.cpp")
    objects = []
    for i, file in enumerate((str(tmp_path / "isa.cpp"), *others)):
        flags = [*FLAGS, "-ffp-contract=fast"] if i == 0 else FLAGS
        objects.append(str(tmp_path / f"{i}.o"))
        subprocess.run(["g++", *flags, "-c", file, "-o", objects[-1]], cwd=ROOT, check=True, timeout=300)
    found = levels(built("g++", tmp_path, tuple(objects)))
    if "avx2" not in found:
        pytest.skip("this machine has no AVX2")
    assert found["baseline"] == x86["baseline"]
    assert found["avx2"] != x86["baseline"]
