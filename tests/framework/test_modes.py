"""Modes, subclasses and transforms see the operators as PyTorch operators; explain() says which route a call takes."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import edge_ops
from edge_ops import native
from support import refusals
from support.programs import Block, assert_equal, inputs
from support.routes import OPERATORS
from support.values import DEVICE

needs_native = pytest.mark.skipif(native.extension is None, reason="this build has no native code")


def rows(*shape, dtype=torch.float32):
    return torch.linspace(-2, 2, int(torch.Size(shape).numel())).reshape(shape).to(dtype).to(DEVICE)


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def assert_saw_every_operator(names):
    for op in ("rms_norm", "fused_add_rms_norm", "silu_and_mul", "gelu_tanh_and_mul", "rotary_embedding",
               "fused_qk_norm_rope"):  # fmt: skip
        assert any(f"{op}" in name for name in names), f"{op} was not seen among {sorted(set(names))}"


@needs_native
def test_dispatch_mode():
    plain, watched = inputs(5), inputs(5)
    want = Block()(*plain)
    with Recorder() as recorder:
        got = Block()(*watched)
    assert_equal(got, want)
    assert_saw_every_operator([name for name in recorder.seen if native.ops.name in name])


def test_function_mode():
    class Counting(TorchFunctionMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    plain, watched = inputs(5), inputs(5)
    want = Block()(*plain)
    with Counting() as mode:
        got = Block()(*watched)
    assert_equal(got, want)
    if native.extension is not None:
        assert_saw_every_operator([name for name in mode.seen if native.ops.name in name])


def test_fake_tensors_have_the_real_metadata():
    w = rows(8)
    for name, x in {
        "contiguous": rows(4, 8),
        "slice": rows(4, 20)[:, 3:11],
        "3-D": rows(2, 3, 8),
        "transposed": rows(3, 2, 8).transpose(0, 1),
        "expanded": rows(1, 8).expand(4, 8),
        "empty": rows(0, 8),
        "one row": rows(8),
        "bfloat16": rows(4, 8, dtype=torch.bfloat16),
    }.items():
        for function in (lambda t: edge_ops.rms_norm(t, w), edge_ops.silu_and_mul, edge_ops.gelu_tanh_and_mul):
            real = function(x)
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                fake = function(mode.from_tensor(x))
            for property in ("shape", "dtype", "device"):
                assert getattr(fake, property) == getattr(real, property), name
            assert fake.stride() == real.stride(), name


def test_fake_tensors_in_place():
    with FakeTensorMode():
        x, r, q, k = torch.empty(3, 8), torch.empty(3, 8), torch.empty(3, 2, 8), torch.empty(3, 1, 8)
        positions, cache = torch.zeros(3, dtype=torch.long), torch.empty(5, 8)
        assert edge_ops.fused_add_rms_norm(x, r, None) == (x, r)
        assert edge_ops.rotary_embedding(positions, q, k, cache) == (q, k)
        assert edge_ops.fused_qk_norm_rope(positions, q, k, None, None, cache) == (q, k)
        with pytest.raises(ValueError, match="residual must have x's shape"):
            edge_ops.fused_add_rms_norm(x, r[:2], None)


def test_meta_tensors():
    x = torch.empty(3, 8, device="meta")
    assert edge_ops.rms_norm(x, None).device.type == "meta"
    assert edge_ops.silu_and_mul(x).shape == (3, 4)
    r = torch.empty(3, 8, device="meta")
    assert edge_ops.fused_add_rms_norm(x, r, None) == (x, r)


class Tagged(torch.Tensor):
    """A subclass without behaviour of its own: PyTorch's operators keep it."""


@needs_native
@pytest.mark.parametrize("op", OPERATORS)
def test_one_argument_of_a_subclass(op):
    # wherever it stands: a subclass may mean something else by the call
    arguments = refusals.valid(op)
    assert edge_ops.explain(op, **arguments).route == "direct"
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            changed = {**arguments, name: value.as_subclass(Tagged)}
            assert edge_ops.explain(op, **changed).route == "dispatcher", name


def test_subclass():
    x = rows(3, 8)
    got = edge_ops.rms_norm(x.as_subclass(Tagged), rows(8).as_subclass(Tagged))
    assert isinstance(got, Tagged)
    assert torch.equal(got.as_subclass(torch.Tensor), edge_ops.rms_norm(x, rows(8)))
    a, r = rows(3, 8).as_subclass(Tagged), rows(3, 8).as_subclass(Tagged)
    b, s = rows(3, 8), rows(3, 8)
    edge_ops.fused_add_rms_norm(a, r, None)
    edge_ops.fused_add_rms_norm(b, s, None)
    assert torch.equal(a.as_subclass(torch.Tensor), b) and torch.equal(r.as_subclass(torch.Tensor), s)


class Logged(torch.Tensor):
    """A wrapper without memory of its own: every operator must arrive at __torch_dispatch__."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def unwrap(value):
            return value.inner if isinstance(value, Logged) else value

        result = func(*(unwrap(a) for a in args), **{k: unwrap(v) for k, v in (kwargs or {}).items()})
        return Logged(result) if isinstance(result, torch.Tensor) else result


@needs_native
def test_wrapper_subclass():
    x, w = rows(3, 8), rows(8)
    assert torch.equal(edge_ops.rms_norm(Logged(x), w).inner, edge_ops.rms_norm(x, w))
    assert torch.equal(edge_ops.silu_and_mul(Logged(x)).inner, edge_ops.silu_and_mul(x))
    a, r = rows(3, 8), rows(3, 8)
    want = [t.clone() for t in (a, r)]
    edge_ops.fused_add_rms_norm(*want, None)
    edge_ops.fused_add_rms_norm(Logged(a), Logged(r), None)
    assert torch.equal(a, want[0]) and torch.equal(r, want[1])


def test_functionalize():
    def step(x, packed, positions):
        return Block()(x, packed, positions)

    plain, functional = inputs(6), inputs(6)
    want = step(*plain)
    got = torch.func.functionalize(step)(*functional)
    assert_equal(got, want)
    assert_equal(functional, plain, "inputs")


@pytest.mark.parametrize("op", ("rms_norm", "silu_and_mul", "gelu_tanh_and_mul"))
@pytest.mark.parametrize("in_dim", (0, 1, 2))
def test_vmap(op, in_dim):
    x = torch.randn(5, 6, 7, 16, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    w = torch.linspace(-1, 1, 16, device=DEVICE)
    function = (lambda t: edge_ops.rms_norm(t, w)) if op == "rms_norm" else getattr(edge_ops, op)
    got = torch.vmap(function, in_dims=in_dim)(x)
    assert torch.equal(got, torch.stack([function(t) for t in x.unbind(in_dim)]))


def test_vmap_over_weights():
    x, w = torch.randn(4, 3, 16, generator=torch.Generator().manual_seed(1)).to(DEVICE), rows(4, 16)
    assert torch.equal(
        torch.vmap(edge_ops.rms_norm)(x, w), torch.stack([edge_ops.rms_norm(a, b) for a, b in zip(x, w)])
    )
    one = torch.vmap(edge_ops.rms_norm, in_dims=(None, 0))(x[0], w)
    assert torch.equal(one, torch.stack([edge_ops.rms_norm(x[0], b) for b in w]))


def test_vmap_in_place():
    x, r = torch.randn(2, 4, 3, 16, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    want = [t.clone() for t in (x, r)]
    edge_ops.fused_add_rms_norm(*want, None)
    torch.vmap(lambda a, b: edge_ops.fused_add_rms_norm(a, b, None))(x, r)
    assert torch.equal(x, want[0]) and torch.equal(r, want[1])
    q = torch.randn(4, 3, 2, 8, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    rotated, cache = q.clone(), edge_ops.rope_cache(9, 8, device=DEVICE)
    positions = torch.tensor([0, 5, 8], device=DEVICE)
    edge_ops.rotary_embedding(positions.repeat(4), rotated.flatten(0, 1), None, cache)
    torch.vmap(lambda t: edge_ops.rotary_embedding(positions, t, None, cache)[0])(q)
    assert torch.equal(q, rotated)


def test_vmap_of_gradients():
    x, w = torch.randn(4, 3, 16, generator=torch.Generator().manual_seed(1)).to(DEVICE), rows(16)
    for function in (
        lambda t: edge_ops.rms_norm(t, w).square().sum(),
        lambda t: edge_ops.silu_and_mul(t).square().sum(),
    ):
        each = torch.stack([torch.func.grad(function)(t) for t in x])
        torch.testing.assert_close(torch.vmap(torch.func.grad(function))(x), each)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_autocast_changes_nothing(dtype):
    plain, cast = inputs(4, dtype), inputs(4, dtype)
    want = Block(dtype)(*plain)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        x, w = plain[0], rows(32, dtype=dtype)
        assert edge_ops.rms_norm(x, w).dtype == dtype
        assert edge_ops.silu_and_mul(x).dtype == dtype
        q = rows(3, 2, 8, dtype=dtype)
        edge_ops.rotary_embedding(torch.arange(3, device=DEVICE), q, None, rows(4, 8))
        assert q.dtype == dtype
        got = Block(dtype)(*cast)
    assert_equal(got, want)


def test_inference_mode():
    plain, inside = inputs(4), inputs(4)
    want = Block()(*plain)
    with torch.inference_mode():
        assert_equal(Block()(*inside), want)
        made_inside = inputs(4)
        assert_equal(Block()(*made_inside), want)


@needs_native
def test_the_profiler_sees_the_operators():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        Block()(*inputs(4))
    assert_saw_every_operator([event.key for event in profile.key_averages() if native.ops.name in event.key])


@needs_native
def test_old_profiler_too():
    with torch.autograd.profiler.profile() as profile:
        edge_ops.rms_norm(rows(2, 8), None)
    assert any("rms_norm" in event.key for event in profile.key_averages())
