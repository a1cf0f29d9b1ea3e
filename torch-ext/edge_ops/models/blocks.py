"""The pieces that the families' layers are made of: norms, the residual stream, what the layers of one run share.

In a decode step the projections stream megabytes of weights past the caches, so everything between them runs cold:
a Python function, a tensor operation or a look at a tensor's dtype costs several times what a tight loop shows. Hence
few calls, plain dictionary look-ups, and no check that the operator makes anyway: what it refuses, before it has
written anything, the model's own code does.
"""

from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from ..ops import fused_add_rms_norm, rms_norm
from .binding import RECORD, Record, eager_only, original

# --- norms ---------------------------------------------------------------------------


class Operand(NamedTuple):
    """What an operator needs to do a patched norm's work."""

    weight: Optional[Tensor]
    eps: float
    weight_offset: float
    # The only dtype of rows that it may be used on; None where the operator refuses by itself what does not fit.
    dtype: Optional[torch.dtype]
    on_stream: bool  # it may be used on the run's residual stream


class Loop:
    """One run of a decoder over its layers.

    A layer computes its residual addition together with the next norm, and leaves the result here. Whoever takes it
    checks that norm and stream are the very objects that it was left for, so that reordered, shortened or
    interrupted runs cost a norm and never change a result.
    """

    __slots__ = ("norm", "normed", "product", "run", "steps", "stream")

    def __init__(self, run: Any) -> None:
        self.run = run  # the decoder's record
        self.steps: Any = None  # what each layer needs, or None for one that somebody watches
        # The last gated product: the next layer's has the same shape and overwrites it, since a new tensor between
        # two projections costs more than the operator that fills it.
        self.product: Optional[Tensor] = None
        self.norm: Optional[nn.Module] = None
        self.stream: Optional[Tensor] = None  # a layer's output, in memory that nothing else holds
        self.normed: Optional[Tensor] = None


class NormRecord(Record):
    """How a class of norms computes."""

    def __init__(self, eps: str, weight_offset: float, promotes: bool) -> None:
        self.eps = eps  # name of the module's attribute
        self.weight_offset = weight_offset
        self.promotes = promotes  # ``weight * x.to(dtype)``: a weight of another dtype decides the result's
        self.loop: Optional[Loop] = None  # of the final norm: the loop that may have its result ready

    def __getstate__(self) -> dict:
        return {**self.__dict__, "loop": None}


def norm_forward(norm: nn.Module, hidden_states: Tensor) -> Tensor:
    """Replaces an RMSNorm's forward."""
    record: NormRecord = norm.__dict__[RECORD]
    weight = norm.__dict__["_parameters"].get("weight")
    if eager_only(norm) or not _weight_fits(weight, record, hidden_states):
        return original(norm, hidden_states)
    loop = record.loop
    if loop is not None and loop.norm is norm and loop.stream is hidden_states and loop.normed is not None:
        return loop.normed
    return rms_norm(hidden_states, weight, norm.__dict__[record.eps], weight_offset=record.weight_offset)


def _weight_fits(weight: Optional[Tensor], record: NormRecord, x: Tensor) -> bool:
    return weight is None or weight.dtype is x.dtype or (weight.dtype is torch.float32 and not record.promotes)


def hooked(module: nn.Module) -> bool:
    """Whether somebody watches a module's calls, or moves its weights around each of them."""
    state = module.__dict__
    return bool(state["_forward_hooks"] or state["_forward_pre_hooks"] or "_hf_hook" in state)


def operand(norm: nn.Module, stream: Optional[torch.dtype] = None) -> Optional[Operand]:
    """What an operator needs to do this norm's work.

    None where the module itself must be called: it is not patched, someone watches it, or its weight is moved around
    each call.

    Args:
        stream: dtype of the residual stream, where the norm is to be used on it.
    """
    state = norm.__dict__
    record: Optional[NormRecord] = state.get(RECORD)
    if record is None or hooked(norm):
        return None
    weight = state["_parameters"].get("weight")
    # The operators take a float32 weight beside any rows, and give rows of their dtype.
    only = torch.float32 if record.promotes and weight is not None and weight.dtype is torch.float32 else None
    fields = (weight, state[record.eps], record.weight_offset, only, only is None or only is stream)
    return tuple.__new__(Operand, fields)  # what Operand(*fields) does, without a Python call


def norm_over(norm: nn.Module, found: Optional[Operand], x: Tensor) -> Tensor:
    """norm(x), in x's memory where an operand is given."""
    if found is not None and (found.dtype is None or found.dtype is x.dtype):
        try:
            return rms_norm(x, found.weight, found.eps, weight_offset=found.weight_offset, out=x)
        except TypeError:
            pass  # the weight has another dtype than the rows
    return norm(x)


Norm = Tuple[nn.Module, Operand]


def add_norm(norm: Norm, x: Tensor, residual: Tensor, own: bool, loop: Optional[Loop] = None) -> Tuple[Tensor, Tensor]:
    """-> (norm(residual + x), residual + x), in x's and residual's memory where nobody else holds the residual.

    Args:
        own: nobody else holds it.
        loop: where to leave the result for the layer that follows.
    """
    module, found = norm
    result: Optional[Tuple[Tensor, Tensor]] = None
    if own and found.on_stream:
        try:
            result = fused_add_rms_norm(x, residual, found.weight, found.eps, weight_offset=found.weight_offset)
        except TypeError:
            pass  # x, the stream or the weight differ in dtype
    if result is None:
        stream = residual + x
        result = module(stream), stream
    if loop is not None:
        loop.norm = module
        loop.normed, loop.stream = result
    return result
