"""What may happen to a model after it was patched: copies, files, moves, hooks, adapters, training."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import textwrap

import pytest
import torch
import transformers

import edge_ops
from edge_ops.models import is_patched
from edge_ops.models.layers import LayerRecord
from models.tiny import prompt, tiny
from support.values import DEVICE

SOME = ("llama", "gemma3", "phi4-mini", "qwen3.5")


@torch.no_grad()
def logits(model, ids, **arguments):
    return model(ids, **arguments).logits


def patched(name, **overrides):
    model = tiny(name, **overrides)
    edge_ops.patch(model)
    return model


@pytest.mark.parametrize("name", SOME)
def test_deepcopy(name):
    model, ids = patched(name), prompt()
    expected = logits(model, ids)
    twin = copy.deepcopy(model)
    assert is_patched(twin) and torch.equal(logits(twin, ids), expected)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert torch.equal(logits(model, ids), expected), "the copy shares weights with the original"
    assert not torch.equal(logits(twin, ids), expected), "the copy runs on the original's weights"
    edge_ops.unpatch(twin)
    assert is_patched(model) and not is_patched(twin)


def test_pickle_and_torch_save(tmp_path):
    """In a process of its own: with `kernels` in use, transformers' modules hold classes that do not pickle."""
    program = """
        import io, pickle, sys
        import torch
        from models.tiny import FAMILIES, prompt, tiny
        import edge_ops

        ids = prompt()
        for name in FAMILIES:
            model = tiny(name)
            edge_ops.patch(model)
            with torch.no_grad():
                expected = model(ids).logits
                file = io.BytesIO()
                torch.save(model, file)
                file.seek(0)
                for twin in (pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)):
                    assert torch.equal(twin(ids).logits, expected), name
                    assert edge_ops.models.is_patched(twin)
                    edge_ops.unpatch(twin)
        print(len(FAMILIES), "families")
    """
    environment = {**os.environ, "USE_HUB_KERNELS": "NO", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1] == "families"


@pytest.mark.parametrize("name", SOME)
def test_save_pretrained_and_reload(name, tmp_path):
    model, ids = patched(name), prompt()
    expected = logits(model, ids)
    model.save_pretrained(tmp_path)
    plain = type(model).from_pretrained(tmp_path).to(DEVICE)
    assert not is_patched(plain)
    for path, tensor in plain.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[path])
    edge_ops.patch(plain)
    assert torch.equal(logits(plain, ids), expected)


def test_weights_loaded_after_patching_are_used():
    model, ids = patched("llama"), prompt()
    other = tiny("llama")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.25)
    for assign in (False, True):
        target = copy.deepcopy(model)
        edge_ops.unpatch(target)
        edge_ops.patch(target)
        target.load_state_dict(other.state_dict(), assign=assign)
        assert torch.allclose(logits(target, ids), logits(other, ids), atol=1e-4), assign


@pytest.mark.parametrize("name", SOME)
def test_dtype_moves(name):
    model, ids = patched(name), prompt()
    expected = logits(tiny(name, torch.bfloat16), ids)
    moved = logits(model.to(torch.bfloat16), ids)
    assert moved.dtype is torch.bfloat16
    assert (moved - expected).float().norm() < 0.05 * expected.float().norm()
    back = logits(model.float(), ids)
    assert (back - expected.float()).norm() < 0.05 * expected.float().norm()
    double = logits(patched(name).double(), ids)
    assert double.dtype is torch.float64
    assert torch.allclose(double, logits(tiny(name).double(), ids), atol=1e-5)


def test_device_moves():
    model, ids = patched("gemma3"), prompt()
    expected = logits(model, ids)
    state = {path: tensor.clone() for path, tensor in model.state_dict().items()}
    buffers = {path: tensor.clone() for path, tensor in model.named_buffers()}
    model.to("meta")
    assert logits(model, ids.to("meta")).device.type == "meta"
    model.to_empty(device=DEVICE)
    model.load_state_dict(state)
    with torch.no_grad():
        for path, buffer in model.named_buffers():
            buffer.copy_(buffers[path])
    assert torch.equal(logits(model, ids), expected)


def test_training_runs_the_models_own_code():
    model, ids = tiny("gemma3"), prompt()
    model.train()
    plain = model(ids, labels=ids)
    plain.loss.backward()
    gradients = {path: p.grad.clone() for path, p in model.named_parameters()}
    model.zero_grad()
    edge_ops.patch(model)
    again = model(ids, labels=ids)
    again.loss.backward()
    assert torch.equal(again.loss, plain.loss)
    for path, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, gradients[path]), path
    with torch.no_grad():  # training mode alone is enough
        assert torch.equal(model(ids).logits, plain.logits)
    model.eval()  # and so is grad mode
    assert torch.equal(model(ids).logits, plain.logits)
    assert not torch.equal(logits(model, ids), plain.logits), "no_grad and eval run on the operators"


def test_one_part_in_training_mode():
    """A part that trains gets the cos and sin that its own code expects."""
    model, ids = patched("llama"), prompt()
    expected = logits(model, ids)
    model.model.layers[1].self_attn.train()
    model.model.layers[2].train()
    assert torch.allclose(logits(model, ids), expected, atol=1e-5)


def test_optimizer_steps_reach_the_patched_model():
    model, ids = patched("llama"), prompt()
    before = logits(model, ids)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    after = logits(model, ids)
    assert not torch.allclose(after, before, atol=1e-3)
    edge_ops.unpatch(model)
    assert torch.allclose(logits(model, ids), after, atol=1e-5)


# --- what a caller may keep ----------------------------------------------------------


@pytest.mark.parametrize("name", ("llama", "gemma2", "gemma4", "olmo2", "glm4", "lfm2", "phi3"))
def test_hidden_states_and_hooks_see_what_eager_shows(name):
    ids = prompt()

    def seen(model):
        kept = {}
        handles = []
        for path, module in model.named_modules():
            if path and not list(module.children()):
                handles.append(module.register_forward_hook(lambda m, a, out, path=path: kept.update({path: out})))
        with torch.no_grad():
            output = model(ids, output_hidden_states=True)
        for handle in handles:
            handle.remove()
        return output.hidden_states, kept

    model = tiny(name)
    edge_ops.patch(model)
    quiet = logits(model, ids)
    states, kept = seen(model)
    eager_states, eager_kept = seen(tiny(name))
    assert len(states) == len(eager_states) == 5
    for mine, theirs in zip(states, eager_states):
        assert torch.allclose(mine, theirs, atol=1e-4)
    # Nothing that a hook has kept was overwritten later. Norms that a layer fuses are called when they have hooks.
    assert {path for path in eager_kept if not path.endswith(("act_fn", "activation_fn", "dropout"))} <= set(kept)
    for path, tensor in kept.items():
        if isinstance(tensor, torch.Tensor):
            assert torch.allclose(tensor, eager_kept[path], atol=1e-4), path
    assert torch.allclose(logits(model, ids), quiet, atol=1e-5)


@pytest.mark.parametrize("name", ("llama", "gemma3"))
def test_hidden_states_of_the_first_call(name):
    """transformers installs its hooks while that call runs."""
    model, ids = patched(name), prompt()
    states = model(ids, output_hidden_states=True).hidden_states
    with torch.no_grad():
        mine = model(ids, output_hidden_states=True).hidden_states
        fresh = patched(name)(ids, output_hidden_states=True).hidden_states
    for eager, one, other in zip(states, mine, fresh):
        assert torch.allclose(eager, one, atol=1e-4) and torch.allclose(eager, other, atol=1e-4)


def test_layers_called_one_by_one_overwrite_nothing():
    """A caller's own loop over the layers may keep every stream."""
    model, ids = patched("llama"), prompt()
    decoder = model.model
    with torch.no_grad():
        expected = decoder(ids, output_hidden_states=True).hidden_states
        states = [decoder.embed_tokens(ids)]
        positions = torch.arange(ids.shape[1], device=DEVICE)[None]
        rope = decoder.rotary_emb(states[0], positions)
        mask = torch.full((ids.shape[1], ids.shape[1]), float("-inf"), device=DEVICE).triu(1)[None, None]
        for layer in decoder.layers:
            states.append(layer(states[-1], attention_mask=mask, position_embeddings=rope))
        states[-1] = decoder.norm(states[-1])
    for mine, theirs in zip(states, expected):
        assert torch.allclose(mine, theirs, atol=1e-5)


def test_embeddings_that_the_caller_passes_are_kept():
    model, ids = patched("gemma3"), prompt()
    with torch.no_grad():
        embeddings = model.get_input_embeddings()(ids)
        copy_ = embeddings.clone()
        model(inputs_embeds=embeddings)
    assert torch.equal(embeddings, copy_)


def test_in_place_operators_do_run(monkeypatch):
    """Three layers of four add into the stream that the one before has left: the tests above must have a subject."""
    import edge_ops.models.blocks as blocks

    calls = []

    def counted(*args, **kwargs):
        calls.append(args[0].shape)
        return edge_ops.fused_add_rms_norm(*args, **kwargs)

    monkeypatch.setattr(blocks, "fused_add_rms_norm", counted)
    model, ids = patched("llama"), prompt()
    logits(model, ids)
    assert len(calls) == 3 + 4
    calls.clear()
    handle = model.model.layers[2].register_forward_hook(lambda module, args, output: None)
    logits(model, ids)
    assert len(calls) == 1 + 2 + 0 + 1, "the watched layer and the one that gets its stream add elsewhere"
    handle.remove()
    calls.clear()
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, args, output: None)
    logits(model, ids)
    handle.remove()
    assert not calls


def test_fewer_layers_than_were_patched():
    """Early exit shortens the loop, so the last layer that runs has prepared another norm than the final one."""
    ids = prompt()
    eager, model = tiny("llama"), patched("llama")
    for one in (eager, model):
        one.config.num_hidden_layers = 2
    assert torch.allclose(logits(model, ids), logits(eager, ids), atol=1e-5)


def test_layers_in_another_order():
    ids = prompt()
    eager, model = tiny("gemma3"), patched("gemma3")
    for one in (eager, model):
        layers = one.model.layers
        one.model.layers = torch.nn.ModuleList([layers[0], layers[2], layers[2], layers[1], layers[3]])
        one.config.num_hidden_layers = 5
        one.config.layer_types = ["sliding_attention"] * 3 + ["full_attention"] * 2
    assert torch.allclose(logits(model, ids, use_cache=False), logits(eager, ids, use_cache=False), atol=1e-5)


def test_an_interrupted_run_leaves_nothing_behind():
    model, ids = patched("llama"), prompt()
    expected = logits(model, ids)

    def fail(module, args):
        raise RuntimeError("stop here")

    handle = model.model.norm.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="stop here"):
        logits(model, ids)
    handle.remove()
    assert torch.equal(logits(model, ids), expected)


def test_two_threads_on_one_model():
    import threading

    model = patched("gemma3")
    prompts = [prompt(batch=1, length=length) for length in (5, 11, 17, 23)]
    expected = [logits(model, ids) for ids in prompts]
    wrong = []

    def work(ids, wanted):
        for _ in range(20):
            if not torch.equal(logits(model, ids), wanted):
                wrong.append(ids.shape)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(prompts, expected)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- other libraries' wrappers -------------------------------------------------------


def test_a_foreign_wrapper_is_named_by_unpatch():
    model = patched("llama")
    norm = model.model.norm
    inner = norm.forward
    norm.forward = lambda x: inner(x)
    with pytest.raises(RuntimeError, match="the forward of this LlamaRMSNorm was wrapped after edge_ops.patch"):
        edge_ops.unpatch(model)
    norm.forward = inner
    edge_ops.unpatch(model)
    assert not is_patched(model)


def test_an_instances_own_forward_comes_back():
    model = tiny("llama")
    norm = model.model.norm
    own = norm.forward

    def doubled(x):
        return 2 * own(x)

    norm.forward = doubled
    ids = prompt()
    expected = logits(model, ids)
    edge_ops.patch(model)
    assert torch.allclose(logits(model, ids), expected, atol=1e-4), "a changed forward must not be replaced"
    edge_ops.unpatch(model)
    assert norm.forward is doubled and torch.equal(logits(model, ids), expected)


def test_layer_records_survive_what_they_refer_to():
    """A replaced part is looked up anew in each run."""
    model, ids = patched("llama"), prompt()
    expected = logits(model, ids)
    layer = model.model.layers[1]
    assert isinstance(layer.__dict__["_edge_ops"], LayerRecord)
    kept = []

    class Keeping(torch.nn.Linear):
        pass

    old = layer.self_attn.o_proj
    new = Keeping(old.in_features, old.out_features, bias=False)
    new.weight = old.weight
    new.register_forward_hook(lambda module, args, output: kept.append((output, output.clone())))
    layer.self_attn.o_proj = new
    assert torch.allclose(logits(model, ids), expected, atol=1e-5)
    assert torch.equal(*kept[0]), "the output that a hook keeps was overwritten"


def test_transformers_version_is_one_that_this_was_written_for():
    assert tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 22)
