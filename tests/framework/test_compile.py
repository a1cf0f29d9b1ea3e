"""torch.compile, torch.export and jit.trace: one graph for every length, eager's bits, eager's errors."""

import pytest
import torch

import edge_ops
from edge_ops import native
from support import refusals
from support.programs import Block, assert_equal, inputs
from support.routes import OPERATORS, ROUTES

PUBLIC = ROUTES["public"]
LENGTHS = (7, 3, 2, 33, 128, 50)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def pairs(tokens, dtype=torch.float32):
    """Inputs for the eager and for the compiled call: some are written."""
    return inputs(tokens, dtype), inputs(tokens, dtype)


class Counter:
    """A backend that counts the graphs it is given and hands them on."""

    def __init__(self, backend):
        self.graphs, self.nodes = 0, []
        self._backend = torch._dynamo.lookup_backend(backend)

    def __call__(self, graph, example_inputs):
        self.graphs += 1
        self.nodes += [node for node in graph.graph.nodes if node.op == "call_function"]
        return self._backend(graph, example_inputs)


@pytest.mark.parametrize("backend", ("eager", "aot_eager", "inductor"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_one_graph_for_every_length(backend, dtype):
    block, counter = Block(dtype), Counter(backend)
    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=counter)
    for tokens in LENGTHS:
        plain, traced = pairs(tokens, dtype)
        want = block(*plain)
        got = compiled(*traced)
        # inductor fuses the additions between the operators, in float32: bits are eager's where it adds nothing
        if backend == "inductor" and dtype != torch.float32:
            assert_equal(got[1:], want[1:], f"{tokens} tokens")
            torch.testing.assert_close(got[0], want[0], rtol=2e-2, atol=2e-2)
        else:
            assert_equal(got, want, f"{tokens} tokens")
        assert_equal(traced, plain, f"what {tokens} tokens left in the inputs")
    assert counter.graphs == 1, "a recompile per length"
    if native.extension is not None:
        used = {str(node.target) for node in counter.nodes if native.ops.name in str(node.target)}
        assert len(used) == 6, f"the graph holds the registered operators, not what they are made of: {used}"


def test_without_dynamic_shapes(rng):
    block = Block()
    compiled = torch.compile(block, fullgraph=True, dynamic=False, backend="aot_eager")
    for tokens in (1, 5):  # 1 is specialised by Dynamo
        plain, traced = pairs(tokens)
        assert_equal(compiled(*traced), block(*plain))


@pytest.mark.parametrize("backend", ("aot_eager", "inductor"))
def test_out_arguments(backend):
    def step(x, w, positions, q, cache, out, gated, q_out):
        edge_ops.rms_norm(x, w, out=out)
        edge_ops.silu_and_mul(out, out=gated)
        edge_ops.gelu_tanh_and_mul(x, out=gated[:1])
        edge_ops.rms_norm(x, w, out=x)
        k = q.clone()
        edge_ops.fused_qk_norm_rope(positions, q, k, None, None, cache, query_out=q_out)  # one apart, one in place
        return x + 1, k

    def arguments():
        g = torch.Generator().manual_seed(5)
        return [
            torch.randn(3, 16, generator=g), torch.randn(16, generator=g), torch.arange(3),
            torch.randn(3, 2, 8, generator=g), edge_ops.rope_cache(5, 8),
            torch.zeros(3, 16), torch.zeros(3, 8), torch.zeros(3, 2, 8),
        ]  # fmt: skip

    # out=gated[:1] of a [3, 16] x does not fit: it must be refused, compiled or not
    plain, traced = arguments(), arguments()
    for function in (step, torch.compile(step, fullgraph=True, backend=backend)):
        with pytest.raises(Exception, match=r"out must have shape \(3, 8\), got \(1, 8\)"):
            function(*arguments())

    def good(x, w, positions, q, cache, out, gated, q_out):
        edge_ops.rms_norm(x, w, out=out)
        edge_ops.silu_and_mul(out, out=gated)
        edge_ops.gelu_tanh_and_mul(x[:1], out=gated[:1])
        edge_ops.rms_norm(x, w, out=x)
        k = q.clone()
        edge_ops.fused_qk_norm_rope(positions, q, k, None, None, cache, query_out=q_out)
        return x + 1, k

    want = good(*plain)
    got = torch.compile(good, fullgraph=True, dynamic=True, backend=backend)(*traced)
    assert_equal(got, want)
    assert_equal(traced, plain)


def test_gradients_through_a_compiled_call():
    def loss(x, w):
        y = edge_ops.rms_norm(x, w, weight_offset=1.0)
        return (edge_ops.silu_and_mul(y) * edge_ops.gelu_tanh_and_mul(y)).square().sum()

    grads = []
    for function in (loss, torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")):
        g = torch.Generator().manual_seed(3)
        x, w = torch.randn(5, 16, generator=g).requires_grad_(), torch.randn(16, generator=g).requires_grad_()
        function(x, w).backward()
        grads.append((x.grad, w.grad))
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b)


# Which memory tensors share is not known to a trace: the compiled program gives what is written a place of its own.
TRACEABLE = [case for case in refusals.CASES if not case.memory]


@pytest.mark.skipif(native.extension is None, reason="without registered operators the reference is traced")
@pytest.mark.parametrize("op", OPERATORS)
def test_errors_while_tracing(op):
    failures = []
    for case in (c for c in TRACEABLE if c.op == op):
        torch._dynamo.reset()
        arguments = refusals.valid(op)
        case.change(arguments)
        before = refusals.storage_bytes(arguments)
        try:
            torch.compile(lambda a: PUBLIC[op](**a), fullgraph=True, backend="aot_eager")(arguments)  # noqa: B023
        except Exception as error:  # Dynamo wraps errors in its own types
            said = str(error)
            if case.name not in said:
                failures.append(f"{case}: {type(error).__name__} {said[:150]!r} does not name the argument")
        else:
            failures.append(f"{case}: accepted")
        for name, after in refusals.storage_bytes(arguments).items():
            if not torch.equal(before[name], after):
                failures.append(f"{case}: wrote to {name}")
    assert not failures, "\n".join(failures)


def test_export():
    block = Block()
    tokens = torch.export.Dim("tokens", min=2, max=512)
    program = torch.export.export(block, inputs(9), dynamic_shapes=({0: tokens}, {0: tokens}, {0: tokens}))
    for n in (2, 9, 100):
        plain, exported = pairs(n)
        assert_equal(program.module()(*exported), block(*plain))
    if native.extension is not None:
        targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
        assert sum(native.ops.name in target for target in targets) == 6


def test_export_decomposed():
    # functionalized: every mutation has become a copy, and the results are still eager's
    program = torch.export.export(Block(), inputs(9)).run_decompositions()
    plain, exported = pairs(9)
    assert_equal(program.module()(*exported), Block()(*plain))


def test_jit_trace():
    def functional(x, w):
        return edge_ops.silu_and_mul(edge_ops.rms_norm(x, w)) + edge_ops.gelu_tanh_and_mul(x)

    w = torch.linspace(-1, 1, 16)
    traced = torch.jit.trace(functional, (torch.ones(3, 16), w))
    for rows in (3, 8):
        x = torch.randn(rows, 16, generator=torch.Generator().manual_seed(rows))
        torch.testing.assert_close(traced(x, w), functional(x, w), rtol=0, atol=0)


def test_jit_trace_in_place():
    def in_place(x, r, w):
        a, b = x.clone(), r.clone()
        edge_ops.fused_add_rms_norm(a, b, w)
        return a, b

    w = torch.linspace(-1, 1, 16)
    traced = torch.jit.trace(in_place, (torch.ones(3, 16), torch.ones(3, 16), w))
    x, r = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(1))
    assert_equal(traced(x, r, w), in_place(x, r, w))


def test_the_reference_can_be_traced_too():
    # float64 has no native code: its checks and its formulas are what Dynamo sees
    def step(x, r, w, positions, q, k, cache, out):
        edge_ops.rms_norm(x, w, out=out)
        edge_ops.fused_add_rms_norm(x, r, w)
        edge_ops.rotary_embedding(positions, q, k, cache)
        edge_ops.fused_qk_norm_rope(positions, q, k, w, w, cache, query_out=out.view_as(q))
        return edge_ops.silu_and_mul(x) + edge_ops.gelu_tanh_and_mul(r)

    def arguments(tokens):
        g = torch.Generator().manual_seed(tokens)
        rows = [torch.randn(tokens, 16, dtype=torch.float64, generator=g) for _ in range(2)]
        heads = [torch.randn(tokens, 1, 16, dtype=torch.float64, generator=g) for _ in range(2)]
        w = torch.randn(16, dtype=torch.float64, generator=g)
        return *rows, w, torch.arange(tokens), *heads, edge_ops.rope_cache(64, 16), torch.zeros_like(rows[0])

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (3, 8, 20):
        plain, traced = arguments(tokens), arguments(tokens)
        torch.testing.assert_close(compiled(*traced), step(*plain), rtol=1e-12, atol=1e-12)
        for a, b in zip(traced, plain):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
