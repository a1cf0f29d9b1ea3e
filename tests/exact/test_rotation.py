"""rotary_embedding gives the contract's bits."""

import numpy as np
import pytest
import torch

from support import calls
from support.memory import LAYOUTS, STARTS
from support.values import DEVICE, DTYPES, KINDS

pytestmark = pytest.mark.core

# (head_size, rotary_dim): whole and partial, powers of two or not, smaller than a vector, none at all, and
# head sizes that are odd. (6, 2) and (17, 16) leave a tail; (80, 80) and (96, 32) are real models' sizes.
SIZES = (
    (2, 2), (6, 2), (8, 8), (16, 16), (17, 16), (24, 20), (32, 32), (33, 30), (64, 64), (64, 0), (64, 32), (64, 62),
    (80, 80), (96, 32), (100, 100), (128, 128), (128, 64), (192, 128), (256, 256), (256, 64), (272, 264), (512, 512),
)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache", ("f32", "same"))
@pytest.mark.parametrize("interleaved", (False, True))
def test_sizes(route, rng, dtype, cache, interleaved):
    for size, rotary_dim in SIZES:
        for heads in ((1, None), (3, 1), (2, 2)):
            call = calls.rotary_embedding(
                rng, (5,), *heads, size, rotary_dim, dtype=dtype, cache=cache, interleaved=interleaved
            )
            call.check(route["rotary_embedding"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", (*LAYOUTS, "packed"))
@pytest.mark.parametrize("leading", ((5,), (2, 3), (2, 1, 3), ()), ids=str)
def test_layouts(route, rng, layout, leading, dtype):
    for start in STARTS:
        for interleaved in (False, True):
            for size, rotary_dim in ((32, 32), (20, 6)):
                call = calls.rotary_embedding(
                    rng, leading, 4, 2, size, rotary_dim,
                    dtype=dtype, layout=layout, start=start, interleaved=interleaved,
                )  # fmt: skip
                call.check(route["rotary_embedding"])


@pytest.mark.parametrize("positions", calls.POSITION_FORMS)
@pytest.mark.parametrize("leading", ((7,), (2, 3)), ids=str)
def test_positions(route, rng, positions, leading):
    for dtype in DTYPES:
        for max_position in (0, 1, 9):
            call = calls.rotary_embedding(
                rng, leading, positions=positions, max_position=max_position, dtype=dtype, layout="transposed"
            )
            call.check(route["rotary_embedding"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_values(route, rng, kind, dtype):
    for cache in ("f32", "same"):
        for interleaved in (False, True):
            call = calls.rotary_embedding(rng, (6,), dtype=dtype, cache=cache, interleaved=interleaved, kind=kind)
            call.check(route["rotary_embedding"])


def test_one_position_for_all_tokens(route, rng):
    call = calls.rotary_embedding(rng, (6,))
    one = torch.tensor([3], device=DEVICE)
    again = calls.rotary_embedding(np.random.default_rng(1), (6,))
    call.arguments["positions"] = one.expand(6)
    again.arguments["positions"] = one.repeat(6)
    for name in ("query", "key", "cos_sin_cache"):
        again.arguments[name].copy_(call.arguments[name])
    call.run(route["rotary_embedding"])
    again.run(route["rotary_embedding"])
    for name in ("query", "key"):
        assert torch.equal(call.arguments[name], again.arguments[name])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", ((31, 1), (32, 4), (33, 3), (65, 64)), ids=str)
def test_many_heads(route, rng, dtype, heads):
    # heads are worked on in blocks of 32, and four of a block at a time
    for interleaved in (False, True):
        call = calls.rotary_embedding(rng, (2,), *heads, 32, 24, dtype=dtype, interleaved=interleaved)
        call.check(route["rotary_embedding"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_tokens(route, rng, dtype):
    # enough work to be split over threads; batched, so that a thread's tokens cross from one batch to the next
    for interleaved in (False, True):
        call = calls.rotary_embedding(
            rng, (3, 151), 5, 3, 64, 64, dtype=dtype, layout="transposed", interleaved=interleaved, max_position=500
        )
        call.check(route["rotary_embedding"])
