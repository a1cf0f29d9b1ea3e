"""The checks in Python and those in native code accept and refuse the same calls."""

import hypothesis
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edge_ops import checks, native
from support.routes import OPERATORS, ROUTES

pytestmark = pytest.mark.skipif(native.extension is None, reason="this build has no native code")

# float64 is left out: Python accepts it and lets the reference compute it, which no native code covers.
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.int16, torch.bool)
SHARED_BYTES = 4096


@st.composite
def tensors(draw, shape, dtype, shared):
    """Almost always what is asked for; each property is wrong now and then."""

    def seldom(wrong, right):
        return draw(wrong) if draw(st.integers(0, 24)) == 0 else right

    shape = list(shape)
    dtype = seldom(st.sampled_from(DTYPES), dtype)
    if shape:
        at = draw(st.integers(0, len(shape) - 1))
        shape[at] = seldom(st.integers(0, 5), shape[at])
    shape = seldom(st.just(shape[1:]), shape)
    shape = seldom(st.just([*shape, 1]), shape)
    if draw(st.integers(0, 60)) == 0:
        return None
    strides, step = [0] * len(shape), 1
    for d in reversed(range(len(shape))):
        strides[d] = seldom(st.sampled_from([0, 1, 2, 3, 4, 8, 16]), step)
        step = max(strides[d], 1) * max(1, shape[d]) + draw(st.sampled_from([0, 0, 0, 1, 4]))
    item = torch.empty((), dtype=dtype).element_size()
    span = 1 + sum(max(0, n - 1) * s for n, s in zip(shape, strides))
    if draw(st.integers(0, 3)) and span * item <= 256:  # in one buffer with the other arguments, near its start
        return shared.view(dtype).as_strided(shape, strides, draw(st.integers(0, 256 // item)))
    return torch.zeros(span + 1, dtype=dtype).as_strided(shape, strides, draw(st.integers(0, 1)))


@st.composite
def calls(draw, op):
    """Arguments, as the public function takes them."""
    shared = torch.zeros(SHARED_BYTES, dtype=torch.uint8)
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16]))
    wide = draw(st.sampled_from([dtype, torch.float32]))
    outer = draw(st.lists(st.integers(0, 3), max_size=2))
    n = draw(st.sampled_from([1, 2, 4, 6]))

    def tensor(*shape, kind=dtype):
        return draw(tensors(shape, kind, shared))

    def maybe(value):
        return value if draw(st.booleans()) else None

    if op in ("rms_norm", "fused_add_rms_norm"):
        x = tensor(*outer, n)
        arguments = {"x": x, "weight": maybe(tensor(n, kind=wide))}
        if op == "rms_norm":
            arguments["out"] = maybe(tensor(*outer, n))
            if draw(st.integers(0, 9)) == 0:
                arguments["out"] = x
        else:
            arguments["residual"] = tensor(*outer, n)
        return arguments
    if op in ("silu_and_mul", "gelu_tanh_and_mul"):
        return {"x": tensor(*outer, 2 * n), "out": maybe(tensor(*outer, n))}
    tokens = int(torch.Size(outer).numel())
    positions = tensor(*draw(st.sampled_from([outer, [tokens]])), kind=draw(st.sampled_from(DTYPES[3:5])))
    rotary_dim = draw(st.sampled_from([0, 2, n - n % 2]))
    arguments = {
        "positions": positions,
        "query": tensor(*outer, draw(st.integers(1, 2)), n),
        "key": maybe(tensor(*outer, draw(st.integers(1, 2)), n)),
        "cos_sin_cache": tensor(3, rotary_dim, kind=wide),
    }
    if op == "fused_qk_norm_rope":
        for name in ("query", "key"):
            value = arguments[name]
            arguments[f"{name[0]}_weight"] = maybe(tensor(n, kind=wide))
            shape = [*outer, draw(st.integers(1, 2)), n] if value is None else list(value.shape)
            out = maybe(tensor(*shape))
            arguments[f"{name}_out"] = value if draw(st.integers(0, 9)) == 0 else out
    return arguments


def accepted(function, arguments):
    try:
        function(arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        return False, error
    return True, None


def python_checks(op):
    names = {"rms_norm": 5, "fused_add_rms_norm": 5, "rotary_embedding": 4, "fused_qk_norm_rope": 10}

    def check(arguments):
        defaults = {"eps": 1e-6, "weight_offset": 0.0, **arguments}
        if op in names:
            function = getattr(checks, op)
            wanted = function.__code__.co_varnames[: names[op]]
            function(*(defaults.get(name) for name in wanted))
        else:
            checks.gated_activation(op, arguments["x"], arguments["out"])

    return check


@pytest.mark.parametrize("op", OPERATORS)
def test_accept_the_same_calls(op):
    seen = []
    check = python_checks(op)

    @hypothesis.settings(max_examples=400)
    @given(st.data())
    def run(data):
        arguments = data.draw(calls(op))
        by_python, python_error = accepted(check, arguments)
        probe = native.extension.probe(op, (), arguments)
        assert (probe is None) == by_python, f"direct: {probe}; Python: {python_error}"
        by_operator, error = accepted(lambda a: ROUTES["dispatcher"][op](**a), arguments)
        assert by_operator == by_python, f"registered operator: {error}; Python: {python_error}"
        seen.append(by_python)

    run()
    assert min(seen.count(True), seen.count(False)) > 40, "both answers must have been seen often"
