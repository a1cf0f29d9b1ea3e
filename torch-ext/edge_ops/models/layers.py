"""Decoder layers: where the residual additions and the norms around them meet."""

from typing import Any, Tuple

from torch import Tensor, nn

from .binding import RECORD, Record, eager_only, original
from .blocks import Handoff, add_norm, hand_over, norm_over, own_output, owns_stream


class LayerRecord(Record):
    """A decoder layer's neighbours, and its parts by name.

    Attributes:
        handoff, next_norm: where the next layer's input norm (or the final norm) finds its result.
        mixer, mixer_out: the attention and, inside it, the module whose output it returns.
        mlp, mlp_out: the same for the feed-forward.
        norms: the layer's norms in the order of use.
    """

    def __init__(
        self,
        handoff: Handoff,
        next_norm: nn.Module,
        mixer: Tuple[str, str] = ("self_attn", "o_proj"),
        mlp: Tuple[str, str] = ("mlp", "down_proj"),
        norms: Tuple[str, ...] = ("input_layernorm", "post_attention_layernorm"),
    ) -> None:
        self.handoff, self.next_norm = handoff, next_norm
        self.mixer, self.mixer_out = mixer
        self.mlp, self.mlp_out = mlp
        self.norms = norms


def _parts(layer: nn.Module, names: Any) -> Any:
    modules = layer._modules  # half the price of attribute access
    return [modules[name] for name in names]


def pre_norm_layer_forward(layer: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Replaces ``h += attention(norm(h)); h += mlp(norm(h))`` (Llama and most of its descendants)."""
    if args or eager_only(layer):
        return original(layer, hidden_states, *args, **kwargs)
    record: LayerRecord = layer.__dict__[RECORD]
    input_norm, mid_norm, mixer, mlp = _parts(layer, (*record.norms, record.mixer, record.mlp))
    own_stream = owns_stream(layer, hidden_states)
    mixed, _ = mixer(hidden_states=input_norm(hidden_states), **kwargs)
    own = own_stream and own_output(mixer, mixer._modules[record.mixer_out])
    normed, stream = add_norm(mixed, hidden_states, mid_norm, own)
    return hand_over(layer, mlp(normed), stream, own_output(mlp, mlp._modules.get(record.mlp_out)))


def sandwich_layer_forward(layer: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Replaces ``h += norm(attention(norm(h))); h += norm(mlp(norm(h)))`` (Gemma 2 and 3)."""
    if args or eager_only(layer):
        return original(layer, hidden_states, *args, **kwargs)
    record: LayerRecord = layer.__dict__[RECORD]
    input_norm, after_mixer, before_mlp, after_mlp, mixer, mlp = _parts(
        layer, (*record.norms, record.mixer, record.mlp)
    )
    own_stream = owns_stream(layer, hidden_states)
    mixed, _ = mixer(hidden_states=input_norm(hidden_states), **kwargs)
    mixed = norm_over(after_mixer, mixed, own_output(mixer, mixer._modules[record.mixer_out]))
    normed, stream = add_norm(mixed, hidden_states, before_mlp, own_stream and own_output(after_mixer))
    output = norm_over(after_mlp, mlp(normed), own_output(mlp, mlp._modules.get(record.mlp_out)))
    return hand_over(layer, output, stream, own_output(after_mlp))
