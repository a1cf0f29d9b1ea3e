"""Llama and the models that share its layer: pre-norm, rotation of query and key, gated SiLU."""

from typing import Any, Optional

from torch import Tensor

from .attention import attend, fusable, heads, rotate, unfused
from .layers import LayerRecord, pre_norm_layer_forward
from .plan import NormStyle, Plan

NORM = NormStyle("variance_epsilon")


def attention_forward(
    attention: Any,
    hidden_states: Tensor,
    position_embeddings: Any = None,
    attention_mask: Optional[Tensor] = None,
    **kwargs: Any,
) -> Any:
    """Replaces LlamaAttention.forward: rotation in place on views of the projections' outputs."""
    if not fusable(attention, position_embeddings):
        return unfused(attention, hidden_states, position_embeddings, attention_mask=attention_mask, **kwargs)
    query = heads(attention.q_proj, hidden_states, attention.head_dim)
    key = heads(attention.k_proj, hidden_states, attention.head_dim)
    value = heads(attention.v_proj, hidden_states, attention.head_dim)
    rotate(attention, position_embeddings, query, key)
    output, weights = attend(attention, query, key, value, attention_mask, **kwargs)
    return attention.o_proj(output), weights


def patch_decoder(plan: Plan) -> None:
    """Patches a LlamaModel."""
    decoder: Any = plan.decoder
    next_norms = [layer.input_layernorm for layer in decoder.layers][1:] + [decoder.norm]
    rotated = True
    for layer, next_norm in zip(decoder.layers, next_norms):
        plan.norm(layer.input_layernorm, "LlamaRMSNorm", NORM)
        rotated &= plan.attention(layer.self_attn, "LlamaAttention", attention_forward, "rotary_embedding")
        plan.norm(layer.post_attention_layernorm, "LlamaRMSNorm", NORM)
        plan.gated_mlp(layer.mlp, "LlamaMLP")
        plan.layer(layer, "LlamaDecoderLayer", pre_norm_layer_forward, LayerRecord(layer, next_norm))
    plan.norm(decoder.norm, "LlamaRMSNorm", NORM)
    plan.rotary(decoder.rotary_emb, decoder.layers[0].self_attn.head_dim, rotated)
    plan.loop(decoder.norm)
