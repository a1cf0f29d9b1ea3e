"""Shape functions of the registered operators, for torch.compile, torch.export and fake tensors.

They run the same checks as a real call, so a wrong shape is refused while tracing, in the same words.
"""

import torch

from . import checks
from ._ops import add_op_namespace_prefix


@torch.library.register_fake(add_op_namespace_prefix("rms_norm"))
def _rms_norm(x, weight, eps, weight_offset):
    checks.rms_norm(x, weight, eps, weight_offset, None)
    return x.new_empty(x.shape)


@torch.library.register_fake(add_op_namespace_prefix("rms_norm_out"))
def _rms_norm_out(out, x, weight, eps, weight_offset):
    checks.rms_norm(x, weight, eps, weight_offset, out)


@torch.library.register_fake(add_op_namespace_prefix("fused_add_rms_norm"))
def _fused_add_rms_norm(x, residual, weight, eps, weight_offset):
    checks.fused_add_rms_norm(x, residual, weight, eps, weight_offset)


@torch.library.register_fake(add_op_namespace_prefix("silu_and_mul"))
def _silu_and_mul(x):
    checks.gated_activation("silu_and_mul", x, None)
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


@torch.library.register_fake(add_op_namespace_prefix("silu_and_mul_out"))
def _silu_and_mul_out(out, x):
    checks.gated_activation("silu_and_mul", x, out)


@torch.library.register_fake(add_op_namespace_prefix("gelu_tanh_and_mul"))
def _gelu_tanh_and_mul(x):
    checks.gated_activation("gelu_tanh_and_mul", x, None)
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


@torch.library.register_fake(add_op_namespace_prefix("gelu_tanh_and_mul_out"))
def _gelu_tanh_and_mul_out(out, x):
    checks.gated_activation("gelu_tanh_and_mul", x, out)


@torch.library.register_fake(add_op_namespace_prefix("rotary_embedding"))
def _rotary_embedding(positions, query, key, cos_sin_cache, interleaved):
    checks.rotary_embedding(positions, query, key, cos_sin_cache)


@torch.library.register_fake(add_op_namespace_prefix("fused_qk_norm_rope"))
def _fused_qk_norm_rope(
    positions, query, key, q_weight, k_weight, cos_sin_cache, eps, weight_offset, interleaved, round_normalized
):
    checks.fused_qk_norm_rope(positions, query, key, q_weight, k_weight, cos_sin_cache, eps, weight_offset, None, None)


@torch.library.register_fake(add_op_namespace_prefix("fused_qk_norm_rope_out"))
def _fused_qk_norm_rope_out(
    query_out,
    key_out,
    positions,
    query,
    key,
    q_weight,
    k_weight,
    cos_sin_cache,
    eps,
    weight_offset,
    interleaved,
    round_normalized,
):
    checks.fused_qk_norm_rope(
        positions, query, key, q_weight, k_weight, cos_sin_cache, eps, weight_offset, query_out, key_out
    )
