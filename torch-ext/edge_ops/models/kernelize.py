"""Names the layers of transformers models for `kernels.kernelize`, whichever versions of the two are installed.

transformers decorates its modules for one range of `kernels` versions only. Outside of it the decorators do nothing,
and ``kernelize`` then replaces nothing and says nothing. `register_layers` gives the modules their names itself.
"""

import inspect
from typing import Any, Dict, List, Optional

from .mlp import product_of

LAYERS = ("RMSNorm", "RMSNormZeroCentered", "rotary_pos_emb", "SiLU", "GeluTanh", "SwiGLUMLP", "GeGLUMLP")


def register_layers(modeling: Any) -> Dict[str, List[str]]:
    """Names the norms, MLPs, activations and rotation of a modeling file for `kernelize`; before a model is made.

    The names hold for the process and for every model of these classes that is made afterwards.

    Args:
        modeling: the module, such as ``transformers.models.qwen3.modeling_qwen3``.

    Returns:
        Layer name -> what in transformers has that name now.

    Raises:
        ImportError: `kernels` is not installed.
        ValueError: nothing in the module has a layer.
    """
    from kernels import replace_kernel_forward_from_hub, use_kernel_forward_from_hub, use_kernelized_func
    from transformers import activations

    named: Dict[str, List[str]] = {}
    classes = [cls for cls in vars(modeling).values() if inspect.isclass(cls) and cls.__module__ == modeling.__name__]
    for cls in classes:
        layer = _layer_of(cls)
        if layer is not None:
            condition = {"SwiGLUMLP": _is_swiglu, "GeGLUMLP": _is_geglu}.get(layer)
            replace_kernel_forward_from_hub(cls, layer, condition)
            named.setdefault(layer, []).append(cls.__name__)
    rotation = getattr(modeling, "apply_rotary_pos_emb", None)
    attentions = [cls for cls in classes if cls.__name__.endswith("Attention")]
    if rotation is not None and attentions:
        if not hasattr(rotation, "kernel_layer_name") and _rotates_halves(modeling):
            rotation = modeling.apply_rotary_pos_emb = use_kernel_forward_from_hub("rotary_pos_emb")(rotation)
            for cls in attentions:
                use_kernelized_func(rotation)(cls)
        if hasattr(rotation, "kernel_layer_name"):
            named[rotation.kernel_layer_name] = ["apply_rotary_pos_emb"]
    if not named:
        raise ValueError(f"modeling must be a transformers modeling module with layers to name, got {modeling!r}")
    for layer, name in (("SiLU", "SiLUActivation"), ("GeluTanh", "GELUTanh")):
        replace_kernel_forward_from_hub(getattr(activations, name), layer)
        named[layer] = [name]
    return named


def _layer_of(cls: Any) -> Optional[str]:
    """The layer that computes what a class does, read from its own source; None where none does."""
    if cls.__name__.endswith("RMSNorm"):
        source = inspect.getsource(cls.forward)
        if "1.0 + self.weight" in source and "self.eps" in inspect.getsource(cls):
            return "RMSNormZeroCentered"
        return "RMSNorm" if "self.variance_epsilon" in source and "self.weight *" in source else None
    if cls.__name__.endswith("MLP"):
        if "self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))" in inspect.getsource(cls.forward):
            return "GeGLUMLP" if "config.hidden_activation" in inspect.getsource(cls.__init__) else "SwiGLUMLP"
    return None


# Which activation an MLP has is its configuration's choice, so each instance is asked.
def _is_swiglu(mlp: Any) -> bool:
    return product_of(mlp.act_fn) == "silu_and_mul"


def _is_geglu(mlp: Any) -> bool:
    return product_of(mlp.act_fn) == "gelu_tanh_and_mul"


def _rotates_halves(modeling: Any) -> bool:
    """Whether apply_rotary_pos_emb takes (q, k, cos, sin, unsqueeze_dim) and turns halves, not neighbours."""
    parameters = list(inspect.signature(modeling.apply_rotary_pos_emb).parameters)
    halves = "x.shape[-1] // 2" in inspect.getsource(modeling.rotate_half)
    return parameters == ["q", "k", "cos", "sin", "unsqueeze_dim"] and halves
