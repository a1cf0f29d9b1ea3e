"""The numerics contract (docs/numerics.md) as NumPy: the oracle that every exact test compares with.

It is independent of the package: no line of it is shared with edge_ops. Arrays are float32 and hold
values that the storage type ("f32", "bf16" or "f16") can represent; `round_to` is the only place where
something is rounded to that type. NumPy's float32 operations round once each and never contract, so
the code below is the order of operations, literally.
"""

from __future__ import annotations

from typing import Optional, Sequence, Tuple

import numpy as np

F = np.float32
Array = np.ndarray

CHUNK = 256
EXP_LOW, EXP_HIGH = F(-87), F(89)
LOG2E = F(1.44269504)
LN2_HIGH, LN2_LOW = F(0.693359375), F(-2.12194440e-4)
EXP_WIDE = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
EXP_NARROW = (0.009582852, 0.05590643, 0.24024099, 0.69312418, 1.0)
GELU_SCALE = F(1.5957691216)
GELU_CUBIC = F(0.044715)


def quiet(function):
    """Infinities and NaNs are inputs here, not accidents."""
    return np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore")(function)


# --- storage types -------------------------------------------------------------------


@quiet
def round_to(values: Array, dtype: str) -> Array:
    """float32 -> nearest value of the storage type, ties to even, subnormals kept, overflow to infinity."""
    values = np.asarray(values, F)
    if dtype == "f32":
        return values
    if dtype == "f16":
        return values.astype(np.float16).astype(F)
    if dtype == "bf16":
        bits = np.ascontiguousarray(values).view(np.uint32)
        tie_to_even = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        rounded = ((bits + tie_to_even) & np.uint32(0xFFFF0000)).view(F)
        return np.where(np.isnan(values), F(np.nan), rounded)
    raise ValueError(dtype)


# --- building blocks -----------------------------------------------------------------


def sum_of_squares(rows: Array) -> Array:
    """[rows, n] -> [rows]."""
    count, n = rows.shape
    chunks = max(1, -(-n // CHUNK))
    padded = np.zeros((count, chunks * CHUNK), F)
    padded[:, :n] = rows
    tree = np.square(padded).reshape(count, chunks, CHUNK)
    while tree.shape[-1] > 1:
        low, high = np.split(tree, 2, axis=-1)
        tree = low + high
    sums = tree[..., 0]
    while sums.shape[1] > 1:
        if sums.shape[1] % 2:
            sums = np.concatenate([sums, np.zeros((count, 1), F)], axis=1)
        sums = sums[:, 0::2] + sums[:, 1::2]
    return sums[:, 0]


def normalize(rows: Array, weight: Optional[Array], eps: float, weight_offset: float) -> Array:
    """RMSNorm of [rows, n] before the final rounding."""
    mean = sum_of_squares(rows) / F(rows.shape[1])
    inverse = F(1) / np.sqrt(mean + F(eps))
    scaled = rows * inverse[:, None]
    return scaled if weight is None else scaled * (np.asarray(weight, F) + F(weight_offset))


def polynomial(coefficients: Sequence[float], x: Array) -> Array:
    value = F(coefficients[0])
    for c in coefficients[1:]:
        value = value * x + F(c)
    return value


def exp(x: Array, dtype: str) -> Array:
    """0 below about -87, infinity above about 88.7, NaN for NaN; the polynomial depends on the rows' type."""
    x = np.where(x < EXP_LOW, EXP_LOW, x)
    x = np.where(x > EXP_HIGH, EXP_HIGH, x)
    scaled = x * LOG2E
    whole = np.rint(scaled)
    if dtype == "f32":
        r = (x - whole * LN2_HIGH) - whole * LN2_LOW
        p = (polynomial(EXP_WIDE, r) * (r * r) + r) + F(1)
    else:
        p = polynomial(EXP_NARROW, scaled - whole)
    field = np.where(np.isnan(whole), 0, whole).astype(np.int32) + 126  # exponent field of 2^(whole - 1)
    half = p * (field << 23).view(F)
    return half + half


def gate(value: Array, argument: Array, dtype: str) -> Array:
    """value * sigmoid(argument)."""
    return value / (F(1) + exp(-argument, dtype))


def rotate(heads: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """[..., head_size] by angles [..., rotary_dim / 2]; the coordinates past rotary_dim are carried over."""
    half = cos.shape[-1]
    if interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        first, second = slice(0, half), slice(half, 2 * half)
    a, b = heads[..., first], heads[..., second]
    turned = heads.copy()
    turned[..., first] = a * cos - b * sin
    turned[..., second] = b * cos + a * sin
    return turned


def angles(positions: Array, cache: Array) -> Tuple[Array, Array, Array]:
    """-> cos and sin [tokens, 1, rotary_dim / 2], and which tokens lie inside the cache [tokens, 1, 1]."""
    inside = (positions >= 0) & (positions < cache.shape[0])
    if cache.shape[0] == 0:
        cache = np.zeros((1, cache.shape[1]), F)
    cos, sin = np.split(np.asarray(cache, F)[np.where(inside, positions, 0)][:, None, :], 2, axis=-1)
    return cos, sin, inside[:, None, None]


# --- the operators -------------------------------------------------------------------


@quiet
def rms_norm(x: Array, weight: Optional[Array], eps: float, weight_offset: float, dtype: str) -> Array:
    """[rows, n]"""
    return round_to(normalize(x, weight, eps, weight_offset), dtype)


@quiet
def fused_add_rms_norm(
    x: Array, residual: Array, weight: Optional[Array], eps: float, weight_offset: float, dtype: str
) -> Tuple[Array, Array]:
    """-> (normalized, new residual), each [rows, n]; the norm reads the rounded sum."""
    total = round_to(x + residual, dtype)
    return rms_norm(total, weight, eps, weight_offset, dtype), total


@quiet
def silu_and_mul(x: Array, dtype: str) -> Array:
    g, u = np.split(x, 2, axis=-1)
    return round_to(gate(g, g, dtype) * u, dtype)


@quiet
def gelu_tanh_and_mul(x: Array, dtype: str) -> Array:
    g, u = np.split(x, 2, axis=-1)
    argument = (g * GELU_SCALE) * (F(1) + GELU_CUBIC * (g * g))
    return round_to(gate(g, argument, dtype) * u, dtype)


@quiet
def rotary_embedding(positions: Array, heads: Array, cache: Array, interleaved: bool, dtype: str) -> Array:
    """One of query or key, [tokens, heads, head_size]."""
    cos, sin, inside = angles(positions, cache)
    return np.where(inside, round_to(rotate(heads, cos, sin, interleaved), dtype), heads)


@quiet
def fused_qk_norm_rope(
    positions: Array,
    heads: Array,
    weight: Optional[Array],
    cache: Array,
    eps: float,
    weight_offset: float,
    interleaved: bool,
    round_normalized: bool,
    dtype: str,
) -> Array:
    """One of query or key, [tokens, heads, head_size]."""
    tokens, count, size = heads.shape
    normed = normalize(heads.reshape(tokens * count, size), weight, eps, weight_offset).reshape(heads.shape)
    if round_normalized:
        normed = round_to(normed, dtype)
    cos, sin, inside = angles(positions, cache)
    return round_to(np.where(inside, rotate(normed, cos, sin, interleaved), normed), dtype)
