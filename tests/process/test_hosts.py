"""Unusual hosts: eager binding, isolated mode, a subinterpreter, an old torch, old processors."""

import platform
import shutil
import sys

import pytest

from edge_ops import native
from support.packaged import imported_by_itself
from support.processes import output, python
from support.values import DEVICE

needs_native = pytest.mark.skipif(native.extension is None or DEVICE != "cpu", reason="this build has no native code")
QEMU = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64")

SELF_CHECK = """
from edge_ops import native
from edge_ops.cli import selfcheck
outcomes = selfcheck.run()
assert len(outcomes) == 18 and all(o.contract and o.reference for o in outcomes), outcomes
print("the contract's bits on", native.build_info()["isa_chosen"])
"""


@needs_native
def test_every_symbol_is_found_at_load():
    # a symbol that the library lacks would show at its first call only
    assert "the contract's bits" in output(["-c", SELF_CHECK], {"LD_BIND_NOW": "1"}, timeout=120)


def test_isolated_mode():
    # without PYTHONPATH and the user's packages: the package's folder is named inside
    folders = [path for path in sys.path if path]
    code = f"import sys; sys.path[:0] = {folders!r}\n{SELF_CHECK}"
    assert "the contract's bits" in output(["-I", "-c", code], timeout=120)


SUBINTERPRETER = """
import sys
try:
    import _interpreters as interpreters       # 3.13 on
except ImportError:
    import _xxsubinterpreters as interpreters
import torch
import edge_ops
want = edge_ops.rms_norm(torch.ones(2, 8), None)
inner = f'''
import sys
sys.path[:] = {sys.path!r}
try:
    import edge_ops
    print("inside: imported", flush=True)
except BaseException as error:
    print("inside:", type(error).__name__, error, flush=True)
'''
interpreter = interpreters.create()
interpreters.run_string(interpreter, inner)
interpreters.destroy(interpreter)
assert torch.equal(edge_ops.rms_norm(torch.ones(2, 8), None), want)
print("outside: works")
"""


@imported_by_itself
def test_a_subinterpreter_is_refused():
    # torch breaks the process where it is imported a second time: the refusal must come before that
    done = python(["-c", SUBINTERPRETER], timeout=120)
    assert done.returncode == 0 and "outside: works" in done.stdout, f"{done.stdout}\n{done.stderr[-3000:]}"
    assert "inside: ImportError edge_ops works in the main interpreter only" in done.stdout, done.stdout


OLD = """
import sys, torch
for version in ("2.9.1", "2.9.1+cu128", "1.13.0a0+git123"):
    torch.__version__ = version
    try:
        import edge_ops
    except ImportError as error:
        assert str(error).startswith(f"edge_ops needs torch >= 2.10, found {version}: "), error
    else:
        raise SystemExit(f"imported beside torch {version}")
    for name in [name for name in sys.modules if name.split(".")[0] == "edge_ops"]:
        del sys.modules[name]
print("refused")
"""


def test_a_torch_that_is_too_old():
    # this torch under other names: what the package asks is the version
    assert "refused" in output(["-c", OLD], timeout=120)


# SSE2 and nothing above it. NumPy's own wheels need more, and torch does without NumPy.
@needs_native
@pytest.mark.slow
@pytest.mark.skipif(QEMU is None or platform.machine() != "x86_64", reason="needs qemu-user, on x86-64")
@pytest.mark.parametrize("processor", ("qemu64", "core2duo"))
def test_a_processor_below_x86_64_v2(processor):
    code = "import sys; sys.modules['numpy'] = None\n" + SELF_CHECK
    printed = output(["-c", code], prefix=[QEMU, "-cpu", processor], timeout=600)
    assert "the contract's bits on baseline" in printed
