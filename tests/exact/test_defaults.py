"""An option that is left out has the value that the signature shows, on every route."""

import inspect

import pytest

import edge_ops
from support import calls
from support.routes import OPERATORS

pytestmark = pytest.mark.core


@pytest.mark.parametrize("op", OPERATORS)
def test_left_out(route, rng, op):
    signature = inspect.signature(getattr(edge_ops, op)).parameters
    # small values, so that eps shows; float16 heads, so that the seam between norm and rotation shows
    if op in ("rotary_embedding", "fused_qk_norm_rope"):
        call = calls.BUILDERS[op](rng, dtype="f16", kind="small")
    else:
        call = calls.BUILDERS[op](rng, (4, 64), kind="small")
    usual = {name: p.default for name, p in signature.items() if p.default is not p.empty}
    for name, value in call.arguments.items():
        assert name not in usual or value == usual[name], "the builder's own defaults are the signature's"
    call.arguments = {name: value for name, value in call.arguments.items() if name not in usual}
    call.check(route[op])
