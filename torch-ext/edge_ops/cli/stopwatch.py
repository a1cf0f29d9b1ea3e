"""Where a decode step's time goes: exclusive time by kind of module, measured inside the running model.

Each module's forward is wrapped by a timer, and so is the function that rotates query and key. A timed scope's
exclusive time is its own minus that of the scopes inside it, so the residual additions of a layer are what is left
of the layer without its norms, attention and MLP; the gated product is what is left of an MLP without its
projections. What a timer itself costs inside its parent is measured on an empty scope and taken off. The Python
between the operations counts to the scope that it is in, as written by the model and as patched alike.
"""

import functools
import time
from collections import defaultdict
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from torch import nn

SEAMS = ("norms", "rotation", "gated products", "residual adds")
PARTS = (*SEAMS, "projections", "attention", "rest")


class Stopwatch:
    """Collects exclusive seconds by part, one entry a step."""

    def __init__(self) -> None:
        self.steps: List[Dict[str, float]] = []
        self._inside: List[float] = [0.0]  # seconds of finished scopes inside each open scope
        self._sums: Dict[str, float] = defaultdict(float)
        self._cost = 0.0
        self._cost = self._cost_of_a_scope()

    def _cost_of_a_scope(self) -> float:
        """What an empty scope adds to its parent beyond what it counts itself."""
        timed = self.wrap("rest", _nothing)
        best = float("inf")
        for _ in range(20):
            self._inside[-1] = 0.0
            start = time.perf_counter()
            for _ in range(50):
                timed()
            wrapped = time.perf_counter() - start - self._inside[-1]
            start = time.perf_counter()
            for _ in range(50):
                pass
            best = min(best, (wrapped - (time.perf_counter() - start)) / 50)
        self._inside[-1] = 0.0
        self._sums.clear()
        return max(best, 0.0)

    def wrap(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, timed as a scope of `part`."""
        inside, sums, clock = self._inside, self._sums, time.perf_counter

        def timed(*args: Any, **kwargs: Any) -> Any:
            inside.append(0.0)
            start = clock()
            try:
                return function(*args, **kwargs)
            finally:
                spent = clock() - start
                sums[part] += spent - inside.pop()
                inside[-1] += spent + self._cost

        return timed

    def step(self) -> None:
        """Ends a decode step."""
        self.steps.append(dict(self._sums))
        self._sums.clear()

    def median(self) -> Dict[str, float]:
        """Median seconds a step of each part."""
        ordered = {part: sorted(step.get(part, 0.0) for step in self.steps) for part in PARTS}
        return {part: values[len(values) // 2] for part, values in ordered.items()}


def _nothing() -> None:
    return None


def part_of(module: nn.Module) -> Optional[str]:
    """The part that a module's exclusive time belongs to; None for containers that run no code."""
    name = type(module).__name__
    if isinstance(module, nn.Linear):
        return "projections"
    for ending, part in (
        ("RMSNorm", "norms"),
        ("RotaryEmbedding", "rotation"),
        ("Attention", "attention"),
        ("MLP", "gated products"),
        ("DecoderLayer", "residual adds"),
    ):
        if name.endswith(ending):
            return part
    if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        return None
    return "inherit"


@contextmanager
def timing(model: nn.Module) -> Iterator[Stopwatch]:
    """Times `model`, patched or not, while the block runs; it is as before afterwards."""
    watch = Stopwatch()
    undo: List[Tuple[Any, str, Any]] = []
    try:
        _wrap_modules(model, "rest", watch, undo)
        for namespace, name in _rotations(model):
            function = getattr(namespace, name)
            undo.append((namespace, name, function))
            setattr(namespace, name, watch.wrap("rotation", function))
        yield watch
    finally:
        for owner, name, value in reversed(undo):
            if value is None:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def _wrap_modules(module: nn.Module, outer: str, watch: Stopwatch, undo: List[Tuple[Any, str, Any]]) -> None:
    part = part_of(module)
    part = outer if part == "inherit" else part
    if part is not None:
        undo.append((module, "forward", module.__dict__.get("forward")))
        module.forward = functools.wraps(module.forward)(watch.wrap(part, module.forward))
    for child in module.children():
        _wrap_modules(child, part or outer, watch, undo)


def _rotations(model: nn.Module) -> Iterator[Tuple[Any, str]]:
    """The functions that rotate inside an attention: the model's own, and the operators."""
    import sys

    from ..models import attention

    yield attention, "rotary_embedding"
    yield attention, "fused_qk_norm_rope"
    files = {type(module).__module__ for module in model.modules() if type(module).__name__.endswith("Attention")}
    for file in sorted(files):
        if hasattr(sys.modules[file], "apply_rotary_pos_emb"):
            yield sys.modules[file], "apply_rotary_pos_emb"
