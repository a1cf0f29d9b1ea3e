"""Every plan of every operator gives the contract's bits, whichever the operator would choose by itself."""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from typing import Callable, Dict, List, Optional, Tuple

import numpy as np
import pytest
import torch

from cuda import harness
from support import contract
from support.values import BITS, DTYPES, KINDS, assert_same_bits, draw, draw_cache

pytestmark = pytest.mark.usefixtures("gpu")

NO_FIT = "invalid configuration argument"  # what a launch says to a plan that is not for its shape
GUARD = 64  # elements around a tensor, NaN before and after


class Laid:
    """A tensor in a larger buffer of NaNs: reading those would spoil a result, writing them would show."""

    def __init__(self, values: np.ndarray, dtype: str, pitch: int = 0, shift: int = 0) -> None:
        """`pitch` elements lie between rows; the first element is `shift` elements past an aligned address."""
        *outer, n = values.shape
        rows = int(np.prod(outer))
        self.base = torch.full((rows * (n + pitch) + 2 * GUARD,), float("nan"), dtype=DTYPES[dtype], device="cuda")
        strides = [(n + pitch) * int(np.prod(outer[d + 1 :])) for d in range(len(outer))]
        self.view = self.base.as_strided(values.shape, (*strides, 1), GUARD + shift)
        self.view.copy_(torch.from_numpy(values).to(DTYPES[dtype]))

    def fresh(self, values: Optional[np.ndarray] = None) -> Laid:
        """A copy, with other values in the view."""
        copy = object.__new__(Laid)
        copy.base = self.base.clone()
        copy.view = copy.base.as_strided(self.view.shape, self.view.stride(), self.view.storage_offset())
        if values is not None:
            copy.view.copy_(torch.from_numpy(np.ascontiguousarray(values)).to(self.view.dtype))
        return copy

    def differs(self, other: Laid) -> torch.Tensor:
        """Whether any bit of the buffers differs; a NaN equals a NaN."""
        integers = BITS[self.base.element_size()]
        same = self.base.view(integers) == other.base.view(integers)
        return ~(same | (self.base.isnan() & other.base.isnan())).all()


Launch = Callable[[List[Laid]], harness.Prepared]


def check(label: str, operator: str, written: List[Laid], want: List[np.ndarray], launch: Launch) -> Counter:
    """Runs the call with every plan on fresh copies of what it writes -> which plans fitted."""
    expected = [laid.fresh(values) for laid, values in zip(written, want)]
    fitted, failures = Counter(), {}
    for name, plan in {"own": None, **harness.plans(operator)}.items():
        copies = [laid.fresh() for laid in written]
        try:
            launch(copies)(plan)
        except RuntimeError as problem:
            if NO_FIT not in str(problem) or plan is None:
                raise
            continue
        fitted[name] += 1
        failures[name] = torch.stack([copy.differs(right) for copy, right in zip(copies, expected)]).any()
    bad = [name for name, failed in zip(failures, torch.stack(list(failures.values())).tolist()) if failed]
    assert not bad, f"{label}: plans {bad} differ from the contract"
    return fitted


def rng_of(*key: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


def norm(
    operator, rows, width, dtype, weight="same", eps=1e-6, offset=0.0, kind="normal", pitch=0, shift=0, in_place=False
):
    label = f"{operator} {rows} x {width} {dtype} weight {weight} eps {eps} {kind} pitch {pitch} shift {shift}"
    rng = rng_of(label)
    x = draw(rng, (rows, width), dtype, kind)
    weights = None if weight is None else draw(rng, (width,), dtype if weight == "same" else "f32")
    on_device = None if weight is None else Laid(weights, dtype if weight == "same" else "f32", 0, shift).view
    laid = Laid(x, dtype, pitch, shift)
    options = {"eps": eps, "weight_offset": offset}
    if operator == "fused_add_rms_norm":
        r = draw(rng, (rows, width), dtype, kind)
        want = contract.fused_add_rms_norm(x, r, weights, eps, offset, dtype)
        written = [laid, Laid(r, dtype, 2 * pitch, shift)]
        return check(label, operator, written, list(want), lambda w: harness.fused_add_rms_norm(
            w[0].view, w[1].view, on_device, **options))  # fmt: skip
    want = [contract.rms_norm(x, weights, eps, offset, dtype)]
    if in_place:
        return check(label, operator, [laid], want, lambda w: harness.rms_norm(
            w[0].view, on_device, out=w[0].view, **options))  # fmt: skip
    out = Laid(np.zeros_like(x), dtype, 0, shift)
    return check(label, operator, [out], want, lambda w: harness.rms_norm(
        laid.view, on_device, out=w[0].view, **options))  # fmt: skip


# around the chunk of 256, around the last warp, around what a plan's block can hold, and of real models
WIDTHS = (
    1, 7, 8, 64, 72, 128, 136, 248, 256, 264, 512, 576, 1000, 1001, 1152, 2560, 2880, 4104, 8184, 8192, 8200, 16384,
)  # fmt: skip
LONG = (16392, 65536 + 24, 200_003)  # more than a block holds: several rounds of the pair counter
NORMS = ("rms_norm", "fused_add_rms_norm")
GATES = ("silu_and_mul", "gelu_tanh_and_mul")


@pytest.mark.parametrize("operator", NORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_widths(operator, dtype):
    fitted = Counter()
    for width, weight in itertools.product(WIDTHS, ("same", "f32", None)):
        fitted += norm(operator, 5, width, dtype, weight, offset=1.0 if weight == "same" else 0.0)
    for width in LONG:
        fitted += norm(operator, 2, width, dtype)
    assert all(fitted[name] for name in harness.plans(operator)), fitted


@pytest.mark.parametrize("operator", NORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_values(operator, dtype):
    for width, kind, eps in itertools.product((64, 200, 1152, 2304), KINDS, (1e-6, 0.0)):
        norm(operator, 6, width, dtype, "same", eps, kind=kind)


@pytest.mark.parametrize("operator", NORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_layouts(operator, dtype):
    """Rows apart, rows that are not aligned, more rows than a block holds with a last block that is not full."""
    for width, pitch, shift, in_place in itertools.product((64, 96, 1152), (0, 8, 3), (0, 1), (False, True)):
        norm(operator, 5, width, dtype, pitch=pitch, shift=shift, in_place=in_place)
    for rows, width in ((1, 64), (31, 64), (67, 128), (129, 96), (1030, 248), (300, 576)):
        norm(operator, rows, width, dtype)


def gated(operator, dtype, x, pitch=0, shift=0, label=""):
    laid = Laid(x, dtype, pitch, shift)
    out = Laid(np.zeros((x.shape[0], x.shape[1] // 2), np.float32), dtype, 0, shift)
    want = [getattr(contract, operator)(x, dtype)]
    label = f"{operator} {x.shape} {dtype} pitch {pitch} shift {shift} {label}"
    return check(label, operator, [out], want, lambda w: harness.gated_activation(operator, laid.view, out=w[0].view))


@pytest.mark.parametrize("dtype", ("bf16", "f16"))
@pytest.mark.parametrize("operator", GATES)
def test_every_gate(operator, dtype):
    """All 65536 gates: what makes the shortcuts of the 16-bit gates a proof, on the GPU that runs this."""
    patterns = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(DTYPES[dtype]).float().numpy()
    rng = np.random.default_rng(1)
    ups = (np.ones(65536, np.float32), draw(rng, (65536,), dtype), draw(rng, (65536,), dtype, "bits"))
    for up, order in itertools.product(ups, (np.arange(65536), rng.permutation(65536))):  # among their like, and mixed
        x = np.stack([patterns[order].reshape(64, 1024), up.reshape(64, 1024)], axis=1).reshape(64, 2048)
        gated(operator, dtype, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", GATES)
def test_activation_sizes(operator, dtype):
    fitted = Counter()
    sizes = ((1, 1), (3, 2), (2, 37), (5, 100), (1, 3072), (37, 1536), (3, 6912), (9, 264))
    for (rows, d), kind in itertools.product(sizes, KINDS):
        fitted += gated(operator, dtype, draw(rng_of(operator, rows, d, kind), (rows, 2 * d), dtype, kind), label=kind)
    for pitch, shift in itertools.product((0, 8, 4, 2, 1), (0, 1, 2, 4)):
        gated(operator, dtype, draw(rng_of(pitch, shift), (7, 2 * 64), dtype), pitch, shift)
    assert all(fitted[name] for name in harness.plans(operator)), fitted


def heads(
    operator, dtype, tokens, sides, size, rotary, *, cache="f32", interleaved=False, kind="normal", out=(), pitch=0,
    positions="int64", packed=False, **options,
):  # fmt: skip
    """sides: heads of query and of key, None for neither; out: which of them go to tensors of their own."""
    label = f"{operator} {dtype} tokens {tokens} heads {sides} size {size} rotary {rotary} cache {cache} " + (
        f"interleaved {interleaved} {kind} out {out} pitch {pitch} {positions} packed {packed} {options}"
    )
    rng = rng_of(label)
    cache_dtype = dtype if cache == "same" else "f32"
    table = draw_cache(rng, 40, rotary, cache_dtype)
    where = rng.integers(0, 40, tokens)
    where[rng.random(tokens) < 0.2] = rng.choice([-1, 40, 2**31 - 1])
    options = dict(options)
    weight = options.pop("weight", "same") if operator == "fused_qk_norm_rope" else None
    weight_dtype = dtype if weight == "same" else "f32"
    given, want, written, roles, weights = {}, [], [], [], {}
    if packed:  # query, key and value of a token in one row
        row = (sides[0] + 2 * sides[1]) * size
        packed_values = draw(rng, (tokens, row), dtype, kind)
        whole = Laid(packed_values, dtype)
        expected = packed_values.copy()
        written, roles = [whole], ["packed"]
    first = 0
    for name, count in zip(("query", "key"), sides):
        weights[name] = None
        if count is None:
            continue
        values = draw(rng, (tokens, count, size), dtype, kind)
        if packed:
            values = packed_values[:, first : first + count * size].reshape(tokens, count, size)
        w = None if weight is None else draw(rng, (size,), weight_dtype)
        weights[name] = None if w is None else Laid(w, weight_dtype).view
        if operator == "rotary_embedding":
            result = contract.rotary_embedding(where, values, table, interleaved, dtype)
        else:
            result = contract.fused_qk_norm_rope(
                where, values, w, table, options.get("eps", 1e-6), options.get("weight_offset", 0.0), interleaved,
                options.get("round_normalized", True), dtype,
            )  # fmt: skip
        if packed:
            expected[:, first : first + count * size] = result.reshape(tokens, -1)
        else:
            laid = Laid(values, dtype, pitch)
            given[name] = laid
            written.append(Laid(np.zeros_like(values), dtype, 8) if name in out else laid)
            roles.append(name)
            want.append(result)
        first += count * size
    if packed:
        want = [expected]
    held = torch.from_numpy(where).to(torch.int32 if "int32" in positions else torch.int64).cuda()
    if "strided" in positions:
        held = torch.stack([held, held + 7], dim=1)[:, 0]
    laid_cache = Laid(table, cache_dtype).view

    def launch(copies: List[Laid]) -> harness.Prepared:
        arguments: Dict[str, Optional[torch.Tensor]] = dict.fromkeys(("query", "key", "query_out", "key_out"))
        if packed:
            view, begin = copies[0].view, 0
            for name, count in zip(("query", "key"), sides):
                arguments[name] = view[:, begin : begin + count * size].unflatten(1, (count, size))
                begin += count * size
        else:
            for name, copy in zip(roles, copies):
                arguments[name] = given[name].view if name in out else copy.view
                arguments[f"{name}_out"] = copy.view if name in out else None
        return harness.qk_rope(
            held, arguments["query"], arguments["key"], weights["query"], weights["key"], laid_cache,
            normalize=operator == "fused_qk_norm_rope", interleaved=interleaved, query_out=arguments["query_out"],
            key_out=arguments["key_out"], **options,
        )  # fmt: skip

    return check(label, operator, written, want, launch)


# head sizes with the rotated parts that each kernel takes, and neighbours that it must leave to another
SIZES = (
    (64, 64), (64, 32), (64, 16), (64, 48), (64, 0), (80, 80), (80, 16), (96, 96), (96, 32), (100, 64), (112, 112),
    (128, 128), (128, 64), (128, 96), (128, 40), (128, 8), (256, 256), (256, 64), (256, 128), (256, 192), (256, 12),
    (512, 512), (512, 128), (512, 256), (512, 384), (40, 40), (6, 4), (1, 0), (300, 300), (1040, 1024),
)  # fmt: skip
ROTATIONS = ("rotary_embedding", "fused_qk_norm_rope")


@pytest.mark.parametrize("operator", ROTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache", ("f32", "same"))
def test_head_sizes(operator, dtype, cache):
    fitted = Counter()
    options = [{}] if operator == "rotary_embedding" else [
        {"weight": "same", "round_normalized": True, "weight_offset": 1.0},
        {"weight": "f32", "round_normalized": False},
        {"weight": None, "round_normalized": True},
    ]  # fmt: skip
    for (size, rotary), interleaved, more in itertools.product(SIZES, (False, True), options):
        fitted += heads(operator, dtype, 7, (5, 2), size, rotary, cache=cache, interleaved=interleaved, **more)
    assert all(fitted[name] for name in harness.plans(operator)), fitted


@pytest.mark.parametrize("operator", ROTATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_head_layouts(operator, dtype):
    """Packed heads, heads apart, positions of any dtype and stride, one side alone, many tokens."""
    for positions, sides in itertools.product(("int64", "int32 strided"), ((9, 3), (4, None), (None, 5), (1, 1))):
        for pitch in (0, 8, 4, 1):
            heads(operator, dtype, 33, sides, 128, 128, positions=positions, pitch=pitch)
        if None not in sides:
            heads(operator, dtype, 33, sides, 64, 64, positions=positions, packed=True)
            heads(operator, dtype, 9, sides, 256, 64, positions=positions, packed=True)
    for pitch in (0, 4, 1):  # so many that wide loads are chosen, where they fit
        heads(operator, dtype, 1021, (16, 8), 128, 128, pitch=pitch)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out", (("query",), ("query", "key")))
def test_heads_out_of_place(dtype, out):
    for (size, rotary), kind in itertools.product(((64, 64), (128, 64), (256, 256), (80, 80), (512, 512)), KINDS):
        for operator in ROTATIONS:
            heads(operator, dtype, 6, (3, 2), size, rotary, out=out, kind=kind)


@pytest.mark.parametrize("inner_first", (False, True))
def test_positions_shared_by_a_batch(inner_first):
    """position_ids of [1, seq] expanded over the batch: tokens of two levels, with stride 0 for one of them."""
    generator = torch.Generator().manual_seed(0)
    cache = torch.randn(32, 64, generator=generator)
    query = torch.randn(3, 7, 4, 64, generator=generator).bfloat16()
    positions = torch.randint(0, 32, (3, 1) if inner_first else (1, 7), generator=generator)
    flat = positions.expand(3, 7).reshape(-1).numpy()
    want = contract.rotary_embedding(flat, query.float().numpy().reshape(21, 4, 64), cache.numpy(), False, "bf16")
    for plan in (None, *harness.plans("rotary_embedding").values()):
        got = query.cuda()
        harness.qk_rope(positions.cuda().expand(3, 7), got, None, None, None, cache.cuda(), normalize=False)(plan)
        assert_same_bits(got, want.reshape(3, 7, 4, 64), f"plan {plan}")


@pytest.mark.parametrize("n", (1, 3, 64, 100, 576, 640, 1000, 1152, 2304, 2560, 5376, 8191))
@pytest.mark.parametrize("eps", (1e-6, 1e-5, 0.0))
def test_every_inverse(n, eps):
    """The quick 1 / sqrt(sum / n + eps) against the exact one, for every float32 sum there is."""
    assert harness.wrong_inverses(0, 2**32 - 1, n, eps) == 0


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.where(tensor.isnan(), torch.nan, tensor).view(BITS[tensor.element_size()])


ANY_PLAN = harness.plans("rms_norm")["any"]


def boundaries(make: Callable[[int], harness.Prepared], last: int) -> List[int]:
    """The sizes up to `last` from which on an operator chooses another plan, found by halving between samples."""
    samples = sorted({1, last, *(round(last ** (i / 40)) for i in range(41))})
    found = []
    for low, high in zip(samples, samples[1:]):
        while make(low).plan() != make(high).plan() and high - low > 1:
            middle = (low + high) // 2
            if make(middle).plan() == make(low).plan():
                low = middle
            else:
                high = middle
        if make(low).plan() != make(high).plan():
            found.append(high)
    return found


def check_boundaries(make: Callable[[int], Tuple[harness.Prepared, List[torch.Tensor]]], last: int, least: int) -> None:
    """One below, at and above each boundary, the plan chosen gives the bits of the kernel that takes everything."""
    found = boundaries(lambda size: make(size)[0], last)
    assert len(found) >= least, found
    for size in sorted({size + step for size in found for step in (-1, 0, 1)}):
        results = []
        for plan in (None, ANY_PLAN):
            torch.manual_seed(size)
            prepared, written = make(size)
            prepared(plan)
            results.append([bits_of(tensor) for tensor in written])
        assert all(torch.equal(a, b) for a, b in zip(*results)), f"size {size}, plan {prepared.plan()}"


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


@pytest.mark.parametrize("width", (64, 256, 1024, 2560, 4096, 8192))
@pytest.mark.parametrize("operator", NORMS)
def test_norm_boundaries_in_rows(operator, width):
    weight = 1 + random(width)

    def make(rows):
        x, other = random(rows, width), random(rows, width)
        if operator == "rms_norm":
            return harness.rms_norm(x, weight, out=other), [other]
        return harness.fused_add_rms_norm(x, other, weight), [x, other]

    check_boundaries(make, 4096, {64: 0, 256: 1, 1024: 0, 2560: 1, 4096: 1, 8192: 1}[width])


@pytest.mark.parametrize("rows", (1, 300, 1100))
def test_norm_boundaries_in_width(rows):
    def make(eighths):
        x, weight = random(rows, 8 * eighths), 1 + random(8 * eighths)
        out = torch.empty_like(x)
        return harness.rms_norm(x, weight, out=out), [out]

    check_boundaries(make, 2100, 3)  # narrow rows, two or three numbers of chunks a warp, rows too long for a block


@pytest.mark.parametrize("operator", GATES)
def test_activation_boundaries(operator):
    def make(rows):
        x = 3 * random(rows, 2 * 1536)
        out = torch.empty(rows, 1536, device="cuda", dtype=x.dtype)
        return harness.gated_activation(operator, x, out=out), [out]

    check_boundaries(make, 4000, 6)


@pytest.mark.parametrize("operator", ROTATIONS)
@pytest.mark.parametrize("size", (64, 128, 256))
def test_heads_boundaries(operator, size):
    normalize = operator == "fused_qk_norm_rope"
    angles = torch.randn(5000, size // 2, device="cuda")
    cache = torch.cat([angles.cos(), angles.sin()], dim=1)
    weights = [1 + random(size) if normalize else None for _ in range(2)]

    def make(tokens):
        query, key = random(tokens, 5, size), random(tokens, 3, size)
        positions = torch.arange(tokens, device="cuda") * 7 % 5003
        return harness.qk_rope(positions, query, key, *weights, cache, normalize=normalize), [query, key]

    check_boundaries(make, 10_000, 4)


def dependent_chain(x: torch.Tensor, dependent: bool) -> Tuple[Callable[[], torch.Tensor], List[torch.Tensor]]:
    """Sixty norms, each of the one before it, with a weight that the kernel just before it wrote."""
    buffers = [torch.empty_like(x) for _ in range(3)]
    weight = torch.empty(x.shape[1], device="cuda", dtype=x.dtype)

    def launch(prepared: harness.Prepared) -> None:
        prepared(prepared.plan()._replace(dependent=dependent))

    def steps() -> torch.Tensor:
        source = x
        for i in range(60):
            target = buffers[i % 3]
            launch(harness.rms_norm(source[i % len(x)].view(1, -1), None, out=weight.view(1, -1)))
            launch(harness.rms_norm(source, weight, out=target))
            source = target
        return source

    return steps, [*buffers, weight]


@pytest.mark.parametrize("tokens", (4, 300))
def test_chain_of_dependent_kernels(tokens):
    """Kernels that start before the one before them has ended still see all that it wrote, weights too."""
    torch.manual_seed(0)
    x = torch.randn(tokens, 1024, device="cuda").bfloat16()
    want = dependent_chain(x, False)[0]().clone()
    steps, held = dependent_chain(x, True)
    for _ in range(20):
        assert torch.equal(steps().view(torch.int16), want.view(torch.int16))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = steps()
    for _ in range(50):
        for buffer in held:
            buffer.fill_(float("nan"))
        graph.replay()
        assert torch.equal(result.view(torch.int16), want.view(torch.int16))


def test_only_chains_are_launched_early():
    """A captured kernel may start early behind another of these kernels, and behind no other."""
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("no dependent launch on this device")
    x, y = random(4, 1024), random(4, 1024)
    norm, product = harness.rms_norm(x, None, out=y), harness.gated_activation("silu_and_mul", x, out=random(4, 512))
    assert norm.plan().dependent == product.plan().dependent == harness.IN_CHAINS
    norm()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        norm()  # the first node
        norm()  # early
        y.mul_(2)
        product()
        product()  # early
        norm()  # early
        x.copy_(y)
        norm()
    assert harness.programmatic_edges(graph) == 3
    other = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(other):  # what another graph ended with says nothing
        norm()
    assert harness.programmatic_edges(other) == 0
    graph.instantiate()
    graph.replay()
    other.instantiate()
    other.replay()
    torch.cuda.synchronize()
