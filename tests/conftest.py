"""Settings that hold for every test: hypothesis profiles, the device, one seed a test."""

from __future__ import annotations

import os
import zlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import hypothesis  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

import edge_ops  # noqa: E402
from edge_ops import native  # noqa: E402
from support.routes import ROUTES  # noqa: E402
from support.values import DEVICE  # noqa: E402

# The same examples in every run, a bounded number of them and no clock: a slow machine fails nothing.
_COMMON = dict(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[
        hypothesis.HealthCheck.too_slow,
        hypothesis.HealthCheck.data_too_large,
        hypothesis.HealthCheck.filter_too_much,
    ],
)
hypothesis.settings.register_profile("ci", max_examples=60, **_COMMON)
hypothesis.settings.register_profile("emulated", max_examples=8, **_COMMON)
hypothesis.settings.register_profile("search", max_examples=2000, **{**_COMMON, "derandomize": False})
hypothesis.settings.load_profile(os.environ.get("EDGE_OPS_TEST_PROFILE", "ci"))


def pytest_report_header():
    info = native.build_info()
    return [
        f"edge_ops {info['version']} from {os.path.dirname(edge_ops.__file__)}",
        f"build {info['build']}, backends {info['backends']}, ISA {info['isa_chosen']} "
        f"(offered {info['isa_offered']}), torch {torch.__version__}, tensors on {DEVICE}",
    ]


@pytest.fixture
def rng(request):
    """A generator seeded by the test's name: independent of which tests run and in which order."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.split("::", 1)[1].encode()))


@pytest.fixture(params=sorted(ROUTES))
def route(request):
    """The operators on one route, by name."""
    if not ROUTES[request.param]:
        pytest.skip("this build has no native code")
    return ROUTES[request.param]
