"""The installed library and the objects it is made of keep the rules of the house."""

import importlib.util
import json
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edge_ops import native
from support.processes import ROOT
from support.values import DEVICE

LIBRARY = Path(native.extension.__file__) if native.extension is not None else None
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="this build has no native code")
CMAKE = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
with_compiler = pytest.mark.skipif(not shutil.which("g++") or CMAKE is None, reason="needs g++ and cmake")

_spec = importlib.util.spec_from_file_location("object_scan", ROOT / "tools" / "object_scan.py")
object_scan = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(object_scan)


def test_one_shared_object_named_after_its_content():
    assert [p.name for p in LIBRARY.parent.glob("*.so")] == [f"{native.ops.name}.abi3.so"]
    assert native.ops.name.startswith("_edge_ops_")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="scans x86-64 code")
def test_the_library_keeps_the_rules():
    found = list(object_scan.functions(LIBRARY))
    for isa, level in (("baseline", None), ("avx2", "VEX"), ("avx512", "EVEX")):
        of_isa = [f for f in found if f.isa == isa]
        assert of_isa, f"no function of {isa}: the scan looked at nothing"
        assert level is None or any(level in f.levels for f in of_isa)
    assert object_scan.scan(LIBRARY) == []


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """The build's own compiler commands, by source file."""
    build = tmp_path_factory.mktemp("cmake")
    done = subprocess.run(
        [CMAKE, "-S", str(ROOT), "-B", str(build), "-G", "Unix Makefiles", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
         f"-DPython_EXECUTABLE={sys.executable}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    entries = json.loads((build / "compile_commands.json").read_text())
    return {Path(entry["file"]).name: (shlex.split(entry["command"]), entry["directory"]) for entry in entries}


@with_compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="scans x86-64 code")
@pytest.mark.parametrize("isa", ("baseline", "avx2", "avx512"))
@pytest.mark.parametrize("optimization", ("-O3", "-O0"))
def test_the_isa_objects_keep_the_rules(commands, tmp_path, isa, optimization):
    # without optimization nothing is inlined: a function that could leak is there to be seen
    command, directory = commands[f"isa_{isa}.cpp"]
    path = tmp_path / f"isa_{isa}.o"
    command = [*command[: command.index("-o")], "-o", str(path), *command[command.index("-o") + 2 :], optimization]
    # -Werror is for the release flags; without optimization gcc's own intrinsics headers warn
    subprocess.run([*command, "-Wno-error"], cwd=directory, check=True, capture_output=True)
    assert object_scan.scan(path) == []
    assert any(f.isa == isa for f in object_scan.functions(path))


@with_compiler
def test_contraction_is_off_everywhere(commands):
    for source, (command, _) in commands.items():
        if source.endswith(".cpp"):
            assert "-ffp-contract=off" in command, source
            assert not any(
                flag.startswith(("-march", "-mavx", "-mfma", "-ffast-math", "-Ofast")) for flag in command
            ), source


def test_abi():
    kernel_abi_check = pytest.importorskip("kernel_abi_check")
    library = kernel_abi_check.ObjectFile(str(LIBRARY))
    assert list(library.check_manylinux("manylinux_2_28")) == []
    assert list(library.check_python_abi("3.10")) == []


def test_python_sees_a_whole_build():
    info = native.build_info()
    assert info["direct"] is True and "cpu" in info["backends"]
    assert DEVICE == "cpu" or DEVICE.split(":")[0] in info["backends"]
    assert info["isa_chosen"] in info["isa_offered"] and set(info["isa_offered"]) <= set(info["isa_compiled"])
