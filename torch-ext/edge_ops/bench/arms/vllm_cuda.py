"""vLLM's CUDA operators, from the library `_C_stable_libtorch` of the wheel `vllm`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..problems import Problem
from . import packed, vllm
from .base import Call, Prepare, gated_into
from .library import load_operators

LIBRARY = "EDGE_OPS_BENCH_VLLM_CUDA"


def _operators() -> Any:
    return torch.ops._C


def _fused_qk_norm_rope(problem: Problem) -> Call | None:
    return packed.fused_qk_norm_rope(
        problem,
        _operators().fused_qk_norm_rope,
        "fused(qkv, *heads, eps, q_weight, k_weight, cache, True, positions)",
        cache=problem.inputs["cache"].to(problem.dtype),
        positions=problem.inputs["positions"],
    )


class _VllmCuda:
    name = "vllm_cuda"
    title = "vLLM's CUDA operators"
    devices = ("cuda",)
    calls: Mapping[str, Prepare] = {
        **{name: vllm.ARMS[0].calls[name] for name in ("rms_norm", "fused_add_rms_norm", "rotary_embedding")},
        # the gate is rounded before the product
        **{name: gated_into(_operators, name, roundings=2) for name in ("silu_and_mul", "gelu_tanh_and_mul")},
        "fused_qk_norm_rope": _fused_qk_norm_rope,
    }

    def load(self) -> str:
        hint = "pip install --no-deps vllm==0.26.0"
        return load_operators(LIBRARY, "vllm", ("_C_stable_libtorch*.so",), hint)


ARMS = (_VllmCuda(),)
