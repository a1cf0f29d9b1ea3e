"""The work of patching one decoder, with its report."""

from typing import Any, Callable, NamedTuple, Optional, Tuple

from torch import nn

from .attention import AttentionRecord
from .binding import Record, bind
from .blocks import (
    DecoderRecord,
    Handoff,
    MLPRecord,
    NormRecord,
    decoder_forward,
    gated_mlp_forward,
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
    """

    def __init__(self, decoder: nn.Module, name: str, report: Report) -> None:
        self.decoder, self.report = decoder, report
        self.handoff = Handoff()
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

    def norm(self, module: Any, name: str, style: NormStyle, receives: bool = False) -> bool:
        """An RMSNorm; ``receives`` where a layer may leave its result ready."""
        if not self.is_a(module, name):
            self.keep(module, f"not the {name} that this family has")
            return False
        handoff = self.handoff if receives else None
        record = NormRecord(style.eps, style.weight_offset, style.promotes, handoff)
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
        self.replace(module, forward, MLPRecord(operator), operator)
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

    def loop(self) -> None:
        """The decoder itself: nothing of it changes, its layers are told that they run inside its loop."""
        bind(self.decoder, decoder_forward, DecoderRecord(self.handoff))
