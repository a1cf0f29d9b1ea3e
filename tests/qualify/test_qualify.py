"""The command: a run that passes, planted faults that it must find and show, other processes, the reference."""

from __future__ import annotations

import json
import platform
import re
import shutil
import signal

import pytest
import torch

from edge_ops import native, ops, reference
from edge_ops.cli import main
from edge_ops.qualify import corpus, levels, record, run
from support.processes import python
from support.values import DEVICE

from .conftest import OWN

CPU_LEVELS = native.build_info()["isa_offered"]
QEMU = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64")
LOWER = [level for level in CPU_LEVELS if level != OWN]


def qualify(tmp_path, *arguments, status=0):
    path = tmp_path / "record.json"
    assert main(["qualify", "--record", str(path), *arguments]) == status
    found = record.read(path)
    assert record.intact(found)
    return found


def test_a_record_says_what_ran(quick_record):
    assert quick_record["passed"] and quick_record["scope"] == "quick"
    assert quick_record["software"]["torch"] == torch.__version__
    assert quick_record["package"]["build"] == native.build_info()["build"]
    assert quick_record["chosen"] == native.build_info()["isa_chosen"]
    (level,) = quick_record["levels"].values()
    cases = [case for case in corpus.cases() if case.quick]
    groups = [(o, d, g) for o, dtypes in level["operators"].items() for d, g in dtypes.items()]
    assert [(o, d) for o, d, _ in groups] == [(o, d) for o in corpus.OPERATORS for d in corpus.DTYPES]
    assert sum(g["cases"] for *_, g in groups) == len(cases)
    assert sum(g["rows"] for *_, g in groups) == sum(case.rows for case in cases)
    assert set(quick_record["offered"]) <= {*quick_record["levels"], *quick_record["not_run"]}


@pytest.mark.slow
def test_all_levels_of_this_host_in_full(tmp_path, capsys):
    """What a fleet's operator runs; the host must then be fit to exchange decodes with itself."""
    found = qualify(tmp_path, "--device-name", "Test bench", "--signed-off-by", "A. Tester", "--note", "in the suite")
    assert found["passed"] and found["scope"] == "full" and found["not_run"] == {}
    assert list(found["levels"]) == levels.known()
    assert found["device"]["name"] == "Test bench"
    assert found["sign_off"] == {"by": "A. Tester", "note": "in the suite"}
    out = capsys.readouterr().out
    assert out.count(" ok ") == (len(corpus.OPERATORS) * len(corpus.DTYPES) + 1) * len(levels.known())
    assert "Every operator has the contract's bits at every level that was run" in out
    path = str(tmp_path / "record.json")
    assert main(["qualify", "--compare", path, path]) == 0


def test_json_prints_the_record_and_writes_no_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["qualify", "--json", "--levels", OWN, "--only", "n=127 "]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["scope"] == "partial" and record.intact(printed)
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_the_time_in_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["qualify", "--levels", OWN, "--only", "n=127 "]) == 0
    (written,) = tmp_path.iterdir()
    assert re.fullmatch(r"edge-ops-qualification-\d{8}T\d{6}Z\.json", written.name)
    assert f"record: {written.name}" in capsys.readouterr().out


# --- faults --------------------------------------------------------------------------


def off_by_one_bit(function, result_of, element):
    """`function`, with the lowest bit of one element of one result turned over."""

    def wrong(*args, **kwargs):
        returned = function(*args, **kwargs)
        result = result_of(returned)
        kind = {2: torch.int16, 4: torch.int32}[result.element_size()]
        index = tuple(e % s for e, s in zip(element, result.shape[-len(element) :]))
        place = result[(0,) * (result.dim() - len(element)) + index]
        place.copy_((place.reshape(1).view(kind) ^ 1).view(result.dtype)[0])
        return returned

    return wrong


FAULTS = {
    "rms_norm": ("rms_norm bfloat16 width n=640 ", lambda r: r, ("x", "row of", "eps", "weight_offset")),
    "fused_add_rms_norm": ("fused_add_rms_norm float16 width n=576 ", lambda r: r[1], ("x", "residual", "row of")),
    "silu_and_mul": ("silu_and_mul float32 width d=100 ", lambda r: r, ("gate", "up")),
    "gelu_tanh_and_mul": ("gelu_tanh_and_mul bfloat16 width d=127 ", lambda r: r, ("gate", "up")),
    "rotary_embedding": (
        "rotary_embedding float32 model heads=16/8 size=128 rotary=128 ",
        lambda r: r[1],
        ("position", "key", "interleaved"),
    ),
    "fused_qk_norm_rope": (
        "fused_qk_norm_rope bfloat16 odd heads=4/2 size=96 rotary=32 ",
        lambda r: r[0],
        ("position", "query", "eps", "round_normalized"),
    ),
}


@pytest.mark.parametrize("operator", FAULTS)
def test_a_wrong_bit_is_found_and_shown(operator, tmp_path, monkeypatch, capsys):
    only, result_of, names = FAULTS[operator]
    element = (2, 5) if "rope" not in operator and "rotary" not in operator else (1, 9)
    real = getattr(ops, operator)
    monkeypatch.setattr(ops, operator, off_by_one_bit(real, result_of, element))
    found = qualify(tmp_path, "--levels", OWN, "--only", only, status=1)
    assert not found["passed"]
    shown = found["levels"][OWN]["differences"][0]
    assert shown["differing"] == 1 and shown["index"][-2:] == list(element)
    assert set(names) <= set(shown["inputs"])
    got, expected = (int(shown[key].split()[0], 16) for key in ("got_bits", "expected_bits"))
    assert got ^ expected == 1
    out = capsys.readouterr().out
    assert " WRONG " in out and "FAILED" in out
    for text in (f"got      {shown['got_bits']}", f"expected {shown['expected_bits']}", only.strip()):
        assert text in out


def test_the_inputs_shown_are_those_of_the_element(tmp_path, monkeypatch):
    """Put through the contract's formula again, they give the expected pattern."""
    real = ops.silu_and_mul
    monkeypatch.setattr(ops, "silu_and_mul", off_by_one_bit(real, lambda r: r, (1, 3)))
    found = qualify(tmp_path, "--levels", OWN, "--only", "silu_and_mul float32 width d=100 ", status=1)
    shown = found["levels"][OWN]["differences"][0]
    patterns = [int(shown["inputs"][name].split()[0], 16) for name in ("gate", "up")]
    x = torch.tensor([p - 2**32 if p >= 2**31 else p for p in patterns], dtype=torch.int32).view(torch.float32)
    again = int(reference.silu_and_mul(x).view(torch.int32)) & 0xFFFFFFFF
    assert again == int(shown["expected_bits"].split()[0], 16)


def test_a_write_outside_the_result_is_found(tmp_path, monkeypatch, capsys):
    real = ops.rms_norm

    def careless(x, *args, **kwargs):
        result = real(x, *args, **kwargs)
        target = result if kwargs.get("out") is not None else x
        target.as_strided((1,), (1,), target.storage_offset() - 1).zero_()
        return result

    monkeypatch.setattr(ops, "rms_norm", careless)
    found = qualify(tmp_path, "--levels", OWN, "--only", "rms_norm float32 width n=640 ", status=1)
    (difference,) = found["levels"][OWN]["differences"]
    assert difference["strays"] and "differing" not in difference
    assert "wrote outside its result" in capsys.readouterr().out


def test_many_differences_are_counted_and_a_few_are_located(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ops, "rms_norm", off_by_one_bit(ops.rms_norm, lambda r: r, (0, 0)))
    found = qualify(tmp_path, "--levels", OWN, "--only", "rms_norm float32 special", status=1)
    differences = found["levels"][OWN]["differences"]
    located = [d for d in differences if "index" in d]
    assert len(located) == 3 < len(differences)
    assert "more cases differ" in capsys.readouterr().out


def test_a_reference_that_errs_names_no_element(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ops, "silu_and_mul", off_by_one_bit(ops.silu_and_mul, lambda r: r, (0, 0)))
    monkeypatch.setattr(reference, "silu_and_mul", off_by_one_bit(reference.silu_and_mul, lambda r: r, (0, 0)))
    found = qualify(tmp_path, "--levels", OWN, "--only", "silu_and_mul float32 width d=100 ", status=1)
    assert "index" not in found["levels"][OWN]["differences"][0]
    assert "the PyTorch reference on this host does not give the golden digest either" in capsys.readouterr().out


def test_a_faulty_reference_fails_its_own_level(tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "silu_and_mul", off_by_one_bit(reference.silu_and_mul, lambda r: r, (0, 0)))
    found = qualify(tmp_path, "--levels", "reference", "--only", "silu_and_mul float32 width", status=1)
    assert not found["levels"]["reference"]["passed"]


# --- other processes -----------------------------------------------------------------


@pytest.mark.skipif(not LOWER, reason="this host has one level")
def test_a_lower_level_runs_in_a_process_of_its_own(tmp_path):
    found = qualify(tmp_path, "--levels", LOWER[0], "--only", "n=127 ")
    assert found["levels"][LOWER[0]]["passed"]


@pytest.mark.skipif(not LOWER, reason="this host has one level")
def test_a_level_that_crashes_fails_and_says_where(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(levels, "_PROGRAM", f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})")
    found = qualify(tmp_path, "--levels", LOWER[0], "--only", "n=127 ", status=1)
    assert "was ended by SIGILL in its first case" in found["levels"][LOWER[0]]["error"]
    assert "SIGILL" in capsys.readouterr().out


@pytest.mark.skipif(not LOWER, reason="this host has one level")
def test_a_process_of_another_build_is_refused(tmp_path, monkeypatch):
    info = native.build_info()
    monkeypatch.setattr(levels.native, "build_info", lambda: {**info, "build": "another"})
    found = qualify(tmp_path, "--levels", LOWER[0], "--only", "n=127 ", status=1)
    assert "another than was asked for" in found["levels"][LOWER[0]]["error"]


def test_an_emulated_process_does_not_start_others(monkeypatch, tmp_path):
    """Their instructions would run on the real processor and be recorded as the emulated one's."""
    monkeypatch.setattr(levels.host, "emulated", lambda: "qemu-test")
    assert levels.hindrance(OWN) is None
    for level in LOWER:
        assert f"EDGE_OPS_CPU_ISA={level}" in levels.hindrance(level)


@pytest.mark.slow
@pytest.mark.skipif(QEMU is None or platform.machine() != "x86_64", reason="needs qemu-user and x86-64's levels")
def test_under_emulation(tmp_path):
    """On an emulated processor of 2013: its own level alone, and a record that says so."""
    target = tmp_path / "record.json"
    selection = ["--levels", "avx2,baseline", "--only", "float32 width n=127 "]
    arguments = ["-m", "edge_ops", "qualify", *selection, "--record", str(target)]
    done = python(arguments, prefix=[QEMU, "-cpu", "Haswell"])
    assert done.returncode == 0, done.stderr
    found = record.read(target)
    assert found["chosen"] == "avx2" and list(found["levels"]) == ["avx2"]
    assert list(found["not_run"]) == ["baseline"] and "EDGE_OPS_CPU_ISA=baseline" in found["not_run"]["baseline"]
    device = found["device"]
    assert device["emulated"].startswith("qemu-") and device["cpu"].startswith("emulated on ")
    assert device["cpu_flags"] == []
    assert "this qualifies the library's code, not a device" in done.stdout


def test_a_build_without_native_code_has_the_reference(monkeypatch):
    info = {**native.build_info(), "isa_offered": [], "isa_chosen": None}
    monkeypatch.setattr(levels.native, "build_info", lambda: info)
    monkeypatch.setattr(levels.native, "DEVICES", ())
    assert levels.offered() == levels.known() == ["reference"]
    assert levels.hindrance("reference") is None and levels.hindrance("avx2") is not None


# --- arguments -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    (
        (["--levels", "avx1024"], "--levels must be some of "),
        (["--only", "no such case"], "--only 'no such case' is in no case's name"),
        (["--record", "/no/such/folder/record.json"], "--record /no/such/folder/record.json cannot be written"),
    ),
)
def test_arguments_that_cannot_be_met(arguments, message, capsys):
    assert main(["qualify", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.skipif(native.extension is None or DEVICE != "cpu", reason="the native library of this process")
def test_from_another_folder_with_other_settings(tmp_path):
    """The whole command as a user starts it, at a lower level and through the dispatcher."""
    level = CPU_LEVELS[0]
    target = tmp_path / "record.json"
    arguments = ["-m", "edge_ops", "qualify", "--only", "n=127 ", "--levels", level, "--record", str(target)]
    done = python(arguments, {"EDGE_OPS_CPU_ISA": level, "EDGE_OPS_DISABLE_DIRECT": "1"})
    assert done.returncode == 0, done.stderr
    found = record.read(target)
    assert found["chosen"] == level and found["package"]["direct"] is False


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda(tmp_path):
    assert qualify(tmp_path, "--levels", "cuda", "--quick")["levels"]["cuda"]["passed"]


def test_run_leaves_the_thread_count_as_it_was():
    before = torch.get_num_threads()
    case = next(case for case in corpus.cases() if case.quick)
    next(run.run([case, case], OWN))  # abandoned after the first
    assert torch.get_num_threads() == before
