"""Tuning files: choices by shape that were measured on a host, loaded on request.

A file is JSON, as ``edge-ops tune`` writes it::

    {"edge_ops_tuning": 1, "cpu": {"grains": {"norm": 24576, "gate": 8192, "heads": 12288}}, "measured": ...}

``grains`` are the elements up to which the rows of an operator stay on the calling thread: ``norm`` for `rms_norm`
and `fused_add_rms_norm`, ``gate`` for the activations, ``heads`` for `rotary_embedding` and `fused_qk_norm_rope`.
No choice changes a bit of any result.
"""

import json
import os
from pathlib import Path
from typing import Any, Dict, Union

from . import native

VERSION = 1
GRAINS = ("norm", "gate", "heads")
_LARGEST = 2**62


def load_tuning(path: Union[str, "os.PathLike[str]"]) -> Dict[str, int]:
    """Loads a tuning file for the calls that follow, in every thread.

    A build without native code has nothing to tune; the file is checked all the same.

    Args:
        path: what ``edge-ops tune`` wrote.

    Returns:
        The grains that it sets.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no tuning file; the message names the file and the key. Nothing has been changed.
    """
    grains = _grains(Path(path))
    if native.extension is not None:
        native.extension.set_grains(*(grains[name] for name in GRAINS))
    return grains


def load_at_import() -> None:
    """Loads the file that ``EDGE_OPS_TUNING`` names, if it names one.

    Raises:
        ImportError: the file cannot be used.
    """
    path = os.environ.get("EDGE_OPS_TUNING")
    if path:
        try:
            load_tuning(path)
        except (OSError, ValueError) as error:
            raise ImportError(f"EDGE_OPS_TUNING: {error}") from error


def _grains(path: Path) -> Dict[str, int]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    top = _table(path, "the file", content, ("edge_ops_tuning", "cpu"), optional=("measured",))
    if top["edge_ops_tuning"] != VERSION:
        raise ValueError(f"{path}: edge_ops_tuning must be {VERSION}, got {top['edge_ops_tuning']!r}")
    cpu = _table(path, "cpu", top["cpu"], ("grains",))
    grains = _table(path, "cpu.grains", cpu["grains"], GRAINS)
    for name, value in grains.items():
        if type(value) is not int or not 1 <= value <= _LARGEST:
            raise ValueError(f"{path}: cpu.grains.{name} must be an integer from 1 to 2**62, got {value!r}")
    return grains


def _table(path: Path, name: str, value: Any, keys: "tuple[str, ...]", optional: "tuple[str, ...]" = ()) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"{path}: {name} must be an object, got {type(value).__name__}")
    missing = [key for key in keys if key not in value]
    if missing:
        raise ValueError(f"{path}: {name} lacks {missing[0]}")
    unknown = [key for key in value if key not in (*keys, *optional)]
    if unknown:
        raise ValueError(f"{path}: {name} has {unknown[0]}, which is unknown; it can have {', '.join(keys + optional)}")
    return value
