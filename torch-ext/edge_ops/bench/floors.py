"""What no operator can go below: a call that does nothing, and a copy of as many bytes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

import torch

from ..ops import rms_norm
from .arms import Call, NotInstalled, edge
from .problems import EPS, Traffic
from .timing import TimedCall, run_pass

# Bytes read plus bytes written by a copy: from half of a small L1 cache to far outside the L2.
WORKING_SETS = tuple(1 << power for power in range(13, 27))
OWN_CALL = "edge_ops, no rows"
_STEP = 16  # floats between the starts of two copied windows: one cache line


def _copy_call(working_set: int) -> tuple[Call, int]:
    """A copy whose data is `working_set` bytes in all, and the bytes that one call moves.

    One call copies many overlapping windows, each a cache line further along one of two dimensions, so that a
    small working set is copied many times for one pass through the dispatcher.
    """
    floats = working_set // 8
    steps = max(1, min(math.isqrt((1 << 20) // working_set), floats // _STEP // 4))
    length = floats - 2 * (steps - 1) * _STEP
    shape, strides = (steps, steps, length), (_STEP, _STEP, 1)
    source, target = torch.rand(floats), torch.rand(floats)
    names = {"source": source.as_strided(shape, strides), "target": target.as_strided(shape, strides)}
    return Call("target.copy_(source)", names), 8 * steps * steps * length


def cuda_copy_bandwidth() -> dict[int, float]:
    """The same on a GPU: copies as the nodes of a graph, the gap between two of them included."""
    from .cuda import NODES, Graph

    found = {}
    for working_set in WORKING_SETS:
        source, target = (torch.rand(working_set // 8, device="cuda") for _ in range(2))
        graph = Graph(lambda target=target, source=source: target.copy_(source), NODES["kernel"])  # type: ignore[misc]
        found[working_set] = working_set / statistics.median(graph.nanoseconds() for _ in range(7))
    return found


def cuda_floors() -> dict[str, dict[str, Any]]:
    """PyTorch's smallest kernel, called and as a node of a graph: below it nothing that is launched can go."""
    from .cuda import NODES, Graph

    one = torch.zeros(1, device="cuda")
    call = TimedCall(Call("one.add_(1)", {"one": one}), torch.cuda.synchronize)
    call.calibrate(2_000_000)
    graph = Graph(lambda: one.add_(1), NODES["kernel"])
    return {
        "PyTorch's smallest kernel, called": {"samples": [call.trial() for _ in range(20)]},
        "PyTorch's smallest kernel, a node of a graph": {"samples": [graph.nanoseconds() for _ in range(20)]},
    }


def copy_bandwidth(block_ns: int) -> dict[int, float]:
    """Bytes a nanosecond (GB/s), read plus written, for each working set, with torch's present thread count."""
    calls, moved = {}, {}
    for working_set in WORKING_SETS:
        call, moved[working_set] = _copy_call(working_set)
        timed = TimedCall(call)
        timed.calibrate(block_ns)
        calls[str(working_set)] = timed
    samples = run_pass(calls, trials=7)
    return {size: moved[size] / statistics.median(samples[str(size)]) for size in WORKING_SETS}


def roof_ns(traffic: Traffic, bandwidth: Mapping[int, float]) -> float:
    """Time that a copy takes for as many bytes, at the bandwidth of the working set nearest in size."""
    nearest = min(bandwidth, key=lambda size: max(size / traffic.resident, traffic.resident / size))
    return traffic.moved / bandwidth[nearest]


def _python_function(x: Any, weight: Any, eps: float, out: Any = None) -> Any:
    return out


def call_floors(block_ns: int) -> dict[str, dict[str, Any]]:
    """Nanoseconds of calls that have no rows to work on: what a call costs before its first byte.

    The same arguments as rms_norm: three tensors and a number.
    """
    names = {"x": torch.empty(0, 1024), "weight": torch.rand(1024), "eps": EPS, "out": torch.empty(0, 1024)}
    calls = {
        "empty loop": Call("None", {}),
        "Python function": Call("f(x, weight, eps, out=out)", {"f": _python_function, **names}),
    }
    try:
        calls[OWN_CALL] = Call("f(x, weight, eps, out=out)", {"f": rms_norm, **names})
        registered = edge.registered().rms_norm_out.default
        calls["edge_ops through the dispatcher, no rows"] = Call(
            "f(out, x, weight, eps, 0.0)", {"f": registered, **names}
        )
    except NotInstalled:
        pass  # the arm itself reports what is missing
    timed = {name: TimedCall(call) for name, call in calls.items()}
    for one in timed.values():
        one.calibrate(block_ns)
    return {name: {"samples": samples} for name, samples in run_pass(timed, trials=20).items()}


def measure(device: str, block_ns: int) -> dict[str, Any]:
    """What a record says of a device's floors."""
    if device == "cuda":
        return {"calls": cuda_floors(), "copy_bytes_per_ns": cuda_copy_bandwidth()}
    return {"calls": call_floors(block_ns), "copy_bytes_per_ns": copy_bandwidth(block_ns)}
