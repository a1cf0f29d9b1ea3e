"""generate() and hand-written decode loops on patched models, against the same on the model as it is."""

from __future__ import annotations

import pytest
import torch
import transformers

import edge_ops
from models.tiny import prompt, tiny
from support.values import DEVICE

SOME = ("llama", "gemma3", "qwen3", "phi4-mini", "olmo3", "gemma4")


@pytest.fixture(params=SOME)
def pair(request):
    """(a model as it is, the same model patched)."""
    return _pair(request.param)


def _pair(name):
    model = tiny(name)
    edge_ops.patch(model)
    return tiny(name), model


def same(pair, ids, **options):
    options = dict(max_new_tokens=24, do_sample=False, no_repeat_ngram_size=2, **options)
    eager, patched = (model.generate(ids, **options) for model in pair)
    assert eager.shape[1] > ids.shape[1]
    assert torch.equal(eager, patched)


@pytest.mark.parametrize("cache", ("dynamic", "static"))
def test_caches(pair, cache):
    same(pair, prompt(), cache_implementation=cache)


def test_no_cache(pair):
    same(pair, prompt(), use_cache=False)


def test_a_sliding_window_that_slides():
    for name in ("gemma3", "gemma2", "qwen2", "phi3", "olmo3"):
        same(_pair(name), prompt(batch=1, length=30))


@pytest.mark.skipif(not transformers.utils.is_optimum_quanto_available(), reason="optimum-quanto is not installed")
def test_quantized_cache():
    config = dict(backend="quanto", nbits=4, residual_length=8)
    eager, patched = _pair("llama")
    options = dict(max_new_tokens=24, do_sample=False, cache_implementation="quantized", cache_config=config)
    one, other = (model.generate(prompt(), **options) for model in (eager, patched))
    # Four bits amplify the last bit of a key, so the tail of a text may differ; the start must not.
    assert torch.equal(one[:, :28], other[:, :28])


def test_left_padding(pair):
    ids = prompt(batch=3, length=16)
    mask = torch.ones_like(ids)
    for row, padded in enumerate((0, 5, 11)):
        ids[row, :padded], mask[row, :padded] = 0, 0
    same(pair, ids, attention_mask=mask)


def test_beam_search(pair):
    same(pair, prompt(), num_beams=3)


def test_sampling(pair):
    outputs = []
    for model in pair:
        torch.manual_seed(3)
        outputs.append(model.generate(prompt(), max_new_tokens=16, do_sample=True, top_k=20))
    assert torch.equal(*outputs)


@pytest.mark.parametrize("name", ("llama", "gemma3"))
def test_assisted_decoding(name):
    eager, patched = _pair(name)
    _, assistant = _pair("llama")
    ids = prompt(batch=1)
    plain = eager.generate(ids, max_new_tokens=24, do_sample=False)
    assert torch.equal(patched.generate(ids, max_new_tokens=24, do_sample=False, assistant_model=assistant), plain)


def test_prompt_lookup():
    eager, patched = _pair("llama")
    ids = prompt(batch=1, length=10).repeat(1, 3)
    plain = eager.generate(ids, max_new_tokens=24, do_sample=False)
    assert torch.equal(patched.generate(ids, max_new_tokens=24, do_sample=False, prompt_lookup_num_tokens=3), plain)


def test_chunked_prefill(pair):
    """A prompt in chunks of uneven length gives the logits of the prompt in one."""
    ids = prompt(batch=2, length=40)
    whole, chunked = [], []
    for model in pair:
        with torch.no_grad():
            whole.append(model(ids).logits[:, -1])
            cache = transformers.DynamicCache(config=model.config)
            for chunk in ids.split((7, 1, 16, 13, 3), dim=1):
                last = model(chunk, past_key_values=cache, use_cache=True).logits[:, -1]
            chunked.append(last)
    assert torch.allclose(whole[0], whole[1], atol=1e-4)
    assert torch.allclose(chunked[0], chunked[1], atol=1e-4)
    if pair[1].config.model_type != "phi3":  # longrope picks its frequencies by each call's length
        assert torch.allclose(chunked[1], whole[1], atol=1e-4)


def test_generate_with_prefill_chunks():
    same(_pair("llama"), prompt(batch=1, length=33), prefill_chunk_size=8)


@pytest.mark.skipif(DEVICE != "cpu", reason="elsewhere each call computes its own rows")
def test_the_rope_cache_grows_with_the_sequence(monkeypatch):
    import edge_ops.models.rope as rope

    monkeypatch.setattr(rope, "FIRST_ROWS", 8)
    eager, patched = _pair("gemma3")
    sizes = []
    ids = prompt(batch=1, length=5)
    for length in (5, 20, 40):
        with torch.no_grad():
            longer = ids.repeat(1, length // 5)
            assert torch.allclose(eager(longer).logits, patched(longer).logits, atol=1e-4)
        tables = patched.model.rotary_emb.__dict__["_edge_ops"].tables
        sizes.append({table.cache.shape[0] for table in tables.values()})
    assert sizes == [{8}, {32}, {64}]


def test_positions_of_the_callers_choice():
    """Positions in any order, shared by the batch or not, far beyond the trained context."""
    eager, patched = _pair("llama")
    ids = prompt(batch=2, length=6)
    for positions in (
        torch.tensor([[5, 3, 9, 0, 1, 2]]),
        torch.tensor([[0, 1, 2, 3, 4, 5], [700, 701, 702, 9000, 9001, 9002]]),
    ):
        positions = positions.to(DEVICE)
        with torch.no_grad():
            assert torch.allclose(
                eager(ids, position_ids=positions).logits, patched(ids, position_ids=positions).logits, atol=1e-3
            )


def test_longrope_changes_its_frequencies_where_the_model_does():
    eager, patched = _pair("phi4-mini")
    for length in (40, 90, 30):
        ids = prompt(batch=1, length=length)
        with torch.no_grad():
            assert torch.allclose(eager(ids).logits, patched(ids).logits, atol=1e-4), length


def test_images_grid_positions():
    """Qwen3.5 places tokens on a grid of three axes; only text has three equal ones."""
    eager, patched = _pair("qwen3.5")
    ids = prompt(batch=2, length=6)
    grid = torch.stack([torch.arange(6), torch.arange(6) * 2, torch.arange(6) * 3])[:, None].expand(3, 2, 6)
    for positions in (grid.to(DEVICE), torch.arange(6, device=DEVICE)[None].expand(2, 6)):
        with torch.no_grad():
            plain = eager(ids, position_ids=positions).logits
            assert torch.allclose(plain, patched(ids, position_ids=positions).logits, atol=1e-4)


@pytest.mark.parametrize("implementation", ("eager", "sdpa"))
def test_attention_implementations(implementation):
    ids = prompt()
    for name in ("llama", "gemma3"):
        pair = _pair(name)
        for model in pair:
            model.set_attn_implementation(implementation)
        with torch.no_grad():
            eager, patched = (model(ids, output_attentions=implementation == "eager") for model in pair)
        assert torch.allclose(eager.logits, patched.logits, atol=1e-4)
        if implementation == "eager":
            assert len(patched.attentions) == 4
            for one, other in zip(eager.attentions, patched.attentions):
                assert torch.allclose(one, other, atol=1e-4)
