"""The kernels by themselves, without PyTorch's bindings: on a CUDA device, or skipped."""

from __future__ import annotations

import pytest

from cuda import harness
from support.values import DEVICE


@pytest.fixture(scope="session")
def gpu():
    reason = harness.missing()
    if reason is None and not DEVICE.startswith("cuda"):
        reason = "EDGE_OPS_TEST_DEVICE is not cuda"
    if reason is not None:
        pytest.skip(reason)
