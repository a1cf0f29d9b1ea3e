"""Other libraries on top of a patched model, and a patch on top of theirs: peft, accelerate, tensor parallel."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch

import edge_ops
from edge_ops.models import is_patched
from models.tiny import prompt, tiny
from support.values import DEVICE


@torch.no_grad()
def logits(model, ids):
    return model(ids).logits


# --- peft ----------------------------------------------------------------------------


def adapted(model, peft):
    config = peft.LoraConfig(
        r=4,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        init_lora_weights=False,
    )
    torch.manual_seed(5)
    return peft.get_peft_model(model, config).eval()


@pytest.mark.parametrize("name", ("llama", "gemma3", "qwen3"))
@pytest.mark.parametrize("first", ("patch", "adapter"))
def test_lora(name, first):
    peft = pytest.importorskip("peft")
    ids = prompt()
    plain = logits(tiny(name), ids)
    expected = logits(adapted(tiny(name), peft), ids)
    assert (expected - plain).abs().max() > 1e-2
    if first == "patch":
        base = tiny(name)
        edge_ops.patch(base)
        model = adapted(base, peft)
    else:
        model = adapted(tiny(name), peft)
        report = edge_ops.patch(model)
        assert len(report.replaced) > 20
    assert torch.allclose(logits(model, ids), expected, atol=1e-4)
    with model.disable_adapter():
        assert torch.allclose(logits(model, ids), plain, atol=1e-4)
    # Training the adapter of a patched model goes through the model's own code.
    model.train()
    model(ids, labels=ids).loss.backward()
    trained = [p for p in model.parameters() if p.requires_grad]
    assert trained and all(p.grad is not None and p.grad.abs().max() > 0 for p in trained)
    model.eval()
    merged = model.merge_and_unload()
    assert torch.allclose(logits(merged, ids), expected, atol=1e-4)
    edge_ops.unpatch(merged)
    assert torch.allclose(logits(merged, ids), expected, atol=1e-4)


# --- accelerate ----------------------------------------------------------------------


@pytest.mark.parametrize("first", ("patch", "hooks"))
@pytest.mark.parametrize("name", ("llama", "gemma3"))
def test_weights_offloaded_by_accelerate(name, first):
    """cpu_offload keeps the weights away between calls, so only calls of the modules themselves see them."""
    accelerate = pytest.importorskip("accelerate")
    ids = prompt()
    expected = logits(tiny(name), ids)
    model = tiny(name)
    if first == "patch":
        edge_ops.patch(model)
    accelerate.cpu_offload(model, execution_device=torch.device(DEVICE))
    assert model.model.norm.weight.is_meta
    if first == "hooks":
        edge_ops.patch(model)
    assert torch.allclose(logits(model, ids), expected, atol=1e-4)
    edge_ops.unpatch(model)
    assert not is_patched(model)
    assert torch.allclose(logits(model, ids), expected, atol=1e-5)
    accelerate.hooks.remove_hook_from_submodules(model)
    assert all("forward" not in module.__dict__ or not is_patched(module) for module in model.modules())


def test_hooks_taken_off_before_unpatch():
    accelerate = pytest.importorskip("accelerate")
    ids, model = prompt(), tiny("llama")
    expected = logits(model, ids)
    edge_ops.patch(model)
    patched = logits(model, ids)
    accelerate.hooks.add_hook_to_module(model.model.layers[0].mlp, accelerate.hooks.ModelHook())
    assert torch.allclose(logits(model, ids), patched, atol=1e-5)
    accelerate.hooks.remove_hook_from_submodules(model)
    assert torch.equal(logits(model, ids), patched)
    edge_ops.unpatch(model)
    assert torch.equal(logits(model, ids), expected)


# --- tensor parallel -----------------------------------------------------------------


def test_tensor_parallel_decode(tmp_path):
    """Two processes over gloo: each holds half of the heads, and both decode the tokens of one process alone."""
    folder = tmp_path / "model"
    model = tiny("llama", num_attention_heads=4, num_key_value_heads=2)
    model.save_pretrained(folder)
    ids = prompt(batch=1, length=9)
    options = dict(max_new_tokens=16, do_sample=False, no_repeat_ngram_size=2)
    expected = model.generate(ids, **options)[0].tolist()
    program = f"""
        import os, torch, torch.distributed as dist
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        import transformers, edge_ops
        options = dict(tp_plan="auto", dtype=torch.float32)
        model = transformers.LlamaForCausalLM.from_pretrained({str(folder)!r}, **options).eval()
        ids = torch.tensor([{ids[0].tolist()}])
        eager = model.generate(ids, **{options!r})[0].tolist()
        with torch.no_grad():
            before = model(ids).logits
        report = edge_ops.patch(model)
        with torch.no_grad():
            after = model(ids).logits
        tokens = model.generate(ids, **{options!r})[0].tolist()
        assert tokens == eager == {expected}, (tokens, eager)
        assert torch.allclose(before, after, atol=1e-4)
        weight = model.model.layers[0].self_attn.q_proj.weight
        rows = weight.to_local().shape[0] if hasattr(weight, "to_local") else weight.shape[0]
        assert rows == 32, rows
        # One write, so that the two processes' lines stay apart.
        os.write(1, f"rank {{dist.get_rank()}} replaced {{len(report.replaced)}}\\n".encode())
        dist.destroy_process_group()
    """
    script = tmp_path / "decode.py"
    script.write_text(textwrap.dedent(program))
    # Without a GPU in sight: a machine with one has none for the second process.
    settings = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script)]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("replaced 22") == 2, done.stdout
