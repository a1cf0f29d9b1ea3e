"""CPU kernels of the Kernel Hub: kernels-community's rmsnorm, activation and rotary.

They come as shared libraries that register PyTorch operators under a namespace of their own build. Name the built
libraries in EDGE_OPS_BENCH_HUB, separated by `:`; docs/benchmarks.md says how to get them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..problems import EPS, Problem
from .base import Call, NotInstalled, Prepare, work_copies

LIBRARIES = "EDGE_OPS_BENCH_HUB"
OPERATORS = ("apply_rms_norm", "silu_and_mul", "apply_rotary")

_found: dict[str, Any] = {}


def _load(path: str) -> None:
    """Load one library and remember which of `OPERATORS` it registered."""
    before = set(torch._C._dispatch_get_all_op_names())
    torch.ops.load_library(path)
    for qualified in set(torch._C._dispatch_get_all_op_names()) - before:
        namespace, name = qualified.split("::")
        if name in OPERATORS:
            _found[name] = getattr(getattr(torch.ops, namespace), name)


def _rms_norm(problem: Problem) -> Call | None:
    if "apply_rms_norm" not in _found:
        return None
    names = {"apply_rms_norm": _found["apply_rms_norm"], "eps": EPS, **problem.inputs}
    return Call("apply_rms_norm(x, weight, eps)[0]", names, lambda y: (y,))


def _silu_and_mul(problem: Problem) -> Call | None:
    if "silu_and_mul" not in _found:
        return None
    x = problem.inputs["x"]
    out = x.new_empty(x.shape[0], x.shape[1] // 2)
    names = {"silu_and_mul": _found["silu_and_mul"], "out": out, "x": x}
    return Call("silu_and_mul(out, x)", names, lambda _: (out,), roundings=2)


def _halves(heads: Tensor, rotary_dim: int) -> tuple[Tensor, Tensor]:
    """The two halves of the rotated part, as `[1, heads, tokens, rotary_dim / 2]` views."""
    heads = heads[None].transpose(1, 2)
    return heads[..., : rotary_dim // 2], heads[..., rotary_dim // 2 : rotary_dim]


def _tables(problem: Problem) -> tuple[Tensor, Tensor]:
    """cos and sin of the tokens, looked up beforehand: the operator takes no positions."""
    rows = problem.inputs["cache"].to(problem.dtype)[problem.inputs["positions"]]
    cos, sin = (part.contiguous()[None, None] for part in rows.chunk(2, -1))
    return cos, sin


ROTARY = "apply_rotary(q1, q2, cos, sin, q1, q2, False); apply_rotary(k1, k2, cos, sin, k1, k2, False)"


def _rotary_embedding(problem: Problem) -> Call | None:
    """In place, a call for the query and one for the key: the library's fastest use."""
    if "apply_rotary" not in _found:
        return None
    (query, key), restore = work_copies(problem, "query", "key")
    rotary_dim = problem.cell.geometry.rotary_dim
    q1, q2 = _halves(query, rotary_dim)
    k1, k2 = _halves(key, rotary_dim)
    cos, sin = _tables(problem)
    names = {"apply_rotary": _found["apply_rotary"], "cos": cos, "sin": sin, "q1": q1, "q2": q2, "k1": k1, "k2": k2}
    return Call(ROTARY, names, lambda _: (query, key), restore, roundings=2)


def _fused_qk_norm_rope(problem: Problem) -> Call | None:
    """Four calls and the views between them: there is no fused operator."""
    if "apply_rms_norm" not in _found or "apply_rotary" not in _found:
        return None
    rotary_dim = problem.cell.geometry.rotary_dim
    apply_rms_norm, apply_rotary = _found["apply_rms_norm"], _found["apply_rotary"]
    cos, sin = _tables(problem)

    def qk_norm_rope(query: Tensor, key: Tensor, q_weight: Tensor, k_weight: Tensor) -> tuple[Tensor, Tensor]:
        query, key = apply_rms_norm(query, q_weight, EPS)[0], apply_rms_norm(key, k_weight, EPS)[0]
        q1, q2 = _halves(query, rotary_dim)
        k1, k2 = _halves(key, rotary_dim)
        apply_rotary(q1, q2, cos, sin, q1, q2, False)
        apply_rotary(k1, k2, cos, sin, k1, k2, False)
        return query, key

    names = {"qk_norm_rope": qk_norm_rope, **problem.inputs}
    return Call("qk_norm_rope(query, key, q_weight, k_weight)", names, tuple, roundings=3)


class _Hub:
    name = "hub"
    title = "Kernel Hub: kernels-community/{rmsnorm,activation,rotary}"
    devices = ("cpu",)
    calls: Mapping[str, Prepare] = {
        "rms_norm": _rms_norm,
        "silu_and_mul": _silu_and_mul,
        "rotary_embedding": _rotary_embedding,
        "fused_qk_norm_rope": _fused_qk_norm_rope,
    }

    def load(self) -> str:
        paths = [path for path in os.environ.get(LIBRARIES, "").split(":") if path]
        if not paths:
            raise NotInstalled(f"set {LIBRARIES} to the built libraries, see docs/benchmarks.md")
        for path in paths:
            if not Path(path).is_file():
                raise NotInstalled(f"{LIBRARIES} names {path}, which is not a file")
            _load(path)
        missing = [name for name in OPERATORS if name not in _found]
        return "local build" + (f", without {', '.join(missing)}" if missing else "")


ARMS = (_Hub(),)
