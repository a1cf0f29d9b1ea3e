"""Refuses a subinterpreter before torch is imported: a second import of torch in one process breaks the first one."""

import importlib
from typing import Any, Optional


def _interpreters() -> Optional[Any]:
    """CPython's own module on interpreters: one name from 3.13 on, another before."""
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


_module = _interpreters()
if _module is not None and _module.get_current() != _module.get_main():
    raise ImportError("edge_ops works in the main interpreter only, as torch does: this is a subinterpreter")
