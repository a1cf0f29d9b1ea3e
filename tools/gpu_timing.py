"""What the GPU tools share: the machine of a record, turns among arms, a node's time in a CUDA graph."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Sequence

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "torch-ext"))

from edge_ops.bench.cuda import Graph, warm_up  # noqa: E402
from edge_ops.bench.environment import output_of  # noqa: E402

__all__ = ["machine", "median_time", "turns", "warm_up"]


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
        "commit": os.environ.get("EDGE_OPS_COMMIT") or output_of("git", "-C", str(ROOT), "rev-parse", "HEAD"),
        "modified": bool(output_of("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")),
    }


def median_time(call: Callable[[], Any], nodes: int = 400, samples: int = 9) -> float:
    """Microseconds a node. The call's memory must outlive this one."""
    graph = Graph(call, nodes)
    return statistics.median(graph.nanoseconds() for _ in range(samples)) / 1000


def turns(names: Sequence[str], trials: int) -> Iterator[str]:
    """Every name once a trial, in an order that rotates and turns around."""
    for trial in range(trials):
        turned = [*names[trial % len(names) :], *names[: trial % len(names)]]
        yield from turned if trial % 2 == 0 else reversed(turned)
