"""A model's rotary module on `rope_cache`: it hands out a cache and positions instead of cos and sin."""

from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from ..rope import rope_cache
from .binding import RECORD, Record, eager_only, original

# Cache rows to begin with; a longer sequence doubles them.
FIRST_ROWS = 2048

# Frequencies that do not depend on the length of the sequence, so that one cache serves every call.
_STATIC = ("default", "linear", "yarn", "llama3", "proportional")


class Rope(NamedTuple):
    """What a patched rotary module returns in place of (cos, sin): the operators' own arguments."""

    cache: Tensor  # [max_position, rotary_dim]: cos half, then sin half
    positions: Tensor  # [batch, seq]

    def cos_sin(self, dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
        """The pair that the model's own attention expects, each [batch, seq, rotary_dim]."""
        cos, sin = self.cache[self.positions].to(dtype).chunk(2, dim=-1)
        return torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)


class Table:
    """The growing cache of one set of rope parameters, on the CPU.

    Args:
        parameters: a config's rope parameters.
        context: the config's max_position_embeddings.
        inv_freq: the model's own inverse frequencies.
        scaling: the model's own factor on cos and sin.
    """

    def __init__(self, parameters: Mapping[str, Any], context: Optional[int], inv_freq: Tensor, scaling: float) -> None:
        self.parameters, self.context, self.scaling = parameters, context, scaling
        self.inv_freq = inv_freq.detach().double().cpu()
        self.cache: Optional[Tensor] = None

    def build(self, rows: int) -> Tensor:
        if self.parameters["rope_type"] == "proportional":
            # Full width with frequencies of 0, so that the untouched pairs turn by nothing.
            angles = torch.arange(rows, dtype=torch.float64)[:, None] * self.inv_freq
            return (torch.cat((angles.cos(), angles.sin()), dim=-1) * self.scaling).float()
        width = 2 * self.inv_freq.numel() / float(self.parameters.get("partial_rotary_factor") or 1.0)
        return rope_cache(rows, round(width), scaling=self.parameters, max_position_embeddings=self.context)

    def agrees(self) -> bool:
        """Whether the cache's formula gives the model's own frequencies (another version may have another one)."""
        row = self.build(2)[1].double()
        expected = torch.cat((self.inv_freq.cos(), self.inv_freq.sin())) * self.scaling
        return row.shape == expected.shape and torch.allclose(row, expected, rtol=0, atol=1e-5)

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

    def __init__(self, tables: Dict[Optional[str], Table], device: torch.device) -> None:
        self.tables = tables
        self.number_rows(device)

    def number_rows(self, device: torch.device) -> None:
        with torch.inference_mode(False):
            self.numbers = torch.arange(FIRST_ROWS, device=device)

    def first(self, count: int, device: torch.device) -> Tensor:
        """0 to count - 1, a view of what is there: a compiled graph would run an arange again in every layer."""
        if device != self.numbers.device and not torch.compiler.is_compiling():
            self.number_rows(device)  # the model was moved
        if count > FIRST_ROWS or device != self.numbers.device:
            return torch.arange(count, device=device)
        return self.numbers[:count]


def rotary_record(rotary: Any) -> RotaryRecord:
    """A record for a transformers rotary module, with a table for each set of parameters that allows one.

    Where a table would not agree with the module's own frequencies, or they depend on the length of the sequence
    (dynamic, longrope), the module's own cos and sin are used call by call.
    """
    parameters = rotary.config.rope_parameters
    kinds = {None: parameters} if "rope_type" in parameters else parameters
    tables: Dict[Optional[str], Table] = {}
    for kind, values in kinds.items():
        if values is None:
            continue
        if values.get("rope_type") == "longrope":
            # The module makes its long frequencies in its first call, by code that torch.compile cannot trace.
            type(rotary).forward(
                rotary, rotary.inv_freq, torch.zeros(1, 1, dtype=torch.int64, device=rotary.inv_freq.device)
            )
        if values.get("rope_type") not in _STATIC:
            continue
        prefix = "" if kind is None else f"{kind}_"
        inv_freq = getattr(rotary, f"{prefix}inv_freq", None)
        scaling = getattr(rotary, f"{prefix}attention_scaling", None)
        if inv_freq is None or scaling is None or inv_freq.is_meta:
            continue
        table = Table(dict(values), getattr(rotary.config, "max_position_embeddings", None), inv_freq, scaling)
        if table.agrees():
            tables[kind] = table
    device = next(rotary.buffers()).device
    return RotaryRecord(tables, torch.device("cpu") if device.type == "meta" else device)


def rotary_forward(rotary: nn.Module, x: Tensor, position_ids: Tensor, layer_type: Optional[str] = None) -> Any:
    """Replaces a transformers ``*RotaryEmbedding.forward``.

    Args:
        x: gives device, dtype and batch size (its last dimension but two) only.
        position_ids: [batch or 1, seq], or [3, batch, seq] for models that place images on a grid.
    """
    kind = () if layer_type is None else (layer_type,)
    if eager_only(rotary):
        return original(rotary, x, position_ids, *kind)
    batch = (x.shape[-3], position_ids.shape[-1])
    plain = position_ids.dim() == 2 or position_ids.stride(0) == 0  # a grid of text only has three equal rows
    table = rotary.__dict__[RECORD].tables.get(layer_type)
    if table is not None and plain:
        positions = position_ids if position_ids.dim() == 2 else position_ids[0]
        if position_ids.device.type == "cpu" and not torch.compiler.is_compiling():
            largest = positions if positions.numel() == 1 else positions.max()
            return Rope(table.at_least(int(largest.item()) + 1), positions.expand(batch))
        # A compiled graph and an accelerator must not wait for the largest position: each call's own rows.
        inv_freq = getattr(rotary, "inv_freq" if layer_type is None else f"{layer_type}_inv_freq")
        angles = positions[..., None] * inv_freq.to(positions.device, torch.float32)
        cache = torch.cat((angles.cos(), angles.sin()), dim=-1)
        cache = cache if table.scaling == 1.0 else cache * table.scaling
    else:
        cos, sin = original(rotary, x.new_empty(0, dtype=torch.float32), position_ids, *kind)
        half = cos.shape[-1] // 2
        cache = torch.cat((cos[..., :half], sin[..., :half]), dim=-1)
    flat = cache.flatten(end_dim=-2)
    rows = rotary.__dict__[RECORD].first(flat.shape[0], cache.device).view(cache.shape[:-1])
    return Rope(flat, rows.expand(batch))
