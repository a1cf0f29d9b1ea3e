"""Whatever the shape, strides, dtypes, options and values: every route gives the contract's bits."""

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.routes import OPERATORS, ROUTES
from support.strategies import CALLS

pytestmark = pytest.mark.core


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("name", sorted(ROUTES))
def test_any_call(op, name):
    if not ROUTES[name]:
        pytest.skip("this build has no native code")
    examples = hypothesis.settings().max_examples * (4 if name == "public" else 1)

    @hypothesis.settings(max_examples=examples)
    @given(st.data())
    def run(data):
        call = data.draw(CALLS[op])
        hypothesis.note(call.label)
        call.check(ROUTES[name][op])

    run()
