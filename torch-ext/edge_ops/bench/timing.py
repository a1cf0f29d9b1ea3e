"""Times the calls of one cell, interleaved trial by trial.

A trial is a block of back-to-back calls, long enough for the clock; before it the arm's inputs are restored and one
untimed call brings its code and data into the caches. A pass is a set of trials in which every arm stands at every
place and follows every other arm equally often.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from .arms import Call
from .stats import rounded_trials, trial_orders

Loop = Callable[[int], int]
_LONG_NS = 5_000_000

_TEMPLATE = """
def make({parameters}):
    def once():
{once}
    def loop(count):
        repeats = repeat(None, count)
        start = clock()
        for _ in repeats:
            {statement}
        {finish}
        return clock() - start
    return once, loop
"""


def compiled(call: Call, finish: Callable[[], Any] | None = None) -> tuple[Callable[[], Any], Loop]:
    """The call as a function that returns its value, and as a loop that returns the nanoseconds of `count` calls.

    `finish` ends each timed block, on a device that works behind the caller's back.

    As timeit does it: the statement stands in the loop itself, with its names as local variables, so that a call
    of a fraction of a microsecond is not measured together with a wrapper.
    """
    import itertools

    names = {**call.names, "repeat": itertools.repeat, "clock": time.perf_counter_ns, "finish": finish}
    *first, last = call.statement.split("; ")
    once = "".join(f"        {part}\n" for part in first) + f"        return {last}\n"
    ending = "finish()" if finish is not None else ""
    source = _TEMPLATE.format(parameters=", ".join(names), once=once, statement=call.statement, finish=ending)
    namespace: dict[str, Any] = {}
    # The source is the template above and an adapter's own statement.
    exec(source, namespace)  # noqa: S102
    once_function, loop = namespace["make"](**names)
    return once_function, loop


class Clock(Protocol):
    """What times one call; `trial` returns nanoseconds a call."""

    call: Call
    block: int
    once: Callable[[], Any]

    def restore(self) -> None: ...

    def calibrate(self, block_ns: int) -> None: ...

    def trial(self) -> float: ...


class TimedCall:
    """A call with its loop and the number of calls in a block."""

    def __init__(self, call: Call, finish: Callable[[], Any] | None = None) -> None:
        self.call = call
        self.once, self.loop = compiled(call, finish)
        self.block = 1
        self.long = False  # a call so long that the untimed one before it would change nothing

    def restore(self) -> None:
        if self.call.restore is not None:
            self.call.restore()

    def calibrate(self, block_ns: int, limit: int = 1 << 17) -> None:
        """Choose the block so that it takes about `block_ns`; the growing blocks are the warm-up, too."""
        count = 1
        while True:
            self.restore()
            elapsed = max(self.loop(count), 1)
            if elapsed >= block_ns or count >= limit:
                break
            count *= 2
        self.block = max(1, min(limit, round(count * block_ns / elapsed)))
        self.long = elapsed / count > _LONG_NS

    def trial(self) -> float:
        """Nanoseconds a call."""
        if not self.long:
            self.restore()
            self.once()
        self.restore()
        return self.loop(self.block) / self.block


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def run_pass(arms: Mapping[str, Clock], trials: int) -> dict[str, list[float]]:
    """One pass: every arm's samples, in the order of the trials. `trials` is rounded up to whole designs."""
    names = list(arms)
    orders = trial_orders(len(names))
    samples: dict[str, list[float]] = {name: [] for name in names}
    with no_garbage_collection():
        for index in range(rounded_trials(trials, len(names))):
            for place in orders[index % len(orders)]:
                samples[names[place]].append(arms[names[place]].trial())
    return samples
