"""LFM2: attention layers between short convolutions, norms on query and key."""

from typing import Any, Dict

from .llama import NORM
from .plan import Plan, Stack

_NORMS = ("operator_norm", "ffn_norm")
_MLP = ("feed_forward", "w2")


def convolution_arguments(kwargs: Dict[str, Any]) -> Dict[str, Any]:
    """What Lfm2DecoderLayer passes on to a short convolution."""
    return {name: value for name, value in kwargs.items() if name not in ("position_embeddings", "position_ids")}


def patch_decoder(plan: Plan) -> None:
    """Patches an Lfm2Model."""
    plan.stack(
        Stack(
            "Lfm2",
            NORM,
            attention_record={
                "projections": ("q_proj", "k_proj", "v_proj", "out_proj"),
                "norms": ("q_layernorm", "k_layernorm"),
            },
            attention_norms=("q_layernorm", "k_layernorm"),
            attention_operator="fused_qk_norm_rope",
            layer_record={"mixer": ("self_attn", "out_proj"), "mlp": _MLP, "norms": _NORMS},
            other_mixers=({"mixer": ("conv", "out_proj"), "adapt": convolution_arguments},),
            mlp_projections=("w1", "w3", "w2"),
            activation=None,
            first_norm="operator_norm",
            final_norm="embedding_norm",
        )
    )
