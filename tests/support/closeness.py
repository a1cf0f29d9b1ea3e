"""Comparison in units of the result's own spacing, for tests that look at one fault rather than at bits."""

from __future__ import annotations

import math
from typing import Callable, Optional, Tuple

import torch
from torch import Tensor

from .float64 import wide
from .values import DEVICE

# One final rounding, or the two of the models' own order of operations; float32 rows round on the way too.
ULPS = {torch.bfloat16: 1.6, torch.float16: 1.6, torch.float32: 24.0}
# The norm may be rounded before the rotation: one more.
FUSED_ULPS = {torch.bfloat16: 2.6, torch.float16: 2.6, torch.float32: 32.0}


def spacing(dtype: torch.dtype, magnitude: Tensor) -> Tensor:
    """Distance between neighbouring numbers of `dtype` around a magnitude."""
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(magnitude.abs().clamp_min(info.tiny))
    return torch.ldexp(torch.ones_like(magnitude), (exponent - 1).to(torch.int32)) * info.eps


def assert_near(
    got: Tensor, want: Tensor, ulps: Optional[float] = None, scale: Optional[Tensor] = None, atol: float = 0.0,
    what: str = "",
) -> None:  # fmt: skip
    """|got - want| <= ulps * spacing at `scale` (want's own magnitude) + atol; NaN and inf only where expected."""
    ulps = ULPS[got.dtype] if ulps is None else ulps
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    values = wide(got)
    near = (values - want).abs() <= ulps * spacing(got.dtype, want if scale is None else scale) + atol
    near |= (values.isnan() & want.isnan()) | (values == want)
    if not near.all():
        at = tuple(int(i) for i in (~near).nonzero()[0])
        raise AssertionError(
            f"{what}: {int((~near).sum())} of {near.numel()} off, at {at}: {values[at]} for {want[at]}"
        )


def normal(shape: Tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(dtype).to(DEVICE)


def index(values, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def framed(shape: Tuple[int, ...], dtype: torch.dtype, fill: float = 77.0) -> Tuple[Tensor, Callable[[], bool]]:
    """A contiguous tensor between two runs of a known number, and whether those are still intact."""
    pad, n = 64, math.prod(shape)
    buffer = torch.full((n + 2 * pad,), fill, dtype=dtype, device=DEVICE)
    return buffer[pad : pad + n].view(shape), lambda: bool(
        (buffer[:pad] == fill).all() and (buffer[pad + n :] == fill).all()
    )
