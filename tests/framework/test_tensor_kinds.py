"""Tensors that are not what they seem: lazy negation, no storage, inference tensors, parameters, many dimensions."""

import pytest
import torch

import edge_ops
from edge_ops import native
from support import calls, contract
from support.values import DEVICE, DTYPES, assert_same_bits, to_numpy


def rows(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


@pytest.fixture
def python():
    """The operators without the direct route, which takes tensors for what their memory holds."""
    return edge_ops.ops._FUNCTIONS


def test_a_lazily_negated_view_has_its_own_sign(python):
    # torch._neg_view, and the imaginary part of a conjugate: other memory, and a mark that says "negate"
    x = torch._neg_view(rows(3, 16))
    assert x.is_neg()
    plain = x.resolve_neg()
    assert torch.equal(python["rms_norm"](x, None), edge_ops.rms_norm(plain, None))
    assert torch.equal(python["silu_and_mul"](x), edge_ops.silu_and_mul(plain))
    w = torch._neg_view(rows(16, seed=1))
    assert torch.equal(python["rms_norm"](plain, w), edge_ops.rms_norm(plain, w.resolve_neg()))
    cache = torch._neg_view(edge_ops.rope_cache(4, 8).to(DEVICE))
    q, want = rows(3, 2, 8), rows(3, 2, 8)
    positions = torch.arange(3, device=DEVICE)
    python["rotary_embedding"](positions, q, None, cache)
    edge_ops.rotary_embedding(positions, want, None, cache.resolve_neg())
    assert torch.equal(q, want)


def test_a_lazily_negated_view_is_not_written_with_the_wrong_sign(python):
    # PyTorch's own handling of the mark knows some operators that write and refuses the others
    base, w = rows(3, 16), rows(16, seed=2)
    x, r = torch._neg_view(base.clone()), rows(3, 16, seed=1)
    want_x, want_r = x.resolve_neg().clone(), r.clone()
    edge_ops.fused_add_rms_norm(want_x, want_r, w)
    try:
        python["fused_add_rms_norm"](x, r, w)
    except RuntimeError:
        return
    assert torch.equal(x.resolve_neg(), want_x) and torch.equal(r, want_r)


def test_a_tensor_of_zeros_without_memory():
    zeros = torch._efficientzerotensor((3, 8), device=DEVICE)
    try:
        got = edge_ops.rms_norm(zeros, None)
    except (RuntimeError, NotImplementedError, ValueError):
        return  # PyTorch's own operators refuse some uses of it
    assert torch.equal(got, torch.zeros(3, 8))


def test_parameters():
    x, w = torch.nn.Parameter(rows(3, 8)), torch.nn.Parameter(rows(8, seed=1))
    with torch.no_grad():
        assert torch.equal(edge_ops.rms_norm(x, w), edge_ops.rms_norm(x.data, w.data))
    frozen = torch.nn.Parameter(rows(8, seed=1), requires_grad=False)
    assert torch.equal(edge_ops.rms_norm(x.data, frozen), edge_ops.rms_norm(x.data, w.data))
    buffer = torch.nn.Buffer(rows(8, seed=1))
    assert torch.equal(edge_ops.rms_norm(x.data, buffer), edge_ops.rms_norm(x.data, w.data))


@pytest.mark.parametrize("rank", range(1, 12))
def test_any_number_of_dimensions(rng, rank):
    # native records hold 8 dimensions; more go to the reference
    shape = (*[2 if d % 3 == 0 else 1 for d in range(rank - 1)], 16)
    for dtype in DTYPES:
        calls.rms_norm(rng, shape, dtype).check(edge_ops.rms_norm)
        calls.rms_norm(rng, shape, dtype, out="apart", layout="reversed").check(edge_ops.rms_norm)
        calls.fused_add_rms_norm(rng, shape, dtype).check(edge_ops.fused_add_rms_norm)
        calls.gated("silu_and_mul", rng, shape, dtype, out=True).check(edge_ops.silu_and_mul)
        if rank > 1:
            leading = shape[:-2]
            for positions in ("int64", "int32 leading"):
                calls.rotary_embedding(rng, leading, dtype=dtype, positions=positions).check(edge_ops.rotary_embedding)
                calls.fused_qk_norm_rope(rng, leading, dtype=dtype, positions=positions, out="key").check(
                    edge_ops.fused_qk_norm_rope
                )


def test_the_weight_of_an_absent_side_means_nothing():
    positions, cache = torch.arange(3, device=DEVICE), edge_ops.rope_cache(4, 8).to(DEVICE)
    for weight in (rows(*[1] * 9, 8), rows(5), rows(8).double()):
        for absent in ("query", "key"):
            heads, want = rows(3, 2, 8), rows(3, 2, 8)
            sides = {"query": heads, "key": heads, absent: None}
            weights = {"q_weight": None, "k_weight": None, f"{absent[0]}_weight": weight}
            edge_ops.fused_qk_norm_rope(positions, **sides, **weights, cos_sin_cache=cache)
            edge_ops.fused_qk_norm_rope(positions, want, None, None, None, cache)
            assert torch.equal(heads, want), absent


@pytest.mark.parametrize("stride", (0, 1, 3, 7, 10**9))
def test_the_stride_of_a_dimension_of_size_one_means_nothing(stride):
    x = rows(1, 1, 16).as_strided((1, 1, 16), (stride, stride, 1))
    assert torch.equal(edge_ops.rms_norm(x, None), edge_ops.rms_norm(x.clone(), None))
    single = rows(4, 1).as_strided((4, 1), (1, stride))
    w = rows(1).as_strided((1,), (stride,))
    want = contract.rms_norm(to_numpy(single), to_numpy(w), 1e-6, 0.0, "f32")
    assert_same_bits(edge_ops.rms_norm(single, w), want, "last dimension of size 1")
    r = rows(4, 1, seed=1).as_strided((4, 1), (1, stride))
    edge_ops.fused_add_rms_norm(single, r, None)
    out = torch.empty(2, 1, 8, device=DEVICE).as_strided((2, 1, 8), (8, stride, 1))
    assert edge_ops.silu_and_mul(rows(2, 1, 16), out=out) is out
    assert torch.equal(out, edge_ops.silu_and_mul(rows(2, 1, 16)))


def test_numbers_of_other_types():
    import numpy as np

    x, w = rows(3, 8), rows(8, seed=1)
    want = edge_ops.rms_norm(x, w, 1e-5, weight_offset=1.0)
    for eps, offset in ((np.float64(1e-5), 1), (np.float32(1e-5), np.int64(1)), (torch.tensor(1e-5), True)):
        got = edge_ops.rms_norm(x, w, eps, weight_offset=offset)
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
    assert torch.equal(edge_ops.rms_norm(x, w, np.float64(1e-5), weight_offset=1), want)


def test_flags_of_other_types():
    positions, cache = torch.arange(3, device=DEVICE), edge_ops.rope_cache(4, 8).to(DEVICE)
    for flag in (1, "yes", 0, None, []):
        q, want = rows(3, 2, 8), rows(3, 2, 8)
        edge_ops.rotary_embedding(positions, want, None, cache, interleaved=bool(flag))
        try:
            edge_ops.rotary_embedding(positions, q, None, cache, interleaved=flag)
        except (TypeError, RuntimeError, ValueError):
            continue  # a clear refusal; anything accepted must mean its truth value
        assert torch.equal(q, want), repr(flag)


@pytest.mark.skipif(native.extension is None, reason="this build has no native code")
class TestExplain:
    def test_direct(self):
        route = edge_ops.explain(edge_ops.rms_norm, rows(2, 8), None)
        assert route.route == "direct" and route.backend == torch.device(DEVICE).type
        assert route.kernel == (native.build_info()["isa_chosen"] if DEVICE == "cpu" else route.kernel)
        assert edge_ops.explain("silu_and_mul", rows(2, 8), out=rows(2, 4)).route == "direct"

    def test_dispatcher(self):
        x = rows(2, 8)
        assert edge_ops.explain("rms_norm", x.clone().requires_grad_(), None).route == "dispatcher"
        with torch.profiler.profile():
            route = edge_ops.explain("rms_norm", x, None)
        assert route.route == "dispatcher" and "profiler" in route.reason

        class Sub(torch.Tensor):
            pass

        assert edge_ops.explain("rms_norm", x.as_subclass(Sub), None).route == "dispatcher"

    def test_reference(self):
        route = edge_ops.explain("rms_norm", rows(2, 8).double(), None)
        assert route == ("reference", torch.device(DEVICE).type, "torch", route.reason) and "float64" in route.reason
        many = edge_ops.explain("rms_norm", rows(*[1] * 9, 8), None)
        assert many.route == "reference"


def test_explain_does_not_run_and_refuses_what_the_call_refuses():
    x = rows(2, 8)
    before = x.clone()
    edge_ops.explain("rms_norm", x, None, out=x)
    assert torch.equal(x, before)
    with pytest.raises(ValueError, match="weight must be"):
        edge_ops.explain("rms_norm", x, rows(7))
    with pytest.raises(ValueError, match="op must be one of fused_add_rms_norm, .*, got layer_norm"):
        edge_ops.explain("layer_norm", x)
    with pytest.raises(TypeError):
        edge_ops.explain("rms_norm", x, None, other=1)
