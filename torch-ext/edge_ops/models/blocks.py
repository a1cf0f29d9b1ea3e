"""The pieces that the families' layers are made of: norms, the residual stream, the gated product.

In a decode step the projections stream megabytes of weights past the caches, so everything between them runs cold:
a Python function or a tensor operation costs several times what a tight loop shows. Hence few calls, plain
dictionary look-ups, and checks that touch little.
"""

from typing import Any, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from ..ops import fused_add_rms_norm, gelu_tanh_and_mul, rms_norm, silu_and_mul
from .binding import RECORD, Record, eager_only, original

# --- norms ---------------------------------------------------------------------------


class Operand(NamedTuple):
    """What an operator needs to do a patched norm's work."""

    weight: Optional[Tensor]
    eps: float
    weight_offset: float
    dtype: Optional[torch.dtype]  # the only dtype of rows that it may be used on, or None for any


class Loop:
    """One run of a decoder over its layers.

    A layer computes its residual addition together with the next norm, and leaves the result here. Whoever takes it
    checks that norm and stream are the very objects that it was left for, so that reordered, shortened or
    interrupted runs cost a norm and never change a result.
    """

    __slots__ = ("layers", "norm", "normed", "operands", "stream")

    def __init__(self, layers: List[nn.Module]) -> None:
        self.layers = layers
        # The operands of each layer's norms, or None where somebody watches the layer. Filled in by the first layer:
        # transformers installs the hooks that collect hidden states after the decoder was called.
        self.operands: Optional[List[Optional[Tuple[Optional[Operand], ...]]]] = None
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


def operand(norm: nn.Module) -> Optional[Operand]:
    """What an operator needs to do this norm's work.

    None where the module itself must be called: it is not patched, someone watches it, or its weight is moved around
    each call.
    """
    state = norm.__dict__
    record: Optional[NormRecord] = state.get(RECORD)
    if record is None or state["_forward_hooks"] or state["_forward_pre_hooks"] or "_hf_hook" in state:
        return None
    weight = state["_parameters"].get("weight")
    free = weight is None or (weight.dtype is torch.float32 and not record.promotes)
    return Operand(weight, state[record.eps], record.weight_offset, None if free else weight.dtype)


def norm_over(norm: nn.Module, found: Optional[Operand], x: Tensor) -> Tensor:
    """norm(x), in x's memory where an operand is given."""
    if found is None or (found.dtype is not None and found.dtype is not x.dtype):
        return norm(x)
    return rms_norm(x, found.weight, found.eps, weight_offset=found.weight_offset, out=x)


def add_norm(norm: nn.Module, found: Optional[Operand], x: Tensor, residual: Tensor) -> Tuple[Tensor, Tensor]:
    """-> (norm(residual + x), residual + x), in x's and residual's memory where an operand is given."""
    if found is not None and x.dtype is residual.dtype and (found.dtype is None or found.dtype is x.dtype):
        return fused_add_rms_norm(x, residual, found.weight, found.eps, weight_offset=found.weight_offset)
    stream = residual + x
    return norm(stream), stream


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
    """The operator that is an MLP's product, its projections by name, and their weights in one matrix."""

    def __init__(self, operator: str, names: Tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> None:
        self.operator = operator
        self.gate, self.up, self.down = names
        self.merged: Optional[Tensor] = None
        self.halves = (0, 0)  # addresses of its halves, which the two projections' weights are

    def one_matrix(self, gate: nn.Module, up: nn.Module) -> bool:
        """Whether the two projections' weights still are the halves of `merged`, and nobody watches the modules."""
        first, second = gate.__dict__, up.__dict__
        weights = first["_parameters"].get("weight"), second["_parameters"].get("weight")
        if weights[0] is None or weights[1] is None:  # an adapter stands around a projection
            return False
        if (weights[0].data_ptr(), weights[1].data_ptr()) != self.halves:
            self.merged = None  # the model was moved or loaded anew
            return False
        return not (
            first["_forward_hooks"]
            or second["_forward_hooks"]
            or first["_forward_pre_hooks"]
            or second["_forward_pre_hooks"]
            or "_hf_hook" in first
            or "_hf_hook" in second
        )

    def __getstate__(self) -> dict:
        return {**self.__dict__, "merged": None}  # a copy's projections have their own memory

    def release(self, module: nn.Module) -> None:
        """Gives the two projections' weights memory of their own again."""
        if self.merged is None:
            return
        for name, address in zip((self.gate, self.up), self.halves):
            weight = module.get_submodule(name)._parameters.get("weight")
            if weight is not None and weight.data_ptr() == address:
                with torch.no_grad(), torch.inference_mode(False):
                    weight.data = weight.data.clone()
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
    if record.merged is not None and not torch.compiler.is_compiling() and record.one_matrix(gate, up):
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


def merge(mlp: nn.Module, checked: List[Any]) -> Optional[str]:
    """Lays the two projections' weights behind each other in one matrix; -> the reason why not, or None.

    The parameters stay what they are, two views of that matrix. `checked` collects the shapes whose product in one
    call was found to have the bits of two.
    """
    record: MLPRecord = mlp.__dict__[RECORD]
    gate: Any = mlp.get_submodule(record.gate)
    up: Any = mlp.get_submodule(record.up)
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
    record.merged, record.halves = merged, (first.data_ptr(), second.data_ptr())
    return None


def _same_bits(first: Tensor, second: Tensor, merged: Tensor) -> bool:
    generator = torch.Generator().manual_seed(0)
    for rows in _CHECKED_ROWS:
        x = torch.randn(rows, first.shape[1], generator=generator).to(first.dtype)
        two = torch.cat((nn.functional.linear(x, first), nn.functional.linear(x, second)), dim=-1)
        if not torch.equal(project(x, merged), two):
            return False
    return True
