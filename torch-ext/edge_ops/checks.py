"""What the operators accept, and the error that each refusal raises.

TypeError for what is not a tensor or has a dtype of the wrong kind; ValueError for rank, shape, stride,
device and overlap. Every message names the argument, says what it was and what is allowed. The native
code refuses the same inputs before it uses a pointer (csrc/ops); it hands what it refuses to these
functions, which put the refusal into words.
"""

import math
from typing import List, Optional, Sequence, Tuple

import torch
from torch import Tensor

ROW_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_ROW_DTYPE_NAMES = "float32, bfloat16, float16 or float64"


def _names(dtypes: Sequence[torch.dtype]) -> str:
    return " or ".join(sorted({str(dtype).replace("torch.", "") for dtype in dtypes}))


def _tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if value.layout is not torch.strided:
        raise ValueError(f"{name} must be a dense (strided) tensor, got layout {value.layout}")


def _rows(name: str, value: object, rank: int, shape: str) -> None:
    """A tensor of rows: floating point, at least `rank` dimensions, contiguous in the last one."""
    _tensor(name, value)
    assert isinstance(value, Tensor)
    if value.dtype not in ROW_DTYPES:
        raise TypeError(f"{name} must be {_ROW_DTYPE_NAMES}, got {value.dtype}")
    if value.dim() < rank:
        raise ValueError(f"{name} must be {shape}, got shape {tuple(value.shape)}")
    _last_contiguous(name, value)


def _last_contiguous(name: str, value: Tensor) -> None:
    if value.shape[-1] > 1 and value.stride(-1) != 1:
        raise ValueError(f"{name} must be contiguous in its last dimension, got strides {value.stride()}")


def _same_device(name: str, value: Tensor, like_name: str, like: Tensor) -> None:
    if value.device != like.device:
        raise ValueError(f"{name} must be on {like_name}'s device {like.device}, got {value.device}")


def _same_dtype(name: str, value: Tensor, like_name: str, like: Tensor) -> None:
    if value.dtype != like.dtype:
        raise TypeError(f"{name} must have {like_name}'s dtype {like.dtype}, got {value.dtype}")


def _same_shape(name: str, value: Tensor, like_name: str, like: Tensor) -> None:
    if value.shape != like.shape:
        raise ValueError(f"{name} must have {like_name}'s shape {tuple(like.shape)}, got {tuple(value.shape)}")


def _weight(name: str, value: Optional[Tensor], size_name: str, size: int, rows_name: str, rows: Tensor) -> None:
    if value is None:
        return
    _tensor(name, value)
    if value.dtype not in (rows.dtype, torch.float32):
        raise TypeError(f"{name} must be {_names((rows.dtype, torch.float32))}, got {value.dtype}")
    if value.dim() != 1 or value.shape[0] != size:
        raise ValueError(f"{name} must be [{size_name}] = [{size}], got shape {tuple(value.shape)}")
    _last_contiguous(name, value)
    _same_device(name, value, rows_name, rows)


def _number(name: str, value: object) -> None:
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a real number, got {type(value).__name__}") from None


# --- overlap -------------------------------------------------------------------------


def _has_memory(value: Tensor) -> bool:
    """Fake, functional and wrapped tensors have no address; the traced call is checked when it runs."""
    return (
        type(value) in (Tensor, torch.nn.Parameter)
        and value.device.type != "meta"
        and not torch.compiler.is_dynamo_compiling()
    )


def _address(value: Tensor) -> Optional[int]:
    if not _has_memory(value):
        return None
    try:
        return value.data_ptr() or None  # 0: a functional tensor
    except RuntimeError:  # a wrapper without storage
        return None


_Dims = List[Tuple[int, int]]


def _dims(value: Tensor) -> _Dims:
    """(stride, size) in bytes, the largest stride first, dimensions of size 1 left out."""
    item = value.element_size()
    return sorted(((st * item, n) for n, st in zip(value.shape, value.stride()) if n > 1), reverse=True)


def _span(dims: _Dims, item: int) -> int:
    return item + sum(stride * (n - 1) for stride, n in dims)


def _boxes_meet(a: _Dims, a_item: int, b: _Dims, b_item: int, delta: int) -> bool:
    """Whether two strided boxes share a byte, b starting `delta` bytes after a.

    Exact when the strides nest (each at least the span of those below it, as in any slice, transpose or
    unflatten of a contiguous tensor); True when they do not, since then it cannot be told cheaply.
    """
    if delta >= _span(a, a_item) or delta + _span(b, b_item) <= 0:
        return False
    if not a and not b:
        return True
    stride = max(dims[0][0] for dims in (a, b) if dims)
    rest_a, n_a = (a[1:], a[0][1]) if a and a[0][0] == stride else (a, 1)
    rest_b, n_b = (b[1:], b[0][1]) if b and b[0][0] == stride else (b, 1)
    span_a, span_b = _span(rest_a, a_item), _span(rest_b, b_item)
    if stride == 0 or span_a > stride or span_b > stride:
        return True
    first = max(-((span_a - 1 - delta) // stride), -(n_b - 1))
    last = min((delta + span_b - 1) // stride, n_a - 1)
    return any(_boxes_meet(rest_a, a_item, rest_b, b_item, delta - k * stride) for k in range(first, last + 1))


def _written(name: str, value: Tensor) -> None:
    """A tensor that is written must not overlap itself."""
    if _address(value) is None or value.numel() == 0:
        return
    extent = value.element_size()
    for stride, n in reversed(_dims(value)):
        if stride < extent:
            raise ValueError(
                f"{name} is written and must not overlap itself, got shape {tuple(value.shape)} "
                f"with strides {value.stride()}"
            )
        extent += stride * (n - 1)


def _same_memory(a: Tensor, b: Tensor) -> bool:
    """The same elements in the same order; the shapes are equal already."""
    return a.data_ptr() == b.data_ptr() and all(
        n == 1 or stride_a == stride_b for n, stride_a, stride_b in zip(a.shape, a.stride(), b.stride())
    )


def _apart(name: str, value: Tensor, other_name: str, other: Optional[Tensor], may_be_same: bool = False) -> None:
    """`value` is written; `other` is read or written too."""
    if other is None or value.device != other.device:
        return
    start, other_start = _address(value), _address(other)
    if start is None or other_start is None or value.numel() == 0 or other.numel() == 0:
        return
    if may_be_same and _same_memory(value, other):
        return
    if _boxes_meet(_dims(value), value.element_size(), _dims(other), other.element_size(), other_start - start):
        allowed = f"; it may be exactly {other_name} or apart from it" if may_be_same else ""
        raise ValueError(f"{name} is written and must not overlap {other_name}{allowed}")


def needs_grad(*tensors: Optional[Tensor]) -> bool:
    """Whether autograd would record a call on these tensors."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def refuse_grad(op: str, **tensors: Optional[Tensor]) -> None:
    """In-place operators and `out=` have no gradient: refuse rather than drop it."""
    for name, value in tensors.items():
        if needs_grad(value):
            raise RuntimeError(
                f"{op} writes in place and has no gradient, but {name} requires grad: call it under "
                f"torch.no_grad() or torch.inference_mode(), or detach {name}"
            )


# --- the operators -------------------------------------------------------------------


def rms_norm(x, weight, eps, weight_offset, out) -> None:
    _rows("x", x, 1, "[..., hidden]")
    _weight("weight", weight, "hidden", x.shape[-1], "x", x)
    _number("eps", eps)
    _number("weight_offset", weight_offset)
    if out is not None:
        _out(out, x, x.shape)
        _apart("out", out, "x", x, may_be_same=True)
        _apart("out", out, "weight", weight)
        refuse_grad("rms_norm(out=...)", x=x, weight=weight, out=out)


def _out(out, x: Tensor, shape: Sequence[int]) -> None:
    _rows("out", out, 1, "[..., d]")
    _same_device("out", out, "x", x)
    _same_dtype("out", out, "x", x)
    if tuple(out.shape) != tuple(shape):
        raise ValueError(f"out must have shape {tuple(shape)}, got {tuple(out.shape)}")
    _written("out", out)


def fused_add_rms_norm(x, residual, weight, eps, weight_offset) -> None:
    _rows("x", x, 1, "[..., hidden]")
    _rows("residual", residual, 1, "[..., hidden]")
    _same_device("residual", residual, "x", x)
    _same_dtype("residual", residual, "x", x)
    _same_shape("residual", residual, "x", x)
    _weight("weight", weight, "hidden", x.shape[-1], "x", x)
    _number("eps", eps)
    _number("weight_offset", weight_offset)
    for name, value in (("x", x), ("residual", residual)):
        _written(name, value)
        _apart(name, value, "weight", weight)
    _apart("x", x, "residual", residual)
    refuse_grad("fused_add_rms_norm", x=x, residual=residual, weight=weight)


def gated_activation(op: str, x, out) -> None:
    _rows("x", x, 1, "[..., 2 * d] (gate, up)")
    if x.shape[-1] % 2:
        raise ValueError(f"x must be [..., 2 * d] (gate, up) with an even last dimension, got shape {tuple(x.shape)}")
    if out is not None:
        _out(out, x, (*x.shape[:-1], x.shape[-1] // 2))
        _apart("out", out, "x", x)
        refuse_grad(f"{op}(out=...)", x=x, out=out)


def _positions(positions, heads_name: str, heads: Tensor) -> None:
    _tensor("positions", positions)
    if positions.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"positions must be int32 or int64, got {positions.dtype}")
    leading = tuple(heads.shape[:-2])
    tokens = math.prod(leading)  # not Size.numel(), which turns a symbolic size into a constant
    if tuple(positions.shape) not in (leading, (tokens,)):
        raise ValueError(
            f"positions must be [tokens] = [{tokens}] or {heads_name}'s leading shape {leading}, "
            f"got shape {tuple(positions.shape)}"
        )
    _same_device("positions", positions, heads_name, heads)


def _cache(cos_sin_cache, heads_name: str, heads: Tensor) -> None:
    _tensor("cos_sin_cache", cos_sin_cache)
    if cos_sin_cache.dtype not in (torch.float32, heads.dtype):
        raise TypeError(f"cos_sin_cache must be {_names((heads.dtype, torch.float32))}, got {cos_sin_cache.dtype}")
    if cos_sin_cache.dim() != 2:
        raise ValueError(f"cos_sin_cache must be [max_position, rotary_dim], got shape {tuple(cos_sin_cache.shape)}")
    rotary_dim, head_size = cos_sin_cache.shape[1], heads.shape[-1]
    if rotary_dim % 2 or rotary_dim > head_size:
        raise ValueError(
            f"cos_sin_cache must be [max_position, rotary_dim] with rotary_dim even and at most the head size "
            f"{head_size}, got shape {tuple(cos_sin_cache.shape)}"
        )
    _last_contiguous("cos_sin_cache", cos_sin_cache)
    _same_device("cos_sin_cache", cos_sin_cache, heads_name, heads)


def _query_and_key(query, key) -> Tuple[str, Tensor]:
    """Checks that query and key go together; -> the name and tensor that the rest is compared with."""
    if query is None and key is None:
        raise TypeError("query must be a torch.Tensor where key is None")
    for name, value in (("query", query), ("key", key)):
        if value is not None:
            _rows(name, value, 2, "[..., heads, head_size]")
    if query is None:
        return "key", key
    if key is not None:
        _same_device("key", key, "query", query)
        _same_dtype("key", key, "query", query)
        if key.shape[:-2] != query.shape[:-2] or key.shape[-1] != query.shape[-1]:
            raise ValueError(
                f"key must have query's leading shape and head size, [*{tuple(query.shape[:-2])}, key heads, "
                f"{query.shape[-1]}], got shape {tuple(key.shape)}"
            )
    return "query", query


def rotary_embedding(positions, query, key, cos_sin_cache) -> None:
    if query is None:
        raise TypeError("query must be a torch.Tensor, got NoneType")
    name, heads = _query_and_key(query, key)
    _positions(positions, name, heads)
    _cache(cos_sin_cache, name, heads)
    _rotated_in_place(query, key, positions=positions, cos_sin_cache=cos_sin_cache)
    refuse_grad("rotary_embedding", query=query, key=key, cos_sin_cache=cos_sin_cache)


def _rotated_in_place(query: Optional[Tensor], key: Optional[Tensor], **read: Optional[Tensor]) -> None:
    for name, value in (("query", query), ("key", key)):
        if value is not None:
            _written(name, value)
            for other_name, other in read.items():
                _apart(name, value, other_name, other)
    if query is not None:
        _apart("query", query, "key", key)


def fused_qk_norm_rope(
    positions, query, key, q_weight, k_weight, cos_sin_cache, eps, weight_offset, query_out, key_out
) -> None:
    name, heads = _query_and_key(query, key)
    _positions(positions, name, heads)
    _cache(cos_sin_cache, name, heads)
    _number("eps", eps)
    _number("weight_offset", weight_offset)
    written = {}
    for name, value, weight_name, weight, out_name, out in (
        ("query", query, "q_weight", q_weight, "query_out", query_out),
        ("key", key, "k_weight", k_weight, "key_out", key_out),
    ):
        if value is None:
            if out is not None:
                raise ValueError(f"{out_name} must be None where {name} is None")
            if weight is not None:
                _tensor(weight_name, weight)
            continue
        _weight(weight_name, weight, "head_size", value.shape[-1], name, value)
        if out is None:
            _written(name, value)
            written[name] = value
            continue
        _rows(out_name, out, 2, "[..., heads, head_size]")
        _same_device(out_name, out, name, value)
        _same_dtype(out_name, out, name, value)
        _same_shape(out_name, out, name, value)
        _written(out_name, out)
        _apart(out_name, out, name, value, may_be_same=True)
        written[out_name] = out
    read = {
        "positions": positions,
        "cos_sin_cache": cos_sin_cache,
        "q_weight": q_weight if query is not None else None,
        "k_weight": k_weight if key is not None else None,
    }
    for name, value in written.items():
        for other_name, other in read.items():
            _apart(name, value, other_name, other)
    pairs = list(written.items())
    if len(pairs) == 2:
        (first_name, first), (second_name, second) = pairs
        _apart(first_name, first, second_name, second)
        _apart(first_name, first, "key", key)
        _apart(second_name, second, "query", query)
    refuse_grad(
        "fused_qk_norm_rope",
        query=query,
        key=key,
        q_weight=q_weight,
        k_weight=k_weight,
        cos_sin_cache=cos_sin_cache,
        query_out=query_out,
        key_out=key_out,
    )
