"""Stateless layers for `kernels.kernelize`: what replaces the forward of a transformers module, bound to its instance.

Each class follows the rules of the `kernels` package: no constructor, no members beside ``forward`` and the two
flags, the argument list of the forward that it replaces. ``self`` is the model's own module, whose weights and
settings are read by transformers' names. They are for inference: ``has_backward`` is False.

`edge_ops.patch` reaches further (it fuses query and key norms with the rotation, and additions with norms); these
layers are for programs that already go through ``kernelize``.
"""

from typing import Tuple

import torch
from torch import Tensor, nn

from .ops import gelu_tanh_and_mul, rms_norm, rotary_embedding, silu_and_mul


class RMSNorm(nn.Module):
    """RMSNorm with a plain weight (Llama, Qwen3, SmolLM3 and most others); reads ``variance_epsilon`` or ``eps``.

    A float32 weight beside 16-bit rows gives float32 rows, as ``weight * x.to(dtype)`` does in these models.
    """

    can_torch_compile: bool = True
    has_backward: bool = False
    weight: Tensor
    variance_epsilon: float
    eps: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., hidden] -> the same shape."""
        rows = hidden_states.to(torch.promote_types(hidden_states.dtype, self.weight.dtype))
        eps = self.variance_epsilon if hasattr(self, "variance_epsilon") else self.eps
        return rms_norm(rows, self.weight, eps)


class RMSNormZeroCentered(nn.Module):
    """RMSNorm with weights around zero, ``(1 + w) * x`` (Gemma, Qwen3.5); reads ``eps``."""

    can_torch_compile: bool = True
    has_backward: bool = False
    weight: Tensor
    eps: float

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> the same shape and dtype."""
        return rms_norm(x, self.weight, self.eps, weight_offset=1.0)


class rotary_pos_emb(nn.Module):  # noqa: N801 - the name that transformers looks up
    """transformers' ``apply_rotary_pos_emb``: halves of a head rotated, coordinates past cos's width carried over."""

    can_torch_compile: bool = True
    has_backward: bool = False

    def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Tuple[Tensor, Tensor]:
        """q, k [batch, heads, seq, head_size] (or [batch, seq, heads, head_size] with unsqueeze_dim 2) -> new ones.

        cos, sin are [batch or 1, seq, rotary_dim], both halves equal.
        """
        swap = unsqueeze_dim == 1
        # The operator writes in place and the model's own function does not.
        query = (q.transpose(1, 2) if swap else q).clone(memory_format=torch.contiguous_format)
        key = (k.transpose(1, 2) if swap else k).clone(memory_format=torch.contiguous_format)
        half = cos.shape[-1] // 2
        cache = torch.cat((cos[..., :half], sin[..., :half]), dim=-1).flatten(end_dim=-2)
        if cache.dtype is not query.dtype:
            cache = cache.float()
        rows = torch.arange(cache.shape[0], device=cache.device).view(cos.shape[:-1]).expand(query.shape[:2])
        rotary_embedding(rows, query, key, cache)
        return (query.transpose(1, 2), key.transpose(1, 2)) if swap else (query, key)


class SiLU(nn.Module):
    """A lone SiLU, PyTorch's own: the operators fuse it with the product that follows (`SwiGLUMLP`)."""

    can_torch_compile: bool = True
    has_backward: bool = False

    def forward(self, input: Tensor) -> Tensor:
        """Any shape."""
        return nn.functional.silu(input)


class GeluTanh(nn.Module):
    """A lone GELU in its tanh form, PyTorch's own: the operators fuse it with the product (`GeGLUMLP`)."""

    can_torch_compile: bool = True
    has_backward: bool = False

    def forward(self, input: Tensor) -> Tensor:
        """Any shape."""
        return nn.functional.gelu(input, approximate="tanh")


class SwiGLUMLP(nn.Module):
    """``down_proj(silu(gate_proj(x)) * up_proj(x))``."""

    can_torch_compile: bool = True
    has_backward: bool = False
    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> the same shape."""
        return self.down_proj(silu_and_mul(torch.cat((self.gate_proj(x), self.up_proj(x)), dim=-1)))


class GeGLUMLP(nn.Module):
    """``down_proj(gelu_tanh(gate_proj(x)) * up_proj(x))``."""

    can_torch_compile: bool = True
    has_backward: bool = False
    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> the same shape."""
        return self.down_proj(gelu_tanh_and_mul(torch.cat((self.gate_proj(x), self.up_proj(x)), dim=-1)))
