"""Liger's Triton kernels: a library for training, whose forward passes are timed here."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Mapping
from typing import Any

from ..problems import EPS, Problem
from . import eager
from .base import Call, NotInstalled, Prepare, work_copies


def _apply(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"liger_kernel.ops.{module}"), name).apply


def _rms_norm(problem: Problem) -> Call:
    names = {"apply": _apply("rms_norm", "LigerRMSNormFunction"), "eps": EPS, **problem.inputs}
    return Call("apply(x, weight, eps, 0.0, 'llama', False)", names, lambda y: (y,), roundings=eager.NORM)


def _fused_add_rms_norm(problem: Problem) -> Call:
    names = {"apply": _apply("fused_add_rms_norm", "LigerFusedAddRMSNormFunction"), "eps": EPS, **problem.inputs}
    statement = "apply(x, residual, weight, eps, 0.0, 'llama', False)"
    return Call(statement, names, tuple, roundings=eager.NORM + 1)


def _gated(module: str, name: str) -> Prepare:
    def prepare(problem: Problem) -> Call:
        """Its layers hold gate and up as two tensors."""
        gate, up = (half.contiguous() for half in problem.inputs["x"].chunk(2, -1))
        names = {"apply": _apply(module, name), "gate": gate, "up": up}
        return Call("apply(gate, up)", names, lambda y: (y,), roundings=eager.GATE)

    return prepare


def _rotary_embedding(problem: Problem) -> Call:
    """With cos and sin looked up beforehand, and in place: it works on the memory behind the heads-first views."""
    (query, key), restore = work_copies(problem, "query", "key")
    cos, sin = (table[problem.inputs["positions"]][None] for table in eager.model_tables(problem))
    q, k = query[None].transpose(1, 2), key[None].transpose(1, 2)
    names = {"apply": _apply("rope", "LigerRopeFunction"), "q": q, "k": k, "cos": cos, "sin": sin}
    return Call("apply(q, k, cos, sin)", names, eager.tokens_first, restore, eager.ROTATION)


class _Liger:
    name = "liger"
    title = "Liger's Triton kernels (for training), forward pass"
    devices = ("cuda",)
    calls: Mapping[str, Prepare] = {
        "rms_norm": _rms_norm,
        "fused_add_rms_norm": _fused_add_rms_norm,
        "silu_and_mul": _gated("swiglu", "LigerSiLUMulFunction"),
        "gelu_tanh_and_mul": _gated("geglu", "LigerGELUMulFunction"),
        "rotary_embedding": _rotary_embedding,
    }

    def load(self) -> str:
        try:
            importlib.import_module("liger_kernel.ops.rms_norm")
        except ImportError as error:
            raise NotInstalled(f"{error} (pip install --no-deps liger-kernel==0.8.5)") from error
        return importlib.metadata.version("liger-kernel")


ARMS = (_Liger(),)
