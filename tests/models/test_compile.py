"""torch.compile and torch.export of patched models."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import transformers
from torch._dynamo.utils import counters

import edge_ops
from models.tiny import FAMILIES, prompt, tiny
from support.values import DEVICE

# transformers' own code for this rope branches on the largest position, patched or not.
UNTRACEABLE = ("llama-dynamic",)


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()


def patched(name):
    model = tiny(name)
    edge_ops.patch(model)
    return model


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in UNTRACEABLE])
@torch.no_grad()
def test_one_graph_for_every_length(name):
    ids = prompt(batch=1, length=30)
    expected = tiny(name)(ids).logits
    model = patched(name)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
    for length in (20, 13, 7, 2, 30):
        found = compiled(ids[:, :length], use_cache=False).logits
        assert torch.allclose(found, expected[:, :length], atol=1e-4), length
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]


def _decode(model, ids, steps, step=None):
    """Greedy tokens with a static cache; `step` runs the calls of one token."""
    cache = transformers.StaticCache(config=model.config, max_cache_len=64)
    step = model if step is None else step
    tokens = []
    with torch.no_grad():
        logits = model(ids, past_key_values=cache, use_cache=True).logits
        for position in range(ids.shape[1], ids.shape[1] + steps):
            token = logits[:, -1:].argmax(-1)
            tokens.append(int(token))
            positions = torch.tensor([[position]], device=DEVICE)
            logits = step(token, position_ids=positions, past_key_values=cache, use_cache=True).logits
    return tokens


@pytest.mark.parametrize("mode", ("default", "reduce-overhead"))
@pytest.mark.parametrize("name", ("llama", "gemma3"))
def test_decode_steps_compile_once(name, mode):
    """Inductor's code for a step of one token: the tokens of eager, and nothing compiled after a first text."""
    ids = prompt(batch=1, length=9)
    expected = _decode(tiny(name), ids, 12)
    model = patched(name)
    step = torch.compile(model, fullgraph=True, mode=mode)
    # The static cache of a sliding layer counts its steps up to the window, which compiles a second graph.
    assert _decode(model, ids, 12, step) == expected
    graphs = counters["stats"]["unique_graphs"]
    assert _decode(model, ids, 12, step) == expected
    assert counters["stats"]["unique_graphs"] == graphs <= 3
    assert not counters["graph_break"]


@torch.no_grad()
def test_compiled_code_calls_the_operators():
    model = patched("gemma3")
    calls = []

    def record(graph, inputs):
        calls.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    torch.compile(model, fullgraph=True, backend=record)(prompt(), use_cache=False)
    found = Counter(call.split(".")[1] for call in calls if call.startswith("_edge_ops"))
    # 25 norms: 8 of query and key, 7 with an addition, 8 in place after attention and MLP, 2 in the first layer.
    assert found == {
        "fused_qk_norm_rope": 4,
        "gelu_tanh_and_mul": 4,
        "fused_add_rms_norm": 7,
        "rms_norm_out": 8,
        "rms_norm": 2,
    }


@pytest.mark.parametrize("name", ("llama", "gemma3", "qwen3", "glm4"))
@torch.no_grad()
def test_export_of_a_decode_step(name):
    """A program of one step, without a cache that is an object, for any number of tokens."""
    model = patched(name)
    if DEVICE != "cpu":  # CUDA's fused attention aligns its masks, which ties a program to some lengths, patched or not
        model.set_attn_implementation("eager")

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, positions):
            return self.model(input_ids=ids, position_ids=positions, use_cache=False).logits

    ids = prompt(batch=1, length=12)
    positions = torch.arange(12, device=DEVICE)[None]
    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(
        Step(),
        (ids, positions),
        dynamic_shapes={"ids": {1: length}, "positions": {1: length}},
        # On CUDA the plain model has a guard that always holds and that the exporter cannot prove.
        prefer_deferred_runtime_asserts_over_guards=True,
    )
    expected = tiny(name)(ids).logits
    assert torch.allclose(program.module()(ids, positions), expected, atol=1e-4)
    assert torch.allclose(program.module()(ids[:, :7], positions[:, :7]), expected[:, :7], atol=1e-4)
    assert "edge_ops" in program.graph_module.code


@torch.no_grad()
def test_export_with_a_static_cache():
    """transformers' own wrapper: a step that reads and writes its cache as buffers."""
    from transformers.integrations.executorch import TorchExportableModuleWithStaticCache

    model, ids = tiny("llama"), prompt(batch=1, length=6)
    expected = model(ids).logits[:, -1]
    edge_ops.patch(model)
    model.generation_config.cache_implementation = "static"
    model.generation_config.cache_config = dict(batch_size=1, max_cache_len=32)
    wrapper = TorchExportableModuleWithStaticCache(model, 1, 32, torch.device(DEVICE))
    program = torch.export.export(
        wrapper,
        (),
        kwargs=dict(input_ids=ids[:, :1], cache_position=torch.tensor([0], device=DEVICE)),
        strict=False,
    )
    run = program.module()
    for position in range(ids.shape[1]):
        logits = run(input_ids=ids[:, position : position + 1], cache_position=torch.tensor([position], device=DEVICE))
    assert torch.allclose(logits[:, -1], expected, atol=1e-4)
