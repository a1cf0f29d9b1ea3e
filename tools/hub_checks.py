"""Examines built variants of the Kernel Hub's layout; `tools/build_hub.py --check` prints what it finds."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
import subprocess
from pathlib import Path
from typing import NamedTuple

import object_scan

MANYLINUX = "manylinux_2_28"
PYTHON_ABI = "3.9"
_FAT_BINARY = struct.pack("<IH", 0xBA55ED50, 1)


class Findings(NamedTuple):
    """One variant: facts for the table, and what is wrong."""

    variant: str
    id: str
    size: int  # of the native library, in bytes; 0 where there is none
    glibc: str  # the newest that it asks for
    needed: list[str]
    shims: int  # functions of LibTorch's stable C interface that it calls
    archs: list[str]  # CUDA code in it
    files: int
    problems: list[str]


def _lines(*command: str) -> list[str]:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def needed(library: Path) -> list[str]:
    """The libraries that it is linked with."""
    return [line.split()[1] for line in _lines("objdump", "-p", str(library)) if line.split()[:1] == ["NEEDED"]]


def undefined(library: Path) -> list[str]:
    """The symbols that it takes from others, with their versions."""
    return [line.split()[-1] for line in _lines("nm", "-D", "--undefined-only", "--with-symbol-versions", str(library))]


def machine(library: Path) -> str:
    """`x86_64` or `aarch64`, from the ELF header."""
    return {62: "x86_64", 183: "aarch64"}[int.from_bytes(library.read_bytes()[18:20], "little")]


def cuda_archs(library: Path) -> list[str]:
    """The CUDA code in a library: machine code as 9.0, PTX, which newer devices compile, as 12.0+PTX.

    Walks nvcc's "fat binaries": a header of 16 bytes (magic, version, its size, size of what follows), then entries,
    each with its kind (1 PTX, 2 machine code), header size, size, and architecture.
    """
    data, found = library.read_bytes(), set()
    start = data.find(_FAT_BINARY)
    while start >= 0:
        _, _, header, size = struct.unpack_from("<IHHQ", data, start)
        entry, end = start + header, start + header + size
        while entry < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", data, entry)
            (number,) = struct.unpack_from("<I", data, entry + 28)
            found.add(f"{number // 10}.{number % 10}" + ("+PTX" if kind == 1 else ""))
            entry += header + size
        start = data.find(_FAT_BINARY, end)
    with_ptx = {arch.removesuffix("+PTX") for arch in found if arch.endswith("+PTX")}
    return sorted(found - with_ptx)


def library_problems(library: Path) -> list[str]:
    """What keeps a native library from running where it should."""
    import kernel_abi_check

    parsed = kernel_abi_check.ObjectFile(str(library))
    problems = [f"{MANYLINUX}: {violation}" for violation in parsed.check_manylinux(MANYLINUX)]
    problems += [f"abi3 {PYTHON_ABI}: {violation}" for violation in parsed.check_python_abi(PYTHON_ABI)]
    problems += object_scan.scan_linkage(library)
    if machine(library) == "x86_64":
        problems += object_scan.scan_functions(library)
    # An unversioned reference to the C++ runtime would hide its version from the check above.
    problems += [
        f"{name} is asked for without a version" for name in undefined(library) if re.match(r"^_ZN?K?S[^@]*$", name)
    ]
    return problems


def digest_problems(folder: Path, recorded: dict[str, str]) -> list[str]:
    """Differences between the files of a variant and the digests in its metadata."""
    problems = [f"{name} is recorded and missing" for name in recorded if not (folder / name).is_file()]
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if not path.is_file() or name == "metadata.json" or "__pycache__" in path.parts:
            continue
        digest = base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()
        if recorded.get(name) != digest:
            problems.append(f"{name} is not what its digest says")
    return problems


def examine(folder: Path) -> Findings:
    """All checks on build/<variant>/."""
    metadata = json.loads((folder / "metadata.json").read_text())
    problems = digest_problems(folder, metadata["digest"]["files"])
    libraries = sorted(folder.glob("*.so"))
    expected = [f"{metadata['id']}.abi3.so"] if folder.name.startswith("torch-stable-abi") else []
    if [path.name for path in libraries] != expected:
        problems.append(f"holds {[path.name for path in libraries]}, and should hold {expected}")
    size, glibc, dependencies, shims, archs = 0, "", [], 0, []
    for library in libraries:
        names = undefined(library)
        size = library.stat().st_size
        glibc = max((name.split("@GLIBC_")[1] for name in names if "@GLIBC_" in name), key=_version)
        dependencies = needed(library)
        shims = sum(name.startswith(("aoti_torch_", "torch_")) for name in names)
        problems += library_problems(library)
        if metadata["backend"]["type"] == "cuda":
            archs = cuda_archs(library)
            if archs != sorted(metadata["backend"]["archs"]):
                problems.append(f"holds code for {archs}, and metadata.json says {metadata['backend']['archs']}")
    files = sum(path.is_file() for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return Findings(folder.name, metadata["id"], size, glibc, dependencies, shims, archs, files, problems)


def _version(text: str) -> list[int]:
    return [int(part) for part in text.split(".")]


def report(output: Path) -> int:
    """Prints the table of every variant below output/build; 0 where nothing is wrong."""
    folders = sorted(path for path in (output / "build").glob("*") if path.is_dir())
    if not folders:
        print(f"nothing is built in {output / 'build'}")
        return 1
    found = [examine(folder) for folder in folders]
    print(f"{'variant':42}{'library':>11}{'files':>7}  {'glibc':7}{'shims':>5}  checks")
    for one in found:
        library = f"{one.size / 1024:,.0f} KiB" if one.size else "none"
        shims = str(one.shims) if one.size else ""
        state = f"{len(one.problems)} problems" if one.problems else "clean"
        print(f"{one.variant:42}{library:>11}{one.files:>7}  {one.glibc:7}{shims:>5}  {state}")
        print(f"  id {one.id}" + (f"; needs {', '.join(one.needed)}" if one.needed else ""))
        if one.archs:
            print(f"  CUDA code for {', '.join(one.archs)}")
        for problem in one.problems:
            print(f"  PROBLEM: {problem}")
    print(f"checked: {MANYLINUX}, abi3 of Python {PYTHON_ABI}, torch's stable ABI, dependencies, code, digests")
    return int(any(one.problems for one in found))
