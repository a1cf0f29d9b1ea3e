"""Living with PyTorch: faults that users of other libraries reported."""

import gc
import math
import types

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import edge_ops
from support import float64
from support.closeness import assert_near, index, normal
from support.values import DEVICE

BF, F32 = torch.bfloat16, torch.float32


def cache_of(rows, rotary_dim):
    return edge_ops.rope_cache(rows, rotary_dim).to(DEVICE)


@pytest.mark.reported("GeeeekExplorer/nano-vllm#170")
@pytest.mark.parametrize("dtype", (F32, BF))
def test_inputs_stay_as_they_are(dtype):
    x, w, g = normal((3, 32), dtype, 9), normal((32,), dtype, 10), normal((3, 32), dtype, 11)
    positions, cache, ww = index([0, 1, 1]), cache_of(4, 8), normal((8,), dtype, 14)
    before = [t.clone() for t in (x, w, g, positions, cache, ww)]
    assert edge_ops.rms_norm(x, w).data_ptr() != x.data_ptr()
    edge_ops.silu_and_mul(g)
    edge_ops.gelu_tanh_and_mul(g)
    q, k = normal((3, 2, 8), dtype, 12), normal((3, 1, 8), dtype, 13)
    edge_ops.rotary_embedding(positions, q, k, cache)
    edge_ops.fused_qk_norm_rope(positions, q, k, ww, ww, cache)
    for now, then in zip((x, w, g, positions, cache, ww), before):
        assert torch.equal(now, then)


@pytest.mark.reported("ggml-org/llama.cpp#20274", "ikawrakow/ik_llama.cpp#916", "sgl-project/sglang#33293")
def test_outputs_on_top_of_inputs():
    w = normal((16,), F32, 20)
    x = normal((4, 16), F32, 21)
    want = float64.rms_norm(x, w)
    edge_ops.rms_norm(x, w, out=x)
    assert_near(x, want)
    buffer = normal((5, 16), F32, 22)
    with pytest.raises(ValueError, match="must not overlap x"):
        edge_ops.rms_norm(buffer[:4], w, out=buffer[1:])  # each row would be read after it was written
    same = normal((2, 16), F32, 23)
    with pytest.raises(ValueError, match="must not overlap residual"):
        edge_ops.fused_add_rms_norm(same, same, w)  # two results for one buffer


@pytest.mark.reported("sgl-project/sglang#23609", "lightseekorg/tokenspeed#1077", "sgl-project/sglang#31350")
@pytest.mark.parametrize("dtype", (F32, BF))
def test_no_tokens(dtype):
    def nothing(*shape):
        return torch.empty(0, *shape, dtype=dtype, device=DEVICE)

    w = torch.ones(16, dtype=dtype, device=DEVICE)
    assert edge_ops.rms_norm(nothing(16), w).shape == (0, 16)
    assert edge_ops.silu_and_mul(nothing(16)).shape == (0, 8)
    assert edge_ops.gelu_tanh_and_mul(nothing(16)).shape == (0, 8)
    edge_ops.fused_add_rms_norm(nothing(16), nothing(16), w)
    edge_ops.rotary_embedding(index([]), nothing(4, 16), nothing(2, 16), cache_of(4, 16))
    edge_ops.rotary_embedding(index([]), nothing(4, 16), None, cache_of(4, 16))
    edge_ops.fused_qk_norm_rope(index([]), nothing(4, 16), nothing(2, 16), w, w, cache_of(4, 16))
    x = normal((2, 16), dtype, 1)  # a failed launch would surface in the next call
    assert_near(edge_ops.rms_norm(x, w), float64.rms_norm(x, w))


@pytest.mark.reported(
    "flashinfer-ai/flashinfer#3005", "flashinfer-ai/flashinfer#3391", "linkedin/Liger-Kernel#1483",
    "vllm-project/vllm#22419", "vllm-project/vllm#43390",
)  # fmt: skip
def test_a_row_beyond_32_bit_offsets():
    stride = 2**31 + 64
    base = torch.empty(stride + 128, dtype=BF, device=DEVICE)
    x = base.as_strided((2, 64), (stride, 1))
    x.copy_(normal((2, 64), BF, 30))
    w, r = normal((64,), BF, 31), normal((2, 64), BF, 32)
    assert_near(edge_ops.rms_norm(x, w), float64.rms_norm(x, w))
    assert_near(edge_ops.silu_and_mul(x), float64.silu_and_mul(x), atol=1e-6)
    total = (float64.wide(x) + float64.wide(r)).to(BF)
    edge_ops.fused_add_rms_norm(x, r, w)
    assert torch.equal(r.cpu(), total)
    assert_near(x, float64.rms_norm(total, w), 2.6)
    del base, x
    gc.collect()


@pytest.mark.reported(
    "pytorch/pytorch#153389", "pytorch/pytorch#127821", "flashinfer-ai/flashinfer#2733", "Dao-AILab/quack#18",
    "huggingface/kernels-community#270",
)  # fmt: skip
@pytest.mark.parametrize("backend", ("aot_eager", "inductor"))
def test_compiling_keeps_mutations_of_views(backend):
    w, w8, cache = normal((16,), F32, 60), normal((8,), F32, 61), cache_of(8, 8)

    def step(buffer, positions, q, k):
        x, r = buffer[0], buffer[1]  # views of one graph input, written in place
        edge_ops.fused_add_rms_norm(x, r, w)
        y = edge_ops.silu_and_mul(x) + edge_ops.gelu_tanh_and_mul(r)
        z = edge_ops.rms_norm(y, w8)
        edge_ops.rotary_embedding(positions, q, k, cache)
        edge_ops.fused_qk_norm_rope(positions, q, k, w8, w8, cache)
        return z, x.sum() + r.sum() + q.sum()

    def arguments():
        return normal((2, 3, 16), F32, 62), index([1, 7, 3]), normal((3, 2, 8), F32, 63), normal((3, 1, 8), F32, 64)

    eager, compiled = arguments(), arguments()
    want = step(*eager)
    torch._dynamo.reset()
    got = torch.compile(step, fullgraph=True, backend=backend, dynamic=False)(*compiled)
    for a, b in zip((*got, *compiled), (*want, *eager)):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.reported(
    "PrimeIntellect-ai/prime-rl#3567", "NVIDIA/cuEquivariance#223", "pytorch/pytorch#198307", "pytorch/pytorch#192668"
)
@pytest.mark.parametrize("layout", ("contiguous", "row slice", "3-D", "permuted", "expanded"))
def test_fake_results_look_like_real_ones(layout):
    w = normal((8,), F32, 70)
    x = {
        "contiguous": lambda: normal((4, 8), F32, 72),
        "row slice": lambda: normal((4, 20), F32, 71)[:, 3:11],
        "3-D": lambda: normal((2, 3, 8), F32, 73),
        "permuted": lambda: normal((3, 2, 8), F32, 74).transpose(0, 1),
        "expanded": lambda: normal((1, 8), F32, 75).expand(4, 8),
    }[layout]()
    for function in (lambda t, weight: edge_ops.rms_norm(t, weight), lambda t, _: edge_ops.silu_and_mul(t)):
        real = function(x, w)
        with FakeTensorMode() as mode:
            fake = function(mode.from_tensor(x), mode.from_tensor(w))
        assert (fake.shape, fake.stride(), fake.dtype, fake.device) == (
            real.shape, real.stride(), real.dtype, real.device,
        )  # fmt: skip


@pytest.mark.reported("huggingface/candle#2168", "unslothai/unsloth#4533", "flagos-ai/FlagGems#70")
def test_gradients_flow():
    def silu(x):
        gate, up = x.chunk(2, -1)
        return nn.functional.silu(gate) * up

    def gelu(x):
        gate, up = x.chunk(2, -1)
        return nn.functional.gelu(gate, approximate="tanh") * up

    def norm(x, w):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w

    for ours, formula, shapes in (
        (edge_ops.rms_norm, norm, ((3, 16), (16,))),
        (edge_ops.silu_and_mul, silu, ((3, 16),)),
        (edge_ops.gelu_tanh_and_mul, gelu, ((3, 16),)),
    ):
        leaves = [normal(shape, F32, 80 + i).requires_grad_() for i, shape in enumerate(shapes)]
        wide = [float64.wide(t).requires_grad_() for t in leaves]
        ours(*leaves).square().sum().backward()
        formula(*wide).square().sum().backward()
        for a, b in zip(leaves, wide):
            assert (float64.wide(a.grad) - b.grad).abs().max() < 1e-5 * (1 + b.grad.abs().max())


@pytest.mark.reported("huggingface/candle#2168", "unslothai/unsloth#4533")
def test_what_has_no_gradient_says_so():
    x = normal((3, 16)).requires_grad_()
    heads = normal((3, 2, 8)).requires_grad_()
    for call in (
        lambda: edge_ops.fused_add_rms_norm(x, normal((3, 16)), None),
        lambda: edge_ops.rms_norm(x, None, out=normal((3, 16))),
        lambda: edge_ops.rotary_embedding(index([0, 1, 2]), heads, None, cache_of(4, 8)),
        lambda: edge_ops.fused_qk_norm_rope(index([0, 1, 2]), heads, None, None, None, cache_of(4, 8)),
    ):
        with pytest.raises(RuntimeError, match="requires grad"):
            call()


@pytest.mark.reported("pytorch/pytorch#188955", "pytorch/pytorch#167308")
@pytest.mark.parametrize("dtype", (F32, BF))
def test_autocast_leaves_the_type_alone(dtype):
    x, w = normal((2, 16), dtype, 91), normal((16,), dtype, 90)
    with torch.autocast(torch.device(DEVICE).type, dtype=BF):
        got = edge_ops.rms_norm(x, w)
        assert got.dtype == dtype == edge_ops.silu_and_mul(x).dtype
        assert_near(got, float64.rms_norm(x, w))
        q = normal((2, 2, 8), dtype, 92)
        want, length = float64.rotary_embedding(index([1, 2]), q, cache_of(4, 8))
        edge_ops.rotary_embedding(index([1, 2]), q, None, cache_of(4, 8))
        assert q.dtype == dtype
        assert_near(q, want, 4.0, 2 * length)


@pytest.mark.reported("unslothai/unsloth#961", "huggingface/transformers#38025", "NVIDIA/cutlass#1112")
@pytest.mark.parametrize("attribute", ("variance_epsilon", "eps"))
@pytest.mark.parametrize("eps", (1e-6, 1e-3))
def test_a_layer_uses_the_host_modules_eps(attribute, eps):
    from edge_ops import layers

    class Host(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((32,), 1.5, device=DEVICE))
            setattr(self, attribute, eps)

    host = Host()
    forward = types.MethodType(layers.RMSNorm.forward, host)  # what kernelize does
    with torch.no_grad():
        got = forward(torch.full((2, 32), 1e-3, device=DEVICE))
    assert_near(got, torch.full((2, 32), 1.5e-3 / math.sqrt(1e-6 + eps), dtype=torch.float64), 80.0)
