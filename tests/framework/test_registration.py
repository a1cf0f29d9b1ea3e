"""The registered operators keep what PyTorch asks of an operator."""

import pytest
import torch

from edge_ops import native
from support import calls
from support.values import DTYPES

pytestmark = pytest.mark.skipif(native.extension is None, reason="this build has no native code")

ALL = {
    "rms_norm": (),
    "rms_norm_out": ("out",),
    "fused_add_rms_norm": ("x", "residual"),
    "silu_and_mul": (),
    "silu_and_mul_out": ("out",),
    "gelu_tanh_and_mul": (),
    "gelu_tanh_and_mul_out": ("out",),
    "rotary_embedding": ("query", "key"),
    "fused_qk_norm_rope": ("query", "key"),
    "fused_qk_norm_rope_out": ("query_out", "key_out"),
}


def overload(name):
    return getattr(native.ops, name).default


def arguments_of(name, rng, dtype, layout="contiguous"):
    """A call of the registered operator: the public arguments, in the order of its schema."""
    op = name[: -len("_out")] if name.endswith("_out") else name
    options = {"dtype": dtype, "layout": layout}
    if name == "fused_qk_norm_rope_out":
        options["out"] = "both"
    elif name.endswith("_out"):
        options["out"] = "apart" if op == "rms_norm" else True
    if op in ("rotary_embedding", "fused_qk_norm_rope"):
        call = calls.BUILDERS[op](rng, (3,), size=16, rotary_dim=8, **options)
    else:
        call = calls.BUILDERS[op](rng, (3, 32), **options)
    return tuple(call.arguments[a.name] for a in overload(name)._schema.arguments)


def test_nothing_else_is_registered():
    prefix = f"{native.ops.name}::"
    found = {n[len(prefix) :] for n in torch._C._dispatch_get_all_op_names() if n.startswith(prefix)}
    assert found == set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_mutation_marks(name):
    schema = overload(name)._schema
    marked = tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
    assert marked == ALL[name]
    assert len(schema.returns) == (0 if ALL[name] else 1)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ("contiguous", "column slice"))
def test_opcheck(rng, name, dtype, layout):
    arguments = arguments_of(name, rng, dtype, layout)
    assert set(torch.library.opcheck(overload(name), arguments).values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", ("rms_norm", "silu_and_mul", "gelu_tanh_and_mul"))
def test_opcheck_with_gradients(rng, name):
    arguments = [
        a.clone().requires_grad_() if isinstance(a, torch.Tensor) else a for a in arguments_of(name, rng, "f32")
    ]
    assert set(torch.library.opcheck(overload(name), tuple(arguments)).values()) == {"SUCCESS"}


@pytest.mark.parametrize("absent", ("query", "key"))
def test_opcheck_with_an_absent_side(rng, absent):
    arguments = list(arguments_of("fused_qk_norm_rope", rng, "bf16"))
    names = [a.name for a in overload("fused_qk_norm_rope")._schema.arguments]
    for name in (absent, f"{absent[0]}_weight"):
        arguments[names.index(name)] = None
    assert set(torch.library.opcheck(overload("fused_qk_norm_rope"), tuple(arguments)).values()) == {"SUCCESS"}


def test_opcheck_of_empty_tensors():
    empty = torch.empty(0, 8)
    for name, arguments in {
        "rms_norm": (empty, torch.ones(8), 1e-6, 0.0),
        "silu_and_mul": (empty,),
        "fused_add_rms_norm": (torch.empty(0, 8), torch.empty(0, 8), None, 1e-6, 0.0),
        "rotary_embedding": (torch.empty(0, dtype=torch.long), torch.empty(0, 2, 8), None, torch.ones(4, 8), False),
    }.items():
        assert set(torch.library.opcheck(overload(name), arguments).values()) == {"SUCCESS"}, name
