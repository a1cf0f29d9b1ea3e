"""One call of an operator with its expected result: how every exact test is written.

A builder lays out the arguments and asks the contract for the results; `Call.check` runs it on a route and
compares every bit: the results, what is returned, and all memory around and between the tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np
import torch

from . import contract
from .memory import Placed, Snapshot, place, place_like, place_packed
from .values import DEVICE, DTYPES, assert_same_bits, draw, draw_cache, to_numpy


@dataclass
class Call:
    op: str
    arguments: Dict[str, Any]  # as the public function takes them
    expected: Dict[str, np.ndarray]  # argument name, or "result" for a new tensor -> values after the call
    placed: List[Optional[Placed]]
    returns: Tuple[str, ...]  # which of these the function returns, in order
    label: str = ""
    _before: Optional[Snapshot] = field(default=None, repr=False)

    def run(self, route: Callable[..., Any]) -> Dict[str, Optional[torch.Tensor]]:
        """Calls, and gives what each returned tensor is called; in-place results must be the caller's own objects."""
        returned = route(**self.arguments)
        returned = returned if isinstance(returned, tuple) else (returned,)
        assert len(returned) == len(self.returns), f"{self.label}: {len(returned)} values returned"
        results = dict(zip(self.returns, returned))
        for name, value in results.items():
            if name != "result":
                assert value is self.arguments[name], f"{self.label}: the returned {name} is not the caller's"
        return results

    def check(self, route: Callable[..., Any]) -> None:
        before = Snapshot(self.placed)
        results = self.run(route)
        written = [self.arguments[name] for name in self.expected if name != "result"]
        for name, want in self.expected.items():
            got = results["result"] if name == "result" else self.arguments[name]
            assert_same_bits(got, want, f"{self.label} {name}")
        if "result" in results:
            first = self.arguments["x"]
            assert results["result"].dtype == first.dtype and results["result"].is_contiguous(), self.label
        before.assert_untouched_outside(written, self.label)


def _view(placed: Optional[Placed]) -> Optional[torch.Tensor]:
    return None if placed is None else placed.view


def _weight(rng, n: int, dtype: str, weight: Optional[str], kind: str, start: str):
    """weight: None, "same" (the rows' dtype) or "f32" -> placed tensor and values."""
    if weight is None:
        return None, None
    weight_dtype = dtype if weight == "same" else "f32"
    return place_like(draw(rng, (n,), weight_dtype, kind), weight_dtype, "contiguous", start)


def _rows(function, *arrays: np.ndarray) -> np.ndarray:
    """Applies a contract function of [rows, n] to arrays of any leading shape."""
    results = function(*(a.reshape(-1, a.shape[-1]) for a in arrays))
    shape = arrays[0].shape[:-1]
    if isinstance(results, tuple):
        return tuple(r.reshape(*shape, r.shape[-1]) for r in results)
    return results.reshape(*shape, results.shape[-1])


def rms_norm(
    rng: np.random.Generator,
    shape: Tuple[int, ...],
    dtype: str = "f32",
    weight: Optional[str] = "same",
    eps: float = 1e-6,
    offset: float = 0.0,
    out: Optional[str] = None,
    layout: str = "contiguous",
    out_layout: str = "contiguous",
    start: str = "aligned",
    kind: str = "normal",
) -> Call:
    """out: None, "apart", or "x" for in place."""
    x, x_values = place_like(draw(rng, shape, dtype, kind), dtype, layout, start)
    w, w_values = _weight(rng, shape[-1], dtype, weight, "normal" if kind == "bits" else kind, start)
    target = None
    if out == "apart":
        target = place(np.zeros(shape, np.float32), DTYPES[dtype], out_layout, start)
    elif out == "x":
        target = x
    want = _rows(lambda rows: contract.rms_norm(rows, w_values, eps, offset, dtype), x_values)
    arguments = {"x": x.view, "weight": _view(w), "eps": eps, "weight_offset": offset, "out": _view(target)}
    return Call(
        "rms_norm",
        arguments,
        {"result" if target is None else "out": want},
        [x, w, target],
        ("result" if target is None else "out",),
        f"rms_norm {dtype} {shape} {layout}/{out_layout} {start} weight {weight} out {out} {kind}",
    )


def fused_add_rms_norm(
    rng: np.random.Generator,
    shape: Tuple[int, ...],
    dtype: str = "f32",
    weight: Optional[str] = "same",
    eps: float = 1e-6,
    offset: float = 0.0,
    layout: str = "contiguous",
    residual_layout: str = "contiguous",
    start: str = "aligned",
    kind: str = "normal",
) -> Call:
    x, x_values = place_like(draw(rng, shape, dtype, kind), dtype, layout, start)
    r, r_values = place_like(draw(rng, shape, dtype, kind), dtype, residual_layout, start)
    w, w_values = _weight(rng, shape[-1], dtype, weight, "normal" if kind == "bits" else kind, start)
    normed, total = _rows(
        lambda a, b: contract.fused_add_rms_norm(a, b, w_values, eps, offset, dtype), x_values, r_values
    )
    return Call(
        "fused_add_rms_norm",
        {"x": x.view, "residual": r.view, "weight": _view(w), "eps": eps, "weight_offset": offset},
        {"x": normed, "residual": total},
        [x, r, w],
        ("x", "residual"),
        f"fused_add_rms_norm {dtype} {shape} {layout}/{residual_layout} {start} weight {weight} {kind}",
    )


def gated(
    op: str,
    rng: np.random.Generator,
    shape: Tuple[int, ...],
    dtype: str = "f32",
    out: bool = False,
    layout: str = "contiguous",
    out_layout: str = "contiguous",
    start: str = "aligned",
    kind: str = "normal",
) -> Call:
    """silu_and_mul or gelu_tanh_and_mul; shape [..., 2 d]."""
    x, x_values = place_like(draw(rng, shape, dtype, kind), dtype, layout, start)
    target = None
    if out:
        target = place(np.zeros((*shape[:-1], shape[-1] // 2), np.float32), DTYPES[dtype], out_layout, start)
    want = _rows(lambda rows: getattr(contract, op)(rows, dtype), x_values)
    return Call(
        op,
        {"x": x.view, "out": _view(target)},
        {"out" if out else "result": want},
        [x, target],
        ("out" if out else "result",),
        f"{op} {dtype} {shape} {layout}/{out_layout} {start} out {out} {kind}",
    )


def _positions(rng, leading: Tuple[int, ...], max_position: int, form: str) -> Tuple[Placed, np.ndarray]:
    """Positions inside the cache, and a few outside it; form says dtype, rank and stride."""
    tokens = int(np.prod(leading))
    values = rng.integers(0, max(1, max_position), tokens)
    outside = rng.random(tokens) < 0.15
    values[outside] = rng.choice([-1, -(2**31), max_position, 2**31 - 1], int(outside.sum()))
    dtype = torch.int32 if "int32" in form else torch.int64
    if dtype == torch.int64 and tokens:
        values[rng.random(tokens) < 0.02] = 2**40  # far past what 32 bits hold
    shape = leading if "leading" in form else (tokens,)
    pitch = 3 if "strided" in form else 1
    base = torch.full((max(1, tokens * pitch),), 7, dtype=dtype, device=DEVICE)
    view = (
        base[: tokens * pitch : pitch].reshape(shape) if pitch == 1 else base[: tokens * pitch].view(*shape, 3)[..., 0]
    )
    view.copy_(torch.from_numpy(values).reshape(shape).to(dtype))
    return Placed(view, base), values


POSITION_FORMS = ("int64", "int32", "int64 leading", "int32 strided", "int64 strided leading")


def _heads(
    rng,
    op: str,
    leading: Tuple[int, ...],
    q_heads: Optional[int],
    k_heads: Optional[int],
    size: int,
    rotary_dim: int,
    dtype: str,
    cache_dtype: str,
    max_position: int,
    positions: str,
    interleaved: bool,
    layout: str,
    start: str,
    kind: str,
    contract_of: Callable[[str, np.ndarray, np.ndarray, np.ndarray], np.ndarray],
):
    """The common part of rotary_embedding and fused_qk_norm_rope -> call without the operator's own arguments."""
    sides = {name: n for name, n in (("query", q_heads), ("key", k_heads)) if n is not None}
    values = {name: draw(rng, (*leading, n, size), dtype, kind) for name, n in sides.items()}
    if layout == "packed" and len(sides) == 2:
        placed = dict(zip(sides, place_packed(values["query"], values["key"], dtype, start)))
    else:
        strides = "contiguous" if layout == "packed" else layout
        placed = {name: place(value, DTYPES[dtype], strides, start) for name, value in values.items()}
    cache, cache_values = place_like(
        draw_cache(rng, max_position, rotary_dim, cache_dtype), cache_dtype, "column slice", start
    )
    pos, pos_values = _positions(rng, leading, max_position, positions)
    tokens = len(pos_values)
    want = {}
    for name in sides:
        heads = to_numpy(placed[name].view)
        result = contract_of(name, pos_values, heads.reshape(tokens, *heads.shape[-2:]), cache_values)
        want[name] = result.reshape(heads.shape)
    label = (
        f"{op} {dtype} {leading} heads {q_heads}/{k_heads} size {size} rotary {rotary_dim} cache {cache_dtype} "
        f"{layout} {start} positions {positions} interleaved {interleaved} {kind}"
    )
    arguments = {
        "positions": pos.view,
        "query": _view(placed.get("query")),
        "key": _view(placed.get("key")),
        "cos_sin_cache": cache.view,
        "interleaved": interleaved,
    }
    return Call(op, arguments, want, [*placed.values(), cache, pos], ("query", "key"), label)


def rotary_embedding(
    rng: np.random.Generator,
    leading: Tuple[int, ...] = (5,),
    q_heads: int = 4,
    k_heads: Optional[int] = 2,
    size: int = 64,
    rotary_dim: int = 64,
    dtype: str = "f32",
    cache: str = "f32",
    max_position: int = 40,
    positions: str = "int64",
    interleaved: bool = False,
    layout: str = "contiguous",
    start: str = "aligned",
    kind: str = "normal",
) -> Call:
    """cache: "f32" or "same"."""

    def want(name, pos, heads, cache_values):
        return contract.rotary_embedding(pos, heads, cache_values, interleaved, dtype)

    cache_dtype = dtype if cache == "same" else "f32"
    return _heads(
        rng, "rotary_embedding", leading, q_heads, k_heads, size, rotary_dim, dtype, cache_dtype, max_position,
        positions, interleaved, layout, start, kind, want,
    )  # fmt: skip


def fused_qk_norm_rope(
    rng: np.random.Generator,
    leading: Tuple[int, ...] = (5,),
    q_heads: Optional[int] = 4,
    k_heads: Optional[int] = 2,
    size: int = 64,
    rotary_dim: int = 64,
    dtype: str = "f32",
    weight: Optional[str] = "same",
    cache: str = "f32",
    max_position: int = 40,
    positions: str = "int64",
    eps: float = 1e-6,
    offset: float = 0.0,
    interleaved: bool = False,
    round_normalized: bool = True,
    out: str = "",
    layout: str = "contiguous",
    out_layout: str = "contiguous",
    start: str = "aligned",
    kind: str = "normal",
) -> Call:
    """out: which of query and key go elsewhere: "", "query", "key", "both", or "self" (out is the input)."""
    weights = {name: _weight(rng, size, dtype, weight, "normal", start) for name in ("query", "key")}

    def want(name, pos, heads, cache_values):
        return contract.fused_qk_norm_rope(
            pos, heads, weights[name][1], cache_values, eps, offset, interleaved, round_normalized, dtype
        )

    cache_dtype = dtype if cache == "same" else "f32"
    call = _heads(
        rng, "fused_qk_norm_rope", leading, q_heads, k_heads, size, rotary_dim, dtype, cache_dtype, max_position,
        positions, interleaved, layout, start, kind, want,
    )  # fmt: skip
    call.label += f" seam {round_normalized} weight {weight} out {out}"
    call.arguments.update(
        q_weight=_view(weights["query"][0]),
        k_weight=_view(weights["key"][0]),
        eps=eps,
        weight_offset=offset,
        round_normalized=round_normalized,
    )
    call.placed += [weights["query"][0], weights["key"][0]]
    returns = []
    for name in ("query", "key"):
        value, target = call.arguments[name], None
        if value is not None and out in (name, "both"):
            target = place(np.zeros(tuple(value.shape), np.float32), DTYPES[dtype], out_layout, start)
            call.placed.append(target)
            call.expected[f"{name}_out"] = call.expected.pop(name)
        call.arguments[f"{name}_out"] = value if out == "self" else _view(target)
        returns.append(name if target is None else f"{name}_out")
    call.returns = tuple(returns)
    return call


BUILDERS: Dict[str, Callable[..., Call]] = {
    "rms_norm": rms_norm,
    "fused_add_rms_norm": fused_add_rms_norm,
    "silu_and_mul": lambda *args, **kwargs: gated("silu_and_mul", *args, **kwargs),
    "gelu_tanh_and_mul": lambda *args, **kwargs: gated("gelu_tanh_and_mul", *args, **kwargs),
    "rotary_embedding": rotary_embedding,
    "fused_qk_norm_rope": fused_qk_norm_rope,
}
