"""The corpus's numbers: bit patterns made from a counter by integer arithmetic alone.

The same formulas run in any library and on any device: no random generator, no conversion of a number, no
rounding. A pattern is what the storage type holds; only `as_dtype` says that it is a float.
"""

import zlib
from typing import Dict, List, NamedTuple, Tuple

import torch
from torch import Tensor

from .corpus import Field

WORD = 0xFFFFFFFF


class Format(NamedTuple):
    """A floating-point storage type."""

    dtype: torch.dtype
    bits: torch.dtype  # the integers of the same size
    width: int
    mantissa: int  # bits
    nan: int  # the pattern that stands for every NaN in a digest
    taken: int  # where in a word the exponent's random bits come from: apart from those of sign and mantissa


FORMATS: Dict[str, Format] = {
    "float32": Format(torch.float32, torch.int32, 32, 23, 0x7FC00000, 23),
    "bfloat16": Format(torch.bfloat16, torch.int16, 16, 7, 0x7FC0, 16),
    "float16": Format(torch.float16, torch.int16, 16, 10, 0x7E00, 16),
}

# Lowest exponent field of a kind in float32 and bfloat16, in float16, and how many random bits are added to it.
EXPONENTS: Dict[str, Tuple[int, int, int]] = {
    "moderate": (121, 9, 3),  # 2^-6 up to 4
    "unit": (119, 7, 3),  # 2^-8 up to 1, as a cosine
    "saturating": (129, 17, 3),  # 4 up to 1024: exp of it saturates, or nearly
    "huge": (247, 23, 3),  # up to the largest number: squares overflow in float32 and bfloat16
    "tiny": (0, 0, 3),  # subnormals, zeros and what lies next to them
}

# Magnitudes of special interest; a sign is put before each. Zeros, the ends of the subnormals and of the normals,
# both kinds of NaN, one and its neighbours, and where exp saturates: 87, 87.33654, 88, 88.722839, 89 and 44.5.
EDGES: Dict[str, List[int]] = {
    "float32": [
        0x00000000, 0x00000001, 0x00000002, 0x00400000, 0x007FFFFF, 0x00800000, 0x00800001, 0x7F7FFFFF, 0x7F800000,
        0x7FC00000, 0x7FA00001, 0x3F800000, 0x3F7FFFFF, 0x3F800001, 0x42ADFFFF, 0x42AE0000, 0x42AE0001, 0x42AEAC4F,
        0x42AEAC50, 0x42AEAC51, 0x42B00000, 0x42B17217, 0x42B17218, 0x42B17219, 0x42B1FFFF, 0x42B20000, 0x42B20001,
        0x42320000, 0x41102810, 0x3EB17218, 0x5F000000, 0x20000000,
    ],
    "bfloat16": [
        0x0000, 0x0001, 0x0002, 0x0040, 0x007F, 0x0080, 0x0081, 0x7F7F, 0x7F80, 0x7FC0, 0x7FA1, 0x3F80, 0x3F7F, 0x3F81,
        0x42AD, 0x42AE, 0x42AF, 0x42B0, 0x42B1, 0x42B2, 0x42B3, 0x4232, 0x4110, 0x3EB1, 0x5F00, 0x2000,
    ],
    "float16": [
        0x0000, 0x0001, 0x0002, 0x0200, 0x03FF, 0x0400, 0x0401, 0x7BFF, 0x7C00, 0x7E00, 0x7D01, 0x3C00, 0x3BFF, 0x3C01,
        0x556F, 0x5570, 0x5571, 0x5575, 0x5576, 0x5580, 0x558B, 0x558C, 0x5590, 0x5591, 0x5190, 0x4881, 0x358B, 0x1400,
    ],
}  # fmt: skip

# Positions outside the cache, before its length is added to the last two.
OUTSIDE: Dict[str, List[int]] = {
    "int32": [-1, -(2**31), 2**31 - 1],
    "int64": [-1, -(2**31), 2**31 - 1, 2**40, -(2**40)],
}
PAST: List[int] = [0, 5]

_BLOCK = 1 << 14  # words made at a time on the CPU: they stay in its cache, and PyTorch's pool is not woken


def seed(case: str, field: str) -> int:
    """Of a field's words: its name decides, so that a case added to the corpus changes no other."""
    return zlib.crc32(f"{case}:{field}".encode())


def words(seed: int, start: int, count: int, device: torch.device) -> Tensor:
    """int64 ``[count]``, each a mixed 32-bit word: those of the counters from `start` on.

    No product reaches 2^63, so nothing here depends on how an overflow wraps.
    """
    x = torch.arange(start, start + count, dtype=torch.int64, device=device)
    x *= seed | 1
    x += seed
    x &= WORD
    x ^= x >> 15
    x *= 0x2C1B3C6D
    x &= WORD
    x ^= x >> 12
    x *= 0x297A2D39
    x &= WORD
    x ^= x >> 15
    return x


def patterns(field: Field, w: Tensor, start: int) -> Tensor:
    """The bit patterns (int64, not negative) that a floating-point field has for the words `w`."""
    form = FORMATS[field.dtype]
    sign = 1 << (form.width - 1)
    if field.kind == "bits":
        return w & (2 * sign - 1)
    if field.kind == "zeros":
        return w & sign
    if field.kind == "sweep":
        # every pattern in turn; of float32, one from each of `count` stretches of equal length
        stretch = (1 << form.width) // min(field.numel, 1 << form.width)
        index = torch.arange(start, start + len(w), dtype=torch.int64, device=w.device)
        return (index * stretch + (w & (stretch - 1))) & (2 * sign - 1)
    if field.kind in ("edges", "sprinkled"):
        table = torch.tensor(EDGES[field.dtype], dtype=torch.int64, device=w.device)
        edges = table[(w >> 8) % len(table)] | ((w >> 7) & 1) * sign
        if field.kind == "edges":
            return edges
        return torch.where((w & 127) == 0, edges, _spread("moderate", form, w))
    return _spread(field.kind, form, w)


def _spread(kind: str, form: Format, w: Tensor) -> Tensor:
    """Sign and mantissa at random, the exponent from the kind's range."""
    wide, narrow, random = EXPONENTS[kind]
    low = narrow if form.mantissa == 10 else wide
    exponent = ((w >> form.taken) & ((1 << random) - 1)) + low
    kept = (1 << (form.width - 1)) | ((1 << form.mantissa) - 1)
    return (w & kept) | (exponent << form.mantissa)


def positions(field: Field, w: Tensor) -> Tensor:
    """int64 positions for a cache of `field.bound` rows: one in eight lies outside it."""
    outside = OUTSIDE[field.dtype] + [field.bound + past for past in PAST]
    table = torch.tensor(outside, dtype=torch.int64, device=w.device)
    return torch.where((w & 7) == 0, table[(w >> 3) % len(table)], (w >> 3) % max(1, field.bound))


def as_dtype(bits: Tensor, dtype: str) -> Tensor:
    """Bit patterns (int64) -> a tensor of the storage type that holds them."""
    form = FORMATS[dtype]
    half = 1 << (form.width - 1)
    return ((bits ^ half) - half).to(form.bits).view(form.dtype)


def make(case: str, field: Field, device: torch.device) -> Tensor:
    """The values of one field of a case, contiguous, of its shape and dtype."""
    floating = field.dtype in FORMATS
    dtype = FORMATS[field.dtype].dtype if floating else getattr(torch, field.dtype)
    values = torch.empty(field.numel, dtype=dtype, device=device)
    start, first = 0, seed(case, field.name)
    block = _BLOCK if device.type == "cpu" else field.numel
    while start < field.numel:
        count = min(block, field.numel - start)
        w = words(first, start, count, device)
        part = as_dtype(patterns(field, w, start), field.dtype) if floating else positions(field, w)
        values[start : start + count] = part
        start += count
    return values.view(field.shape)
