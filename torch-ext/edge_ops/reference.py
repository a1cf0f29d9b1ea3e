"""Each operator in plain PyTorch: what it means, and what runs where native code does not.

For float32, bfloat16 and float16 every step is one float32 operation with one rounding, in the order
that docs/numerics.md fixes, so the results equal the native kernels' bit for bit. float64 rows are
computed in float64 by the same formulas with PyTorch's own exp.

All functions take tensors that `checks` has accepted, return new contiguous tensors, and are differentiable.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor

CHUNK = 256  # elements reduced by one halving tree

_LOG2E = 1.44269504
_LN2_HI = 0.693359375
_LN2_LO = -2.12194440e-4
_EXP_COEFFS = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
_EXP2_COEFFS = (0.009582852, 0.05590643, 0.24024099, 0.69312418, 1.0)
GELU_SCALE = 1.5957691216  # 2 * sqrt(2 / pi)
GELU_CUBIC = 0.044715
_HALF_POWERS = (0.0, *(2.0**e for e in range(-126, 128)))  # 2^(n - 1) for n = -126 .. 128, the smallest as 0


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _constant(value: float, like: Tensor) -> Tensor:
    """A 0-d tensor: Python scalars would be rounded to float32 by some kernels and not by others."""
    return torch.tensor(value, dtype=like.dtype, device=like.device)


def sum_of_squares(rows: Tensor) -> Tensor:
    """Sum of squares over the last dimension, ``[..., n] -> [..., 1]``, in the contract's order.

    Squares lie in chunks of 256, the last one padded with zeros; a halving tree reduces each chunk
    and an adjacent-pair tree adds the chunk sums.
    """
    n = rows.shape[-1]
    chunks = max(1, -(-n // CHUNK))
    padded = torch.nn.functional.pad(rows, (0, chunks * CHUNK - n))
    tree = padded.reshape(*rows.shape[:-1], chunks, CHUNK)
    tree = tree * tree
    width = CHUNK // 2
    while width:
        tree = tree[..., :width] + tree[..., width:]
        width //= 2
    sums = tree[..., 0]
    while sums.shape[-1] > 1:
        if sums.shape[-1] % 2:
            sums = torch.nn.functional.pad(sums, (0, 1))
        sums = sums[..., 0::2] + sums[..., 1::2]
    return sums


def _sqrt(x: Tensor) -> Tensor:
    """Correctly rounded: torch.sqrt of float32 on the CPU goes through MKL, which is off by an ulp now and then.

    A float64 root, off by an ulp or not, rounds to the right float32. MPS has no float64.
    """
    return torch.sqrt(x.double()).to(x.dtype) if x.device.type != "mps" else torch.sqrt(x)


def _scale_rows(rows: Tensor, weight: Optional[Tensor], eps: float, weight_offset: float) -> Tensor:
    """RMSNorm before the final rounding; rows are float32 or float64 already."""
    n = rows.shape[-1]
    mean = sum_of_squares(rows) / _constant(float(n), rows)
    inv = 1.0 / _sqrt(mean + _constant(eps, rows))
    normed = rows * inv
    if weight is None:
        return normed
    return normed * (weight.to(rows.dtype) + _constant(weight_offset, rows))


def _exp(x: Tensor, narrow: bool) -> Tensor:
    """exp in float32 by the contract's polynomial; ``narrow`` picks the one for 16-bit rows.

    Differentiable through the polynomial, whose derivative is as close to exp as itself.
    """
    x = torch.where(x < -87.0, _constant(-87.0, x), x)
    x = torch.where(x > 89.0, _constant(89.0, x), x)
    y = x * _constant(_LOG2E, x)
    n = torch.round(y.detach())
    if narrow:
        p = _horner(_EXP2_COEFFS, y - n)
    else:
        r = (x - n * _constant(_LN2_HI, x)) - n * _constant(_LN2_LO, x)
        p = _horner(_EXP_COEFFS, r)
        p = (p * (r * r) + r) + 1.0
    # 2^(n - 1) from a table: a view of shifted bits would do, but vmap has no rule for it before torch 2.11.
    exponent = torch.where(torch.isnan(n), torch.zeros_like(n), n).to(torch.int32) + 126
    half = p * torch.tensor(_HALF_POWERS, dtype=x.dtype, device=x.device)[exponent]
    return half + half


def _horner(coeffs: Tuple[float, ...], x: Tensor) -> Tensor:
    p = _constant(coeffs[0], x) * x + _constant(coeffs[1], x)
    for c in coeffs[2:]:
        p = p * x + _constant(c, x)
    return p


def _gate(g: Tensor, argument: Tensor, storage: torch.dtype) -> Tensor:
    """g * sigmoid(argument)."""
    if storage == torch.float64:
        return g / (1.0 + torch.exp(-argument))
    return g / (1.0 + _exp(-argument, storage != torch.float32))


def _halves(x: Tensor) -> Tuple[Tensor, Tensor]:
    d = x.shape[-1] // 2
    wide = x.to(_compute_dtype(x.dtype))
    return wide[..., :d], wide[..., d:]


def rms_norm(x: Tensor, weight: Optional[Tensor], eps: float, weight_offset: float) -> Tensor:
    """``x / sqrt(mean(x^2) + eps) * (weight + weight_offset)`` over the last dimension."""
    return _scale_rows(x.to(_compute_dtype(x.dtype)), weight, eps, weight_offset).to(x.dtype).contiguous()


def fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Optional[Tensor], eps: float, weight_offset: float
) -> Tuple[Tensor, Tensor]:
    """-> (normalized, new residual); the norm reads the rounded sum."""
    stream = x + residual
    return rms_norm(stream, weight, eps, weight_offset), stream


def silu_and_mul(x: Tensor) -> Tensor:
    """``silu(x[..., :d]) * x[..., d:]``."""
    g, u = _halves(x)
    return (_gate(g, g, x.dtype) * u).to(x.dtype).contiguous()


def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    """``gelu(x[..., :d], approximate="tanh") * x[..., d:]``, through sigmoid(2 t)."""
    g, u = _halves(x)
    inner = 1.0 + _constant(GELU_CUBIC, g) * (g * g)
    return (_gate(g, (g * _constant(GELU_SCALE, g)) * inner, x.dtype) * u).to(x.dtype).contiguous()


def _rotate(rows: Tensor, positions: Tensor, cos_sin_cache: Tensor, interleaved: bool) -> Tensor:
    """rows [..., heads, head_size] in the compute dtype; tokens outside the cache pass through."""
    max_position, rotary_dim = cos_sin_cache.shape
    if rotary_dim == 0 or max_position == 0:
        return rows
    half = rotary_dim // 2
    positions = positions.reshape(rows.shape[:-2])
    inside = (positions >= 0) & (positions < max_position)
    angles = cos_sin_cache[torch.where(inside, positions, torch.zeros_like(positions))].to(rows.dtype)
    cos, sin = angles[..., None, :half], angles[..., None, half:]
    if interleaved:
        a, b = rows[..., 0:rotary_dim:2], rows[..., 1:rotary_dim:2]
    else:
        a, b = rows[..., :half], rows[..., half:rotary_dim]
    turned_a, turned_b = a * cos - b * sin, b * cos + a * sin
    if interleaved:
        turned = torch.stack((turned_a, turned_b), dim=-1).flatten(-2)
    else:
        turned = torch.cat((turned_a, turned_b), dim=-1)
    return torch.where(inside[..., None, None], torch.cat((turned, rows[..., rotary_dim:]), dim=-1), rows)


def rotary_embedding(positions: Tensor, heads: Tensor, cos_sin_cache: Tensor, interleaved: bool) -> Tensor:
    """One of query or key, ``[..., heads, head_size]``: its first rotary_dim coordinates rotated by position."""
    wide = heads.to(_compute_dtype(heads.dtype))
    return _rotate(wide, positions, cos_sin_cache, interleaved).to(heads.dtype)


def qk_norm_rope(
    positions: Tensor,
    heads: Tensor,
    weight: Optional[Tensor],
    cos_sin_cache: Tensor,
    eps: float,
    weight_offset: float,
    interleaved: bool,
    round_normalized: bool,
) -> Tensor:
    """One of query or key: RMSNorm over each head, then the rotation."""
    wide = _compute_dtype(heads.dtype)
    normed = _scale_rows(heads.to(wide), weight, eps, weight_offset)
    if round_normalized:
        normed = normed.to(heads.dtype).to(wide)
    return _rotate(normed, positions, cos_sin_cache, interleaved).to(heads.dtype)
