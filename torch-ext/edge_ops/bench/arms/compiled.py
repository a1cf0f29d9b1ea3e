"""torch.compile of the eager formulas: fullgraph, static shapes, compiled anew for each cell and thread count."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..problems import Problem
from . import eager
from .base import BOTH, Call, NotInstalled, Prepare


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Forget the kernels of other cells first: their guards would be tried on every call."""
    from torch._inductor import config

    torch._dynamo.reset()
    config.cpp.threads = torch.get_num_threads()  # part of the cache's key: the code has the number in it
    return torch.compile(function, fullgraph=True, dynamic=False)


def _simple(statement: str, function: Callable[..., Any], roundings: int) -> Prepare:
    def prepare(problem: Problem) -> Call:
        def results(value: Any) -> tuple[torch.Tensor, ...]:
            return value if isinstance(value, tuple) else (value,)

        names = {"compiled": _compiled(function), **problem.inputs}
        return Call(statement, names, results, roundings=roundings)

    return prepare


def _rotary(statement: str, make: Callable[[Problem], Callable[..., Any]], roundings: int) -> Prepare:
    def prepare(problem: Problem) -> Call:
        names = {"rotary": _compiled(make(problem)), **eager.rotary_names(problem)}
        return Call(statement, names, eager.tokens_first, roundings=roundings)

    return prepare


class _Compiled:
    name = "compile"
    title = "torch.compile(fullgraph=True, dynamic=False) of the eager formula"
    devices = BOTH
    calls: Mapping[str, Prepare] = {
        "rms_norm": _simple("compiled(x, weight)", eager.rms_norm, eager.NORM),
        "fused_add_rms_norm": _simple("compiled(x, residual, weight)", eager.add_rms_norm, eager.NORM),
        "silu_and_mul": _simple("compiled(x)", eager.silu_and_mul, eager.GATE),
        "gelu_tanh_and_mul": _simple("compiled(x)", eager.gelu_tanh_and_mul, eager.GATE),
        "rotary_embedding": _rotary(eager.ROTARY, eager.lookup_rotary, eager.ROTATION),
        "fused_qk_norm_rope": _rotary(eager.QK_NORM_ROPE, eager.lookup_qk_norm_rope, eager.NORM + eager.ROTATION),
    }

    def load(self) -> str:
        if shutil.which("g++") is None and shutil.which("clang++") is None:
            raise NotInstalled("torch.compile needs a C++ compiler (apt-get install g++)")
        return torch.__version__


ARMS = (_Compiled(),)
