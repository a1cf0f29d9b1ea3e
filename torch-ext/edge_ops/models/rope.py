"""A model's rotary module on `rope_cache`: it hands out a cache and positions instead of cos and sin."""

from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from ..rope import rope_cache
from .binding import RECORD, Record, eager_only, original

# Cache rows to begin with; a longer sequence doubles them.
FIRST_ROWS = 2048

# Frequencies that do not depend on the length of the sequence, so that one cache serves every call.
_STATIC = ("default", "linear", "yarn", "llama3")


class Rope(NamedTuple):
    """What a patched rotary module returns in place of (cos, sin): the operators' own arguments."""

    cache: Tensor  # [max_position, rotary_dim]: cos half, then sin half
    positions: Tensor  # [batch, seq]

    def cos_sin(self, dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
        """The pair that the model's own attention expects, each [batch, seq, rotary_dim]."""
        cos, sin = self.cache[self.positions].to(dtype).chunk(2, dim=-1)
        return torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)


class Table:
    """The growing cache of one set of rope parameters, on the CPU."""

    def __init__(self, head_size: int, parameters: Mapping[str, Any], context: Optional[int]) -> None:
        self.head_size, self.parameters, self.context = head_size, parameters, context
        self.cache: Optional[Tensor] = None

    def build(self, rows: int) -> Tensor:
        return rope_cache(rows, self.head_size, scaling=self.parameters, max_position_embeddings=self.context)

    def at_least(self, rows: int) -> Tensor:
        """The cache, grown where `rows` positions do not fit. Two threads may both grow it: both results serve."""
        cache = self.cache
        if cache is None or cache.shape[0] < rows:
            size = FIRST_ROWS if cache is None else cache.shape[0]
            while size < rows:
                size *= 2
            # A cache made under inference_mode could not be used outside of it.
            with torch.inference_mode(False):
                cache = self.build(size)
            self.cache = cache
        return cache

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "cache": None}  # rebuilt when needed


class RotaryRecord(Record):
    """Tables by layer type; the key None where the model has one set of parameters."""

    def __init__(self, tables: Dict[Optional[str], Table]) -> None:
        self.tables = tables


def rotary_record(rotary: nn.Module, head_size: int) -> RotaryRecord:
    """A record for a transformers rotary module, with a table for each set of parameters that allows one.

    A table must agree with the module's own inverse frequencies; where it does not (another formula, another
    version), the module's own cos and sin are used call by call.
    """
    config: Any = rotary.config
    parameters = config.rope_parameters
    kinds = {None: parameters} if "rope_type" in parameters else parameters
    tables: Dict[Optional[str], Table] = {}
    for kind, values in kinds.items():
        if values is None or values.get("rope_type") not in _STATIC:
            continue
        table = Table(head_size, dict(values), getattr(config, "max_position_embeddings", None))
        if _agrees(table, rotary, kind):
            tables[kind] = table
    return RotaryRecord(tables)


def _agrees(table: Table, rotary: nn.Module, kind: Optional[str]) -> bool:
    prefix = "" if kind is None else f"{kind}_"
    inv_freq = getattr(rotary, f"{prefix}inv_freq", None)
    scaling = getattr(rotary, f"{prefix}attention_scaling", None)
    if inv_freq is None or scaling is None or inv_freq.is_meta:
        return False
    angles = inv_freq.detach().double().cpu()
    expected = torch.cat((angles.cos(), angles.sin())) * scaling
    row = table.build(2)[1].double()
    return row.shape == expected.shape and torch.allclose(row, expected, rtol=0, atol=1e-5)


def rotary_forward(rotary: nn.Module, x: Tensor, position_ids: Tensor, layer_type: Optional[str] = None) -> Any:
    """Replaces a transformers ``*RotaryEmbedding.forward``; x gives device, dtype and batch size only."""
    kind = () if layer_type is None else (layer_type,)
    if eager_only(rotary):
        return original(rotary, x, position_ids, *kind)
    table = rotary.__dict__[RECORD].tables.get(layer_type)
    batch = (x.shape[0], position_ids.shape[-1])
    # A compiled graph and an accelerator must not wait for the largest position: they compute each call's rows.
    if table is not None and position_ids.device.type == "cpu" and not torch.compiler.is_compiling():
        largest = position_ids if position_ids.numel() == 1 else position_ids.max()
        return Rope(table.at_least(int(largest.item()) + 1), position_ids.expand(batch))
    cos, sin = original(rotary, x.new_empty(0, dtype=torch.float32), position_ids, *kind)
    half = cos.shape[-1] // 2
    cache = torch.cat((cos[..., :half], sin[..., :half]), dim=-1).flatten(end_dim=-2)
    rows = torch.arange(cache.shape[0], device=cache.device).view(cos.shape[:-1])
    return Rope(cache, rows.expand(batch))
