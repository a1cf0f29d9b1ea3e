"""Everything about the host that a reader needs to judge a number."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from .. import native

_CPU = Path("/sys/devices/system/cpu")


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _cpuinfo() -> dict[str, str]:
    """The first processor's block of /proc/cpuinfo."""
    text = _text(Path("/proc/cpuinfo")) or ""
    pairs = (line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _caches() -> dict[str, str]:
    """Size by level, as the kernel names them: {"L1 Data": "48K", ...}."""
    caches = {}
    for index in sorted((_CPU / "cpu0" / "cache").glob("index*")):
        level, kind, size = (_text(index / name) for name in ("level", "type", "size"))
        if level and kind and size:
            caches[f"L{level} {kind}"] = size
    return caches


def _commit() -> dict[str, Any]:
    """Of the checkout that this file belongs to; an installed package may stand inside some other repository."""
    here = Path(__file__).resolve()

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(here.parent), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    unknown = {"commit": os.environ.get("EDGE_OPS_COMMIT"), "modified": None}
    try:
        if not git("ls-files", here.name):
            return unknown
        changed = git("status", "--porcelain", "--untracked-files=no")
        return {"commit": git("rev-parse", "HEAD"), "modified": bool(changed)}
    except OSError:
        return unknown


def output_of(*command: str) -> str:
    """What a command prints, or nothing where it fails or is missing."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def load_average() -> list[float]:
    return list(os.getloadavg())


def host(label: str | None = None) -> dict[str, Any]:
    """Host, CPU, clocks, versions, commit. `label` replaces the host's name."""
    cpu = _cpuinfo()
    frequency = _CPU / "cpu0" / "cpufreq"
    return {
        "host": label or platform.node(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cpu": cpu.get("model name") or cpu.get("Model") or platform.processor() or platform.machine(),
        "cpu_family_model_stepping": [cpu.get(key) for key in ("cpu family", "model", "stepping")],
        "cpu_flags": (cpu.get("flags") or cpu.get("Features") or "").split(),
        "cores": os.cpu_count(),
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "caches": _caches(),
        "governor": _text(frequency / "scaling_governor"),
        "clock_khz": _text(frequency / "scaling_cur_freq"),
        "clock_mhz_reported": cpu.get("cpu MHz"),
        "load_average": load_average(),
        "torch": torch.__version__,
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "edge_ops": native.build_info(),
        **_commit(),
    }
