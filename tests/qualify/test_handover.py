"""The handover example: a tiny model across this host's levels, and what it says of results that part."""

from __future__ import annotations

import importlib.util
import json

import pytest

from edge_ops import native
from support.processes import ROOT, python
from support.values import DEVICE

pytest.importorskip("transformers")
EXAMPLE = ROOT / "examples" / "handover.py"


@pytest.fixture(scope="module")
def handover():
    spec = importlib.util.spec_from_file_location("handover", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.skipif(native.extension is None or DEVICE != "cpu", reason="levels are the native CPU code's")
def test_a_tiny_model_across_the_levels(tmp_path):
    state = tmp_path / "state.pt"
    arguments = ["--model", "tiny", "--tokens", "6", "--at", "2", "--dtype", "float32", "--state", str(state)]
    done = python([str(EXAMPLE), *arguments])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("  equal\n") == 6
    assert done.stdout.endswith("the operators have the same bits at every level\n")
    for level in native.build_info()["isa_offered"][:-1]:
        assert f"\n  {level}\n" in done.stdout
    assert state.stat().st_size > 1000


def result(**parts):
    calls = [["rms_norm", "in 1", "out 1"], ["silu_and_mul", "in 2", "out 2"], ["rms_norm", "in 3", "out 3"]]
    return {"calls": calls, "logits": ["a", "b"], "tokens": [1, 2, 3], **parts}


def test_equal_continuations(handover):
    lines, good = handover.compare(result(), result())
    assert good and lines == [
        "3 of 3 operator calls with equal inputs have equal results (3 calls in the step)",
        "no operator of that step was given other numbers",
        "logits: the same bits in all 2 steps",
        "tokens: all 3 the same",
    ]


def test_other_inputs_are_not_the_operators_fault(handover):
    parted = result(
        calls=[["rms_norm", "in 1", "out 1"], ["silu_and_mul", "x", "y"], ["rms_norm", "z", "w"]],
        logits=["a", "c"],
        tokens=[1, 2, 4],
    )
    lines, good = handover.compare(result(), parted)
    assert good and lines == [
        "1 of 1 operator calls with equal inputs have equal results (3 calls in the step)",
        "call 2 (silu_and_mul) is the first with other inputs: PyTorch's code before it",
        "logits: part in step 2",
        "tokens: part after 2 of 3",
    ]


def test_an_operator_with_other_results_is_named(handover):
    calls = json.loads(json.dumps(result()["calls"]))
    calls[1][2] = "another"
    lines, good = handover.compare(result(), result(calls=calls))
    assert not good and "OPERATORS WITH OTHER RESULTS: silu_and_mul" in lines


def test_a_seam_that_differs_shows(handover):
    same = {name: "0" * 16 for name in handover.OPERATORS}
    lines, good = handover.seam_table({"avx2": {"seam": same}, "cuda": {"seam": {**same, "silu_and_mul": "1" * 16}}})
    assert not good
    assert [line.split()[0] for line in lines if line.endswith("DIFFERENT")] == ["silu_and_mul"]
