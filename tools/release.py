"""Makes what a release publishes: wheel, source distribution, Kernel Hub layout, SBOM, checksums.

    python tools/release.py --dry-run            everything but the conditions of a real release; part of CI
    python tools/release.py                      refuses a changed checkout and a version that the changelog lacks
    python tools/release.py --only wheel         one step

Everything lands in dist/release (--output):

    edge_ops-<version>-cp310-abi3-manylinux_2_28_<machine>.whl    auditwheel confirms the tag, libtorch is left outside
    edge_ops-<version>.tar.gz
    hub/ and edge-ops-hub-<version>.tar.gz                        tools/build_hub.py's layout, and its archive
    edge-ops-<version>.cdx.json                                   CycloneDX
    SHA256SUMS

The version is torch-ext/edge_ops/version.py's. With nvcc and --cuda the wheel and the layout hold CUDA kernels too.
Dates come from the commit, so one commit gives the same bytes again. Needs requirements/build.txt and release.txt.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import tomllib

sys.path.insert(0, str(Path(__file__).parent))

import hub_checks  # noqa: E402
import sbom  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
STEPS = ("sdist", "wheel", "hub", "sbom")


def version() -> str:
    """The one place that states it."""
    text = (ROOT / "torch-ext" / "edge_ops" / "version.py").read_text()
    match = re.search(r'^__version__ = "(\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?)"$', text, re.MULTILINE)
    if match is None:
        raise SystemExit("version.py: no __version__ of the form 1.2.3")
    return match[1]


def changelog_problems(number: str, dry_run: bool) -> list[str]:
    """What a release of this version lacks in CHANGELOG.md; a dry run is content with an [Unreleased] section."""
    text = (ROOT / "CHANGELOG.md").read_text()
    sections = dict(re.findall(r"^## \[([^\]]+)\]([^\n]*\n(?:(?!^## ).*\n?)*)", text, re.MULTILINE))
    section = sections.get(number)
    if section is None and dry_run:
        number, section = "Unreleased", sections.get("Unreleased")
    if section is None:
        return [f"CHANGELOG.md has no section [{number}]"]
    problems = []
    if number != "Unreleased" and not re.match(r" - \d{4}-\d{2}-\d{2}\n", section):
        problems.append(f"CHANGELOG.md: [{number}] has no date")
    if not re.search(r"^- ", section, re.MULTILINE):
        problems.append(f"CHANGELOG.md: [{number}] lists nothing")
    return problems


def checkout_problems() -> list[str]:
    """Why this checkout is no commit."""
    if not (ROOT / ".git").exists():
        return ["not a git checkout"]
    changed = _output("git", "status", "--porcelain")
    return [f"the checkout has changes:\n{changed}"] if changed else []


def epoch() -> str:
    """The date that archives carry: the commit's, or SOURCE_DATE_EPOCH."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return given
    return _output("git", "log", "-1", "--format=%ct") if (ROOT / ".git").exists() else "315532800"


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _run(*command: str) -> None:
    """A step's command; its output is shown where it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")


def make_sdist(output: Path) -> Path:
    _run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(output))
    return output / f"edge_ops-{version()}.tar.gz"


def make_wheel(output: Path, cuda: str, architectures: str | None) -> Path:
    """Builds the wheel, has auditwheel put the manylinux tag on it, and checks the library inside."""
    options = [f"-Cbuild-dir={ROOT / 'build' / 'wheel'}", f"-Ccmake.define.EDGE_OPS_CUDA={cuda}"]
    if architectures:
        options.append(f"-Ccmake.define.CMAKE_CUDA_ARCHITECTURES={architectures}")
    tag = f"manylinux_2_28_{platform.machine()}"
    with tempfile.TemporaryDirectory() as plain:
        _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", plain, *options)
        (built,) = Path(plain).glob("*.whl")
        _run(
            sys.executable, "-m", "auditwheel", "repair", "--plat", tag, "--only-plat",
            "--exclude", "libtorch*.so", "--exclude", "libc10*.so", "--wheel-dir", str(output), str(built),
        )  # fmt: skip
        wheel = output / f"edge_ops-{version()}-cp310-abi3-{tag}.whl"
        if not wheel.is_file():
            raise SystemExit(f"auditwheel made no {wheel.name}")
        with zipfile.ZipFile(wheel) as archive:
            libraries = [name for name in archive.namelist() if re.search(r"\.so(\.|$)", name)]
            if len(libraries) != 1:
                raise SystemExit(f"{wheel.name} should hold one library, and holds {libraries}")
            problems = hub_checks.library_problems(Path(archive.extract(libraries[0], plain)))
    if problems:
        raise SystemExit("\n".join([wheel.name, *problems]))
    return wheel


def make_hub(output: Path, cuda: bool, architectures: str | None, torch_aarch64: Path | None) -> Path:
    """The layout with its checks, and an archive of it."""
    layout = output / "hub"
    shutil.rmtree(layout, ignore_errors=True)
    command = ["cpu", "noarch", *(["cuda"] if cuda else []), "--output", str(layout), "--check"]
    if architectures:
        command += ["--cuda-architectures", architectures]
    if torch_aarch64:
        command += ["cpu-aarch64", "--torch-aarch64", str(torch_aarch64)]
    _run(sys.executable, str(ROOT / "tools" / "build_hub.py"), *command)
    archive = output / f"edge-ops-hub-{version()}.tar.gz"
    archive.write_bytes(pack(layout, archive.name.removesuffix(".tar.gz"), int(epoch())))
    return archive


def pack(folder: Path, prefix: str, date: int) -> bytes:
    """A .tar.gz that depends on names and contents only."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            if not path.is_file():
                continue
            entry = tarfile.TarInfo(f"{prefix}/{path.relative_to(folder)}")
            entry.size, entry.mtime, entry.mode = path.stat().st_size, date, 0o644
            with path.open("rb") as content:
                archive.addfile(entry, content)
    return gzip.compress(packed.getvalue(), mtime=date)


def artifacts(output: Path) -> list[Path]:
    """What is published of the files in `output`."""
    return sorted(p for p in output.iterdir() if p.is_file() and p.name != "SHA256SUMS")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "release", help="default: dist/release")
    parser.add_argument("--dry-run", action="store_true", help="allow a changed checkout and an unreleased version")
    parser.add_argument("--only", choices=STEPS, action="append", help="just this step; may be repeated")
    parser.add_argument("--cuda", action="store_true", help="CUDA kernels too: needs nvcc, takes a while")
    parser.add_argument("--cuda-architectures", help="as CMake names them, e.g. 90-real; default: all")
    parser.add_argument("--torch-aarch64", type=Path, help="also cross-build AArch64, beside this unpacked torch")
    arguments = parser.parse_args()

    number, steps = version(), arguments.only or STEPS
    problems = changelog_problems(number, arguments.dry_run) + ([] if arguments.dry_run else checkout_problems())
    if problems:
        raise SystemExit("\n".join(problems))
    os.environ["SOURCE_DATE_EPOCH"] = epoch()
    output: Path = arguments.output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    for path in artifacts(output) if not arguments.only else []:
        path.unlink()
    if "sdist" in steps:
        print(make_sdist(output))
    if "wheel" in steps:
        print(make_wheel(output, "ON" if arguments.cuda else "OFF", arguments.cuda_architectures))
    if "hub" in steps:
        print(make_hub(output, arguments.cuda, arguments.cuda_architectures, arguments.torch_aarch64))
    if "sbom" in steps:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        bill = output / f"edge-ops-{number}.cdx.json"
        bill.unlink(missing_ok=True)
        bill.write_text(sbom.render(project, number, artifacts(output), arguments.cuda, int(epoch())))
        print(bill)
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in artifacts(output)]
    (output / "SHA256SUMS").write_text("".join(sums))
    print(output / "SHA256SUMS")
    if arguments.dry_run:
        print("a dry run: nothing here is a release")


if __name__ == "__main__":
    main()
