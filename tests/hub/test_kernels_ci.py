"""Quick checks of the loaded build, by the Kernel Hub's convention: `get_kernel` by name, under a minute together.

The Hub's builder sets LOCAL_KERNELS to its build; without it the layout of the release is used.
"""

from __future__ import annotations

import os

import pytest
import torch

from support import calls
from support.values import DEVICE, DTYPES

build_hub = pytest.importorskip("build_hub", reason="needs Python 3.11's tomllib")
kernels = pytest.importorskip("kernels")
pytestmark = pytest.mark.kernels_ci
REPOSITORY, VERSION = build_hub.GENERAL["hub"]["repo-id"], build_hub.GENERAL["version"]


@pytest.fixture(scope="module")
def kernel(request):
    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("LOCAL_KERNELS"):
            patch.setenv("LOCAL_KERNELS", f"{REPOSITORY}={request.getfixturevalue('layout')}")
        return kernels.get_kernel(REPOSITORY, version=VERSION)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ((1, 1024), (4, 300), (2, 3, 34)), ids=str)
def test_rows(kernel, rng, dtype, shape):
    calls.rms_norm(rng, shape, dtype).check(kernel.rms_norm)
    calls.rms_norm(rng, shape, dtype, out="apart", offset=1.0).check(kernel.rms_norm)
    calls.fused_add_rms_norm(rng, shape, dtype).check(kernel.fused_add_rms_norm)
    for op in ("silu_and_mul", "gelu_tanh_and_mul"):
        calls.gated(op, rng, shape, dtype).check(getattr(kernel, op))
        calls.gated(op, rng, shape, dtype, out=True, kind="edges").check(getattr(kernel, op))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", (False, True))
def test_heads(kernel, rng, dtype, interleaved):
    for leading in ((1,), (2, 3)):
        calls.rotary_embedding(rng, leading, dtype=dtype, interleaved=interleaved).check(kernel.rotary_embedding)
        call = calls.fused_qk_norm_rope(rng, leading, dtype=dtype, interleaved=interleaved)
        call.check(kernel.fused_qk_norm_rope)


def test_the_route(kernel):
    x = torch.ones(2, 64, device=DEVICE)
    assert kernel.explain("rms_norm", x, None).route == "direct"
    assert kernel.native.build_info()["build"] == kernel.__name__


def test_operators_compile_in_one_graph(kernel):
    function = torch.compile(lambda x: kernel.silu_and_mul(kernel.rms_norm(x, None)), fullgraph=True, dynamic=True)
    for rows in (3, 5, 9):
        x = torch.randn(rows, 64, device=DEVICE)
        torch.testing.assert_close(function(x), kernel.silu_and_mul(kernel.rms_norm(x, None)), rtol=0, atol=0)


def test_layers_are_there(kernel):
    for name in ("RMSNorm", "RMSNormZeroCentered", "rotary_pos_emb", "SiLU", "GeluTanh", "SwiGLUMLP", "GeGLUMLP"):
        layer = getattr(kernel.layers, name)
        assert issubclass(layer, torch.nn.Module) and layer.can_torch_compile and not layer.has_backward
