"""What a record says of the device: facts that identify it, and nothing of its owner (no host name, no address)."""

import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

import torch

from .. import native


def _text(path: str) -> Optional[str]:
    try:
        return Path(path).read_text(errors="replace").strip("\0\n ") or None
    except OSError:
        return None


def _fields(path: str, separator: str) -> Dict[str, str]:
    """`key separator value` lines; of a repeated key the first."""
    found: Dict[str, str] = {}
    for line in (_text(path) or "").splitlines():
        key, mark, value = line.partition(separator)
        if mark:
            found.setdefault(key.strip(), value.strip().strip('"'))
    return found


def _asked(*command: str) -> Optional[str]:
    """What a system command answers, or None where there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def emulated() -> Optional[str]:
    """The user-mode emulator that this process runs in, or None.

    It shows as the process's own name, whatever processor it pretends to be. A system emulator does not show.
    """
    name = _text("/proc/self/comm") or ""
    return name if name.startswith("qemu-") else None


def device() -> Dict[str, Any]:
    """``name`` (board or product), ``machine``, ``cpu``, ``cpu_flags``, ``cores``, ``os``, ``os_image``, ``kernel``,
    ``libc``, ``emulated``; None where the system does not say."""
    cpuinfo = _fields("/proc/cpuinfo", ":")
    release = _fields("/etc/os-release", "=")
    if sys.platform == "darwin":
        name, cpu = _asked("sysctl", "-n", "hw.model"), _asked("sysctl", "-n", "machdep.cpu.brand_string")
        system: Optional[str] = f"macOS {platform.mac_ver()[0]}"
    else:
        board = _text("/sys/firmware/devicetree/base/model")
        maker, product = _text("/sys/class/dmi/id/sys_vendor"), _text("/sys/class/dmi/id/product_name")
        name = board or " ".join(filter(None, (maker, product))) or None
        cpu = cpuinfo.get("model name") or cpuinfo.get("Model") or cpuinfo.get("CPU part")
        system = release.get("PRETTY_NAME")
    # Jetson's images state their release beside the distribution's
    image = " ".join(filter(None, (release.get("IMAGE_ID"), release.get("IMAGE_VERSION") or release.get("BUILD_ID"))))
    flags = sorted((cpuinfo.get("flags") or cpuinfo.get("Features") or "").split())
    if emulated() is not None:  # /proc/cpuinfo shows the processor that emulates
        cpu, flags = f"emulated on {cpu}", []
    tegra = (_text("/etc/nv_tegra_release") or "").partition("\n")[0]
    return {
        "name": name,
        "machine": platform.machine(),
        "cpu": cpu,
        "cpu_flags": flags,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "os": system,
        "os_image": tegra or image or None,
        "kernel": f"{platform.system()} {platform.release()}",
        "libc": " ".join(filter(None, platform.libc_ver())) or None,
        "emulated": emulated(),
    }


def gpus() -> List[Dict[str, Any]]:
    """The CUDA devices that PyTorch sees, and their driver."""
    if not torch.cuda.is_available():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            {
                "name": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "memory": properties.total_memory,
                "driver": _driver(),
            }
        )
    return found


def _driver() -> Optional[str]:
    line = (_text("/proc/driver/nvidia/version") or "").partition("\n")[0]
    return line or _asked("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def package() -> Dict[str, Any]:
    """``version``, ``build`` (names the native sources' hash), ``library`` and its ``library_sha256``, ``direct``."""
    info = native.build_info()
    library = None if native.extension is None else Path(native.extension.__file__)
    return {
        "version": info["version"],
        "build": info["build"],
        "direct": info["direct"],
        "library": None if library is None else library.name,
        "library_sha256": None if library is None else hashlib.sha256(library.read_bytes()).hexdigest(),
    }


def software() -> Dict[str, Any]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
    }
