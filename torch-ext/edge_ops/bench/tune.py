"""Finds the size from which splitting an operator's rows over threads pays, on this host.

A point is one kind of operator, dtype and number of elements. Its grain is set once just above the point, so that
the rows stay on the calling thread, and once just below, so that they are split in two; both run interleaved, each of
them twice, which shows the noise. A point too noisy to tell is left out of the choice.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import native, ops
from ..rope import rope_cache
from ..tuning import GRAINS, VERSION
from .arms import Call
from .progress import Progress
from .stats import null_difference
from .timing import TimedCall, run_pass

ROWS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
WIDTH = 1024
DTYPES = ("float32", "bfloat16")
WHOLE, SPLIT, TWIN = "whole", "split", " (twin)"
NOISE_LIMIT = 0.03  # a split in two threads is never as steady as one thread
_STEP = 1024  # grains are rounded to whole thousands: a sweep tells no finer


@dataclass(frozen=True)
class Point:
    """Medians in nanoseconds of one number of elements, unsplit and split in two; `noise` of the worse twins."""

    kind: str
    dtype: str
    elements: int
    whole: float
    split: float
    noise: float

    @property
    def usable(self) -> bool:
        return self.noise <= NOISE_LIMIT

    @property
    def gain(self) -> float:
        """How many times faster the split is."""
        return self.whole / self.split


def calls(rows: int, dtype: torch.dtype) -> dict[str, Call]:
    """One operator of each kind, on `rows * WIDTH` elements."""
    x, gate_up = torch.randn(rows, WIDTH).to(dtype), torch.randn(rows, 2 * WIDTH).to(dtype)
    out, weight = torch.empty_like(x), torch.randn(WIDTH).to(dtype)
    query, key = torch.randn(rows, 6, 128).to(dtype), torch.randn(rows, 2, 128).to(dtype)
    heads = {
        "positions": torch.arange(rows),
        "q": query,
        "k": key,
        "w": torch.randn(128).to(dtype),
        "cache": rope_cache(256, 128),
        "qo": torch.empty_like(query),
        "ko": torch.empty_like(key),
    }
    return {
        "norm": Call("op(x, weight, out=out)", {"op": ops.rms_norm, "x": x, "weight": weight, "out": out}),
        "gate": Call("op(x, out=out)", {"op": ops.silu_and_mul, "x": gate_up, "out": out}),
        "heads": Call(
            "op(positions, q, k, w, w, cache, query_out=qo, key_out=ko)", {"op": ops.fused_qk_norm_rope, **heads}
        ),
    }


class _WithGrain(TimedCall):
    """A call that runs under a grain of its own."""

    def __init__(self, call: Call, grain: int) -> None:
        super().__init__(call)
        self.grain = grain

    def trial(self) -> float:
        native.extension.set_grains(self.grain, self.grain, self.grain)
        return super().trial()


def measure(call: Call, elements: int, trials: int, block_ns: int) -> dict[str, list[float]]:
    """Samples in nanoseconds of a call whose rows are left whole and split, each twice."""
    arms = {WHOLE: _WithGrain(call, elements), SPLIT: _WithGrain(call, elements - 1)}
    native.extension.set_grains(elements, elements, elements)
    for arm in arms.values():
        arm.calibrate(block_ns)
        arm.block = arms[WHOLE].block
    return run_pass({**arms, **{name + TWIN: arm for name, arm in arms.items()}}, trials)


def sweep(trials: int, block_us: int, attempts: int = 4) -> list[dict[str, Any]]:
    """Every point with its raw samples; a point whose twins disagree is measured again, up to `attempts` times.

    The grains of the process are put back afterwards.

    Raises:
        RuntimeError: this build has no native code, or torch runs one thread.
    """
    if native.extension is None:
        raise RuntimeError("this build has no native code: there is nothing to tune")
    if torch.get_num_threads() < 2:
        raise RuntimeError("torch runs one thread: a split cannot pay")
    before = native.extension.grains()
    progress = Progress(len(DTYPES) * len(ROWS) * len(GRAINS))
    points = []
    try:
        with torch.no_grad():
            for dtype in DTYPES:
                for rows in ROWS:
                    for kind, call in calls(rows, getattr(torch, dtype)).items():
                        elements = rows * WIDTH
                        progress.show(f"{kind}, {dtype}, {elements} elements")
                        tries = []
                        for _ in range(attempts):
                            tries.append(measure(call, elements, trials, block_us * 1000))
                            if _noise(tries[-1]) <= NOISE_LIMIT:
                                break
                        samples = min(tries, key=_noise)
                        points.append({"kind": kind, "dtype": dtype, "elements": elements, "samples_ns": samples})
                        progress.step()
    finally:
        native.extension.set_grains(*(before[name] for name in GRAINS))
        progress.close()
    return points


def _noise(samples: Mapping[str, Sequence[float]]) -> float:
    return max(null_difference(samples[name], samples[name + TWIN]) for name in (WHOLE, SPLIT))


def medians(points: Iterable[Mapping[str, Any]]) -> list[Point]:
    """The points of a sweep, or of a file of one."""
    result = []
    for point in points:
        samples = point["samples_ns"]
        whole, split = statistics.median(samples[WHOLE]), statistics.median(samples[SPLIT])
        result.append(Point(point["kind"], point["dtype"], point["elements"], whole, split, _noise(samples)))
    return result


def crossover(points: Sequence[Point]) -> int | None:
    """The elements from which the split is ahead and stays ahead, for points of one kind and dtype."""
    ahead = None
    for point in sorted(filter(_usable, points), key=_elements):
        if point.gain <= 1:
            ahead = None
        elif ahead is None:
            ahead = point.elements
    return ahead


def _usable(point: Point) -> bool:
    return point.usable


def _elements(point: Point) -> int:
    return point.elements


def choose(points: Sequence[Point]) -> dict[str, int]:
    """The grain of each kind that loses least over its usable points, whatever the dtype.

    A grain between two neighbouring points splits the upper one and all above it; its loss at a point is how many
    times slower its choice there is than the better one. Between the two points the grain is their geometric mean.

    Raises:
        ValueError: too few points are usable.
    """
    grains = {}
    for kind in dict.fromkeys(point.kind for point in points):
        everything = [point for point in points if point.kind == kind]
        own = [point for point in everything if point.usable]
        if 2 * len(own) < len(everything):
            raise ValueError(
                f"{kind}: {len(own)} of {len(everything)} points are steady enough: the machine is too busy"
            )
        sizes = sorted({point.elements for point in own})
        edges = [sizes[0] // 2, *sizes, 2 * sizes[-1]]

        def loss(edge: int, own: Sequence[Point] = own) -> float:
            chosen = ((point, point.split if point.elements > edge else point.whole) for point in own)
            return sum(math.log(taken / min(point.whole, point.split)) for point, taken in chosen)

        best = min(range(len(edges) - 1), key=lambda index: loss(edges[index]))
        grains[kind] = _rounded(math.sqrt(edges[best] * edges[best + 1]))
    return grains


def _rounded(elements: float) -> int:
    return max(_STEP, _STEP * round(elements / _STEP))


def tuning(points: Sequence[Mapping[str, Any]], host: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a tuning file, with what it was chosen from."""
    measured = {"host": host, "threads": torch.get_num_threads(), "points": list(points)}
    return {"edge_ops_tuning": VERSION, "cpu": {"grains": choose(medians(points))}, "measured": measured}


def curves(points: Sequence[Point], write: Callable[[str], Any]) -> None:
    """Prints how many times faster the split is, from a quarter to four times, with the crossover of each curve."""
    for kind in dict.fromkeys(point.kind for point in points):
        for dtype in dict.fromkeys(point.dtype for point in points):
            own = [point for point in points if (point.kind, point.dtype) == (kind, dtype)]
            write(f"{kind}, {dtype}: whole against split in two")
            write(f"{'elements':>10}{'whole, us':>11}{'split, us':>11}{'gain':>7}  {_scale()}")
            for point in own:
                numbers = (
                    f"{point.elements:>10}{point.whole / 1000:>11.2f}{point.split / 1000:>11.2f}{point.gain:>7.2f}"
                )
                write(f"{numbers}  {_bar(point.gain)}{'' if point.usable else '  noisy'}")
            found = crossover(own)
            write(f"{'':>10}the split pays {'nowhere here' if found is None else f'from {found} elements'}\n")


_HALF = 16  # characters from 1 to 4 times


def _scale() -> str:
    return f"1/4{'1':>{_HALF - 2}}{'4':>{_HALF}}"


def _bar(gain: float) -> str:
    place = round(_HALF * math.log(min(max(gain, 0.25), 4.0), 4))
    left = " " * (_HALF + place) + "#" * -place if place < 0 else " " * _HALF
    return f"{left}|{'#' * place}"
