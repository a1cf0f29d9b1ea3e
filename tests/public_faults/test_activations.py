"""Gated activations: faults that users of other libraries reported."""

import pytest
import torch

import edge_ops
from support import float64
from support.closeness import assert_near, framed, normal
from support.values import DEVICE, DTYPES

both = pytest.mark.parametrize("op", ("silu_and_mul", "gelu_tanh_and_mul"))
every_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)


@pytest.mark.reported(
    "flashinfer-ai/flashinfer#5013", "InternLM/lmdeploy#2506", "sgl-project/sglang#23087", "vllm-project/vllm#22145"
)
@both
@every_dtype
@pytest.mark.parametrize("d", (12, 4, 1, 7, 855, 352))
def test_halves_that_no_vector_divides(op, dtype, d):
    x = normal((3, 2 * d), dtype, d)
    out, intact = framed((3, d), dtype)
    getattr(edge_ops, op)(x, out=out)
    assert_near(out, getattr(float64, op)(x), atol=1e-6)
    assert intact(), "wrote outside the tensor"


@both
def test_an_odd_width_is_refused(op):
    with pytest.raises(ValueError, match="even last dimension"):
        getattr(edge_ops, op)(normal((2, 7), torch.bfloat16))


@pytest.mark.reported(
    "huggingface/kernels-community#76", "huggingface/kernels-community#106", "vllm-project/vllm#3324",
    "pytorch/pytorch#139006",
)  # fmt: skip
@both
@every_dtype
def test_slices_are_not_read_as_contiguous(op, dtype):
    columns = normal((5, 40), dtype, 5)[:, 6:22]
    assert_near(getattr(edge_ops, op)(columns), getattr(float64, op)(columns), atol=1e-6)
    rows = normal((6, 16), dtype, 6)[::2]
    assert_near(getattr(edge_ops, op)(rows), getattr(float64, op)(rows), atol=1e-6)


@pytest.mark.reported("pytorch/pytorch#186278", "intel/llm-scaler#484", "pytorch/executorch#22323", "antirez/ds4#498")
@both
@every_dtype
def test_large_gates_stay_finite(op, dtype):
    gates = [-3e4, -1000.0, -100.0, -40.0, -13.24, -11.0, 8.0, 10.5, 11.0, 15.5, 40.0, 100.0, 1000.0, 3e4]
    gate = torch.tensor([gates], dtype=dtype, device=DEVICE)
    x = torch.cat([gate, torch.full_like(gate, 1.5)], -1)
    got = getattr(edge_ops, op)(x)
    assert torch.isfinite(got).all()
    assert_near(got, getattr(float64, op)(x), 24.0 if dtype == torch.float32 else 2.0, atol=1e-6)


@pytest.mark.reported("NVIDIA-NeMo/Megatron-Bridge#4661", "chelsea0x3b/dfdx#804", "NVIDIA/TensorRT-LLM#10446")
def test_gelu_is_the_tanh_form():
    # the exact form differs in the fourth digit; these are the tanh form's values
    gate = torch.tensor([[-3.0, -2.0, -1.0, 1.0, 2.0, 3.0]], device=DEVICE)
    got = edge_ops.gelu_tanh_and_mul(torch.cat([gate, torch.ones_like(gate)], -1))
    want = [-0.003637392, -0.045402306, -0.158808009, 0.841191991, 1.954597694, 2.996362608]
    assert (float64.wide(got) - torch.tensor([want], dtype=torch.float64)).abs().max() < 2e-6
