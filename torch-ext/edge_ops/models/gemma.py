"""Gemma 2 and the text models of Gemma 3: norms with 1 + w, sandwich layers, gated GELU."""

from .layers import sandwich_layer_forward
from .plan import NormStyle, Plan, Stack

_GEMMA2 = Stack(
    "Gemma2",
    NormStyle("eps", weight_offset=1.0, promotes=False),
    attention_record={"options": (("sliding_window", "sliding_window"), ("softcap", "attn_logit_softcapping"))},
    layer=sandwich_layer_forward,
    layer_record={
        "norms": (
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        )
    },
)

STACKS = {
    "Gemma2Model": _GEMMA2,
    "Gemma3TextModel": _GEMMA2._replace(
        prefix="Gemma3",
        attention_record={"norms": ("q_norm", "k_norm"), "options": (("sliding_window", "sliding_window"),)},
        attention_norms=("q_norm", "k_norm"),
        attention_operator="fused_qk_norm_rope",
    ),
}


def patch_decoder(plan: Plan) -> None:
    """Patches one of the decoders in `STACKS`."""
    plan.stack(STACKS[type(plan.decoder).__name__])
