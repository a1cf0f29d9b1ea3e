"""Decoder layers: where the residual additions and the norms around them meet.

An in-place operator may overwrite a tensor only if nobody else can hold it: a module's output where no hook can have
kept it, the residual stream where the previous layer has left it in the decoder's own loop. Both are asked once a
run, for all layers (see `steps`), and not in the layers: code that runs between two projections is cold and slow.
A layer that has no `Step` runs the forward of its class, on its patched norms, attention and MLP.
"""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from .binding import RECORD, Record, eager_only, original
from .blocks import Loop, Norm, NormRecord, add_norm, norm_over, operand
from .mlp import MLPRecord, Product, feed_forward
from .steps import Snapshot, Watched

LOOP = "edge_ops_loop"  # the argument that carries a `Loop` to the layers

NO_NORM = ""  # in `LayerRecord.norms`, for a layer whose attention reads the stream itself


class Step(NamedTuple):
    """What a layer needs in one run."""

    mixer: nn.Module
    mlp: nn.Module
    product: Optional[Product]  # None where the MLP must be called
    first: Optional[nn.Module]  # the norm of its input
    norms: Tuple[Norm, ...]  # the others, in the order of use
    following: Optional[Norm]  # the next layer's first, or the final norm; None where it must be called


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

    def step(self, layer: nn.Module, stream: torch.dtype) -> Optional[Step]:
        """What the layer needs in a run; None where hooks see what would be overwritten."""
        modules: Dict[str, Any] = layer.__dict__["_modules"]
        mixer, mlp = modules[self.mixer], modules[self.mlp]
        if layer.training or layer._forward_hooks or layer._forward_pre_hooks:
            return None
        if _watched(mixer, self.mixer_out) or _watched(mlp, self.mlp_out):
            return None
        norms = []
        for name in self.norms[1:]:
            found = operand(modules[name], stream)
            if found is None:
                return None
            norms.append((modules[name], found))
        following = None if self.next_norm is None else operand(self.next_norm, stream)
        record = mlp.__dict__.get(RECORD)
        return Step(
            mixer,
            mlp,
            # A compiled graph needs neither one matrix nor memory that layers share.
            record.product(mlp) if isinstance(record, MLPRecord) and not torch.compiler.is_compiling() else None,
            modules[self.norms[0]] if self.norms[0] else None,
            tuple(norms),
            None if following is None or self.next_norm is None else (self.next_norm, following),
        )

    def watched(self, layer: nn.Module, step: Step) -> Watched:
        """What decides whether `step` still is right."""
        bypassed = [layer, *(norm for norm, _ in step.norms), *([] if step.first is None else [step.first])]
        if self.next_norm is not None:
            bypassed.append(self.next_norm)
        makers = [(step.mixer, self.mixer_out)]
        if step.product is None:
            makers.append((step.mlp, self.mlp_out))
        else:
            bypassed += [step.mlp, *step.mlp.children()]
        inner = [module._modules.get(name) for module, name in makers]
        outputs = [*(module for module, _ in makers), *(module for module in inner if module is not None)]
        return Watched(layer, bypassed, outputs, makers)


def _watched(module: Any, inner: str) -> bool:
    """Whether a hook sees the output of a module, or of that inside it which makes the output."""
    maker = module._modules.get(inner)
    return bool(module._forward_hooks or (maker is not None and maker._forward_hooks))


# --- the decoder's loop --------------------------------------------------------------


class DecoderRecord(Record):
    """A decoder's layers and final norm; no layers where some of them do not take a `Loop`."""

    def __init__(self, layers: List[nn.Module], norm: nn.Module) -> None:
        self.layers, self.norm = layers, norm
        self.known: Optional[Tuple[Snapshot, List[Optional[Step]]]] = None  # the last run's
        self.overridden: List[str] = []  # methods of the decoder that it has its own of

    def release(self, module: nn.Module) -> None:
        for name in self.overridden:
            module.__dict__.pop(name, None)

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "known": None}

    def steps(self, stream: torch.dtype) -> List[Optional[Step]]:
        """Each layer's step on a stream of this dtype: the last run's, where nothing has changed since."""
        if torch.compiler.is_compiling():
            return [layer.__dict__[RECORD].step(layer, stream) for layer in self.layers]
        known = self.known
        if known is not None and known[0].holds(stream):
            return known[1]
        steps = [layer.__dict__[RECORD].step(layer, stream) for layer in self.layers]
        if None not in steps:
            watched = [layer.__dict__[RECORD].watched(layer, step) for layer, step in zip(self.layers, steps)]
            self.known = Snapshot(watched, stream), steps
        return steps


def decoder_forward(decoder: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Replaces a decoder's forward: its own code, with a `Loop` for its layers.

    Its code keeps no stream that a layer returns, except through hooks, which the layers' records see. Layers that
    are called in any other way get no `Loop` and overwrite nothing.
    """
    record: DecoderRecord = decoder.__dict__[RECORD]
    watched = nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks
    if eager_only(decoder) or watched or not record.layers:
        return original(decoder, *args, **kwargs)
    loop = Loop(record)
    final: Optional[NormRecord] = record.norm.__dict__.get(RECORD)
    if final is not None:
        final.loop = loop  # another thread may put its own here: the norm then computes its result
    try:
        return original(decoder, *args, **{LOOP: loop}, **kwargs)
    finally:
        if final is not None:
            final.loop = None


def enter(
    layer: nn.Module, hidden_states: Tensor, args: Tuple[Any, ...], loop: Optional[Loop]
) -> Optional[Tuple[Step, Any]]:
    """The layer's step and the norm of its input; None where the layer must run its class's forward."""
    if loop is None or args:
        return None
    if loop.steps is None:
        # Not before the first layer: transformers installs the hooks that collect hidden states in the decoder's call.
        loop.steps = loop.run.steps(hidden_states.dtype)
    step: Optional[Step] = loop.steps[layer.__dict__[RECORD].index]
    if step is None:
        return None
    first = step.first
    if loop.norm is first and loop.stream is hidden_states and loop.normed is not None:
        return step, loop.normed  # the layer before has computed it
    return step, hidden_states if first is None else first(hidden_states)


def mix(layer: nn.Module, step: Step, normed: Tensor, kwargs: Dict[str, Any]) -> Tensor:
    """The attention's output, or that of what a hybrid layer has in its place."""
    adapt = layer.__dict__[RECORD].adapt
    mixed = step.mixer(hidden_states=normed, **(kwargs if adapt is None else adapt(kwargs)))
    return mixed[0] if isinstance(mixed, tuple) else mixed


def leave(step: Step, x: Tensor, residual: Tensor, loop: Loop) -> Tensor:
    """-> residual + x, a layer's output; in their memory and with the next norm computed too where that is known."""
    if step.following is None:
        return residual + x
    return add_norm(step.following, x, residual, True, loop)[1]


# --- the families' layers ------------------------------------------------------------


def pre_norm_layer_forward(layer: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Replaces ``h += attention(norm(h)); h += mlp(norm(h))`` (Llama and most of its descendants)."""
    loop: Any = kwargs.pop(LOOP, None)
    entered = enter(layer, hidden_states, args, loop)
    if entered is None:
        return original(layer, hidden_states, *args, **kwargs)
    step, normed = entered
    scale = layer.__dict__[RECORD].scale
    mixed = mix(layer, step, normed, kwargs)
    if scale is not None:
        mixed = mixed * getattr(layer, scale)
    normed, stream = add_norm(step.norms[0], mixed, hidden_states, loop.stream is hidden_states)
    output = feed_forward(step.mlp, step.product, normed, loop)
    if isinstance(output, tuple):  # some expert blocks return their routing too
        output = output[0]
    if scale is not None:
        output = output * getattr(layer, scale)
    return leave(step, output, stream, loop)


def sandwich_layer_forward(layer: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Replaces ``h += norm(attention(norm(h))); h += norm(mlp(norm(h)))`` (Gemma 2 and 3, GLM-4)."""
    loop: Any = kwargs.pop(LOOP, None)
    entered = enter(layer, hidden_states, args, loop)
    if entered is None:
        return original(layer, hidden_states, *args, **kwargs)
    step, normed = entered
    after_mixer, before_mlp, after_mlp = step.norms
    mixed = norm_over(*after_mixer, mix(layer, step, normed, kwargs))
    normed, stream = add_norm(before_mlp, mixed, hidden_states, loop.stream is hidden_states)
    output = norm_over(*after_mlp, feed_forward(step.mlp, step.product, normed, loop))
    return leave(step, output, stream, loop)


def post_norm_layer_forward(layer: nn.Module, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Replaces ``h += norm(attention(h)); h += norm(mlp(h))`` (OLMo 2 and 3): no norm follows an addition."""
    loop: Any = kwargs.pop(LOOP, None)
    entered = enter(layer, hidden_states, args, loop)
    if entered is None:
        return original(layer, hidden_states, *args, **kwargs)
    step, _ = entered
    after_mixer, after_mlp = step.norms
    stream = hidden_states + norm_over(*after_mixer, mix(layer, step, hidden_states, kwargs))
    output = norm_over(*after_mlp, feed_forward(step.mlp, step.product, stream, loop))
    return leave(step, output, stream, loop)
