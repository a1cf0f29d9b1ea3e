"""Records: what is refused, what notices an edit, and when a decode may move."""

from __future__ import annotations

import copy
import json

import pytest

from edge_ops.cli import main
from edge_ops.qualify import compare, record

from .conftest import OWN


@pytest.fixture
def full(quick_record):
    """As a full run of every level that the host offers would be."""
    changed = copy.deepcopy(quick_record)
    (entry,) = changed["levels"].values()
    changed.update(scope="full", offered=[OWN], not_run={}, levels={OWN: entry})
    return record.seal(changed)


def verdict(one, other):
    return compare.compare(("A", one), ("B", other))


def changed(found, sealed=True, **parts):
    """A copy with parts replaced; `a__b` is b within a."""
    result = copy.deepcopy(found)
    for path, value in parts.items():
        *parents, last = path.split("__")
        target = result
        for key in parents:
            target = target[key]
        target[last] = value
    return record.seal(result) if sealed else result


def test_a_decode_may_move(full):
    assert verdict(full, full).may_move and verdict(full, full).remarks == []


def test_a_quick_run_does_not_qualify(quick_record, full):
    assert any("quick run" in reason for reason in verdict(quick_record, full).reasons)


def test_an_edit_is_noticed(full):
    edited = changed(full, sealed=False, device__name="Another device")
    assert not record.intact(edited)
    assert verdict(full, edited).reasons == ["B was changed after it was written: its SHA-256 does not fit its content"]


def test_white_space_and_order_are_no_edit(full):
    assert record.intact(json.loads(json.dumps(dict(reversed(full.items())), indent=7)))


def group(full):
    return full["levels"][OWN]["operators"]["rms_norm"]["bfloat16"]


def test_another_digest(full):
    other = copy.deepcopy(full)
    group(other)["digest"] = "0" * 32
    (reason,) = verdict(full, record.seal(other)).reasons
    assert reason.startswith("rms_norm bfloat16 has different digests: ")
    assert f"000000000000 at B {OWN}" in reason


def test_a_failed_record_names_the_cases(full):
    other = copy.deepcopy(full)
    entry = other["levels"][OWN]
    entry["differences"] = [{"case": f"case {i}", "got": "0" * 32} for i in range(5)]
    entry["passed"] = other["passed"] = False
    reasons = verdict(full, record.seal(other)).reasons
    assert "B did not pass" in reasons
    assert f"B at level {OWN} differs from the contract in case 'case 0'" in reasons
    assert f"B at level {OWN} differs in 2 more cases" in reasons


def test_a_missing_dtype(full):
    other = copy.deepcopy(full)
    del other["levels"][OWN]["operators"]["silu_and_mul"]["float16"]
    assert verdict(full, record.seal(other)).reasons == [f"B lacks silu_and_mul float16 at level {OWN}"]


def test_a_missing_level(full):
    other = changed(full, offered=[OWN, "cuda"], not_run={"cuda": "left out by --levels"})
    assert verdict(full, other).reasons == [
        "B was not run at level cuda, which its device offers: left out by --levels"
    ]


def test_a_level_that_broke_off(full):
    other = copy.deepcopy(full)
    other["levels"][OWN].update(error="the process was ended by SIGILL", passed=False)
    other["passed"] = False
    assert f"B at level {OWN}: the process was ended by SIGILL" in verdict(full, record.seal(other)).reasons


def test_another_corpus(full):
    other = changed(full, corpus__version=99)
    (reason,) = verdict(full, other).reasons
    assert reason.endswith("and B of corpus 99")
    assert "different golden digests" in verdict(full, changed(full, corpus__golden_sha256="0")).reasons[0]


def test_remarks_do_not_forbid(full):
    other = changed(full, device__emulated="qemu-aarch64", package__version="9.9.9", package__build="another")
    found = verdict(full, other)
    assert found.may_move
    assert [remark.split(":")[0] for remark in found.remarks] == [
        "B ran under emulation (qemu-aarch64)",
        "two versions of the package",
        "two builds of the library",
    ]


def test_the_command(full, tmp_path, capsys):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    record.write(full, good)
    record.write(changed(full, passed=False), bad)
    assert main(["qualify", "--compare", str(good), str(good)]) == 0
    assert f"a decode may move between {good} and {good}" in capsys.readouterr().out
    assert main(["qualify", "--compare", str(good), str(bad)]) == 1
    assert capsys.readouterr().out == f"a decode may NOT move between {good} and {bad}:\n  - {bad} did not pass\n"


def damaged(full):
    """Name -> the text of a file that is no record, and what must be said of it."""
    text = json.dumps(full)
    missing = {key: value for key, value in full.items() if key != "levels"}
    wrong = copy.deepcopy(full)
    group(wrong)["rows"] = "many"
    listed = copy.deepcopy(full)
    listed["levels"][OWN]["operators"]["rms_norm"] = []
    return {
        "cut": (text[: len(text) // 2], "it is not whole JSON"),
        "empty": ("", "it is not whole JSON"),
        "deep": ("[" * 100000, "it is not whole JSON"),
        "list": ("[1, 2]", "it has no schema"),
        "number": ("17", "it has no schema"),
        "other": (json.dumps({**full, "schema": "something else"}), "has schema 'something else'"),
        "part": (json.dumps(missing), "the record has no levels"),
        "type": (json.dumps(wrong), f"rows of rms_norm bfloat16 at level {OWN} has the wrong type"),
        "object": (json.dumps(listed), f"rms_norm at level {OWN} must be an object"),
        "corpus": (json.dumps({**full, "corpus": {}}), "corpus has no version"),
        "device": (json.dumps({**full, "device": {}}), "device has no "),
        "texts": (json.dumps({**full, "offered": [1]}), "offered must list names"),
    }


KINDS = ("cut", "empty", "deep", "list", "number", "other", "part", "type", "object", "corpus", "device", "texts")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_record_is_refused(kind, full, tmp_path, capsys):
    text, message = damaged(full)[kind]
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    record.write(full, good)
    bad.write_text(text)
    assert main(["qualify", "--compare", str(good), str(bad)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"edge-ops qualify: {bad} ") and message in said


def test_files_that_cannot_be_read(full, tmp_path, capsys):
    good, binary = tmp_path / "good.json", tmp_path / "binary.json"
    record.write(full, good)
    binary.write_bytes(b"\xff\xfe\x00\x01")
    for path, message in ((tmp_path / "none.json", "cannot be read"), (binary, "not text"), (tmp_path, "be read")):
        assert main(["qualify", "--compare", str(path), str(good)]) == 2
        assert message in capsys.readouterr().err
