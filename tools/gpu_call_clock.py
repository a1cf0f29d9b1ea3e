#!/usr/bin/env python3
"""What a call from Python costs on a GPU, beside the launch of an empty kernel through the same binding.

    python tools/gpu_call_clock.py call_clock.json [--blocks 40] [--calls 400]

Wall time of back-to-back calls at one token, bfloat16, a synchronize after each block of them; blocks of all arms take
turns. Arms of an operator:

    edge, edge_null   the public function, twice: the second shows the noise
    floor             tests/cuda/empty_call.cu with the same tensors: a view of each, the stream, an empty kernel
    launch            the same without tensors: the stream and the launch
    eager             the formula as transformers writes it

`EDGE_OPS_EMPTY_CALL` names the compiled module; without it nvcc builds it below build/.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT), str(ROOT / "tools")]

from gpu_timing import machine, turns, warm_up  # noqa: E402

import edge_ops  # noqa: E402

HIDDEN, GATED, QUERY, KEY, SIZE = 1024, 3072, 16, 8, 128
EPS = 1e-6

Arms = Dict[str, Callable[[], Any]]


def build_empty_call(output: Path, architecture: str = "native") -> Path:
    output.parent.mkdir(parents=True, exist_ok=True)
    include = f"-I{sysconfig.get_paths()['include']}"
    flags = ("-std=c++17", "-O3", "-cudart=static", "-shared", "-Xcompiler=-fPIC,-fvisibility=hidden", include)
    source = str(ROOT / "tests" / "cuda" / "empty_call.cu")
    subprocess.run(["nvcc", *flags, f"-arch={architecture}", "-o", str(output), source], check=True)
    return output


def load_empty_call() -> Callable[..., None]:
    given = os.environ.get("EDGE_OPS_EMPTY_CALL")
    path = Path(given) if given else build_empty_call(ROOT / "build" / "empty_call.so")
    spec = importlib.util.spec_from_file_location("empty_call", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.call


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


def eager_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    return weight * wide.to(x.dtype)


def eager_rotation(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def cells(floor: Callable[..., None]) -> Iterator[Tuple[str, Arms]]:
    def arms(call: Callable[[], Any], eager: Callable[[], Any], *tensors: torch.Tensor) -> Arms:
        return {"edge": call, "edge_null": call, "floor": lambda: floor(*tensors), "launch": floor, "eager": eager}

    x, residual, weight, out = random(1, HIDDEN), random(1, HIDDEN), random(HIDDEN), random(1, HIDDEN)
    yield (
        "rms_norm, out=",
        arms(lambda: edge_ops.rms_norm(x, weight, out=out), lambda: eager_norm(x, weight), x, weight, out),
    )
    yield "rms_norm", arms(lambda: edge_ops.rms_norm(x, weight), lambda: eager_norm(x, weight), x, weight)
    yield (
        "fused_add_rms_norm",
        arms(
            lambda: edge_ops.fused_add_rms_norm(x, residual, weight),
            lambda: eager_norm(residual + x, weight), x, residual, weight,
        ),
    )  # fmt: skip
    both, half = random(1, 2 * GATED), random(1, GATED)
    gate, up = both.chunk(2, -1)
    functional = torch.nn.functional
    yield (
        "silu_and_mul, out=",
        arms(lambda: edge_ops.silu_and_mul(both, out=half), lambda: functional.silu(gate) * up, both, half),
    )
    yield (
        "gelu_tanh_and_mul, out=",
        arms(
            lambda: edge_ops.gelu_tanh_and_mul(both, out=half),
            lambda: functional.gelu(gate, approximate="tanh") * up, both, half,
        ),
    )  # fmt: skip
    query, key, scale = random(1, QUERY, SIZE), random(1, KEY, SIZE), 1 + 0.1 * random(SIZE)
    positions = torch.tensor([5], device="cuda")
    cache = edge_ops.rope_cache(64, SIZE, device="cuda")
    cos, sin = (torch.cat((part, part), -1).bfloat16() for part in cache[positions].unsqueeze(1).chunk(2, -1))
    yield (
        "rotary_embedding",
        arms(
            lambda: edge_ops.rotary_embedding(positions, query, key, cache),
            lambda: (eager_rotation(query, cos, sin), eager_rotation(key, cos, sin)), positions, query, key, cache,
        ),
    )  # fmt: skip
    yield (
        "fused_qk_norm_rope",
        arms(
            lambda: edge_ops.fused_qk_norm_rope(positions, query, key, scale, scale, cache),
            lambda: (
                eager_rotation(eager_norm(query, scale), cos, sin), eager_rotation(eager_norm(key, scale), cos, sin)
            ),
            positions, query, key, scale, scale, cache,
        ),
    )  # fmt: skip


def measure(arms: Arms, blocks: int, calls: int) -> Dict[str, List[float]]:
    """Microseconds a call, of each block."""
    samples: Dict[str, List[float]] = {name: [] for name in arms}
    for call in arms.values():
        for _ in range(20):
            call()
    torch.cuda.synchronize()
    for name in turns(list(arms), blocks):
        call = arms[name]
        start = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        samples[name].append((time.perf_counter() - start) / calls * 1e6)
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--calls", type=int, default=400)
    options = parser.parse_args()
    floor = load_empty_call()
    warm_up()
    records = []
    with torch.no_grad():
        for name, arms in cells(floor):
            samples = measure(arms, options.blocks, options.calls)
            records.append({"call": name, "samples": samples})
            medians = {arm: statistics.median(values) for arm, values in samples.items()}
            print(
                f"{name:24}", *(f"{arm} {value:.2f}" for arm, value in medians.items()),
                f"| {medians['edge'] / medians['floor']:.2f} x floor, "
                f"eager {medians['eager'] / medians['edge']:.1f} x edge", flush=True,
            )  # fmt: skip
    result = {"machine": machine(), "build": edge_ops.native.build_info(), "calls": options.calls, "records": records}
    options.output.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
