"""The work of patching one decoder, with its report."""

from typing import Any, List, NamedTuple, Optional

from torch import nn

from .attention import AttentionRecord
from .binding import Record, bind
from .blocks import (
    DecoderRecord,
    MLPRecord,
    NormRecord,
    decoder_forward,
    gated_mlp_forward,
    merge,
    norm_forward,
    product_of,
)
from .layers import LayerRecord
from .report import Kept, Replaced, Report
from .rope import rotary_forward, rotary_record


class NormStyle(NamedTuple):
    """How a family's RMSNorm computes."""

    eps: str  # name of the attribute
    weight_offset: float = 0.0
    promotes: bool = True  # ``weight * x.to(dtype)``; False where all is float32 until one last rounding


class Plan:
    """Patches the modules of one decoder and reports each.

    Args:
        decoder: the stack of layers, ``LlamaModel`` for example.
        name: its path in the model that `patch` was given.
        report: where to report.
        merge_gate_up: lay the weights of gate and up behind each other where that changes no bit.
    """

    def __init__(self, decoder: nn.Module, name: str, report: Report, merge_gate_up: bool) -> None:
        self.decoder, self.report, self.merge_gate_up = decoder, report, merge_gate_up
        self._checked: List[Any] = []  # shapes of gate and up whose one product has the bits of two
        self._names = {id(module): path for path, module in decoder.named_modules(prefix=name)}
        # Everything that takes part in patching lives in the modeling file of the decoder's class.
        self._modeling = type(decoder).__module__

    def is_a(self, module: Any, *classes: str) -> bool:
        """Whether module is exactly one of these classes of the decoder's own modeling file."""
        return type(module).__name__ in classes and type(module).__module__ == self._modeling

    def replace(self, module: nn.Module, forward: Any, record: Record, operators: str) -> None:
        bind(module, forward, record)
        self.report.replaced.append(Replaced(self._names[id(module)], type(module).__name__, operators))

    def keep(self, module: nn.Module, reason: str) -> None:
        self.report.kept.append(Kept(self._names[id(module)], type(module).__name__, reason))

    def norm(self, module: Any, name: str, style: NormStyle) -> bool:
        """An RMSNorm."""
        if not self.is_a(module, name):
            self.keep(module, f"not the {name} that this family has")
            return False
        record = NormRecord(style.eps, style.weight_offset, style.promotes)
        self.replace(module, norm_forward, record, "rms_norm")
        return True

    def gated_mlp(self, module: Any, name: str, forward: Any = gated_mlp_forward, activation: str = "act_fn") -> bool:
        """An MLP of gate, up and down projections."""
        if not self.is_a(module, name):
            self.keep(module, f"not the {name} that this family has")
            return False
        operator: Optional[str] = product_of(getattr(module, activation))
        if operator is None:
            self.keep(module, f"no operator for the activation {type(getattr(module, activation)).__name__}")
            return False
        bind(module, forward, MLPRecord(operator))
        reason = merge(module, self._checked) if self.merge_gate_up else "not asked for"
        note = "gate and up in one product" if reason is None else f"gate and up apart: {reason}"
        self.report.replaced.append(Replaced(self._names[id(module)], type(module).__name__, f"{operator}, {note}"))
        return True

    def rotary(self, module: Any, head_size: int, all_attention: bool) -> None:
        """The rotary module, which may hand out a `Rope` only where every attention knows what that is."""
        if not all_attention:
            self.keep(module, "an attention layer of this decoder was left as it is and needs cos and sin")
            return
        record = rotary_record(module, head_size)
        source = "rope_cache" if record.tables else "cos and sin once for each call"
        self.replace(module, rotary_forward, record, source)

    def attention(self, module: Any, name: str, forward: Any, operators: str, interleaved: bool = False) -> bool:
        """An attention module, whose forward takes a `Rope` afterwards."""
        if not self.is_a(module, name):
            self.keep(module, f"not the {name} that this family has")
            return False
        self.replace(module, forward, AttentionRecord(interleaved), operators)
        return True

    def layer(self, module: Any, name: str, forward: Any, record: LayerRecord) -> bool:
        """A decoder layer."""
        if not self.is_a(module, name):
            self.keep(module, f"not the {name} that this family has")
            return False
        self.replace(module, forward, record, "fused_add_rms_norm")
        return True

    def loop(self, final_norm: nn.Module) -> None:
        """The decoder itself: its code stays, its layers are told that they run inside its loop."""
        bind(self.decoder, decoder_forward, DecoderRecord(final_norm))
