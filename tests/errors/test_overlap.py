"""Overlap is decided as a brute-force set of bytes decides it."""

import math

import hypothesis
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edge_ops import checks, native
from support.memory import element_set
from support.routes import ROUTES

BYTES = 240  # of the buffer that both tensors lie in: small, so that they meet about half of the time


@st.composite
def views(draw, base, like=None):
    """A strided view of a byte buffer, of any type and rank up to 3, with any strides, zero among them.

    Like another one: of its type and shape, contiguous in the last dimension.
    """
    dtype = like.dtype if like is not None else draw(st.sampled_from([torch.float32, torch.bfloat16]))
    item = torch.empty((), dtype=dtype).element_size()
    room = BYTES // item
    shape = draw(st.lists(st.integers(1, 5), max_size=3)) if like is None else list(like.shape)
    strides = draw(st.lists(st.integers(0, 24), min_size=len(shape), max_size=len(shape)))
    if draw(st.booleans()):  # half of them nest, as slices and transposes of contiguous tensors do
        order = draw(st.permutations(range(len(shape))))
        step = 1
        for d in order:
            strides[d] = step * draw(st.integers(1, 2))
            step = strides[d] * shape[d]
    if like is not None:
        strides[-1] = 1
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides))
    hypothesis.assume(span <= room)
    offset = draw(st.integers(0, room - span))
    return base.view(dtype).as_strided(shape, strides, offset)


def nest(*tensors):
    """Every stride is at least the span, in each of the tensors, of the dimensions below it."""
    dims = [[(s * t.element_size(), n) for s, n in zip(t.stride(), t.shape) if n > 1] for t in tensors]
    for stride, _ in (pair for each in dims for pair in each):
        for t, each in zip(tensors, dims):
            if t.element_size() + sum(s * (n - 1) for s, n in each if s < stride) > stride:
                return False
    # equal strides in one tensor: two dimensions in one place
    return all(len({s for s, _ in each}) == len(each) for each in dims)


def meet(a, b):
    return checks._boxes_meet(
        checks._dims(a), a.element_size(), checks._dims(b), b.element_size(), b.data_ptr() - a.data_ptr()
    )


def test_two_tensors_share_a_byte():
    base = torch.zeros(BYTES, dtype=torch.uint8)
    seen = []

    @hypothesis.settings(max_examples=1500)
    @given(st.data())
    def run(data):
        a, b = data.draw(views(base)), data.draw(views(base))
        shared = bool(element_set(a) & element_set(b))
        claimed = meet(a, b)
        assert claimed or not shared, "an overlap was missed"
        assert claimed == meet(b, a)
        if nest(a, b):
            assert claimed == shared, "strides that nest are decided exactly"
            seen.append(shared)

    run()
    assert min(seen.count(True), seen.count(False)) > 50, "both answers must have been seen often"


def test_a_tensor_overlaps_itself():
    base = torch.zeros(BYTES, dtype=torch.uint8)
    seen = []

    @hypothesis.settings(max_examples=600)
    @given(st.data())
    def run(data):
        t = data.draw(views(base))
        distinct = len(element_set(t)) == t.numel() * t.element_size()
        try:
            checks._written("t", t)
        except ValueError:
            assert not (distinct and nest(t)), "refused without need"
            seen.append(False)
        else:
            assert distinct, "a tensor with two elements in one place was accepted"
            seen.append(True)

    run()
    assert min(seen.count(True), seen.count(False)) > 50


@pytest.mark.skipif(native.extension is None, reason="this build has no native code")
def test_the_native_code_decides_alike():
    """rms_norm(out=) of two views of one shape: accepted exactly where they are one, or apart."""
    base = torch.zeros(BYTES, dtype=torch.uint8)
    seen = []

    @hypothesis.settings(max_examples=1000)
    @given(st.data())
    def run(data):
        like = data.draw(views(base).filter(lambda t: t.dim() > 0))
        x, out = data.draw(views(base, like)), data.draw(views(base, like))
        try:
            checks.rms_norm(x, None, 1e-6, 0.0, out)
            expected = True
        except ValueError:
            expected = False
        try:
            ROUTES["dispatcher"]["rms_norm"](x, None, out=out)
            got = True
        except RuntimeError:
            got = False
        assert got == expected
        seen.append(got)

    run()
    assert min(seen.count(True), seen.count(False)) > 20


@pytest.mark.parametrize("op", ("rms_norm", "silu_and_mul"))
def test_interleaved_but_apart(op):
    # the even and the odd rows of one buffer, and two columns of it: they interleave, and share nothing
    rows = torch.ones(8, 16)
    x, out = rows[0::2], rows[1::2]
    wide = torch.ones(4, 48)
    for a, b in ((x, out), (wide[:, :16], wide[:, 16:32]), (wide[:, 16:32], wide[:, :16])):
        target = b[:, :8] if op == "silu_and_mul" else b
        arguments = {"x": a, "out": target, **({"weight": None} if op == "rms_norm" else {})}
        assert ROUTES["public"][op](**arguments) is target


def test_far_apart_strides_cost_nothing():
    # a view of 2^40 elements that shares memory with nothing is told from its bounds, not by counting
    far = torch.empty(1).expand(2**20, 2**20)
    near = torch.empty(4, 4)
    assert not meet(far, near) and math.prod(far.shape) == 2**40
