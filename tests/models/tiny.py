"""Tiny random models of every family: small enough for a second, with every feature that a patch must handle."""

from __future__ import annotations

import torch
import transformers

from support.values import DEVICE

VOCABULARY = 97

_COMMON = dict(
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=512,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
    tie_word_embeddings=False,
)
_SLIDING = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
_HYBRID = ["linear_attention", "full_attention", "linear_attention", "full_attention"]
_LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=500000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
_LINEAR = dict(linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4)
_EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
_QWEN3_5 = dict(
    layer_types=_HYBRID,
    head_dim=32,
    rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25, mrope_section=[2, 1, 1]),
    **_LINEAR,
)


def _longrope(rotary: int) -> dict:
    return dict(
        rope_type="longrope",
        rope_theta=10000.0,
        original_max_position_embeddings=64,
        short_factor=[1.0 + 0.05 * i for i in range(rotary // 2)],
        long_factor=[2.0 + 0.1 * i for i in range(rotary // 2)],
        partial_rotary_factor=0.75,
    )


# Name -> (configuration class, model class, arguments beside or instead of the common ones).
FAMILIES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "llama3.2": ("LlamaConfig", "LlamaForCausalLM", dict(rope_parameters=_LLAMA3, tie_word_embeddings=True)),
    "llama-bias": ("LlamaConfig", "LlamaForCausalLM", dict(attention_bias=True, mlp_bias=True)),
    "llama-dynamic": (
        "LlamaConfig",
        "LlamaForCausalLM",
        dict(rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0), max_position_embeddings=64),
    ),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM", dict(no_rope_layer_interval=4)),
    "qwen2": (
        "Qwen2Config",
        "Qwen2ForCausalLM",
        dict(layer_types=_SLIDING, use_sliding_window=True, sliding_window=16),
    ),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {}),
    "qwen3-moe": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", dict(mlp_only_layers=[1], **_EXPERTS)),
    "qwen3.5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", _QWEN3_5),
    "qwen3.5-moe": (
        "Qwen3_5MoeTextConfig",
        "Qwen3_5MoeForCausalLM",
        dict(shared_expert_intermediate_size=32, **_EXPERTS, **_QWEN3_5),
    ),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        dict(sliding_window=16, query_pre_attn_scalar=16, attn_implementation="eager"),
    ),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        dict(layer_types=_SLIDING, sliding_window=16, query_pre_attn_scalar=16),
    ),
    "gemma3n": (
        "Gemma3nTextConfig",
        "Gemma3nForCausalLM",
        dict(
            layer_types=_SLIDING,
            sliding_window=16,
            num_kv_shared_layers=2,
            intermediate_size=[96, 96, 96, 96],
            activation_sparsity_pattern=[0.5, 0.5, 0.0, 0.0],
            vocab_size_per_layer_input=VOCABULARY,
            hidden_size_per_layer_input=16,
            laurel_rank=8,
        ),
    ),
    "gemma4": (
        "Gemma4TextConfig",
        "Gemma4ForCausalLM",
        dict(
            layer_types=_SLIDING,
            sliding_window=16,
            num_kv_shared_layers=2,
            global_head_dim=32,
            vocab_size_per_layer_input=VOCABULARY,
            hidden_size_per_layer_input=16,
        ),
    ),
    "gemma4-moe": (
        "Gemma4TextConfig",
        "Gemma4ForCausalLM",
        dict(
            layer_types=_SLIDING,
            sliding_window=16,
            num_kv_shared_layers=0,
            global_head_dim=32,
            num_global_key_value_heads=1,
            attention_k_eq_v=True,
            hidden_size_per_layer_input=0,
            enable_moe_block=True,
            num_experts=4,
            top_k_experts=2,
            moe_intermediate_size=32,
        ),
    ),
    "phi4-mini": (
        "Phi3Config",
        "Phi3ForCausalLM",
        dict(
            original_max_position_embeddings=64,
            rope_parameters=_longrope(12),
            sliding_window=None,
        ),
    ),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", dict(sliding_window=16)),
    "lfm2": (
        "Lfm2Config",
        "Lfm2ForCausalLM",
        dict(
            layer_types=["conv", "full_attention", "conv", "full_attention"],
            block_auto_adjust_ff_dim=False,
            conv_L_cache=3,
        ),
    ),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", {}),
    "olmo3": ("Olmo3Config", "Olmo3ForCausalLM", dict(layer_types=_SLIDING, sliding_window=16)),
    "glm4": ("Glm4Config", "Glm4ForCausalLM", dict(head_dim=32)),
    "granite": (
        "GraniteConfig",
        "GraniteForCausalLM",
        dict(residual_multiplier=0.22, embedding_multiplier=12.0, attention_multiplier=0.1, logits_scaling=4.0),
    ),
}


def tiny(name: str, dtype: torch.dtype = torch.float32, **overrides) -> torch.nn.Module:
    """A model of a family in eval mode, with random weights whose norms differ from one."""
    config_class, model_class, arguments = FAMILIES[name]
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**{**_COMMON, **arguments, **overrides})
    model = getattr(transformers, model_class)(config)
    with torch.no_grad():
        for module in model.modules():
            # Flat norms would hide a wrong convention, and small projections a wrong rotation.
            for parameter in module.parameters(recurse=False):
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) * 0.3)
                elif isinstance(module, torch.nn.Linear):
                    parameter.mul_(3.0)
    return model.to(dtype).to(DEVICE).eval()


def prompt(batch: int = 2, length: int = 20) -> torch.Tensor:
    """Token ids [batch, length], none of them padding."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(2, VOCABULARY, (batch, length), generator=generator).to(DEVICE)
