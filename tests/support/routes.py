"""The three ways a call can run, each as functions with the public signatures."""

from __future__ import annotations

from typing import Any, Callable, Dict

import edge_ops
from edge_ops import native, reference

OPERATORS = (
    "rms_norm",
    "fused_add_rms_norm",
    "silu_and_mul",
    "gelu_tanh_and_mul",
    "rotary_embedding",
    "fused_qk_norm_rope",
)


def _public() -> Dict[str, Callable[..., Any]]:
    return {name: getattr(edge_ops, name) for name in OPERATORS}


class _Dispatcher:
    """The registered operators, called as torch.ops functions: no Python check in between."""

    @staticmethod
    def rms_norm(x, weight, eps=1e-6, *, weight_offset=0.0, out=None):
        if out is None:
            return native.ops.rms_norm(x, weight, eps, weight_offset)
        assert native.ops.rms_norm_out(out, x, weight, eps, weight_offset) is None
        return out

    @staticmethod
    def fused_add_rms_norm(x, residual, weight, eps=1e-6, *, weight_offset=0.0):
        assert native.ops.fused_add_rms_norm(x, residual, weight, eps, weight_offset) is None
        return x, residual

    @staticmethod
    def silu_and_mul(x, *, out=None):
        return _Dispatcher._gated("silu_and_mul", x, out)

    @staticmethod
    def gelu_tanh_and_mul(x, *, out=None):
        return _Dispatcher._gated("gelu_tanh_and_mul", x, out)

    @staticmethod
    def _gated(name, x, out):
        if out is None:
            return getattr(native.ops, name)(x)
        assert getattr(native.ops, f"{name}_out")(out, x) is None
        return out

    @staticmethod
    def rotary_embedding(positions, query, key, cos_sin_cache, *, interleaved=False):
        assert native.ops.rotary_embedding(positions, query, key, cos_sin_cache, interleaved) is None
        return query, key

    @staticmethod
    def fused_qk_norm_rope(
        positions, query, key, q_weight, k_weight, cos_sin_cache, eps=1e-6, *, weight_offset=0.0,
        interleaved=False, round_normalized=True, query_out=None, key_out=None,
    ):  # fmt: skip
        tail = (positions, query, key, q_weight, k_weight, cos_sin_cache, eps, weight_offset, interleaved)
        if query_out is None and key_out is None:
            native.ops.fused_qk_norm_rope(*tail, round_normalized)
            return query, key
        # the out form writes elsewhere or, where an output is the input itself, in place
        outs = [value if out is None else out for value, out in ((query, query_out), (key, key_out))]
        native.ops.fused_qk_norm_rope_out(*outs, *tail, round_normalized)
        return outs[0], outs[1]


class _Reference:
    """The plain PyTorch form, written back as the public functions do."""

    @staticmethod
    def rms_norm(x, weight, eps=1e-6, *, weight_offset=0.0, out=None):
        result = reference.rms_norm(x, weight, eps, weight_offset)
        return result if out is None else out.copy_(result)

    @staticmethod
    def fused_add_rms_norm(x, residual, weight, eps=1e-6, *, weight_offset=0.0):
        normed, stream = reference.fused_add_rms_norm(x, residual, weight, eps, weight_offset)
        return x.copy_(normed), residual.copy_(stream)

    @staticmethod
    def silu_and_mul(x, *, out=None):
        return reference.silu_and_mul(x) if out is None else out.copy_(reference.silu_and_mul(x))

    @staticmethod
    def gelu_tanh_and_mul(x, *, out=None):
        return reference.gelu_tanh_and_mul(x) if out is None else out.copy_(reference.gelu_tanh_and_mul(x))

    @staticmethod
    def rotary_embedding(positions, query, key, cos_sin_cache, *, interleaved=False):
        for heads in (query, key):
            if heads is not None:
                heads.copy_(reference.rotary_embedding(positions, heads, cos_sin_cache, interleaved))
        return query, key

    @staticmethod
    def fused_qk_norm_rope(
        positions, query, key, q_weight, k_weight, cos_sin_cache, eps=1e-6, *, weight_offset=0.0,
        interleaved=False, round_normalized=True, query_out=None, key_out=None,
    ):  # fmt: skip
        results = []
        for heads, weight, out in ((query, q_weight, query_out), (key, k_weight, key_out)):
            target = heads if out is None else out
            if heads is not None:
                target.copy_(
                    reference.qk_norm_rope(
                        positions, heads, weight, cos_sin_cache, eps, weight_offset, interleaved, round_normalized
                    )
                )
            results.append(target)
        return results[0], results[1]


ROUTES: Dict[str, Dict[str, Callable[..., Any]]] = {
    "public": _public(),
    "dispatcher": {name: getattr(_Dispatcher, name) for name in OPERATORS} if native.extension is not None else {},
    "reference": {name: getattr(_Reference, name) for name in OPERATORS},
}
