"""The qualification's cases in NumPy: the inputs by integer arithmetic of their own, the results by the contract.

Only the list of cases is the package's. The numbers and the results are computed here, without it.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Dict

import numpy as np

from . import contract

U = np.uint32
SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
NAN = {"float32": 0x7FC00000, "bfloat16": 0x7FC0, "float16": 0x7E00}
# sign bit, mantissa bits, first random bit of the exponent
FORM = {"float32": (31, 23, 23), "bfloat16": (15, 7, 16), "float16": (15, 10, 16)}
LOW = {  # lowest exponent field: float32 and bfloat16, float16
    "moderate": (121, 9),
    "unit": (119, 7),
    "saturating": (129, 17),
    "huge": (247, 23),
    "tiny": (0, 0),
}
EDGES_32 = (
    "00000000 00000001 00000002 00400000 007fffff 00800000 00800001 7f7fffff 7f800000 7fc00000 7fa00001 3f800000 "
    "3f7fffff 3f800001 42adffff 42ae0000 42ae0001 42aeac4f 42aeac50 42aeac51 42b00000 42b17217 42b17218 42b17219 "
    "42b1ffff 42b20000 42b20001 42320000 41102810 3eb17218 5f000000 20000000"
)
EDGES_BF16 = (
    "0000 0001 0002 0040 007f 0080 0081 7f7f 7f80 7fc0 7fa1 3f80 3f7f 3f81 42ad 42ae 42af 42b0 42b1 42b2 42b3 4232 "
    "4110 3eb1 5f00 2000"
)
EDGES_F16 = (
    "0000 0001 0002 0200 03ff 0400 0401 7bff 7c00 7e00 7d01 3c00 3bff 3c01 556f 5570 5571 5575 5576 5580 558b 558c "
    "5590 5591 5190 4881 358b 1400"
)
EDGES = {
    name: np.array([int(p, 16) for p in table.split()], U)
    for name, table in (("float32", EDGES_32), ("bfloat16", EDGES_BF16), ("float16", EDGES_F16))
}
OUTSIDE = {"int32": [-1, -(2**31), 2**31 - 1], "int64": [-1, -(2**31), 2**31 - 1, 2**40, -(2**40)]}


@contract.quiet
def words(case: str, field) -> np.ndarray:
    """One mixed 32-bit word for each element: all arithmetic modulo 2^32."""
    seed = U(zlib.crc32(f"{case}:{field.name}".encode()))
    x = np.arange(field.numel, dtype=U) * (seed | U(1)) + seed
    x = (x ^ (x >> U(15))) * U(0x2C1B3C6D)
    x = (x ^ (x >> U(12))) * U(0x297A2D39)
    return x ^ (x >> U(15))


def patterns(case: str, field) -> np.ndarray:
    w = words(case, field)
    sign, mantissa, taken = (U(number) for number in FORM[field.dtype])
    all_bits = U((1 << (int(sign) + 1)) - 1)
    if field.kind == "bits":
        return w & all_bits
    if field.kind == "zeros":
        return w & (U(1) << sign)
    if field.kind == "sweep":
        stretch = 2 ** (int(sign) + 1) // min(field.numel, 2 ** (int(sign) + 1))
        return (np.arange(field.numel, dtype=U) * U(stretch) + w % U(stretch)) & all_bits
    edges = EDGES[field.dtype][(w >> U(8)) % U(len(EDGES[field.dtype]))] | (((w >> U(7)) % U(2)) << sign)
    if field.kind == "edges":
        return edges
    low = U(LOW["moderate" if field.kind == "sprinkled" else field.kind][field.dtype == "float16"])
    spread = (w & (U(1) << sign)) | ((low + ((w >> taken) % U(8))) << mantissa) | (w % (U(1) << mantissa))
    return np.where(w % U(128) == 0, edges, spread) if field.kind == "sprinkled" else spread


def make(case: str, field) -> np.ndarray:
    """A field's values: float32 that its dtype holds, or positions."""
    if field.kind == "positions":
        w = words(case, field).astype(np.int64)
        outside = np.array([*OUTSIDE[field.dtype], field.bound, field.bound + 5])
        return np.where(w % 8 == 0, outside[(w >> 3) % len(outside)], (w >> 3) % max(1, field.bound)).reshape(
            field.shape
        )
    return values_of(patterns(case, field), field.dtype).reshape(field.shape)


def values_of(bits: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "float16":
        return bits.astype(np.uint16).view(np.float16).astype(np.float32)
    return (bits if dtype == "float32" else bits << U(16)).view(np.float32)


def bits_of(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values that the dtype holds -> its little-endian patterns, every NaN as one."""
    values = np.ascontiguousarray(values, np.float32)
    if dtype == "float16":
        bits = values.astype(np.float16).view(np.uint16)
    elif dtype == "bfloat16":
        bits = (values.view(U) >> U(16)).astype(np.uint16)
    else:
        bits = values.view(U)
    return np.where(np.isnan(values), bits.dtype.type(NAN[dtype]), bits).astype(bits.dtype.newbyteorder("<"))


def results(case) -> Dict[str, np.ndarray]:
    """The contract's results of a case, in the order of its digest."""
    a = {field.name: make(case.name, field) for field in case.fields}
    dtype, options = SHORT[case.dtype], case.options
    rows = {name: a[name].reshape(-1, a[name].shape[-1]) for name in ("x", "residual", "gate", "up") if name in a}
    if case.operator == "rms_norm":
        norm = contract.rms_norm(rows["x"], a.get("weight"), options["eps"], options["weight_offset"], dtype)
        return {"result": norm.reshape(a["x"].shape)}
    if case.operator == "fused_add_rms_norm":
        normed, total = contract.fused_add_rms_norm(
            rows["x"], rows["residual"], a.get("weight"), options["eps"], options["weight_offset"], dtype
        )
        return {"x": normed.reshape(a["x"].shape), "residual": total.reshape(a["x"].shape)}
    if case.operator in ("silu_and_mul", "gelu_tanh_and_mul"):
        x = np.concatenate([rows["gate"], rows["up"]], axis=1)
        return {"result": getattr(contract, case.operator)(x, dtype).reshape(a["gate"].shape)}
    found = {}
    for side, weight in (("query", "q_weight"), ("key", "k_weight")):
        if side not in a:
            continue
        heads = a[side].reshape(-1, *a[side].shape[-2:])
        positions = a["positions"].reshape(-1)
        if case.operator == "rotary_embedding":
            turned = contract.rotary_embedding(positions, heads, a["cache"], options["interleaved"], dtype)
        else:
            turned = contract.fused_qk_norm_rope(
                positions, heads, a.get(weight), a["cache"], options["eps"], options["weight_offset"],
                options["interleaved"], options["round_normalized"], dtype,
            )  # fmt: skip
        found[side] = turned.reshape(a[side].shape)
    return found


def digest(case) -> str:
    found = hashlib.sha256()
    for values in results(case).values():
        found.update(bits_of(values, case.dtype).tobytes())
    return found.hexdigest()[:32]
