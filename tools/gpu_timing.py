"""The kernel clock: what a launch costs when hundreds of them are the nodes of one CUDA graph.

A node's time holds the kernel and the gap to its neighbour, so an empty kernel's node is the floor of every figure.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence

import torch

ROOT = Path(__file__).resolve().parents[1]


def output_of(*command: str) -> str:
    """What a command prints, or nothing where it fails or is missing."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine() -> Dict[str, Any]:
    """What a reader needs to judge a number. `EDGE_OPS_COMMIT` names the commit where git does not."""
    fields = "name,driver_version,clocks.max.sm,clocks.max.mem,power.limit,memory.total"
    values = output_of("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader")
    return {
        "host": platform.node(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nvcc": output_of("nvcc", "--version").splitlines()[-1:],
        "gpu": dict(zip(fields.split(","), values.split(", "))),
        "commit": os.environ.get("EDGE_OPS_COMMIT") or output_of("git", "rev-parse", "HEAD"),
        "modified": bool(output_of("git", "status", "--porcelain", "--untracked-files=no")),
    }


class GraphTimer:
    """`nodes` launches of one call in a graph. The call must not synchronize; its memory must outlive the timer."""

    def __init__(self, call: Callable[[], Any], nodes: int = 400) -> None:
        self.nodes = nodes
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # lazy set-up belongs outside the capture
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        # Not torch.cuda.graph: it collects garbage and empties the allocator's cache each time.
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(side):
            self.graph.capture_begin()
            for _ in range(nodes):
                call()
            self.graph.capture_end()
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.graph.replay()
        torch.cuda.synchronize()

    def sample(self) -> float:
        """Microseconds a node, over one replay."""
        self._start.record()
        self.graph.replay()
        self._end.record()
        self._end.synchronize()
        return self._start.elapsed_time(self._end) * 1000 / self.nodes


def median_time(call: Callable[[], Any], nodes: int = 400, samples: int = 9) -> float:
    timer = GraphTimer(call, nodes)
    return statistics.median(timer.sample() for _ in range(samples))


def turns(names: Sequence[str], trials: int) -> Iterator[str]:
    """Every name once a trial, in an order that rotates and turns around."""
    for trial in range(trials):
        turned = [*names[trial % len(names) :], *names[: trial % len(names)]]
        yield from turned if trial % 2 == 0 else reversed(turned)


def interleaved(timers: Dict[str, GraphTimer], trials: int) -> Dict[str, List[float]]:
    """Samples of every timer, trial by trial."""
    samples: Dict[str, List[float]] = {name: [] for name in timers}
    for name in turns(list(timers), trials):
        samples[name].append(timers[name].sample())
    return samples


def warm_up(seconds: float = 1.0) -> None:
    """Brings the clocks up."""
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
