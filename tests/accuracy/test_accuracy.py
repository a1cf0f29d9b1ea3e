"""How far the results are from float64 formulas that know nothing of the contract."""

import math

import pytest
import torch

from support import calls, float64
from support.routes import ROUTES
from support.values import DTYPES

PUBLIC = ROUTES["public"]

# Rounding once to a type with p bits gives a relative L2 error near 0.4 * 2^-p on random rows. float32 rows are
# rounded a few times more on the way. Bounds are 1.15 to 1.3 times the largest that was measured.
ROUNDING = {"f32": 8e-8, "bf16": 2.1e-3, "f16": 2.6e-4}


# "small" rows are left out where their results would be float16 subnormals, which have few bits to be right in.
DTYPES_AND_KINDS = [(d, k) for d in DTYPES for k in ("normal", "large", "small") if (d, k) != ("f16", "small")]


def call_of(op, rng, dtype, **options):
    shape = {"rms_norm": (64, 1024), "fused_add_rms_norm": (64, 1024)}.get(op, (64, 2048))
    return calls.BUILDERS[op](rng, shape, dtype, **options)


@pytest.mark.parametrize(("dtype", "kind"), DTYPES_AND_KINDS)
@pytest.mark.parametrize("offset", (0.0, 1.0))
def test_rms_norm(rng, dtype, kind, offset):
    a = call_of("rms_norm", rng, dtype, kind=kind, offset=offset, weight="f32").arguments
    got = PUBLIC["rms_norm"](**a)
    want = float64.rms_norm(a["x"], a["weight"], a["eps"], offset)
    assert float64.relative_l2(got, want) < ROUNDING[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ("normal", "large"))
def test_fused_add_rms_norm(rng, dtype, kind):
    a = call_of("fused_add_rms_norm", rng, dtype, kind=kind, offset=1.0).arguments
    total = float64.wide(a["x"]) + float64.wide(a["residual"])
    normed, residual = PUBLIC["fused_add_rms_norm"](**a)
    assert float64.relative_l2(residual, total) < ROUNDING[dtype]
    # the norm is that of the rounded sum: with that as its input it is as good as rms_norm alone
    want = float64.rms_norm(residual, a["weight"], a["eps"], 1.0)
    assert float64.relative_l2(normed, want) < ROUNDING[dtype]


@pytest.mark.parametrize(("dtype", "kind"), DTYPES_AND_KINDS)
@pytest.mark.parametrize("op", ("silu_and_mul", "gelu_tanh_and_mul"))
def test_activations(rng, op, dtype, kind):
    a = call_of(op, rng, dtype, kind=kind).arguments
    assert float64.relative_l2(PUBLIC[op](x=a["x"]), getattr(float64, op)(a["x"])) < ROUNDING[dtype]


@pytest.mark.parametrize("op", ("silu_and_mul", "gelu_tanh_and_mul"))
def test_activations_element_by_element(op):
    # every gate is worth its own relative error, down to where the result vanishes; L2 alone would hide the tail
    gate = torch.linspace(-80.0, 20.0, 400_001)
    x = torch.cat([gate, torch.ones_like(gate)])
    want = getattr(float64, op)(x)
    keep = want.abs() > 1e-35
    error = ((PUBLIC[op](x).double() - want) / want)[keep].abs()
    # an ulp (6e-8) of the exponential, of the quotient and of the argument, which counts argument times
    scale = 1.0 if op == "silu_and_mul" else 1.0 + 1.6 * gate.double().abs() * (1 + 0.045 * gate.double() ** 2)
    assert (error / (scale[keep] if op == "gelu_tanh_and_mul" else 1.0)).max() < 4e-7


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", (False, True))
@pytest.mark.parametrize("cache", ("f32", "same"))
def test_rotation(rng, dtype, interleaved, cache):
    call = calls.rotary_embedding(rng, (64,), 8, 4, 128, 96, dtype=dtype, cache=cache, interleaved=interleaved)
    a = call.arguments
    wants = {
        n: float64.rotary_embedding(a["positions"], a[n], a["cos_sin_cache"], interleaved) for n in ("query", "key")
    }
    PUBLIC["rotary_embedding"](**a)
    for name, (want, length) in wants.items():
        # a coordinate may cancel to nothing, so its error is measured against its pair: two products and a
        # sum, each rounded to float32, then one rounding to the type
        unit = torch.finfo(DTYPES[dtype]).eps / 2
        bound = (unit + 2.0 * 2**-24) * math.sqrt(2) * length
        error = (float64.wide(a[name]) - want).abs()
        assert (error <= bound).all(), f"{name}: {(error / bound).max().item()} times the bound"


@pytest.mark.parametrize("dtype", ("bf16", "f16"))
def test_the_unrounded_seam_is_more_accurate(rng, dtype):
    errors = []
    for seam in (True, False):
        call = calls.fused_qk_norm_rope(
            rng, (64,), 8, 4, 128, 128, dtype=dtype, weight="f32", round_normalized=seam, max_position=200
        )
        a = call.arguments
        normed = float64.rms_norm(a["query"], a["q_weight"], a["eps"])
        want, _ = float64.rotary_embedding(a["positions"], normed, a["cos_sin_cache"])
        errors.append(float64.relative_l2(PUBLIC["fused_qk_norm_rope"](**a)[0], want))
    rounded, unrounded = errors
    assert unrounded < ROUNDING[dtype], "one rounding"
    assert rounded < math.sqrt(2.0) * ROUNDING[dtype], "two independent roundings"
    assert unrounded < 0.85 * rounded


def test_float64_rows_are_computed_in_float64(rng):
    x = torch.randn(16, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    w = torch.randn(300, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert float64.relative_l2(PUBLIC["rms_norm"](x, w), float64.rms_norm(x, w)) < 1e-15
    for op in ("silu_and_mul", "gelu_tanh_and_mul"):
        assert float64.relative_l2(PUBLIC[op](x), getattr(float64, op)(x)) < 1e-10  # gelu's constants are float32's


def test_a_norm_near_overflow_and_near_underflow():
    # squares beyond float32's range: the contract says infinity, then 0, which eager PyTorch gives too
    x = torch.full((1, 64), 3e38)
    w = torch.ones(64)
    assert torch.equal(PUBLIC["rms_norm"](x, w), torch.zeros(1, 64))
    # float16's whole range fits: squares are taken in float32
    half = torch.full((1, 64), 65504.0, dtype=torch.float16)
    assert torch.equal(PUBLIC["rms_norm"](half, None), torch.ones(1, 64, dtype=torch.float16))
