#!/usr/bin/env python3
"""Times every plan of the CUDA kernels over the shapes of the benchmarks: what the routes' thresholds come from.

    python tools/gpu_sweep.py sweep.json [--operators rms_norm,...] [--samples 7]

Writes one record a cell: the operator, its shape, and microseconds a graph node for each plan that fits.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT), str(ROOT / "tools")]

from gpu_timing import machine, median_time, warm_up  # noqa: E402

from cuda import harness  # noqa: E402
from cuda.harness import ANY, LANES, REGISTERS, Plan  # noqa: E402

TOKENS = (1, 8, 32, 128, 512, 2048)
HIDDEN = (576, 640, 1024, 1152, 2048, 2560, 4096, 5376, 8192)
NARROW = (64, 128, 256)
GATED = (1536, 2048, 3072, 6912, 9728, 10240)
HEADS = (
    (16, 8, 128, 128), (32, 8, 128, 128), (4, 1, 256, 256), (8, 4, 256, 256), (16, 2, 256, 64), (24, 4, 256, 64),
    (9, 3, 64, 64), (64, 8, 64, 64),
)  # fmt: skip

Cell = Tuple[Dict[str, Any], harness.Prepared, List[Plan]]


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


def norm_cells() -> Iterator[Cell]:
    for operator, width, tokens in itertools.product(("rms_norm", "fused_add_rms_norm"), HIDDEN, TOKENS):
        x, weight = _random(tokens, width), _random(width)
        if operator == "rms_norm":
            prepared = harness.rms_norm(x, weight, out=torch.empty_like(x))
        else:
            prepared = harness.fused_add_rms_norm(x, _random(tokens, width), weight)
        plans = [Plan(REGISTERS, 8, chunks, 0, pdl) for chunks in (1, 2, 4) for pdl in (True, False)]
        yield {"operator": operator, "tokens": tokens, "width": width}, prepared, plans
    for width, rows in itertools.product(NARROW, (1, 24, 128, 768, 5120, 20480)):
        x, weight = _random(rows, width), _random(width)
        plans = [Plan(LANES, 8, 1, threads, pdl) for threads in (32, 64, 128, 256, 512) for pdl in (True, False)]
        plans.append(Plan(REGISTERS, 8, 1, 0, True))
        prepared = harness.rms_norm(x, weight, out=torch.empty_like(x))
        yield {"operator": "rms_norm", "tokens": rows, "width": width}, prepared, plans


def activation_cells() -> Iterator[Cell]:
    for operator, width, tokens in itertools.product(("silu_and_mul", "gelu_tanh_and_mul"), GATED, TOKENS):
        x = 2 * _random(tokens, 2 * width)
        shapes = ((1, 1), (2, 1), (4, 1), (8, 1), (4, 2), (8, 2))
        plans = [
            Plan(REGISTERS, elements, repeats, threads, pdl)
            for (elements, repeats), threads in itertools.product(shapes, (64, 128, 256, 512, 1024))
            for pdl in ((True, False) if threads == 256 else (True,))
            if tokens * width / elements / repeats < 2**19
        ]
        prepared = harness.gated_activation(operator, x, out=_random(tokens, width))
        yield {"operator": operator, "tokens": tokens, "width": width}, prepared, plans


def heads_cells() -> Iterator[Cell]:
    for normalize, (query, key, size, rotary), tokens in itertools.product((True, False), HEADS, TOKENS):
        positions = torch.arange(tokens, device="cuda") + 100
        angles = torch.rand(4096, rotary // 2, device="cuda") * 6
        cache = torch.cat([angles.cos(), angles.sin()], dim=1)
        q, k, weight = _random(tokens, query, size), _random(tokens, key, size), 1 + 0.1 * _random(size)
        weights = (weight, weight.clone()) if normalize else (None, None)
        prepared = harness.qk_rope(positions, q, k, *weights, cache, normalize=normalize)
        plans = [
            Plan(REGISTERS, elements, heads, threads, pdl)
            for elements, heads, threads in itertools.product((4, 8), (1, 2, 4), (32, 64, 128, 256))
            for pdl in ((True, False) if threads == 128 else (True,))
        ]
        operator = "fused_qk_norm_rope" if normalize else "rotary_embedding"
        cell = {"operator": operator, "tokens": tokens, "heads": [query, key], "size": size, "rotary": rotary}
        yield cell, prepared, plans


GROUPS: Dict[str, Callable[[], Iterator[Cell]]] = {
    "norm": norm_cells,
    "activation": activation_cells,
    "heads": heads_cells,
}


def key(plan: Plan) -> str:
    return ",".join(str(int(part)) for part in plan)


def sweep(groups: List[str], samples: int, budget: float) -> Dict[str, Any]:
    started, records, dropped = time.monotonic(), [], 0
    for group in groups:
        for cell, prepared, plans in GROUPS[group]():
            if time.monotonic() - started > budget:
                dropped += 1
                continue
            times = {}
            own = prepared.plan()
            for plan in dict.fromkeys((*plans, own)):
                try:
                    prepared(plan)
                except RuntimeError:  # not for this shape
                    continue
                nodes = 400 if cell["tokens"] <= 128 else 100
                times[key(plan)] = median_time(functools.partial(prepared, plan), nodes, samples)
            records.append({**cell, "own": key(own), "times": times})
    return {"seconds": time.monotonic() - started, "dropped": dropped, "records": records}


def floors() -> Dict[str, float]:
    return {
        "plain": median_time(functools.partial(harness.nothing, False)),
        "dependent": median_time(functools.partial(harness.nothing, True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--groups", default="norm,activation,heads")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no further cell is started")
    options = parser.parse_args()
    warm_up()
    result = {
        "machine": machine(),
        "plan": list(Plan._fields),
        "kernels": {"registers": REGISTERS, "lanes": LANES, "any": ANY},
        "floor": floors(),
        **sweep(options.groups.split(","), options.samples, options.budget),
    }
    options.output.write_text(json.dumps(result))
    seconds, dropped = result["seconds"], result["dropped"]
    print(f"{len(result['records'])} cells in {seconds:.0f} s, {dropped} dropped; floor {result['floor']}")


if __name__ == "__main__":
    main()
