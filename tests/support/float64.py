"""The operators as textbook formulas in float64: the oracle for accuracy, unaware of the contract's order."""

from __future__ import annotations

import math
from typing import Optional, Tuple

import torch
from torch import Tensor


def wide(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu").double()


def rms_norm(x: Tensor, weight: Optional[Tensor], eps: float = 1e-6, weight_offset: float = 0.0) -> Tensor:
    x = wide(x)
    normed = x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)
    return normed if weight is None else normed * (wide(weight) + weight_offset)


def silu_and_mul(x: Tensor) -> Tensor:
    gate, up = wide(x).chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    gate, up = wide(x).chunk(2, dim=-1)
    inner = math.sqrt(2.0 / math.pi) * (gate + 0.044715 * gate**3)
    # 0.5 (1 + tanh t) = sigmoid(2 t), without the cancellation of the left side for negative t
    return gate * torch.sigmoid(2.0 * inner) * up


def pairs(rotary_dim: int, interleaved: bool) -> Tuple[Tensor, Tensor]:
    """Indices of the first and of the second coordinates of the rotated pairs."""
    index = torch.arange(rotary_dim)
    return (index[0::2], index[1::2]) if interleaved else (index[: rotary_dim // 2], index[rotary_dim // 2 :])


def rotary_embedding(
    positions: Tensor, heads: Tensor, cache: Tensor, interleaved: bool = False
) -> Tuple[Tensor, Tensor]:
    """-> rotated heads, and for each coordinate the length of its pair (the scale of a rotation's error).

    Complex multiplication: (a + i b) e^(i t). heads [tokens, heads, head_size]; tokens outside the cache stay.
    """
    heads, cache, positions = wide(heads), wide(cache), positions.cpu().long()
    rotary_dim = cache.shape[1]
    inside = (positions >= 0) & (positions < cache.shape[0])
    cos, sin = cache[positions.clamp(0, cache.shape[0] - 1)].chunk(2, dim=-1)
    turn = torch.complex(cos, sin)[:, None]
    first, second = pairs(rotary_dim, interleaved)
    z = torch.complex(heads[..., first], heads[..., second])
    turned, length = heads.clone(), heads.abs()
    turned[..., first], turned[..., second] = (z * turn).real, (z * turn).imag
    length[..., first] = length[..., second] = z.abs()
    return torch.where(inside[:, None, None], turned, heads), length


def relative_l2(got: Tensor, want: Tensor) -> float:
    """|got - want| / |want| over the whole tensor."""
    return ((wide(got) - want).norm() / want.norm()).item()
