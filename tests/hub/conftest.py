"""The artifacts under test: of `make test`'s dry run, or made here where they can be."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import ROOT

sys.path.insert(0, str(ROOT / "tools"))

MADE_WITH = ("auditwheel", "build", "cyclonedx", "jinja2", "kernel_abi_check", "scikit_build_core")


@pytest.fixture(scope="session")
def release(tmp_path_factory) -> Path:
    """What a dry run of tools/release.py made."""
    given = os.environ.get("EDGE_OPS_TEST_RELEASE")
    if given:
        return Path(given)
    missing = [name for name in MADE_WITH if importlib.util.find_spec(name) is None]
    missing += [name for name in ("cmake", "ninja", "g++") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"a release cannot be made here: {', '.join(missing)} missing (`make test` brings them)")
    output = tmp_path_factory.mktemp("release")
    command = [sys.executable, str(ROOT / "tools" / "release.py"), "--dry-run", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return output


@pytest.fixture(scope="session")
def layout(release) -> Path:
    """The Kernel Hub layout: build/<variant>/, the card, the benchmarks."""
    return release / "hub"


@pytest.fixture(scope="session")
def native_variant(layout) -> Path:
    """The variant of this machine's CPU."""
    (found,) = (layout / "build").glob(f"torch-stable-abi*-cpu-{os.uname().machine}-linux")
    return found


@pytest.fixture
def cache(layout, tmp_path) -> Path:
    """A folder as `huggingface_hub` leaves it behind: version 1 of the repository, downloaded."""
    import build_hub

    repository = tmp_path / "cache" / f"kernels--{build_hub.GENERAL['hub']['repo-id'].replace('/', '--')}"
    commit = "0123456789" * 4
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / f"v{build_hub.GENERAL['version']}").write_text(commit)
    (repository / "snapshots" / commit).mkdir(parents=True)
    shutil.copytree(layout / "build", repository / "snapshots" / commit / "build")
    return tmp_path / "cache"
