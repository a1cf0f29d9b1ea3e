"""What a dry run of the release makes, and what a real one would refuse."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import edge_ops
from edge_ops import native
from support.processes import ROOT

build_hub = pytest.importorskip("build_hub", reason="needs Python 3.11's tomllib")
tool = pytest.importorskip("release")
VERSION = tool.version()


@pytest.fixture(scope="module")
def wheel(release):
    (found,) = release.glob("*.whl")
    return found


def test_there_is_one_version():
    assert VERSION == edge_ops.__version__
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()


def test_the_artifacts(release):
    tag = f"cp310-abi3-manylinux_2_28_{platform.machine()}"
    assert {path.name for path in tool.artifacts(release)} == {
        f"edge_ops-{VERSION}-{tag}.whl", f"edge_ops-{VERSION}.tar.gz", f"edge-ops-hub-{VERSION}.tar.gz",
        f"edge-ops-{VERSION}.cdx.json",
    }  # fmt: skip
    sums = dict(reversed(line.split("  ")) for line in (release / "SHA256SUMS").read_text().splitlines())
    assert sums == {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in tool.artifacts(release)}


def test_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        (info,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(info).decode()
        (library,) = (name for name in names if name.endswith(".so"))
        shipped = {name.removeprefix("edge_ops/") for name in names if name.startswith("edge_ops/")}
    identity = re.fullmatch(r"edge_ops/(_edge_ops_wheel_[0-9a-f]{10})\.abi3\.so", library)[1]
    package = {str(path.relative_to(build_hub.PACKAGE)) for path in build_hub.package_files()}
    assert shipped == package | {"_ops.py", f"{identity}.abi3.so", f"{identity}.pyi"}
    assert {"py.typed", "_native.pyi"} <= shipped
    assert f"\nVersion: {VERSION}\n" in metadata and "\nRequires-Dist: torch>=2.10\n" in metadata
    for extra in ("models", "bench"):
        assert f"\nProvides-Extra: {extra}\n" in metadata
    assert "Requires-Dist: kernels" not in metadata, "each transformers supports its own kernels"
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_source_distribution_builds_everything(release):
    with tarfile.open(release / f"edge_ops-{VERSION}.tar.gz") as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    needed = [*build_hub.native_files(), *build_hub.package_files(), ROOT / "pyproject.toml", ROOT / "build.toml"]
    assert {str(path.relative_to(ROOT)) for path in needed} <= names
    assert not [name for name in names if name.endswith((".so", "_ops.py")) or "_edge_ops_wheel_" in name]


def test_the_archive_holds_the_layout(release, layout):
    with tarfile.open(release / f"edge-ops-hub-{VERSION}.tar.gz") as archive:
        members = {m.name.split("/", 1)[1]: archive.extractfile(m).read() for m in archive.getmembers()}
    on_disk = {
        str(path.relative_to(layout)): path.read_bytes()
        for path in layout.rglob("*") if path.is_file() and "__pycache__" not in path.parts
    }  # fmt: skip
    assert members == on_disk


def test_the_archive_depends_on_contents_only(tmp_path):
    for name, order in (("a", ("x.py", "y.py")), ("b", ("y.py", "x.py"))):
        (tmp_path / name).mkdir()
        for date, file in enumerate(order):
            (tmp_path / name / file).write_text(file)
            os.utime(tmp_path / name / file, (date, date))
    assert tool.pack(tmp_path / "a", "p", 7) == tool.pack(tmp_path / "b", "p", 7)


def test_the_bill_of_materials(release):
    bill = json.loads((release / f"edge-ops-{VERSION}.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX" and bill["metadata"]["component"]["version"] == VERSION
    components = {component["name"]: component for component in bill["components"]}
    assert components["torch"]["scope"] == "required" and components["transformers"]["scope"] == "optional"
    for path in tool.artifacts(release):
        if path.suffix != ".json":
            assert components[path.name]["hashes"] == [
                {"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}
            ]


def test_the_bill_is_valid(release):
    schema = pytest.importorskip("cyclonedx.schema")
    validation = pytest.importorskip("cyclonedx.validation.json")
    exceptions = pytest.importorskip("cyclonedx.exception")
    text = (release / f"edge-ops-{VERSION}.cdx.json").read_text()
    validator = validation.JsonStrictValidator(schema.SchemaVersion.V1_6)
    try:
        assert validator.validate_str(text) is None
        assert validator.validate_str(text.replace('"CycloneDX"', '"SomethingElse"')) is not None
    except exceptions.MissingOptionalDependencyException as missing:
        pytest.skip(str(missing))


# --- what is refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "dry_run", "problems"),
    [
        ("## [1.2.3] - 2026-01-31\n\n### Added\n\n- A thing.\n", False, []),
        ("## [1.2.3]\n\n- A thing.\n", False, ["CHANGELOG.md: [1.2.3] has no date"]),
        ("## [1.2.3] - 2026-01-31\n\n## [1.2.2] - 2026-01-01\n- B.\n", False, ["CHANGELOG.md: [1.2.3] lists nothing"]),
        ("## [Unreleased]\n\n- A thing.\n", False, ["CHANGELOG.md has no section [1.2.3]"]),
        ("## [Unreleased]\n\n- A thing.\n", True, []),
        ("## [Unreleased]\n", True, ["CHANGELOG.md: [Unreleased] lists nothing"]),
    ],
)  # fmt: skip
def test_the_changelog_is_checked(monkeypatch, tmp_path, text, dry_run, problems):
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n" + text)
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    assert tool.changelog_problems("1.2.3", dry_run) == problems


def test_a_changed_checkout_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    assert tool.checkout_problems() == ["not a git checkout"]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert tool.checkout_problems() == []
    (tmp_path / "new.py").write_text("")
    assert "new.py" in tool.checkout_problems()[0]


# --- types -------------------------------------------------------------------------------


@pytest.mark.skipif(native.extension is None, reason="this build has no native code")
@pytest.mark.skipif(edge_ops.__name__ != "edge_ops", reason="the stub is found by the package's own name")
def test_the_stub_describes_the_module(tmp_path):
    pytest.importorskip("mypy.stubtest")
    library = Path(native.extension.__file__)
    for name in (library.name, f"{native.ops.name}.pyi"):  # alone: with the package, mypy reads all of torch
        shutil.copyfile(library.with_name(name), tmp_path / name)
    (tmp_path / "mypy.ini").write_text("[mypy]\n")
    # torch first: the library finds its symbols there
    run = f"import sys, torch; sys.argv[1:] = [{native.ops.name!r}, '--mypy-config-file', 'mypy.ini']"
    command = [sys.executable, "-c", f"{run}; from mypy.stubtest import main; sys.exit(main())"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "MYPYPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
