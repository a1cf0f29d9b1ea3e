"""The energy that a GPU has used, by NVML's counter."""

from __future__ import annotations

import time
from typing import Any, Optional


class Energy:
    """One GPU's counter. The driver renews it some ten times a second: read it over a second or more."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle

    @classmethod
    def open(cls, index: int = 0) -> Optional[Energy]:
        """The counter, or None where NVML, its Python package or the counter is missing."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
            found = cls(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index))
            found.joules()
        except pynvml.NVMLError:
            return None
        return found

    def joules(self) -> float:
        """Since the driver was loaded."""
        return self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1000

    def watts(self, seconds: float) -> float:
        """On average while nothing is asked of the GPU."""
        before, start = self.joules(), time.perf_counter()
        time.sleep(seconds)
        return (self.joules() - before) / (time.perf_counter() - start)
