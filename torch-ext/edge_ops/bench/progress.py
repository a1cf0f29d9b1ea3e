"""A progress line with the time left, on standard error; one line a tenth where that is no terminal."""

from __future__ import annotations

import sys
import time


class Progress:
    WIDTH = 24

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.started = time.monotonic()
        self.terminal = sys.stderr.isatty()
        self._printed_tenth = -1

    def show(self, text: str) -> None:
        """`text` says what runs now."""
        left = self._left()
        filled = self.WIDTH * self.done // max(self.total, 1)
        line = f"[{'#' * filled}{'.' * (self.WIDTH - filled)}] {self.done}/{self.total} {left} {text}"
        if self.terminal:
            sys.stderr.write(f"\r\033[K{line[:119]}")
            sys.stderr.flush()
        elif self._tenth() > self._printed_tenth:
            self._printed_tenth = self._tenth()
            print(line, file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """A line that stays."""
        prefix = "\r\033[K" if self.terminal else ""
        print(f"{prefix}{text}", file=sys.stderr, flush=True)

    def step(self) -> None:
        self.done += 1

    def close(self) -> None:
        if self.terminal:
            sys.stderr.write("\r\033[K")

    def _tenth(self) -> int:
        return 10 * self.done // max(self.total, 1)

    def _left(self) -> str:
        if not self.done:
            return "estimating"
        seconds = (time.monotonic() - self.started) / self.done * (self.total - self.done)
        return f"{int(seconds) // 60}:{int(seconds) % 60:02d} left"


class Budget:
    """Shares the time of a run among its parts: what one leaves over goes to those after it."""

    def __init__(self, minutes: float | None, parts: int) -> None:
        self._end = None if minutes is None else time.monotonic() + 60 * minutes
        self._parts = parts

    def deadline(self) -> float | None:
        """When the next part must start no further pass."""
        if self._end is None:
            return None
        now = time.monotonic()
        share = (self._end - now) / max(self._parts, 1)
        self._parts -= 1
        return now + share
