"""The cases: data alone, read by the package that runs them and by the tool that computes their golden digests."""

import zlib
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

VERSION = 1  # goes up with any change of the cases or of their numbers

OPERATORS = (
    "rms_norm",
    "fused_add_rms_norm",
    "silu_and_mul",
    "gelu_tanh_and_mul",
    "rotary_embedding",
    "fused_qk_norm_rope",
)
DTYPES = ("float32", "bfloat16", "float16")

# Around every width at which a vector, a chunk of the sum, or a GPU's plan changes, and the models' own.
NORM_WIDTHS = (
    1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 96, 127, 128, 129, 160, 255, 256, 257, 384, 511, 512, 513, 576,
    640, 767, 1000, 1023, 1024, 1025, 1152, 2047, 2048, 2049, 2560, 3072, 4095, 5120, 8193, 16387, 65539,
)  # fmt: skip
GATE_WIDTHS = (
    1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 511, 513, 1000, 1536,
    2048, 3072, 4097, 6912, 9728, 10240,
)  # fmt: skip
# Query heads, key heads, head size, how much of it rotates: the models' own, then odd ones.
MODEL_HEADS = (
    (16, 8, 128, 128), (32, 8, 128, 128), (4, 1, 256, 256), (8, 4, 256, 64), (9, 3, 64, 64), (24, 4, 256, 64),
    (2, 1, 80, 32), (2, 1, 96, 72),
)  # fmt: skip
ODD_HEADS = (
    (1, 1, 1, 0), (1, 0, 2, 2), (2, 1, 3, 2), (3, 2, 5, 4), (2, 2, 7, 6), (5, 1, 17, 16), (3, 3, 33, 32),
    (2, 0, 80, 20), (4, 2, 96, 32), (2, 1, 100, 50), (1, 1, 127, 126), (2, 1, 129, 128), (2, 1, 255, 130),
    (2, 1, 257, 256), (1, 1, 512, 512), (2, 1, 64, 0), (2, 1, 320, 98),
)  # fmt: skip

SPECIAL_KINDS = ("bits", "edges", "huge", "tiny", "zeros")
ROW_LAYOUTS = ("contiguous", "pitched", "unaligned", "permuted")
HEAD_LAYOUTS = ("contiguous", "packed", "unaligned", "permuted")
WEIGHTS = ("same", "float32", "none")
EPSILONS = (1e-6, 1e-5, 1e-12, 0.0, 0.25)
OFFSETS = (0.0, 1.0)

_ELEMENTS = 24576  # of an ordinary case, about


class Field(NamedTuple):
    """One tensor of inputs."""

    name: str
    shape: Tuple[int, ...]
    dtype: str
    kind: str  # see generate.py; "positions" for integers
    bound: int = 0  # of positions: rows of the cache

    @property
    def numel(self) -> int:
        product = 1
        for size in self.shape:
            product *= size
        return product


class Case(NamedTuple):
    """One call of an operator.

    Its results depend on the operator, the dtype, the fields and the options; layout and target say where tensors
    lie, which must not matter.
    """

    name: str
    operator: str
    dtype: str
    fields: Tuple[Field, ...]
    options: Dict[str, Any]
    layout: str = "contiguous"
    target: str = "new"  # "new", "apart" (given outputs) or "inside" (in place)
    bulk: bool = False

    @property
    def quick(self) -> bool:
        """Whether it is part of a quick run: about one in four, and none of the large ones."""
        return not self.bulk and zlib.crc32(self.name.encode()) % 4 == 0

    @property
    def rows(self) -> int:
        """How many rows, or heads of a token, the operator computes."""
        counts = [f for f in self.fields if f.name in ("x", "gate", "query", "key")]
        return sum(f.numel // f.shape[-1] for f in counts)

    @property
    def elements(self) -> int:
        """How many values come out."""
        return sum(f.numel for f in self.fields if f.name in ("x", "residual", "gate", "query", "key"))


def cases() -> List[Case]:
    """All of them, by operator and dtype."""
    found: List[Case] = []
    for operator in OPERATORS:
        for dtype in DTYPES:
            if operator in ("rms_norm", "fused_add_rms_norm"):
                found += _norms(operator, dtype)
            elif operator in ("silu_and_mul", "gelu_tanh_and_mul"):
                found += _gates(operator, dtype)
            else:
                found += _heads(operator, dtype)
    return found


def _pick(choices: Sequence[Any], what: str, case: Tuple[Any, ...]) -> Any:
    """One of the choices, as if at random: decided by the case alone, apart from its other choices."""
    return choices[zlib.crc32(f"{what} {case}".encode()) % len(choices)]


def _lead(rows: int, layout: str) -> Tuple[int, ...]:
    """A leading shape of about so many rows: two dimensions where they are to be swapped."""
    return (3, max(1, rows // 3)) if layout == "permuted" else (rows,)


def _norm(operator: str, dtype: str, label: str, rows: int, n: int, kind: str, weight: str, bulk: bool = False) -> Case:
    this = (operator, dtype, label, n, kind, weight)
    layout, eps = _pick(ROW_LAYOUTS, "layout", this), _pick(EPSILONS, "eps", this)
    offset, target = _pick(OFFSETS, "offset", this), "inside"
    shape = (*_lead(rows, layout), n)
    fields = [Field("x", shape, dtype, kind)]
    if operator == "fused_add_rms_norm":
        fields.append(Field("residual", shape, dtype, "moderate" if kind == "sweep" else kind))
    else:
        target = _pick(("new", "apart", "inside"), "target", this)
    if weight != "none":
        # A special weight would hide what the row's special values do.
        fields.append(Field("weight", (n,), dtype if weight == "same" else weight, "moderate"))
    name = f"{operator} {dtype} {label} n={n} {kind} {layout} weight={weight} eps={eps} offset={offset} {target}"
    return Case(name, operator, dtype, tuple(fields), dict(eps=eps, weight_offset=offset), layout, target, bulk)


def _norms(operator: str, dtype: str) -> Iterator[Case]:
    for n in NORM_WIDTHS:
        # special values would decide nearly every one of the wide rows
        kind = _pick(("moderate", "sprinkled"), "kind", (operator, dtype, n)) if n < 300 else "moderate"
        weight = _pick(WEIGHTS, "weight", (operator, dtype, n))
        yield _norm(operator, dtype, "width", max(3, min(2048, _ELEMENTS // n)), n, kind, weight)
    for n in (1, 4, 16, 48, 256, 300):
        for kind in SPECIAL_KINDS:
            weight = _pick(WEIGHTS, "weight", (operator, dtype, n, kind))
            yield _norm(operator, dtype, "special", max(3, 6144 // n), n, kind, weight)
    if dtype != "float32":
        for weight in ("same", "none"):
            yield _norm(operator, dtype, "every pattern", 65536, 1, "sweep", weight, bulk=True)
    yield _norm(operator, dtype, "many", 65536, 4, "bits", "none", bulk=True)
    yield _norm(operator, dtype, "many", 65536, 64, "moderate", "same", bulk=True)


def _gate(operator: str, dtype: str, label: str, rows: int, d: int, kind: str, up: str, bulk: bool = False) -> Case:
    this = (operator, dtype, label, d, kind, up)
    layout, target = _pick(ROW_LAYOUTS, "layout", this), _pick(("new", "apart"), "target", this)
    shape = (*_lead(rows, layout), d)
    fields = (Field("gate", shape, dtype, kind), Field("up", shape, dtype, up))
    name = f"{operator} {dtype} {label} d={d} {kind}/{up} {layout} {target}"
    return Case(name, operator, dtype, fields, {}, layout, target, bulk)


def _gates(operator: str, dtype: str) -> Iterator[Case]:
    for d in GATE_WIDTHS:
        kind = _pick(("moderate", "saturating", "sprinkled"), "kind", (operator, dtype, d))
        yield _gate(operator, dtype, "width", max(3, min(2048, _ELEMENTS // d)), d, kind, "moderate")
    for d in (1, 5, 16, 37):
        for kind in SPECIAL_KINDS:
            up = _pick(("moderate", "edges"), "up", (operator, dtype, d, kind))
            yield _gate(operator, dtype, "special", max(3, 6144 // d), d, kind, up)
    if dtype == "float32":
        yield _gate(operator, dtype, "one pattern in 4096", 16384, 64, "sweep", "unit", bulk=True)
    else:
        for up in ("moderate", "bits"):
            yield _gate(operator, dtype, "every pattern", 1024, 256, "sweep", up, bulk=True)
    yield _gate(operator, dtype, "many", 131072, 16, "moderate", "moderate", bulk=True)


def _turn(
    operator: str, dtype: str, label: str, heads: Tuple[int, int, int, int], tokens: int, kind: str,
    interleaved: bool, seam: bool, bulk: bool = False,
) -> Case:  # fmt: skip
    this = (operator, dtype, label, heads, kind, interleaved, seam)
    q, kv, size, rotary = heads
    layout = _pick(HEAD_LAYOUTS, "layout", this)
    lead = _lead(tokens, layout)
    integers, bound = _pick(("int64", "int32"), "integers", this), _pick((40, 1, 1000), "bound", this)
    cache = _pick(("float32", dtype), "cache", this)
    fields = [Field("positions", lead, integers, "positions", bound), Field("query", (*lead, q, size), dtype, kind)]
    if kv:
        fields.append(Field("key", (*lead, kv, size), dtype, kind))
    options: Dict[str, Any] = dict(interleaved=interleaved)
    target, detail = "inside", ""
    if operator == "fused_qk_norm_rope":
        weight, eps = _pick(WEIGHTS, "weight", this), _pick(EPSILONS, "eps", this)
        offset, target = _pick(OFFSETS, "offset", this), _pick(("inside", "apart"), "target", this)
        options.update(eps=eps, weight_offset=offset, round_normalized=seam)
        detail = f" weight={weight} eps={eps} offset={offset} seam={'rounded' if seam else 'float32'}"
        if weight != "none":
            sides = ("q_weight", "k_weight") if kv else ("q_weight",)
            fields += [Field(side, (size,), dtype if weight == "same" else weight, "moderate") for side in sides]
    fields.append(Field("cache", (bound, rotary), cache, "unit"))
    name = (
        f"{operator} {dtype} {label} heads={q}/{kv} size={size} rotary={rotary} {kind} {layout} {integers} "
        f"cache={cache}x{bound} {'neighbours' if interleaved else 'halves'}{detail} {target}"
    )
    return Case(name, operator, dtype, tuple(fields), options, layout, target, bulk)


def _heads(operator: str, dtype: str) -> Iterator[Case]:
    seams = (True, False) if operator == "fused_qk_norm_rope" else (True,)
    for seam in seams:
        for heads in MODEL_HEADS:
            tokens = max(3, _ELEMENTS // ((heads[0] + heads[1]) * heads[2]))
            for interleaved in (False, True):
                yield _turn(operator, dtype, "model", heads, tokens, "moderate", interleaved, seam)
        for heads in ODD_HEADS:
            tokens = max(3, min(256, _ELEMENTS // ((heads[0] + heads[1]) * heads[2])))
            kind = _pick(("moderate", "sprinkled"), "kind", (operator, dtype, heads, seam))
            interleaved = _pick((False, True), "pairs", (operator, dtype, heads, seam))
            yield _turn(operator, dtype, "odd", heads, tokens, kind, interleaved, seam)
        for kind in SPECIAL_KINDS:
            for heads in ((2, 1, 2, 2), (1, 1, 16, 8), (3, 1, 64, 64)):
                interleaved = _pick((False, True), "pairs", (operator, dtype, heads, seam, kind))
                yield _turn(operator, dtype, "special", heads, 64, kind, interleaved, seam)
        for interleaved in (False, True):
            heads = (6, 2, 32, 32) if seam else (6, 2, 32, 24)
            yield _turn(operator, dtype, "many", heads, 8192, "moderate", interleaved, seam, bulk=True)
