"""What is measured: one cell is an operator, a dtype, a number of tokens and a geometry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

DTYPES = {"cpu": ("float32", "bfloat16"), "cuda": ("bfloat16", "float16")}
ALL_DTYPES = ("float32", "bfloat16", "float16")
TOKENS = (1, 8, 32, 128)

NORMS = ("rms_norm", "fused_add_rms_norm")
GATED = ("silu_and_mul", "gelu_tanh_and_mul")
HEADS = ("rotary_embedding", "fused_qk_norm_rope")
OPERATORS = NORMS + GATED + HEADS


@dataclass(frozen=True)
class Geometry:
    """The sizes of a row. Norms and activations use `width` alone, the head operators the other four."""

    width: int = 0
    query_heads: int = 0
    key_heads: int = 0
    head_size: int = 0
    rotary_dim: int = 0

    @property
    def label(self) -> str:
        if self.width:
            return str(self.width)
        rotated = "" if self.rotary_dim == self.head_size else f"r{self.rotary_dim}"
        return f"{self.query_heads}/{self.key_heads}x{self.head_size}{rotated}"


def _heads(query_heads: int, key_heads: int, head_size: int, rotary_dim: int | None = None) -> Geometry:
    return Geometry(0, query_heads, key_heads, head_size, head_size if rotary_dim is None else rotary_dim)


# Widths of small language models: hidden sizes, intermediate sizes (2560 is there for one target of the project),
# and attention geometries (Qwen3 0.6B and 4B, Gemma 3 270M/1B and 4B, two with a quarter rotated, SmolLM2-135M).
HIDDEN_WIDTHS = tuple(Geometry(width) for width in (576, 640, 1024, 1152, 2560))
GATED_WIDTHS = tuple(Geometry(width) for width in (1536, 2048, 2560, 3072, 6912, 9728, 10240))
HEAD_LAYOUTS = (
    _heads(16, 8, 128),
    _heads(32, 8, 128),
    _heads(4, 1, 256),
    _heads(8, 4, 256),
    _heads(16, 2, 256, 64),
    _heads(24, 4, 256, 64),
    _heads(9, 3, 64),
)


@dataclass(frozen=True)
class Cell:
    operator: str
    dtype: str
    tokens: int
    geometry: Geometry

    @property
    def shape(self) -> str:
        return f"{self.tokens} x {self.geometry.label}"

    @property
    def key(self) -> str:
        return f"{self.operator} {self.dtype} {self.shape}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Cell:
        return cls(data["operator"], data["dtype"], data["tokens"], Geometry(**data["geometry"]))


def geometries(operator: str) -> tuple[Geometry, ...]:
    """Every geometry that an operator is measured at.

    Raises:
        ValueError: the operator is not one of `OPERATORS`.
    """
    if operator in NORMS:
        return HIDDEN_WIDTHS
    if operator in GATED:
        return GATED_WIDTHS
    if operator in HEADS:
        return HEAD_LAYOUTS
    raise ValueError(f"operator: {operator!r} is not one of {', '.join(OPERATORS)}")


def select(
    operators: Sequence[str] = OPERATORS,
    dtypes: Sequence[str] = DTYPES["cpu"],
    tokens: Sequence[int] = TOKENS,
    labels: Iterable[str] | None = None,
) -> Iterator[Cell]:
    """The cells in a fixed order. `labels` keeps only the geometries that carry one of these labels."""
    wanted = None if labels is None else set(labels)
    for operator in operators:
        for dtype in dtypes:
            for count in tokens:
                for geometry in geometries(operator):
                    if wanted is None or geometry.label in wanted:
                        yield Cell(operator, dtype, count, geometry)


def quick(dtypes: Sequence[str] = DTYPES["cpu"]) -> Iterator[Cell]:
    """A look at every operator in under a minute: one token and 32, the geometry of Qwen3-0.6B."""
    labels = {
        **{name: "1024" for name in NORMS},
        **{name: "3072" for name in GATED},
        **{name: "16/8x128" for name in HEADS},
    }
    for operator in OPERATORS:
        yield from select([operator], dtypes, (1, 32), [labels[operator]])
