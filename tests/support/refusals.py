"""Every refusal of every operator: a valid call, what is changed in it, the error, the argument it must name.

Run as a program, it makes every call and prints what each raised, as JSON: that is how a process with other
settings is compared with this one.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, NamedTuple

import torch
from torch import Tensor

from .values import DEVICE

Arguments = Dict[str, Any]


def valid(op: str, dtype: torch.dtype = torch.float32) -> Arguments:
    """Arguments that the operator accepts; every tensor has its own memory."""

    def rows(*shape: int) -> Tensor:
        values = torch.linspace(-2, 2, max(1, int(torch.Size(shape).numel()))).reshape(shape)
        return values.to(dtype).to(DEVICE)

    if op == "rms_norm":
        return {"x": rows(4, 8), "weight": rows(8), "out": rows(4, 8)}
    if op == "fused_add_rms_norm":
        return {"x": rows(4, 8), "residual": rows(4, 8), "weight": rows(8)}
    if op in ("silu_and_mul", "gelu_tanh_and_mul"):
        return {"x": rows(4, 8), "out": rows(4, 4)}
    arguments = {
        "positions": torch.arange(4, device=DEVICE),
        "query": rows(4, 3, 8),
        "key": rows(4, 2, 8),
        "cos_sin_cache": rows(9, 6).float(),
    }
    if op == "fused_qk_norm_rope":
        arguments.update(q_weight=rows(8), k_weight=rows(8), query_out=rows(4, 3, 8), key_out=rows(4, 2, 8))
    return arguments


class Refusal(NamedTuple):
    op: str
    name: str  # the argument that the message must name
    what: str
    change: Callable[[Arguments], None]
    error: type
    memory: bool  # a matter of which memory the tensors share

    def __str__(self) -> str:
        return f"{self.op}-{self.name}-{self.what}"


CASES: List[Refusal] = []


def refuse(
    ops: str, name: str, error: type, what: str, change: Callable[[Arguments], Any], memory: bool = False
) -> None:
    for op in ops.split():
        CASES.append(Refusal(op, name, what, change, error, memory))


def refuse_overlap(ops: str, name: str, what: str, change: Callable[[Arguments], Any]) -> None:
    refuse(ops, name, ValueError, what, change, memory=True)


def set_to(name: str, value: Callable[[Tensor], Any]) -> Callable[[Arguments], None]:
    """Replaces an argument by a function of it."""

    def change(arguments: Arguments) -> None:
        arguments[name] = value(arguments.get(name))

    return change


NORMS, GATED = "rms_norm fused_add_rms_norm", "silu_and_mul gelu_tanh_and_mul"
ROTARY, FUSED = "rotary_embedding", "fused_qk_norm_rope"
ROTATIONS, ALL_ROWS = f"{ROTARY} {FUSED}", f"{NORMS} {GATED}"


def strided_last(t: Tensor) -> Tensor:
    return torch.stack([t, t], dim=-1)[..., 0]


def expanded(t: Tensor) -> Tensor:
    return t[:1].expand_as(t)


def shifted(t: Tensor, other: Tensor, by: int) -> Tensor:
    """A tensor like t in a buffer that `other` is moved into, `by` elements on: they overlap in part."""
    buffer = torch.zeros(other.numel() + by + t.numel(), dtype=t.dtype, device=t.device)
    other.set_(buffer.untyped_storage(), 0, other.shape, other.contiguous().stride())
    return buffer.as_strided(t.shape, t.contiguous().stride(), by)


def overlapping(name: str, other: str, by: int) -> Callable[[Arguments], None]:
    def change(arguments: Arguments) -> None:
        arguments[name] = shifted(arguments[name], arguments[other], by)

    return change


def same_as(name: str, other: str) -> Callable[[Arguments], None]:
    def change(arguments: Arguments) -> None:
        arguments[name] = arguments[other]

    return change


def into(name: str, other: str) -> Callable[[Arguments], None]:
    """`name` becomes a view of `other`'s memory, whatever the dtype."""

    def change(arguments: Arguments) -> None:
        t, host = arguments[name], arguments[other]
        memory = host.flatten().view(torch.uint8)
        assert memory.data_ptr() == host.data_ptr()
        size = t.numel() * t.element_size()
        assert size <= memory.numel(), "the host must be large enough"
        arguments[name] = memory[:size].view(t.dtype).view(t.shape)

    return change


def transposed_in_place(arguments: Arguments) -> None:
    """The same memory, other elements first."""
    x = arguments["out"].view(2, 2, 8)
    arguments.update(x=x, out=x.transpose(0, 1))


def in_place(side: str, then: Callable[[Arguments], None]) -> Callable[[Arguments], None]:
    """The fused form without an output of its own for one side."""

    def change(arguments: Arguments) -> None:
        arguments[f"{side}_out"] = None
        then(arguments)

    return change


def _rows_refusals(ops: str, name: str) -> None:
    refuse(ops, name, TypeError, "list", set_to(name, lambda t: t.tolist()))
    refuse(ops, name, TypeError, "number", set_to(name, lambda t: 1.0))
    for dtype in (torch.int32, torch.bool, torch.complex64, torch.float8_e4m3fn):
        refuse(ops, name, TypeError, str(dtype)[6:], set_to(name, lambda t, d=dtype: t.to(d)))
    refuse(ops, name, ValueError, "sparse", set_to(name, lambda t: t.to_sparse()))
    refuse(ops, name, ValueError, "last dimension strided", set_to(name, strided_last))


def _like_refusals(ops: str, name: str) -> None:
    """`name` is a tensor of rows that must be like another argument."""
    _rows_refusals(ops, name)
    refuse(ops, name, TypeError, "other dtype", set_to(name, lambda t: t.to(torch.float16)))
    refuse(ops, name, ValueError, "other device", set_to(name, lambda t: t.to("meta")))
    refuse(ops, name, ValueError, "row too many", set_to(name, lambda t: torch.cat([t, t[:1]])))
    refuse(ops, name, ValueError, "flattened", set_to(name, lambda t: t.flatten()))
    refuse(ops, name, ValueError, "one dimension too many", set_to(name, lambda t: t[None]))
    refuse(ops, name, ValueError, "last size", set_to(name, lambda t: t[..., :-2].contiguous()))


def _weight_refusals(ops: str, name: str) -> None:
    refuse(ops, name, TypeError, "list", set_to(name, lambda t: t.tolist()))
    for dtype in (torch.bfloat16, torch.int32):
        refuse(ops, name, TypeError, str(dtype)[6:], set_to(name, lambda t, d=dtype: t.to(d)))
    refuse(ops, name, ValueError, "too short", set_to(name, lambda t: t[:-1]))
    refuse(ops, name, ValueError, "one for all", set_to(name, lambda t: t[:1]))
    refuse(ops, name, ValueError, "two dimensions", set_to(name, lambda t: t[None]))
    refuse(ops, name, ValueError, "no dimension", set_to(name, lambda t: t[0]))
    refuse(ops, name, ValueError, "strided", set_to(name, strided_last))
    refuse(ops, name, ValueError, "expanded", set_to(name, lambda t: t[:1].expand(8)))
    refuse(ops, name, ValueError, "other device", set_to(name, lambda t: t.to("meta")))


def _number_refusals(ops: str) -> None:
    for name in ("eps", "weight_offset"):
        for value in (None, "small", 1j, [1.0]):
            refuse(ops, name, TypeError, repr(value), set_to(name, lambda _, v=value: v))


def _grad_refusals(op: str, *names: str) -> None:
    for name in names:
        refuse(op, name, RuntimeError, "requires grad", set_to(name, lambda t: t.clone().requires_grad_()))


# --- norms and activations -------------------------------------------------------------

_rows_refusals(ALL_ROWS, "x")
refuse(ALL_ROWS, "x", ValueError, "no dimension", set_to("x", lambda t: t[0, 0]))
refuse(GATED, "x", ValueError, "odd", set_to("x", lambda t: t[:, :7].contiguous()))
_weight_refusals(NORMS, "weight")
_number_refusals(f"{NORMS} {FUSED}")

_like_refusals(f"rms_norm {GATED}", "out")
refuse_overlap(f"rms_norm {GATED}", "out", "overlaps itself", set_to("out", expanded))
refuse_overlap("rms_norm", "out", "one row on from x", overlapping("out", "x", 8))
refuse_overlap("rms_norm", "out", "one element on from x", overlapping("out", "x", 1))
refuse_overlap("rms_norm", "out", "x transposed in place", transposed_in_place)
refuse_overlap("rms_norm", "out", "holds weight", into("weight", "out"))
refuse_overlap(GATED, "out", "is the gate", lambda a: a.update(out=a["x"][:, :4]))
refuse_overlap(GATED, "out", "is the factor", lambda a: a.update(out=a["x"][:, 4:]))

_like_refusals("fused_add_rms_norm", "residual")
refuse_overlap("fused_add_rms_norm", "x", "is residual", same_as("x", "residual"))
refuse_overlap("fused_add_rms_norm", "x", "one element on from residual", overlapping("x", "residual", 1))
refuse_overlap("fused_add_rms_norm", "x", "expanded", set_to("x", expanded))
refuse_overlap("fused_add_rms_norm", "residual", "expanded", set_to("residual", expanded))
refuse_overlap("fused_add_rms_norm", "x", "holds weight", into("weight", "x"))
refuse_overlap("fused_add_rms_norm", "residual", "holds weight", into("weight", "residual"))

_grad_refusals("rms_norm", "x", "weight", "out")
_grad_refusals("fused_add_rms_norm", "x", "residual", "weight")
for _op in GATED.split():
    _grad_refusals(_op, "x", "out")

# --- rotations -------------------------------------------------------------------------

_rows_refusals(ROTATIONS, "query")
refuse(ROTATIONS, "query", ValueError, "one dimension", set_to("query", lambda t: t[0, 0]))
refuse(ROTARY, "query", TypeError, "None", set_to("query", lambda t: None))
refuse(FUSED, "query", TypeError, "both None", lambda a: a.update(query=None, key=None, query_out=None, key_out=None))
_like_refusals(ROTATIONS, "key")
refuse(ROTATIONS, "key", ValueError, "other tokens", set_to("key", lambda t: t[:3]))

refuse(ROTATIONS, "positions", TypeError, "list", set_to("positions", lambda t: t.tolist()))
for _dtype in (torch.float32, torch.int16, torch.uint8, torch.bool):
    refuse(ROTATIONS, "positions", TypeError, str(_dtype)[6:], set_to("positions", lambda t, d=_dtype: t.to(d)))
refuse(ROTATIONS, "positions", ValueError, "too few", set_to("positions", lambda t: t[:3]))
refuse(ROTATIONS, "positions", ValueError, "a column", set_to("positions", lambda t: t[:, None]))
refuse(ROTATIONS, "positions", ValueError, "no dimension", set_to("positions", lambda t: t[0]))
refuse(ROTATIONS, "positions", ValueError, "other device", set_to("positions", lambda t: t.to("meta")))

refuse(ROTATIONS, "cos_sin_cache", TypeError, "list", set_to("cos_sin_cache", lambda t: t.tolist()))
for _dtype in (torch.bfloat16, torch.int32):
    refuse(ROTATIONS, "cos_sin_cache", TypeError, str(_dtype)[6:], set_to("cos_sin_cache", lambda t, d=_dtype: t.to(d)))
refuse(ROTATIONS, "cos_sin_cache", ValueError, "one dimension", set_to("cos_sin_cache", lambda t: t[0]))
refuse(ROTATIONS, "cos_sin_cache", ValueError, "three dimensions", set_to("cos_sin_cache", lambda t: t[None]))
refuse(ROTATIONS, "cos_sin_cache", ValueError, "odd", set_to("cos_sin_cache", lambda t: t[:, :5].contiguous()))
refuse(ROTATIONS, "cos_sin_cache", ValueError, "too wide", set_to("cos_sin_cache", lambda t: torch.cat([t, t], -1)))
refuse(ROTATIONS, "cos_sin_cache", ValueError, "strided", set_to("cos_sin_cache", strided_last))
refuse(ROTATIONS, "cos_sin_cache", ValueError, "other device", set_to("cos_sin_cache", lambda t: t.to("meta")))

refuse_overlap(ROTARY, "query", "expanded", set_to("query", expanded))
refuse_overlap(ROTARY, "key", "expanded", set_to("key", expanded))
refuse_overlap(ROTARY, "query", "is key", lambda a: a.update(query=a["key"]))
refuse_overlap(ROTARY, "query", "one element on from key", overlapping("query", "key", 1))
refuse_overlap(ROTARY, "query", "holds positions", into("positions", "query"))
refuse_overlap(ROTARY, "key", "holds positions", into("positions", "key"))
refuse_overlap(ROTARY, "query", "holds the cache", into("cos_sin_cache", "query"))
refuse_overlap(ROTARY, "key", "holds the cache", into("cos_sin_cache", "key"))

for _side, _other in (("query", "key"), ("key", "query")):
    _w, _out, _other_out = f"{_side[0]}_weight", f"{_side}_out", f"{_other}_out"
    _weight_refusals(FUSED, _w)
    _like_refusals(FUSED, _out)
    refuse(FUSED, _out, ValueError, f"without {_side}", lambda a, s=_side: a.update({s: None}))
    refuse(
        FUSED, _w, TypeError, f"a list, without {_side}",
        lambda a, s=_side, w=_w: a.update({s: None, f"{s}_out": None, w: [1.0]}),
    )  # fmt: skip
    refuse_overlap(FUSED, _out, "expanded", set_to(_out, expanded))
    refuse_overlap(FUSED, _out, "one element on", overlapping(_out, _side, 1))
    refuse_overlap(FUSED, _out, "holds a weight", into(_w, _out))
    refuse_overlap(FUSED, _out, "holds positions", into("positions", _out))
    refuse_overlap(FUSED, _out, "holds the cache", into("cos_sin_cache", _out))
    refuse_overlap(FUSED, _out, f"overlaps {_other}", overlapping(_out, _other, 1))
    refuse_overlap(FUSED, "query_out", f"meets key_out {_side}", overlapping(_out, _other_out, 2))
    refuse_overlap(FUSED, _side, "expanded in place", in_place(_side, set_to(_side, expanded)))
    refuse_overlap(FUSED, _side, "in place, holds the cache", in_place(_side, into("cos_sin_cache", _side)))
    refuse_overlap(FUSED, _side, "in place, holds its weight", in_place(_side, into(_w, _side)))
refuse_overlap(FUSED, "query", "is key in place", lambda a: a.update(query=a["key"], query_out=None, key_out=None))

_grad_refusals(ROTARY, "query", "key", "cos_sin_cache")
_grad_refusals(FUSED, "query", "key", "q_weight", "k_weight", "cos_sin_cache", "query_out", "key_out")


# --- running them ------------------------------------------------------------------------


def storage_bytes(arguments: Arguments) -> Dict[str, Any]:
    """All bytes behind every tensor among the arguments."""
    result = {}
    for name, value in arguments.items():
        if isinstance(value, Tensor) and value.layout == torch.strided and value.device.type != "meta":
            storage = value.untyped_storage()
            result[name] = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage).clone()
    return result


def outcome(function: Callable[..., Any], case: Refusal) -> Dict[str, str]:
    """What the call raised; fails where it wrote anything first."""
    arguments = valid(case.op)
    case.change(arguments)
    before = storage_bytes(arguments)
    try:
        function(**arguments)
    except Exception as error:  # any type is an outcome
        result = {"type": type(error).__name__, "message": str(error)}
    else:
        result = {"type": "", "message": "accepted"}
    for name, after in storage_bytes(arguments).items():
        assert torch.equal(before[name], after), f"{case}: {name} was written to before the error"
    return result


def main() -> None:
    import edge_ops

    print(json.dumps({str(case): outcome(getattr(edge_ops, case.op), case) for case in CASES}))


if __name__ == "__main__":
    main()
