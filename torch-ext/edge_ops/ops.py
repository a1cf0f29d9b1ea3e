"""The six operators and the choice of how a call runs: direct, dispatcher or reference.

Each public function below is the whole meaning of a call in Python: check, then the registered operator
or the reference. Where this build has native code, `_public` puts a C function of the same signature in
front of it, which serves plain tensors in eager mode without touching the dispatcher, and hands
everything else, errors included, to the Python function.
"""

import inspect
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from . import checks, native, reference

_FUNCTIONS: Dict[str, Callable[..., Any]] = {}

# Ranks above this go to the reference: the native records have room for so many dimensions.
MAX_RANK = 8


def _public(function: Callable[..., Any]) -> Callable[..., Any]:
    """The native direct function in front of `function`, or `function` itself in a build without one."""
    _FUNCTIONS[function.__name__] = function
    if native.extension is None or native.DIRECT_DISABLED:
        return function
    from . import dynamo

    direct = native.extension.bind(function.__name__, function, function.__doc__ or "")
    dynamo.substitute(direct, function)
    return direct


def _registered(*tensors: Optional[Tensor], writes: bool = False) -> bool:
    """Whether the registered operator covers these tensors (the first one decides dtype and device)."""
    present = [t for t in tensors if t is not None]
    return (
        native.extension is not None
        and len(present) > 0
        and all(isinstance(t, Tensor) and t.dim() <= MAX_RANK for t in present)
        and present[0].dtype in native.ROW_DTYPES
        and present[0].device.type in (*native.DEVICES, "meta")
        and not _transformed(writes)
    )


def _transformed(writes: bool) -> bool:
    """Inside a torch.func transform that the operator cannot take part in: any but vmap of a functional one."""
    if torch.compiler.is_dynamo_compiling():
        return False
    levels = torch._C._functorch.get_interpreter_stack() or ()
    return any(writes or level.key() != torch._C._functorch.TransformType.Vmap for level in levels)


def _wrote(*tensors: Optional[Tensor]) -> None:
    """Counts up the versions of what a registered operator wrote: autograd then notices that a saved tensor changed.

    Not while Dynamo traces: the compiled program does it for its inputs.
    """
    if not torch.compiler.is_dynamo_compiling():
        torch.autograd.graph.increment_version([t for t in tensors if t is not None])


def _unchecked(*tensors: Optional[Tensor]) -> bool:
    """Whether Dynamo traces a call of a registered operator: its shape function checks, and tracing takes time."""
    return torch.compiler.is_dynamo_compiling() and _registered(*tensors)


@_public
def rms_norm(
    x: Tensor,
    weight: Optional[Tensor],
    eps: float = 1e-6,
    *,
    weight_offset: float = 0.0,
    out: Optional[Tensor] = None,
) -> Tensor:
    """RMSNorm over the last dimension (Zhang and Sennrich, 2019, arXiv:1910.07467).

    ``x / sqrt(mean(x^2) + eps) * (weight + weight_offset)``, in float32, rounded once to x's dtype.

    Args:
        x: ``[..., hidden]``; float32, bfloat16 or float16 (float64 runs in PyTorch). Any outer strides.
        weight: ``[hidden]``, x's dtype or float32; None for no weight (the offset is then unused).
        eps: added to the mean square.
        weight_offset: added to the weight in float32; 1.0 for Gemma's zero-centred weights.
        out: like x, where to put the result; may be x itself.

    Returns:
        ``out``, or a new contiguous tensor like x. Differentiable in x and weight without ``out``.

    Raises:
        TypeError: an argument is not a tensor or has the wrong dtype.
        ValueError: a rank, shape, stride, device or overlap that is not allowed.
        RuntimeError: ``out`` together with a tensor that requires grad.
    """
    if not _unchecked(x, weight, out):
        checks.rms_norm(x, weight, eps, weight_offset, out)
    if _registered(x, weight, out, writes=out is not None):
        if out is None:
            return native.ops.rms_norm(x, weight, eps, weight_offset)
        native.ops.rms_norm_out(out, x, weight, eps, weight_offset)
        _wrote(out)
        return out
    result = reference.rms_norm(x, weight, eps, weight_offset)
    return result if out is None else out.copy_(result)


@_public
def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Optional[Tensor],
    eps: float = 1e-6,
    *,
    weight_offset: float = 0.0,
) -> Tuple[Tensor, Tensor]:
    """Residual add and RMSNorm in one pass, in place.

    ``residual <- x + residual`` (rounded to the dtype, the bits of eager addition), then
    ``x <- rms_norm(residual, weight, eps)``.

    Args:
        x: ``[..., hidden]``; float32, bfloat16 or float16 (float64 runs in PyTorch). Overwritten by the norm.
        residual: like x, in other memory. Overwritten by the sum.
        weight: ``[hidden]``, x's dtype or float32, or None.
        eps: added to the mean square.
        weight_offset: added to the weight in float32.

    Returns:
        ``(x, residual)``.

    Raises:
        TypeError, ValueError: as `rms_norm`; also where x and residual overlap.
        RuntimeError: a tensor requires grad while grad mode is on.
    """
    if not _unchecked(x, residual, weight):
        checks.fused_add_rms_norm(x, residual, weight, eps, weight_offset)
    if _registered(x, residual, weight, writes=True):
        native.ops.fused_add_rms_norm(x, residual, weight, eps, weight_offset)
        _wrote(x, residual)
        return x, residual
    normed, stream = reference.fused_add_rms_norm(x, residual, weight, eps, weight_offset)
    return x.copy_(normed), residual.copy_(stream)


def _gated_activation(name: str, x: Tensor, out: Optional[Tensor]) -> Tensor:
    if not _unchecked(x, out):
        checks.gated_activation(name, x, out)
    if _registered(x, out, writes=out is not None):
        if out is None:
            return getattr(native.ops, name)(x)
        getattr(native.ops, f"{name}_out")(out, x)
        _wrote(out)
        return out
    result = getattr(reference, name)(x)
    return result if out is None else out.copy_(result)


@_public
def silu_and_mul(x: Tensor, *, out: Optional[Tensor] = None) -> Tensor:
    """SwiGLU's product: ``silu(gate) * up`` of a packed ``[gate, up]`` (Shazeer, 2020, arXiv:2002.05202).

    ``silu(g) = g / (1 + exp(-g))``, in float32, rounded once to x's dtype.

    Args:
        x: ``[..., 2 * d]``, gate then up; float32, bfloat16 or float16 (float64 runs in PyTorch).
        out: ``[..., d]``, x's dtype, apart from x.

    Returns:
        ``out``, or a new contiguous ``[..., d]``. Differentiable without ``out``.

    Raises:
        TypeError, ValueError, RuntimeError: as `rms_norm`; also for an odd last dimension.
    """
    return _gated_activation("silu_and_mul", x, out)


@_public
def gelu_tanh_and_mul(x: Tensor, *, out: Optional[Tensor] = None) -> Tensor:
    """GeGLU's product with the tanh form of GELU: ``gelu(gate, approximate="tanh") * up``.

    ``gelu(g) = g * sigmoid(2 sqrt(2 / pi) (g + 0.044715 g^3))``, which equals the tanh form
    (Hendrycks and Gimpel, 2016, arXiv:1606.08415), in float32, rounded once to x's dtype.

    Args:
        x: ``[..., 2 * d]``, gate then up; float32, bfloat16 or float16 (float64 runs in PyTorch).
        out: ``[..., d]``, x's dtype, apart from x.

    Returns:
        ``out``, or a new contiguous ``[..., d]``. Differentiable without ``out``.

    Raises:
        TypeError, ValueError, RuntimeError: as `rms_norm`; also for an odd last dimension.
    """
    return _gated_activation("gelu_tanh_and_mul", x, out)


@_public
def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Optional[Tensor],
    cos_sin_cache: Tensor,
    *,
    interleaved: bool = False,
) -> Tuple[Tensor, Optional[Tensor]]:
    """Rotary position embedding of query and key, in place (Su et al., 2021, arXiv:2104.09864).

    ``a' = a cos - b sin``, ``b' = b cos + a sin`` for the pairs (i, i + rotary_dim / 2), or (2 i, 2 i + 1)
    when interleaved; coordinates past rotary_dim are left alone.

    Args:
        positions: int32 or int64, ``[tokens]`` or query's leading shape, any stride. A token whose position
            is negative or past the cache is left unrotated.
        query: ``[..., heads, head_size]``; float32, bfloat16 or float16 (float64 runs in PyTorch).
        key: the same with its own head count, or None.
        cos_sin_cache: ``[max_position, rotary_dim]`` = cos half, then sin half; float32 or query's dtype;
            rotary_dim even, at most head_size, 0 for no rotation. `rope_cache` builds it.
        interleaved: pairs of neighbours (GPT-J) instead of halves (GPT-NeoX).

    Returns:
        ``(query, key)``.

    Raises:
        TypeError, ValueError: as `rms_norm`.
        RuntimeError: a tensor requires grad while grad mode is on.
    """
    if not _unchecked(query, key, cos_sin_cache):
        checks.rotary_embedding(positions, query, key, cos_sin_cache)
    if _registered(query, key, cos_sin_cache, writes=True):
        native.ops.rotary_embedding(positions, query, key, cos_sin_cache, interleaved)
        _wrote(query, key)
        return query, key
    for heads in (query, key):
        if heads is not None:
            heads.copy_(reference.rotary_embedding(positions, heads, cos_sin_cache, interleaved))
    return query, key


@_public
def fused_qk_norm_rope(
    positions: Tensor,
    query: Optional[Tensor],
    key: Optional[Tensor],
    q_weight: Optional[Tensor],
    k_weight: Optional[Tensor],
    cos_sin_cache: Tensor,
    eps: float = 1e-6,
    *,
    weight_offset: float = 0.0,
    interleaved: bool = False,
    round_normalized: bool = True,
    query_out: Optional[Tensor] = None,
    key_out: Optional[Tensor] = None,
) -> Tuple[Optional[Tensor], Optional[Tensor]]:
    """RMSNorm over each query and key head, then the rotation: the prologue of Qwen3 and Gemma 3 attention.

    Args:
        positions: as `rotary_embedding`. A token outside the cache is normalized and not rotated.
        query: ``[..., heads, head_size]``, or None where only the key is wanted.
        key: the same with its own head count, or None.
        q_weight: ``[head_size]``, query's dtype or float32, or None for no weight.
        k_weight: the same for the key.
        cos_sin_cache: as `rotary_embedding`.
        eps: added to the mean square.
        weight_offset: added to both weights in float32.
        interleaved: as `rotary_embedding`.
        round_normalized: round the normalized head to the dtype before the rotation, as the models do (the
            bits of `rms_norm` followed by `rotary_embedding`); False rotates the float32 value and rounds once.
        query_out: like query, where to put the result instead of in place; may be query itself.
        key_out: the same for the key.

    Returns:
        ``(query_out or query, key_out or key)``.

    Raises:
        TypeError, ValueError: as `rms_norm`.
        RuntimeError: a tensor requires grad while grad mode is on.
    """
    idle = (q_weight if query is None else None), (k_weight if key is None else None)
    seen = (query is not None or key is not None) and all(w is None or isinstance(w, Tensor) for w in idle)
    if not seen or not _unchecked(query, key, query_out, key_out, cos_sin_cache):
        checks.fused_qk_norm_rope(
            positions, query, key, q_weight, k_weight, cos_sin_cache, eps, weight_offset, query_out, key_out
        )
    # Without its side a weight means nothing, whatever its shape.
    q_weight, k_weight = (None if query is None else q_weight), (None if key is None else k_weight)
    tail = (cos_sin_cache, eps, weight_offset, interleaved, round_normalized)
    if _registered(query, key, query_out, key_out, cos_sin_cache, writes=True):
        # One registered operator writes in place and one elsewhere; a mixed call is one of each.
        inside_q, inside_k = (query if query_out is None else None), (key if key_out is None else None)
        if inside_q is not None or inside_k is not None:
            native.ops.fused_qk_norm_rope(positions, inside_q, inside_k, q_weight, k_weight, *tail)
        if query_out is not None or key_out is not None:
            outside_q, outside_k = (None if query_out is None else query), (None if key_out is None else key)
            native.ops.fused_qk_norm_rope_out(
                query_out, key_out, positions, outside_q, outside_k, q_weight, k_weight, *tail
            )
        _wrote(query if query_out is None else query_out, key if key_out is None else key_out)
        return (query if query_out is None else query_out), (key if key_out is None else key_out)
    results: List[Optional[Tensor]] = []
    for heads, weight, out in ((query, q_weight, query_out), (key, k_weight, key_out)):
        if heads is not None:
            target = heads if out is None else out
            target.copy_(reference.qk_norm_rope(positions, heads, weight, *tail))
            results.append(target)
        else:
            results.append(None)
    return results[0], results[1]


class Route(NamedTuple):
    """How a call would run: see `explain`."""

    route: str  # "direct", "dispatcher" or "reference"
    backend: str  # device type
    kernel: str  # ISA level on the CPU, "torch" for the reference
    reason: str


def explain(op: Any, *args: Any, **kwargs: Any) -> Route:
    """The route that ``op(*args, **kwargs)`` would take, without running it.

    Args:
        op: one of this package's six operators, or its name.
        args, kwargs: the arguments of the call.

    Returns:
        A `Route`: ``route`` ("direct", "dispatcher" or "reference"), ``backend`` (device type), ``kernel``
        (the CPU's ISA level, or "torch"), ``reason`` (in words).

    Raises:
        ValueError: op is not one of the operators.
        TypeError, ValueError, RuntimeError: the errors of the call itself, for arguments that it would refuse.
    """
    name = op if isinstance(op, str) else getattr(op, "__name__", repr(op))
    if name not in _FUNCTIONS:
        raise ValueError(f"op must be one of {', '.join(sorted(_FUNCTIONS))}, got {name}")
    bound = inspect.signature(_FUNCTIONS[name]).bind(*args, **kwargs)
    bound.apply_defaults()
    check = getattr(checks, name, checks.gated_activation)
    check(**{key: name if key == "op" else bound.arguments[key] for key in inspect.signature(check).parameters})

    tensors = [value for value in bound.arguments.values() if isinstance(value, Tensor)]
    rows = [t for t in tensors if t.dtype in checks.ROW_DTYPES]
    device, info = rows[0].device.type, native.build_info()
    kernel = str(info["isa_chosen"]) if device == "cpu" else device
    if native.extension is None:
        return Route("reference", device, "torch", "this build has no native code")
    refusal = "EDGE_OPS_DISABLE_DIRECT is set" if native.DIRECT_DISABLED else native.extension.probe(name, args, kwargs)
    if refusal is None:
        return Route("direct", device, kernel, "plain tensors in eager mode")
    if _registered(*rows):
        return Route("dispatcher", device, kernel, refusal)
    if rows[0].dtype not in native.ROW_DTYPES:
        refusal = f"native code has no {rows[0].dtype} rows"
    elif device not in native.DEVICES:
        refusal = f"this build has no {device} kernels"
    return Route("reference", device, "torch", refusal)
