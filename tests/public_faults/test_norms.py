"""Norms: faults that users of other libraries reported."""

import math

import pytest
import torch

import edge_ops
from support import float64
from support.closeness import FUSED_ULPS, assert_near, framed, index, normal
from support.values import DEVICE

BF, HF, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.mark.reported("ggml-org/llama.cpp#5810", "linkedin/Liger-Kernel#85")
def test_the_weight_offset_is_added_before_rounding():
    # in bfloat16, 3.140625 + 1 would become 4.125, 0.4 % low: a bias that the rounding of single values hides
    x = normal((64, 1024), BF, 1)
    w = torch.full((1024,), 3.140625, dtype=BF, device=DEVICE)
    got, want = edge_ops.rms_norm(x, w, weight_offset=1.0), float64.rms_norm(x, w, 1e-6, 1.0)
    assert abs(float64.wide(got).abs().sum() / want.abs().sum() - 1) < 8e-4
    assert_near(got, want)
    # nothing but 2^-8 is left of a weight near -1
    w = torch.full((1024,), -0.99609375, dtype=BF, device=DEVICE)
    assert_near(edge_ops.rms_norm(x, w, weight_offset=1.0), float64.rms_norm(x, w, 1e-6, 1.0))


@pytest.mark.reported(
    "pytorch/pytorch#133085", "nntrainer/nntrainer#3935", "xlite-dev/LeetCUDA#335", "keras-team/keras#22393"
)
def test_squares_are_not_taken_in_half_precision():
    x = torch.full((2, 64), 300.0, dtype=HF, device=DEVICE)  # 300 squared overflows float16: inf, then a row of zeros
    x[1, ::2] = -300.0
    w = torch.full((64,), 2.0, dtype=HF, device=DEVICE)
    assert_near(edge_ops.rms_norm(x, w), float64.rms_norm(x, w))
    q = torch.full((1, 2, 16), 1000.0, dtype=HF, device=DEVICE)
    k = torch.full((1, 1, 16), 30000.0, dtype=HF, device=DEVICE)
    cache = edge_ops.rope_cache(2, 16).to(DEVICE)
    edge_ops.fused_qk_norm_rope(index([0]), q, k, None, None, cache)
    for got in (q, k):
        assert_near(got, torch.ones(got.shape, dtype=torch.float64), FUSED_ULPS[HF])


@pytest.mark.reported("ROCm/aiter#5151", "triton-lang/triton#11217")
def test_stores_round_to_nearest():
    # three quarters of the spacing at 1 must round away from zero, a quarter towards it
    step = 2.0**-7
    r = torch.tensor([[1.0, -1.0, 1.0, -1.0] * 4], dtype=BF, device=DEVICE)
    x = torch.tensor([[0.75 * step, -0.75 * step, 0.25 * step, -0.25 * step] * 4], dtype=BF, device=DEVICE)
    edge_ops.fused_add_rms_norm(x, r, None)
    want = torch.tensor([[1 + step, -1 - step, 1.0, -1.0] * 4], dtype=torch.float64)
    assert torch.equal(float64.wide(r), want)
    x, r = normal((64, 512), BF, 2), normal((64, 512), BF, 3, 30.0)
    total = float64.wide(x) + float64.wide(r)
    edge_ops.fused_add_rms_norm(x, r, None)
    assert_near(r, total, 0.5001)
    assert abs(float64.wide(x).abs().sum() / float64.rms_norm(total, None).abs().sum() - 1) < 3e-4, "a drift"


@pytest.mark.reported("EleutherAI/gpt-neox#1342", "NVIDIA/cutlass#1112", "apache/tvm#15856", "tile-ai/tilelang#1243")
@pytest.mark.parametrize("eps", (1e-6, 1e-5, 1e-2, 0.0))
def test_eps_is_inside_the_root_and_counts(eps):
    x = torch.full((2, 32), 1e-3, device=DEVICE)  # the mean square is 1e-6: of eps' own size
    want = torch.full((2, 32), 1e-3 / math.sqrt(1e-6 + eps), dtype=torch.float64)
    assert_near(edge_ops.rms_norm(x, None, eps), want, 80.0)
    a, r = x.clone(), torch.zeros_like(x)
    edge_ops.fused_add_rms_norm(a, r, None, eps=eps)
    assert_near(a, want, 80.0)


@pytest.mark.reported("ROCm/aiter#5044", "tile-ai/tilelang-ascend#890")
@pytest.mark.parametrize("n", (769, 1, 3, 9, 257))
def test_odd_widths(n):
    x, x_intact = framed((7, n), HF)
    x.copy_(normal((7, n), HF, n))
    w = normal((n,), HF, n + 1)
    out, out_intact = framed((7, n), HF, fill=-55.0)
    edge_ops.rms_norm(x, w, out=out)
    assert_near(out, float64.rms_norm(x, w))
    r, r_intact = framed((7, n), HF, fill=11.0)
    r.copy_(normal((7, n), HF, n + 2))
    total = (float64.wide(x) + float64.wide(r)).to(HF)
    edge_ops.fused_add_rms_norm(x, r, w)
    assert torch.equal(r.cpu(), total)
    assert_near(x, float64.rms_norm(total, w), 2.0)
    assert x_intact() and out_intact() and r_intact(), "wrote outside the tensor"


@pytest.mark.reported(
    "sgl-project/sglang#32807", "huggingface/transformers#30236", "Dao-AILab/quack#12", "vllm-project/vllm#44694"
)
@pytest.mark.parametrize("offset", (0.0, 1.0))
def test_float32_weights_beside_bfloat16_rows(offset):
    x, w = normal((3, 64), BF, 50), normal((64,), F32, 51)
    got = edge_ops.rms_norm(x, w, weight_offset=offset)
    assert got.dtype == BF
    assert_near(got, float64.rms_norm(x, w, 1e-6, offset))
    r = normal((3, 64), BF, 52)
    total = (float64.wide(x) + float64.wide(r)).to(BF)
    edge_ops.fused_add_rms_norm(x, r, w, weight_offset=offset)
    assert_near(x, float64.rms_norm(total, w, 1e-6, offset), 2.6)
