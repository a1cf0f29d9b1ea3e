"""silu_and_mul and gelu_tanh_and_mul give the contract's bits."""

import numpy as np
import pytest
import torch

from support import calls, contract
from support.memory import LAYOUTS, READ_LAYOUTS, STARTS
from support.values import DEVICE, DTYPES, KINDS, assert_same_bits, edge_values

pytestmark = pytest.mark.core

ACTIVATIONS = ("silu_and_mul", "gelu_tanh_and_mul")
# d, not 2 d: up's half then starts at every alignment
SIZES = (1, 2, 3, 5, 7, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 65, 100, 255, 256, 257, 1000, 1536, 2047)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ACTIVATIONS)
def test_sizes(route, rng, op, dtype):
    for d in SIZES:
        calls.gated(op, rng, (3, 2 * d), dtype).check(route[op])
        calls.gated(op, rng, (3, 2 * d), dtype, out=True).check(route[op])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ACTIVATIONS)
@pytest.mark.parametrize("layout", READ_LAYOUTS)
def test_layouts(route, rng, op, layout, dtype):
    for shape in ((4, 72), (2, 3, 40), (2, 3, 2, 18), (34,)):
        for start in STARTS:
            calls.gated(op, rng, shape, dtype, layout=layout, start=start).check(route[op])
            for out_layout in LAYOUTS:
                call = calls.gated(op, rng, shape, dtype, out=True, layout=layout, out_layout=out_layout, start=start)
                call.check(route[op])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ACTIVATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_values(route, rng, op, kind, dtype):
    calls.gated(op, rng, (5, 400), dtype, kind=kind).check(route[op])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ACTIVATIONS)
def test_every_special_gate_beside_every_special_factor(route, op, dtype):
    edges = edge_values(dtype)
    gate, up = (a.ravel() for a in np.meshgrid(edges, edges))
    x = np.concatenate([gate, up])[None]
    got = route[op](torch.from_numpy(x).to(DTYPES[dtype]).to(DEVICE))
    assert_same_bits(got, getattr(contract, op)(x, dtype), f"{op} {dtype}")


@pytest.mark.parametrize("dtype", ("bf16", "f16"))
@pytest.mark.parametrize("op", ACTIVATIONS)
def test_every_gate_of_16_bits(route, op, dtype):
    # all 65536 patterns; 1.0, and a factor that takes the product into subnormals or out of range
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(DTYPES[dtype])
    gate = patterns.float().numpy()[None]
    for factor in (1.0, 2.0**-12, 2.0**10):
        x = np.concatenate([gate, np.full_like(gate, factor)], axis=-1)
        got = route[op](torch.from_numpy(x).to(DTYPES[dtype]).to(DEVICE))
        assert_same_bits(got, getattr(contract, op)(x, dtype), f"{op} {dtype} times {factor}")


@pytest.mark.parametrize("op", ACTIVATIONS)
def test_float32_gates_in_small_steps(route, op):
    # a million neighbours of each saturation edge and of each place where exp's argument changes its octave
    steps = np.arange(-4000, 4000, dtype=np.int32)
    centres = [-89.0, -88.722839, -87.33654, -87.0, 87.0, 88.0, 89.0] + [np.log(2) * (k + 0.5) for k in range(-20, 20)]
    gate = np.concatenate([(np.float32(c).view(np.int32) + steps).view(np.float32) for c in centres])[None]
    x = np.concatenate([gate, np.ones_like(gate)], axis=-1)
    got = route[op](torch.from_numpy(x).to(DEVICE))
    assert_same_bits(got, getattr(contract, op)(x, "f32"), op)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ACTIVATIONS)
def test_many_rows(route, rng, op, dtype):
    # enough work to be split over threads, a row count that no number of threads divides
    calls.gated(op, rng, (257, 400), dtype, layout="column slice").check(route[op])
    calls.gated(op, rng, (1, 120_002), dtype, out=True).check(route[op])
