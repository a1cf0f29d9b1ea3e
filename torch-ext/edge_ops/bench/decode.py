"""Decode loops of real models: tokens a second and time to the first token, as it is, compiled, patched, and both.

The arms share one model's weights and decode the same prompt, token by token in turn; the eager loop runs twice under
two names. The prompt runs through the uncompiled model in every arm.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..cli.arms import Arm, make
from ..cli.weights import SOURCES, Loaded, Unavailable, load, random_model
from . import store
from .environment import load_average
from .progress import Budget, Progress
from .stats import Kept, Ratio, drop_rule, null_difference, quartiles, ratio, rounded_trials, trial_orders
from .timing import no_garbage_collection

EAGER, TWIN = "eager", "eager (twin)"
ARMS = {
    EAGER: "as transformers runs it",
    "compiled": "torch.compile(fullgraph=True) of the model, static cache",
    "patched": "edge_ops.patch",
    "patched, compiled": "torch.compile(fullgraph=True) of the patched model, static cache",
}
MODELS = tuple(SOURCES)
_PREFILLS = 4
_WARM_STEPS = 4


def _arms(model: Any, names: Sequence[str]) -> dict[str, Arm]:
    """The chosen arms and the twin."""
    parts = {"patched": "patched", "patched, compiled": "compiled"}
    made, _ = make(model, [parts[name] for name in names if name in parts])
    result = {}
    for name in names:
        if name in parts:
            result[name] = made[parts[name]]
        elif name == "compiled":
            result[name] = Arm(name, model, torch.compile(model, fullgraph=True), static=True)
        else:
            result[name] = Arm(name, model, model, static=False)
    return {**result, TWIN: Arm(TWIN, model, model, static=False)}


def _pass(arms: Mapping[str, Arm], prompt: list[int], steps: int) -> dict[str, dict[str, list[float]]]:
    """Nanoseconds of every prefill and of every step, the arms in turn."""
    names = list(arms)
    orders = trial_orders(len(names))
    for arm in arms.values():
        arm.forget()
    with no_garbage_collection():
        for trial in range(_PREFILLS):
            for place in orders[trial % len(orders)]:
                arms[names[place]].prefill(prompt, steps)
        for trial in range(steps):
            for place in orders[trial % len(orders)]:
                arms[names[place]].step(profiled=False)
    return {
        "first": {name: [1e9 * seconds for seconds in arm.first] for name, arm in arms.items()},
        "step": {name: [1e9 * seconds for seconds in arm.seconds] for name, arm in arms.items()},
    }


def _agreement(arms: Mapping[str, Arm]) -> dict[str, int]:
    """How many tokens from the start each arm has in common with eager."""
    expected = arms[EAGER].tokens
    result = {}
    for name, arm in arms.items():
        pairs = enumerate(zip(arm.tokens, expected))
        result[name] = next((index for index, (a, b) in pairs if a != b), len(expected))
    return result


def _loaded(name: str, dtype: torch.dtype, progress: Progress) -> tuple[Loaded, str]:
    """The model, and what its weights are."""
    try:
        return load(name, dtype, None, lambda text: progress.show(f"{name}: {text}")), SOURCES[name].title
    except Unavailable as reason:
        progress.note(f"{name}: {reason}; random weights of the same shape instead")
        return random_model(name, dtype), f"{SOURCES[name].title}, random weights"


def run_model(
    name: str,
    dtype: str,
    threads: int,
    arms: Sequence[str],
    settings: Mapping[str, Any],
    deadline: float | None,
    progress: Progress,
) -> dict[str, Any]:
    """The record of one model: every pass's samples, until enough are kept, or the passes or the time are used up.

    The first pass runs whatever the deadline.
    """
    loaded, title = _loaded(name, getattr(torch, dtype), progress)
    progress.show(f"{title}: compiling and warming up")
    made = _arms(loaded.model, arms)
    steps = rounded_trials(settings["steps"], len(made))
    for arm in made.values():
        arm.prefill(loaded.prompt, steps)
        for _ in range(_WARM_STEPS):
            arm.step(profiled=False)
    passes: list[dict[str, Any]] = []
    while len(passes) < settings["passes"]:
        progress.show(f"{title}: pass {len(passes) + 1}")
        passes.append(_pass(made, loaded.prompt, steps))
        if len(drop_rule([one["step"] for one in passes], EAGER, TWIN).passes) >= settings["keep"]:
            break
        if deadline is not None and time.monotonic() >= deadline:
            break
    return {
        "model": title,
        "dtype": dtype,
        "threads": threads,
        "prompt": len(loaded.prompt),
        "steps": steps,
        "agree": _agreement(made),
        "doubled": EAGER,
        "twin": TWIN,
        "passes": passes,
    }


def run(
    models: Sequence[str],
    dtypes: Sequence[str],
    threads: Sequence[int],
    arms: Sequence[str],
    settings: Mapping[str, Any],
    environment: dict[str, Any],
) -> store.Record:
    """Decode with every model, dtype and thread count.

    Args:
        settings: `steps`, `keep`, `passes`, and `minutes` (of the whole run, or None).

    Raises:
        ImportError: transformers is not installed.
    """
    import transformers

    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the weights come from packages: nothing is looked up
    transformers.utils.logging.set_verbosity_error()
    described = {name: {"title": ARMS[name], "version": torch.__version__} for name in arms}
    record = store.new({**environment, "transformers": transformers.__version__}, {}, dict(settings))
    record["decode_arms"] = described
    jobs = [(name, dtype, count) for name in models for dtype in dtypes for count in threads]
    progress = Progress(len(jobs))
    budget = Budget(settings["minutes"], len(jobs))
    try:
        for name, dtype, count in jobs:
            torch.set_num_threads(count)
            torch._dynamo.reset()
            record["decode"].append(run_model(name, dtype, count, arms, settings, budget.deadline(), progress))
            progress.step()
    except KeyboardInterrupt:
        progress.note(f"interrupted after {progress.done} of {progress.total} models")
    record["environment"]["load_average_end"] = load_average()
    progress.close()
    return record


@dataclass(frozen=True)
class Loop:
    """One arm of one model's record, against eager."""

    arm: str
    step: tuple[float, float, float]  # quartiles in nanoseconds
    first: tuple[float, float, float]
    faster: Ratio
    first_faster: Ratio
    verdict: str
    first_verdict: str
    agree: int


def kept(entry: Mapping[str, Any]) -> Kept:
    return drop_rule([one["step"] for one in entry["passes"]], entry["doubled"], entry["twin"])


def loops(entry: Mapping[str, Any]) -> Iterator[Loop]:
    """What the kept passes say of every arm; a difference inside the null arm's is no difference."""
    found = kept(entry)
    if not found.passes:
        return
    joined = {
        what: {
            name: [sample for index in found.passes for sample in entry["passes"][index][what][name]]
            for name in entry["passes"][0][what]
        }
        for what in ("step", "first")
    }
    step, first = joined["step"], joined["first"]
    # Few prefills make a pass, so their own twins decide what can be told apart.
    first_noise = null_difference(first[entry["doubled"]], first[entry["twin"]])
    for name in step:
        if name == entry["twin"]:
            continue
        faster, first_faster = ratio(step[EAGER], step[name]), ratio(first[EAGER], first[name])
        yield Loop(
            name,
            quartiles(step[name]),
            quartiles(first[name]),
            faster,
            first_faster,
            difference(faster.value, found.resolution),
            difference(first_faster.value, first_noise),
            entry["agree"][name],
        )


def difference(value: float, resolution: float) -> str:
    return "faster" if value > 1 + resolution else "slower" if value < 1 - resolution else "none"
