"""Qwen3, the attention of Qwen3-MoE, and the full-attention layers of Qwen3.5 and 3.6."""

from typing import Any, Dict, Optional

import torch
from torch import Tensor

from .attention import attend, fusable, heads, norm_and_rotate, unfused
from .llama import NORM
from .plan import NormStyle, Plan, Stack

_QWEN3 = Stack(
    "Qwen3",
    NORM,
    attention_record={"norms": ("q_norm", "k_norm"), "options": (("sliding_window", "sliding_window"),)},
    attention_norms=("q_norm", "k_norm"),
    attention_operator="fused_qk_norm_rope",
)


def gated_attention_forward(
    attention: Any,
    hidden_states: Tensor,
    position_embeddings: Any = None,
    attention_mask: Optional[Tensor] = None,
    **kwargs: Any,
) -> Any:
    """Replaces Qwen3_5Attention.forward: each query head lies beside the gate of its output."""
    if not fusable(attention, position_embeddings):
        return unfused(attention, hidden_states, position_embeddings, attention_mask=attention_mask, **kwargs)
    size = attention.head_dim
    query, gate = heads(attention.q_proj, hidden_states, 2 * size).chunk(2, dim=-1)
    key = heads(attention.k_proj, hidden_states, size)
    value = heads(attention.v_proj, hidden_states, size)
    gate = gate.reshape(*hidden_states.shape[:-1], -1)
    query, key = norm_and_rotate(attention, position_embeddings, query, attention.q_norm, key, attention.k_norm)
    output, weights = attend(attention, query, key, value, attention_mask, **kwargs)
    return attention.o_proj(output * torch.sigmoid(gate)), weights


def linear_attention_arguments(kwargs: Dict[str, Any]) -> Dict[str, Any]:
    """What Qwen3_5DecoderLayer passes on to a linear attention."""
    kwargs = {name: value for name, value in kwargs.items() if name not in ("position_embeddings", "position_ids")}
    return {("cache_params" if name == "past_key_values" else name): value for name, value in kwargs.items()}


_QWEN3_5 = Stack(
    "Qwen3_5",
    NormStyle("eps", weight_offset=1.0, promotes=False),
    attention=gated_attention_forward,
    attention_norms=("q_norm", "k_norm"),
    attention_operator="fused_qk_norm_rope",
    other_mixers=({"mixer": ("linear_attn", "out_proj"), "adapt": linear_attention_arguments},),
)

STACKS = {
    "Qwen3Model": _QWEN3,
    "Qwen3MoeModel": _QWEN3._replace(prefix="Qwen3Moe"),
    "Qwen3_5TextModel": _QWEN3_5,
    "Qwen3_5MoeTextModel": _QWEN3_5._replace(prefix="Qwen3_5Moe"),
}


def patch_decoder(plan: Plan) -> None:
    """Patches one of the decoders in `STACKS`."""
    plan.stack(STACKS[type(plan.decoder).__name__])
