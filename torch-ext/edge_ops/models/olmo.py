"""OLMo 2 and 3: norms after attention and MLP, norms over the full width of query and key before the heads."""

from typing import Any, Optional

from torch import Tensor

from .attention import attend, fusable, rotate, unfused
from .blocks import norm_over, operand
from .layers import NO_NORM, post_norm_layer_forward
from .plan import NormStyle, Plan, Stack


def attention_forward(
    attention: Any,
    hidden_states: Tensor,
    position_embeddings: Any = None,
    attention_mask: Optional[Tensor] = None,
    **kwargs: Any,
) -> Any:
    """Replaces the attention of both: one norm over all heads of a token, then the rotation of each."""
    if not fusable(attention, position_embeddings):
        return unfused(attention, hidden_states, position_embeddings, attention_mask=attention_mask, **kwargs)
    shape = (*hidden_states.shape[:-1], -1, attention.head_dim)
    query = _normed(attention.q_norm, attention.q_proj, hidden_states).view(shape)
    key = _normed(attention.k_norm, attention.k_proj, hidden_states).view(shape)
    value = attention.v_proj(hidden_states).view(shape)
    rotate(attention, position_embeddings, query, key)
    if hasattr(attention, "sliding_window"):  # OLMo 3
        kwargs["sliding_window"] = attention.sliding_window
    output, weights = attend(attention, query, key, value, attention_mask, **kwargs)
    return attention.o_proj(output), weights


def _normed(norm: Any, projection: Any, hidden_states: Tensor) -> Tensor:
    """A normalized projection that is free to be overwritten."""
    found = None if projection._forward_hooks else operand(norm)
    normed = norm_over(norm, found, projection(hidden_states))
    return normed.clone() if norm._forward_hooks else normed


_OLMO2 = Stack(
    "Olmo2",
    NormStyle("variance_epsilon", promotes=False),
    attention=attention_forward,
    attention_norms=("q_norm", "k_norm"),
    attention_operator="rms_norm, rotary_embedding",
    layer=post_norm_layer_forward,
    layer_record={"norms": (NO_NORM, "post_attention_layernorm", "post_feedforward_layernorm")},
    layer_operator="rms_norm",
    first_norm="",
)

STACKS = {"Olmo2Model": _OLMO2, "Olmo3Model": _OLMO2._replace(prefix="Olmo3")}


def patch_decoder(plan: Plan) -> None:
    """Patches one of the decoders in `STACKS`."""
    plan.stack(STACKS[type(plan.decoder).__name__])
