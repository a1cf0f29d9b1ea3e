"""One quick run of this host's own level, shared: a record to read, to change and to compare."""

from __future__ import annotations

import json

import pytest

from edge_ops import native
from edge_ops.cli import main
from edge_ops.qualify import levels

OWN = native.build_info()["isa_chosen"] or levels.REFERENCE


@pytest.fixture(scope="session")
def quick_record(tmp_path_factory):
    """The record of `edge-ops qualify --quick` at the level that this process has."""
    path = tmp_path_factory.mktemp("qualify") / "record.json"
    assert main(["qualify", "--quick", "--levels", OWN, "--record", str(path)]) == 0
    return json.loads(path.read_text())
