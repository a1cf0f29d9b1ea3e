"""Edge-ops: with `out` (or in place), with a new result, and through PyTorch's dispatcher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ... import native, ops
from ...version import __version__
from ..problems import EPS, Problem
from .base import BOTH, Call, NotInstalled, Prepare, work_copies


def registered() -> Any:
    """The registered operators of this build.

    Raises:
        NotInstalled: a build without native code has none.
    """
    if native.ops is None:
        raise NotInstalled("this build of edge_ops has no native code")
    return native.ops


def _empty_gated(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1] // 2)


def _one(value: Tensor) -> tuple[Tensor, ...]:
    return (value,)


def _rms_norm_out(problem: Problem) -> Call:
    names = {"rms_norm": ops.rms_norm, "eps": EPS, "out": torch.empty_like(problem.inputs["x"])}
    return Call("rms_norm(x, weight, eps, out=out)", names | problem.inputs, _one)


def _rms_norm_new(problem: Problem) -> Call:
    return Call("rms_norm(x, weight, eps)", {"rms_norm": ops.rms_norm, "eps": EPS} | problem.inputs, _one)


def _rms_norm_registered(problem: Problem) -> Call:
    out = torch.empty_like(problem.inputs["x"])
    names = {"rms_norm_out": registered().rms_norm_out.default, "eps": EPS, "out": out}
    return Call("rms_norm_out(out, x, weight, eps, 0.0)", names | problem.inputs, lambda _: (out,))


def _fused_add(statement: str, function: Any, problem: Problem) -> Call:
    (x, residual), restore = work_copies(problem, "x", "residual")
    names = {"fused_add_rms_norm": function, "x": x, "residual": residual, "eps": EPS}
    return Call(statement, names | {"weight": problem.inputs["weight"]}, lambda _: (x, residual), restore)


def _fused_add_direct(problem: Problem) -> Call:
    return _fused_add("fused_add_rms_norm(x, residual, weight, eps)", ops.fused_add_rms_norm, problem)


def _fused_add_registered(problem: Problem) -> Call:
    function = registered().fused_add_rms_norm.default
    return _fused_add("fused_add_rms_norm(x, residual, weight, eps, 0.0)", function, problem)


def _gated_out(name: str) -> Prepare:
    def prepare(problem: Problem) -> Call:
        x = problem.inputs["x"]
        names = {"gated": getattr(ops, name), "x": x, "out": _empty_gated(x)}
        return Call("gated(x, out=out)", names, _one)

    return prepare


def _gated_new(name: str) -> Prepare:
    return lambda problem: Call("gated(x)", {"gated": getattr(ops, name)} | problem.inputs, _one)


def _gated_registered(name: str) -> Prepare:
    def prepare(problem: Problem) -> Call:
        x = problem.inputs["x"]
        out = _empty_gated(x)
        names = {"gated_out": getattr(registered(), f"{name}_out").default, "x": x, "out": out}
        return Call("gated_out(out, x)", names, lambda _: (out,))

    return prepare


def _heads(statement: str, function: Any, problem: Problem) -> Call:
    (query, key), restore = work_copies(problem, "query", "key")
    names = problem.inputs | {"operator": function, "query": query, "key": key, "eps": EPS}
    return Call(statement, names, lambda _: (query, key), restore)


def _rotary_direct(problem: Problem) -> Call:
    return _heads("operator(positions, query, key, cache)", ops.rotary_embedding, problem)


def _rotary_registered(problem: Problem) -> Call:
    function = registered().rotary_embedding.default
    return _heads("operator(positions, query, key, cache, False)", function, problem)


# The normalized head is rounded before the rotation, and the rotated value again.
QK_ROUNDINGS = 2


def _qk(statement: str, function: Any, problem: Problem) -> Call:
    """Into other tensors: repeated in place, the norm's weights would drive the small elements to zero."""
    query_out, key_out = torch.empty_like(problem.inputs["query"]), torch.empty_like(problem.inputs["key"])
    names = problem.inputs | {"operator": function, "eps": EPS, "query_out": query_out, "key_out": key_out}
    return Call(statement, names, lambda _: (query_out, key_out), roundings=QK_ROUNDINGS)


def _qk_direct(problem: Problem) -> Call:
    statement = "operator(positions, query, key, q_weight, k_weight, cache, eps, query_out=query_out, key_out=key_out)"
    return _qk(statement, ops.fused_qk_norm_rope, problem)


def _qk_registered(problem: Problem) -> Call:
    statement = "operator(query_out, key_out, positions, query, key, q_weight, k_weight, cache, eps, 0.0, False, True)"
    return _qk(statement, registered().fused_qk_norm_rope_out.default, problem)


class _Edge:
    """`name` is the arm that everything else is held against."""

    name = "edge_ops"
    title = "Edge-ops, direct call, with `out` where there is one"
    devices = BOTH
    calls: Mapping[str, Prepare] = {
        "rms_norm": _rms_norm_out,
        "fused_add_rms_norm": _fused_add_direct,
        "silu_and_mul": _gated_out("silu_and_mul"),
        "gelu_tanh_and_mul": _gated_out("gelu_tanh_and_mul"),
        "rotary_embedding": _rotary_direct,
        "fused_qk_norm_rope": _qk_direct,
    }

    def load(self) -> str:
        return __version__


class _EdgeNew:
    name = "edge_ops_new"
    title = "Edge-ops, direct call that returns a new tensor"
    devices = BOTH
    calls: Mapping[str, Prepare] = {
        "rms_norm": _rms_norm_new,
        "silu_and_mul": _gated_new("silu_and_mul"),
        "gelu_tanh_and_mul": _gated_new("gelu_tanh_and_mul"),
    }

    def load(self) -> str:
        return __version__


class _EdgeRegistered:
    name = "edge_ops_dispatcher"
    title = "Edge-ops through PyTorch's dispatcher, with `out` where there is one"
    devices = BOTH
    calls: Mapping[str, Prepare] = {
        "rms_norm": _rms_norm_registered,
        "fused_add_rms_norm": _fused_add_registered,
        "silu_and_mul": _gated_registered("silu_and_mul"),
        "gelu_tanh_and_mul": _gated_registered("gelu_tanh_and_mul"),
        "rotary_embedding": _rotary_registered,
        "fused_qk_norm_rope": _qk_registered,
    }

    def load(self) -> str:
        registered()
        return __version__


ARMS = (_Edge(), _EdgeNew(), _EdgeRegistered())
