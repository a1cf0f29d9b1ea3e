"""Gemma 3n and the text models of Gemma 4: weights without offset, normalized values, layers that share keys."""

from typing import Any, Dict, Optional

import torch
from torch import Tensor

from .attention import attend_to, fusable, heads, norm_and_rotate, take_cache, unfused
from .binding import RECORD, eager_only, original
from .blocks import add_norm, norm_over, operand
from .layers import LOOP, enter, mix
from .mlp import PRODUCTS, feed_forward, gated_mlp_forward
from .plan import NormStyle, Plan, Stack
from .rope import Rope


def attention_forward(
    attention: Any,
    hidden_states: Tensor,
    position_embeddings: Any = None,
    attention_mask: Optional[Tensor] = None,
    shared_kv_states: Any = None,
    **kwargs: Any,
) -> Any:
    """Replaces the attention of both: the later layers use keys and values that an earlier one has left."""
    if not fusable(attention, position_embeddings):
        arguments = dict(kwargs, attention_mask=attention_mask, shared_kv_states=shared_kv_states)
        return unfused(attention, hidden_states, position_embeddings, **arguments)
    size = attention.head_dim
    cache = take_cache(kwargs)
    query = heads(attention.q_proj, hidden_states, size)
    if attention.is_kv_shared_layer:
        query, _ = norm_and_rotate(attention, position_embeddings, query, attention.q_norm)
        # Gemma 3n files them under the layer that made them, Gemma 4 under its type.
        source = getattr(attention, "kv_shared_layer_index", attention.layer_type)
        key, value = (states.to(query.device) for states in shared_kv_states[source])
    else:
        key = heads(attention.k_proj, hidden_states, size)
        projection = attention.v_proj
        if projection is None:  # the values are the keys before their norm
            value = attention.v_norm(key)
        else:
            value = heads(projection, hidden_states, size)
            value = norm_over(attention.v_norm, operand(attention.v_norm), value)
        query, key = norm_and_rotate(attention, position_embeddings, query, attention.q_norm, key, attention.k_norm)
        key, value = key.transpose(1, 2), value.transpose(1, 2)
        if cache is not None:
            key, value = cache.update(key, value, attention.layer_idx)
    if attention.store_full_length_kv:
        by_layer = hasattr(attention, "kv_shared_layer_index")
        shared_kv_states[attention.layer_idx if by_layer else attention.layer_type] = key, value
    output, weights = attend_to(
        attention, query, key, value, attention_mask, sliding_window=attention.sliding_window, **kwargs
    )
    return attention.o_proj(output), weights


def sparse_mlp_forward(mlp: Any, x: Tensor) -> Tensor:
    """Replaces Gemma3nTextMLP.forward: some layers keep only the largest gates."""
    if eager_only(mlp):
        return original(mlp, x)
    gate = mlp.gate_proj(x)
    if mlp.activation_sparsity > 0.0:
        gate = mlp._gaussian_topk(gate)
    both = torch.cat((gate, mlp.up_proj(x)), dim=-1)
    return mlp.down_proj(PRODUCTS[mlp.__dict__[RECORD].operator](both))


def gemma4_layer_forward(
    layer: Any, hidden_states: Tensor, per_layer_input: Optional[Tensor] = None, *args: Any, **kwargs: Any
) -> Tensor:
    """Replaces Gemma4TextDecoderLayer.forward without experts: a sandwich, per-layer inputs, a last factor."""
    loop: Any = kwargs.pop(LOOP, None)
    entered = enter(layer, hidden_states, args, loop)
    if entered is None:
        return original(layer, hidden_states, per_layer_input, *args, **kwargs)
    step, normed = entered
    after_mixer, before_mlp, after_mlp = step.norms
    mixed = norm_over(*after_mixer, mix(layer, step, normed, kwargs))
    normed, stream = add_norm(before_mlp, mixed, hidden_states, loop.stream is hidden_states)
    stream = stream + norm_over(*after_mlp, feed_forward(step.mlp, step.product, normed, loop))
    if layer.hidden_size_per_layer_input:
        gated = layer.act_fn(layer.per_layer_input_gate(stream)) * per_layer_input
        stream = stream + layer.post_per_layer_input_norm(layer.per_layer_projection(gated))
    stream *= layer.layer_scalar
    # Nobody else holds the stream, but the factor stands between the addition and the next norm.
    loop.norm, loop.stream, loop.normed = None, stream, None
    return stream


def altup(layer: Any) -> Optional[str]:
    """Why a Gemma 3n layer keeps its forward."""
    return "AltUp's predictions and corrections stand between its additions and norms"


def experts(layer: Any) -> Optional[str]:
    """Why a Gemma 4 layer keeps its forward."""
    return "its experts read the stream between the additions" if layer.enable_moe_block else None


_GEMMA3N = Stack(
    "Gemma3n",
    NormStyle("eps", promotes=False),
    layer_prefix="Gemma3nText",
    attention=attention_forward,
    attention_norms=("q_norm", "k_norm", "v_norm"),
    attention_operator="fused_qk_norm_rope",
    why_not=altup,
    layer_record={
        "norms": (
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        )
    },
    mlp=sparse_mlp_forward,
    mergeable=False,
    first_norm="",
    extra_norms=("post_per_layer_input_norm",),
)

STACKS = {
    "Gemma3nTextModel": _GEMMA3N,
    "Gemma4TextModel": _GEMMA3N._replace(
        prefix="Gemma4",
        layer_prefix="Gemma4Text",
        why_not=experts,
        layer=gemma4_layer_forward,
        mlp=gated_mlp_forward,
        mergeable=True,
        extra_norms=(
            "post_per_layer_input_norm",
            "post_feedforward_layernorm_1",
            "post_feedforward_layernorm_2",
            "pre_feedforward_layernorm_2",
        ),
    ),
}


# A method of Gemma 4's decoder from transformers 5.24 on: layers that share keys run on the last tokens alone.
_SLICE = "_maybe_slice_kv_shared_inputs"


def slice_shared_inputs(
    decoder: Any,
    hidden_states: Tensor,
    per_layer_inputs: Any,
    position_embeddings: Dict[str, Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """The decoder's own method, which cuts cos and sin [batch, seq, width], on the positions of a `Rope`."""
    ropes = {kind: value for kind, value in position_embeddings.items() if isinstance(value, Rope)}
    columns = {kind: (rope.positions[..., None],) * 2 for kind, rope in ropes.items()}
    method = getattr(type(decoder), _SLICE)
    hidden_states, per_layer_inputs, cut, masks = method(
        decoder, hidden_states, per_layer_inputs, {**position_embeddings, **columns}, *args, **kwargs
    )
    cut.update({kind: Rope(rope.cache, cut[kind][0][..., 0]) for kind, rope in ropes.items()})
    return hidden_states, per_layer_inputs, cut, masks


def patch_decoder(plan: Plan) -> None:
    """Patches one of the decoders in `STACKS`."""
    plan.stack(STACKS[type(plan.decoder).__name__])
    if hasattr(type(plan.decoder), _SLICE):
        plan.override(_SLICE, slice_shared_inputs)
