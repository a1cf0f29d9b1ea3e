"""Gradients of the functional operators; refusal by those that write."""

import pytest
import torch

import edge_ops
from edge_ops import native, reference
from support.routes import ROUTES
from support.values import DEVICE, DTYPES


def leaf(*shape, dtype=torch.float64, seed=0, scale=1.0):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)
    return (values * scale).to(dtype).to(DEVICE).requires_grad_()


FUNCTIONAL = {
    "rms_norm": lambda x, w: edge_ops.rms_norm(x, w, 1e-5, weight_offset=0.5),
    "silu_and_mul": lambda x, w: edge_ops.silu_and_mul(x),
    "gelu_tanh_and_mul": lambda x, w: edge_ops.gelu_tanh_and_mul(x),
}
OF_REFERENCE = {
    "rms_norm": lambda x, w: reference.rms_norm(x, w, 1e-5, 0.5),
    "silu_and_mul": lambda x, w: reference.silu_and_mul(x),
    "gelu_tanh_and_mul": lambda x, w: reference.gelu_tanh_and_mul(x),
}


@pytest.mark.parametrize("op", FUNCTIONAL)
def test_gradcheck(op):
    # float64 runs the reference: its gradient is that of its formula
    x, w = leaf(3, 10), leaf(10, seed=1)
    assert torch.autograd.gradcheck(FUNCTIONAL[op], (x, w))
    assert torch.autograd.gradcheck(lambda x: edge_ops.rms_norm(x, None), (x,))


@pytest.mark.parametrize("op", FUNCTIONAL)
def test_gradcheck_on_batches_and_slices(op):
    wide = leaf(2, 3, 24)
    assert torch.autograd.gradcheck(lambda t: FUNCTIONAL[op](t[..., 4:14], None), (wide,))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", FUNCTIONAL)
@pytest.mark.parametrize("weight", ("same", "f32"))
def test_against_the_reference(op, dtype, weight):
    """The registered operator's own backward against autograd through float64 formulas."""
    weight_dtype = DTYPES[dtype] if weight == "same" else torch.float32
    x, w = leaf(6, 64, dtype=DTYPES[dtype]), leaf(64, dtype=weight_dtype, seed=1)
    y = FUNCTIONAL[op](x, w)
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(9)).to(y.dtype).to(DEVICE)
    y.backward(upstream)
    wide_x, wide_w = x.detach().double().requires_grad_(), w.detach().double().requires_grad_()
    OF_REFERENCE[op](wide_x, wide_w).backward(upstream.double())
    tolerance = {"f32": 2e-6, "bf16": 1e-2, "f16": 2e-3}[dtype]
    pairs = [(x, wide_x)] + ([(w, wide_w)] if op == "rms_norm" else [])
    for got, want in pairs:
        assert got.grad.dtype == got.dtype and got.grad.shape == got.shape
        scale = want.grad.abs().max()
        assert ((got.grad.double() - want.grad).abs() / scale).max() < tolerance


@pytest.mark.parametrize("op", FUNCTIONAL)
def test_the_value_does_not_depend_on_grad(op):
    x, w = leaf(4, 32, dtype=torch.float32), leaf(32, dtype=torch.float32)
    with torch.no_grad():
        want = FUNCTIONAL[op](x, w)
    assert torch.equal(FUNCTIONAL[op](x, w), want) and FUNCTIONAL[op](x, w).requires_grad
    with torch.inference_mode():
        assert torch.equal(FUNCTIONAL[op](x, w), want)
    assert not want.requires_grad


def test_only_what_is_asked_for():
    x, w = leaf(4, 32, dtype=torch.float32), leaf(32, dtype=torch.float32)
    edge_ops.rms_norm(x.detach(), w).sum().backward()
    assert w.grad is not None
    edge_ops.rms_norm(x, w.detach()).sum().backward()
    assert x.grad is not None
    edge_ops.rms_norm(x, None).sum().backward()


def test_one_row_and_no_rows():
    for shape in ((32,), (0, 32)):
        x, w = leaf(*shape, dtype=torch.float32), leaf(32, dtype=torch.float32, seed=2)
        edge_ops.rms_norm(x, w).sum().backward()
        assert x.grad.shape == shape and w.grad.shape == (32,)
        (edge_ops.silu_and_mul(x).sum() + edge_ops.gelu_tanh_and_mul(x).sum()).backward()


def test_large_gates_have_finite_gradients():
    x = torch.tensor([[-1e4, -100.0, -88.0, 0.0, 88.0, 100.0, 1e4] + [1.0] * 7]).requires_grad_()
    (edge_ops.silu_and_mul(x).sum() + edge_ops.gelu_tanh_and_mul(x).sum()).backward()
    assert torch.isfinite(x.grad).all()


def test_autograd_notices_what_is_written():
    # the product saves c; an operator that writes c counts up its version, so the backward refuses
    a, c = torch.ones(3, 16, requires_grad=True), torch.ones(3, 16)
    product = a * c
    edge_ops.rms_norm(c, None, out=c)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


@pytest.mark.parametrize("name", sorted(ROUTES))
def test_versions_of_everything_written(name):
    if not ROUTES[name]:
        pytest.skip("this build has no native code")
    if name == "dispatcher":  # the registered operators as the public functions call them
        ops = {op: edge_ops.ops._FUNCTIONS[op] for op in ROUTES[name]}
    else:
        ops = ROUTES[name]
    x, r, w = torch.ones(2, 16), torch.ones(2, 16), torch.ones(16)
    q, k, q_out = torch.ones(2, 2, 8), torch.ones(2, 1, 8), torch.ones(2, 2, 8)
    out, gated, cache, positions = torch.ones(2, 16), torch.ones(2, 8), torch.ones(4, 8), torch.arange(2)
    calls = {
        "rms_norm": (lambda: ops["rms_norm"](x, w, out=out), [out], [x, w]),
        "fused_add_rms_norm": (lambda: ops["fused_add_rms_norm"](x, r, w), [x, r], [w]),
        "silu_and_mul": (lambda: ops["silu_and_mul"](x, out=gated), [gated], [x]),
        "gelu_tanh_and_mul": (lambda: ops["gelu_tanh_and_mul"](x, out=gated), [gated], [x]),
        "rotary_embedding": (lambda: ops["rotary_embedding"](positions, q, k, cache), [q, k], [cache, positions]),
        "fused_qk_norm_rope": (
            lambda: ops["fused_qk_norm_rope"](positions, q, k, None, None, cache, query_out=q_out, key_out=k),
            [q_out, k],
            [q, cache],
        ),
    }
    for op, (call, written, read) in calls.items():
        before = [t._version for t in (*written, *read)]
        call()
        after = [t._version for t in (*written, *read)]
        changed = [a > b for a, b in zip(after, before)]
        assert changed == [True] * len(written) + [False] * len(read), op


@pytest.mark.skipif(native.extension is None, reason="this build has no native code")
def test_double_backward_refuses_or_is_right():
    x = leaf(2, 8, dtype=torch.float32)
    y = edge_ops.silu_and_mul(x).square().sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    (second,) = torch.autograd.grad(g.sum(), x)
    wide = x.detach().double().requires_grad_()
    (g64,) = torch.autograd.grad(reference.silu_and_mul(wide).square().sum(), wide, create_graph=True)
    (want,) = torch.autograd.grad(g64.sum(), wide)
    torch.testing.assert_close(second.double(), want, rtol=1e-4, atol=1e-4)
