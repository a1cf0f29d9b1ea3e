"""Random calls, right and wrong: equal to the reference where accepted, without effect where refused, never a crash.

tools/harden/fuzz.py runs more of the same, for as long as asked, on a build with sanitizers.
"""

import collections

import pytest

from edge_ops import native
from support import fuzz
from support.processes import output
from support.values import DEVICE

pytestmark = pytest.mark.skipif(native.extension is None or DEVICE != "cpu", reason="drives the native CPU code")


@pytest.mark.filterwarnings("ignore")  # of prototypes among PyTorch's tensor kinds
def test_random_calls():
    seen = collections.Counter(fuzz.run(seed) for seed in range(400))
    assert seen["accepted"] > 150 and seen["refused"] > 40 and seen["not compared"] > 40, seen


def test_a_wrong_result_is_seen():
    def silu(x, *, out=None):
        result = fuzz.ROUTES["reference"]["silu_and_mul"](x)
        return result.mul_(1.01) if out is None else out.copy_(result.mul_(1.01))

    right = fuzz.ROUTES["public"]["silu_and_mul"]
    fuzz.ROUTES["public"]["silu_and_mul"] = silu
    try:
        found = 0
        for seed in range(60):
            if fuzz.build(seed).op == "silu_and_mul":
                try:
                    fuzz.run(seed)
                except AssertionError:
                    found += 1
        assert found > 3
    finally:
        fuzz.ROUTES["public"]["silu_and_mul"] = right


# A number or a flag may be any object. Reading it runs code that can free the memory of a tensor of the same call;
# memory of this size goes back to the system at once, so that a kernel that still held its address would crash.
MEDDLE = """
import torch, edge_ops
class Meddler:
    def __init__(self, *tensors): self.tensors = tensors
    def meddle(self):
        for tensor in self.tensors: tensor.set_(torch.empty(0))
    def __float__(self):
        self.meddle()
        return 1e-6
    def __bool__(self):
        self.meddle()
        return True
def large(*shape): return torch.ones(4, *shape, 1 << 20)
def attempt(name, *arguments, **keywords):
    try:
        getattr(edge_ops, name)(*arguments, **keywords)
    except (TypeError, ValueError, RuntimeError):
        pass
x, r = large(), large()
attempt("rms_norm", x, None, Meddler(x))
x, out = large(), large()
attempt("rms_norm", x, None, weight_offset=Meddler(x, out), out=out)
x = large()
attempt("fused_add_rms_norm", x, r, None, Meddler(x, r))
positions, cache = torch.arange(4), torch.ones(8, 64)
for name, tail in (("rotary_embedding", ()), ("fused_qk_norm_rope", (None, None))):
    q = large(1)
    attempt(name, positions, q, None, *tail, cache, interleaved=Meddler(q))
q = large(1)
attempt("fused_qk_norm_rope", positions, q, None, None, None, cache, round_normalized=Meddler(q))
print("still here")
"""


def test_memory_freed_while_arguments_are_read():
    assert "still here" in output(["-c", MEDDLE], timeout=120)
