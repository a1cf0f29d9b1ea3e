"""Tensors laid into larger buffers in every way that callers lay them out.

A buffer's memory outside the tensor is filled with NaN: reading it spoils a result, writing it shows.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch

from .values import DEVICE, DTYPES, bits, to_numpy

# How the outer dimensions lie in memory; the last one is contiguous in all of them.
LAYOUTS = ("contiguous", "column slice", "skipped rows", "transposed", "reversed")
READ_LAYOUTS = (*LAYOUTS, "expanded", "windows")
# Where the buffer starts: nothing may assume more than the type's own bytes, not even its alignment.
STARTS = ("aligned", "odd element", "odd byte") if DEVICE == "cpu" else ("aligned", "odd element")

GUARD = 48  # elements kept free on either side of a tensor


class Placed(NamedTuple):
    view: torch.Tensor
    base: torch.Tensor  # 1-D, the whole buffer


def buffer(elements: int, dtype: torch.dtype, start: str = "aligned") -> torch.Tensor:
    """A 1-D tensor of NaNs (or of a recognizable number, for integers) that starts where asked."""
    item = torch.empty((), dtype=dtype).element_size()
    if start == "odd byte":
        base = torch.frombuffer(bytearray(elements * item + 1), dtype=dtype, offset=1)
        assert base.data_ptr() % item or item == 1
    else:
        base = torch.empty(elements + 1, dtype=dtype, device=DEVICE)
        base = base[1:] if start == "odd element" else base[:-1]
    return base.fill_(float("nan") if dtype.is_floating_point else 0x5A5A)


def strides_of(shape: Sequence[int], layout: str) -> Tuple[int, ...]:
    """Element strides of a tensor of this shape."""
    *outer, n = shape
    order = list(range(len(outer)))  # dimensions from the outermost in memory to the innermost
    pitch = n
    if layout == "column slice":
        pitch = n + 6
    elif layout == "skipped rows":
        pitch = 2 * n
    elif layout == "transposed" and len(outer) > 1:
        order[-1], order[-2] = order[-2], order[-1]
    elif layout == "reversed":
        order.reverse()
    elif layout == "windows":
        pitch = max(1, n // 2)  # neighbouring rows share elements
    strides, step = [0] * len(outer), pitch
    for dim in reversed(order):
        strides[dim] = step
        step *= outer[dim]
    if layout == "expanded" and outer:
        strides[0] = 0
    return (*strides, 1)


def place(values: np.ndarray, dtype: torch.dtype, layout: str = "contiguous", start: str = "aligned") -> Placed:
    """A tensor with these values (repeated or overlapping where the layout makes rows share memory)."""
    shape = values.shape
    strides = strides_of(shape, layout)
    span = 1 + sum(max(0, n - 1) * stride for n, stride in zip(shape, strides))
    base = buffer(span + 2 * GUARD, dtype, start)
    view = base.as_strided(shape, strides, base.storage_offset() + GUARD)
    source = torch.from_numpy(np.ascontiguousarray(values)).to(dtype).to(DEVICE)
    if layout == "windows":
        base[GUARD : GUARD + span] = source.flatten()[:span]
    elif layout == "expanded" and view.dim() > 1 and view.shape[0]:
        view[0] = source[0]
    else:
        view.copy_(source)
    return Placed(view, base)


def place_like(values: np.ndarray, dtype: str, layout: str, start: str) -> Tuple[Placed, np.ndarray]:
    """`place`, and the values that the tensor really has."""
    placed = place(values, DTYPES[dtype], layout, start)
    return placed, to_numpy(placed.view)


def place_packed(query: np.ndarray, key: np.ndarray, dtype: str, start: str = "aligned") -> Tuple[Placed, Placed]:
    """Views of one packed [..., (q heads + 2 kv heads) * head_size] projection: query, key, then a value part."""
    *leading, heads, size = query.shape
    kv = key.shape[-2]
    width = (heads + 2 * kv) * size
    tokens = int(np.prod(leading))
    base = buffer(tokens * width + 2 * GUARD, DTYPES[dtype], start)
    packed = base[GUARD : GUARD + tokens * width].view(*leading, width)
    views = []
    for values, begin in ((query, 0), (key, heads * size)):
        part = packed[..., begin : begin + values.shape[-2] * size].unflatten(-1, (values.shape[-2], size))
        part.copy_(torch.from_numpy(values).to(DTYPES[dtype]).to(DEVICE))
        views.append(Placed(part, base))
    return views[0], views[1]


class Snapshot:
    """The bits of every buffer before a call; afterwards, what changed outside the tensors to be written."""

    def __init__(self, placed: Sequence[Optional[Placed]]) -> None:
        self._bases = {}
        for p in placed:
            if p is not None:
                self._bases[p.base.data_ptr()] = p.base
        self._before = {key: bits(base).clone() for key, base in self._bases.items()}

    def assert_untouched_outside(self, written: Sequence[torch.Tensor], what: str) -> None:
        for key, base in self._bases.items():
            allowed = torch.zeros(base.numel(), dtype=torch.bool, device=base.device)
            for tensor in written:
                first = (tensor.data_ptr() - base.data_ptr()) // tensor.element_size()
                if tensor.numel() and 0 <= first < base.numel():
                    allowed.as_strided(tensor.shape, tensor.stride(), first).fill_(True)
            changed = (bits(base) != self._before[key]) & ~allowed
            assert not changed.any(), f"{what}: memory outside the results changed at {changed.nonzero()[:4].tolist()}"


def element_set(tensor: torch.Tensor) -> set:
    """Byte addresses of a tensor's elements, by brute force."""
    item = tensor.element_size()
    addresses: List[int] = [tensor.data_ptr()]
    for n, stride in zip(tensor.shape, tensor.stride()):
        addresses = [a + i * stride * item for a in addresses for i in range(n)]
    return {a + byte for a in addresses for byte in range(item)}
