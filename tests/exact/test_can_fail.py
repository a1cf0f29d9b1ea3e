"""The exact comparison notices the smallest faults: without this, every green test above it means little."""

import numpy as np
import pytest
import torch

from support import calls, contract
from support.memory import place
from support.routes import ROUTES
from support.values import to_numpy

PUBLIC = ROUTES["public"]
F = np.float32


def fused_multiply_add(a, b, c):
    """a * b + c with one rounding, as a contracting compiler would have it (exact in float64, but for ties)."""
    return (np.asarray(a, np.float64) * np.asarray(b, np.float64) + np.asarray(c, np.float64)).astype(F)


def rejects(call, route):
    with pytest.raises(AssertionError, match="differ from the contract"):
        call.check(route)
    return True


@pytest.mark.parametrize("op", ("rotary_embedding", "fused_qk_norm_rope"))
@pytest.mark.parametrize("side", ("cos", "sin"))
def test_an_angle_off_by_one_in_a_million(rng, op, side):
    def perturbed(**arguments):
        cache = arguments["cos_sin_cache"].clone()
        half = cache.shape[1] // 2
        part = cache[:, :half] if side == "cos" else cache[:, half:]
        part.mul_(1 + 1e-6)
        returned = PUBLIC[op](**{**arguments, "cos_sin_cache": cache})
        return returned

    assert rejects(calls.BUILDERS[op](rng, max_position=5), perturbed)
    calls.BUILDERS[op](rng, max_position=5).check(PUBLIC[op])


@pytest.mark.parametrize("interleaved", (False, True))
def test_a_contracted_rotation(rng, monkeypatch, interleaved):
    def contracted(heads, cos, sin, interleaved):
        half = cos.shape[-1]
        first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
        second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
        a, b, turned = heads[..., first], heads[..., second], heads.copy()
        turned[..., first] = fused_multiply_add(a, cos, -(b * sin))
        turned[..., second] = fused_multiply_add(b, cos, a * sin)
        return turned

    monkeypatch.setattr(contract, "rotate", contracted)
    assert rejects(calls.rotary_embedding(rng, interleaved=interleaved), PUBLIC["rotary_embedding"])


@pytest.mark.parametrize("op", ("silu_and_mul", "gelu_tanh_and_mul"))
def test_one_contracted_step_of_the_exponential(rng, monkeypatch, op):
    def contracted(coefficients, x):
        value = F(coefficients[0])
        for c in coefficients[1:-1]:
            value = value * x + F(c)
        return fused_multiply_add(value, x, F(coefficients[-1]))  # the last of five

    monkeypatch.setattr(contract, "polynomial", contracted)
    # the final rounding hides most of it: enough gates that some show
    assert rejects(calls.gated(op, rng, (64, 4096)), PUBLIC[op])


def test_a_contracted_sum_of_squares(rng, monkeypatch):
    def contracted(rows):
        squares = np.square(rows[:, :256].astype(F))
        low, high = squares[:, :128], rows[:, 128:256]
        tree = fused_multiply_add(high, high, low)  # the first level of the tree only
        while tree.shape[1] > 1:
            tree = tree[:, : tree.shape[1] // 2] + tree[:, tree.shape[1] // 2 :]
        return tree[:, 0]

    monkeypatch.setattr(contract, "sum_of_squares", contracted)
    assert rejects(calls.rms_norm(rng, (32, 256)), PUBLIC["rms_norm"])


def test_another_order_of_the_sum(rng, monkeypatch):
    monkeypatch.setattr(contract, "sum_of_squares", lambda rows: np.square(rows).sum(axis=1, dtype=F))
    assert rejects(calls.rms_norm(rng, (32, 1024)), PUBLIC["rms_norm"])


def test_chunk_sums_added_one_after_the_other(rng, monkeypatch):
    def sequential(rows):
        total = np.zeros(len(rows), F)
        for begin in range(0, rows.shape[1], 256):
            chunk = np.square(rows[:, begin : begin + 256])
            while chunk.shape[1] > 1:
                chunk = chunk[:, : chunk.shape[1] // 2] + chunk[:, chunk.shape[1] // 2 :]
            total = total + chunk[:, 0]
        return total

    monkeypatch.setattr(contract, "sum_of_squares", sequential)
    assert rejects(calls.rms_norm(rng, (32, 1280)), PUBLIC["rms_norm"])


def test_a_reciprocal_root_estimate(rng):
    def estimate(x, weight, **_):
        return (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)) * weight

    assert rejects(calls.rms_norm(rng, (64, 300)), estimate)


@pytest.mark.parametrize("dtype", ("bf16", "f16"))
def test_an_extra_rounding(rng, dtype):
    def eager(x, weight, **_):  # the normalized row is rounded before the weight comes in
        normed = x.float() * (1 / torch.sqrt(x.float().square().mean(-1, keepdim=True) + 1e-6))
        return normed.to(x.dtype) * weight

    assert rejects(calls.rms_norm(rng, (64, 300), dtype), eager)


def test_the_other_seam(rng):
    call = calls.fused_qk_norm_rope(rng, (40,), dtype="bf16", round_normalized=True)
    call.arguments["round_normalized"] = False
    assert rejects(call, PUBLIC["fused_qk_norm_rope"])


def test_a_lost_sign_of_zero(rng):
    assert rejects(
        calls.gated("silu_and_mul", rng, (4, 64), kind="zeros"), lambda x, out: PUBLIC["silu_and_mul"](x) + 0
    )


def test_flushed_subnormals(rng):
    def flushing(x, weight, eps, **_):
        result = PUBLIC["rms_norm"](x, weight, eps)
        return torch.where(result.abs() < torch.finfo(torch.float32).tiny, torch.zeros_like(result), result)

    # tiny rows under an enormous eps: the results lie below the smallest normal number
    call = calls.rms_norm(rng, (4, 64), weight=None, eps=1e30)
    x = call.arguments["x"].mul_(1e-24)
    call.expected["result"] = contract.rms_norm(to_numpy(x), None, 1e30, 0.0, "f32")
    assert (np.abs(call.expected["result"]) < np.finfo(F).tiny).any()
    call.check(PUBLIC["rms_norm"])
    assert rejects(call, flushing)


def test_a_write_outside_the_result(rng):
    call = calls.rms_norm(rng, (4, 30), out="apart", out_layout="column slice")

    def careless(out, **arguments):
        PUBLIC["rms_norm"](out=out, **arguments)
        out.as_strided((1,), (1,), out.storage_offset() + 30).zero_()
        return out

    with pytest.raises(AssertionError, match="memory outside the results changed"):
        call.check(careless)


def test_a_read_outside_the_tensor():
    view = place(np.ones((2, 30), F), torch.float32, "column slice").view
    assert torch.isnan(view.as_strided((2, 31), view.stride())).any(), "what lies beside a tensor spoils a result"
