"""Tuning files change when rows are split over threads, never a bit of a result; a bad one changes nothing."""

import json

import numpy as np
import pytest
import torch

import edge_ops
from edge_ops import native
from edge_ops.bench import tune
from support import calls
from support.processes import output, python
from support.routes import OPERATORS, ROUTES
from support.values import DEVICE, DTYPES

needs_native = pytest.mark.skipif(native.extension is None, reason="this build has no native code")
GRAINS = {"norm": 5000, "gate": 6000, "heads": 7000}


@pytest.fixture
def kept_grains():
    before = native.extension.grains()
    threads = torch.get_num_threads()
    yield
    native.extension.set_grains(*before.values())
    torch.set_num_threads(threads)


def _file(path, **changes):
    path.write_text(json.dumps({"edge_ops_tuning": 1, "cpu": {"grains": GRAINS}, **changes}))
    return path


def _call(op, dtype):
    rng = np.random.default_rng(5)
    if op in ("rotary_embedding", "fused_qk_norm_rope"):
        return calls.BUILDERS[op](rng, (3, 13), 4, 2, 64, 64, dtype=dtype, layout="transposed")
    return calls.BUILDERS[op](rng, (37, 272), dtype, layout="column slice")


@needs_native
@pytest.mark.skipif(DEVICE != "cpu", reason="grains are the CPU's")
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("grain", [1, None, 2**62], ids=["split always", "built in", "never split"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPERATORS)
def test_no_choice_changes_a_bit(kept_grains, op, dtype, grain, threads):
    if grain is not None:
        native.extension.set_grains(grain, grain, grain)
    torch.set_num_threads(threads)
    _call(op, dtype).check(ROUTES["public"][op])


@needs_native
def test_a_file_is_loaded(kept_grains, tmp_path):
    assert edge_ops.load_tuning(_file(tmp_path / "host.json", measured={"anything": 1})) == GRAINS
    assert native.extension.grains() == GRAINS
    assert native.build_info()["grains"] == GRAINS


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"edge_ops_tuning": 2}, "edge_ops_tuning must be 1, got 2"),
        ({"cpu": 3}, "cpu must be an object, got int"),
        ({"cpu": {}}, "cpu lacks grains"),
        ({"gpu": {}}, "the file has gpu"),
        ({"cpu": {"grains": {"norm": 1, "gate": 1}}}, "cpu.grains lacks heads"),
        ({"cpu": {"grains": {**GRAINS, "rope": 1}}}, "cpu.grains has rope"),
        *(
            ({"cpu": {"grains": {**GRAINS, "gate": bad}}}, "cpu.grains.gate must be an integer from 1")
            for bad in (0, -1, 2**62 + 1, 2.0, True, "8192", None)
        ),
    ],
)
def test_a_bad_file_names_its_key_and_changes_nothing(tmp_path, changes, named):
    before = native.build_info()["grains"]
    path = _file(tmp_path / "bad.json", **changes)
    with pytest.raises(ValueError, match="bad.json: ") as raised:
        edge_ops.load_tuning(path)
    assert named in str(raised.value)
    assert native.build_info()["grains"] == before


def test_what_is_no_file_of_tuning_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        edge_ops.load_tuning(tmp_path / "absent.json")
    (tmp_path / "text.json").write_text("norm = 3")
    with pytest.raises(ValueError, match="text.json: not JSON"):
        edge_ops.load_tuning(tmp_path / "text.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(ValueError, match="list.json: the file must be an object, got list"):
        edge_ops.load_tuning(tmp_path / "list.json")


@needs_native
def test_the_environment_names_a_file(tmp_path):
    program = ["-c", "from edge_ops import native; print(native.build_info()['grains'])"]
    good = _file(tmp_path / "good.json")
    assert output(program, {"EDGE_OPS_TUNING": str(good)}).strip() == str(GRAINS)
    assert output(program, {"EDGE_OPS_TUNING": ""}).strip() == str(native.BUILT_IN_GRAINS)
    bad = _file(tmp_path / "bad.json", cpu={})
    done = python(program, {"EDGE_OPS_TUNING": str(bad)})
    assert done.returncode != 0
    assert f"ImportError: EDGE_OPS_TUNING: {bad}: cpu lacks grains" in done.stderr


def test_native_grains_must_be_positive():
    if native.extension is None:
        pytest.skip("this build has no native code")
    before = native.extension.grains()
    with pytest.raises(ValueError, match="grains must be 1 or more, got 1, 0, 1"):
        native.extension.set_grains(1, 0, 1)
    assert native.extension.grains() == before


def _point(elements, gain, kind="norm", dtype="float32", noise=0.0):
    return tune.Point(kind, dtype, elements, gain * 1000.0, 1000.0, noise)


def test_the_split_pays_from_where_it_stays_ahead():
    gains = {2048: 0.3, 4096: 1.1, 8192: 0.9, 16384: 1.2, 32768: 1.6}
    points = [_point(elements, gain) for elements, gain in gains.items()]
    assert tune.crossover(points) == 16384
    assert tune.crossover(points[:3]) is None
    assert tune.crossover([*points[:4], _point(32768, 0.5, noise=0.5)]) == 16384  # too noisy to count


def test_a_grain_stands_between_the_points_that_it_parts():
    points = [_point(elements, elements / 9000) for elements in (2048, 4096, 8192, 16384, 32768)]
    assert tune.choose(points) == {"norm": 11264}  # geometric mean of 8192 and 16384, in whole thousands
    other = [_point(elements, elements / 40000, "gate") for elements in (2048, 4096, 8192, 16384, 32768)]
    assert tune.choose(points + other) == {"norm": 11264, "gate": 46080}


def test_one_grain_for_two_dtypes_loses_least():
    # float32 would split from 16384, bfloat16 much rather from 4096
    slow = [_point(elements, gain) for elements, gain in ((4096, 0.9), (8192, 0.95), (16384, 1.1))]
    fast = [_point(elements, gain, dtype="bfloat16") for elements, gain in ((4096, 2.0), (8192, 2.0), (16384, 2.0))]
    assert tune.choose(slow + fast)["norm"] < 4096


def test_a_noisy_sweep_chooses_nothing():
    points = [_point(elements, 2.0, noise=0.2) for elements in (2048, 4096, 8192)]
    with pytest.raises(ValueError, match="norm: 0 of 3 points are steady enough"):
        tune.choose(points)


@needs_native
def test_a_sweep_measures_every_point_and_puts_the_grains_back(kept_grains, monkeypatch):
    native.extension.set_grains(*GRAINS.values())
    torch.set_num_threads(2)
    monkeypatch.setattr(tune, "ROWS", (2, 48))
    points = tune.sweep(trials=4, block_us=10, attempts=1)
    assert native.extension.grains() == GRAINS
    assert {(point["kind"], point["dtype"], point["elements"]) for point in points} == {
        (kind, dtype, elements)
        for kind in GRAINS
        for dtype in ("float32", "bfloat16")
        for elements in (2 * 1024, 48 * 1024)
    }
    for point in points:
        assert {name: len(samples) for name, samples in point["samples_ns"].items()} == {
            "whole": 4,
            "split": 4,
            "whole (twin)": 4,
            "split (twin)": 4,
        }
        assert min(map(min, point["samples_ns"].values())) > 0
    lines = []
    tune.curves(tune.medians(points), lines.append)
    assert sum("the split pays" in line for line in lines) == 6


@needs_native
def test_one_thread_cannot_be_tuned(kept_grains):
    torch.set_num_threads(1)
    with pytest.raises(RuntimeError, match="one thread"):
        tune.sweep(trials=1, block_us=1)
