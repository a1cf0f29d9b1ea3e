"""GLM-4 (0414): sandwich layers, packed gate and up, neighbours rotated in half of each head."""

from .layers import sandwich_layer_forward
from .llama import NORM
from .mlp import packed_mlp_forward
from .plan import Plan, Stack


def patch_decoder(plan: Plan) -> None:
    """Patches a Glm4Model."""
    plan.stack(
        Stack(
            "Glm4",
            NORM,
            attention_record={"interleaved": True},
            layer=sandwich_layer_forward,
            layer_record={
                "norms": (
                    "input_layernorm",
                    "post_self_attn_layernorm",
                    "post_attention_layernorm",
                    "post_mlp_layernorm",
                )
            },
            mlp=packed_mlp_forward,
            packed=True,
            activation="activation_fn",
        )
    )
