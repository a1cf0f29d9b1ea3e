"""Tensors and arrays: storage types, devices, and the numbers that tests feed to the operators."""

from __future__ import annotations

import os
from typing import Tuple

import numpy as np
import torch

from .contract import round_to

DEVICE = os.environ.get("EDGE_OPS_TEST_DEVICE", "cpu")

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
BITS = {4: torch.int32, 2: torch.int16, 8: torch.int64}

KINDS = ("normal", "large", "small", "bits", "edges", "sprinkled", "zeros")


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Exactly the values of the tensor, as float32."""
    return tensor.detach().to("cpu").float().numpy().copy()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(BITS[tensor.element_size()])


def edge_values(dtype: str) -> np.ndarray:
    """Zeros, subnormals, the ends of the range, infinities, NaN, and where exp starts to saturate."""
    info = torch.finfo(DTYPES[dtype])
    magnitudes = [0.0, info.tiny, info.smallest_normal / 2, info.smallest_normal / 2**6, 1.0, info.max, np.inf]
    # exp(-x) is 0 from 87.34 on, overflows at 88.72; -87 and 89 are the clamps; the neighbours of each count
    for edge in (87.0, 87.33654, 88.0, 88.722839, 89.0, 44.5, 10.0, 9.01):
        magnitudes += [edge, np.nextafter(np.float32(edge), np.float32(0)), np.nextafter(np.float32(edge), F_INF)]
    magnitudes += [0.5, 0.34657359, 1e-8, 1e4, 3.0e38]
    values = round_to(np.array(magnitudes, np.float32), dtype)
    return np.concatenate([values, -values, np.array([np.nan], np.float32)])


F_INF = np.float32(np.inf)


def random_bits(rng: np.random.Generator, size: int, dtype: str) -> np.ndarray:
    """Every bit pattern of the type is equally likely: all exponents, subnormals, infinities, NaNs."""
    if dtype == "f32":
        return rng.integers(0, 2**32, size, dtype=np.uint32).view(np.float32)
    patterns = rng.integers(0, 2**16, size, dtype=np.uint16)
    if dtype == "f16":
        return patterns.view(np.float16).astype(np.float32)
    return (patterns.astype(np.uint32) << np.uint32(16)).view(np.float32)


def draw(rng: np.random.Generator, shape: Tuple[int, ...], dtype: str, kind: str = "normal") -> np.ndarray:
    """An array of values that the storage type can hold."""
    size = int(np.prod(shape))
    scale = {"normal": 1.0, "large": 40.0, "small": 1e-4, "sprinkled": 1.0}.get(kind)
    if scale is not None:
        values = round_to((rng.standard_normal(size) * scale).astype(np.float32), dtype)
        if kind == "sprinkled" and size:  # a few special values: most rows stay free of them
            at = rng.integers(0, size, 1 + size // 500)
            values[at] = rng.choice(edge_values(dtype), len(at))
    elif kind == "bits":
        values = random_bits(rng, size, dtype)
    elif kind == "edges":
        values = rng.choice(edge_values(dtype), size)
    elif kind == "zeros":
        values = np.where(rng.random(size) < 0.5, np.float32(0.0), np.float32(-0.0))
    else:
        raise ValueError(kind)
    return values.astype(np.float32).reshape(shape)


def draw_cache(rng: np.random.Generator, rows: int, rotary_dim: int, dtype: str) -> np.ndarray:
    """Cosines and sines of random angles: every row and column differs, unlike a real cache's first rows."""
    turn = rng.uniform(-np.pi, np.pi, (rows, rotary_dim // 2))
    return round_to(np.concatenate([np.cos(turn), np.sin(turn)], axis=1).astype(np.float32), dtype)


def same_bits(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Element by element; any NaN equals any NaN, +0 and -0 differ."""
    return (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))


def assert_same_bits(got: torch.Tensor, want: np.ndarray, what: str) -> None:
    values, want = to_numpy(got), np.ascontiguousarray(want, np.float32)
    assert values.shape == want.shape, f"{what}: shape {values.shape}, expected {want.shape}"
    equal = same_bits(np.ascontiguousarray(values), want)
    if not equal.all():
        at = tuple(int(i) for i in np.argwhere(~equal)[0])
        raise AssertionError(
            f"{what}: {int((~equal).sum())} of {equal.size} elements differ from the contract, first at {at}: "
            f"got {values[at]!r} ({values[at].view(np.uint32):#010x}), "
            f"expected {want[at]!r} ({want[at].view(np.uint32):#010x})"
        )
