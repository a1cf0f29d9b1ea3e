"""What the operators refuse: the type of error, the argument it names, nothing written, the same on every route."""

import inspect
import json

import pytest
import torch

from edge_ops import native
from support import refusals
from support.processes import output
from support.refusals import CASES
from support.routes import OPERATORS, ROUTES

PUBLIC = ROUTES["public"]
by_name = pytest.mark.parametrize("case", CASES, ids=str)


def names_the_argument(case, message):
    """The message starts with the argument, or says which one requires grad."""
    return message.startswith(f"{case.name} ") or (
        case.error is RuntimeError and f"but {case.name} requires" in message
    )


def test_the_table_is_about_different_calls():
    assert len({str(case) for case in CASES}) == len(CASES) > 250
    for op in OPERATORS:
        PUBLIC[op](**refusals.valid(op))


@by_name
def test_public(case):
    got = refusals.outcome(PUBLIC[case.op], case)
    assert got["type"] == case.error.__name__ and names_the_argument(case, got["message"]), got


@by_name
def test_reference(case):
    # float64 rows are computed by the reference; what is changed in the call is the same
    def valid64(op):
        return {
            name: value.double() if value.dtype == torch.float32 and name != "cos_sin_cache" else value
            for name, value in refusals.valid(op).items()
        }

    arguments = valid64(case.op)
    PUBLIC[case.op](**arguments)
    arguments = valid64(case.op)
    case.change(arguments)
    before = refusals.storage_bytes(arguments)
    with pytest.raises(case.error) as caught:
        PUBLIC[case.op](**arguments)
    assert names_the_argument(case, str(caught.value))
    for name, after in refusals.storage_bytes(arguments).items():
        assert torch.equal(before[name], after), name


@pytest.mark.skipif(native.extension is None, reason="this build has no native code")
@by_name
def test_registered_operators_check_for_themselves(case):
    if case.error is RuntimeError:
        pytest.skip("gradients are the business of the public function")
    got = refusals.outcome(ROUTES["dispatcher"][case.op], case)
    assert got["type"], "accepted"


def test_without_the_direct_route():
    there = json.loads(output(["-m", "support.refusals"], {"EDGE_OPS_DISABLE_DIRECT": "1"}))
    here = {str(case): refusals.outcome(PUBLIC[case.op], case) for case in CASES}
    assert there == here


@pytest.mark.parametrize("op", OPERATORS)
def test_arguments_that_do_not_fit_the_signature(op):
    arguments = refusals.valid(op)
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        PUBLIC[op](**arguments, other=1)
    first = next(iter(arguments))
    with pytest.raises(TypeError, match=f"multiple values for argument '{first}'"):
        PUBLIC[op](arguments[first], **arguments)
    with pytest.raises(TypeError, match=f"missing .* required positional argument.*'{first}'"):
        PUBLIC[op](**{name: value for name, value in arguments.items() if name != first})
    count = sum(p.kind is not p.KEYWORD_ONLY for p in inspect.signature(PUBLIC[op]).parameters.values())
    with pytest.raises(TypeError, match="positional argument"):
        PUBLIC[op](*[arguments[first]] * (count + 1))


@pytest.mark.parametrize("op", OPERATORS)
def test_a_refusal_leaves_the_next_call_unharmed(op):
    want = PUBLIC[op](**refusals.valid(op))
    for case in (c for c in CASES if c.op == op):
        refusals.outcome(PUBLIC[op], case)
    got = PUBLIC[op](**refusals.valid(op))
    for a, b in zip(*[r if isinstance(r, tuple) else (r,) for r in (want, got)]):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_messages_say_what_it_was_and_what_is_allowed(dtype):
    x, w = torch.ones(4, 8, dtype=dtype), torch.ones(8, dtype=dtype)
    with pytest.raises(ValueError, match=r"weight must be \[hidden\] = \[8\], got shape \(7,\)"):
        PUBLIC["rms_norm"](x, w[:7])
    with pytest.raises(TypeError, match=r"x must be float32, bfloat16, float16 or float64, got torch.int64"):
        PUBLIC["rms_norm"](x.long(), w)
    with pytest.raises(ValueError, match=r"x must be contiguous in its last dimension, got strides \(1, 4\)"):
        PUBLIC["rms_norm"](torch.ones(8, 4, dtype=dtype).t(), w)
    with pytest.raises(ValueError, match=r"out is written and must not overlap x; it may be exactly x or apart"):
        PUBLIC["rms_norm"](x[:3], w, out=x[1:])
