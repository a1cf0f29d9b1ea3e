"""Gemma 3's text models: norms with 1 + w, norms on query and key, sandwich layers, gated GELU."""

from typing import Any, Optional

from torch import Tensor

from .attention import attend, fusable, heads, norm_and_rotate, unfused
from .layers import LayerRecord, sandwich_layer_forward
from .plan import NormStyle, Plan

NORM = NormStyle("eps", weight_offset=1.0, promotes=False)

_SANDWICH = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


def attention_forward(
    attention: Any,
    hidden_states: Tensor,
    position_embeddings: Any = None,
    attention_mask: Optional[Tensor] = None,
    **kwargs: Any,
) -> Any:
    """Replaces Gemma3Attention.forward: norm and rotation in one pass over views of the projections' outputs."""
    if not fusable(attention, position_embeddings):
        return unfused(attention, hidden_states, position_embeddings, attention_mask=attention_mask, **kwargs)
    query = heads(attention.q_proj, hidden_states, attention.head_dim)
    key = heads(attention.k_proj, hidden_states, attention.head_dim)
    value = heads(attention.v_proj, hidden_states, attention.head_dim)
    query, key = norm_and_rotate(attention, position_embeddings, query, attention.q_norm, key, attention.k_norm)
    output, weights = attend(
        attention, query, key, value, attention_mask, sliding_window=attention.sliding_window, **kwargs
    )
    return attention.o_proj(output), weights


def patch_decoder(plan: Plan) -> None:
    """Patches a Gemma3TextModel."""
    decoder: Any = plan.decoder
    next_norms = [layer.input_layernorm for layer in decoder.layers][1:] + [decoder.norm]
    rotated = True
    for layer, next_norm in zip(decoder.layers, next_norms):
        for name in _SANDWICH:
            plan.norm(getattr(layer, name), "Gemma3RMSNorm", NORM)
        for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
            plan.norm(norm, "Gemma3RMSNorm", NORM)
        rotated &= plan.attention(layer.self_attn, "Gemma3Attention", attention_forward, "fused_qk_norm_rope")
        plan.gated_mlp(layer.mlp, "Gemma3MLP")
        record = LayerRecord(layer, next_norm, norms=_SANDWICH)
        plan.layer(layer, "Gemma3DecoderLayer", sandwich_layer_forward, record)
    plan.norm(decoder.norm, "Gemma3RMSNorm", NORM)
    plan.rotary(decoder.rotary_emb, decoder.layers[0].self_attn.head_dim, rotated)
    plan.loop(decoder.norm)
