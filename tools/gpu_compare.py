#!/usr/bin/env python3
"""The CUDA kernels beside those of other libraries, on the kernel clock, in one process.

    python tools/gpu_compare.py compare.json [--tokens 1,8,32,128] [--trials 12] [--quick]

Arms: `edge` (each operator's own plan), `edge_null` (the same again: the noise), `edge_plain` (without dependent
launch), `inductor` (torch.compile), and what is installed of these, loaded from where the environment says:

    EDGE_OPS_PEER_SGLANG      sgl_kernel's common_ops.abi3.so
    EDGE_OPS_PEER_VLLM        vLLM's _C_stable_libtorch.abi3.so
    EDGE_OPS_PEER_FLASHINFER  a folder with FlashInfer's compiled modules norm.so, rope.so, silu_and_mul.so, ...

Every arm of a cell is captured as the nodes of one graph; the graphs are replayed in turn. In-place operators work on
their own copies.

--cold writes more than the L2 cache holds before each call, as a node of its own; the arm `empty` is that and an empty
kernel, to be subtracted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT), str(ROOT / "tools")]

from gpu_timing import GraphTimer, interleaved, machine, median_time, warm_up  # noqa: E402

from cuda import harness  # noqa: E402

EPS = 1e-6
HIDDEN = (576, 640, 1024, 1152, 2560)
GATED = (1536, 2048, 3072, 6912, 9728, 10240)
HEADS = (
    (16, 8, 128, 128), (32, 8, 128, 128), (4, 1, 256, 256), (8, 4, 256, 256), (16, 2, 256, 64), (24, 4, 256, 64),
    (9, 3, 64, 64),
)  # fmt: skip

Arms = Dict[str, Callable[[], Any]]


class Peers:
    """What is there of other libraries. Their functions are called as they are, without any front."""

    def __init__(self) -> None:
        self.sglang = self._ops("EDGE_OPS_PEER_SGLANG", "sgl_kernel")
        self.vllm = self._ops("EDGE_OPS_PEER_VLLM", "_C")
        self.flashinfer: Dict[str, Any] = {}
        folder = os.environ.get("EDGE_OPS_PEER_FLASHINFER")
        if folder:
            import tvm_ffi

            for path in sorted(Path(folder).glob("*.so")):
                self.flashinfer[path.stem] = tvm_ffi.load_module(str(path))

    @staticmethod
    def _ops(variable: str, namespace: str) -> Any:
        path = os.environ.get(variable)
        if not path:
            return None
        torch.ops.load_library(path)
        return getattr(torch.ops, namespace)

    def flash(self, module: str, name: str, *arguments: Any) -> Optional[Callable[[], Any]]:
        """A FlashInfer call on the current stream, which its binding asks of tvm-ffi."""
        if module not in self.flashinfer:
            return None
        import tvm_ffi

        function = getattr(self.flashinfer[module], name)

        def call() -> None:
            with tvm_ffi.use_torch_stream():
                function(*arguments)

        return call

    def describe(self) -> Dict[str, bool]:
        return {"sglang": bool(self.sglang), "vllm": bool(self.vllm), "flashinfer": bool(self.flashinfer)}


def random(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def edge_arms(make: Callable[[], harness.Prepared]) -> Arms:
    own, null, plain = make(), make(), make()
    without = plain.plan()._replace(dependent=harness.NEVER)
    return {"edge": own, "edge_null": null, "edge_plain": lambda: plain(without)}


def rms_norm_arms(peers: Peers, dtype: torch.dtype, tokens: int, width: int) -> Arms:
    x, weight = random(dtype, tokens, width), random(dtype, width)

    def out() -> torch.Tensor:
        return torch.empty_like(x)

    arms = edge_arms(lambda: harness.rms_norm(x, weight, EPS, out=out()))
    flash_out, sglang_out, vllm_out = out(), out(), out()
    arms["flashinfer"] = peers.flash("norm", "rmsnorm", flash_out, x, weight, EPS, True)
    if peers.sglang:
        arms["sglang"] = lambda: peers.sglang.rmsnorm(sglang_out, x, weight, EPS, True)
    if peers.vllm:
        arms["vllm"] = lambda: peers.vllm.rms_norm(vllm_out, x, weight, EPS)

    def formula(x, weight):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS) * weight.float()).to(x.dtype)

    compiled = torch.compile(formula, fullgraph=True, dynamic=False)
    arms["inductor"] = lambda: compiled(x, weight)
    return arms


def fused_add_arms(peers: Peers, dtype: torch.dtype, tokens: int, width: int) -> Arms:
    weight = random(dtype, width)

    def pair() -> Tuple[torch.Tensor, torch.Tensor]:
        return random(dtype, tokens, width), random(dtype, tokens, width)

    arms = edge_arms(lambda: harness.fused_add_rms_norm(*pair(), weight, EPS))
    arms["flashinfer"] = peers.flash("norm", "fused_add_rmsnorm", *pair(), weight, EPS, True)
    if peers.sglang:
        a, b = pair()
        arms["sglang"] = lambda: peers.sglang.fused_add_rmsnorm(a, b, weight, EPS, True)
    if peers.vllm:
        c, d = pair()
        arms["vllm"] = lambda: peers.vllm.fused_add_rms_norm(c, d, weight, EPS)

    def formula(x, residual, weight):
        total = x + residual
        wide = total.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS) * weight.float()).to(x.dtype), total

    compiled = torch.compile(formula, fullgraph=True, dynamic=False)
    e, f = pair()
    arms["inductor"] = lambda: compiled(e, f, weight)
    return arms


def gated_arms(peers: Peers, dtype: torch.dtype, tokens: int, width: int, operator: str) -> Arms:
    x = 2 * random(dtype, tokens, 2 * width)

    def out() -> torch.Tensor:
        return torch.empty(tokens, width, device="cuda", dtype=dtype)

    arms = edge_arms(lambda: harness.gated_activation(operator, x, out=out()))
    arms["flashinfer"] = peers.flash(operator, operator, out(), x, True)
    sglang_out, vllm_out = out(), out()
    if peers.sglang:
        sglang = getattr(peers.sglang, operator)
        arms["sglang"] = lambda: sglang(sglang_out, x)
    if peers.vllm:
        vllm = getattr(peers.vllm, operator)
        arms["vllm"] = lambda: vllm(vllm_out, x)

    def formula(x):
        gate, up = x.float().chunk(2, -1)
        if operator == "silu_and_mul":
            return (torch.nn.functional.silu(gate) * up).to(x.dtype)
        return (torch.nn.functional.gelu(gate, approximate="tanh") * up).to(x.dtype)

    compiled = torch.compile(formula, fullgraph=True, dynamic=False)
    arms["inductor"] = lambda: compiled(x)
    return arms


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = cos.shape[-1]
    a, b, rest = heads.float().split([half, half, heads.shape[-1] - 2 * half], -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).to(heads.dtype)


def heads_arms(
    peers: Peers, dtype: torch.dtype, tokens: int, query: int, key: int, size: int, rotary: int, normalize: bool
) -> Arms:
    positions = torch.arange(tokens, device="cuda") + 100
    frequencies = 10000.0 ** (-torch.arange(0, rotary, 2, device="cuda") / rotary)
    angles = torch.arange(4096, device="cuda")[:, None] * frequencies
    cache = torch.cat([angles.cos(), angles.sin()], dim=1)
    weights = [1 + 0.1 * random(dtype, size) for _ in range(2)] if normalize else [None, None]

    def heads() -> Tuple[torch.Tensor, torch.Tensor]:
        return random(dtype, tokens, query, size), random(dtype, tokens, key, size)

    arms = edge_arms(lambda: harness.qk_rope(positions, *heads(), *weights, cache, EPS, normalize=normalize))
    narrow_cache, q, k = cache.to(dtype), *heads()
    if normalize:
        packed = [random(dtype, tokens, (query + 2 * key) * size) for _ in range(2)]
        narrow_positions = positions.int()
        if peers.vllm and size in (64, 128, 256):
            arms["vllm"] = lambda: peers.vllm.fused_qk_norm_rope(
                packed[0], query, key, key, size, EPS, *weights, narrow_cache, True, positions
            )
        if peers.sglang and size in (64, 128, 256):
            arms["sglang"] = lambda: peers.sglang.fused_qk_norm_rope(
                packed[1], query, key, key, size, EPS, *weights, 10000.0, True, narrow_positions, 1.0, 1.0, 1.0, 1.0,
                rotary,
            )  # fmt: skip
    else:
        if "rope" in peers.flashinfer and size in (64, 128, 256):
            q2, k2 = heads()
            arms["flashinfer"] = peers.flash(
                "rope", "apply_rope_pos_ids_cos_sin_cache", q2, k2, q2, k2, cache, positions, False
            )
        if peers.vllm:
            flat = (q.view(tokens, -1), k.view(tokens, -1))
            arms["vllm"] = lambda: peers.vllm.rotary_embedding(positions, *flat, size, narrow_cache, True)

    def formula(positions, q, k, q_weight, k_weight, cache):
        cos, sin = cache[positions][:, None].chunk(2, -1)
        results = []
        for x, weight in ((q, q_weight), (k, k_weight)):
            if normalize:
                wide = x.float()
                x = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS) * weight.float()).to(x.dtype)
            results.append(rotate(x, cos, sin))
        return results

    compiled = torch.compile(formula, fullgraph=True, dynamic=False)
    arms["inductor"] = lambda: compiled(positions, *heads_once, *weights, cache)
    heads_once = heads()
    return arms


def cells(tokens: List[int], quick: bool) -> Iterator[Tuple[Dict[str, Any], Callable[[Peers, torch.dtype], Arms]]]:
    def thin(options: tuple) -> tuple:
        return options[2:3] if quick else options

    for count in tokens:
        for width in thin(HIDDEN):
            base = {"tokens": count, "width": width}
            yield {"operator": "rms_norm", **base}, lambda p, d, c=count, w=width: rms_norm_arms(p, d, c, w)
            yield {"operator": "fused_add_rms_norm", **base}, lambda p, d, c=count, w=width: fused_add_arms(p, d, c, w)
        for width in thin(GATED):
            for operator in ("silu_and_mul", "gelu_tanh_and_mul"):
                yield (
                    {"operator": operator, "tokens": count, "width": width},
                    lambda p, d, c=count, w=width, o=operator: gated_arms(p, d, c, w, o),
                )
        for layout in HEADS[:1] if quick else HEADS:
            for normalize in (True, False):
                query, key, size, rotary = layout
                yield (
                    {
                        "operator": "fused_qk_norm_rope" if normalize else "rotary_embedding",
                        "tokens": count, "heads": [query, key], "size": size, "rotary": rotary,
                    },
                    lambda p, d, c=count, a=layout, n=normalize: heads_arms(p, d, c, *a, n),
                )  # fmt: skip


def after_flush(arms: Arms) -> Arms:
    """The arms with everything that they read in DRAM, and an empty kernel in the same place."""
    flood = torch.empty(2 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.uint8, device="cuda")

    def cold(call: Callable[[], Any]) -> Callable[[], Any]:
        def both() -> None:
            flood.zero_()
            call()

        return both

    found = {name: cold(call) for name, call in arms.items() if call is not None}
    return {**found, "empty": cold(harness.nothing)}


def measure(arms: Arms, trials: int, nodes: int) -> Tuple[Dict[str, List[float]], Dict[str, str]]:
    timers, failed = {}, {}
    for name, call in arms.items():
        if call is None:
            continue
        try:
            timers[name] = GraphTimer(call, nodes)
        except Exception as problem:  # a peer that refuses the shape
            if name.startswith("edge"):
                raise
            failed[name] = str(problem).splitlines()[0][:200]
    return interleaved(timers, trials), failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--tokens", default="1,8,32,128")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--operators", default="")
    parser.add_argument("--quick", action="store_true", help="one geometry an operator")
    parser.add_argument("--cold", action="store_true", help="flush the L2 cache before each call")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no further cell is started")
    options = parser.parse_args()
    torch._dynamo.config.recompile_limit = 10_000
    warm_up()
    peers, started, records, dropped = Peers(), time.monotonic(), [], 0
    dtype = getattr(torch, options.dtype)
    for cell, make in cells([int(part) for part in options.tokens.split(",")], options.quick):
        if options.operators and cell["operator"] not in options.operators.split(","):
            continue
        if time.monotonic() - started > options.budget:
            dropped += 1
            continue
        arms = make(peers, dtype)
        if options.no_compile:
            arms.pop("inductor")
        if options.cold:
            arms = after_flush(arms)
        nodes = 100 if options.cold or cell["tokens"] > 128 else 400
        samples, failed = measure(arms, options.trials, nodes)
        records.append({**cell, "samples": samples, "failed": failed})
        medians = {name: round(statistics.median(values), 3) for name, values in samples.items()}
        print(json.dumps({**cell, **medians, **({"failed": failed} if failed else {})}), flush=True)
        torch._dynamo.reset()
    result = {
        "machine": machine(),
        "dtype": options.dtype,
        "cold": options.cold,
        "peers": peers.describe(),
        "floor": {
            "plain": median_time(lambda: harness.nothing(False)),
            "dependent": median_time(lambda: harness.nothing(True)),
        },
        "seconds": time.monotonic() - started,
        "dropped": dropped,
        "records": records,
    }
    options.output.write_text(json.dumps(result))
    print(f"{len(records)} cells in {result['seconds']:.0f} s, {dropped} dropped; floor {result['floor']}")


if __name__ == "__main__":
    main()
