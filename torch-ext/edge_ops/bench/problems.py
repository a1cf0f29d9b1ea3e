"""A cell's inputs, drawn at random, and its float64 answer, from the textbook formulas.

`scale` is what a rounding error is relative to, element by element: the value itself for norms, the product of gate
and up for activations (whose gates cancel near zero), the length of the rotated pair for rotations.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .cells import GATED, Cell

EPS = 1e-6
MAX_POSITION = 2048
THETA = 10000.0


@dataclass(frozen=True)
class Problem:
    """Inputs by name (never written to: an arm that works in place copies them) and what must come out."""

    cell: Cell
    inputs: dict[str, Tensor]
    expected: tuple[Tensor, ...]
    scale: tuple[Tensor, ...]

    @property
    def device(self) -> str:
        return next(iter(self.inputs.values())).device.type

    @property
    def dtype(self) -> torch.dtype:
        return getattr(torch, self.cell.dtype)


def make(cell: Cell, device: str = "cpu") -> Problem:
    """The same cell gives the same inputs, on every machine: they are drawn on the CPU."""
    generator = torch.Generator().manual_seed(zlib.crc32(cell.key.encode()))
    inputs, expected, scale = _MAKERS[cell.operator](cell, generator)
    moved = {name: tensor.to(device) for name, tensor in inputs.items()}
    return Problem(cell, moved, tuple(t.to(device) for t in expected), tuple(t.to(device) for t in scale))


Made = tuple[dict[str, Tensor], tuple[Tensor, ...], tuple[Tensor, ...]]


def _random(cell: Cell, generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator).to(getattr(torch, cell.dtype))


def _weight(cell: Cell, generator: torch.Generator, size: int) -> Tensor:
    return (1 + 0.1 * torch.randn(size, generator=generator)).to(getattr(torch, cell.dtype))


def _normalized(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * weight.double()


def _rms_norm(cell: Cell, generator: torch.Generator) -> Made:
    width = cell.geometry.width
    x, weight = _random(cell, generator, cell.tokens, width), _weight(cell, generator, width)
    expected = _normalized(x, weight)
    return {"x": x, "weight": weight}, (expected,), (expected.abs(),)


def _fused_add_rms_norm(cell: Cell, generator: torch.Generator) -> Made:
    width = cell.geometry.width
    x, residual = (_random(cell, generator, cell.tokens, width) for _ in range(2))
    weight = _weight(cell, generator, width)
    total = x + residual  # rounded to the storage type, as every implementation stores it
    expected = _normalized(total, weight)
    inputs = {"x": x, "residual": residual, "weight": weight}
    return inputs, (expected, total.double()), (expected.abs(), total.double().abs())


def _gated(gate: Callable[[Tensor], Tensor]) -> Callable[[Cell, torch.Generator], Made]:
    def maker(cell: Cell, generator: torch.Generator) -> Made:
        x = 2 * _random(cell, generator, cell.tokens, 2 * cell.geometry.width)
        gates, up = x.double().chunk(2, -1)
        return {"x": x}, (gate(gates) * up,), ((gates * up).abs(),)

    return maker


def _angles(cell: Cell, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Consecutive positions from a random start, and the float32 cache: cos half, then sin half."""
    dim = cell.geometry.rotary_dim
    start = int(torch.randint(MAX_POSITION - cell.tokens, (), generator=generator))
    inverse_frequency = THETA ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.arange(MAX_POSITION, dtype=torch.float64)[:, None] * inverse_frequency
    return torch.arange(start, start + cell.tokens), torch.cat([angles.cos(), angles.sin()], -1).float()


def _rotated(heads: Tensor, positions: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate `[tokens, heads, head_size]` by halves; also the length of each element's pair."""
    half = cache.shape[-1] // 2
    cos, sin = cache[positions].double()[:, None, :].chunk(2, -1)
    a, b, rest = heads.double().split([half, half, heads.shape[-1] - 2 * half], -1)
    length = torch.hypot(a, b)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1), torch.cat([length, length, rest.abs()], -1)


def _heads(cell: Cell, generator: torch.Generator) -> dict[str, Tensor]:
    size = cell.geometry
    query = _random(cell, generator, cell.tokens, size.query_heads, size.head_size)
    key = _random(cell, generator, cell.tokens, size.key_heads, size.head_size)
    positions, cache = _angles(cell, generator)
    return {"positions": positions, "query": query, "key": key, "cache": cache}


def _rotary_embedding(cell: Cell, generator: torch.Generator) -> Made:
    inputs = _heads(cell, generator)
    results = [_rotated(inputs[name], inputs["positions"], inputs["cache"]) for name in ("query", "key")]
    return inputs, tuple(value for value, _ in results), tuple(length for _, length in results)


def _fused_qk_norm_rope(cell: Cell, generator: torch.Generator) -> Made:
    inputs = _heads(cell, generator)
    inputs["q_weight"] = _weight(cell, generator, cell.geometry.head_size)
    inputs["k_weight"] = _weight(cell, generator, cell.geometry.head_size)
    results = []
    for name, weight in (("query", "q_weight"), ("key", "k_weight")):
        normalized = _normalized(inputs[name], inputs[weight])
        results.append(_rotated(normalized, inputs["positions"], inputs["cache"]))
    return inputs, tuple(value for value, _ in results), tuple(length for _, length in results)


_MAKERS: dict[str, Callable[[Cell, torch.Generator], Made]] = {
    "rms_norm": _rms_norm,
    "fused_add_rms_norm": _fused_add_rms_norm,
    "silu_and_mul": _gated(torch.nn.functional.silu),
    "gelu_tanh_and_mul": _gated(lambda gate: torch.nn.functional.gelu(gate, approximate="tanh")),
    "rotary_embedding": _rotary_embedding,
    "fused_qk_norm_rope": _fused_qk_norm_rope,
}


@dataclass(frozen=True)
class Traffic:
    """Bytes that an operator must read and write once, and the bytes of memory that they are."""

    moved: int
    resident: int


def traffic(cell: Cell) -> Traffic:
    """Rows, weights, positions and the rows of the cos/sin cache; a row worked on in place is resident once."""
    element = torch.empty(0, dtype=getattr(torch, cell.dtype)).element_size()
    size, tokens = cell.geometry, cell.tokens
    if cell.operator == "rms_norm":
        moved = element * (2 * tokens + 1) * size.width
        return Traffic(moved, moved)
    if cell.operator == "fused_add_rms_norm":
        return Traffic(element * (4 * tokens + 1) * size.width, element * (2 * tokens + 1) * size.width)
    if cell.operator in GATED:
        moved = element * 3 * tokens * size.width
        return Traffic(moved, moved)
    normed = cell.operator == "fused_qk_norm_rope"
    touched = size.head_size if normed else size.rotary_dim
    rows = element * tokens * (size.query_heads + size.key_heads) * touched
    read_only = tokens * (8 + 4 * size.rotary_dim) + (2 * element * size.head_size if normed else 0)
    return Traffic(2 * rows + read_only, rows + read_only)
