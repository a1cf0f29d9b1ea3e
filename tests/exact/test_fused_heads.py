"""fused_qk_norm_rope gives the contract's bits."""

import itertools

import pytest
import torch

from support import calls
from support.memory import LAYOUTS, STARTS
from support.values import DTYPES, KINDS

pytestmark = pytest.mark.core

SIZES = (
    (2, 2), (6, 2), (16, 16), (17, 16), (33, 30), (64, 64), (64, 0), (80, 80), (96, 32), (100, 100), (128, 128),
    (128, 64), (256, 256), (256, 64), (272, 264), (576, 512),
)  # fmt: skip
# head sizes that no pair divides are legal where nothing rotates
UNROTATED = ((1, 0), (3, 0), (255, 0), (257, 256))
OUTS = ("", "query", "key", "both", "self")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight", ("same", "f32", None))
@pytest.mark.parametrize("cache", ("f32", "same"))
def test_sizes(route, rng, dtype, weight, cache):
    for (size, rotary_dim), interleaved, seam in itertools.product((*SIZES, *UNROTATED), (False, True), (True, False)):
        call = calls.fused_qk_norm_rope(
            rng, (4,), 3, 1, size, rotary_dim,
            dtype=dtype, weight=weight, cache=cache, interleaved=interleaved, round_normalized=seam,
        )  # fmt: skip
        call.check(route["fused_qk_norm_rope"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", (*LAYOUTS, "packed"))
@pytest.mark.parametrize("out", OUTS)
def test_layouts(route, rng, layout, out, dtype):
    leads = ((5,), (2, 3), ())
    for leading, start, interleaved in itertools.product(leads, STARTS, (False, True)):
        for out_layout in LAYOUTS if out in ("query", "both") else ("contiguous",):
            call = calls.fused_qk_norm_rope(
                rng, leading, 4, 2, 32, 20,
                dtype=dtype, layout=layout, out=out, out_layout=out_layout, start=start, interleaved=interleaved,
            )  # fmt: skip
            call.check(route["fused_qk_norm_rope"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", ((3, None), (None, 2), (1, 1), (2, 5)), ids=str)
def test_query_or_key_alone(route, rng, heads, dtype):
    for out, seam, layout in itertools.product(OUTS, (True, False), ("contiguous", "transposed")):
        call = calls.fused_qk_norm_rope(
            rng, (2, 3), *heads, dtype=dtype, out=out, round_normalized=seam, layout=layout, offset=1.0
        )
        call.check(route["fused_qk_norm_rope"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_values(route, rng, kind, dtype):
    for seam, interleaved, offset, eps in itertools.product((True, False), (False, True), (0.0, 1.0), (1e-6, 0.0)):
        call = calls.fused_qk_norm_rope(
            rng, (6,), dtype=dtype, kind=kind, round_normalized=seam, interleaved=interleaved, offset=offset, eps=eps
        )
        call.check(route["fused_qk_norm_rope"])


@pytest.mark.parametrize("positions", calls.POSITION_FORMS)
def test_positions(route, rng, positions):
    for dtype, leading, max_position in itertools.product(DTYPES, ((7,), (2, 3)), (0, 1, 9)):
        call = calls.fused_qk_norm_rope(
            rng, leading, positions=positions, max_position=max_position, dtype=dtype, layout="transposed"
        )
        call.check(route["fused_qk_norm_rope"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", (False, True))
def test_the_rounded_seam_is_norm_then_rotation(route, rng, dtype, interleaved):
    call = calls.fused_qk_norm_rope(rng, (9,), 4, 2, 64, 48, dtype=dtype, interleaved=interleaved, offset=1.0)
    a = call.arguments
    parts = {}
    for name, weight in (("query", "q_weight"), ("key", "k_weight")):
        parts[name] = route["rms_norm"](a[name], a[weight], a["eps"], weight_offset=a["weight_offset"])
    route["rotary_embedding"](a["positions"], parts["query"], parts["key"], a["cos_sin_cache"], interleaved=interleaved)
    call.run(route["fused_qk_norm_rope"])
    for name, want in parts.items():
        assert torch.equal(a[name], want), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", ((31, 1), (32, 4), (33, 3), (65, 64)), ids=str)
def test_many_heads(route, rng, dtype, heads):
    # heads are worked on in blocks of 32, and four of a block at a time
    for interleaved in (False, True):
        call = calls.fused_qk_norm_rope(rng, (2,), *heads, 32, 24, dtype=dtype, interleaved=interleaved)
        call.check(route["fused_qk_norm_rope"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_tokens(route, rng, dtype):
    # enough work to be split over threads
    call = calls.fused_qk_norm_rope(rng, (3, 67), 5, 3, 128, 128, dtype=dtype, layout="transposed", max_position=300)
    call.check(route["fused_qk_norm_rope"])
