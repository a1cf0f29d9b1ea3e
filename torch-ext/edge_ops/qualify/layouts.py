"""Where a case's tensors lie: views into buffers of a known pattern, so that a stray write shows."""

from typing import Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

GUARD = 16  # elements of the pattern before and behind
GAP = 3  # and between two rows of a pitched tensor
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_PATTERN = 0x5A5A


class Placed(NamedTuple):
    """A view, and the buffer around it as integers."""

    view: Tensor
    buffer: Tensor


def _buffer(count: int, like: Tensor) -> Tuple[Tensor, Tensor]:
    """(integers, the same memory as like's dtype)"""
    integers = torch.full((count,), _PATTERN, dtype=_BITS[like.element_size()], device=like.device)
    return integers, integers.view(like.dtype)


def place(values: Tensor, layout: str) -> Placed:
    """A copy of `values` in memory of its own, laid out as

    contiguous: dense, aligned; unaligned: dense, one element further; pitched: with a gap after each row (last
    dimension); permuted: dense with the two dimensions before the last swapped (before a single one: contiguous).
    """
    shape, count = tuple(values.shape), values.numel()
    if layout == "pitched" and values.dim() > 1:
        pitch = shape[-1] + GAP
        integers, floats = _buffer(2 * GUARD + count // max(1, shape[-1]) * pitch, values)
        view = floats[GUARD : len(floats) - GUARD].view(*shape[:-1], pitch)[..., : shape[-1]]
    elif layout == "permuted" and values.dim() > 2:
        integers, floats = _buffer(2 * GUARD + count, values)
        swapped = (*shape[:-3], shape[-2], shape[-3], shape[-1])
        view = floats[GUARD : GUARD + count].view(swapped).transpose(-3, -2)
    else:
        start = GUARD + (layout == "unaligned")
        integers, floats = _buffer(start + count + GUARD, values)
        view = floats[start : start + count].view(shape)
    view.copy_(values)
    return Placed(view, integers)


def place_packed(query: Tensor, key: Optional[Tensor]) -> List[Placed]:
    """Query and key as a packed projection has them: one row a token, with room for values as wide as the key."""
    sides = [query] if key is None else [query, key]
    lead, size = tuple(query.shape[:-2]), query.shape[-1]
    widths = [side.shape[-2] * size for side in sides]
    total = sum(widths) + widths[-1]
    tokens = query.numel() // max(1, widths[0])
    integers, floats = _buffer(2 * GUARD + tokens * total, query)
    rows = floats[GUARD : GUARD + tokens * total].view(*lead, total)
    placed, start = [], 0
    for side, width in zip(sides, widths):
        view = rows[..., start : start + width].unflatten(-1, (side.shape[-2], size))
        view.copy_(side)
        placed.append(Placed(view, integers))
        start += width
    return placed


class Watch:
    """Remembers buffers, and says afterwards which were changed outside the views that were to be written."""

    def __init__(self, placed: Dict[str, Placed]) -> None:
        self._placed = placed
        self._before = {name: p.buffer.clone() for name, p in placed.items()}

    def strays(self, written: Dict[str, Tensor]) -> List[str]:
        """Names of the changed buffers. `written` (name -> view) are overwritten with the pattern."""
        for name, view in written.items():
            for other, p in self._placed.items():
                if p.buffer.data_ptr() == self._placed[name].buffer.data_ptr():
                    _blank(p.buffer, view)
                    _blank(self._before[other], view)
        return [name for name, p in self._placed.items() if not torch.equal(p.buffer, self._before[name])]


def _blank(buffer: Tensor, view: Tensor) -> None:
    """Overwrites in `buffer`, or in a copy of it, the elements that `view` covers."""
    buffer.as_strided(view.shape, view.stride(), view.storage_offset()).fill_(_PATTERN)
