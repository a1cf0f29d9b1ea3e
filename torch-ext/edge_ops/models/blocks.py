"""The pieces that the families' layers are made of: norms, the residual stream, the gated product.

In a decode step the projections stream megabytes of weights past the caches, so everything between them runs cold:
a Python function or a tensor operation costs several times what a tight loop shows. Hence few calls, plain
dictionary look-ups, and checks that touch little.
"""

from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor, nn

from ..ops import fused_add_rms_norm, gelu_tanh_and_mul, rms_norm, silu_and_mul
from .binding import RECORD, Record, eager_only, original

# --- norms ---------------------------------------------------------------------------


class Loop:
    """One run of a decoder over its layers: what the last layer left for the norm after it.

    A layer computes its residual addition together with the next norm, and leaves the result here. Whoever takes it
    checks that norm and stream are the very objects that it was left for, so that reordered, shortened or
    interrupted runs cost a norm and never change a result.
    """

    __slots__ = ("norm", "normed", "stream")

    def __init__(self) -> None:
        self.norm: Optional[nn.Module] = None
        self.stream: Optional[Tensor] = None  # a layer's output, in memory that nothing else holds
        self.normed: Optional[Tensor] = None

    def leave(self, norm: Optional[nn.Module], stream: Tensor, normed: Optional[Tensor]) -> None:
        self.norm, self.stream, self.normed = norm, stream, normed


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


def operand(norm: nn.Module, x: Tensor) -> Optional[Tuple[Any, float, float]]:
    """(weight, eps, weight_offset) for an operator that does a patched norm's work on x, or None.

    None where the module itself must be called: it is not patched, someone watches it, its weight is moved around
    each call, or the result would have another dtype.
    """
    state = norm.__dict__
    record: Optional[NormRecord] = state.get(RECORD)
    if record is None or state["_forward_hooks"] or state["_forward_pre_hooks"] or "_hf_hook" in state:
        return None
    weight = state["_parameters"].get("weight")
    if not _weight_fits(weight, record, x):
        return None
    return weight, state[record.eps], record.weight_offset


def norm_over(norm: nn.Module, x: Tensor, own: bool) -> Tensor:
    """norm(x), in x's memory where x is the caller's own."""
    found = operand(norm, x) if own else None
    return norm(x) if found is None else rms_norm(x, found[0], found[1], weight_offset=found[2], out=x)


def add_norm(x: Tensor, residual: Tensor, norm: nn.Module, own: bool) -> Tuple[Tensor, Tensor]:
    """-> (norm(residual + x), residual + x), in x's and residual's memory where both are the caller's own."""
    found = operand(norm, x) if own and x.dtype is residual.dtype else None
    if found is not None:
        return fused_add_rms_norm(x, residual, found[0], found[1], weight_offset=found[2])
    stream = residual + x
    return norm(stream), stream


def add_and_leave(x: Tensor, residual: Tensor, norm: Optional[nn.Module], loop: Optional[Loop]) -> Tensor:
    """-> residual + x; with a loop and a next norm, in their memory, and the norm's result is left there."""
    if loop is None or norm is None or x.dtype is not residual.dtype:
        return residual + x
    found = operand(norm, x)
    if found is None:
        return residual + x
    normed, stream = fused_add_rms_norm(x, residual, found[0], found[1], weight_offset=found[2])
    loop.leave(norm, stream, normed)
    return stream


# --- the decoder's loop --------------------------------------------------------------

LOOP = "edge_ops_loop"  # the argument that carries a `Loop` to the layers


class DecoderRecord(Record):
    """A decoder's final norm, and whether all of its layers take a `Loop`."""

    def __init__(self, norm: nn.Module, loops: bool) -> None:
        self.norm, self.loops = norm, loops


def decoder_forward(decoder: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Replaces a decoder's forward: its own code, with a `Loop` for its layers.

    Its code keeps no stream that a layer returns, except through hooks, which the layers see. Layers that are called
    in any other way get no `Loop` and overwrite nothing.
    """
    record: DecoderRecord = decoder.__dict__[RECORD]
    watched = nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks
    if eager_only(decoder) or watched or not record.loops:
        return original(decoder, *args, **kwargs)
    loop = Loop()
    final: Optional[NormRecord] = record.norm.__dict__.get(RECORD)
    if final is not None:
        final.loop = loop  # another thread may put its own here: the norm then computes its result
    try:
        return original(decoder, *args, **{LOOP: loop}, **kwargs)
    finally:
        if final is not None:
            final.loop = None


# --- the gated product ---------------------------------------------------------------

PRODUCTS = {"silu_and_mul": silu_and_mul, "gelu_tanh_and_mul": gelu_tanh_and_mul}

_ACTIVATIONS = {
    "SiLUActivation": "silu_and_mul",
    "SiLU": "silu_and_mul",
    "GELUTanh": "gelu_tanh_and_mul",
}


def product_of(activation: Any) -> Optional[str]:
    """The name of the operator for ``activation(gate) * up``, or None."""
    return _ACTIVATIONS.get(type(activation).__name__)


class MLPRecord(Record):
    """The operator that is an MLP's product, and its projections by name."""

    def __init__(self, operator: str, names: Tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> None:
        self.operator = operator
        self.gate, self.up, self.down = names
        self.merged: Optional[Tensor] = None  # one matrix, whose halves are the two projections' weights

    def __getstate__(self) -> dict:
        return {**self.__dict__, "merged": None}  # a copy's projections have their own memory

    def release(self, module: nn.Module) -> None:
        """Gives the two projections' weights memory of their own again."""
        if self.merged is None:
            return
        gate, up = module.get_submodule(self.gate), module.get_submodule(self.up)
        if is_merged(self.merged, gate, up):
            with torch.no_grad(), torch.inference_mode(False):
                gate.weight.data, up.weight.data = gate.weight.data.clone(), up.weight.data.clone()
        self.merged = None


def packed_mlp_forward(mlp: nn.Module, x: Tensor) -> Tensor:
    """Replaces ``down_proj(up * act_fn(gate))`` of one packed ``gate_up_proj``."""
    if eager_only(mlp):
        return original(mlp, x)
    modules = mlp.__dict__["_modules"]
    return modules["down_proj"](PRODUCTS[mlp.__dict__[RECORD].operator](modules["gate_up_proj"](x)))


def gated_mlp_forward(mlp: nn.Module, x: Tensor) -> Tensor:
    """Replaces ``down_proj(act_fn(gate_proj(x)) * up_proj(x))``."""
    if eager_only(mlp):
        return original(mlp, x)
    modules = mlp.__dict__["_modules"]
    record: MLPRecord = mlp.__dict__[RECORD]
    gate, up = modules[record.gate], modules[record.up]
    if record.merged is not None and not torch.compiler.is_compiling() and is_merged(record.merged, gate, up):
        both = project(x, record.merged)
    else:
        both = torch.cat((gate(x), up(x)), dim=-1)
    return modules[record.down](PRODUCTS[record.operator](both))


# --- one matrix for gate and up ------------------------------------------------------

def project(x: Tensor, merged: Tensor) -> Tensor:
    """Gate and up in one product."""
    return nn.functional.linear(x, merged)


# Numbers of rows at which one product must have the bits of two; other numbers use the same kernels.
_CHECKED_ROWS = (1, 2, 3, 5, 8, 16, 33)


def is_merged(merged: Tensor, gate: nn.Module, up: nn.Module) -> bool:
    """Whether the two projections still are the halves of `merged`, and nothing watches them."""
    first, second = gate.__dict__, up.__dict__
    if first["_forward_hooks"] or second["_forward_hooks"] or "_hf_hook" in first:
        return False
    weights = first["_parameters"].get("weight"), second["_parameters"].get("weight")
    if weights[0] is None or weights[1] is None:
        return False
    start = merged.data_ptr()
    return weights[0].data_ptr() == start and weights[1].data_ptr() == start + merged.nbytes // 2


def merge(mlp: nn.Module, checked: List[Any]) -> Optional[str]:
    """Lays the two projections' weights behind each other in one matrix; -> the reason why not, or None.

    The parameters stay what they are, two views of that matrix. `checked` collects the shapes whose product in one
    call was found to have the bits of two.
    """
    record: MLPRecord = mlp.__dict__[RECORD]
    gate, up = mlp.get_submodule(record.gate), mlp.get_submodule(record.up)
    for module in (gate, up):
        weight = module._parameters.get("weight")
        if type(module) is not nn.Linear or type(weight) is not nn.Parameter or module.bias is not None:
            return "a projection is not a plain linear layer without bias"
        if "_hf_hook" in module.__dict__ or weight.device.type != "cpu" or weight.is_shared():
            return "a projection's weight is moved around, shared or not on the CPU"
    first, second = gate.weight, up.weight
    if first.shape != second.shape or first.dtype is not second.dtype:
        return "the two weights differ in shape or dtype"
    with torch.no_grad(), torch.inference_mode(False):
        merged = torch.cat((first, second))
        key = (tuple(first.shape), first.dtype, torch.get_num_threads())
        if key not in checked:
            if not _same_bits(first, second, merged):
                return "one product has other bits than two on this machine"
            checked.append(key)
        first.data, second.data = merged.chunk(2)
    record.merged = merged
    return None


def _same_bits(first: Tensor, second: Tensor, merged: Tensor) -> bool:
    generator = torch.Generator().manual_seed(0)
    for rows in _CHECKED_ROWS:
        x = torch.randn(rows, first.shape[1], generator=generator).to(first.dtype)
        two = torch.cat((nn.functional.linear(x, first), nn.functional.linear(x, second)), dim=-1)
        if not torch.equal(project(x, merged), two):
            return False
    return True
