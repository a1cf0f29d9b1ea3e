"""Where a decode step's time goes, by sampling the running model.

A timer signal interrupts the process every millisecond or so; the handler notes in which function the main thread
is and files the sample under a part of the model. Nothing is wrapped and no operation is slowed down: probes around
each module would cost more than the operators that they are to measure, since everything between two projections
runs with cold caches. A part's time is its share of the samples times the length of a step.

A sample that falls into a tensor operation is noted when the operation returns, so it is filed under the function
that called it. The Python of a part counts to the part, and so does the module call of torch.nn where the module
is nothing but a seam (a norm, an activation, a rotary module); every other module call counts as Python.
"""

import os
import random
import signal
import time
from collections import Counter
from typing import Any, Dict, Optional

SEAMS = ("norms, residual adds", "rotation", "gated products")
PARTS = (*SEAMS, "projections", "attention", "Python", "rest")
NORMS, ROTATION, PRODUCTS, PROJECTIONS, ATTENTION, PYTHON, REST = PARTS

_MODULE_CALL = "module call"  # a part that depends on the module

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Functions of this package's models/ by file; None: filed under whatever called it.
_OWN: Dict[str, Dict[str, Optional[str]]] = {
    "rope.py": {"": ROTATION},
    "attention.py": {"rotate": ROTATION, "norm_and_rotate": ROTATION, "": ATTENTION},
    "layers.py": {"": NORMS},
    "steps.py": {"": NORMS},
    "blocks.py": {"operand": None, "hooked": None, "": NORMS},
    "mlp.py": {"project": PROJECTIONS, "": PRODUCTS},
    "binding.py": {"": None},
}

# Modules that are nothing but a seam, by the end of their class's name.
_SEAM_MODULES = (("RMSNorm", NORMS), ("RotaryEmbedding", ROTATION), ("Activation", PRODUCTS), ("GELUTanh", PRODUCTS))

# Classes of transformers by the end of their name, and functions of its modeling files.
_CLASSES = (
    ("RMSNorm", NORMS),
    ("RotaryEmbedding", ROTATION),
    ("Attention", ATTENTION),
    ("MLP", PRODUCTS),
    ("DecoderLayer", NORMS),
    ("Model", REST),
    ("ForCausalLM", REST),
)
_FUNCTIONS = {
    "apply_rotary_pos_emb": ROTATION,
    "rotate_half": ROTATION,
    "eager_attention_forward": ATTENTION,
    "sdpa_attention_forward": ATTENTION,
}


def part_of(code: Any, owner: str) -> Optional[str]:
    """The part that a function's time belongs to; None where the caller decides.

    Args:
        code: the function's code object.
        owner: class of its ``self``, or "".
    """
    folder, file = os.path.split(code.co_filename)
    if folder == os.path.join(_PACKAGE, "models"):
        if file in _OWN:
            return _OWN[file].get(code.co_name, _OWN[file][""])
        # A family's own file: its attention, and a layer or MLP that no other family has.
        if code.co_name.endswith("_layer_forward"):
            return NORMS
        return PRODUCTS if code.co_name.endswith("_mlp_forward") else ATTENTION
    if folder.endswith(os.path.join("torch", "nn", "modules")):
        if file == "linear.py":
            return PROJECTIONS
        return _MODULE_CALL if file == "module.py" else None
    if f"{os.sep}transformers{os.sep}" in code.co_filename:
        if file == "activations.py":
            return PRODUCTS
        if file == "modeling_layers.py":
            return PYTHON
        if file == "cache_utils.py":
            return ATTENTION
        if code.co_name in _FUNCTIONS:
            return _FUNCTIONS[code.co_name]
        for ending, part in _CLASSES:
            if owner.endswith(ending):
                return part
    return None


class Sampler:
    """Samples the main thread while its block runs.

    Args:
        interval: seconds between samples.

    Attributes:
        samples: how many samples fell into each part.
        seconds: how long the block ran.
    """

    def __init__(self, interval: float = 0.001) -> None:
        self.interval = interval
        self.samples: Counter = Counter()
        self.seconds = 0.0
        self._parts: Dict[Any, Optional[str]] = {}

    @staticmethod
    def available() -> bool:
        """Whether this platform has interval timers."""
        return hasattr(signal, "setitimer")

    def __enter__(self) -> "Sampler":
        self._previous = signal.signal(signal.SIGALRM, self._sample)
        self._start = time.perf_counter()
        # Every step does the same at the same time: with a fixed first sample, the same few places would be seen.
        first = self.interval * (0.01 + 0.99 * random.random())
        signal.setitimer(signal.ITIMER_REAL, first, self.interval)
        return self

    def __exit__(self, *unused: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        self.seconds += time.perf_counter() - self._start
        signal.signal(signal.SIGALRM, self._previous)

    def _sample(self, number: int, frame: Any) -> None:
        while frame is not None:
            code = frame.f_code
            if code not in self._parts:
                receiver = next(iter(frame.f_locals.values()), None) if code.co_argcount else None
                self._parts[code] = part_of(code, type(receiver).__name__)
            part = self._parts[code]
            if part == _MODULE_CALL:
                module = type(frame.f_locals.get("self")).__name__
                part = next((seam for ending, seam in _SEAM_MODULES if module.endswith(ending)), PYTHON)
            if part is not None:
                self.samples[part] += 1
                return
            frame = frame.f_back
        self.samples[REST] += 1

    def shares(self) -> Dict[str, float]:
        """Each part's share of the time."""
        total = sum(self.samples.values())
        return {part: self.samples[part] / total if total else 0.0 for part in PARTS}


def error(share: float, total: int) -> float:
    """Standard error of a share that was estimated from `total` samples."""
    return (share * (1 - share) / max(total, 1)) ** 0.5
