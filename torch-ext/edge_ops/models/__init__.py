"""Runs the seams of a transformers model (norms, rotation, gated products, residual adds) on the operators.

`patch` finds the decoders inside a model by their class and changes the forwards of their modules; weights,
classes and everything else stay as they are. `unpatch` puts the forwards back.
"""

from importlib import import_module
from typing import Dict, List, Tuple

from torch import nn

from .binding import is_bound, unbind
from .plan import Plan
from .report import Kept, Replaced, Report

__all__ = ["Kept", "Replaced", "Report", "families", "is_patched", "patch", "unpatch"]

# Class of the decoder (the stack of layers) -> module of this package with its `patch_decoder`.
_FAMILIES: Dict[str, str] = {
    "LlamaModel": "llama",
    "Qwen2Model": "llama",
    "SmolLM3Model": "llama",
    "GraniteModel": "llama",
    "Qwen3Model": "qwen3",
    "Qwen3MoeModel": "qwen3",
    "Qwen3_5TextModel": "qwen3",
    "Qwen3_5MoeTextModel": "qwen3",
    "Gemma2Model": "gemma",
    "Gemma3TextModel": "gemma",
    "Gemma3nTextModel": "gemma4",
    "Gemma4TextModel": "gemma4",
    "Phi3Model": "phi3",
    "Lfm2Model": "lfm2",
    "Olmo2Model": "olmo",
    "Olmo3Model": "olmo",
    "Glm4Model": "glm",
}


def families() -> Tuple[str, ...]:
    """The decoder classes of transformers that `patch` knows."""
    return tuple(_FAMILIES)


def patch(model: nn.Module, *, merge_gate_up: bool = True) -> Report:
    """Replaces the seams of a transformers model by the operators, in place, for inference.

    Args:
        model: a model that contains a decoder of a known class (`families`): ``LlamaForCausalLM``, for example, or
            the decoder itself, or a model with adapters or hooks around it. May be in training mode: a call in
            training mode, or with grad mode on, runs the model's own code, so decode in ``model.eval()`` under
            ``torch.no_grad()`` or ``torch.inference_mode()``, as ``generate`` does.
        merge_gate_up: lay the weights of an MLP's gate and up projections behind each other, so that one product
            serves both. The parameters stay, as views of that memory. Done only for plain linear layers on the CPU
            whose one product was found to have the bits of two, at the thread count of this call.

    Returns:
        A `Report`: what was replaced by what, and what was left and why.

    Raises:
        TypeError: model is not a ``torch.nn.Module``.
        ValueError: model is patched already, contains no decoder that is known, or nothing in it could be replaced.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if is_patched(model):
        raise ValueError("model is patched already: edge_ops.unpatch(model) first")
    decoders = _decoders(model)
    if not decoders:
        raise ValueError(
            f"model must contain a decoder of a known class, got {type(model).__name__}; "
            f"known are {', '.join(sorted(_FAMILIES))}"
        )
    report = Report()
    for name, decoder in decoders:
        family = import_module(f".{_FAMILIES[type(decoder).__name__]}", __name__)
        family.patch_decoder(Plan(decoder, name, report, merge_gate_up))
    if not report.replaced:
        unpatch(model)
        raise ValueError(f"nothing in this {type(model).__name__} could be replaced:\n{report}")
    return report


def _decoders(model: nn.Module) -> List[Tuple[str, nn.Module]]:
    return [
        (name, module)
        for name, module in model.named_modules()
        if type(module).__name__ in _FAMILIES and type(module).__module__.startswith("transformers.models.")
    ]


def is_patched(model: nn.Module) -> bool:
    """Whether some module of `model` runs a forward of this package."""
    return any(is_bound(module) for module in model.modules())


def unpatch(model: nn.Module) -> None:
    """Gives every module of a patched model its own forward back.

    Args:
        model: a model that `patch` has changed, or a copy of one.

    Raises:
        TypeError: model is not a ``torch.nn.Module``.
        ValueError: model is not patched.
        RuntimeError: something has wrapped a patched forward since.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    bound = [module for module in model.modules() if is_bound(module)]
    if not bound:
        raise ValueError("model must be one that edge_ops.patch has changed")
    for module in bound:
        unbind(module)
