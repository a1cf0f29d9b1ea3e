"""Fused operators for decoding small transformers, with the same bits on every backend."""

from . import interpreter as _interpreter  # noqa: F401  # before anything that imports torch
from . import layers
from .models import patch, unpatch
from .ops import (
    Route,
    explain,
    fused_add_rms_norm,
    fused_qk_norm_rope,
    gelu_tanh_and_mul,
    rms_norm,
    rotary_embedding,
    silu_and_mul,
)
from .rope import rope_cache
from .tuning import load_at_import as _load_at_import
from .tuning import load_tuning
from .version import __version__

__all__ = [
    "Route",
    "__version__",
    "explain",
    "fused_add_rms_norm",
    "fused_qk_norm_rope",
    "gelu_tanh_and_mul",
    "layers",
    "load_tuning",
    "patch",
    "rms_norm",
    "rope_cache",
    "rotary_embedding",
    "silu_and_mul",
    "unpatch",
]

_load_at_import()
