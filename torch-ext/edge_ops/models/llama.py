"""Llama, SmolLM2 (a Llama), Qwen 2.5, SmolLM3, Granite: pre-norm layers, query and key rotated, gated SiLU."""

from .plan import NormStyle, Plan, Stack

# transformers' ``weight * x.to(dtype)`` rounds before the weight too; the operator rounds once.
NORM = NormStyle("variance_epsilon")

_SLIDING = (("sliding_window", "sliding_window"),)

STACKS = {
    "LlamaModel": Stack("Llama", NORM),
    "Qwen2Model": Stack("Qwen2", NORM, attention_record={"options": _SLIDING}),
    # Every fourth layer of SmolLM3 does not rotate.
    "SmolLM3Model": Stack("SmolLM3", NORM, attention_record={"options": _SLIDING, "rotates": "use_rope"}),
    "GraniteModel": Stack("Granite", NORM, layer_record={"scale": "residual_multiplier"}),
}


def patch_decoder(plan: Plan) -> None:
    """Patches one of the decoders in `STACKS`."""
    plan.stack(STACKS[type(plan.decoder).__name__])
