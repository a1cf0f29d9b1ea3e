"""Tensors beyond 32-bit counts, and tensors of nothing."""

import numpy as np
import pytest
import torch

from support import calls, contract
from support.routes import ROUTES
from support.values import DEVICE, DTYPES, assert_same_bits, draw, draw_cache

PUBLIC = ROUTES["public"]
FAR = 2**31 + 64  # elements: past every 32-bit offset, signed or not, once doubled


def available_bytes():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


def far_apart(values, dtype, stride=FAR):
    """The rows of `values` with `stride` elements between them: the system only lends the pages that are touched."""
    rows = len(values)
    base = torch.empty((rows - 1) * stride + values[0].size, dtype=DTYPES[dtype], device=DEVICE)
    inner = torch.from_numpy(values[0]).stride()
    view = base.as_strided(values.shape, (stride, *inner))
    view.copy_(torch.from_numpy(values).to(DTYPES[dtype]))
    return view


@pytest.mark.parametrize("dtype", ("f32", "bf16"))
def test_rows_that_lie_far_apart(rng, dtype):
    x, r, w = (draw(rng, shape, dtype) for shape in ((3, 48), (3, 48), (48,)))
    weight = torch.from_numpy(w).to(DTYPES[dtype]).to(DEVICE)
    far_x, far_r, far_out = far_apart(x, dtype), far_apart(r, dtype), far_apart(np.zeros_like(x), dtype)
    want = contract.rms_norm(x, w, 1e-6, 0.0, dtype)
    assert_same_bits(PUBLIC["rms_norm"](far_x, weight), want, "rms_norm")
    assert_same_bits(PUBLIC["rms_norm"](far_x, weight, out=far_out), want, "rms_norm out")
    for op in ("silu_and_mul", "gelu_tanh_and_mul"):
        want = getattr(contract, op)(x, dtype)
        assert_same_bits(PUBLIC[op](far_x), want, op)
        assert_same_bits(PUBLIC[op](far_x, out=far_out[:, :24]), want, f"{op} out")
    normed, total = contract.fused_add_rms_norm(x, r, w, 1e-6, 0.0, dtype)
    PUBLIC["fused_add_rms_norm"](far_x, far_r, weight)
    assert_same_bits(far_x, normed, "fused x")
    assert_same_bits(far_r, total, "fused residual")


@pytest.mark.parametrize("interleaved", (False, True))
def test_heads_and_angles_that_lie_far_apart(rng, interleaved):
    heads, angles = draw(rng, (3, 2, 16), "bf16"), draw_cache(rng, 3, 12, "f32")
    cache = far_apart(angles, "f32")
    positions = np.array([2, 0, 1])
    want = contract.rotary_embedding(positions, heads, angles, interleaved, "bf16")
    fused = contract.fused_qk_norm_rope(positions, heads, None, angles, 1e-6, 0.0, interleaved, True, "bf16")
    where = torch.from_numpy(positions).to(DEVICE)
    for view in (far_apart(heads, "bf16"), far_apart(heads.transpose(1, 0, 2).copy(), "bf16").transpose(0, 1)):
        start = view.clone()
        PUBLIC["rotary_embedding"](where, view, None, cache, interleaved=interleaved)
        assert_same_bits(view, want, "rotary_embedding")
        view.copy_(start)
        PUBLIC["fused_qk_norm_rope"](where, view, None, None, None, cache, interleaved=interleaved)
        assert_same_bits(view, fused, "fused_qk_norm_rope")


def test_a_position_beyond_32_bit_offsets(rng):
    # row 2^26 + 3 of a [2^26 + 8, 64] cache starts 2^32 elements in: 16 GiB of address space, two pages of memory
    row = 2**26 + 3
    angles = draw_cache(rng, 1, 64, "f32")
    cache = torch.empty(row + 5, 64, device=DEVICE)
    cache[row] = torch.from_numpy(angles[0])
    heads = draw(rng, (1, 2, 64), "f32")
    q = torch.from_numpy(heads.copy()).to(DEVICE)
    PUBLIC["rotary_embedding"](torch.tensor([row], device=DEVICE), q, None, cache)
    assert_same_bits(q, contract.rotary_embedding(np.array([0]), heads, angles, False, "f32"), "far row")


@pytest.mark.slow
@pytest.mark.skipif(DEVICE == "cpu" and available_bytes() < 10 * 2**30, reason="needs 10 GiB of free memory")
def test_more_than_2_to_the_31_elements(rng):
    # one row repeated (stride 0) into 2^31 + 4096 elements of memory of their own; every row must be the first
    n = 4096
    row = draw(rng, (1, n), "bf16")
    x = torch.from_numpy(row).to(torch.bfloat16).to(DEVICE).expand(2**31 // n + 1, n)
    out = torch.empty(x.shape, dtype=torch.bfloat16, device=DEVICE)
    PUBLIC["rms_norm"](x, None, out=out)
    assert_same_bits(out[:1], contract.rms_norm(row, None, 1e-6, 0.0, "bf16"), "first row")
    assert all(bool((part == out[0]).all()) for part in out.split(2**14))
    gated = out.view(-1)[: out.numel() // 2].view(-1, n // 2)
    gated.zero_()
    PUBLIC["silu_and_mul"](x, out=gated)
    assert_same_bits(gated[:1], contract.silu_and_mul(row, "bf16"), "first row, gated")
    assert all(bool((part == gated[0]).all()) for part in gated.split(2**14))


EMPTY_ROWS = ((0,), (0, 8), (3, 0), (0, 0), (2, 0, 8), (2, 3, 0))


@pytest.mark.parametrize("dtype", (*DTYPES, "f64"))
@pytest.mark.parametrize("shape", EMPTY_ROWS, ids=str)
def test_empty_rows(shape, dtype):
    kind = {**DTYPES, "f64": torch.float64}[dtype]
    n = shape[-1]

    def rows(*s):
        return torch.empty(s, dtype=kind, device=DEVICE)

    for weight in (torch.ones(n, dtype=kind, device=DEVICE), torch.ones(n, device=DEVICE), None):
        got = PUBLIC["rms_norm"](rows(*shape), weight)
        assert got.shape == shape and got.dtype == kind
        out = rows(*shape)
        assert PUBLIC["rms_norm"](rows(*shape), weight, out=out) is out
        x, r = rows(*shape), rows(*shape)
        assert PUBLIC["fused_add_rms_norm"](x, r, weight) == (x, r)
    for op in ("silu_and_mul", "gelu_tanh_and_mul"):
        got = PUBLIC[op](rows(*shape))
        assert got.shape == (*shape[:-1], n // 2) and got.dtype == kind
        PUBLIC[op](rows(*shape), out=rows(*shape[:-1], n // 2))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("leading", "heads", "size", "rotary_dim"),
    [((0,), 4, 16, 16), ((2, 0), 4, 16, 8), ((3,), 0, 16, 16), ((3,), 2, 0, 0), ((0,), 0, 0, 0), ((3,), 2, 16, 0)],
    ids=str,
)
def test_empty_heads(dtype, leading, heads, size, rotary_dim):
    kind = DTYPES[dtype]
    tokens = int(np.prod(leading))
    for positions in (torch.zeros(tokens, dtype=torch.long), torch.zeros(leading, dtype=torch.int32)):
        positions = positions.to(DEVICE)
        cache = torch.ones(9, rotary_dim, device=DEVICE)
        q, k = (torch.ones(*leading, n, size, dtype=kind, device=DEVICE) for n in (heads, 1))
        assert PUBLIC["rotary_embedding"](positions, q, k, cache)[0] is q
        assert PUBLIC["rotary_embedding"](positions, q, None, cache) == (q, None)
        out = torch.empty_like(q)
        assert PUBLIC["fused_qk_norm_rope"](positions, q, k, None, None, cache, query_out=out)[0] is out
        assert PUBLIC["fused_qk_norm_rope"](positions, None, k, None, None, cache)[1] is k


def test_an_empty_cache_rotates_nothing():
    q = torch.linspace(-1, 1, 32, device=DEVICE).view(1, 2, 16)
    want = q.clone()
    for rows, rotary_dim in ((0, 16), (0, 0), (5, 0)):
        cache = torch.ones(rows, rotary_dim, device=DEVICE)
        PUBLIC["rotary_embedding"](torch.tensor([0], device=DEVICE), q, None, cache)
        assert torch.equal(q, want)


@pytest.mark.parametrize("op", ("rms_norm", "fused_add_rms_norm", "silu_and_mul", "gelu_tanh_and_mul"))
def test_the_call_after_an_empty_one(op, rng):
    # on a GPU a launch of nothing is an error that the next call would report
    call = calls.BUILDERS[op](rng, (7, 64))
    nothing = {name: v[:0] if isinstance(v, torch.Tensor) and v.dim() == 2 else v for name, v in call.arguments.items()}
    PUBLIC[op](**nothing)
    call.check(PUBLIC[op])
