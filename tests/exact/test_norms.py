"""rms_norm and fused_add_rms_norm give the contract's bits."""

import pytest
import torch

from support import calls
from support.memory import LAYOUTS, READ_LAYOUTS, STARTS
from support.values import DEVICE, DTYPES, KINDS

pytestmark = pytest.mark.core

# Around the vector width (16), the tree's chunk (256) and one, two, three chunks: the edges of every loop.
SIZES = (1, 2, 3, 7, 15, 16, 17, 31, 33, 64, 100, 255, 256, 257, 271, 512, 513, 576, 768, 769, 1023, 1025, 2560, 2561)
WEIGHTS = ("same", "f32", None)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_sizes(route, rng, dtype, weight):
    for n in SIZES:
        calls.rms_norm(rng, (3, n), dtype, weight).check(route["rms_norm"])
        calls.fused_add_rms_norm(rng, (3, n), dtype, weight).check(route["fused_add_rms_norm"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", READ_LAYOUTS)
def test_input_layouts(route, rng, dtype, layout):
    for shape in ((4, 72), (2, 3, 40), (2, 3, 2, 17), (300,)):
        for start in STARTS:
            for out in (None, "apart"):
                call = calls.rms_norm(rng, shape, dtype, layout=layout, start=start, out=out)
                call.check(route["rms_norm"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_output_layouts(route, rng, dtype, layout):
    for shape in ((4, 72), (2, 3, 40), (2, 3, 2, 17)):
        for start in STARTS:
            for weight in WEIGHTS:
                calls.rms_norm(rng, shape, dtype, weight, out="apart", out_layout=layout, start=start).check(
                    route["rms_norm"]
                )
                calls.rms_norm(rng, shape, dtype, weight, out="x", layout=layout, start=start).check(route["rms_norm"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("residual_layout", LAYOUTS)
def test_residual_layouts(route, rng, dtype, layout, residual_layout):
    for shape in ((4, 72), (2, 3, 40), (2, 3, 2, 17)):
        for start in STARTS:
            call = calls.fused_add_rms_norm(
                rng, shape, dtype, layout=layout, residual_layout=residual_layout, start=start
            )
            call.check(route["fused_add_rms_norm"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_values(route, rng, dtype, kind):
    for weight in WEIGHTS:
        # 0 makes a zero row divide by zero; 1e-45 is a subnormal; 1e30 hides the row
        for eps in (1e-6, 1e-5, 0.0, 1e-45, 1e30):
            for offset in (0.0, 1.0, -0.5):
                calls.rms_norm(rng, (6, 70), dtype, weight, eps, offset, kind=kind).check(route["rms_norm"])
        calls.fused_add_rms_norm(rng, (6, 70), dtype, weight, 1e-6, 1.0, kind=kind).check(route["fused_add_rms_norm"])


@pytest.mark.parametrize("dtype", ("bf16", "f16"))
@pytest.mark.parametrize("bits", (0x7FFFFFFF, -1, 0x7F800001), ids=hex)
def test_every_nan_stays_one(route, dtype, bits):
    # rounded as a number, a NaN of all ones becomes a zero, and one of few bits an infinity
    for n in (16, 32, 70):
        for at in (0, 15, n // 2, n - 1):
            weight = torch.ones(n, device=DEVICE)
            weight.view(torch.int32)[at] = bits
            x, r = (torch.ones(5, n, dtype=DTYPES[dtype], device=DEVICE) for _ in range(2))
            for got in (route["rms_norm"](x, weight), route["fused_add_rms_norm"](x, r, weight)[0]):
                assert got[:, at].isnan().all() and got.isnan().sum() == 5, (n, at)


def test_subnormal_rows_are_numbers(route):
    # looked at as integers: a thread that takes subnormals for zero would take them so in the oracle, too
    x = torch.full((5, 70), 71362, dtype=torch.int32, device=DEVICE).view(torch.float32)  # 1e-40
    for got in (route["rms_norm"](x, None), route["fused_add_rms_norm"](x.clone(), torch.zeros_like(x), None)[0]):
        assert (got.view(torch.int32) > 0x02000000).all()  # 1e-37 and the like, not 0


def test_constants_are_rounded_to_float32_once(route, rng):
    # neither number is a float32: 0.1 + w in double, then rounded, gives other bits in some lanes
    calls.rms_norm(rng, (40, 300), "f32", eps=1e-3 / 3, offset=0.1).check(route["rms_norm"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_rows(route, rng, dtype):
    # many chunks: the stack of partial sums is nine and thirteen levels deep, with and without odd ones out
    for n in (256 * 257 + 3, 1_000_003):
        calls.rms_norm(rng, (1, n), dtype).check(route["rms_norm"])
        calls.fused_add_rms_norm(rng, (1, n), dtype).check(route["fused_add_rms_norm"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_rows(route, rng, dtype):
    # enough work to be split over threads, a row count that no number of threads divides
    calls.rms_norm(rng, (1009, 96), dtype).check(route["rms_norm"])
    calls.rms_norm(rng, (127, 1024), dtype, out="apart", layout="column slice").check(route["rms_norm"])
    calls.fused_add_rms_norm(rng, (127, 1024), dtype, layout="column slice").check(route["fused_add_rms_norm"])
