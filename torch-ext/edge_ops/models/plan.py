"""The work of patching one decoder, with its report."""

import functools
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from torch import nn

from .attention import AttentionRecord, attention_forward
from .binding import RECORD, Record, bind, is_bound, runs_its_class
from .blocks import NormRecord, norm_forward
from .layers import DecoderRecord, LayerRecord, decoder_forward, pre_norm_layer_forward
from .mlp import MLPRecord, gated_mlp_forward, merge, product_of
from .report import Kept, Replaced, Report
from .rope import rotary_forward, rotary_record


class NormStyle(NamedTuple):
    """How a family's RMSNorm computes."""

    eps: str  # name of the attribute
    weight_offset: float = 0.0
    promotes: bool = True  # ``weight * x.to(dtype)``; False where all is float32 until one last rounding


class Stack(NamedTuple):
    """What a family's decoder is made of. Class names start with `prefix`, those of layers with `layer_prefix`."""

    prefix: str
    norm: NormStyle
    layer_prefix: str = ""  # where it differs: "Gemma3nText"
    attention: Any = attention_forward
    attention_record: Mapping[str, Any] = {}  # arguments of AttentionRecord
    attention_norms: Tuple[str, ...] = ()  # every norm inside an attention
    attention_operator: str = "rotary_embedding"
    layer: Any = pre_norm_layer_forward
    why_not: Optional[Callable[[Any], Optional[str]]] = None  # why a layer keeps its forward, or None
    layer_record: Mapping[str, Any] = {}  # arguments of LayerRecord
    layer_operator: str = "fused_add_rms_norm"
    other_mixers: Tuple[Mapping[str, Any], ...] = ()  # what replaces attention in layers that have none
    mlp: Any = gated_mlp_forward
    mlp_projections: Tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    packed: bool = False  # gate and up are one projection already
    mergeable: bool = True  # nothing happens to the gate before the product
    activation: Optional[str] = "act_fn"  # None: written into the MLP's forward as SiLU
    first_norm: str = "input_layernorm"  # which norm of the next layer follows a layer; "" for none
    extra_norms: Tuple[str, ...] = ()  # norms of a layer that its forward does not fuse, where it has them
    final_norm: str = "norm"


_LAYER: Dict[str, Any] = {
    "mixer": ("self_attn", "o_proj"),
    "mlp": ("mlp", "down_proj"),
    "norms": ("input_layernorm", "post_attention_layernorm"),
}


class Plan:
    """Patches the modules of one decoder and reports each.

    Args:
        decoder: the stack of layers, ``LlamaModel`` for example.
        name: its path in the model that `patch` was given.
        report: where to report.
        merge_gate_up: lay the weights of gate and up behind each other where that changes no bit.
    """

    def __init__(self, decoder: Any, name: str, report: Report, merge_gate_up: bool) -> None:
        self.decoder, self.report, self.merge_gate_up = decoder, report, merge_gate_up
        self._checked: List[Any] = []  # shapes of gate and up whose one product has the bits of two
        self._names = {id(module): path for path, module in decoder.named_modules(prefix=name)}
        # Everything that takes part in patching lives in the modeling file of the decoder's class.
        self._modeling = type(decoder).__module__

    def is_a(self, module: Any, name: str) -> bool:
        """Whether module runs the code of exactly this class of the decoder's modeling file; reported if not."""
        if type(module).__name__ != name or type(module).__module__ != self._modeling:
            self.keep(module, f"not the {name} that this family has")
        elif not runs_its_class(module):
            self.keep(module, "its forward was replaced by something else")
        else:
            return True
        return False

    def replace(self, module: nn.Module, forward: Any, record: Record, operators: str) -> None:
        bind(module, forward, record)
        self.report.replaced.append(Replaced(self._names[id(module)], type(module).__name__, operators))

    def keep(self, module: nn.Module, reason: str) -> None:
        self.report.kept.append(Kept(self._names[id(module)], type(module).__name__, reason))

    def stack(self, stack: Stack) -> None:
        """Patches the decoder as `stack` describes it."""
        layers = list(self.decoder.layers)
        final = getattr(self.decoder, stack.final_norm)
        followers = [getattr(layer, stack.first_norm) if stack.first_norm else None for layer in layers[1:]]
        rotated = True
        for index, (layer, follower) in enumerate(zip(layers, [*followers, final])):
            rotated &= self.layer(index, layer, follower, stack)
        self.norm(final, stack)
        self.rotary(self.decoder.rotary_emb, rotated)
        record = DecoderRecord(layers if all(map(is_bound, layers)) else [], final)
        bind(self.decoder, decoder_forward, record)

    def override(self, name: str, function: Any) -> None:
        """Makes ``function(decoder, ...)`` a method of the patched decoder until it is unpatched."""
        self.decoder.__dict__[RECORD].overridden.append(name)
        self.decoder.__dict__[name] = functools.partial(function, self.decoder)

    def layer(self, index: int, layer: Any, follower: Optional[nn.Module], stack: Stack) -> bool:
        """A decoder layer and what is in it; -> whether its attention, if any, takes a `Rope` now."""
        modules = layer._modules
        record: Dict[str, Any] = dict(_LAYER, **stack.layer_record)
        for name in (*record["norms"], *stack.extra_norms):
            if name in modules:
                self.norm(modules[name], stack)
        rotated = True
        if record["mixer"][0] in modules:
            rotated = self.attention(modules[record["mixer"][0]], stack)
        else:
            record.update(next(other for other in stack.other_mixers if other["mixer"][0] in modules))
            self.keep(modules[record["mixer"][0]], "not attention")
        self.mlp(modules[record["mlp"][0]], stack)
        reason = stack.why_not(layer) if stack.why_not is not None else None
        if reason is not None:
            self.keep(layer, reason)
        elif self.is_a(layer, f"{stack.layer_prefix or stack.prefix}DecoderLayer"):
            self.replace(layer, stack.layer, LayerRecord(index, follower, **record), stack.layer_operator)
        return rotated

    def norm(self, module: Any, stack: Stack) -> None:
        """An RMSNorm."""
        if self.is_a(module, f"{stack.prefix}RMSNorm"):
            style = stack.norm
            record = NormRecord(style.eps, style.weight_offset, style.promotes)
            self.replace(module, norm_forward, record, "rms_norm")

    def attention(self, module: Any, stack: Stack) -> bool:
        """An attention module, whose forward takes a `Rope` afterwards."""
        for name in stack.attention_norms:
            if name in module._modules:
                self.norm(module._modules[name], stack)
        if not self.is_a(module, f"{stack.layer_prefix or stack.prefix}Attention"):
            return False
        record = AttentionRecord(**stack.attention_record)
        self.replace(module, stack.attention, record, stack.attention_operator)
        return True

    def mlp(self, module: Any, stack: Stack) -> None:
        """An MLP of gate, up and down projections; of a block of experts, the one that every token sees."""
        if type(module).__name__ == f"{stack.prefix}SparseMoeBlock":
            self.keep(module, "each expert's product is over a different group of tokens")
            if "shared_expert" in module._modules:
                self.mlp(module.shared_expert, stack)
            return
        if not self.is_a(module, f"{stack.layer_prefix or stack.prefix}MLP"):
            return
        operator = "silu_and_mul" if stack.activation is None else product_of(getattr(module, stack.activation))
        if operator is None:
            self.keep(module, f"no operator for its activation {getattr(module, str(stack.activation))}")
            return
        record = MLPRecord(operator, stack.mlp_projections)
        bind(module, stack.mlp, record)
        if stack.packed:
            note = "of one packed projection"
        elif not self.merge_gate_up or not stack.mergeable:
            note = "gate and up apart"
        else:
            reason = merge(module, self._checked)
            note = "gate and up in one product" if reason is None else f"gate and up apart: {reason}"
        self.report.replaced.append(Replaced(self._names[id(module)], type(module).__name__, f"{operator}, {note}"))

    def rotary(self, module: Any, rotated: bool) -> None:
        """The rotary module, which may hand out a `Rope` only where every attention knows what that is."""
        if not rotated:
            self.keep(module, "an attention layer of this decoder was left as it is and needs cos and sin")
            return
        record = rotary_record(module)
        operators = "rope_cache" if record.tables else "its own cos and sin, once a call"
        self.replace(module, rotary_forward, record, operators)
