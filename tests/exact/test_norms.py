"""rms_norm and fused_add_rms_norm give the contract's bits."""

import pytest

from support import calls
from support.memory import LAYOUTS, READ_LAYOUTS, STARTS
from support.values import DTYPES, KINDS

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
