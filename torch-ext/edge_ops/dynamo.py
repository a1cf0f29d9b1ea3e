"""Tells Dynamo to trace the Python form of an operator where a program calls the native function.

Importing torch._dynamo takes over a second, so the substitution waits until something else imports it:
no program that never compiles pays for it.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from typing import Any, Callable, List, Sequence, Tuple

_PENDING: List[Tuple[Callable[..., Any], Callable[..., Any]]] = []
_DYNAMO = "torch._dynamo"


def substitute(direct: Callable[..., Any], traced: Callable[..., Any]) -> None:
    """From now on Dynamo traces `traced` in place of `direct`."""
    if _DYNAMO in sys.modules and hasattr(sys.modules[_DYNAMO], "substitute_in_graph"):
        sys.modules[_DYNAMO].substitute_in_graph(direct)(traced)
        return
    if not _PENDING:
        sys.meta_path.insert(0, _AfterDynamo())
    _PENDING.append((direct, traced))


class _AfterDynamo(importlib.abc.MetaPathFinder):
    """Finds torch._dynamo as usual, and runs the pending substitutions once it has been executed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _DYNAMO:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """The loader it wraps, then the substitutions."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        pending: Sequence[Tuple[Callable[..., Any], Callable[..., Any]]] = tuple(_PENDING)
        _PENDING.clear()
        for direct, traced in pending:
            module.substitute_in_graph(direct)(traced)
