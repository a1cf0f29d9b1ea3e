"""Decoder layers: where the residual additions and the norms around them meet.

An in-place operator may overwrite a tensor only if nobody else can hold it: a module's output where no hook can have
kept it, the residual stream where the previous layer has left it in the decoder's own loop.
"""

from typing import Any, Tuple

from torch import Tensor, nn

from .binding import RECORD, Record, eager_only, original
from .blocks import LOOP, add_and_leave, add_norm, norm_over


class LayerRecord(Record):
    """A decoder layer's parts by name, and the norm that follows it.

    Attributes:
        next_norm: the next layer's input norm, or the final norm.
        mixer, mixer_out: the attention and, inside it, the module whose output it returns.
        mlp, mlp_out: the same for the feed-forward.
        norms: the layer's norms in the order of use.
    """

    def __init__(
        self,
        layer: nn.Module,
        next_norm: nn.Module,
        mixer: Tuple[str, str] = ("self_attn", "o_proj"),
        mlp: Tuple[str, str] = ("mlp", "down_proj"),
        norms: Tuple[str, ...] = ("input_layernorm", "post_attention_layernorm"),
    ) -> None:
        self.next_norm = next_norm
        self.mixer, self.mixer_out = mixer
        self.mlp, self.mlp_out = mlp
        self.norms = norms
        watched = [layer, *self._producers(layer)]
        self._watched = watched[1:]
        self._hooks = [layer._forward_pre_hooks, *(module._forward_hooks for module in watched)]

    def _producers(self, layer: nn.Module) -> Any:
        """The modules whose outputs the layer overwrites."""
        modules = layer.__dict__["_modules"]
        mixer, mlp = modules[self.mixer], modules[self.mlp]
        inner = mixer._modules.get(self.mixer_out), mlp._modules.get(self.mlp_out)
        return [mixer, mlp, *(module for module in inner if module is not None), *(modules[n] for n in self.norms[1:])]

    def private(self, layer: nn.Module) -> bool:
        """Whether no hook sees the layer's output or what it is made from."""
        return not any(self._hooks) and self._producers(layer) == self._watched


def pre_norm_layer_forward(layer: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Replaces ``h += attention(norm(h)); h += mlp(norm(h))`` (Llama and most of its descendants)."""
    loop = kwargs.pop(LOOP, None)
    if args or eager_only(layer):
        return original(layer, hidden_states, *args, **kwargs)
    record: LayerRecord = layer.__dict__[RECORD]
    modules = layer.__dict__["_modules"]
    input_norm, mid_norm = record.norms
    if loop is not None and not record.private(layer):
        loop = None
    own_stream = loop is not None and loop.stream is hidden_states
    normed = loop.normed if own_stream and loop.norm is modules[input_norm] else modules[input_norm](hidden_states)
    mixed, _ = modules[record.mixer](hidden_states=normed, **kwargs)
    normed, stream = add_norm(mixed, hidden_states, modules[mid_norm], own_stream)
    return add_and_leave(modules[record.mlp](normed), stream, record.next_norm, loop)


def sandwich_layer_forward(layer: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Replaces ``h += norm(attention(norm(h))); h += norm(mlp(norm(h)))`` (Gemma 2 and 3)."""
    loop = kwargs.pop(LOOP, None)
    if args or eager_only(layer):
        return original(layer, hidden_states, *args, **kwargs)
    record: LayerRecord = layer.__dict__[RECORD]
    modules = layer.__dict__["_modules"]
    input_norm, after_mixer, before_mlp, after_mlp = record.norms
    if loop is not None and not record.private(layer):
        loop = None
    own_stream = loop is not None and loop.stream is hidden_states
    normed = loop.normed if own_stream and loop.norm is modules[input_norm] else modules[input_norm](hidden_states)
    mixed, _ = modules[record.mixer](hidden_states=normed, **kwargs)
    mixed = norm_over(modules[after_mixer], mixed, loop is not None)
    normed, stream = add_norm(mixed, hidden_states, modules[before_mlp], own_stream)
    output = norm_over(modules[after_mlp], modules[record.mlp](normed), loop is not None)
    return add_and_leave(output, stream, record.next_norm, loop)
