"""Finds the size from which splitting an operator over threads pays, on this host.

The library must be built to fork whatever the size, `tools/dev_build.sh -DEDGE_OPS_GRAIN=1`; each point then times
one thread against all of them, interleaved. The crossover, the elements from which the threads are ahead and stay
ahead, is what csrc/cpu/dispatch.cpp holds as a grain.

    python -m benchmarks.sweep_grains --out benchmarks/results/grains-HOST.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

import torch

import edge_ops

from .arms import Call
from .environment import host
from .timing import TimedCall, no_garbage_collection

ROWS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
WIDTH = 1024


def calls(rows: int, dtype: torch.dtype) -> dict[str, tuple[int, Call]]:
    """Per operator: elements (as the grain counts them) and the call."""
    x, up = torch.randn(rows, WIDTH).to(dtype), torch.randn(rows, 2 * WIDTH).to(dtype)
    out, weight = torch.empty_like(x), torch.randn(WIDTH).to(dtype)
    query, key = torch.randn(rows, 6, 128).to(dtype), torch.randn(rows, 2, 128).to(dtype)
    head_weight, cache = torch.randn(128).to(dtype), edge_ops.rope_cache(256, 128)
    positions = torch.arange(rows)
    norm = {"op": edge_ops.rms_norm, "x": x, "weight": weight, "out": out}
    heads = {"positions": positions, "q": query, "k": key, "cache": cache}
    return {
        "norm": (rows * WIDTH, Call("op(x, weight, out=out)", norm)),
        "gate": (rows * WIDTH, Call("op(x, out=out)", {"op": edge_ops.silu_and_mul, "x": up, "out": out})),
        "heads": (
            rows * WIDTH,
            Call(
                "op(positions, q, k, w, w, cache, query_out=qo, key_out=ko)",
                {
                    "op": edge_ops.fused_qk_norm_rope,
                    "w": head_weight,
                    "qo": torch.empty_like(query),
                    "ko": torch.empty_like(key),
                    **heads,
                },
            ),
        ),
    }


def point(call: Call, threads: int, trials: int, block_ns: int) -> dict[str, list[float]]:
    """Samples in ns with one thread and with `threads`, taken in turn."""
    timed = TimedCall(call)
    samples: dict[str, list[float]] = {"one": [], "all": []}
    with no_garbage_collection():
        for trial in range(trials):
            order = (1, threads) if trial % 2 else (threads, 1)
            for count in order:
                torch.set_num_threads(count)
                if trial == 0:
                    timed.calibrate(block_ns)
                samples["one" if count == 1 else "all"].append(timed.trial())
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--out", help="write the samples as JSON")
    args = parser.parse_args()
    points: list[dict[str, Any]] = []
    crossover: dict[str, int | None] = {}
    with torch.inference_mode():
        for dtype in (torch.float32, torch.bfloat16):
            for rows in ROWS:
                for name, (elements, call) in calls(rows, dtype).items():
                    samples = point(call, args.threads, args.trials, 100_000)
                    one, many = (statistics.median(samples[key]) for key in ("one", "all"))
                    label = f"{name} {str(dtype)[6:]}"
                    points.append({"op": label, "rows": rows, "elements": elements, "samples_ns": samples})
                    if one < many:
                        crossover[label] = None
                    elif crossover.get(label) is None:
                        crossover[label] = elements
                    print(
                        f"{label:15} {elements:7d} elements  one {one / 1e3:7.2f} us  all {many / 1e3:7.2f} us",
                        flush=True,
                    )
    for label, elements in crossover.items():
        print(f"{label:15} threads pay from {elements} elements")
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump({"host": host(), "threads": args.threads, "points": points, "crossover": crossover}, file)


if __name__ == "__main__":
    main()
