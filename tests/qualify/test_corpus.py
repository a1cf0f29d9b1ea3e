"""The corpus covers what it claims, both generators agree, and the golden digests are the contract's."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from edge_ops.qualify import corpus, generate, run
from support import qualification
from support.processes import ROOT

CASES = corpus.cases()
CPU = torch.device("cpu")


def test_golden_digests_are_the_contracts():
    """All of them, computed again from NumPy by the tool that wrote the file."""
    tool = [sys.executable, str(ROOT / "tools" / "golden_digests.py"), "--check"]
    done = subprocess.run(tool, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == f"golden.json is the contract's: {len(CASES)} cases\n"


def test_the_file_has_the_cases_and_no_others():
    golden = run.golden()
    assert golden["corpus"] == corpus.VERSION
    assert list(golden["digests"]) == [case.name for case in CASES]


def test_the_tool_notices_another_digest(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import golden_digests

    shipped = json.loads(golden_digests.TARGET.read_text())
    monkeypatch.setattr(golden_digests, "digests", lambda jobs: shipped["digests"])
    monkeypatch.setattr(sys, "argv", ["golden_digests.py", "--check"])
    assert golden_digests.main() == 0
    name = next(iter(shipped["digests"]))
    monkeypatch.setattr(golden_digests, "digests", lambda jobs: {**shipped["digests"], name: "0" * 32})
    assert golden_digests.main() == 1


def test_size():
    assert len({case.name for case in CASES}) == len(CASES)
    assert sum(case.rows for case in CASES) > 4_000_000


@pytest.mark.parametrize("dtype", corpus.DTYPES)
@pytest.mark.parametrize("operator", corpus.OPERATORS)
def test_coverage(operator, dtype):
    """Every layout, target, kind of value and option that the operator has, in every dtype."""
    cases = [case for case in CASES if (case.operator, case.dtype) == (operator, dtype)]
    heads = operator in ("rotary_embedding", "fused_qk_norm_rope")
    assert {c.layout for c in cases} == set(corpus.HEAD_LAYOUTS if heads else corpus.ROW_LAYOUTS)
    targets = {
        "rms_norm": {"new", "apart", "inside"},
        "fused_add_rms_norm": {"inside"},
        "rotary_embedding": {"inside"},
        "fused_qk_norm_rope": {"inside", "apart"},
    }
    assert {c.target for c in cases} == targets.get(operator, {"new", "apart"})
    kinds = {field.kind for case in cases for field in case.fields}
    assert kinds >= {"moderate", "sprinkled", *corpus.SPECIAL_KINDS}
    options = {(key, value) for case in cases for key, value in case.options.items()}
    if "norm" in operator:
        assert {v for k, v in options if k == "eps"} == set(corpus.EPSILONS)
        assert {v for k, v in options if k == "weight_offset"} == set(corpus.OFFSETS)
    if heads:
        assert {v for k, v in options if k == "interleaved"} == {False, True}
        rotated = {(c.fields[-1].shape[1], c.fields[1].shape[-1]) for c in cases}
        assert any(0 < rotary < size for rotary, size in rotated) and any(rotary == 0 for rotary, _ in rotated)
        assert {c.fields[0].dtype for c in cases} == {"int32", "int64"}
        assert any(len(c.fields) > 2 and c.fields[2].name != "key" for c in cases), "a call without a key"
    if operator == "fused_qk_norm_rope":
        assert {v for k, v in options if k == "round_normalized"} == {False, True}
    assert any(case.quick for case in cases)


@pytest.mark.parametrize("operator", ("silu_and_mul", "gelu_tanh_and_mul"))
@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
def test_gates_see_every_16_bit_pattern(operator, dtype):
    sweeps = [f for c in CASES if (c.operator, c.dtype) == (operator, dtype) for f in c.fields if f.kind == "sweep"]
    for field in sweeps:
        assert len(np.unique(qualification.patterns("", field))) == 65536
    assert sweeps


def every_kind_of_field():
    found = {}
    for case in CASES:
        for field in case.fields:
            if field.numel:
                found.setdefault((field.kind, field.dtype, field.bound), (case.name, field))
    return list(found.values())


@pytest.mark.parametrize(("case", "field"), every_kind_of_field(), ids=lambda v: getattr(v, "kind", ""))
def test_both_generators_make_the_same_numbers(case, field):
    ours = generate.make(case, field, CPU)
    if field.kind == "positions":
        assert np.array_equal(ours.numpy(), qualification.make(case, field))
        return
    form = generate.FORMATS[field.dtype]
    unsigned = ours.view(form.bits).flatten().numpy().view(np.uint32 if form.width == 32 else np.uint16)
    want = qualification.patterns(case, field)
    assert np.array_equal(unsigned, want)
    if field.kind == "edges" and len(want) > 4000:
        assert len(np.unique(want)) == 2 * len(qualification.EDGES[field.dtype])


def test_numbers_do_not_depend_on_how_many_are_made_at_a_time(monkeypatch):
    case = next(c for c in CASES if c.fields[0].numel > 20000 and c.dtype == "float32")
    whole = generate.make(case.name, case.fields[0], CPU).view(torch.int32)
    monkeypatch.setattr(generate, "_BLOCK", 1000)
    assert torch.equal(generate.make(case.name, case.fields[0], CPU).view(torch.int32), whole)


@pytest.mark.parametrize("dtype", corpus.DTYPES)
def test_digests_read_bits_and_not_values(dtype):
    """-0 is not 0, one NaN is as another."""
    form = generate.FORMATS[dtype]
    zero = torch.zeros(4, dtype=form.dtype)
    assert run.digest({"x": zero}, dtype) != run.digest({"x": -zero}, dtype)
    quiet = torch.tensor([form.nan], dtype=form.bits).view(form.dtype)
    assert run.digest({"x": quiet}, dtype) == run.digest({"x": -quiet}, dtype)
    tiny = torch.tensor([1], dtype=form.bits).view(form.dtype)
    assert run.digest({"x": tiny}, dtype) != run.digest({"x": tiny * 0}, dtype)
