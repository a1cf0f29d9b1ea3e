"""The built layout loaded as users load it: a local path, a downloaded cache, a lock file, beside the wheel."""

from __future__ import annotations

import json

import pytest

import edge_ops
from support.processes import output, python

build_hub = pytest.importorskip("build_hub", reason="needs Python 3.11's tomllib")
pytest.importorskip("kernels")

REPOSITORY = build_hub.GENERAL["hub"]["repo-id"]
VERSION = build_hub.GENERAL["version"]
with_the_wheel = pytest.mark.skipif(edge_ops.__name__ != "edge_ops", reason="`edge_ops` is the Hub's build itself")

HUB = f"hub = kernels.get_kernel({REPOSITORY!r}, version={VERSION})\n"
SAME = """
x, w = torch.randn(5, 96, generator=torch.Generator().manual_seed(0)), torch.ones(96)
cache, positions = edge_ops.rope_cache(32, 32), torch.arange(5)
def everything(package):
    q = x.view(5, 3, 32).clone()
    package.fused_qk_norm_rope(positions, q, None, w[:32], None, cache)
    a, r = x.clone(), x.clone()
    package.fused_add_rms_norm(a, r, w)
    return package.rms_norm(x, w), package.silu_and_mul(x), package.gelu_tanh_and_mul(x), q, a, r
for one, other in zip(everything(edge_ops), everything(hub)):
    assert torch.equal(one, other)
both = torch.compile(lambda x: hub.silu_and_mul(edge_ops.rms_norm(x, None)), fullgraph=True, backend="aot_eager")
assert torch.equal(both(x), hub.silu_and_mul(edge_ops.rms_norm(x, None)))
names = {edge_ops.native.build_info()["build"], hub.native.build_info()["build"]}
assert len(names) == 2 and all(hub.explain("rms_norm", x, w).route == "direct" for _ in names), names
"""


NO_LOCAL_KERNELS = "nobody/nothing=/nowhere"  # the library takes no empty value


def offline(cache, **more):
    return {"KERNELS_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "LOCAL_KERNELS": NO_LOCAL_KERNELS, **more}


@with_the_wheel
@pytest.mark.parametrize("first", ("wheel", "hub"))
def test_both_copies_in_one_process(layout, first):
    imports = "import torch, kernels\n" + ("import edge_ops\n" + HUB if first == "wheel" else HUB + "import edge_ops\n")
    output(["-c", imports + SAME], {"LOCAL_KERNELS": f"{REPOSITORY}={layout}"})


@with_the_wheel
def test_one_copy_does_not_patch_what_the_other_has(layout):
    program = f"""
import torch, kernels, edge_ops, pytest
{HUB}
from models.tiny import prompt, tiny
model, ids = tiny("qwen3"), prompt()
with torch.no_grad():
    expected = model(ids).logits
    edge_ops.patch(model)
    with pytest.raises(ValueError, match="patched already"):
        hub.patch(model)
    edge_ops.unpatch(model)
    assert torch.equal(model(ids).logits, expected)
    print(len(hub.patch(model).replaced) > 0)
    assert torch.allclose(model(ids).logits, expected, atol=1e-4)
"""
    assert output(["-c", program], {"LOCAL_KERNELS": f"{REPOSITORY}={layout}"}).strip() == "True"


def test_every_machine_loads_something(layout, tmp_path):
    """The pure PyTorch variant alone: the same bits, on the reference."""
    name = "torch-cpu"
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / name).symlink_to(layout / "build" / name)
    program = f"""
import torch, kernels
pure = kernels.get_kernel({REPOSITORY!r}, version={VERSION})
x = torch.randn(4, 64)
print(pure.explain("rms_norm", x, None).route, pure.native.build_info()["build"], tuple(pure.rms_norm(x, None).shape))
"""
    out = output(["-c", program], {"LOCAL_KERNELS": f"{REPOSITORY}={tmp_path}"})
    assert out.strip() == "reference pure PyTorch (4, 64)"


# --- a downloaded repository -------------------------------------------------------------


def test_the_recorded_version_loads_from_the_cache(cache, native_variant):
    out = output(["-c", f"import kernels\n{HUB}print(hub.__name__)"], offline(cache))
    assert out.strip() == json.loads((native_variant / "metadata.json").read_text())["id"]


def test_another_version_is_refused(cache):
    done = python(["-c", f"import kernels; kernels.get_kernel({REPOSITORY!r}, version={VERSION + 1})"], offline(cache))
    assert done.returncode != 0
    assert f"Version {VERSION + 1} not found, available versions: {VERSION}" in done.stderr


def test_nothing_is_fetched_where_the_cache_is_empty(tmp_path):
    done = python(["-c", f"import kernels\n{HUB}"], offline(tmp_path))
    assert done.returncode != 0 and "not available in the local cache" in done.stderr


@pytest.mark.parametrize("trust", ("", ", trust_remote_code=['somebody/else']"))
def test_an_unknown_publisher_needs_a_word(cache, trust):
    """Online, the library asks who publishes. Nothing answers at this address, so it refuses."""
    call = f"import kernels; kernels.get_kernel({REPOSITORY!r}, version={VERSION}{trust})"
    done = python(["-c", call], {**offline(cache), "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"})
    assert done.returncode != 0
    assert "could not verify publisher trust status" in done.stderr and "trust_remote_code=True" in done.stderr


def test_a_lock_file_pins_the_commit(cache, tmp_path):
    dependency = {"repo-id": REPOSITORY, "version": VERSION}
    lock = tmp_path / "kernels.lock"
    program = f"""
import pathlib, kernels
lock = pathlib.Path({str(lock)!r})
hub = kernels.load_kernel({REPOSITORY!r}, lockfile=lock)
assert hub is kernels.get_locked_kernel({REPOSITORY!r}, lockfile=lock)
print(hub.__version__)
"""
    lock.write_text(json.dumps([{"dependency": dependency, "lock": {"commit": "0123456789" * 4}}]))
    assert output(["-c", program], offline(cache)).strip() == edge_ops.__version__
    lock.write_text(json.dumps([{"dependency": dependency, "lock": {"commit": "9876543210" * 4}}]))
    done = python(["-c", program], offline(cache))
    assert done.returncode != 0 and "Cannot find a local snapshot" in done.stderr
    lock.write_text("[]")
    done = python(["-c", program], offline(cache))
    assert done.returncode != 0 and "is not locked" in done.stderr


def test_layers_by_version_from_the_cache(cache):
    """`kernelize` with repositories named by version, as a program on a connected machine names them."""
    pytest.importorskip("transformers")
    program = f"""
import torch
from transformers.utils import is_kernels_available
from kernels import LayerRepository, Mode, kernelize, use_kernel_mapping
from models.tiny import prompt, tiny
assert is_kernels_available(), "this transformers supports other versions of kernels"
names = ("RMSNorm", "rotary_pos_emb", "SiLU")
mapping = {{n: {{"cpu": LayerRepository({REPOSITORY!r}, layer_name=n, version={VERSION})}} for n in names}}
model, ids = tiny("qwen3"), prompt()
with torch.no_grad():
    expected = model(ids, use_cache=False).logits
    with use_kernel_mapping(mapping, inherit_mapping=False):
        kernelize(model, mode=Mode.INFERENCE | Mode.TORCH_COMPILE, device="cpu", use_fallback=False)
    assert torch.allclose(model(ids, use_cache=False).logits, expected, atol=1e-4)
own = [m.__dict__["forward"] for m in model.modules() if "forward" in m.__dict__]
print(sum("_edge_ops_cpu_" in f.__func__.__module__ for f in own))
"""
    assert int(output(["-c", program], offline(cache)).strip().splitlines()[-1]) == 17 + 4
