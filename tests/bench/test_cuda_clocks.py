"""The clocks and arms of a CUDA device, as far as they can be seen without one."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from edge_ops.bench import arms, cells, cuda, problems, report, runner, store
from edge_ops.bench.arms import eager, edge, packed
from edge_ops.bench.arms.base import Call
from edge_ops.cli import main

CELL = cells.Cell("rms_norm", "bfloat16", 2, cells.Geometry(width=64))
HEADS = cells.Cell("fused_qk_norm_rope", "bfloat16", 2, cells.Geometry(0, 4, 2, 64, 64))


class CountingGraph:
    """Stands for a graph: takes 100 ns for each counted call in a node, and 50 for a node without one."""

    def __init__(self, function, nodes):
        self.nodes = nodes
        cuda.seen = []
        function()
        self.time = 100.0 * len(cuda.seen) or 50.0

    def nanoseconds(self):
        return self.time


@pytest.fixture
def counted(monkeypatch):
    monkeypatch.setattr(cuda, "Graph", CountingGraph)
    monkeypatch.setattr(cuda, "seen", [], raising=False)
    return lambda: cuda.seen.append(1)


def _arm(name, call):
    return SimpleNamespace(name=name, title=name, devices=("cpu",), calls={"rms_norm": call})


def _norm(note, problem):
    def norm():
        note()
        return eager.rms_norm(problem.inputs["x"], problem.inputs["weight"])

    return Call("norm()", {"norm": norm}, lambda y: (y,), roundings=eager.NORM)


def _run(clocks, *found, spacers=None):
    settings = runner.Settings(threads=(1,), arms=(), trials=2, keep=1, passes=1, block_us=1, clocks=clocks)
    with torch.no_grad():
        return runner.run_cell(CELL, 1, found, settings, spacers=spacers)


def test_each_clock_has_a_record_of_its_own(counted):
    other = _arm("other", lambda problem: _norm(counted, problem))
    records = _run(("call", "kernel"), edge.ARMS[0], other)
    assert [record["clock"] for record in records] == ["call", "kernel"]
    assert all(set(record["passes"][0]) == {"edge_ops", "edge_ops (twin)", "other"} for record in records)
    assert records[1]["passes"][0]["other"] == [100.0] * len(records[1]["passes"][0]["other"])
    assert records[1]["arms"]["other"]["block"] == cuda.NODES["kernel"]


def test_what_stands_before_a_node_is_subtracted(counted):
    spacer = cuda.Spacer(counted, 10)
    assert spacer.nanoseconds == 100.0
    (record,) = _run(("behind",), _arm("other", lambda problem: _norm(counted, problem)), spacers={"behind": spacer})
    assert set(record["passes"][0]["other"]) == {100.0}  # 200 with the spacer


def test_one_route_of_edge_ops_is_enough_for_a_kernel_clock(counted):
    (call, kernel) = _run(("call", "kernel"), *edge.ARMS)
    assert set(call["arms"]) >= {"edge_ops", "edge_ops_new"}
    assert set(kernel["arms"]) == {"edge_ops"}


def test_an_arm_that_cannot_be_captured_is_named(counted, monkeypatch):
    class Refusing(CountingGraph):
        def __init__(self, function, nodes):
            function()
            if not cuda.seen:
                super().__init__(function, nodes)
            else:
                raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(cuda, "Graph", Refusing)
    records = _run(("call", "kernel"), eager.ARMS[0], _arm("other", lambda problem: _norm(counted, problem)))
    assert set(records[0]["passes"][0]) == {"eager", "eager (twin)", "other"}
    assert records[1]["arms"]["other"]["wrong"].endswith("operation not permitted when stream is capturing")


def test_a_peer_that_refuses_a_cell_is_named_and_others_go_on():
    def refuse(problem):
        raise RuntimeError("head size 64 is not supported")

    (record,) = _run(("call",), eager.ARMS[0], _arm("other", refuse))
    assert "head size 64" in record["arms"]["other"]["wrong"]
    assert set(record["passes"][0]) == {"eager", "eager (twin)"}


def test_packed_heads_are_views_that_are_restored():
    problem = problems.make(HEADS)
    qkv, (query, key), restore = packed.packed_heads(problem)
    assert qkv.shape == (2, (4 + 2 * 2) * 64)
    assert torch.equal(query, problem.inputs["query"]) and torch.equal(key, problem.inputs["key"])
    qkv.zero_()
    assert not query.any() and not key.any()
    restore()
    assert torch.equal(query, problem.inputs["query"])


@pytest.mark.parametrize("name", ("flashinfer", "sglang", "vllm_cuda", "liger"))
def test_a_missing_library_says_how_to_get_it(name, monkeypatch, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("the library may be there")
    monkeypatch.setenv("EDGE_OPS_BENCH_FLASHINFER", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    (arm,) = [arm for arm in arms.ALL if arm.name == name]
    assert arm.devices == ("cuda",)
    with pytest.raises(arms.NotInstalled, match=r"pip install|compiled module"):
        arm.load()


def test_arms_belong_to_devices():
    cpu, gpu = arms.of_device("cpu"), arms.of_device("cuda")
    assert {"edge_ops", "eager", "compile", "F.rms_norm"} <= set(cpu) & set(gpu)
    assert "hub" in cpu and "hub" not in gpu
    assert set(cpu) | set(gpu) == set(arms.NAMES)


@pytest.mark.parametrize(
    ("options", "complaint"),
    (
        (["--threads", "2"], "--threads"),
        (["--level", "avx2"], "--level"),
        (["--goals"], "--goals"),
        (["--decode"], "--decode"),
        (["--arms", "hub"], "--arms"),
        (["--clock", "hot"], "--clock"),
    ),
)
def test_options_that_do_not_fit_a_gpu(options, complaint, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert main(["bench", "--device", "cuda", *options]) == 2
    assert complaint in capsys.readouterr().err


def test_without_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", "--device", "cuda"]) == 2
    assert "CUDA" in capsys.readouterr().err


def _gpu_record(environment):
    """One cell on two clocks: ahead of the peer when called, behind it as a kernel."""
    entries = []
    for clock, peer in (("call", 4000.0), ("kernel", 900.0)):
        times = itertools.chain([("edge_ops", 1000.0), ("edge_ops (twin)", 1000.0), ("flashinfer", peer)])
        entries.append(
            {
                "cell": CELL.to_json(), "threads": 1, "clock": clock, "doubled": "edge_ops", "twin": "edge_ops (twin)",
                "arms": {"edge_ops": {"error": 0.1, "block": 1}, "flashinfer": {"error": 0.1, "block": 1}},
                "passes": [{name: [time, time] for name, time in times}],
            }
        )  # fmt: skip
    gpu = {"name": "a GPU", "driver": "1", "cuda": "13.0", "clocks": "1980 MHz"}
    return {
        "environment": {**environment, "gpu": gpu}, "decode": [], "cells": entries,
        "settings": {"trials": 2, "block_us": 300, "passes": 4, "keep": 1, "device": "cuda"},
        "arms": {"edge_ops": {"title": "us", "version": "1"}, "flashinfer": {"title": "them", "version": "2"}},
        "floors": {"1": {"calls": {"smallest": {"samples": [700.0]}}, "copy_bytes_per_ns": {"8192": 100.0}}},
    }  # fmt: skip


def test_a_report_tells_the_clocks_apart(tmp_path):
    from bench.test_records import ENVIRONMENT

    path = tmp_path / "gpu.json"
    store.save([_gpu_record(ENVIRONMENT)], path)
    text = report.markdown(report.blocks(store.load(path)))
    assert "call: x peer" in text and "kernel: x peer" in text
    assert "1 of 2 cells are slower" in text
    losses = [line for line in text.splitlines() if "| flashinfer |" in line and "| kernel |" in line]
    assert len(losses) == 1
    assert "a GPU, driver 1" in text
    assert "1 thread" not in text
