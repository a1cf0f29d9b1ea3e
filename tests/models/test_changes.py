"""What is changed between two runs of a patched model counts in the next one, as it does in the model's own code."""

import copy

import pytest
import torch
from torch import nn

import edge_ops
from support.values import DEVICE

from .tiny import prompt, tiny


def _replace_weight(model):
    model.model.layers[1].post_attention_layernorm.weight = nn.Parameter(torch.full((64,), 0.5, device=DEVICE))


def _replace_data(model):
    model.model.layers[1].input_layernorm.weight.data = torch.full((64,), 0.25, device=DEVICE)


def _replace_projection(model):
    mlp = model.model.layers[0].mlp
    down = nn.Linear(mlp.down_proj.in_features, mlp.down_proj.out_features, bias=True)
    mlp.down_proj = down.to(DEVICE)
    with torch.no_grad():
        mlp.down_proj.weight.fill_(0.01)
        mlp.down_proj.bias.fill_(0.5)


def _replace_gate(model):
    model.model.layers[0].mlp.gate_proj.weight.data = torch.full_like(model.model.layers[0].mlp.gate_proj.weight, 0.01)


def _replace_norm(model):
    layer = model.model.layers[1]
    layer.post_attention_layernorm = nn.LayerNorm(64).to(DEVICE)


def _change_eps(model):
    model.model.layers[1].post_attention_layernorm.variance_epsilon = 0.5


def _hook_output(model):
    model.model.layers[0].mlp.register_forward_hook(lambda module, inputs, output: output * 0.5)


def _hook_down(model):
    model.model.layers[1].mlp.down_proj.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 0.5,))


def _hook_attention(model):
    model.model.layers[1].self_attn.o_proj.register_forward_hook(lambda module, inputs, output: output * 0.5)


def _hook_final(model):
    model.model.norm.register_forward_hook(lambda module, inputs, output: output * 0.5)


def _wrap_forward(model):
    mlp = model.model.layers[0].mlp
    forward = mlp.forward
    mlp.forward = lambda x: 0.5 * forward(x)


def _wrap_projection(model):
    down = model.model.layers[0].mlp.down_proj
    forward = down.forward
    down.forward = lambda x: 0.5 * forward(x)


CHANGES = [
    _replace_weight,
    _replace_data,
    _replace_projection,
    _replace_gate,
    _replace_norm,
    _change_eps,
    _hook_output,
    _hook_down,
    _hook_attention,
    _hook_final,
    _wrap_forward,
    _wrap_projection,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_a_change_between_two_runs_counts(change):
    eager = tiny("llama")
    patched = copy.deepcopy(eager)
    edge_ops.patch(patched)
    ids = prompt()
    with torch.no_grad():
        unchanged = eager(ids).logits
        for _ in range(2):  # the second run finds what the first has noted down
            assert torch.allclose(patched(ids).logits, unchanged, atol=1e-5)
        change(eager)
        change(patched)
        expected = eager(ids).logits
        assert not torch.allclose(expected, unchanged, atol=1e-3), "the change shows"
        for _ in range(2):
            assert torch.allclose(patched(ids).logits, expected, atol=1e-5)


def test_a_kept_output_is_not_overwritten():
    """A hook that is set between two runs may keep what it sees."""
    model = tiny("llama")
    edge_ops.patch(model)
    ids = prompt()
    kept = []
    with torch.no_grad():
        model(ids)
        for module in (model.model.layers[0].mlp, model.model.layers[1].self_attn.o_proj, model.model.layers[0]):
            module.register_forward_hook(lambda module, inputs, output: kept.append((output, output.clone())))
        model.model.layers[1].mlp.down_proj.register_forward_pre_hook(
            lambda module, inputs: kept.append((inputs[0], inputs[0].clone()))
        )
        model(ids)
    assert len(kept) == 4 and all(torch.equal(*pair) for pair in kept)


def test_runs_of_other_lengths_and_dtypes_follow_each_other():
    model = tiny("llama")
    eager = copy.deepcopy(model)
    edge_ops.patch(model)
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16, torch.float32):
            model.to(dtype)
            eager.to(dtype)
            for length in (5, 1, 9):
                ids = prompt(length=length)
                # The move to 16 bits has rounded the eager model's rotary frequencies for good.
                tolerance = 1e-3 if dtype is torch.float32 else 0.1
                assert torch.allclose(model(ids).logits.float(), eager(ids).logits.float(), atol=tolerance)
