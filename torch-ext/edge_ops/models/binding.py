"""How a module gets another forward and gets its own one back.

A patched module keeps its class. Its instance holds ``forward = functools.partial(function, module)`` with a
function of this package's module level, and ``_edge_ops``, a record of what the function needs. So a patched model
still pickles, deep-copies and saves, ``isinstance`` and class-name lookups hold, and every parameter stays.
"""

import functools
from typing import Any, Callable

import torch
from torch import nn

RECORD = "_edge_ops"

# accelerate's hooks move an instance's forward to this attribute and put their own in front of it.
_HOOKED = "_old_forward"

Forward = Callable[..., Any]


class Record:
    """What a replaced forward knows about its module; subclasses add what their function needs."""

    def release(self, module: nn.Module) -> None:
        """Undoes what the patch did to `module` beside its forward."""


def is_bound(module: nn.Module) -> bool:
    """Whether `module` runs a forward of this package."""
    return RECORD in module.__dict__


def runs_its_class(module: nn.Module) -> bool:
    """Whether the forward of `module` is its class's, apart from accelerate's hooks."""
    forward = module.__dict__.get(_slot(module))
    return forward is None or getattr(forward, "__func__", None) is type(module).forward


def _slot(module: nn.Module) -> str:
    return _HOOKED if _HOOKED in module.__dict__ else "forward"


def bind(module: nn.Module, function: Forward, record: Record) -> None:
    """Makes ``function(module, ...)`` the forward of a module that runs its class's."""
    module.__dict__[RECORD] = record
    module.__dict__[_slot(module)] = functools.partial(function, module)


def unbind(module: nn.Module) -> None:
    """Puts back what `bind` replaced.

    Raises:
        RuntimeError: something else has wrapped the forward since, so it cannot be taken out.
    """
    slot = _slot(module)
    if not _is_ours(module.__dict__.get(slot), module):
        raise RuntimeError(
            f"the forward of this {type(module).__name__} was wrapped after edge_ops.patch: "
            "remove the wrapper before edge_ops.unpatch"
        )
    module.__dict__.pop(RECORD).release(module)
    if slot == _HOOKED:
        module.__dict__[slot] = type(module).forward.__get__(module)
    else:
        del module.__dict__[slot]


def _is_ours(forward: Any, module: nn.Module) -> bool:
    return (
        isinstance(forward, functools.partial)
        and forward.func.__module__.startswith(__package__)
        and forward.args[:1] == (module,)
    )


def original(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Runs the forward of the module's class."""
    return type(module).forward(module, *args, **kwargs)


def eager_only(module: nn.Module) -> bool:
    """Whether a call must run the model's own code: training, or gradients may be wanted.

    The in-place operators have no gradient. Whether one of a model's parameters (or of its adapters') wants one
    cannot be asked cheaply on every call, so grad mode alone decides: decode under no_grad or inference_mode.
    """
    return module.training or torch.is_grad_enabled()
