"""The adapters that need nothing but PyTorch and Edge-ops, and the check that stands before every timing."""

from types import SimpleNamespace

import pytest
import torch

from edge_ops.bench import arms, cells, problems, runner, timing
from edge_ops.bench.arms import eager, edge
from edge_ops.bench.arms.base import Call, work_copies

SMALL = [
    cells.Cell(operator, dtype, 3, cells.geometries(operator)[index])
    for operator in cells.OPERATORS
    for dtype in cells.DTYPES["cpu"]
    for index in (0, 4)  # 4: the partial rotation, among the head layouts
]


@pytest.mark.parametrize("cell", SMALL, ids=lambda cell: cell.key)
@pytest.mark.parametrize("arm", [*eager.ARMS, *edge.ARMS], ids=lambda arm: arm.name)
def test_arm_computes_the_operator(arm, cell):
    try:
        arm.load()
    except arms.NotInstalled as missing:
        pytest.skip(str(missing))
    with torch.no_grad():
        prepared = runner.prepare(arm, problems.make(cell))
    if prepared is None:
        assert cell.operator not in arm.calls
        return
    assert prepared[2] <= 1


@pytest.mark.parametrize("cell", SMALL, ids=lambda cell: cell.key)
def test_the_check_sees_a_result_that_is_off(cell):
    """One part in a hundred is far above what any arm may round."""
    problem = problems.make(cell)
    exact = tuple(expected.to(problem.dtype) for expected in problem.expected)
    assert arms.worst_error(Call("", {}), exact, problem) <= 1
    off = tuple((expected * 1.05).to(problem.dtype) for expected in problem.expected)
    assert arms.worst_error(Call("", {}, roundings=3), off, problem) > 1


def test_a_cell_gives_the_same_inputs_every_time():
    first, second = (problems.make(SMALL[0]).inputs for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_in_place_inputs_are_restored():
    problem = problems.make(cells.Cell("rms_norm", "float32", 2, cells.Geometry(width=8)))
    (x,), restore = work_copies(problem, "x")
    call = Call("x.zero_()", {"x": x}, lambda value: (value,), restore)
    timed = timing.TimedCall(call)
    timed.once()
    assert not x.any()
    timed.restore()
    assert torch.equal(x, problem.inputs["x"])


def test_statements_run_in_order_and_the_last_is_the_value():
    seen = []
    once, loop = timing.compiled(Call("note(1); note(2)", {"note": lambda value: seen.append(value) or value}))
    assert once() == 2
    loop(2)
    assert seen == [1, 2, 1, 2, 1, 2]


def test_a_pass_times_every_arm_in_every_trial():
    calls = {name: timing.TimedCall(Call("f()", {"f": lambda: None})) for name in "abc"}
    samples = timing.run_pass(calls, trials=4)
    assert {name: len(found) for name, found in samples.items()} == {"a": 6, "b": 6, "c": 6}  # whole designs


def test_an_arm_that_is_wrong_is_named_and_not_timed():
    doubled = {"rms_norm": lambda problem: Call("x + x", problem.inputs, lambda value: (value,))}
    wrong = SimpleNamespace(name="wrong", title="twice the input", calls=doubled)
    cell = cells.Cell("rms_norm", "float32", 1, cells.Geometry(width=64))
    settings = runner.Settings(threads=(1,), arms=("wrong", "eager"), trials=2, keep=1, passes=1, block_us=1)
    with torch.no_grad():
        (record,) = runner.run_cell(cell, 1, [wrong, eager.ARMS[0]], settings)
    assert "wrong" in record["arms"]["wrong"]
    assert set(record["passes"][0]) == {"eager", "eager (twin)"}
