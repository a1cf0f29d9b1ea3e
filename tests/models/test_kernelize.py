"""The layers under `kernels.kernelize`, from a local build, and called directly."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import edge_ops
import edge_ops.layers as layers
from edge_ops.models.kernelize import LAYERS, register_layers
from models.tiny import prompt, tiny

needs_kernels = pytest.mark.skipif(importlib.util.find_spec("kernels") is None, reason="kernels is not installed")

# Each program runs in a process of its own: names and rotations are global, and so are an operator's names.
PRELUDE = """
    import os, sys, warnings
    from pathlib import Path
    import torch
    import transformers
    from kernels import LocalLayerRepository, Mode, kernelize, use_kernel_mapping
    from models.tiny import prompt, tiny

    repository = Path(sys.argv[1])
    mapping = {
        name: {"cpu": LocalLayerRepository(repo_path=repository, layer_name=name)} for name in
        ("RMSNorm", "RMSNormZeroCentered", "rotary_pos_emb", "SiLU", "GeluTanh", "SwiGLUMLP", "GeGLUMLP")
    }
    ids = prompt()

    def logits(model):
        with torch.no_grad():
            return model(ids, use_cache=False).logits

    def replaced(model):
        found = {}
        for module in model.modules():
            own = module.__dict__.get("forward")
            if own is not None and "edge_ops" in own.__func__.__module__:
                found[type(module).__name__] = found.get(type(module).__name__, 0) + 1
        return found

    def rotation_replaced(modeling):
        own = modeling.apply_rotary_pos_emb.__dict__.get("forward")
        return own is not None and "edge_ops" in own.__func__.__module__

    def run(model, mode):
        with use_kernel_mapping(mapping, inherit_mapping=False):
            return kernelize(model, mode=mode, device="cpu", use_fallback=False)
"""


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    """This package laid out as `kernels` loads it."""
    package = Path(edge_ops.__file__).parent
    root = tmp_path_factory.mktemp("hub") / "edge-ops"
    native = edge_ops.native.extension is not None
    variant = root / "build" / ("torch-stable-abi210-cpu-x86_64-linux" if native else "torch-cpu")
    shutil.copytree(package, variant, ignore=shutil.ignore_patterns("__pycache__"))
    metadata = {
        "name": "edge-ops",
        "id": "_edge_ops_cpu_test000",
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": [],
        "kernel-depends": [],
        "backend": {"type": "cpu"},
    }
    (variant / "metadata.json").write_text(json.dumps(metadata))
    return root


def program(repository, text, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PRELUDE) + textwrap.dedent(text))
    tests = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": tests, "HF_HUB_OFFLINE": "1"}
    environment.pop("USE_HUB_KERNELS", None)
    done = subprocess.run(
        [sys.executable, str(script), str(repository)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@needs_kernels
@pytest.mark.parametrize("mode", ("INFERENCE", "INFERENCE | Mode.TORCH_COMPILE"))
def test_layers_that_transformers_names(repository, tmp_path, mode):
    """Only where transformers supports the installed `kernels` does it name anything."""
    from transformers.utils import is_kernels_available

    if not is_kernels_available():
        pytest.skip("this transformers does not support the installed kernels")
    text = f"""
        from transformers.models.qwen3 import modeling_qwen3
        model = tiny("qwen3")
        expected = logits(model)
        model = run(model, Mode.{mode})
        assert torch.allclose(logits(model), expected, atol=1e-4)
        print(replaced(model), rotation_replaced(modeling_qwen3))
    """
    out = program(repository, text, tmp_path)
    assert out.strip() == "{'Qwen3RMSNorm': 17, 'SiLUActivation': 4} True"


@needs_kernels
@pytest.mark.parametrize("mode", ("INFERENCE", "INFERENCE | Mode.TORCH_COMPILE"))
@pytest.mark.parametrize(
    ("name", "modeling", "counts"),
    (
        ("qwen3", "qwen3.modeling_qwen3", {"Qwen3RMSNorm": 17, "Qwen3MLP": 4, "SiLUActivation": 4}),
        ("llama", "llama.modeling_llama", {"LlamaRMSNorm": 9, "LlamaMLP": 4, "SiLUActivation": 4}),
        ("gemma3", "gemma3.modeling_gemma3", {"Gemma3RMSNorm": 25, "Gemma3MLP": 4, "GELUTanh": 4}),
    ),
)
def test_layers_that_the_package_names(repository, tmp_path, name, modeling, counts, mode):
    """Whichever versions of transformers and kernels are installed."""
    text = f"""
        import importlib
        modeling = importlib.import_module("transformers.models.{modeling}")
        expected = logits(tiny("{name}"))
        # The package is the local build: a second copy of the same operators in one process is not possible.
        from kernels import get_local_kernel
        build = get_local_kernel(repository)
        named = importlib.import_module(build.__name__ + ".models.kernelize").register_layers(modeling)
        model = run(tiny("{name}"), Mode.{mode})
        found = replaced(model)
        assert found == {counts!r}, (found, named)
        assert rotation_replaced(modeling)
        assert torch.allclose(logits(model), expected, atol=1e-4)
        if "COMPILE" in "{mode}":
            compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
            for length in (20, 11, 5):
                with torch.no_grad():
                    part = compiled(ids[:, :length].clone(), use_cache=False).logits
                assert torch.allclose(part, expected[:, :length], atol=1e-4)
            assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
        print("done")
    """
    assert program(repository, text, tmp_path).strip().endswith("done")


@needs_kernels
def test_training_mode_is_refused(repository, tmp_path):
    text = """
        import pytest
        with pytest.raises(ValueError, match="(does not support|backward|mode)"):
            run(tiny("qwen3"), Mode.TRAINING)
        print("refused")
    """
    from transformers.utils import is_kernels_available

    if not is_kernels_available():
        pytest.skip("this transformers does not support the installed kernels")
    assert program(repository, text, tmp_path).strip() == "refused"


@needs_kernels
def test_a_module_without_layers_is_refused():
    import transformers.activations

    with pytest.raises(ValueError, match="modeling must be a transformers modeling module with layers to name"):
        register_layers(transformers.modeling_outputs)


# --- the classes themselves ----------------------------------------------------------


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_stateless(name):
    layer = getattr(layers, name)
    assert layer.__init__ is torch.nn.Module.__init__
    members = set(dir(layer)) - set(dir(torch.nn.Module))
    assert members == {"can_torch_compile", "has_backward"}
    assert layer.can_torch_compile and not layer.has_backward
    assert layer.__doc__ and layer.forward.__doc__


def test_mixed_dtypes_promote_like_the_models():
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    norm = LlamaRMSNorm(64)
    x = torch.randn(3, 64, dtype=torch.bfloat16)
    expected = norm(x)
    found = layers.RMSNorm.forward(norm, x)
    assert found.dtype is expected.dtype is torch.float32
    assert torch.allclose(found, expected, rtol=1e-2)


@pytest.mark.parametrize("dtypes", ((torch.float32,) * 2, (torch.bfloat16,) * 2, (torch.bfloat16, torch.float32)))
@pytest.mark.parametrize("unsqueeze_dim", (1, 2))
@pytest.mark.parametrize("rotary", (32, 16))
@pytest.mark.parametrize("batch", (1, 3))
def test_rotation_of_any_layout(dtypes, unsqueeze_dim, rotary, batch):
    from transformers.models.phi3.modeling_phi3 import apply_rotary_pos_emb

    dtype, cos_dtype = dtypes
    torch.manual_seed(0)
    q, k = torch.randn(3, 7, 4, 32, dtype=dtype), torch.randn(3, 7, 2, 32, dtype=dtype)
    angles = torch.randn(batch, 7, rotary // 2)
    cos, sin = (torch.cat((part, part), -1).to(cos_dtype) for part in (angles.cos(), angles.sin()))
    if unsqueeze_dim == 1:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    before = q.clone(), k.clone()
    found = layers.rotary_pos_emb.forward(None, q, k, cos, sin, unsqueeze_dim)
    expected = apply_rotary_pos_emb(q.float(), k.float(), cos.float(), sin.float(), unsqueeze_dim)
    for one, other in zip(found, expected):
        assert one.dtype is dtype and one.shape == other.shape
        assert torch.allclose(one.float(), other, atol=1e-6 if dtype is torch.float32 else 2e-2)
    assert torch.equal(q, before[0]) and torch.equal(k, before[1]), "the caller's tensors were overwritten"


def test_a_model_kernelized_by_hand():
    """Every layer at once on one model, as kernelize binds them, without kernels."""
    import types

    model, ids = tiny("gemma3"), prompt()
    with torch.no_grad():
        expected = model(ids).logits
        for module in model.modules():
            layer = {"Gemma3RMSNorm": "RMSNormZeroCentered", "Gemma3MLP": "GeGLUMLP"}.get(type(module).__name__)
            if layer is not None:
                module.forward = types.MethodType(getattr(layers, layer).forward, module)
        assert torch.allclose(model(ids).logits, expected, atol=1e-4)
    report = edge_ops.patch(model)
    reasons = {(entry.module, entry.reason) for entry in report.kept}
    assert ("Gemma3RMSNorm", "its forward was replaced by something else") in reasons
    with torch.no_grad():
        assert torch.allclose(model(ids).logits, expected, atol=1e-4)
