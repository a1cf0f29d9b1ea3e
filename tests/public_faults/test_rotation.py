"""Rotations: faults that users of other libraries reported."""

import math

import pytest
import torch

import edge_ops
from support import float64
from support.closeness import FUSED_ULPS, assert_near, index, normal
from support.values import DEVICE

BF, HF, F32 = torch.bfloat16, torch.float16, torch.float32
ULPS = {BF: 1.1, HF: 1.1, F32: 4.0}  # one rounding, or two products and a sum
pairings = pytest.mark.parametrize("interleaved", (False, True))


def cache_of(rows, rotary_dim):
    return edge_ops.rope_cache(rows, rotary_dim).to(DEVICE)


def check(positions, q, k, cache, interleaved=False):
    """Rotates in place and compares with complex multiplication in float64."""
    wants = [(t, *float64.rotary_embedding(positions, t, cache, interleaved)) for t in (q, k) if t is not None]
    edge_ops.rotary_embedding(positions, q, k, cache, interleaved=interleaved)
    for got, want, length in wants:
        # a coordinate is a cos - b sin: its rounding errors are of the size of the two terms
        assert_near(got, want, ULPS[got.dtype], 2 * length)


def check_fused(positions, q, k, cache):
    ones = torch.ones(q.shape[-1], dtype=q.dtype, device=DEVICE)
    wants = [(t, *float64.rotary_embedding(positions, float64.rms_norm(t, ones), cache)) for t in (q, k)]
    edge_ops.fused_qk_norm_rope(positions, q, k, ones, ones, cache)
    for got, want, length in wants:
        assert_near(got, want, FUSED_ULPS[got.dtype], 2 * length)


@pytest.mark.reported(
    "vllm-project/vllm#16658", "vllm-project/vllm#17091", "vllm-project/vllm#12777", "ggml-org/llama.cpp#2830"
)
@pairings
@pytest.mark.parametrize("dtype", (BF, F32))
def test_views_of_a_packed_projection_are_written_in_place(interleaved, dtype):
    tokens, heads, kv, size = 5, 4, 2, 16
    packed = normal((tokens, (heads + 2 * kv) * size), dtype, 8)
    before = packed.clone()
    q = packed[:, : heads * size].unflatten(-1, (heads, size))
    k = packed[:, heads * size : (heads + kv) * size].unflatten(-1, (kv, size))
    check(index([3, 0, 9, 1, 2]), q, k, cache_of(10, size), interleaved)
    assert torch.equal(packed[:, (heads + kv) * size :], before[:, (heads + kv) * size :]), (
        "the values were overwritten"
    )
    assert not torch.equal(packed[0, : heads * size], before[0, : heads * size]), "the caller's memory is unchanged"


@pytest.mark.reported("sgl-project/sgl-kernel-xpu#137", "LMCache/LMCache#2902", "NVIDIA/TensorRT-LLM#17093")
@pytest.mark.parametrize("dtype", (torch.int64, torch.int32))
@pytest.mark.parametrize("layout", ("contiguous", "strided", "expanded"))
def test_positions_of_either_type_and_any_stride(dtype, layout):
    values = [5, 63, 0, 17]
    if layout == "contiguous":
        positions = index(values, dtype)
    elif layout == "strided":
        wide = torch.full((4, 3), 50, dtype=dtype, device=DEVICE)
        wide[:, 1] = index(values, dtype)
        positions = wide[:, 1]
    else:
        positions = index([9], dtype).expand(4)
    check(positions, normal((4, 2, 8), F32, 40), normal((4, 1, 8), F32, 41), cache_of(64, 8))
    check_fused(positions, normal((4, 2, 8), F32, 42), normal((4, 1, 8), F32, 43), cache_of(64, 8))


@pytest.mark.reported("microsoft/onnxruntime#27597", "microsoft/onnxruntime#28205", "vllm-project/vllm-ascend#1266")
@pytest.mark.parametrize("values", ([0, 8, 5], [2**31, 3, 0], [0, 2**40, 7], [-1, 2, 3], [-(2**31), 0, 1]), ids=str)
def test_a_position_outside_the_cache_reads_nothing(values):
    # the token is left alone (the fused form still normalizes it), the others rotate
    cache = cache_of(8, 8)
    q, k = normal((3, 2, 8), F32, 44), normal((3, 1, 8), F32, 45)
    outside = [i for i, v in enumerate(values) if not 0 <= v < 8]
    start = q.clone()
    check(index(values), q, k, cache)
    assert torch.equal(q[outside], start[outside])
    q, k = normal((3, 2, 8), F32, 46), normal((3, 1, 8), F32, 47)
    normed = float64.rms_norm(q, None)
    check_fused(index(values), q, k, cache)
    assert_near(q[outside], normed[outside])


@pytest.mark.reported("Dao-AILab/flash-attention#823", "flashinfer-ai/flashinfer#585", "sgl-project/sglang#33117")
@pairings
@pytest.mark.parametrize("dtype", (BF, HF))
def test_a_float32_cache_is_not_demoted(interleaved, dtype):
    # just past 45 degrees cos - sin nearly cancels: rounded to 16 bits it would be off by half
    angle = math.pi / 4 + 1e-3
    cache = torch.tensor([[math.cos(angle), math.sin(angle)]], device=DEVICE)
    q = torch.full((1, 1, 2), 128.0, dtype=dtype, device=DEVICE)
    k = -q
    edge_ops.rotary_embedding(index([0]), q, k, cache, interleaved=interleaved)
    want = 128 * (math.cos(angle) - math.sin(angle))
    assert q[0, 0, 0].item() == pytest.approx(want, rel=0.01)
    assert k[0, 0, 0].item() == pytest.approx(-want, rel=0.01)


@pytest.mark.reported(
    "pie-project/pie#602", "vllm-project/vllm#43676", "ROCm/aiter#2199", "vllm-project/vllm-ascend#12723"
)
@pairings
@pytest.mark.parametrize(("rotary_dim", "size"), ((4, 8), (24, 32), (6, 16), (2, 64)))
def test_partial_rotation_pairs_inside_rotary_dim(interleaved, rotary_dim, size):
    q, k = normal((3, 2, size), F32, rotary_dim), normal((3, 1, size), F32, rotary_dim + 1)
    tails = q[..., rotary_dim:].clone(), k[..., rotary_dim:].clone()
    check(index([1, 700, 2047]), q, k, cache_of(2048, rotary_dim), interleaved)
    assert torch.equal(q[..., rotary_dim:], tails[0]) and torch.equal(k[..., rotary_dim:], tails[1])


@pytest.mark.reported("sgl-project/sglang#30111", "vllm-project/vllm#49290", "NVIDIA/TensorRT-LLM#13052")
@pytest.mark.parametrize(
    ("interleaved", "want"), ((False, [-3.0, 2.0, 1.0, 4.0]), (True, [-2.0, 1.0, 3.0, 4.0])), ids=str
)
def test_both_pairings_by_known_numbers(interleaved, want):
    # a quarter turn of the first pair, no turn of the second
    cache = torch.tensor([[0.0, 1.0, 1.0, 0.0]], device=DEVICE)
    q = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]], device=DEVICE)
    k = q.clone()
    edge_ops.rotary_embedding(index([0]), q, k, cache, interleaved=interleaved)
    assert q.flatten().tolist() == want == k.flatten().tolist()


@pytest.mark.reported(
    "fla-org/flash-linear-attention#1177", "flashinfer-ai/flashinfer#4349", "microsoft/onnxruntime#29014"
)
@pytest.mark.parametrize(("rotary_dim", "size"), ((3, 8), (16, 8), (8, 7)))
def test_an_impossible_rotary_dim_is_refused(rotary_dim, size):
    cache = torch.ones(4, rotary_dim, device=DEVICE)
    q, k = normal((2, 4, size), F32, 1), normal((2, 2, size), F32, 2)
    before = q.clone(), k.clone()
    with pytest.raises(ValueError, match="rotary_dim even and at most the head size"):
        edge_ops.rotary_embedding(index([0, 1]), q, k, cache)
    with pytest.raises(ValueError, match="rotary_dim even and at most the head size"):
        edge_ops.fused_qk_norm_rope(index([0, 1]), q, k, None, None, cache)
    assert torch.equal(q, before[0]) and torch.equal(k, before[1])


@pytest.mark.reported("linkedin/Liger-Kernel#342", "ml-explore/mlx#3494", "ml-explore/mlx#3795", "ml-explore/mlx#3949")
@pairings
@pytest.mark.parametrize(("heads", "kv"), ((2, 1), (8, 1), (1, 1)))
def test_no_head_and_no_token_is_skipped(interleaved, heads, kv):
    q, k = normal((5, heads, 16), F32, heads), normal((5, kv, 16), F32, heads + 1)
    q[:] = q[:1].clone()  # one row at five positions, two of them the same
    check(index([6, 6, 1, 31, 0]), q, k, cache_of(32, 16), interleaved)
    assert torch.equal(q[0], q[1])
