"""Phi-3 and Phi-4-mini: packed query, key and value, packed gate and up, a rotation of part of each head."""

from typing import Any, Optional

from torch import Tensor

from .attention import attend, fusable, heads, rotate, unfused
from .llama import NORM
from .mlp import packed_mlp_forward
from .plan import Plan, Stack


def attention_forward(
    attention: Any,
    hidden_states: Tensor,
    position_embeddings: Any = None,
    attention_mask: Optional[Tensor] = None,
    **kwargs: Any,
) -> Any:
    """Replaces Phi3Attention.forward: query and key are rotated where they lie in the packed projection."""
    if not fusable(attention, position_embeddings):
        return unfused(attention, hidden_states, position_embeddings, attention_mask=attention_mask, **kwargs)
    packed = heads(attention.qkv_proj, hidden_states, attention.head_dim)
    shared = attention.num_key_value_heads
    query, key, value = packed.split((packed.shape[2] - 2 * shared, shared, shared), dim=2)
    rotate(attention, position_embeddings, query, key)
    window = getattr(attention.config, "sliding_window", None)
    output, weights = attend(attention, query, key, value, attention_mask, sliding_window=window, **kwargs)
    return attention.o_proj(output), weights


def patch_decoder(plan: Plan) -> None:
    """Patches a Phi3Model."""
    plan.stack(
        Stack(
            "Phi3", NORM, attention=attention_forward, mlp=packed_mlp_forward, packed=True, activation="activation_fn"
        )
    )
