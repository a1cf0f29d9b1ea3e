"""FlashInfer's compiled modules, called through apache-tvm-ffi without FlashInfer's Python front."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..problems import EPS, Problem
from .base import Call, NotInstalled, Prepare, work_copies
from .packed import SIZES

FOLDER = "EDGE_OPS_BENCH_FLASHINFER"
CACHE = "~/.cache/flashinfer"
MODULES = ("norm", "rope", "silu_and_mul", "gelu_tanh_and_mul")

_modules: dict[str, Any] = {}


def _on_stream(function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """The call on PyTorch's current stream, which the binding asks of tvm-ffi."""
    import tvm_ffi

    def call() -> None:
        with tvm_ffi.use_torch_stream():
            function(*arguments)

    return {"call": call}


def _rms_norm(problem: Problem) -> Call | None:
    if "norm" not in _modules:
        return None
    out = torch.empty_like(problem.inputs["x"])
    names = _on_stream(_modules["norm"].rmsnorm, out, problem.inputs["x"], problem.inputs["weight"], EPS, True)
    return Call("call()", names, lambda _: (out,))


def _fused_add_rms_norm(problem: Problem) -> Call | None:
    """The mean square is that of the sum before its rounding: a second rounding in the result."""
    if "norm" not in _modules:
        return None
    (x, residual), restore = work_copies(problem, "x", "residual")
    names = _on_stream(_modules["norm"].fused_add_rmsnorm, x, residual, problem.inputs["weight"], EPS, True)
    return Call("call()", names, lambda _: (x, residual), restore, 2)


def _gated(name: str) -> Prepare:
    def prepare(problem: Problem) -> Call | None:
        if name not in _modules:
            return None
        x = problem.inputs["x"]
        out = x.new_empty(x.shape[0], x.shape[1] // 2)
        return Call("call()", _on_stream(getattr(_modules[name], name), out, x, True), lambda _: (out,))

    return prepare


def _rotary_embedding(problem: Problem) -> Call | None:
    if "rope" not in _modules or problem.cell.geometry.head_size not in SIZES:
        return None
    (query, key), restore = work_copies(problem, "query", "key")
    function = _modules["rope"].apply_rope_pos_ids_cos_sin_cache
    cache, positions = problem.inputs["cache"], problem.inputs["positions"]
    names = _on_stream(function, query, key, query, key, cache, positions, False)
    return Call("call()", names, lambda _: (query, key), restore)


class _FlashInfer:
    name = "flashinfer"
    title = "FlashInfer's compiled modules, with dependent launch where they take it"
    devices = ("cuda",)
    calls: Mapping[str, Prepare] = {
        "rms_norm": _rms_norm,
        "fused_add_rms_norm": _fused_add_rms_norm,
        "silu_and_mul": _gated("silu_and_mul"),
        "gelu_tanh_and_mul": _gated("gelu_tanh_and_mul"),
        "rotary_embedding": _rotary_embedding,
    }

    def load(self) -> str:
        try:
            import tvm_ffi
        except ImportError as error:
            raise NotInstalled(f"{error} (pip install apache-tvm-ffi)") from error
        folder = Path(os.environ.get(FOLDER) or CACHE).expanduser()
        for path in sorted(folder.rglob("*.so")):
            if path.stem in MODULES:
                _modules[path.stem] = tvm_ffi.load_module(str(path))
        if not _modules:
            raise NotInstalled(f"no compiled module below {folder}: see docs/benchmarks.md, or set {FOLDER}")
        missing = [name for name in MODULES if name not in _modules]
        return "compiled modules" + (f", without {', '.join(missing)}" if missing else "")


ARMS = (_FlashInfer(),)
