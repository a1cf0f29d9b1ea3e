"""The level that runs is the one that was asked for: a run on another level must not be a run on the same."""

import os

import pytest

from edge_ops import native
from support.values import DEVICE

pytestmark = pytest.mark.core


@pytest.mark.skipif(native.extension is None or DEVICE != "cpu", reason="levels are the native CPU code's")
def test_the_level_that_runs():
    info = native.build_info()
    wanted = os.environ.get("EDGE_OPS_TEST_EXPECT_ISA", info["isa_offered"][-1])
    assert info["isa_chosen"] == wanted
