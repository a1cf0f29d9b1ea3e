"""Builds the Kernel Hub's layout: build/<variant>/ for what `kernels.get_kernel` loads, the card and the benchmarks.

    python tools/build_hub.py                          CPU of this machine, and pure PyTorch, into dist/hub
    python tools/build_hub.py cpu cuda cpu-aarch64 noarch
    python tools/build_hub.py --check                  examine what lies there: ABI, dependencies, code, digests, sizes
    python tools/build_hub.py cpu --check-reproducible build twice, in two places, and compare byte for byte

Targets:

- cpu: torch-stable-abi210-cpu-<this machine>-linux;
- cpu-aarch64: the same for AArch64, cross-built beside an unpacked AArch64 wheel of torch (--torch-aarch64);
- cuda: torch-stable-abi210-cu<nvcc's version>-<this machine>-linux, CPU kernels included;
- noarch: torch-<backend> for every backend, plain PyTorch, so that every machine loads something.

The Hub's own builds come from kernel-builder, which needs Nix; build.toml and flake.nix are for it. These are the same
package, sources and flags without it, for local use and for the tests. A variant's id, which is the name of its module
and of its operators, follows its content. Needs the packages of requirements/build.txt and requirements/release.txt.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import tomllib

sys.path.insert(0, str(Path(__file__).parent))

import hub_card  # noqa: E402
import hub_checks  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATION: dict[str, Any] = tomllib.loads((ROOT / "build.toml").read_text())
GENERAL: dict[str, Any] = CONFIGURATION["general"]
PACKAGE = ROOT / "torch-ext" / GENERAL["name"].replace("-", "_")
NOARCH_BACKENDS = ("cpu", "cuda", "metal", "rocm", "xpu")
TARGETS = ("cpu", "cpu-aarch64", "cuda", "noarch")
BUILDER = "tools/build_hub.py"
# One place for the sources of every build: nvcc puts a hash of their folder into its names.
STAGE = Path("/tmp/edge-ops-hub-sources")


class Variant(NamedTuple):
    """One folder of build/."""

    folder: str
    backend: str
    id: str  # name of the module and of the operators' namespace
    archs: list[str] | None = None  # CUDA compute capabilities
    options: tuple[str, ...] = ()  # for CMake; none where there is nothing to compile


def package_files() -> list[Path]:
    """What build.toml ships of the package, without what a build in place left there."""
    kinds = tuple(f".{kind}" for kind in CONFIGURATION["torch"]["pyext"])
    found = []
    for path in sorted(PACKAGE.rglob("*")):
        generated = path.name == "_ops.py" or path.name.startswith("_edge_ops_") or "__pycache__" in path.parts
        if path.is_file() and path.name.endswith(kinds) and not generated:
            found.append(path)
    return found


def native_files() -> list[Path]:
    """What the native library is built from, as build.toml lists it, and how."""
    listed = list(CONFIGURATION["torch"]["src"])
    for kernel in CONFIGURATION["kernel"].values():
        listed += kernel["src"]
    own = [
        "CMakeLists.txt",
        "csrc/exports.map",
        "torch-ext/old_glibc.cpp",
        str((PACKAGE / "_native.pyi").relative_to(ROOT)),
    ]
    return [ROOT / name for name in (*sorted(listed), *own)]


def identity(backend: str, *facts: str, native: bool) -> str:
    """`_edge_ops_<backend>_<hash>`: of the files that go into a variant, and of what turns them into one."""
    content = hashlib.sha256()
    for path in [*package_files(), *(native_files() if native else [])]:
        content.update(f"{path.relative_to(ROOT)}\0".encode())
        content.update(hashlib.sha256(path.read_bytes()).digest())
    for fact in (str(GENERAL["version"]), *facts):
        content.update(f"{fact}\0".encode())
    return f"_{PACKAGE.name}_{backend}_{content.hexdigest()[:10]}"


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _compiler(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise SystemExit(f"{name} is not installed")
    return _output(path, "--version")


def _abi(backend: str) -> str:
    return CONFIGURATION["torch"]["stable-abi"][backend].replace(".", "")


def capabilities(architectures: str) -> list[str]:
    """CMake's names of CUDA architectures in the Hub's words: 80-real -> 8.0, 120 -> 12.0+PTX."""
    found = []
    for name in architectures.split(";"):
        number, _, kind = name.partition("-")
        capability = f"{number[:-1]}.{number[-1]}"
        found.append(capability if kind == "real" else f"{capability}+PTX")
    return sorted(found)


def _cmake_architectures() -> str:
    """build.toml's capabilities in CMake's words."""
    names = []
    for capability in CONFIGURATION["kernel"]["edge_ops_cuda"]["cuda-capabilities"]:
        number = capability.removesuffix("+PTX").replace(".", "")
        names.append(number if capability.endswith("+PTX") else f"{number}-real")
    return ";".join(names)


def variants(target: str, torch_aarch64: Path | None, architectures: str | None) -> list[Variant]:
    """What a target of the command line stands for, on this machine."""
    machine = platform.machine()
    if target == "noarch":
        return [Variant(f"torch-{backend}", backend, identity(backend, native=False)) for backend in NOARCH_BACKENDS]
    if target == "cpu":
        folder = f"torch-stable-abi{_abi('cpu')}-cpu-{machine}-linux"
        name = identity("cpu", folder, _compiler(os.environ.get("CXX", "c++")), native=True)
        return [Variant(folder, "cpu", name, options=("-DEDGE_OPS_CUDA=OFF",))]
    if target == "cpu-aarch64":
        if torch_aarch64 is None or not (torch_aarch64 / "include").is_dir():
            raise SystemExit("--torch-aarch64: must name the torch folder of an unpacked AArch64 wheel of torch")
        folder = f"torch-stable-abi{_abi('cpu')}-cpu-aarch64-linux"
        name = identity("cpu", folder, _compiler("aarch64-linux-gnu-g++"), native=True)
        toolchain = f"-DCMAKE_TOOLCHAIN_FILE={ROOT / 'tools' / 'aarch64-toolchain.cmake'}"
        return [
            Variant(folder, "cpu", name, options=("-DEDGE_OPS_CUDA=OFF", toolchain, f"-DTORCH_DIR={torch_aarch64}"))
        ]
    compiler = _compiler("nvcc")
    release = compiler.split("release ")[1].split(",")[0].replace(".", "")
    architectures = architectures or _cmake_architectures()
    folder = f"torch-stable-abi{_abi('cuda')}-cu{release}-{machine}-linux"
    name = identity("cuda", folder, compiler, _compiler(os.environ.get("CXX", "c++")), architectures, native=True)
    options = ("-DEDGE_OPS_CUDA=ON", f"-DCMAKE_CUDA_ARCHITECTURES={architectures}")
    return [Variant(folder, "cuda", name, capabilities(architectures), options)]


def stage_sources() -> Path:
    """Copies what the native library is built from to STAGE, and nothing else: the list in build.toml is complete."""
    wanted = {STAGE / path.relative_to(ROOT): path for path in native_files()}
    for path in STAGE.rglob("*"):
        if path.is_file() and path not in wanted and path.name != ".lock":
            path.unlink()
    for path, source in wanted.items():
        if not path.is_file() or path.read_bytes() != source.read_bytes():  # what is equal is not compiled again
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, path)
    return STAGE


def compile_variant(variant: Variant, build: Path, target: Path, jobs: int) -> None:
    """Builds the native library of a variant in `build`, where objects stay for the next time, and installs it."""
    command = ["cmake", "-S", str(stage_sources()), "-B", str(build), "-G", "Ninja"]
    command += [f"-DPython_EXECUTABLE={sys.executable}", f"-DEDGE_OPS_NAMESPACE={variant.id}", *variant.options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{variant.folder}: CMake failed\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    subprocess.run(["cmake", "--build", str(build), "-j", str(jobs)], check=True, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory() as prefix:
        subprocess.run(["cmake", "--install", str(build), "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
        for path in sorted((Path(prefix) / PACKAGE.name).iterdir()):
            shutil.copyfile(path, target / path.name)


def provenance() -> dict[str, Any]:
    """The commit that is built, and whether the files are its own."""
    record: dict[str, Any] = {"kernel-builder": {"version": BUILDER}}
    if (ROOT / ".git").exists():
        dirty = _output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no") != ""
        record["kernel"] = {"commit": _output("git", "-C", str(ROOT), "rev-parse", "HEAD"), "dirty": dirty}
    return record


def metadata(variant: Variant, folder: Path) -> dict[str, Any]:
    """What metadata.json says, in the order of kernel-builder's own; its digest covers every other file."""
    backend: dict[str, Any] = {"type": variant.backend}
    if variant.archs is not None:
        backend["archs"] = variant.archs
    files = {
        str(path.relative_to(folder)): base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "metadata.json"
    }
    return {
        "name": GENERAL["name"],
        "id": variant.id,
        "version": GENERAL["version"],
        "license": GENERAL["license"],
        "python-depends": [],
        "kernel-depends": [],
        "backend": backend,
        "digest": {"algorithm": "sha256", "files": files},
        "provenance": provenance(),
    }


def build_variant(variant: Variant, output: Path, build: Path, jobs: int) -> Path:
    """Writes output/build/<variant>/ anew."""
    folder = output / "build" / variant.folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in package_files():
        target = folder / path.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    if variant.options:
        compile_variant(variant, build / variant.folder, folder, jobs)
    (folder / "metadata.json").write_text(json.dumps(metadata(variant, folder), indent=2) + "\n")
    return folder


def build_all(wanted: list[Variant], output: Path, build: Path, jobs: int) -> list[Path]:
    """The variants, and beside them what the Hub's page shows and `kernels benchmark` runs."""
    STAGE.mkdir(exist_ok=True)
    with (STAGE / ".lock").open("w") as lock:  # a second build waits
        fcntl.flock(lock, fcntl.LOCK_EX)
        folders = [build_variant(variant, output, build, jobs) for variant in wanted]
    benchmarks = output / "benchmarks"
    shutil.rmtree(benchmarks, ignore_errors=True)
    benchmarks.mkdir()
    for path in sorted((ROOT / "benchmarks").glob("benchmark*.py")):
        shutil.copyfile(path, benchmarks / path.name)
    (output / "README.md").write_text(hub_card.render(ROOT, CONFIGURATION))
    return folders


def check_reproducible(wanted: list[Variant], targets: list[str], output: Path, options: list[str]) -> None:
    """Builds the commit once more, from a clone in another place, and compares every file."""
    if provenance().get("kernel", {}).get("dirty", True):
        raise SystemExit("--check-reproducible: needs a clone of the repository without changes")
    with tempfile.TemporaryDirectory(prefix="edge-ops-again-") as place:
        clone, again = Path(place) / "clone", Path(place) / "hub"
        subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(clone)], check=True)
        command = [sys.executable, str(clone / BUILDER), *targets, "--output", str(again), *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for variant in wanted:
            first, second = (base / "build" / variant.folder for base in (output, again))
            names = {str(p.relative_to(base)) for base in (first, second) for p in base.rglob("*") if p.is_file()}
            different = [
                name for name in sorted(names)
                if not ((first / name).is_file() and (second / name).is_file())
                or (first / name).read_bytes() != (second / name).read_bytes()
            ]  # fmt: skip
            if different:
                raise SystemExit(f"{variant.folder}: not reproducible: {', '.join(different)}")
            print(f"{variant.folder}: {len(names)} files equal byte for byte")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", choices=(*TARGETS, []), help="what to build; default: cpu noarch")
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "hub", help="default: dist/hub")
    parser.add_argument("--objects", type=Path, default=ROOT / "build" / "hub", help="build folders, kept between runs")
    parser.add_argument("--torch-aarch64", type=Path, help="folder `torch` of an unpacked AArch64 wheel")
    parser.add_argument("--cuda-architectures", help="as CMake names them, e.g. 90-real; default: build.toml's")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--check", action="store_true", help="examine the variants; alone, those that lie there")
    parser.add_argument("--check-reproducible", action="store_true", help="build a second time and compare")
    arguments = parser.parse_args()
    if arguments.targets or not arguments.check:
        targets = arguments.targets or ["cpu", "noarch"]
        torch_aarch64 = arguments.torch_aarch64 and arguments.torch_aarch64.absolute()
        wanted = [v for t in targets for v in variants(t, torch_aarch64, arguments.cuda_architectures)]
        arguments.output.mkdir(parents=True, exist_ok=True)
        for folder in build_all(wanted, arguments.output, arguments.objects, arguments.jobs):
            print(folder)
        if arguments.check_reproducible:
            options = ["--jobs", str(arguments.jobs)]
            if torch_aarch64:
                options += ["--torch-aarch64", str(torch_aarch64)]
            if arguments.cuda_architectures:
                options += ["--cuda-architectures", arguments.cuda_architectures]
            check_reproducible(wanted, targets, arguments.output, options)
    if arguments.check:
        raise SystemExit(hub_checks.report(arguments.output))


if __name__ == "__main__":
    main()
