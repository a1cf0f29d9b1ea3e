"""Hypothesis strategies: every choice that a caller of the operators has."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from . import calls
from .memory import LAYOUTS, READ_LAYOUTS, STARTS
from .values import DTYPES, KINDS

MAX_ELEMENTS = 24_000  # of one tensor: bounds an example's time

dtypes = st.sampled_from(list(DTYPES))
weights = st.sampled_from(["same", "f32", None])
caches = st.sampled_from(["f32", "same"])
kinds = st.sampled_from(KINDS)
layouts = st.sampled_from(LAYOUTS)
read_layouts = st.sampled_from(READ_LAYOUTS)
starts = st.sampled_from(STARTS)
seeds = st.integers(0, 2**32 - 1)
epsilons = st.one_of(st.sampled_from([1e-6, 1e-5, 0.0, 1e-45, 1.0]), st.floats(0, 1e30))
offsets = st.one_of(st.sampled_from([0.0, 1.0, -1.0]), st.floats(-4, 4))

# Whatever loop a kernel has, its edges lie around multiples of the vector width or of the tree's chunk.
row_sizes = st.one_of(
    st.integers(1, 40),
    st.builds(lambda k, d: max(1, 16 * k + d), st.integers(1, 20), st.integers(-2, 2)),
    st.builds(lambda k, d: 256 * k + d, st.integers(1, 11), st.integers(-2, 2)),
    st.integers(1, 3000),
)


@st.composite
def shapes(draw, last=row_sizes, max_outer=3):
    """[..., n] with up to `max_outer` leading dimensions, ones among them."""
    n = draw(last)
    shape = [n]
    for _ in range(draw(st.integers(0, max_outer))):
        room = MAX_ELEMENTS
        for size in shape:
            room //= max(1, size)
        shape.insert(0, draw(st.integers(1, max(1, min(room, 9)))))
    return tuple(shape)


def generators():
    return seeds.map(np.random.default_rng)


def rms_norm_calls():
    return st.builds(
        calls.rms_norm,
        generators(),
        shapes(),
        dtypes,
        weights,
        epsilons,
        offsets,
        st.sampled_from([None, "apart"]),
        read_layouts,
        layouts,
        starts,
        kinds,
    ) | st.builds(
        lambda rng, shape, dtype, weight, layout, start, kind: calls.rms_norm(
            rng, shape, dtype, weight, out="x", layout=layout, start=start, kind=kind
        ),
        generators(),
        shapes(),
        dtypes,
        weights,
        layouts,
        starts,
        kinds,
    )


def fused_add_rms_norm_calls():
    return st.builds(
        calls.fused_add_rms_norm,
        generators(),
        shapes(),
        dtypes,
        weights,
        epsilons,
        offsets,
        layouts,
        layouts,
        starts,
        kinds,
    )


def gated_calls(op):
    doubled = shapes(last=row_sizes.map(lambda n: 2 * n).filter(lambda n: n <= 4000))
    return st.builds(
        calls.gated, st.just(op), generators(), doubled, dtypes, st.booleans(), read_layouts, layouts, starts, kinds
    )


@st.composite
def head_sizes(draw):
    """(head_size, rotary_dim): rotary_dim even and at most head_size."""
    size = draw(st.one_of(st.sampled_from([32, 64, 80, 96, 128, 256]), st.integers(1, 300)))
    rotary_dim = 2 * draw(st.one_of(st.just(size // 2), st.integers(0, size // 2)))
    return size, rotary_dim


@st.composite
def leading_shapes(draw):
    return tuple(draw(st.lists(st.integers(1, 4), max_size=3)))


def _heads(draw):
    size, rotary_dim = draw(head_sizes())
    return dict(
        rng=draw(generators()),
        leading=draw(leading_shapes()),
        size=size,
        rotary_dim=rotary_dim,
        dtype=draw(dtypes),
        cache=draw(caches),
        max_position=draw(st.integers(0, 30)),
        positions=draw(st.sampled_from(calls.POSITION_FORMS)),
        interleaved=draw(st.booleans()),
        layout=draw(st.sampled_from([*LAYOUTS, "packed"])),
        start=draw(starts),
        kind=draw(kinds),
    )


@st.composite
def rotary_embedding_calls(draw):
    q_heads, k_heads = draw(st.integers(1, 5)), draw(st.none() | st.integers(1, 4))
    return calls.rotary_embedding(q_heads=q_heads, k_heads=k_heads, **_heads(draw))


@st.composite
def fused_qk_norm_rope_calls(draw):
    q_heads, k_heads = draw(
        st.tuples(st.integers(1, 5), st.none() | st.integers(1, 4)) | st.tuples(st.none(), st.integers(1, 4))
    )
    return calls.fused_qk_norm_rope(
        q_heads=q_heads,
        k_heads=k_heads,
        weight=draw(weights),
        eps=draw(epsilons),
        offset=draw(offsets),
        round_normalized=draw(st.booleans()),
        out=draw(st.sampled_from(["", "query", "key", "both", "self"])),
        out_layout=draw(layouts),
        **_heads(draw),
    )


CALLS = {
    "rms_norm": rms_norm_calls(),
    "fused_add_rms_norm": fused_add_rms_norm_calls(),
    "silu_and_mul": gated_calls("silu_and_mul"),
    "gelu_tanh_and_mul": gated_calls("gelu_tanh_and_mul"),
    "rotary_embedding": rotary_embedding_calls(),
    "fused_qk_norm_rope": fused_qk_norm_rope_calls(),
}
