"""Plain PyTorch as transformers' modules write it: the formulas of Qwen3, with every rounding they make.

Two arms. `eager` computes what the operator computes, from the same inputs: it splits the packed gate and up (as
Phi-3's module does) and looks cos and sin up by position. `eager_parts` starts from what a model's layer has at
hand, gate and up as two tensors, cos and sin looked up once a step, so it leaves that work out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from ..problems import EPS, Problem
from .base import BOTH, Call, Prepare


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    dtype = x.dtype
    x = x.to(torch.float32)
    variance = x.pow(2).mean(-1, keepdim=True)
    x = x * torch.rsqrt(variance + EPS)
    return weight * x.to(dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    residual = residual + x
    return rms_norm(residual, weight), residual


def silu_and_mul(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return up * F.silu(gate)


def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return up * F.gelu(gate, approximate="tanh")


def silu_product(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def gelu_tanh_product(gate: Tensor, up: Tensor) -> Tensor:
    return F.gelu(gate, approximate="tanh") * up


def rotate_half(x: Tensor) -> Tensor:
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """q, k `[batch, heads, tokens, head_size]`; cos, sin `[batch, tokens, rotary_dim]`."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def apply_partial_rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """As the models with a partial rotary factor write it: split, rotate, concatenate."""
    rotary_dim = cos.shape[-1]
    q_rotated, q_rest = q[..., :rotary_dim], q[..., rotary_dim:]
    k_rotated, k_rest = k[..., :rotary_dim], k[..., rotary_dim:]
    q_rotated, k_rotated = apply_rotary(q_rotated, k_rotated, cos, sin)
    return torch.cat((q_rotated, q_rest), dim=-1), torch.cat((k_rotated, k_rest), dim=-1)


def rotation(problem: Problem) -> Callable[..., tuple[Tensor, Tensor]]:
    size = problem.cell.geometry
    return apply_rotary if size.rotary_dim == size.head_size else apply_partial_rotary


def heads_first(problem: Problem) -> tuple[Tensor, Tensor]:
    """Query and key as an attention module holds them before the rotation: `[1, heads, tokens, head_size]` views."""
    return problem.inputs["query"][None].transpose(1, 2), problem.inputs["key"][None].transpose(1, 2)


def tokens_first(value: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    return tuple(heads.transpose(1, 2)[0] for heads in value)


def model_tables(problem: Problem) -> tuple[Tensor, Tensor]:
    """cos and sin for every position, in the model's dtype and over both halves, as its rotary module returns them."""
    cos, sin = problem.inputs["cache"].to(problem.dtype).chunk(2, -1)
    return torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)


# Roundings in the storage type, counted along the longest path. Norm: the normalized value, the product with the
# weight. Gate: the gate, the product. Rotation: cos or sin, its product, the sum. In float32 they are negligible.
NORM, GATE, ROTATION = 2, 2, 3


def _rms_norm(problem: Problem) -> Call:
    names = {"rms_norm": rms_norm, "x": problem.inputs["x"], "weight": problem.inputs["weight"]}
    return Call("rms_norm(x, weight)", names, lambda y: (y,), roundings=NORM)


def _fused_add_rms_norm(problem: Problem) -> Call:
    return Call(
        "add_rms_norm(x, residual, weight)", {"add_rms_norm": add_rms_norm, **problem.inputs}, tuple, roundings=NORM
    )


def _packed(function: Callable[[Tensor], Tensor]) -> Prepare:
    return lambda problem: Call("gated(x)", {"gated": function, **problem.inputs}, lambda y: (y,), roundings=GATE)


def _separate(function: Callable[[Tensor, Tensor], Tensor]) -> Prepare:
    def prepare(problem: Problem) -> Call:
        gate, up = (half.contiguous() for half in problem.inputs["x"].chunk(2, -1))
        names = {"gated": function, "gate": gate, "up": up}
        return Call("gated(gate, up)", names, lambda y: (y,), roundings=GATE)

    return prepare


def lookup_rotary(problem: Problem) -> Callable[..., tuple[Tensor, Tensor]]:
    """The rotation with its lookup, of the operator's own inputs."""
    rotate = rotation(problem)

    def rotary(positions: Tensor, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return rotate(q, k, cos[positions], sin[positions])

    return rotary


def lookup_qk_norm_rope(problem: Problem) -> Callable[..., tuple[Tensor, Tensor]]:
    rotate = qk_norm_rope(problem)

    def normed_rotary(
        positions: Tensor, q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        return rotate(q, k, q_weight, k_weight, cos[positions], sin[positions])

    return normed_rotary


def qk_norm_rope(problem: Problem) -> Callable[..., tuple[Tensor, Tensor]]:
    rotate = rotation(problem)

    def normed_rotary(
        q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        q = rms_norm(q, q_weight).transpose(1, 2)
        k = rms_norm(k, k_weight).transpose(1, 2)
        return rotate(q, k, cos, sin)

    return normed_rotary


def rotary_names(problem: Problem) -> dict[str, Tensor]:
    """The tensors of the lookup forms: heads, `[1, tokens]` positions and the tables."""
    cos, sin = model_tables(problem)
    if problem.cell.operator == "rotary_embedding":
        q, k = heads_first(problem)
        weights = {}
    else:
        q, k = problem.inputs["query"][None], problem.inputs["key"][None]
        weights = {name: problem.inputs[name] for name in ("q_weight", "k_weight")}
    return {"positions": problem.inputs["positions"][None], "q": q, "k": k, "cos": cos, "sin": sin, **weights}


def _looked_up(problem: Problem) -> dict[str, Tensor]:
    names = rotary_names(problem)
    positions = names.pop("positions")
    return {**names, "cos": names["cos"][positions], "sin": names["sin"][positions]}


ROTARY = "rotary(positions, q, k, cos, sin)"
QK_NORM_ROPE = "rotary(positions, q, k, q_weight, k_weight, cos, sin)"


def _rotary_embedding(problem: Problem) -> Call:
    names = {"rotary": lookup_rotary(problem), **rotary_names(problem)}
    return Call(ROTARY, names, tokens_first, roundings=ROTATION)


def _fused_qk_norm_rope(problem: Problem) -> Call:
    names = {"rotary": lookup_qk_norm_rope(problem), **rotary_names(problem)}
    return Call(QK_NORM_ROPE, names, tokens_first, roundings=NORM + ROTATION)


def _rotary_parts(problem: Problem) -> Call:
    names = {"rotary": rotation(problem), **_looked_up(problem)}
    return Call("rotary(q, k, cos, sin)", names, tokens_first, roundings=ROTATION)


def _qk_norm_rope_parts(problem: Problem) -> Call:
    names = {"rotary": qk_norm_rope(problem), **_looked_up(problem)}
    statement = "rotary(q, k, q_weight, k_weight, cos, sin)"
    return Call(statement, names, tokens_first, roundings=NORM + ROTATION)


class _Eager:
    name = "eager"
    title = "eager PyTorch, as transformers writes it"
    devices = BOTH
    calls: Mapping[str, Prepare] = {
        "rms_norm": _rms_norm,
        "fused_add_rms_norm": _fused_add_rms_norm,
        "silu_and_mul": _packed(silu_and_mul),
        "gelu_tanh_and_mul": _packed(gelu_tanh_and_mul),
        "rotary_embedding": _rotary_embedding,
        "fused_qk_norm_rope": _fused_qk_norm_rope,
    }

    def load(self) -> str:
        return torch.__version__


class _EagerParts:
    name = "eager_parts"
    title = "eager PyTorch from a layer's own tensors: gate and up apart, cos and sin looked up beforehand"
    devices = BOTH
    calls: Mapping[str, Prepare] = {
        "silu_and_mul": _separate(silu_product),
        "gelu_tanh_and_mul": _separate(gelu_tanh_product),
        "rotary_embedding": _rotary_parts,
        "fused_qk_norm_rope": _qk_norm_rope_parts,
    }

    def load(self) -> str:
        return torch.__version__


ARMS = (_Eager(), _EagerParts())
