"""Tensors of more than 2^31 elements: every operator's kernels, every row."""

from __future__ import annotations

from typing import Callable

import pytest
import torch

import edge_ops
from edge_ops import native

ELEMENTS = 2**31
PERIOD = 8  # distinct rows; a row of a large tensor is row i % PERIOD of a small one

# One worker, since two of these tests do not fit one GPU together.
pytestmark = [pytest.mark.usefixtures("gpu", "memory"), pytest.mark.xdist_group("memory")]


@pytest.fixture
def memory():
    if "cuda" not in native.build_info()["backends"]:
        pytest.skip("the package was built without CUDA")
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GiB of free GPU memory")
    yield
    torch.cuda.empty_cache()


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


def repeated(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Rows repeated past `count` elements, in memory of their own."""
    times = count // rows.numel() + 1
    return rows.expand(times, *rows.shape).reshape(times * PERIOD, *rows.shape[1:])


def assert_repeats(large: torch.Tensor, small: torch.Tensor) -> None:
    assert small.isfinite().all() and small.abs().max() > 0
    periods = large.view(-1, *small.shape).view(torch.int16)
    assert all(bool((part == small.view(torch.int16)).all()) for part in periods.split(2**12))


@pytest.mark.parametrize("width", (128, 4096, 4095, 20480))
def test_norms(width):
    weight, small, residual = random(width), random(PERIOD, width), random(PERIOD, width)
    x = repeated(small, ELEMENTS)
    assert x.numel() > ELEMENTS
    out = edge_ops.rms_norm(x, weight)
    assert_repeats(out, edge_ops.rms_norm(small, weight))
    stream = out.copy_(repeated(residual, ELEMENTS))
    edge_ops.fused_add_rms_norm(x, stream, weight)
    edge_ops.fused_add_rms_norm(small, residual, weight)
    assert_repeats(x, small)
    assert_repeats(stream, residual)


@pytest.mark.parametrize("width", (4096, 2 * 4097))
@pytest.mark.parametrize("operator", (edge_ops.silu_and_mul, edge_ops.gelu_tanh_and_mul))
def test_activations(operator: Callable[..., torch.Tensor], width):
    small = random(PERIOD, width)
    assert_repeats(operator(repeated(small, 2 * ELEMENTS)), operator(small))


@pytest.mark.parametrize(("heads", "size", "rotary"), [(32, 128, 128), (8, 256, 64), (32, 80, 80)])
@pytest.mark.parametrize("normalize", (True, False))
def test_heads(heads, size, rotary, normalize):
    cache = edge_ops.rope_cache(64, rotary, device="cuda")
    weight, small, key = random(size), random(PERIOD, heads, size), random(PERIOD, 1, size)
    query = repeated(small, ELEMENTS)
    keys = key.repeat(len(query) // PERIOD, 1, 1)

    def run(q: torch.Tensor, k: torch.Tensor) -> None:
        positions = torch.arange(len(q), device="cuda") % PERIOD
        if normalize:
            edge_ops.fused_qk_norm_rope(positions, q, k, weight, weight, cache)
        else:
            edge_ops.rotary_embedding(positions, q, k, cache)

    run(query, keys)
    run(small, key)
    assert_repeats(query, small)
    assert_repeats(keys, key)
