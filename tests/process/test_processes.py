"""Forked children, pickled functions, and what the environment can ask for."""

import copy
import os
import pickle
import platform
import sys
import weakref

import pytest
import torch

import edge_ops
from edge_ops import native
from support.packaged import imported_by_itself
from support.processes import output, python
from support.routes import OPERATORS, ROUTES
from support.values import DEVICE

PUBLIC = ROUTES["public"]
needs_native = pytest.mark.skipif(native.extension is None, reason="this build has no native code")
on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64's levels")

LEVELS = ("baseline", "avx2", "avx512")
SHOW = "from edge_ops import native; print(native.build_info()['isa_chosen'])"


@pytest.mark.parametrize("op", OPERATORS)
def test_pickle_and_copy(op):
    # by name, as functions are: a pickled model that holds one finds it again
    function = PUBLIC[op]
    assert pickle.loads(pickle.dumps(function)) is function
    assert copy.deepcopy(function) is function and copy.copy(function) is function


@pytest.mark.parametrize("op", OPERATORS)
def test_the_functions_look_like_python(op):
    import inspect

    function, plain = PUBLIC[op], edge_ops.ops._FUNCTIONS[op]
    assert function.__name__ == op and function.__module__.split(".")[0] == edge_ops.__name__
    assert inspect.getdoc(function) == inspect.getdoc(plain)

    def shape(f):
        return [(p.name, p.kind, p.default) for p in inspect.signature(f).parameters.values()]

    assert shape(function) == shape(plain)


FORK = """
import os, sys, torch, edge_ops
torch.set_num_threads(2)
x = torch.randn(512, 1024, generator=torch.Generator().manual_seed(0))
w = torch.ones(1024)
want = edge_ops.rms_norm(x, w)          # large: split over the parent's threads
small = edge_ops.rms_norm(x[:1], w)
def child(threads):
    if threads: torch.set_num_threads(threads)
    same = torch.equal(edge_ops.rms_norm(x[:1], w), small)
    if threads: same = same and torch.equal(edge_ops.rms_norm(x, w), want)
    a, r = x[:2].clone(), x[2:4].clone()
    edge_ops.fused_add_rms_norm(a, r, w)
    return same and torch.equal(r, x[:2] + x[2:4])
for threads in (0, 1):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if child(threads) else 3)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, (threads, status)
assert torch.equal(edge_ops.rms_norm(x, w), want)   # and the parent goes on
print("children ended well")
"""


@pytest.mark.skipif(DEVICE != "cpu" or not hasattr(os, "fork"), reason="fork is for the CPU")
def test_a_forked_child_may_call():
    # as any user of torch's thread pool, a child splits no work unless it sets its own number of threads
    assert "children ended well" in output(["-c", FORK], timeout=120)


def test_spawned_workers_get_the_functions():
    code = """
import multiprocessing as mp, torch, edge_ops
if __name__ == "__main__":
    with mp.get_context("spawn").Pool(1) as pool:
        x = torch.ones(2, 8)
        assert torch.equal(pool.apply(edge_ops.silu_and_mul, (x,)), edge_ops.silu_and_mul(x))
    print("worker answered")
"""
    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"edge_ops_spawn_{os.getpid()}.py")
    with open(path, "w") as file:
        file.write(code)
    try:
        assert "worker answered" in output([path], timeout=240)
    finally:
        os.unlink(path)


@needs_native
@on_x86
class TestLevels:
    def offered(self):
        return native.build_info()["isa_offered"]

    def test_all_levels_are_compiled(self):
        assert list(native.build_info()["isa_compiled"]) == list(LEVELS)

    def test_the_host_gets_the_highest(self):
        assert output(["-c", SHOW]).strip() == self.offered()[-1]
        assert self.offered() == list(LEVELS[: len(self.offered())])

    def test_a_level_can_be_asked_for(self):
        for level in self.offered():
            assert output(["-c", SHOW], {"EDGE_OPS_CPU_ISA": level}).strip() == level

    def test_an_empty_wish_is_none(self):
        assert output(["-c", SHOW], {"EDGE_OPS_CPU_ISA": ""}).strip() == self.offered()[-1]

    @pytest.mark.parametrize("level", ("avx3", "AVX2", "sse2", "neon", "avx2 "))
    def test_an_unknown_level(self, level):
        done = python(["-c", SHOW], {"EDGE_OPS_CPU_ISA": level})
        assert done.returncode != 0 and "EDGE_OPS_CPU_ISA" in done.stderr and level in done.stderr
        for known in LEVELS:
            assert known in done.stderr, "the message says what is allowed"

    def test_the_environment_is_read_at_import_only(self):
        code = f"""
import os, edge_ops, torch
os.environ["EDGE_OPS_CPU_ISA"] = "nonsense"
os.environ["EDGE_OPS_DISABLE_DIRECT"] = "1"
edge_ops.rms_norm(torch.ones(1, 8), None)
assert edge_ops.explain("rms_norm", torch.ones(1, 8), None).route == "direct"
{SHOW}
"""
        assert output(["-c", code]).strip() == self.offered()[-1]


@needs_native
def test_the_direct_route_can_be_disabled():
    code = """
import torch, edge_ops
route = edge_ops.explain("rms_norm", torch.ones(1, 8), None)
print(route.route, edge_ops.native.build_info()["direct"])
"""
    assert output(["-c", code]).split() == ["direct", "True"]
    assert output(["-c", code], {"EDGE_OPS_DISABLE_DIRECT": "1"}).split() == ["dispatcher", "False"]
    assert output(["-c", code], {"EDGE_OPS_DISABLE_DIRECT": "0"}).split() == ["direct", "True"]


@imported_by_itself
def test_import_is_light():
    # a program that never compiles does not pay for Dynamo, and nothing but torch is needed
    code = """
import sys
import torch
before = set(sys.modules)
import edge_ops
new = {name.split(".")[0] for name in set(sys.modules) - before}
assert "torch._dynamo" not in sys.modules or "torch._dynamo" in before, "torch._dynamo was imported"
print(sorted(new - set(sys.stdlib_module_names) - {"_xxsubinterpreters"}))  # CPython's own, not in its list
"""
    assert eval(output(["-c", code])) == ["edge_ops"]


def test_no_reference_is_kept_or_lost():
    x, w, out = torch.ones(4, 16), torch.ones(16), torch.empty(4, 16)
    q, positions, cache = torch.ones(4, 2, 16), torch.arange(4), edge_ops.rope_cache(8, 16)
    bad = torch.ones(7)
    tensors = (x, w, out, q, positions, cache, bad)

    def everything():
        edge_ops.rms_norm(x, w, out=out)
        edge_ops.rms_norm(x, w)
        edge_ops.silu_and_mul(x)
        edge_ops.fused_add_rms_norm(x, out, w)
        edge_ops.rotary_embedding(positions, q, None, cache)
        edge_ops.fused_qk_norm_rope(positions, q, None, w, None, cache)
        for refused in (lambda: edge_ops.rms_norm(x, bad), lambda: edge_ops.rms_norm(x, w, nothing=1)):
            with pytest.raises((ValueError, TypeError)):
                refused()

    # what is returned belongs to the caller alone
    for call in (lambda: edge_ops.rms_norm(x, w), lambda: edge_ops.silu_and_mul(x)):
        result = call()
        assert sys.getrefcount(result) == 2  # the variable, and the question itself
        there = weakref.ref(result)
        del result
        assert there() is None

    # From Python 3.12 on these are immortal: what older stable-ABI code adds, the interpreter does not take off again.
    singletons = (None, True, False) if sys.version_info < (3, 12) else ()
    everything()
    before = [sys.getrefcount(t) for t in (*tensors, *singletons)]
    for _ in range(200):
        everything()
    after = [sys.getrefcount(t) for t in (*tensors, *singletons)]
    assert all(abs(a - b) < 100 for a, b in zip(after, before)), (before, after)
    assert after[: len(tensors)] == before[: len(tensors)]
