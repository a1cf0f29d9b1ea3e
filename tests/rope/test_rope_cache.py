"""rope_cache gives the angles of transformers' own functions, for every rope type, in float64 precision."""

import math

import pytest
import torch

import edge_ops

HEAD = 64
FACTORS = [1.0 + 0.05 * i for i in range(HEAD // 2)]

# (rope parameters, trained context, positions): the parameters of published models, and the branches between them.
CASES = {
    "linear": ({"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, 4096, 300),
    "linear, partial": (
        {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4, "partial_rotary_factor": 0.5}, 4096, 300),
    "dynamic, within the context": ({"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}, 512, 512),
    "dynamic, beyond it": ({"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}, 512, 1500),
    "yarn": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "rope_theta": 1e6}, 4096, 300),
    "yarn, own betas": (
        {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "rope_theta": 1e4,
         "beta_fast": 64, "beta_slow": 2, "mscale": 1.0, "mscale_all_dim": 0.7}, 163840, 300),
    "yarn, attention factor": (
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024, "rope_theta": 1e4,
         "attention_factor": 1.3}, 2048, 300),
    "yarn, not truncated": (
        {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "rope_theta": 150000.0,
         "truncate": False}, 131072, 300),
    "yarn, partial": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "rope_theta": 1e6,
         "partial_rotary_factor": 0.25}, 4096, 300),
    "longrope, short": (
        {"rope_type": "longrope", "factor": 8.0, "original_max_position_embeddings": 512, "rope_theta": 1e4,
         "short_factor": FACTORS, "long_factor": [2 * f for f in FACTORS]}, 4096, 512),
    "longrope, long": (
        {"rope_type": "longrope", "factor": 8.0, "original_max_position_embeddings": 512, "rope_theta": 1e4,
         "short_factor": FACTORS, "long_factor": [2 * f for f in FACTORS]}, 4096, 600),
    "longrope, factor from the contexts": (
        {"rope_type": "longrope", "original_max_position_embeddings": 512, "rope_theta": 1e4,
         "short_factor": FACTORS, "long_factor": FACTORS}, 4096, 600),
    "longrope, a factor that is not their ratio": (
        {"rope_type": "longrope", "factor": 3.0, "original_max_position_embeddings": 512, "rope_theta": 1e4,
         "short_factor": FACTORS, "long_factor": FACTORS}, 4096, 600),
    "longrope, attention factor": (
        {"rope_type": "longrope", "factor": 8.0, "original_max_position_embeddings": 512, "rope_theta": 1e4,
         "attention_factor": 1.19, "short_factor": FACTORS, "long_factor": FACTORS}, 4096, 100),
    "llama3": (
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192, "rope_theta": 500000.0}, 131072, 300),
    "llama3, smaller": (
        {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 256, "rope_theta": 500000.0}, 131072, 300),
}  # fmt: skip


def frequencies_and_factor(cache):
    """Read back from the row of position 1: no angle there exceeds one radian."""
    cos, sin = cache[1].double().chunk(2)
    return torch.atan2(sin, cos), torch.hypot(cos, sin)


@pytest.mark.parametrize("name", CASES)
def test_against_transformers(name):
    rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    parameters, context, positions = CASES[name]
    config = LlamaConfig(
        head_dim=HEAD, hidden_size=4 * HEAD, num_attention_heads=4, max_position_embeddings=context,
        rope_parameters=dict(parameters),
    )  # fmt: skip
    inv_freq, factor = rope_utils.ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu", seq_len=positions)
    cache = edge_ops.rope_cache(positions, HEAD, scaling=parameters, max_position_embeddings=context)
    assert cache.shape == (positions, 2 * len(inv_freq)) and cache.dtype == torch.float32
    got_freq, got_factor = frequencies_and_factor(cache)
    torch.testing.assert_close(got_freq, inv_freq.double(), rtol=2e-6, atol=0)
    torch.testing.assert_close(got_factor, torch.full_like(got_factor, factor), rtol=1e-6, atol=0)
    # the rest of the cache: their inverse frequencies are float32, so the last angles are known to position * 6e-8
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * inv_freq.double()
    want = torch.cat([angles.cos(), angles.sin()], -1) * factor
    torch.testing.assert_close(cache.double(), want, rtol=0, atol=positions * 4e-7)


def test_the_model_agrees():
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = transformers.LlamaConfig(head_dim=HEAD, hidden_size=256, num_attention_heads=4, rope_parameters={
        "rope_type": "default", "rope_theta": 10000.0})  # fmt: skip
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1, 100, 256), torch.arange(100)[None])
    cache = edge_ops.rope_cache(100, HEAD, theta=10000.0)
    torch.testing.assert_close(cache[:, : HEAD // 2], cos[0, :, : HEAD // 2], rtol=0, atol=2e-5)
    torch.testing.assert_close(cache[:, HEAD // 2 :], sin[0, :, : HEAD // 2], rtol=0, atol=2e-5)


def test_default_is_exact_at_large_positions():
    # a float32 product of position and frequency is a thousandth of a radian off here
    cache = edge_ops.rope_cache(131072, 128, theta=10000.0)
    for position in (1, 30_000, 131_071):
        for pair in (0, 1, 31, 63):
            angle = position * 10000.0 ** (-2 * pair / 128)
            assert cache[position, pair].item() == pytest.approx(math.cos(angle), abs=1e-7)
            assert cache[position, 64 + pair].item() == pytest.approx(math.sin(angle), abs=1e-7)


def test_shapes_dtypes_and_device():
    assert edge_ops.rope_cache(0, 8).shape == (0, 8)
    assert edge_ops.rope_cache(5, 0).shape == (5, 0)
    assert edge_ops.rope_cache(5, 80, partial_rotary_factor=0.4).shape == (5, 32)
    for dtype in (torch.bfloat16, torch.float16):
        cache = edge_ops.rope_cache(50, 8, dtype=dtype)
        assert cache.dtype == dtype and torch.equal(cache, edge_ops.rope_cache(50, 8).to(dtype))
    assert edge_ops.rope_cache(5, 8, device="meta").device.type == "meta"


SHORT = {"rope_type": "longrope", "short_factor": [1.0] * 3, "long_factor": [1.0] * 3}
REFUSED = [
    ({"max_position": -1}, "max_position must be 0 or more, got -1"),
    ({"rotary_dim": 7}, "rotary_dim must be even"),
    ({"rotary_dim": 10, "partial_rotary_factor": 0.5}, "rotary_dim must be even"),
    ({"dtype": torch.int32}, "dtype must be floating point"),
    ({"rope_type": "spiral"}, "rope_type must be one of default, dynamic, .*'spiral'"),
    ({"rope_type": "linear"}, "scaling must have 'factor' for rope_type 'linear'"),
    ({"scaling": {"rope_type": "llama3", "factor": 8.0}}, "original_max_position_embeddings"),
    ({"scaling": {"rope_type": "dynamic", "factor": 2.0}}, "original_max_position_embeddings"),
    ({"max_position_embeddings": 8, "scaling": SHORT}, "must have 4 entries, got 3"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=str)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        edge_ops.rope_cache(**{"max_position": 4, "rotary_dim": 8, **arguments})


@pytest.mark.parametrize("interleaved", (False, True))
def test_a_rotation_by_the_cache_depends_on_the_distance_only(interleaved):
    # what rotary embeddings are for: q at p + d against k at p has the same product for every p
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(1, 1, HEAD, generator=g), torch.randn(1, 1, HEAD, generator=g)
    cache = edge_ops.rope_cache(400, HEAD)
    products = []
    for p in (0, 11, 390):
        a, b = q.clone(), k.clone()
        edge_ops.rotary_embedding(torch.tensor([p + 7]), a, None, cache, interleaved=interleaved)
        edge_ops.rotary_embedding(torch.tensor([p]), b, None, cache, interleaved=interleaved)
        products.append((a * b).sum().item())
    assert max(products) - min(products) < 1e-4
