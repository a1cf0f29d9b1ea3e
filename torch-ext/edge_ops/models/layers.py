"""Decoder layers: where the residual additions and the norms around them meet.

An in-place operator may overwrite a tensor only if nobody else can hold it: a module's output where no hook can have
kept it, the residual stream where the previous layer has left it in the decoder's own loop. Both are asked once a
run, for all layers, and not in the layers: code that runs between two projections is cold and slow.
"""

from typing import Any, Callable, Dict, List, Optional, Tuple

from torch import Tensor, nn

from .binding import RECORD, Record, eager_only, original
from .blocks import Loop, NormRecord, Operand, add_norm, norm_over, operand

LOOP = "edge_ops_loop"  # the argument that carries a `Loop` to the layers

NO_NORM = ""  # in `LayerRecord.norms`, for a layer whose attention reads the stream itself

Operands = Tuple[Optional[Operand], ...]


class LayerRecord(Record):
    """A decoder layer's parts by name, and the norm that follows it.

    Attributes:
        index: the layer's place in its decoder.
        next_norm: the next layer's input norm, or the final norm.
        mixer, mixer_out: the attention and, inside it, the module whose output it returns.
        mlp, mlp_out: the same for the feed-forward.
        norms: the layer's norms in the order of use, that of its input first.
        scale: attribute that multiplies what is added to the stream, or None.
        adapt: turns the layer's arguments into those of its mixer, or None where they are the same.
    """

    def __init__(
        self,
        index: int,
        next_norm: Optional[nn.Module],
        mixer: Tuple[str, str],
        mlp: Tuple[str, str],
        norms: Tuple[str, ...],
        scale: Optional[str] = None,
        adapt: Optional[Callable[[Dict[str, Any]], Dict[str, Any]]] = None,
    ) -> None:
        self.index, self.next_norm, self.scale, self.adapt = index, next_norm, scale, adapt
        self.mixer, self.mixer_out = mixer
        self.mlp, self.mlp_out = mlp
        self.norms = norms

    def operands(self, layer: nn.Module) -> Optional[Operands]:
        """Those of the norms after the first and of the next norm; None where hooks see what would be overwritten."""
        modules: Dict[str, Any] = layer.__dict__["_modules"]
        mixer, mlp = modules[self.mixer], modules[self.mlp]
        if layer._forward_hooks or layer._forward_pre_hooks or _watched(mixer, self.mixer_out):
            return None
        if _watched(mlp, self.mlp_out):
            return None
        norms = [modules[name] for name in self.norms[1:]]
        if self.next_norm is None:
            return (*map(operand, norms), None)
        return (*map(operand, norms), operand(self.next_norm))


def _watched(module: Any, inner: str) -> bool:
    """Whether a hook sees the output of a module, or of that inside it which makes the output."""
    maker = module._modules.get(inner)
    return bool(module._forward_hooks or (maker is not None and maker._forward_hooks))


# --- the decoder's loop --------------------------------------------------------------


class DecoderRecord(Record):
    """A decoder's layers and final norm; no layers where some of them do not take a `Loop`."""

    def __init__(self, layers: List[nn.Module], norm: nn.Module) -> None:
        self.layers, self.norm = layers, norm


def decoder_forward(decoder: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Replaces a decoder's forward: its own code, with a `Loop` for its layers.

    Its code keeps no stream that a layer returns, except through hooks, which the layers' records see. Layers that
    are called in any other way get no `Loop` and overwrite nothing.
    """
    record: DecoderRecord = decoder.__dict__[RECORD]
    watched = nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks
    if eager_only(decoder) or watched or not record.layers:
        return original(decoder, *args, **kwargs)
    loop = Loop(record.layers)
    final: Optional[NormRecord] = record.norm.__dict__.get(RECORD)
    if final is not None:
        final.loop = loop  # another thread may put its own here: the norm then computes its result
    try:
        return original(decoder, *args, **{LOOP: loop}, **kwargs)
    finally:
        if final is not None:
            final.loop = None


def operands_of(record: LayerRecord, loop: Optional[Loop]) -> Optional[Operands]:
    """The operands of a layer's norms after the first, and of the next norm; None where the layer stands alone."""
    if loop is None:
        return None
    if loop.operands is None:
        loop.operands = [layer.__dict__[RECORD].operands(layer) for layer in loop.layers]
    return loop.operands[record.index]


def enter(layer: nn.Module, hidden_states: Tensor, loop: Optional[Loop]) -> Tuple[Tensor, Optional[Operands], bool]:
    """-> (the input's norm, `operands_of` the layer, whether the input may be overwritten)."""
    record: LayerRecord = layer.__dict__[RECORD]
    norm = layer.__dict__["_modules"][record.norms[0]]
    operands = operands_of(record, loop)
    if operands is None or loop is None or loop.stream is not hidden_states:
        return norm(hidden_states), operands, False
    if loop.norm is norm and loop.normed is not None:
        return loop.normed, operands, True
    return norm(hidden_states), operands, True


def leave(layer: nn.Module, loop: Optional[Loop], found: Optional[Operand], x: Tensor, residual: Tensor) -> Tensor:
    """-> residual + x, a layer's output; with the next norm's operand, in their memory and that norm computed too."""
    if found is None or loop is None or x.dtype is not residual.dtype:
        return residual + x
    norm = layer.__dict__[RECORD].next_norm
    loop.normed, loop.stream = add_norm(norm, found, x, residual)
    loop.norm = norm
    return loop.stream


# --- the families' layers ------------------------------------------------------------


def _mix(record: LayerRecord, modules: Any, normed: Tensor, kwargs: Dict[str, Any]) -> Tensor:
    """The attention's output, or that of what a hybrid layer has in its place."""
    mixed = modules[record.mixer](hidden_states=normed, **(kwargs if record.adapt is None else record.adapt(kwargs)))
    return mixed[0] if isinstance(mixed, tuple) else mixed


def pre_norm_layer_forward(layer: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Replaces ``h += attention(norm(h)); h += mlp(norm(h))`` (Llama and most of its descendants)."""
    loop: Optional[Loop] = kwargs.pop(LOOP, None)
    if args or eager_only(layer):
        return original(layer, hidden_states, *args, **kwargs)
    record: LayerRecord = layer.__dict__[RECORD]
    modules = layer.__dict__["_modules"]
    normed, operands, own = enter(layer, hidden_states, loop)
    mid, following = operands or (None, None)
    mixed = _mix(record, modules, normed, kwargs)
    if record.scale is not None:
        mixed = mixed * getattr(layer, record.scale)
    normed, stream = add_norm(modules[record.norms[1]], mid if own else None, mixed, hidden_states)
    output = modules[record.mlp](normed)
    if isinstance(output, tuple):  # some expert blocks return their routing too
        output = output[0]
    if record.scale is not None:
        output = output * getattr(layer, record.scale)
    return leave(layer, loop, following, output, stream)


def sandwich_layer_forward(layer: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Replaces ``h += norm(attention(norm(h))); h += norm(mlp(norm(h)))`` (Gemma 2 and 3, GLM-4)."""
    loop: Optional[Loop] = kwargs.pop(LOOP, None)
    if args or eager_only(layer):
        return original(layer, hidden_states, *args, **kwargs)
    record: LayerRecord = layer.__dict__[RECORD]
    modules = layer.__dict__["_modules"]
    _, after_mixer, before_mlp, after_mlp = record.norms
    normed, operands, own = enter(layer, hidden_states, loop)
    first, second, third, following = operands or (None, None, None, None)
    mixed = norm_over(modules[after_mixer], first, _mix(record, modules, normed, kwargs))
    # What a watched norm returns may be kept, so it is not overwritten.
    normed, stream = add_norm(modules[before_mlp], second if own and first else None, mixed, hidden_states)
    output = norm_over(modules[after_mlp], third, modules[record.mlp](normed))
    return leave(layer, loop, following if third else None, output, stream)


def post_norm_layer_forward(layer: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Replaces ``h += norm(attention(h)); h += norm(mlp(h))`` (OLMo 2 and 3): no norm follows an addition."""
    loop: Optional[Loop] = kwargs.pop(LOOP, None)
    if args or eager_only(layer):
        return original(layer, hidden_states, *args, **kwargs)
    record: LayerRecord = layer.__dict__[RECORD]
    modules = layer.__dict__["_modules"]
    after_mixer, after_mlp = record.norms[1:]
    first, second, following = operands_of(record, loop) or (None, None, None)
    stream = hidden_states + norm_over(modules[after_mixer], first, _mix(record, modules, hidden_states, kwargs))
    output = norm_over(modules[after_mlp], second, modules[record.mlp](stream))
    return leave(layer, loop, following if second else None, output, stream)
