"""Random calls of the operators, most of them nearly right: for tools/harden/fuzz.py and tests/process/test_fuzz.py.

A seed is a call. Building it twice gives two equal worlds: the public function runs in one, the checks and the
plain PyTorch form in the other, and afterwards every bit of both must be the same: results, what was written, and all
memory that was not. A refused call has changed nothing. What a comparison cannot follow (subclasses, tensors too large
to compute, arguments that change tensors while they are read) only has to end in a result or a Python exception.
"""

from __future__ import annotations

import contextlib
import math
import random
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from edge_ops import checks

from .routes import OPERATORS, ROUTES

SIZES = (1, 2, 3, 4, 6, 8, 15, 16, 17, 31, 32, 33, 48, 64, 96, 128, 255, 256, 257, 300, 520, 1030, 2100)
ROW_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
OTHER_DTYPES = (torch.float64, torch.int32, torch.int64, torch.int8, torch.bool, torch.complex64, torch.uint8)
SHARED_BYTES = 1 << 15
HUGE = 1 << 50  # rows that no machine holds: an allocation of as many must fail, not wrap around

WRITTEN = {
    "rms_norm": ("out",),
    "fused_add_rms_norm": ("x", "residual"),
    "silu_and_mul": ("out",),
    "gelu_tanh_and_mul": ("out",),
    "rotary_embedding": ("query", "key"),
    "fused_qk_norm_rope": ("query", "key", "query_out", "key_out"),
}
POSITIONAL = {
    "rms_norm": ("x", "weight", "eps"),
    "fused_add_rms_norm": ("x", "residual", "weight", "eps"),
    "silu_and_mul": ("x",),
    "gelu_tanh_and_mul": ("x",),
    "rotary_embedding": ("positions", "query", "key", "cos_sin_cache"),
    "fused_qk_norm_rope": ("positions", "query", "key", "q_weight", "k_weight", "cos_sin_cache", "eps"),
}
EXPECTED_ERRORS = (TypeError, ValueError, RuntimeError, NotImplementedError, OverflowError, MemoryError)


class Tagged(torch.Tensor):
    """A subclass without behaviour of its own."""


class Meddler:
    """A number, or a flag, that takes the memory of every tensor of the call away while it is read."""

    def __init__(self, tensors: List[Tensor]) -> None:
        self.tensors = tensors

    def _meddle(self) -> None:
        for tensor in self.tensors:
            with contextlib.suppress(Exception):
                tensor.set_(torch.empty(0, dtype=tensor.dtype))

    def __float__(self) -> float:
        self._meddle()
        return 1e-5

    def __bool__(self) -> bool:
        self._meddle()
        return True


class Broken:
    """Nothing can be asked of it."""

    def __float__(self) -> float:
        raise ZeroDivisionError("no number")

    def __bool__(self) -> bool:
        raise ZeroDivisionError("no truth")

    def __torch_function__(self, *args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("no function")


class World(NamedTuple):
    op: str
    arguments: Dict[str, Any]
    positional: int  # so many of them are given by position
    extra: Dict[str, Any]  # keywords that do not belong there
    mode: str
    buffers: List[Tensor]  # all memory behind the tensors, as bytes
    comparable: bool


class _Builder:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.buffers: List[Tensor] = []
        self.comparable = True
        self.dtype = self.random.choice(ROW_DTYPES)
        self.shared = self.memory(SHARED_BYTES, self.dtype)

    def seldom(self, one_in: int = 30) -> bool:
        return self.random.randrange(one_in) == 0

    def memory(self, count: int, dtype: torch.dtype) -> Tensor:
        """So many bytes of values of that dtype, starting at any byte of a buffer of exactly their length."""
        item = torch.empty((), dtype=dtype).element_size()
        start = self.random.choice((0, 0, 0, item, 1))
        count = max(item, count // item * item)
        raw = torch.frombuffer(bytearray(start + count), dtype=torch.uint8)[start:]
        if dtype.is_floating_point:
            values = torch.randn(count // item, generator=self.generator)
            if self.seldom(6):
                special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-41, 88.5, -87.5, 6e-8, 65520.0])
                at = torch.randint(0, len(values), (3,), generator=self.generator)
                values[at] = special[torch.randint(0, len(special), (3,), generator=self.generator)]
            raw.copy_(values.to(dtype).view(torch.uint8))
        self.buffers.append(raw)
        return raw

    def strided(self, shape: List[int], dtype: torch.dtype, tangled: bool) -> Tensor:
        """Strides of a slice, a transpose or an expanded tensor; or any at all, where tangled."""
        item = torch.empty((), dtype=dtype).element_size()
        strides, step = [1] * len(shape), 1
        order = list(range(len(shape) - 1))
        if self.seldom(3):
            self.random.shuffle(order)
        for d in [len(shape) - 1, *reversed(order)] if shape else []:
            strides[d] = step
            if tangled and d != len(shape) - 1:
                strides[d] = self.random.choice((0, 1, 2, shape[-1] // 2, shape[-1], shape[-1] + 1))
            step = max(step, strides[d] * max(1, shape[d])) + self.random.choice((0, 0, 0, 1, 5))
        for d, n in enumerate(shape):
            if n == 1 and self.seldom(3):
                strides[d] = self.random.choice((0, 3, 1 << 33, 1 << 60))  # means nothing
        span = 1 + sum(max(0, n - 1) * s for n, s in zip(shape, strides))
        if self.seldom(4) and span * item <= SHARED_BYTES:
            raw = self.shared
            room = raw.numel() - span * item
            start = self.random.choice((0, item, 1, shape[-1] * item if shape else 0, room))
            if start > room:
                start = room
            raw = raw[start:]
        else:
            raw = self.memory(span * item, dtype)
        return self.view(raw, dtype).as_strided(shape, strides)

    @staticmethod
    def view(raw: Tensor, dtype: torch.dtype) -> Tensor:
        """Bytes as values of a type, aligned to it or not."""
        item = torch.empty((), dtype=dtype).element_size()
        count = raw.numel() // item
        return torch.frombuffer(raw.numpy(), dtype=dtype, count=count)

    def tensor(self, shape: List[int], dtype: Optional[torch.dtype] = None) -> Any:
        dtype = dtype or self.dtype
        shape = list(shape)
        if self.seldom(40):
            dtype = self.random.choice((*ROW_DTYPES, *OTHER_DTYPES))
        if shape and self.seldom(40):
            shape[self.random.randrange(len(shape))] = self.random.choice((0, 1, 2, 5))
        if self.seldom(60):
            shape = self.random.choice((shape[1:], [*shape, 1], [1] * 8 + shape, []))
        value = self.strided(shape, dtype, tangled=self.seldom(12))
        return self.spoiled(value) if self.seldom(25) else value

    def spoiled(self, value: Tensor) -> Any:
        """Something else in the tensor's place."""
        kind = self.random.randrange(15)
        small = 0 < value.numel() <= 1024  # times HUGE it can still be counted
        if kind == 0:
            return self.random.choice((None, 1.5, "x", [1.0], (), object(), Broken(), b"", Tensor, torch.float32))
        if kind == 1 and value.dim() and small:
            self.comparable = False
            return value[..., :1].expand(*value.shape[:-1], HUGE)
        if kind == 2 and value.dim() > 1 and small:
            self.comparable = False
            return value[:1].expand(HUGE, *value.shape[1:])
        if kind == 3 and value.dim() and value.shape[-1] > 1:
            return value[..., ::2]
        if kind == 4 and value.dim() > 1:
            return value.transpose(-1, -2)
        if kind == 5:
            return torch.nn.Parameter(value, requires_grad=False)
        if kind == 6 and value.is_floating_point():
            return value.detach().requires_grad_()
        self.comparable = False
        if kind == 7:
            return value.as_subclass(Tagged)
        if kind == 8:
            return value.to("meta")
        if kind == 9 and value.dtype == torch.float32:
            return value.contiguous().to_sparse()
        if kind == 10 and value.is_floating_point():
            return torch._neg_view(value)
        if kind == 11:
            return torch._efficientzerotensor(value.shape, dtype=value.dtype)
        if kind == 12 and value.dtype == torch.float32 and value.dim():
            return value.contiguous().to_mkldnn()
        if kind == 13 and value.dim() > 1:
            return torch.nested.nested_tensor(list(value[:2].unbind(0)))
        return value.data

    def number(self, usual: float, tensors: List[Tensor]) -> Any:
        if not self.seldom(12):
            return self.random.choice((usual, usual, 1e-5, 0.0, 1.0, -0.5))
        numbers = (1, True, math.inf, math.nan, -1.0, 1e300, 10**400)
        choice = self.random.choice((*numbers, "1", None, [], torch.tensor(0.5), Broken(), *[Meddler(tensors)] * 4))
        self.comparable = self.comparable and isinstance(choice, (int, float)) and abs(choice) < 1e30
        return choice

    def flag(self, usual: bool, tensors: List[Tensor]) -> Any:
        if not self.seldom(12):
            return self.random.choice((True, False))
        self.comparable = False
        return self.random.choice(
            (0, 1, "", "x", None, Broken(), *[Meddler(tensors)] * 3, torch.ones(2), torch.tensor(True))
        )

    def rows(self, op: str) -> Dict[str, Any]:
        n, outer = self.random.choice(SIZES), self.outer()
        wide = self.random.choice((self.dtype, torch.float32))
        if op in ("silu_and_mul", "gelu_tanh_and_mul"):
            return {"x": self.tensor([*outer, 2 * n]), "out": self.maybe(lambda: self.tensor([*outer, n]))}
        arguments = {"x": self.tensor([*outer, n]), "weight": self.maybe(lambda: self.tensor([n], wide))}
        if op == "rms_norm":
            arguments["out"] = self.maybe(lambda: self.tensor([*outer, n]))
        else:
            arguments["residual"] = self.tensor([*outer, n])
        return arguments

    def heads(self, op: str) -> Dict[str, Any]:
        size, outer = self.random.choice(SIZES[:19]), self.outer(most=40)
        wide = self.random.choice((self.dtype, torch.float32))
        rows = self.random.choice((0, 1, 2, 17))
        rotary = 2 * self.random.randint(0, size // 2) if self.seldom(2) else size - size % 2
        counts = [self.random.choice((1, 2, 3, 5, 33)) for _ in range(2)]
        query = self.tensor([*outer, counts[0], size])
        key = self.maybe(lambda: self.tensor([*outer, counts[1], size]))
        arguments = {"positions": self.positions(outer, rows), "query": query, "key": key}
        arguments["cos_sin_cache"] = self.tensor([rows, rotary], self.random.choice((self.dtype, torch.float32)))
        if op == "fused_qk_norm_rope":
            for name, count in (("query", counts[0]), ("key", counts[1])):
                arguments[f"{name[0]}_weight"] = self.maybe(lambda: self.tensor([size], wide))
                there = arguments[name] is not None or self.seldom(20)
                arguments[f"{name}_out"] = (
                    self.maybe(lambda count=count: self.tensor([*outer, count, size])) if there else None
                )
        return arguments

    def positions(self, outer: List[int], rows: int) -> Any:
        tokens = math.prod(outer)
        dtype = self.random.choice((torch.int32, torch.int64))
        limit = torch.iinfo(dtype)
        value = self.tensor(self.random.choice((outer, [tokens])), dtype)
        if isinstance(value, Tensor) and value.dtype in (torch.int32, torch.int64) and type(value) is Tensor:
            if value.device.type == "cpu" and value.numel() < 1 << 20 and value.dtype == dtype:
                with contextlib.suppress(RuntimeError):  # elements in one place
                    value.copy_(torch.randint(-1, rows + 2, value.shape, generator=self.generator))
                    if value.numel():
                        value.view(-1)[0] = self.random.choice((limit.min, limit.max, -1, 0, rows, rows - 1))
        return value

    def outer(self, most: int = 400) -> List[int]:
        shape = [self.random.choice((0, 1, 1, 2, 3, 5)) for _ in range(self.random.choice((0, 1, 1, 2, 3)))]
        return [self.random.choice((37, most))] if self.seldom(8) else shape

    def maybe(self, value: Callable[[], Any]) -> Any:
        return value() if self.random.randrange(2) else None


def build(seed: int) -> World:
    """The call of that seed: always the same."""
    make = _Builder(seed)
    op = make.random.choice(OPERATORS)
    rotates = op in ("rotary_embedding", "fused_qk_norm_rope")
    arguments = make.heads(op) if rotates else make.rows(op)
    if make.seldom(6):  # the same object, or a neighbour in its memory, in two places
        first, second = make.random.sample(sorted(arguments), 2)
        value = arguments[first]
        if isinstance(value, Tensor) and type(value) is Tensor and value.dim() and make.seldom(2):
            with contextlib.suppress(Exception):
                value = value.roll(0) if value.shape[0] == 0 else value[: max(1, value.shape[0] - 1)]
        arguments[second] = value
    tensors = [value for value in arguments.values() if isinstance(value, Tensor)]
    if op in ("rms_norm", "fused_add_rms_norm", "fused_qk_norm_rope"):
        arguments["eps"] = make.number(1e-6, tensors)
        arguments["weight_offset"] = make.number(0.0, tensors)
    if rotates:
        arguments["interleaved"] = make.flag(False, tensors)
    if op == "fused_qk_norm_rope":
        arguments["round_normalized"] = make.flag(True, tensors)
    for name in sorted(arguments):
        if name in ("eps", "weight_offset", "interleaved") or (arguments[name] is None and name.endswith("out")):
            if make.seldom(3):
                del arguments[name]
    extra: Dict[str, Any] = {}
    if make.seldom(40):
        extra = make.random.choice(({"other": 1}, {"\udc80": 1}, {"x\0": 1}, {"\u00e9ps": 1}, {"X": None}, {"": 2}))
        make.comparable = False
    positional = make.random.randint(0, len(POSITIONAL[op]) + make.seldom(40))
    mode = make.random.choice(("no_grad", "no_grad", "inference", "grad", "grad"))
    return World(op, arguments, positional, extra, mode, make.buffers, make.comparable)


def _call(function: Callable[..., Any], world: World) -> Tuple[Any, ...]:
    names = POSITIONAL[world.op][: world.positional]
    positional = [world.arguments[name] for name in names if name in world.arguments]
    positional += [None] * (world.positional - len(names))  # one too many
    keywords = {name: value for name, value in world.arguments.items() if name not in names}
    modes = {"no_grad": torch.no_grad, "inference": torch.inference_mode, "grad": torch.enable_grad}
    with modes[world.mode]():
        result = function(*positional, **keywords, **world.extra)
    return result if isinstance(result, tuple) else (result,)


def _checked_reference(op: str) -> Callable[..., Any]:
    check = getattr(checks, op, checks.gated_activation)
    wanted = check.__code__.co_varnames[: check.__code__.co_argcount]
    usual = {"eps": 1e-6, "weight_offset": 0.0, "op": op}

    def function(*args: Any, **kwargs: Any) -> Any:
        if len(args) > len(POSITIONAL[op]):
            raise TypeError("too many positional arguments")
        arguments = {**dict(zip(POSITIONAL[op], args)), **kwargs}
        check(*({**usual, **arguments}.get(name) for name in wanted))
        return ROUTES["reference"][op](**arguments)

    return function


def _same(a: Any, b: Any) -> bool:
    """The same bits, any NaN equal to any NaN."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return a is None and b is None
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    a, b = a.detach(), b.detach()
    if a.dtype == torch.float64:  # PyTorch's own kernels on both sides, not the contract
        return torch.equal(a.nan_to_num(), b.nan_to_num())
    if not a.is_floating_point():
        return torch.equal(a, b)
    a, b = a.float(), b.float()
    bits = a.contiguous().view(torch.int32) == b.contiguous().view(torch.int32)
    return bool((bits | (a.isnan() & b.isnan())).all())


def run(seed: int) -> str:
    """Runs the call of that seed; -> "accepted", "refused" or "not compared". Fails where anything is wrong."""
    world = build(seed)
    before = [raw.clone() for raw in world.buffers]
    if not world.comparable:
        world.buffers.clear()  # the tensors alone keep their memory: taking it away frees it
    try:
        results: Optional[Tuple[Any, ...]] = _call(ROUTES["public"][world.op], world)
        error: Optional[BaseException] = None
    except (*EXPECTED_ERRORS, ZeroDivisionError) as caught:
        results, error = None, caught
    if not world.comparable:
        return "not compared"
    other = build(seed)
    try:
        want: Optional[Tuple[Any, ...]] = _call(_checked_reference(world.op), other)
        want_error: Optional[BaseException] = None
    except EXPECTED_ERRORS as caught:
        want, want_error = None, caught
    what = f"seed {seed}, {world.op}"
    if (error is None) != (want_error is None):
        raise AssertionError(f"{what}: public {error!r}, reference {want_error!r}")
    if error is not None or results is None or want is None:
        for raw, old in zip(world.buffers, before):
            assert torch.equal(raw, old), f"{what}: refused ({error!r}), and yet memory changed"
        return "refused"
    assert len(results) == len(want) and all(_same(a, b) for a, b in zip(results, want)), f"{what}: other results"
    written = [(world.arguments.get(name), other.arguments.get(name)) for name in WRITTEN[world.op]]
    with torch.no_grad():
        for mine, theirs in written:
            assert _same(mine, theirs), f"{what}: other values written"
            for value in (mine, theirs):
                if isinstance(value, Tensor):
                    value.zero_()  # their NaNs may differ in bits
    for raw, old in zip(world.buffers, other.buffers):
        assert torch.equal(raw, old), f"{what}: memory outside the results differs"
    return "accepted"
