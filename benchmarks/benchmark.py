"""`kernels benchmark`: each operator against the formula as models write it, at decode and prefill lengths.

    kernels benchmark ./dist/hub                  a layout that tools/build_hub.py made
    kernels benchmark <owner>/edge-ops --version 1

The runner times the reference once and does not interleave the two; `edge-ops bench` of the Python package does.
"""

import torch
from kernels.benchmark import Benchmark
from torch.nn import functional

HIDDEN, WIDTH, HEADS, KV_HEADS, HEAD_SIZE, POSITIONS = 1024, 3072, 16, 8, 128, 4096
EPS = 1e-6


def rms_norm(x, weight):
    """The norm of Llama's modeling file."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype)


def rotate(x, cos, sin):
    """Halves rotated, as `apply_rotary_pos_emb` does."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Operators:
    """The workloads; a benchmark gives the number of tokens. Not one itself: the runner takes every subclass."""

    seed = 0
    tokens = 0

    def setup(self):
        self.dtype = torch.bfloat16

        def random(*shape, scale=0.25):
            return torch.randn(shape, device=self.device, dtype=self.dtype) * scale

        self.x, self.residual = random(self.tokens, HIDDEN), random(self.tokens, HIDDEN)
        self.gate_up = random(self.tokens, 2 * WIDTH)
        self.query, self.key = random(self.tokens, HEADS, HEAD_SIZE), random(self.tokens, KV_HEADS, HEAD_SIZE)
        # small weights: one rounding of a bfloat16 result then stays within the runner's tolerance of 0.01
        self.weight, self.q_weight, self.k_weight = (
            random(size, scale=0.05) for size in (HIDDEN, HEAD_SIZE, HEAD_SIZE)
        )
        self.positions = torch.arange(self.tokens, device=self.device)
        self.cache = self.kernel.rope_cache(POSITIONS, HEAD_SIZE).to(self.device)
        cos, sin = self.cache[self.positions].chunk(2, dim=-1)
        self.cos, self.sin = (torch.cat((part, part), dim=-1)[:, None].to(self.dtype) for part in (cos, sin))

    def benchmark_rms_norm(self):
        self.out = self.kernel.rms_norm(self.x, self.weight, EPS)

    def verify_rms_norm(self):
        return rms_norm(self.x, self.weight)

    def benchmark_fused_add_rms_norm(self):
        # in place: onto copies, so that every call sees the same input
        self.out, _ = self.kernel.fused_add_rms_norm(self.x.clone(), self.residual.clone(), self.weight, EPS)

    def verify_fused_add_rms_norm(self):
        return rms_norm(self.x.clone() + self.residual.clone(), self.weight)

    def benchmark_silu_and_mul(self):
        self.out = self.kernel.silu_and_mul(self.gate_up)

    def verify_silu_and_mul(self):
        gate, up = self.gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up

    def benchmark_gelu_tanh_and_mul(self):
        self.out = self.kernel.gelu_tanh_and_mul(self.gate_up)

    def verify_gelu_tanh_and_mul(self):
        gate, up = self.gate_up.chunk(2, dim=-1)
        return functional.gelu(gate, approximate="tanh") * up

    def benchmark_fused_qk_norm_rope(self):
        self.out, _ = self.kernel.fused_qk_norm_rope(
            self.positions, self.query.clone(), self.key.clone(), self.q_weight, self.k_weight, self.cache, EPS
        )

    def verify_fused_qk_norm_rope(self):
        rotate(rms_norm(self.key.clone(), self.k_weight), self.cos, self.sin)
        return rotate(rms_norm(self.query.clone(), self.q_weight), self.cos, self.sin)


class Decode(Operators, Benchmark):
    """One token."""

    tokens = 1


class Prefill(Operators, Benchmark):
    """A short prompt."""

    tokens = 128
