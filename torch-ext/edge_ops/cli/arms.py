"""The arms of a demo: one model's weights, decoding as transformers runs them, patched, and compiled."""

import copy
import time
from collections import Counter
from typing import Any, Dict, List, Optional

from ..models import Report, patch
from .profile import PARTS, Sampler

ARMS = ("eager", "patched", "compiled")

# A step that took longer than this many medians was disturbed by something else on the machine.
_DISTURBED = 1.3


class Arm:
    """One way to decode.

    Attributes:
        tokens: what it has decoded.
        first: seconds from the prompt to the first token, one entry a prefill.
        seconds: of each further token.
    """

    def __init__(self, name: str, model: Any, step: Any, static: bool) -> None:
        self.name, self.model = name, model
        self._step, self._static = step, static
        self.tokens: List[int] = []
        self.first: List[float] = []
        self.seconds: List[float] = []
        self._samples: List[Counter] = []

    def prefill(self, prompt: List[int], room: int) -> None:
        """Runs the prompt on an empty cache with room for `room` more tokens."""
        import torch
        from transformers import DynamicCache, StaticCache

        config = self.model.config
        if self._static:
            self._cache: Any = StaticCache(config=config, max_cache_len=len(prompt) + room)
        else:
            self._cache = DynamicCache(config=config)
        self._length = len(prompt)
        start = time.perf_counter()
        # A compiled step is compiled for one token; the prompt runs on the patched model.
        self._take(self.model, torch.tensor([prompt]), torch.arange(len(prompt))[None])
        self.first.append(time.perf_counter() - start)
        del self.tokens[:-1]

    def step(self, profiled: bool = True) -> None:
        """Decodes one more token."""
        import torch

        positions = torch.tensor([[self._length]])
        self._length += 1
        # Dynamo would trace the sampler's handler where the signal interrupts a compiled function.
        sampler = Sampler() if profiled and not self._static and Sampler.available() else None
        start = time.perf_counter()
        if sampler is None:
            self._take(self._step, self._next, positions)
        else:
            with sampler:
                self._take(self._step, self._next, positions)
        self.seconds.append(time.perf_counter() - start)
        self._samples.append(Counter() if sampler is None else sampler.samples)

    def _take(self, run: Any, ids: Any, positions: Any) -> None:
        import torch

        with torch.inference_mode():
            output = run(
                input_ids=ids, position_ids=positions, past_key_values=self._cache, use_cache=True, logits_to_keep=1
            )
            self._next = output.logits[:, -1].argmax(-1, keepdim=True)
            self.tokens.append(int(self._next))

    def forget(self) -> None:
        """Drops what a warm-up has measured."""
        self.first.clear()
        self.seconds.clear()
        self._samples.clear()

    def step_seconds(self) -> float:
        """Median of a step."""
        return median(self.seconds)

    def parts(self) -> Dict[str, float]:
        """Seconds of a median step by part, from the samples of the steps that nothing disturbed."""
        limit = _DISTURBED * self.step_seconds()
        total: Counter = Counter()
        for seconds, samples in zip(self.seconds, self._samples):
            if seconds <= limit:
                total.update(samples)
        count = sum(total.values())
        return {part: total[part] / count * self.step_seconds() if count else 0.0 for part in PARTS}

    def sample_count(self) -> int:
        return sum(sum(samples.values()) for samples in self._samples)


def median(values: List[float]) -> float:
    return sorted(values)[len(values) // 2]


def make(model: Any, names: List[str]) -> "tuple[Dict[str, Arm], Optional[Report]]":
    """The arms by name, all on `model`'s weights, and the report where one of them is patched."""
    arms: Dict[str, Arm] = {}
    report = None
    patched: Any = None
    for name in names:
        if name == "eager":
            arms[name] = Arm(name, model, model, static=False)
            continue
        if patched is None:
            # A copy of the modules that shares every weight.
            shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
            patched = copy.deepcopy(model, shared)
            report = patch(patched)
        if name == "patched":
            arms[name] = Arm(name, patched, patched, static=False)
        else:
            import torch

            arms[name] = Arm(name, patched, torch.compile(patched, fullgraph=True), static=True)
    return arms, report
