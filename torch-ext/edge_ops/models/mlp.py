"""The gated product and the projections around it."""

from typing import Any, Callable, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from ..ops import gelu_tanh_and_mul, silu_and_mul
from .binding import RECORD, Record, eager_only, original
from .blocks import Loop, hooked


class Product(NamedTuple):
    """What is needed to do a patched MLP's work; each projection is a weight and a bias or None."""

    gate_up: Tuple[Tensor, Optional[Tensor]]
    operator: Callable[..., Tensor]
    down: Tuple[Tensor, Optional[Tensor]]


PRODUCTS = {"silu_and_mul": silu_and_mul, "gelu_tanh_and_mul": gelu_tanh_and_mul}

_ACTIVATIONS = {
    "SiLUActivation": "silu_and_mul",
    "SiLU": "silu_and_mul",
    "GELUTanh": "gelu_tanh_and_mul",
}


def product_of(activation: Any) -> Optional[str]:
    """The name of the operator for ``activation(gate) * up``, or None."""
    return _ACTIVATIONS.get(type(activation).__name__)


def _plain(module: Any) -> Optional[Tuple[Tensor, Optional[Tensor]]]:
    """Weight and bias of a linear layer that nothing has changed, wrapped or watches; None of any other module."""
    if type(module) is not nn.Linear or "forward" in module.__dict__ or hooked(module):
        return None
    parameters: Any = module.__dict__["_parameters"]
    return parameters["weight"], parameters["bias"]


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
        return not (hooked(gate) or hooked(up))

    def product(self, mlp: nn.Module) -> Optional[Product]:
        """What is needed to do the module's work outside of it; None where it must be called."""
        state: Any = mlp.__dict__
        modules = state["_modules"]
        forward = getattr(state.get("forward"), "func", None)
        if mlp.training or hooked(mlp):
            return None
        gate_up: Optional[Tuple[Tensor, Optional[Tensor]]] = None
        if forward is packed_mlp_forward:
            gate_up = _plain(modules["gate_up_proj"])
        elif forward is gated_mlp_forward and self.merged is not None:
            if self.one_matrix(modules[self.gate], modules[self.up]):
                gate_up = self.merged, None
        down = _plain(modules[self.down])
        if gate_up is None or down is None:
            return None
        return Product(gate_up, PRODUCTS[self.operator], down)

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
    if torch.compiler.is_compiling():
        rows = x.flatten(end_dim=-2)  # Inductor lets matrix products write where the concatenation has them
        both = torch.cat((gate(rows), up(rows)), dim=-1).unflatten(0, x.shape[:-1])
    elif record.merged is not None and record.one_matrix(gate, up):
        both = project(x, record.merged, None)
    else:
        both = torch.cat((gate(x), up(x)), dim=-1)
    return modules[record.down](PRODUCTS[record.operator](both))


def feed_forward(mlp: nn.Module, product: Optional[Product], x: Tensor, loop: Loop) -> Any:
    """``mlp(x)``, without the module's call where a product is given."""
    if product is None:
        return mlp(x)
    both = project(x, *product.gate_up)
    room = loop.product
    if room is not None:
        try:
            product.operator(both, out=room)
        except (TypeError, ValueError):
            room = None  # a layer of another width, dtype or device
    if room is None:
        room = loop.product = product.operator(both)
    return project(room, *product.down)


def project(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    """A linear layer's product."""
    return nn.functional.linear(x, weight, bias)


# --- one matrix for gate and up ------------------------------------------------------

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
        if not torch.equal(project(x, merged, None), two):
            return False
    return True
