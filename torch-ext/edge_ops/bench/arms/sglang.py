"""sglang's CUDA operators, from the wheel `sglang-kernel` (earlier: `sgl-kernel`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..problems import EPS, THETA, Problem
from . import packed
from .base import Call, Prepare, gated_into, work_copies
from .library import load_operators

LIBRARY = "EDGE_OPS_BENCH_SGLANG"


def _ops() -> Any:
    return torch.ops.sgl_kernel


def _rms_norm(problem: Problem) -> Call:
    out = torch.empty_like(problem.inputs["x"])
    names = {"rmsnorm": _ops().rmsnorm, "out": out, "eps": EPS, **problem.inputs}
    return Call("rmsnorm(out, x, weight, eps, True)", names, lambda _: (out,))


def _fused_add_rms_norm(problem: Problem) -> Call:
    """The mean square is that of the sum before its rounding: a second rounding in the result."""
    (x, residual), restore = work_copies(problem, "x", "residual")
    names = {"fused": _ops().fused_add_rmsnorm, "x": x, "residual": residual, "eps": EPS}
    names["weight"] = problem.inputs["weight"]
    return Call("fused(x, residual, weight, eps, True)", names, lambda _: (x, residual), restore, 2)


def _fused_qk_norm_rope(problem: Problem) -> Call | None:
    """It computes the angles itself, in each call."""
    return packed.fused_qk_norm_rope(
        problem,
        _ops().fused_qk_norm_rope,
        "fused(qkv, *heads, eps, q_weight, k_weight, theta, True, positions, 1.0, 1.0, 1.0, 1.0, rotary_dim)",
        theta=THETA,
        positions=problem.inputs["positions"].int(),
        rotary_dim=problem.cell.geometry.rotary_dim,
    )


class _Sglang:
    name = "sglang"
    title = "sglang's CUDA operators (sglang-kernel), with dependent launch where they take it"
    devices = ("cuda",)
    calls: Mapping[str, Prepare] = {
        "rms_norm": _rms_norm,
        "fused_add_rms_norm": _fused_add_rms_norm,
        "silu_and_mul": gated_into(_ops, "silu_and_mul", roundings=2),
        "gelu_tanh_and_mul": gated_into(_ops, "gelu_tanh_and_mul", roundings=2),
        "fused_qk_norm_rope": _fused_qk_norm_rope,
    }

    def load(self) -> str:
        hint = "pip install --no-deps sglang-kernel==0.4.5"
        folder = "sm90" if torch.cuda.get_device_capability()[0] == 9 else "sm100"
        return load_operators(LIBRARY, "sgl_kernel", (f"{folder}/common_ops*.so", "common_ops*.so"), hint)


ARMS = (_Sglang(),)
