"""Every operator against the numerics contract, on values that need no random generator.

The digests below are those of the contract's NumPy form (docs/numerics.md); a test computes them again from it.
"""

import ctypes
import hashlib
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

import torch
from torch import Tensor

from .. import ops, reference

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

ROW_LENGTHS = (64, 640, 1000, 2560)
GATED_LENGTHS = (37, 1536)
HEADS = ((64, 64), (256, 64), (96, 32))  # head size, how much of it rotates
POSITIONS = (0, 3, 15, -1, 16)  # the last two lie outside the cache

EXPECTED: Dict[str, Dict[str, str]] = {
    "float32": {
        "rms_norm": "88d7c9d726f7689b",
        "fused_add_rms_norm": "887c14405b65091f",
        "silu_and_mul": "5c026a3d8818800a",
        "gelu_tanh_and_mul": "7a94e7aaac4ca49c",
        "rotary_embedding": "dba9e2f44c7199f3",
        "fused_qk_norm_rope": "4f9a7a101d927637",
    },
    "bfloat16": {
        "rms_norm": "602fc807de524aac",
        "fused_add_rms_norm": "d46c439c07c5838e",
        "silu_and_mul": "faed1cb7511656ef",
        "gelu_tanh_and_mul": "87294af1cb9e1ead",
        "rotary_embedding": "67328771a5eb9f95",
        "fused_qk_norm_rope": "d9a99540303690eb",
    },
    "float16": {
        "rms_norm": "6c5c0141578e3511",
        "fused_add_rms_norm": "4bf7ed3305e93f6c",
        "silu_and_mul": "c57e66dd53ef5258",
        "gelu_tanh_and_mul": "4088b2e7ffd1a499",
        "rotary_embedding": "4617c66daeb71be7",
        "fused_qk_norm_rope": "9b178b9bcdc7d807",
    },
}


def corpus(shape: Tuple[int, ...], seed: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Values in [-4, 4) * scale: a 32-bit mixing hash of each element's index, rounded to `dtype`."""
    count = 1
    for size in shape:
        count *= size
    mask = 0xFFFFFFFF
    i = (torch.arange(count, dtype=torch.int64) + ((seed * 0x9E3779B9) & mask)) & mask
    for factor in (0x85EBCA6B, 0xC2B2AE35):
        i = i ^ (i >> 15)
        # A product of two 32-bit numbers in 64 bits wraps around, which leaves its low 32 bits as they are.
        i = (i * factor) & mask
    i = i ^ (i >> 16)
    unit = (i >> 8).to(torch.float32) / float(1 << 24) - 0.5
    return (unit * (8 * scale)).to(dtype).reshape(shape)


class Call(NamedTuple):
    """One call of an operator: the tensors are copied first, since some operators write in place."""

    operator: str
    arguments: Tuple[Any, ...]
    options: Dict[str, Any] = {}
    results: int = 1

    def on(self, module: Any) -> Tuple[Tensor, ...]:
        arguments = [a.clone() if isinstance(a, Tensor) else a for a in self.arguments]
        result = getattr(module, self.operator)(*arguments, **self.options)
        return result[: self.results] if isinstance(result, tuple) else (result,)


def _calls(dtype: torch.dtype) -> Iterator[Call]:
    for n in ROW_LENGTHS:
        x, r, w = corpus((5, n), 1, dtype), corpus((5, n), 2, dtype), corpus((n,), 3, dtype, 0.25)
        yield Call("rms_norm", (x, w, 1e-6), dict(weight_offset=1.0))
        yield Call("fused_add_rms_norm", (x, r, w, 1e-5), dict(weight_offset=0.0), results=2)
    for d in GATED_LENGTHS:
        x = corpus((5, 2 * d), 4, dtype, 3.0)
        yield Call("silu_and_mul", (x,))
        yield Call("gelu_tanh_and_mul", (x,))
    positions = torch.tensor(POSITIONS)
    for size, rotary in HEADS:
        heads, weight = corpus((5, 3, size), 5, dtype), corpus((size,), 6, dtype, 0.25)
        cache = corpus((16, rotary), 7, torch.float32, 0.25)
        for pairs in (False, True):
            yield Call("rotary_embedding", (positions, heads, None, cache), dict(interleaved=pairs))
            for seam in (True, False):
                options = dict(weight_offset=1.0, interleaved=pairs, round_normalized=seam)
                yield Call("fused_qk_norm_rope", (positions, heads, None, weight, None, cache, 1e-6), options)


class _Reference:
    """The reference under the signatures of the operators."""

    @staticmethod
    def rms_norm(x: Tensor, weight: Tensor, eps: float, weight_offset: float) -> Tensor:
        return reference.rms_norm(x, weight, eps, weight_offset)

    @staticmethod
    def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, weight_offset: float) -> Any:
        return reference.fused_add_rms_norm(x, residual, weight, eps, weight_offset)

    silu_and_mul = staticmethod(reference.silu_and_mul)
    gelu_tanh_and_mul = staticmethod(reference.gelu_tanh_and_mul)

    @staticmethod
    def rotary_embedding(positions: Tensor, query: Tensor, key: None, cache: Tensor, interleaved: bool) -> Any:
        return reference.rotary_embedding(positions, query, cache, interleaved), None

    @staticmethod
    def fused_qk_norm_rope(
        positions: Tensor, query: Tensor, key: None, q_weight: Tensor, k_weight: None, cache: Tensor, eps: float,
        weight_offset: float, interleaved: bool, round_normalized: bool,
    ) -> Any:  # fmt: skip
        tail = (eps, weight_offset, interleaved, round_normalized)
        return reference.qk_norm_rope(positions, query, q_weight, cache, *tail), None


def digests(dtype: torch.dtype, module: Any = ops) -> Dict[str, str]:
    """A digest of each operator's results on the corpus."""
    found: Dict[str, Any] = {}
    for call in _calls(dtype):
        digest = found.setdefault(call.operator, hashlib.sha256())
        for result in call.on(module):
            digest.update(_bits(result))
    return {operator: digest.hexdigest()[:16] for operator, digest in found.items()}


def _bits(values: Tensor) -> bytes:
    wide = values.to(torch.float32).contiguous()
    return ctypes.string_at(wide.data_ptr(), wide.numel() * 4)


class Outcome(NamedTuple):
    """One operator in one dtype."""

    operator: str
    dtype: str
    contract: bool  # the digest is the contract's
    reference: bool  # and the package's own reference gives it too


def run() -> List[Outcome]:
    """Runs every operator in every dtype."""
    outcomes = []
    for name, dtype in DTYPES.items():
        native, plain = digests(dtype), digests(dtype, _Reference)
        for operator, expected in EXPECTED[name].items():
            outcomes.append(Outcome(operator, name, native[operator] == expected, plain[operator] == expected))
    return outcomes
