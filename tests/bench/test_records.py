"""From raw samples to verdicts: what is kept, what counts as a loss, what a goal says."""

import json

import pytest

from edge_ops.bench import cells, floors, goals, problems, report, store
from edge_ops.bench.cells import Cell, Geometry
from edge_ops.bench.problems import Traffic

NORM = Cell("rms_norm", "float32", 1, Geometry(width=1024))
ENVIRONMENT = {
    "host": "a host",
    "time": "2026-01-01T00:00:00Z",
    "system": "Linux",
    "python": "3.11",
    "cpu": "a CPU",
    "cores": 2,
    "caches": {},
    "governor": None,
    "clock_khz": None,
    "clock_mhz_reported": None,
    "load_average": [0.0, 0.0, 0.0],
    "load_average_end": [0.0, 0.0, 0.0],
    "torch": "2.13.0",
    "torch_cpu_capability": "AVX512",
    "edge_ops": {"version": "0.1.0", "isa_chosen": "avx512"},
    "commit": "abc",
    "modified": False,
}


def _cell(cell, passes, threads=1):
    return {
        "cell": cell.to_json(),
        "threads": threads,
        "arms": {name: {"error": 0.1, "block": 1} for name in passes[0]},
        "doubled": "edge_ops",
        "twin": "edge_ops (twin)",
        "passes": passes,
    }


def _pass(edge, **others):
    """Two trials an arm, both the same; `twin` defaults to the arm's own time."""
    twin = others.pop("twin", edge)
    return {name: [time, time] for name, time in {"edge_ops": edge, **others, "edge_ops (twin)": twin}.items()}


def _record(*entries):
    return {
        "decode": [],
        "environment": ENVIRONMENT,
        "settings": {"trials": 2, "block_us": 300, "passes": 4, "keep": 1},
        "arms": {"edge_ops": {"title": "us", "version": "1"}, "vllm": {"title": "them", "not_installed": "pip"}},
        "floors": {"1": {"calls": {"empty loop": {"samples": [5.0, 5.0]}}, "copy_bytes_per_ns": {"8192": 100.0}}},
        "cells": list(entries),
    }


def test_dropped_passes_give_no_samples():
    entry = _cell(NORM, [_pass(100.0, eager=2000.0), _pass(100.0, eager=9000.0, twin=150.0)])
    (one,) = store.measured(_record(entry))
    assert one.samples == {"edge_ops": [100.0, 100.0], "eager": [2000.0, 2000.0]}
    assert one.kept.dropped == 1
    assert one.speedup("edge_ops", "eager").value == 20.0


@pytest.mark.parametrize("edge, loses", [(100.0, False), (100.4, False), (101.0, True), (99.0, False)])
def test_a_loss_is_more_than_the_null_arm_tells_apart(edge, loses):
    (one,) = store.measured(_record(_cell(NORM, [_pass(edge, twin=edge * 1.005, eager=100.0)])))
    assert one.loses("edge_ops", "eager") is loses


def test_a_record_survives_the_file(tmp_path):
    record = _record(_cell(NORM, [_pass(123.456789, eager=2000.0)]))
    for name in ("record.json", "record.json.gz"):
        store.save([record, record], tmp_path / name)
        both = store.load(tmp_path / name)
        assert [one["cells"][0]["passes"][0]["edge_ops"] for one in both] == [[123.46, 123.46]] * 2
    assert (tmp_path / "record.json.gz").stat().st_size < (tmp_path / "record.json").stat().st_size


@pytest.mark.parametrize("text", [json.dumps({"schema": store.SCHEMA + 1}), "[]", "{", ""])
def test_another_file_is_refused(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="other.json: not"):
        store.load(path)


def test_a_file_of_the_first_schema_is_one_record(tmp_path):
    path = tmp_path / "old.json"
    record = _record(_cell(NORM, [_pass(100.0, eager=2000.0)]))
    del record["decode"]
    path.write_text(json.dumps({"schema": 1, **record}))
    (loaded,) = store.load(path)
    assert store.measured(loaded)[0].speedup("edge_ops", "eager").value == 20.0


def _verdicts(*entries):
    return {outcome.goal: outcome for outcome in goals.check([_record(*entries)])}


def test_goals_of_the_direct_call():
    met = _verdicts(_cell(NORM, [_pass(600.0, edge_ops_new=1500.0, eager=15000.0)]))
    assert met["rms_norm(out=) float32 1 x 1024 in at most 0.7 µs"].verdict == "pass"
    assert met["the same, at least 20 times faster than eager"].verdict == "pass"
    assert met["the same without out, at least 8 times"].verdict == "pass"
    missed = _verdicts(_cell(NORM, [_pass(800.0, edge_ops_new=2000.0, eager=15000.0)]))
    assert missed["rms_norm(out=) float32 1 x 1024 in at most 0.7 µs"].verdict == "FAIL"
    assert missed["the same, at least 20 times faster than eager"].verdict == "FAIL"
    assert missed["the same without out, at least 8 times"].verdict == "FAIL"


def test_an_unsettled_or_missing_cell_is_no_pass():
    goal = "rms_norm(out=) float32 1 x 1024 in at most 0.7 µs"
    assert _verdicts()[goal].verdict == "open"
    unsettled = _verdicts(_cell(NORM, [_pass(100.0, twin=200.0, eager=15000.0)]))[goal]
    assert (unsettled.verdict, unsettled.unsettled) == ("open", 1)
    two_threads = _verdicts(_cell(NORM, [_pass(100.0, eager=15000.0)], threads=2))[goal]
    assert (two_threads.verdict, two_threads.missing) == ("open", 1)


def test_many_tokens_must_not_be_slower_than_a_peer():
    wanted = list(cells.select(["rms_norm"], tokens=goals.MANY_TOKENS))
    entries = [_cell(cell, [_pass(100.0, eager=500.0, vllm=120.0)]) for cell in wanted]
    goal = "rms_norm, 32 and 128 tokens, not slower than vllm"
    assert _verdicts(*entries)[goal].verdict == "pass"
    entries[3] = _cell(wanted[3], [_pass(100.0, eager=500.0, vllm=90.0)])
    failed = _verdicts(*entries)[goal]
    assert [one.label for one in failed.failures] == [wanted[3].key]
    assert wanted[3].key in goals.table([failed])


def test_every_goal_is_measured_by_the_cells_that_the_program_runs():
    peers = dict.fromkeys(("eager", "compile", "vllm", "hub"), 1000.0)
    entries = [_cell(cell, [_pass(10.0, edge_ops_new=20.0, **peers)]) for cell in goals.needed_cells()]
    outcomes = goals.check([_record(*entries)])
    assert len(outcomes) == 3 + len(goals.ONE_TOKEN) + 1 + 4 * len(cells.OPERATORS) + 2
    assert all(outcome.passed for outcome in outcomes)


def test_the_report_marks_losses_and_names_what_is_absent():
    entry = _cell(NORM, [_pass(100.0, eager=500.0, vllm=90.0, hub=300.0)])
    text = report.markdown(report.blocks([_record(entry)]))
    assert "| a host, avx512 | 1 thread | rms_norm float32 1 x 1024 | vllm | 0.10 | 0.09 | 0.90 [0.90, 0.90] |" in text
    assert "vllm: 0.90 [0.90, 0.90] **loss**" in text
    assert "not installed and skipped: vllm" in text
    assert "1 passes over 1 cells; 0 dropped" in text


def test_results_go_between_the_markers():
    page = "before\n<!-- part: begin -->\nold\n<!-- part: end -->\nafter\n"
    assert report.replaced(page, "part", "new", "page") == (
        "before\n<!-- part: begin -->\n\nnew\n\n<!-- part: end -->\nafter\n"
    )
    with pytest.raises(ValueError, match="page: needs one line"):
        report.replaced("no markers", "part", "new", "page")


def test_roof_uses_the_working_set_nearest_to_what_is_resident():
    bandwidth = {8192: 100.0, 1 << 20: 10.0}
    assert floors.roof_ns(Traffic(moved=16384, resident=8192), bandwidth) == pytest.approx(163.84)
    assert floors.roof_ns(Traffic(moved=1 << 21, resident=1 << 21), bandwidth) == pytest.approx((1 << 21) / 10)


def test_traffic_counts_rows_in_place_once():
    norm = problems.traffic(Cell("rms_norm", "bfloat16", 4, Geometry(width=100)))
    assert (norm.moved, norm.resident) == (1800, 1800)  # four rows in, four out, the weight
    added = problems.traffic(Cell("fused_add_rms_norm", "bfloat16", 4, Geometry(width=100)))
    assert (added.moved, added.resident) == (3400, 1800)


def test_cells_survive_the_file():
    for cell in cells.select():
        assert Cell.from_json(json.loads(json.dumps(cell.to_json()))) == cell
