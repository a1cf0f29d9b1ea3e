"""The pieces that the families' forwards are made of: norms, the residual stream, the gated product.

Two tensors may be overwritten by an in-place operator only if nobody else can hold them. A module's output counts
as the caller's own when no hook on that module can have kept it; the residual stream, when the previous patched
layer produced it inside the patched decoder's own loop and nothing records that layer's output.
"""

import threading
from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from ..ops import fused_add_rms_norm, gelu_tanh_and_mul, rms_norm, silu_and_mul
from .binding import RECORD, Record, eager_only, hooked, is_bound, original

# --- norms ---------------------------------------------------------------------------


class Handed(NamedTuple):
    """What a layer leaves for the norm that comes next."""

    norm: nn.Module
    stream: Tensor  # the layer's output
    normed: Tensor  # norm(stream), computed with the residual add
    private: bool  # nothing records the layer's output


class Handoff:
    """Where a layer leaves the next norm's result; one for each decoder.

    The taker checks that norm and stream are the very objects that it was left for, so a reordered, shortened or
    interrupted run, or another thread's, costs a norm and never changes a result.
    """

    def __init__(self) -> None:
        self.handed: Optional[Handed] = None

    def __getstate__(self) -> dict:
        return {"handed": None}  # a copy or a pickle is of a model at rest


class NormRecord(Record):
    """How a class of norms computes, and where it may find its result ready."""

    def __init__(self, eps: str, weight_offset: float, promotes: bool, handoff: Optional[Handoff] = None) -> None:
        self.eps = eps  # name of the module's attribute
        self.weight_offset = weight_offset
        self.promotes = promotes  # ``weight * x.to(dtype)``: a weight of another dtype decides the result's
        self.handoff = handoff


def norm_forward(norm: nn.Module, hidden_states: Tensor) -> Tensor:
    """Replaces an RMSNorm's forward."""
    record: NormRecord = norm.__dict__[RECORD]
    if eager_only(norm) or not _dtypes_fit(norm, record, hidden_states):
        return original(norm, hidden_states)
    if record.handoff is not None:
        handed, record.handoff.handed = record.handoff.handed, None
        if handed is not None and handed.norm is norm and handed.stream is hidden_states:
            return handed.normed
    return _rms_norm(norm, record, hidden_states, None)


def _dtypes_fit(norm: nn.Module, record: NormRecord, x: Tensor) -> bool:
    weight = norm._parameters.get("weight")  # half the price of norm.weight
    return weight is None or weight.dtype is x.dtype or (weight.dtype is torch.float32 and not record.promotes)


def _rms_norm(norm: nn.Module, record: NormRecord, x: Tensor, out: Optional[Tensor]) -> Tensor:
    weight = norm._parameters.get("weight")
    return rms_norm(x, weight, getattr(norm, record.eps), weight_offset=record.weight_offset, out=out)


def direct(norm: nn.Module, x: Tensor) -> bool:
    """Whether an operator may do this patched norm's work on x without going through the module."""
    return is_bound(norm) and not hooked(norm) and _dtypes_fit(norm, norm.__dict__[RECORD], x)


def norm_over(norm: nn.Module, x: Tensor, own: bool) -> Tensor:
    """norm(x), in x's memory where x is the caller's own."""
    if own and direct(norm, x):
        return _rms_norm(norm, norm.__dict__[RECORD], x, x)
    return norm(x)


# --- the residual stream -------------------------------------------------------------

_loop = threading.local()  # .handoff: that of the decoder whose loop this thread is in


class DecoderRecord(Record):
    """The handoff that a decoder's layers and norms share."""

    def __init__(self, handoff: Handoff) -> None:
        self.handoff = handoff


def decoder_forward(decoder: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Replaces a decoder's forward: its own code, with the note that this thread is in a loop that keeps no stream."""
    if torch.compiler.is_compiling():
        return original(decoder, *args, **kwargs)
    outer, _loop.handoff = getattr(_loop, "handoff", None), decoder.__dict__[RECORD].handoff
    try:
        return original(decoder, *args, **kwargs)
    finally:
        _loop.handoff = outer


def owns_stream(layer: nn.Module, hidden_states: Tensor) -> bool:
    """Whether `layer` may overwrite its input; to be asked before its input norm takes what was handed."""
    if torch.compiler.is_compiling():
        return False  # the compiler fuses the addition without being told
    handoff: Handoff = layer.__dict__[RECORD].handoff
    handed = handoff.handed
    return (
        handed is not None
        and handed.private
        and handed.stream is hidden_states
        and getattr(_loop, "handoff", None) is handoff
        and not hooked(layer)
    )


def own_output(*modules: Optional[nn.Module]) -> bool:
    """Whether the tensor that these nested modules return is the caller's own: none of them has a hook on it."""
    return not any(module._forward_hooks for module in modules if module is not None) and not (
        nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks
    )


def add_norm(x: Tensor, residual: Tensor, norm: nn.Module, own: bool) -> Tuple[Tensor, Tensor]:
    """-> (norm(residual + x), residual + x), in x's and residual's memory where both are the caller's own."""
    if own and x.dtype is residual.dtype and direct(norm, x):
        return _fused_add(x, residual, norm)
    stream = residual + x
    return norm(stream), stream


def _fused_add(x: Tensor, residual: Tensor, norm: nn.Module) -> Tuple[Tensor, Tensor]:
    record: NormRecord = norm.__dict__[RECORD]
    weight = norm._parameters.get("weight")
    return fused_add_rms_norm(x, residual, weight, getattr(norm, record.eps), weight_offset=record.weight_offset)


def hand_over(layer: nn.Module, x: Tensor, residual: Tensor, own: bool) -> Tensor:
    """-> residual + x, which is the layer's output; the next norm's result is left for it where both are its own."""
    handoff: Handoff = layer.__dict__[RECORD].handoff
    norm: nn.Module = layer.__dict__[RECORD].next_norm
    if not (own and x.dtype is residual.dtype and direct(norm, x)):
        return residual + x
    normed, stream = _fused_add(x, residual, norm)
    handoff.handed = Handed(norm, stream, normed, own_output(layer))
    return stream


# --- the gated product ---------------------------------------------------------------

PRODUCTS = {"silu_and_mul": silu_and_mul, "gelu_tanh_and_mul": gelu_tanh_and_mul}

_ACTIVATIONS = {
    "SiLUActivation": "silu_and_mul",
    "SiLU": "silu_and_mul",
    "GELUTanh": "gelu_tanh_and_mul",
}


class MLPRecord(Record):
    """The operator that is an MLP's product."""

    def __init__(self, operator: str) -> None:
        self.operator = operator


def product_of(activation: Any) -> Optional[str]:
    """The name of the operator for ``activation(gate) * up``, or None."""
    return _ACTIVATIONS.get(type(activation).__name__)


def gated_mlp_forward(mlp: nn.Module, x: Tensor) -> Tensor:
    """Replaces ``down_proj(act_fn(gate_proj(x)) * up_proj(x))``."""
    if eager_only(mlp):
        return original(mlp, x)
    # One copy brings the halves together: writing them into one buffer by out= takes as long and leaves out the
    # modules (adapters, hooks, quantized weights).
    both = torch.cat((mlp.gate_proj(x), mlp.up_proj(x)), dim=-1)
    return mlp.down_proj(PRODUCTS[mlp.__dict__[RECORD].operator](both))
