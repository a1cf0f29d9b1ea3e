"""Cos/sin caches for `rotary_embedding` and `fused_qk_norm_rope`, from a model's rope parameters.

The frequency formulas are those of transformers' modeling_rope_utils (`default`, `linear`, `dynamic`,
`yarn`, `longrope`, `llama3`); the papers stand at each function. Angles are computed in float64 and
rounded to float32 once: a float32 product of position and frequency is off by 1e-3 rad at 30 000 tokens.
"""

import math
from typing import Any, Mapping, Optional, Tuple, Union

import torch
from torch import Tensor


def rope_cache(
    max_position: int,
    rotary_dim: int,
    *,
    theta: float = 10000.0,
    rope_type: str = "default",
    scaling: Optional[Mapping[str, Any]] = None,
    partial_rotary_factor: float = 1.0,
    max_position_embeddings: Optional[int] = None,
    dtype: torch.dtype = torch.float32,
    device: Union[torch.device, str, None] = None,
) -> Tensor:
    """The cache of rotary angles, ``[max_position, rotary_dim]``: cos half, then sin half.

    Args:
        max_position: how many positions the cache holds.
        rotary_dim: the head size, or how much of it rotates; even after the partial factor.
        theta: base of the geometric series of wavelengths (Su et al., 2021, arXiv:2104.09864).
        rope_type: "default", "linear", "dynamic", "yarn", "longrope" or "llama3".
        scaling: that type's parameters, under transformers' names: ``factor``,
            ``original_max_position_embeddings``, ``attention_factor``, ``beta_fast``, ``beta_slow``,
            ``mscale``, ``mscale_all_dim``, ``truncate``, ``short_factor``, ``long_factor``,
            ``low_freq_factor``, ``high_freq_factor``. May hold rope_type, rope_theta and
            partial_rotary_factor too, which then win: a config's ``rope_parameters`` can be given whole.
        partial_rotary_factor: share of rotary_dim that rotates; the cache is that much narrower.
        max_position_embeddings: the model's trained context, for types that depend on it.
        dtype: float32 (recommended), bfloat16 or float16.
        device: where to put the cache.

    Returns:
        A new tensor. yarn's and longrope's attention factor is folded into cos and sin. "dynamic" and
        "longrope" depend on the length of the sequence: the cache is that of a sequence of max_position.

    Raises:
        ValueError: an unknown rope_type, a missing parameter, or sizes that are not allowed.
    """
    parameters = dict(scaling or {})
    rope_type = parameters.get("rope_type", parameters.get("type", rope_type))
    theta = float(parameters.get("rope_theta", theta))
    partial_rotary_factor = float(parameters.get("partial_rotary_factor", partial_rotary_factor))
    dim = int(rotary_dim * partial_rotary_factor)
    if max_position < 0:
        raise ValueError(f"max_position must be 0 or more, got {max_position}")
    if dim < 0 or dim % 2:
        raise ValueError(
            f"rotary_dim must be even after the partial factor, got {rotary_dim} * {partial_rotary_factor}"
        )
    if not dtype.is_floating_point:
        raise ValueError(f"dtype must be floating point, got {dtype}")
    if rope_type not in _FREQUENCIES:
        raise ValueError(f"rope_type must be one of {', '.join(sorted(_FREQUENCIES))}, got {rope_type!r}")
    inv_freq, attention_factor = _FREQUENCIES[rope_type](
        _Parameters(rope_type, parameters), dim, theta, max_position, max_position_embeddings
    )
    angles = torch.arange(max_position, dtype=torch.float64)[:, None] * inv_freq[None, :]
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1) * attention_factor
    return cache.to(dtype=dtype, device=device)


class _Parameters:
    """A mapping whose missing entries are refused by name."""

    def __init__(self, rope_type: str, values: Mapping[str, Any]) -> None:
        self._rope_type, self._values = rope_type, values

    def get(self, name: str, default: Any = None) -> Any:
        value = self._values.get(name)
        return default if value is None else value

    def __getitem__(self, name: str) -> Any:
        value = self._values.get(name)
        if value is None:
            raise ValueError(f"scaling must have {name!r} for rope_type {self._rope_type!r}")
        return value

    def original_context(self, max_position_embeddings: Optional[int]) -> int:
        original = self.get("original_max_position_embeddings", max_position_embeddings)
        if original is None:
            raise ValueError(
                f"rope_type {self._rope_type!r} needs original_max_position_embeddings in scaling "
                "or max_position_embeddings"
            )
        return int(original)


_Frequencies = Tuple[Tensor, float]


def _default(p: _Parameters, dim: int, theta: float, max_position: int, context: Optional[int]) -> _Frequencies:
    return theta ** -(torch.arange(0, dim, 2, dtype=torch.float64) / max(dim, 1)), 1.0


def _linear(p: _Parameters, dim: int, theta: float, max_position: int, context: Optional[int]) -> _Frequencies:
    """Position interpolation (Chen et al., 2023, arXiv:2306.15595)."""
    return _default(p, dim, theta, max_position, context)[0] / float(p["factor"]), 1.0


def _dynamic(p: _Parameters, dim: int, theta: float, max_position: int, context: Optional[int]) -> _Frequencies:
    """NTK-aware scaling that grows with the sequence (bloc97 and emozilla, 2023)."""
    original, factor = p.original_context(context), float(p["factor"])
    length = max(max_position, original)
    base = theta * ((factor * length / original) - (factor - 1)) ** (dim / (dim - 2))
    return _default(p, dim, base, max_position, context)[0], 1.0


def _yarn(p: _Parameters, dim: int, theta: float, max_position: int, context: Optional[int]) -> _Frequencies:
    """YaRN (Peng et al., 2023, arXiv:2309.00071)."""
    original = p.original_context(context)
    factor = p.get("factor")
    factor = float(context) / original if factor is None and context is not None else float(p["factor"])

    def mscale(scale: float, m: float = 1.0) -> float:
        return 1.0 if scale <= 1 else 0.1 * m * math.log(scale) + 1.0

    attention_factor = p.get("attention_factor")
    if attention_factor is None:
        m, m_all = p.get("mscale"), p.get("mscale_all_dim")
        attention_factor = mscale(factor, m) / mscale(factor, m_all) if m and m_all else mscale(factor)

    def correction(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = correction(float(p.get("beta_fast", 32))), correction(float(p.get("beta_slow", 1)))
    if p.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # the ramp must not be divided by zero
    ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    extrapolated = _default(p, dim, theta, max_position, context)[0]
    return extrapolated / factor * ramp + extrapolated * (1 - ramp), float(attention_factor)


def _longrope(p: _Parameters, dim: int, theta: float, max_position: int, context: Optional[int]) -> _Frequencies:
    """LongRoPE (Ding et al., 2024, arXiv:2402.13753): factors for each frequency, short or long context."""
    original = p.original_context(context)
    factor = p.get("factor")
    if factor is None and context is not None:
        factor = context / original
    attention_factor = p.get("attention_factor")
    if attention_factor is None:
        scale = float(factor) if factor is not None else 1.0
        attention_factor = 1.0 if scale <= 1.0 else math.sqrt(1 + math.log(scale) / math.log(original))
    name = "long_factor" if max_position > original else "short_factor"
    factors = torch.tensor(p[name], dtype=torch.float64)
    if factors.numel() != dim // 2:
        raise ValueError(f"scaling[{name!r}] must have {dim // 2} entries, got {factors.numel()}")
    return _default(p, dim, theta, max_position, context)[0] / factors, float(attention_factor)


def _llama3(p: _Parameters, dim: int, theta: float, max_position: int, context: Optional[int]) -> _Frequencies:
    """Llama 3.1's scaling: long wavelengths are interpolated, short ones kept, a smooth band between."""
    original = p.original_context(context)
    factor, low, high = float(p["factor"]), float(p["low_freq_factor"]), float(p["high_freq_factor"])
    inv_freq = _default(p, dim, theta, max_position, context)[0]
    wavelength = 2 * math.pi / inv_freq
    smooth = ((original / wavelength - low) / (high - low)).clamp(0, 1)
    return (1 - smooth) * inv_freq / factor + smooth * inv_freq, 1.0


_FREQUENCIES = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}
