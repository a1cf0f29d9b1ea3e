"""Whether anything that a patched decoder relies on has changed since the last run.

A user may hook, wrap, move or replace any module between two tokens. Asking each of a few hundred modules in Python
costs as much as the operators do; comparing what was noted down with what is there now costs a few loops in C.
"""

from itertools import chain
from operator import getitem, is_, itemgetter
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

_TRAINING, _FORWARD = itemgetter("training"), itemgetter("forward")
_ADDRESS = Tensor.data_ptr
_SETTINGS = ("variance_epsilon", "eps")  # of norms, by the names that transformers has for them


class Watched(NamedTuple):
    """What decides whether a layer's step still is right."""

    layer: nn.Module
    bypassed: List[nn.Module]  # whose work is done without calling them, and the layer: everything about them
    makers: List[nn.Module]  # whose output is overwritten: their hooks
    inside: List[Tuple[nn.Module, str]]  # a module and the name of one of `makers` in it


class Snapshot:
    """The state of some modules: their hooks, forwards, mode, children, parameters and norm settings.

    Args:
        layers: what to watch of each layer; in evaluation mode and without hooks.
        stream: dtype of the residual stream that goes with it.
    """

    def __init__(self, layers: Sequence[Watched], stream: torch.dtype) -> None:
        self._stream = stream
        bypassed = list({id(module): module for layer in layers for module in layer.bypassed}.values())
        self._states: List[Dict[str, Any]] = [module.__dict__ for module in bypassed]
        makers = [module.__dict__["_forward_hooks"] for layer in layers for module in layer.makers]
        names = ("_forward_hooks", "_forward_pre_hooks")
        self._hooks = [*makers, *(state[name] for state in self._states for name in names)]
        self._handles = -1  # how many handles of hooks there were when nobody watched: every registration makes one
        self._layers = [layer.layer.__dict__ for layer in layers]
        # accelerate's hooks, and a wrapped forward where there was none, are new entries of a module's dictionary.
        self._size = sum(map(len, self._states))
        self._bound = [state for state in self._states if "forward" in state]
        self._forwards = list(map(_FORWARD, self._bound))
        self._child_dicts = [state["_modules"] for state in self._states if state["_modules"]]
        self._children = list(chain.from_iterable(map(dict.values, self._child_dicts)))
        inside = [pair for layer in layers for pair in layer.inside]
        self._outer, self._names = [module.__dict__["_modules"] for module, _ in inside], [name for _, name in inside]
        self._inner = list(map(dict.get, self._outer, self._names))
        self._parameter_dicts = [state["_parameters"] for state in self._states if state["_parameters"]]
        self._parameters = list(chain.from_iterable(map(dict.values, self._parameter_dicts)))
        # A move to another device or dtype keeps the parameter and changes where its data lies.
        self._weights = [parameter for parameter in self._parameters if parameter is not None]
        self._addresses = list(map(_ADDRESS, self._weights))
        settings = [(state, name) for state in self._states for name in _SETTINGS if name in state]
        self._set, self._keys = [state for state, _ in settings], [name for _, name in settings]
        self._values = list(map(getitem, self._set, self._keys))

    def holds(self, stream: torch.dtype) -> bool:
        """Whether all of it is as it was."""
        return (
            stream is self._stream
            and self._unhooked()
            and sum(map(len, self._states)) == self._size
            and not any(map(_TRAINING, self._layers))
            and _same(map(_FORWARD, self._bound), self._forwards)
            and _same(chain.from_iterable(map(dict.values, self._child_dicts)), self._children)
            and _same(map(dict.get, self._outer, self._names), self._inner)
            and _same(chain.from_iterable(map(dict.values, self._parameter_dicts)), self._parameters)
            and list(map(_ADDRESS, self._weights)) == self._addresses
            and list(map(getitem, self._set, self._keys)) == self._values
        )

    def _unhooked(self) -> bool:
        handles = getattr(RemovableHandle, "next_id", None)
        if handles is None or handles != self._handles:
            if any(self._hooks):
                return False
            self._handles = -1 if handles is None else handles
        return True


def _same(now: Any, before: List[Any]) -> bool:
    return all(map(is_, now, before))
