"""The native module of this build, or None where the build has none (the pure PyTorch variant)."""

import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any, Dict, Tuple

import torch

from .version import __version__

MINIMUM_TORCH = (2, 10)

_found = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
if _found < MINIMUM_TORCH:
    raise ImportError(
        f"edge_ops needs torch >= {MINIMUM_TORCH[0]}.{MINIMUM_TORCH[1]}, found {torch.__version__}: "
        "its operators use LibTorch's stable ABI of that release"
    )

if TYPE_CHECKING:
    from . import _native as extension
else:
    extension = None
ops: Any = None

# `_ops` is written by the build; only its absence means "no native code", any other failure must show.
if importlib.util.find_spec(f"{__package__}._ops") is not None:
    from . import _ops

    ops = _ops.ops
    extension = getattr(_ops, ops.name, None) or sys.modules[f"{__package__}.{ops.name}"]

    # What the operators register beside their kernels.
    from . import autograd as _autograd  # noqa: F401
    from . import fakes as _fakes  # noqa: F401

# Read once: a call must not look at the environment.
DIRECT_DISABLED = os.environ.get("EDGE_OPS_DISABLE_DIRECT", "0") not in ("", "0")

ROW_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# Device types that this build has kernels for. A constant: Dynamo cannot trace a call of the native module.
DEVICES: Tuple[str, ...] = () if extension is None else tuple(extension.build_info()["backends"])

BUILT_IN_GRAINS: Dict[str, int] = {} if extension is None else extension.grains()


def build_info() -> Dict[str, Any]:
    """What was built and what was chosen on this host.

    Keys: ``version``, ``build`` (namespace of the registered operators, or "pure PyTorch"), ``direct``,
    ``backends``, ``isa_compiled``, ``isa_offered``, ``isa_chosen``, ``grains`` (see tuning.py), ``torch``.
    """
    info: Dict[str, Any] = {
        "version": __version__,
        "build": "pure PyTorch",
        "direct": False,
        "backends": [],
        "isa_compiled": [],
        "isa_offered": [],
        "isa_chosen": None,
        "grains": {},
        "torch": torch.__version__,
    }
    if extension is not None:
        info.update(extension.build_info())
        info["grains"] = extension.grains()
        info["build"] = ops.name
        info["direct"] = not DIRECT_DISABLED
    return info
