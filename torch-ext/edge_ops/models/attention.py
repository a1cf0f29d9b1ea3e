"""The pieces of an attention forward: heads, norm and rotation, cache and attention function."""

import sys
from typing import Any, Dict, Optional, Tuple

from torch import Tensor, nn

from ..ops import fused_qk_norm_rope, rotary_embedding
from .binding import RECORD, Record, eager_only, original
from .blocks import operand
from .rope import Rope


class AttentionRecord(Record):
    """An attention module's parts by name.

    Attributes:
        projections: query, key, value and output.
        norms: those of query and key heads, or None.
        options: (argument of the attention function, attribute that holds its value).
        interleaved: the rotation turns neighbours instead of halves.
        rotates: attribute that says whether this layer rotates at all, or None where all do.
    """

    def __init__(
        self,
        projections: Tuple[str, str, str, str] = ("q_proj", "k_proj", "v_proj", "o_proj"),
        norms: Optional[Tuple[str, str]] = None,
        options: Tuple[Tuple[str, str], ...] = (),
        interleaved: bool = False,
        rotates: Optional[str] = None,
    ) -> None:
        self.projections, self.norms, self.options = projections, norms, options
        self.interleaved, self.rotates = interleaved, rotates


def attention_forward(
    attention: Any,
    hidden_states: Tensor,
    position_embeddings: Any = None,
    attention_mask: Optional[Tensor] = None,
    **kwargs: Any,
) -> Any:
    """Replaces an attention of separate projections, with norms on query and key or without."""
    if not fusable(attention, position_embeddings):
        return unfused(attention, hidden_states, position_embeddings, attention_mask=attention_mask, **kwargs)
    record: AttentionRecord = attention.__dict__[RECORD]
    modules = attention.__dict__["_modules"]
    size = attention.head_dim
    query, key, value = (heads(modules[name], hidden_states, size) for name in record.projections[:3])
    if record.norms is not None:
        q_norm, k_norm = (modules[name] for name in record.norms)
        query, key = norm_and_rotate(attention, position_embeddings, query, q_norm, key, k_norm)
    elif record.rotates is None or getattr(attention, record.rotates):
        rotate(attention, position_embeddings, query, key)
    for argument, attribute in record.options:
        kwargs[argument] = getattr(attention, attribute)
    output, weights = attend(attention, query, key, value, attention_mask, **kwargs)
    return modules[record.projections[3]](output), weights


def fusable(attention: nn.Module, position_embeddings: Any) -> bool:
    """Whether a call runs on the operators: the rotary module handed out a `Rope`, and no gradient is wanted."""
    return isinstance(position_embeddings, Rope) and not eager_only(attention)


def unfused(attention: nn.Module, hidden_states: Tensor, position_embeddings: Any, **kwargs: Any) -> Any:
    """The attention's own forward, with the (cos, sin) that it expects."""
    if isinstance(position_embeddings, Rope):
        position_embeddings = position_embeddings.cos_sin(hidden_states.dtype)
    return original(attention, hidden_states, position_embeddings=position_embeddings, **kwargs)


def heads(projection: nn.Module, hidden_states: Tensor, head_size: int) -> Tensor:
    """A projection's output as [batch, seq, heads, head_size], free to be overwritten."""
    return _unseen(projection, projection(hidden_states)).view(*hidden_states.shape[:-1], -1, head_size)


def _unseen(module: nn.Module, output: Tensor) -> Tensor:
    """A module's output, or a copy where a hook may keep it."""
    return output.clone() if module.__dict__["_forward_hooks"] else output


def rotate(attention: nn.Module, rope: Rope, query: Tensor, key: Optional[Tensor]) -> None:
    """Rotates query and key [batch, seq, heads, head_size] in place."""
    interleaved: bool = attention.__dict__[RECORD].interleaved
    rotary_embedding(rope.positions, query, key, rope.cache, interleaved=interleaved)


def norm_and_rotate(
    attention: nn.Module,
    rope: Rope,
    query: Tensor,
    q_norm: nn.Module,
    key: Optional[Tensor] = None,
    k_norm: Optional[nn.Module] = None,
) -> Tuple[Any, Any]:
    """Normalizes and rotates each head of query and key [batch, seq, heads, head_size], in place where possible.

    Both norms are of one family: they differ in their weights only.
    """
    q_found = operand(q_norm)
    k_found = q_found if k_norm is None else operand(k_norm)
    if q_found is not None and k_found is not None and (q_found.dtype is None or q_found.dtype is query.dtype):
        try:
            return fused_qk_norm_rope(
                rope.positions,
                query,
                key,
                q_found.weight,
                k_found.weight,
                rope.cache,
                q_found.eps,
                weight_offset=q_found.weight_offset,
                interleaved=attention.__dict__[RECORD].interleaved,
            )
        except TypeError:
            pass  # a weight has another dtype than the heads
    query = _unseen(q_norm, q_norm(query))
    if key is not None and k_norm is not None:
        key = _unseen(k_norm, k_norm(key))
    rotate(attention, rope, query, key)
    return query, key


def attend(
    attention: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Optional[Tensor], **kwargs: Any
) -> Tuple[Tensor, Optional[Tensor]]:
    """Cache update and the model's attention function on heads [batch, seq, heads, head_size].

    Args:
        kwargs: the rest of the forward's arguments, among them the cache: ``past_key_values``, or ``cache`` as
            newer transformers call it; and what the family's own forward adds for the attention function.

    Returns:
        The output [batch, seq, heads * head_size], before the output projection, and the attention weights.
    """
    cache = take_cache(kwargs)
    key, value = key.transpose(1, 2), value.transpose(1, 2)
    if cache is not None:
        key, value = cache.update(key, value, attention.layer_idx)
    return attend_to(attention, query, key, value, attention_mask, **kwargs)


def take_cache(kwargs: Dict[str, Any]) -> Any:
    """Takes the cache out of an attention forward's arguments."""
    caches = kwargs.pop("past_key_values", None), kwargs.pop("cache", None)
    return caches[1] if caches[0] is None else caches[0]


def attend_to(
    attention: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Optional[Tensor], **kwargs: Any
) -> Tuple[Tensor, Optional[Tensor]]:
    """`attend` for key and value [batch, heads, length, head_size] that come from the cache."""
    output, weights = _attention_function(attention)(
        attention, query.transpose(1, 2), key, value, attention_mask, dropout=0.0, scaling=attention.scaling, **kwargs
    )
    return output.reshape(*query.shape[:2], -1).contiguous(), weights


def _attention_function(attention: Any) -> Any:
    """What the attention's own forward would call: its module's eager function, or the registered one."""
    modeling = sys.modules[type(attention).__module__]
    return modeling.ALL_ATTENTION_FUNCTIONS.get_interface(
        attention.config._attn_implementation, modeling.eager_attention_forward
    )
