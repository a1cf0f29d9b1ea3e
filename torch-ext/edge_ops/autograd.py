"""Gradients and batching rules of the functional operators, registered with the dispatcher.

The backward formulas are the textbook derivatives of the forward ones, evaluated in float32 (float64
rows never come here: the reference computes them and is differentiable by itself).
"""

import torch

from ._ops import add_op_namespace_prefix, ops
from .reference import GELU_CUBIC, GELU_SCALE


def _rms_norm_context(ctx, inputs, output):
    x, weight, eps, weight_offset = inputs
    ctx.save_for_backward(x, weight)
    ctx.eps, ctx.weight_offset = eps, weight_offset


def _rms_norm_backward(ctx, grad):
    x, weight = ctx.saved_tensors
    wide, g = x.float(), grad.float()
    inv = torch.rsqrt(wide.square().mean(-1, keepdim=True) + ctx.eps)
    normed = wide * inv
    grad_weight = None
    if weight is not None:
        grad_weight = (g * normed).flatten(end_dim=-2).sum(0) if x.dim() > 1 else g * normed
        grad_weight = grad_weight.to(weight.dtype)
        g = g * (weight.float() + ctx.weight_offset)
    grad_x = inv * (g - normed * (g * normed).mean(-1, keepdim=True))
    return grad_x.to(x.dtype), grad_weight, None, None


torch.library.register_autograd(
    add_op_namespace_prefix("rms_norm"), _rms_norm_backward, setup_context=_rms_norm_context
)


def _activation_context(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])


def _gated_backward(activation, x, grad):
    d = x.shape[-1] // 2
    gate, up, g = x[..., :d].float(), x[..., d:].float(), grad.float()
    value, slope = activation(gate)
    return torch.cat((g * up * slope, g * value), dim=-1).to(x.dtype)


def _silu(gate):
    s = torch.sigmoid(gate)
    return gate * s, s * (1 + gate * (1 - s))


def _gelu_tanh(gate):
    s = torch.sigmoid(GELU_SCALE * gate * (1 + GELU_CUBIC * gate * gate))
    return gate * s, s + gate * s * (1 - s) * GELU_SCALE * (1 + 3 * GELU_CUBIC * gate * gate)


def _silu_backward(ctx, grad):
    return _gated_backward(_silu, ctx.saved_tensors[0], grad)


def _gelu_tanh_backward(ctx, grad):
    return _gated_backward(_gelu_tanh, ctx.saved_tensors[0], grad)


torch.library.register_autograd(
    add_op_namespace_prefix("silu_and_mul"), _silu_backward, setup_context=_activation_context
)
torch.library.register_autograd(
    add_op_namespace_prefix("gelu_tanh_and_mul"), _gelu_tanh_backward, setup_context=_activation_context
)


@torch.library.register_vmap(add_op_namespace_prefix("rms_norm"))
def _rms_norm_vmap(info, in_dims, x, weight, eps, weight_offset):
    x_dim, weight_dim = in_dims[0], in_dims[1]
    if weight_dim is None:
        return ops.rms_norm(x.movedim(x_dim, 0), weight, eps, weight_offset), 0
    # A weight per example is a call per example: the operator takes one weight.
    rows = x.expand(info.batch_size, *x.shape) if x_dim is None else x.movedim(x_dim, 0)
    weights = weight.movedim(weight_dim, 0)
    results = [ops.rms_norm(row, w, eps, weight_offset) for row, w in zip(rows.unbind(0), weights.unbind(0))]
    return torch.stack(results), 0


@torch.library.register_vmap(add_op_namespace_prefix("silu_and_mul"))
def _silu_vmap(info, in_dims, x):
    return ops.silu_and_mul(x.movedim(in_dims[0], 0)), 0


@torch.library.register_vmap(add_op_namespace_prefix("gelu_tanh_and_mul"))
def _gelu_tanh_vmap(info, in_dims, x):
    return ops.gelu_tanh_and_mul(x.movedim(in_dims[0], 0)), 0
