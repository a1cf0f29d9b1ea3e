"""The clocks of a CUDA device.

`call` is the wall time of back-to-back calls from Python, a synchronize after each block: what an eager loop pays.
The others are the GPU's own time: the call is captured many times as the nodes of one CUDA graph, and two events
stand around its replay.

    kernel   the nodes one behind the other: kernels that can start early (programmatic dependent launch) do
    behind   each node behind a small kernel of PyTorch's, which lets nothing start early; its time is subtracted
    cold     each node behind a write of more than the L2 cache holds; its time is subtracted

A node's time holds the gap to its neighbour, so PyTorch's smallest kernel stands beside them as the floor.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any, Optional

import torch

from .arms import MAIN, OWN, Call
from .environment import output_of
from .timing import TimedCall

NODES = {"kernel": 200, "behind": 200, "cold": 40}
_BASELINE_SAMPLES = 15


class Graph:
    """`nodes` times a function in a CUDA graph. The function must not synchronize."""

    def __init__(self, function: Callable[[], Any], nodes: int) -> None:
        self.nodes = nodes
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # lazy set-up belongs outside the capture
            for _ in range(3):
                function()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        # Not torch.cuda.graph: it collects garbage and empties the allocator's cache each time.
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(side):
            self._graph.capture_begin()
            try:
                for _ in range(nodes):
                    function()
            finally:
                self._graph.capture_end()
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._graph.replay()
        torch.cuda.synchronize()

    def nanoseconds(self) -> float:
        """Of a node, over one replay."""
        self._start.record()
        self._graph.replay()
        self._end.record()
        self._end.synchronize()
        return self._start.elapsed_time(self._end) * 1e6 / self.nodes


class Spacer:
    """What stands between two nodes, and its own time."""

    def __init__(self, function: Callable[[], Any], nodes: int) -> None:
        self.function = function
        graph = Graph(function, nodes)
        self.nanoseconds = statistics.median(graph.nanoseconds() for _ in range(_BASELINE_SAMPLES))


def spacers(clocks: tuple[str, ...]) -> dict[str, Spacer]:
    """Those that these clocks need, made once a run."""
    found = {}
    if "behind" in clocks:
        one = torch.zeros(1, device="cuda")
        found["behind"] = Spacer(lambda: one.add_(1), NODES["behind"])
    if "cold" in clocks:
        cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        flood = torch.empty(2 * cache, dtype=torch.uint8, device="cuda")
        found["cold"] = Spacer(lambda: flood.zero_(), NODES["cold"])
    return found


class KernelClock:
    """A call as nodes of a graph: what the runner times instead of the call itself."""

    def __init__(self, timed: TimedCall, nodes: int, spacer: Optional[Spacer]) -> None:
        self.call: Call = timed.call
        self.block = nodes
        self.once = timed.once
        self._spacer = spacer
        self._graph: Optional[Graph] = None

    def restore(self) -> None:
        if self.call.restore is not None:
            self.call.restore()

    def _node(self) -> None:
        if self._spacer is not None:
            self._spacer.function()
        self.once()

    def calibrate(self, block_ns: int) -> None:
        """Captures the graph; it holds as many nodes as it holds, whatever a block should last.

        Raises:
            RuntimeError: the call cannot be captured.
        """
        self.restore()
        self._graph = Graph(self._node, self.block)

    def trial(self) -> float:
        """Nanoseconds of a node, without what stands before it; never less than one, where noise is larger than it."""
        assert self._graph is not None, "calibrate first"
        self.restore()
        before = self._spacer.nanoseconds if self._spacer is not None else 0.0
        return max(self._graph.nanoseconds() - before, 1.0)


def kernel_clocks(clock: str, timed: Mapping[str, TimedCall], made: Mapping[str, Spacer]) -> dict[str, KernelClock]:
    """The arms on a kernel clock. Edge-ops' other routes launch the same kernels, so one of its arms is enough."""
    return {
        name: KernelClock(call, NODES[clock], made.get(clock))
        for name, call in timed.items()
        if name == MAIN or name not in OWN
    }


def device_record() -> dict[str, str]:
    """What a reader needs to know of the GPU; clocks as the driver tells them, where it can be asked."""
    fields = "driver_version,clocks.max.sm,clocks.max.mem,power.limit"
    answer = output_of("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader").split(", ")
    driver, *clocks = answer if len(answer) == 4 else ("unknown", "clocks not readable")
    return {
        "name": torch.cuda.get_device_name(),
        "driver": driver,
        "cuda": str(torch.version.cuda),
        "clocks": ", ".join(clocks),
    }


def warm_up(seconds: float = 1.0) -> None:
    """Brings the GPU's clocks up."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    while True:
        for _ in range(20):
            a @ a
        end.record()
        end.synchronize()
        if start.elapsed_time(end) > seconds * 1000:
            return
