"""The two real models, where their packages are installed: weights from disk, patched and not."""

from __future__ import annotations

import pytest
import torch

import edge_ops
from edge_ops.cli import weights
from edge_ops.cli.arms import make

pytestmark = pytest.mark.slow

COUNTS = {
    "smollm2": {
        "LlamaRMSNorm": 61,
        "LlamaAttention": 30,
        "LlamaMLP": 30,
        "LlamaDecoderLayer": 30,
        "LlamaRotaryEmbedding": 1,
    },
    "gemma3": {
        "Gemma3RMSNorm": 109,
        "Gemma3Attention": 18,
        "Gemma3MLP": 18,
        "Gemma3DecoderLayer": 18,
        "Gemma3RotaryEmbedding": 1,
    },
}


@pytest.fixture(scope="module", params=sorted(COUNTS))
def real(request):
    """(name, the model in float32 with its prompt)."""
    try:
        loaded = weights.load(request.param, torch.float32, None, lambda what: None)
    except weights.Unavailable as reason:
        pytest.skip(str(reason))
    return request.param, loaded


def test_everything_is_replaced_and_put_back(real):
    name, loaded = real
    report = edge_ops.patch(loaded.model)
    assert report.counts() == COUNTS[name]
    assert not report.kept
    edge_ops.unpatch(loaded.model)
    assert not edge_ops.models.is_patched(loaded.model)


def test_greedy_tokens_agree_over_128_steps(real):
    _, loaded = real
    arms, _ = make(loaded.model, ["eager", "patched"])
    for arm in arms.values():
        arm.prefill(loaded.prompt, 128)
        for _ in range(127):
            arm.step(profiled=False)
    assert arms["eager"].tokens == arms["patched"].tokens
    assert len(set(arms["eager"].tokens)) > 20


@torch.no_grad()
def test_bfloat16_logits_are_within_rounding(real):
    """Over a whole prompt: two computations in bfloat16 differ by about as much as each from float32."""
    _, loaded = real
    ids = torch.tensor([loaded.prompt])
    exact = loaded.model(ids).logits
    model = loaded.model.to(torch.bfloat16)
    try:
        eager = model(ids).logits.float()
        edge_ops.patch(model)
        patched = model(ids).logits.float()
        edge_ops.unpatch(model)
    finally:
        loaded.model.float()  # rounded weights: this test must stay the last one
    rounding = (eager - exact).norm()
    assert (patched - eager).norm() < 2 * rounding
    assert (patched - exact).norm() < 1.25 * rounding
