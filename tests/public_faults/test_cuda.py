"""CUDA graphs and streams: faults that users of other libraries reported. Runs where a device is."""

import pytest
import torch

import edge_ops
from edge_ops import native

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or "cuda" not in native.build_info()["backends"],
    reason="no CUDA device, or a build without CUDA",
)


def normal(shape, seed, dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).cuda()


@pytest.mark.reported("linkedin/Liger-Kernel#1450", "thu-ml/SageAttention#380", "usyd-fsalab/fp6_llm#16")
def test_a_graph_replay_sees_new_inputs():
    w, w16, cache = normal((64,), 1), normal((16,), 2), edge_ops.rope_cache(32, 16).cuda()
    x, r, q, k = normal((4, 64), 3), normal((4, 64), 4), normal((4, 4, 16), 5), normal((4, 2, 16), 6)
    positions = torch.tensor([1, 2, 3, 4]).cuda()
    buffers = (x, r, q, k)
    originals = [b.clone() for b in buffers]

    def step():
        edge_ops.fused_add_rms_norm(x, r, w)
        y, gated = edge_ops.rms_norm(r, w), edge_ops.silu_and_mul(x)
        edge_ops.fused_qk_norm_rope(positions, q, k, w16, w16, cache)
        edge_ops.rotary_embedding(positions, q, k, cache)
        return y, gated

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, gated = step()
    for trial in range(3):
        fresh = [(t * (trial + 2) / 2).to(torch.bfloat16) for t in originals]
        positions.copy_(torch.tensor([trial, 9, 31, trial + 4]))

        def load(values):
            for buffer, value in zip(buffers, values):
                buffer.copy_(value)

        load(fresh)
        graph.replay()
        torch.cuda.synchronize()
        replayed = [t.clone() for t in (*buffers, y, gated)]
        load(fresh)
        results = step()
        torch.cuda.synchronize()
        for a, b in zip(replayed, (*buffers, *results)):
            assert torch.equal(a, b), "the replay differs from eager"


@pytest.mark.reported("linkedin/Liger-Kernel#1450")
def test_work_goes_to_the_current_stream():
    x, w = normal((2048, 4096), 1), normal((4096,), 2)
    want = edge_ops.rms_norm(x, w)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    source = torch.zeros_like(x)
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # the copy comes long after the call was issued
        source.copy_(x)
        got = edge_ops.rms_norm(source, w)
    side.synchronize()
    assert torch.equal(got, want)


@pytest.mark.reported("linkedin/Liger-Kernel#1450")
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_on_a_device_that_is_not_the_current_one():
    x = normal((4, 64), 1).to("cuda:1")
    assert torch.cuda.current_device() == 0
    got = edge_ops.rms_norm(x, None)
    assert got.device == x.device and torch.equal(got.cpu(), edge_ops.rms_norm(x.cpu(), None))
