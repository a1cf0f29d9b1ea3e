"""A small module and function that use every operator, for the tests of PyTorch's compilers and modes."""

from __future__ import annotations

from typing import Tuple

import torch
from torch import Tensor, nn

import edge_ops

from .values import DEVICE

HIDDEN, HEADS, KV, SIZE = 32, 4, 2, 8


class Block(nn.Module):
    """One layer's worth of operators, in place and not, on views of a packed projection."""

    def __init__(self, dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(seed)

        def parameter(*shape: int) -> nn.Parameter:
            value = torch.randn(shape, generator=g) * 0.5
            return nn.Parameter(value.to(dtype).to(DEVICE), requires_grad=False)

        self.norm, self.post_norm = parameter(HIDDEN), parameter(HIDDEN)
        self.q_norm, self.k_norm = parameter(SIZE), parameter(SIZE)
        self.register_buffer("cache", edge_ops.rope_cache(64, SIZE).to(DEVICE))

    def forward(self, x: Tensor, packed: Tensor, positions: Tensor) -> Tuple[Tensor, ...]:
        """x [tokens, hidden], packed [tokens, (heads + 2 kv) * size], positions [tokens]."""
        normed = edge_ops.rms_norm(x, self.norm, 1e-5, weight_offset=1.0)
        q, k, v = packed.split((HEADS * SIZE, KV * SIZE, KV * SIZE), dim=-1)
        q, k = q.unflatten(-1, (HEADS, SIZE)), k.unflatten(-1, (KV, SIZE))
        q, k = edge_ops.fused_qk_norm_rope(positions, q, k, self.q_norm, self.k_norm, self.cache)
        plain = q.clone()
        edge_ops.rotary_embedding(positions, plain, None, self.cache, interleaved=True)
        delta, residual = (q + plain).flatten(-2), normed.clone()
        edge_ops.fused_add_rms_norm(delta, residual, self.post_norm)
        gated = edge_ops.silu_and_mul(torch.cat((delta, residual), -1))
        return gated + edge_ops.gelu_tanh_and_mul(torch.cat((residual, delta), -1)), q, k, v


def inputs(tokens: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed * 1000 + tokens)
    x = torch.randn(tokens, HIDDEN, generator=g).to(dtype).to(DEVICE)
    packed = torch.randn(tokens, (HEADS + 2 * KV) * SIZE, generator=g).to(dtype).to(DEVICE)
    positions = torch.randint(-1, 70, (tokens,), generator=g).to(DEVICE)  # some outside the cache
    return x, packed, positions


def assert_equal(got: Tuple[Tensor, ...], want: Tuple[Tensor, ...], what: str = "") -> None:
    """Bit for bit, NaN equal to NaN."""
    assert len(got) == len(want)
    for i, (a, b) in enumerate(zip(got, want)):
        assert a.shape == b.shape and a.dtype == b.dtype, f"{what} {i}"
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True, msg=lambda m, i=i: f"{what} {i}: {m}")
