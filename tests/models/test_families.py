"""Every family, patched and not: logits, tokens, what was replaced, and that nothing is left behind."""

from __future__ import annotations

import pytest
import torch

import edge_ops
from edge_ops.models import families, is_patched
from models.tiny import FAMILIES, prompt, tiny

# What a patch must at least replace: (class name's end, count) for the four layers of a tiny model.
MIXERS = {"qwen3.5": 2, "qwen3.5-moe": 2, "lfm2": 2}


@torch.no_grad()
def logits(model, ids, **arguments):
    return model(ids, **arguments).logits.float()


def close(patched, eager):
    """float32: the same formulas in another order of operations."""
    assert (patched - eager).abs().max() < 3e-5 * eager.abs().max()


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_and_report(name):
    model, ids = tiny(name), prompt()
    eager = logits(model, ids)
    forwards = {path: module.forward.__func__ for path, module in model.named_modules()}
    weights = {path: tensor.clone() for path, tensor in model.state_dict().items()}

    report = edge_ops.patch(model)
    counts = report.counts()
    ends = {end: sum(n for cls, n in counts.items() if cls.endswith(end)) for end in ("Attention", "RMSNorm", "MLP")}
    assert ends["Attention"] == MIXERS.get(name, 4)
    assert ends["RMSNorm"] >= 9
    assert ends["MLP"] >= (1 if name == "qwen3-moe" else 4)
    assert sum(n for cls, n in counts.items() if cls.endswith("RotaryEmbedding")) == 1
    kept = {entry.name for entry in report.kept}
    assert kept.isdisjoint(entry.name for entry in report.replaced)
    paths = dict(model.named_modules())
    for entry in (*report.replaced, *report.kept):
        assert type(paths[entry.name]).__name__ == entry.module
    close(logits(model, ids), eager)
    for path, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights[path])

    edge_ops.unpatch(model)
    assert not is_patched(model)
    assert {path: module.forward.__func__ for path, module in model.named_modules()} == forwards
    assert all("_edge_ops" not in module.__dict__ for module in model.modules())
    assert torch.equal(logits(model, ids), eager)
    starts = [p.untyped_storage().data_ptr() for p in set(model.parameters())]
    assert len(starts) == len(set(starts)), "a weight still shares its memory with another one"


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens_agree_over_128_steps(name):
    model, ids = tiny(name), prompt(batch=1, length=9)
    options = dict(max_new_tokens=128, do_sample=False, no_repeat_ngram_size=2)  # tiny models like to repeat
    eager = model.generate(ids, **options)
    assert len(set(eager[0, 9:].tolist())) > 20
    edge_ops.patch(model)
    assert torch.equal(model.generate(ids, **options), eager)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FAMILIES)
def test_sixteen_bit_logits(name, dtype):
    ids = prompt()
    exact = logits(tiny(name), ids)
    model = tiny(name, dtype)
    eager = logits(model, ids)
    edge_ops.patch(model)
    patched = logits(model, ids)
    # Two computations that round differently differ by about as much as each differs from the exact one, and the
    # patched model rounds less. (Of the whole, since one rounding may choose another expert.)
    rounding = (eager - exact).norm()
    assert rounding > 0
    assert (patched - eager).norm() < 2 * rounding
    assert (patched - exact).norm() < 1.25 * rounding


def test_every_known_decoder_is_tested():
    tested = {type(module).__name__ for name in FAMILIES for module in tiny(name).modules()}
    assert set(families()) <= tested


def test_unknown_models_are_refused():
    with pytest.raises(ValueError, match="contain a decoder of a known class, got Linear; known are .*LlamaModel"):
        edge_ops.patch(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="model must be a torch.nn.Module, got str"):
        edge_ops.patch("llama")
    with pytest.raises(ValueError, match="model must be one that edge_ops.patch has changed"):
        edge_ops.unpatch(tiny("llama"))
    with pytest.raises(TypeError, match="model must be a torch.nn.Module, got NoneType"):
        edge_ops.unpatch(None)


def test_patching_twice_is_refused():
    model = tiny("llama")
    edge_ops.patch(model)
    with pytest.raises(ValueError, match="patched already"):
        edge_ops.patch(model)
    edge_ops.unpatch(model)
    edge_ops.patch(model)


def test_a_decoder_of_strange_parts_is_refused_and_left_alone():
    model = tiny("llama")
    for module in model.modules():
        if type(module).__module__.startswith("transformers.models"):
            if type(module).__name__ not in ("LlamaModel", "LlamaForCausalLM"):
                module.__class__ = type("My" + type(module).__name__, (type(module),), {})
    with pytest.raises(ValueError, match="(?s)nothing in this LlamaForCausalLM could be.*not the LlamaRMSNorm"):
        edge_ops.patch(model)
    assert not is_patched(model)


def test_parts_of_another_class_are_kept_and_named():
    model, ids = tiny("llama"), prompt()

    class Other(type(model.model.layers[1].self_attn)):
        pass

    model.model.layers[1].self_attn.__class__ = Other
    eager = logits(model, ids)
    report = edge_ops.patch(model)
    assert {(entry.name, entry.reason) for entry in report.kept} == {
        ("model.layers.1.self_attn", "not the LlamaAttention that this family has"),
        ("model.rotary_emb", "an attention layer of this decoder was left as it is and needs cos and sin"),
    }
    close(logits(model, ids), eager)
    edge_ops.unpatch(model)
    assert torch.equal(logits(model, ids), eager)


def test_report_reads_as_a_table():
    report = edge_ops.patch(tiny("lfm2"))
    assert str(report).splitlines()[-1].split() == "2 Lfm2ShortConv left as it is: not attention".split()
    assert "   13 Lfm2RMSNorm: rms_norm".strip() in str(report)
