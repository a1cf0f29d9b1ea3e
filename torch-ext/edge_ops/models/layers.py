"""Decoder layers: where the residual additions and the norms around them meet.

An in-place operator may overwrite a tensor only if nobody else can hold it: a module's output where no hook can have
kept it, the residual stream where the previous layer has left it in the decoder's own loop.
"""

from typing import Any, Callable, Dict, Optional, Tuple

from torch import Tensor, nn

from .binding import RECORD, Record, eager_only, original
from .blocks import LOOP, Loop, add_and_leave, add_norm, norm_over


class LayerRecord(Record):
    """A decoder layer's parts by name, and the norm that follows it.

    Attributes:
        next_norm: the next layer's input norm, or the final norm.
        mixer, mixer_out: the attention and, inside it, the module whose output it returns.
        mlp, mlp_out: the same for the feed-forward.
        norms: the layer's norms in the order of use.
        scale: attribute that multiplies what is added to the stream, or None.
        adapt: turns the layer's arguments into those of its mixer, or None where they are the same.
    """

    def __init__(
        self,
        layer: nn.Module,
        next_norm: Optional[nn.Module],
        mixer: Tuple[str, str],
        mlp: Tuple[str, str],
        norms: Tuple[str, ...],
        scale: Optional[str] = None,
        adapt: Optional[Callable[[Dict[str, Any]], Dict[str, Any]]] = None,
    ) -> None:
        self.next_norm, self.scale, self.adapt = next_norm, scale, adapt
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
        return [mixer, mlp, *(module for module in inner if module is not None), *(modules[n] for n in self.norms)]

    def private(self, layer: nn.Module) -> bool:
        """Whether no hook sees the layer's output or what it is made from."""
        return not any(self._hooks) and self._producers(layer) == self._watched


def start(layer: nn.Module, hidden_states: Tensor, loop: Optional[Loop]) -> Tuple[Any, Optional[Loop], bool, Tensor]:
    """-> (modules, loop or None, whether the layer may overwrite its input, the input's norm)."""
    record: LayerRecord = layer.__dict__[RECORD]
    modules = layer.__dict__["_modules"]
    if loop is not None and not record.private(layer):
        loop = None
    own = loop is not None and loop.stream is hidden_states
    norm = modules[record.norms[0]]
    normed = loop.normed if own and loop is not None and loop.norm is norm else None
    return modules, loop, own, norm(hidden_states) if normed is None else normed


def _mix(record: LayerRecord, modules: Any, normed: Tensor, kwargs: Dict[str, Any]) -> Tensor:
    """The attention's output, or that of what a hybrid layer has in its place."""
    mixed = modules[record.mixer](hidden_states=normed, **(kwargs if record.adapt is None else record.adapt(kwargs)))
    return mixed[0] if isinstance(mixed, tuple) else mixed


def pre_norm_layer_forward(layer: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Replaces ``h += attention(norm(h)); h += mlp(norm(h))`` (Llama and most of its descendants)."""
    loop = kwargs.pop(LOOP, None)
    if args or eager_only(layer):
        return original(layer, hidden_states, *args, **kwargs)
    record: LayerRecord = layer.__dict__[RECORD]
    modules, loop, own, normed = start(layer, hidden_states, loop)
    mixed = _mix(record, modules, normed, kwargs)
    if record.scale is not None:
        mixed = mixed * getattr(layer, record.scale)
    normed, stream = add_norm(mixed, hidden_states, modules[record.norms[1]], own)
    output = modules[record.mlp](normed)
    if isinstance(output, tuple):  # some expert blocks return their routing too
        output = output[0]
    if record.scale is not None:
        output = output * getattr(layer, record.scale)
    return add_and_leave(output, stream, record.next_norm, loop)


def sandwich_layer_forward(layer: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Replaces ``h += norm(attention(norm(h))); h += norm(mlp(norm(h)))`` (Gemma 2 and 3, GLM-4)."""
    loop = kwargs.pop(LOOP, None)
    if args or eager_only(layer):
        return original(layer, hidden_states, *args, **kwargs)
    record: LayerRecord = layer.__dict__[RECORD]
    _, after_mixer, before_mlp, after_mlp = record.norms
    modules, loop, own, normed = start(layer, hidden_states, loop)
    mixed = norm_over(modules[after_mixer], _mix(record, modules, normed, kwargs), loop is not None)
    normed, stream = add_norm(mixed, hidden_states, modules[before_mlp], own)
    output = norm_over(modules[after_mlp], modules[record.mlp](normed), loop is not None)
    return add_and_leave(output, stream, record.next_norm, loop)


def post_norm_layer_forward(layer: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Replaces ``h += norm(attention(h)); h += norm(mlp(h))`` (OLMo 2 and 3): no norm follows an addition."""
    loop = kwargs.pop(LOOP, None)
    if args or eager_only(layer):
        return original(layer, hidden_states, *args, **kwargs)
    record: LayerRecord = layer.__dict__[RECORD]
    modules = layer.__dict__["_modules"]
    if loop is not None and not record.private(layer):
        loop = None
    after_mixer, after_mlp = record.norms
    mixed = norm_over(modules[after_mixer], _mix(record, modules, hidden_states, kwargs), loop is not None)
    stream = hidden_states + mixed
    output = norm_over(modules[after_mlp], modules[record.mlp](stream), loop is not None)
    return add_and_leave(output, stream, record.next_norm, loop)
