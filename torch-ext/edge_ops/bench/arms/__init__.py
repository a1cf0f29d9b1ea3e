"""The arms: one adapter a library. A new one is a file here and a line in `ALL`."""

from __future__ import annotations

from . import builtin, compiled, eager, edge, flashinfer, hub, liger, onnx, sglang, vllm, vllm_cuda
from .base import Arm, Call, NotInstalled, Prepare, worst_error

ALL: tuple[Arm, ...] = (
    *edge.ARMS,
    *eager.ARMS,
    *builtin.ARMS,
    *compiled.ARMS,
    *vllm.ARMS,
    *hub.ARMS,
    *onnx.ARMS,
    *flashinfer.ARMS,
    *sglang.ARMS,
    *vllm_cuda.ARMS,
    *liger.ARMS,
)
NAMES = tuple(arm.name for arm in ALL)


def of_device(device: str) -> tuple[str, ...]:
    """The arms that have kernels for a device."""
    return tuple(arm.name for arm in ALL if device in arm.devices)


MAIN = "edge_ops"  # what the others are held against
BASE = "eager"  # what speedups are multiples of
OWN = tuple(arm.name for arm in edge.ARMS)
PEERS = tuple(name for name in NAMES if name not in OWN and not name.startswith(BASE))

__all__ = ["ALL", "BASE", "MAIN", "NAMES", "OWN", "PEERS", "Arm", "Call", "NotInstalled", "Prepare"]
__all__ += ["of_device", "worst_error"]
