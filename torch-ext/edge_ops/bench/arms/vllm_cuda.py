"""vLLM's CUDA operators, from the library `_C_stable_libtorch` of the wheel `vllm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..problems import EPS, Problem
from . import vllm
from .base import Call, Prepare
from .library import load_operators
from .packed import SIZES, packed_heads

LIBRARY = "EDGE_OPS_BENCH_VLLM_CUDA"


def _rounded_twice(prepare: Prepare) -> Prepare:
    """The gate is rounded before the product."""

    def prepared(problem: Problem) -> Call | None:
        call = prepare(problem)
        if call is not None:
            call.roundings = 2
        return call

    return prepared


def _fused_qk_norm_rope(problem: Problem) -> Call | None:
    size = problem.cell.geometry
    if size.head_size not in SIZES:
        return None
    qkv, results, restore = packed_heads(problem)
    names: dict[str, Any] = {
        "fused": torch.ops._C.fused_qk_norm_rope,
        "qkv": qkv,
        "heads": (size.query_heads, size.key_heads, size.key_heads, size.head_size),
        "eps": EPS,
        "q_weight": problem.inputs["q_weight"],
        "k_weight": problem.inputs["k_weight"],
        "cache": problem.inputs["cache"].to(problem.dtype),
        "positions": problem.inputs["positions"],
    }
    statement = "fused(qkv, *heads, eps, q_weight, k_weight, cache, True, positions)"
    return Call(statement, names, lambda _: results, restore, roundings=3)


class _VllmCuda:
    name = "vllm_cuda"
    title = "vLLM's CUDA operators"
    devices = ("cuda",)
    calls: Mapping[str, Prepare] = {
        **{name: vllm.ARMS[0].calls[name] for name in ("rms_norm", "fused_add_rms_norm", "rotary_embedding")},
        **{name: _rounded_twice(vllm.ARMS[0].calls[name]) for name in ("silu_and_mul", "gelu_tanh_and_mul")},
        "fused_qk_norm_rope": _fused_qk_norm_rope,
    }

    def load(self) -> str:
        hint = "pip install --no-deps vllm==0.26.0"
        return load_operators(LIBRARY, "vllm", ("_C_stable_libtorch*.so",), hint)


ARMS = (_VllmCuda(),)
