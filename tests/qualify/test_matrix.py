"""The page's table is what the committed records give, and the tool refuses what it cannot rest on."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import pytest

from edge_ops.qualify import record
from support.processes import ROOT

from .conftest import OWN


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import qualification_matrix

    return qualification_matrix


def test_the_page_is_in_step():
    command = [sys.executable, str(ROOT / "tools" / "qualification_matrix.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_committed_record_passed(tool):
    records = tool.read_all(tool.RECORDS)
    assert records and all(found["passed"] for found in records.values())


def as_full(found, **device):
    changed = copy.deepcopy(found)
    changed["scope"] = "full"
    changed["device"].update(device)
    return record.seal(changed)


def test_a_device_is_not_run_until_its_record_is_there(tool, quick_record):
    before = tool.matrix({})
    assert before.count("not run") == len(tool.AWAITED)
    here = as_full(quick_record, name="Orange Pi Zero 3W, 4 GiB", emulated=None)
    after = tool.matrix({"board.json": here})
    assert after.count("not run") == len(tool.AWAITED) - 1
    row = next(line for line in after.splitlines() if "Orange Pi" in line)
    assert "hardware" in row and "passed" in row and "(records/board.json)" in row


def test_emulation_is_labelled(tool, quick_record):
    row = tool.matrix({"a.json": as_full(quick_record, name="Board", emulated="qemu-aarch64")}).splitlines()[2]
    assert "emulated: qemu-aarch64" in row and "hardware" not in row


def test_failures_and_other_corpora_show(tool, quick_record):
    failed = as_full(quick_record, name="Board")
    failed["levels"][OWN]["passed"] = False
    assert "FAILED" in tool.matrix({"a.json": failed}).splitlines()[2]
    failed["corpus"]["golden_sha256"] = "0"
    assert "of another corpus" in tool.matrix({"a.json": failed}).splitlines()[2]


def test_records_that_are_refused(tool, quick_record, tmp_path):
    target = tmp_path / "one.json"
    for text, message in (
        (json.dumps(quick_record), "is of a quick run"),
        (json.dumps({**as_full(quick_record), "passed": False}), "was changed"),
        ("{", "not whole JSON"),
    ):
        target.write_text(text)
        with pytest.raises(record.RecordError, match=message):
            tool.read_all(tmp_path)


def test_a_page_out_of_step_is_noticed(tool, quick_record, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(tool, "RECORDS", tmp_path)
    record.write(as_full(quick_record, name="New device"), tmp_path / "new.json")
    monkeypatch.setattr(sys, "argv", ["qualification_matrix.py", "--check"])
    assert tool.main() == 1
    assert "NOT in step with 1 records" in capsys.readouterr().out
