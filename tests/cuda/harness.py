"""The kernels of csrc/cuda on torch tensors, with a plan of the caller's choice: `harness.cu` through ctypes.

The library is compiled with nvcc when it is first asked for and kept below build/. `EDGE_OPS_CUDA_HARNESS` names one
that is already there.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Dict, NamedTuple, Optional

import torch

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("csrc/ops/tensor.cpp", "csrc/ops/ops.cpp", "csrc/cuda/*.cu", "tests/cuda/harness.cu")
FLAGS = ("-std=c++17", "-O3", "-fmad=false", "-cudart=static", "-shared", "-Xcompiler=-fPIC,-fvisibility=hidden")

_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int32: 3, torch.int64: 4}
_MAX_RANK = 8


class Plan(NamedTuple):
    """edge_ops::cuda::Plan."""

    kernel: int  # REGISTERS, LANES or ANY
    elements: int
    repeats: int
    threads: int
    dependent: int  # NEVER, ALWAYS or IN_CHAINS


REGISTERS, LANES, ANY = range(3)
NEVER, ALWAYS, IN_CHAINS = range(3)


class _Plan(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_uint8),
        ("elements", ctypes.c_int),
        ("repeats", ctypes.c_int),
        ("threads", ctypes.c_int),
        ("dependent", ctypes.c_uint8),
    ]


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_uint8), ("index", ctypes.c_int32)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("shape", ctypes.c_int64 * _MAX_RANK),
        ("stride", ctypes.c_int64 * _MAX_RANK),
        ("rank", ctypes.c_int32),
        ("dtype", ctypes.c_uint8),
        ("device", _Device),
    ]

    @classmethod
    def of(cls, tensor: Optional[torch.Tensor]) -> _Tensor:
        view = cls(rank=-1, dtype=5)
        if tensor is None:
            return view
        view.data = tensor.data_ptr()
        view.rank = tensor.dim()
        view.shape[: view.rank] = tensor.shape
        view.stride[: view.rank] = tensor.stride()
        view.dtype = _DTYPES[tensor.dtype]
        view.device = _Device(1, tensor.device.index)
        return view


class _RmsNorm(ctypes.Structure):
    _fields_ = [
        ("x", _Tensor), ("weight", _Tensor), ("out", _Tensor), ("eps", ctypes.c_float), ("offset", ctypes.c_float),
    ]  # fmt: skip


class _FusedAddRmsNorm(ctypes.Structure):
    _fields_ = [
        ("x", _Tensor), ("residual", _Tensor), ("weight", _Tensor), ("eps", ctypes.c_float), ("offset", ctypes.c_float),
    ]  # fmt: skip


class _GatedActivation(ctypes.Structure):
    _fields_ = [("x", _Tensor), ("out", _Tensor), ("gate", ctypes.c_uint8)]


class _Heads(ctypes.Structure):
    _fields_ = [("input", _Tensor), ("output", _Tensor), ("weight", _Tensor)]


class _QkRope(ctypes.Structure):
    _fields_ = [
        ("positions", _Tensor),
        ("cache", _Tensor),
        ("query", _Heads),
        ("key", _Heads),
        ("eps", ctypes.c_float),
        ("offset", ctypes.c_float),
        ("normalize", ctypes.c_bool),
        ("interleaved", ctypes.c_bool),
        ("round_normalized", ctypes.c_bool),
    ]


def missing() -> Optional[str]:
    """Why the harness cannot run here, or None."""
    if not torch.cuda.is_available():
        return "no CUDA device"
    if "EDGE_OPS_CUDA_HARNESS" not in os.environ and shutil.which("nvcc") is None:
        return "no nvcc and no EDGE_OPS_CUDA_HARNESS"
    return None


def build(output: Path, architectures: str = "native") -> Path:
    """Compiles the harness; `architectures` as nvcc's -arch takes it."""
    sources = [str(path) for pattern in SOURCES for path in sorted(ROOT.glob(pattern))]
    output.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["nvcc", *FLAGS, f"-arch={architectures}", "-o", str(output), *sources], check=True)
    return output


@functools.cache
def library() -> ctypes.CDLL:
    path = os.environ.get("EDGE_OPS_CUDA_HARNESS")
    if path is None:
        digest = hashlib.sha256()
        for source in sorted((*ROOT.glob("csrc/**/*"), *ROOT.glob("tests/cuda/harness.cu"))):
            if source.is_file():
                digest.update(source.read_bytes())
        built = ROOT / "build" / "cuda-harness" / f"{digest.hexdigest()[:16]}.so"
        path = str(built if built.exists() else build(built))
    loaded = ctypes.CDLL(path)
    for name in ("rms_norm", "fused_add_rms_norm", "gated_activation", "qk_rope"):
        function = getattr(loaded, f"run_{name}")
        function.restype = ctypes.c_char_p
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    loaded.run_nothing.restype = ctypes.c_char_p
    loaded.run_nothing.argtypes = [ctypes.c_bool, ctypes.c_int, ctypes.c_void_p]
    loaded.count_programmatic_edges.restype = ctypes.c_int64
    loaded.count_programmatic_edges.argtypes = [ctypes.c_void_p]
    loaded.run_count_wrong_inverses.restype = ctypes.c_char_p
    loaded.run_count_wrong_inverses.argtypes = [
        ctypes.c_uint32, ctypes.c_uint32, ctypes.c_float, ctypes.c_float, ctypes.c_void_p, ctypes.c_void_p,
    ]  # fmt: skip
    return loaded


class Prepared:
    """An operator with its arguments, ready to be launched again and again."""

    def __init__(self, name: str, record: ctypes.Structure, *tensors: Optional[torch.Tensor]) -> None:
        self._record, self._tensors = record, tensors  # the record alone would not keep their memory
        self._device = next(tensor.device.index for tensor in tensors if tensor is not None)
        self._run, self._plan = getattr(library(), f"run_{name}"), getattr(library(), f"plan_{name}")

    def plan(self) -> Plan:
        """The plan that the operator chooses by itself."""
        plan = _Plan()
        self._plan(ctypes.byref(self._record), ctypes.byref(plan))
        return Plan(plan.kernel, plan.elements, plan.repeats, plan.threads, plan.dependent)

    def __call__(self, plan: Optional[Plan] = None) -> None:
        """Launches on the current stream.

        Raises:
            RuntimeError: the plan does not fit, or the launch failed.
        """
        stream = torch.cuda.current_stream(self._device).cuda_stream
        given = None if plan is None else ctypes.byref(_Plan(*plan))
        problem = self._run(ctypes.byref(self._record), given, self._device, stream)
        if problem is not None:
            raise RuntimeError(problem.decode())


def rms_norm(x, weight, eps=1e-6, *, weight_offset=0.0, out):
    of = _Tensor.of
    record = _RmsNorm(of(x), of(weight), of(out), eps, weight_offset)
    return Prepared("rms_norm", record, x, weight, out)


def fused_add_rms_norm(x, residual, weight, eps=1e-6, *, weight_offset=0.0):
    of = _Tensor.of
    record = _FusedAddRmsNorm(of(x), of(residual), of(weight), eps, weight_offset)
    return Prepared("fused_add_rms_norm", record, x, residual, weight)


def gated_activation(gate: str, x, *, out):
    record = _GatedActivation(_Tensor.of(x), _Tensor.of(out), ("silu_and_mul", "gelu_tanh_and_mul").index(gate))
    return Prepared("gated_activation", record, x, out)


def qk_rope(
    positions, query, key, q_weight, k_weight, cos_sin_cache, eps=1e-6, *, weight_offset=0.0, normalize=True,
    interleaved=False, round_normalized=True, query_out=None, key_out=None,
):  # fmt: skip
    def heads(tensor, out, weight):
        return _Heads(_Tensor.of(tensor), _Tensor.of(tensor if out is None else out), _Tensor.of(weight))

    record = _QkRope(
        _Tensor.of(positions), _Tensor.of(cos_sin_cache), heads(query, query_out, q_weight),
        heads(key, key_out, k_weight), eps, weight_offset, normalize, interleaved, round_normalized,
    )  # fmt: skip
    tensors = (positions, query, key, q_weight, k_weight, cos_sin_cache, query_out, key_out)
    return Prepared("qk_rope", record, *tensors)


def nothing(dependent: bool = False) -> None:
    """Launches an empty kernel on the current stream."""
    device = torch.cuda.current_device()
    problem = library().run_nothing(dependent, device, torch.cuda.current_stream(device).cuda_stream)
    if problem is not None:
        raise RuntimeError(problem.decode())


def programmatic_edges(graph: torch.cuda.CUDAGraph) -> int:
    """How many edges of a graph (made with `keep_graph=True`) let their second kernel start early."""
    return int(library().count_programmatic_edges(graph.raw_cuda_graph()))


def wrong_inverses(first: int, count: int, n: int, eps: float) -> int:
    """For how many of the sums of squares with bits first, first + 1, ... the quick 1 / rms is not the exact one."""
    wrong = torch.zeros(1, dtype=torch.int64, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    problem = library().run_count_wrong_inverses(first, count, n, eps, wrong.data_ptr(), stream)
    if problem is not None:
        raise RuntimeError(problem.decode())
    return int(wrong)


def plans(operator: str) -> Dict[str, Plan]:
    """Every plan that an operator's routes may choose, by a short name; not every one fits every shape."""
    found = {"any": Plan(ANY, 1, 1, 0, True)}
    if operator in ("rms_norm", "fused_add_rms_norm"):
        for threads in (32, 128, 256):
            found[f"lanes-{threads}"] = Plan(LANES, 8, 1, threads, True)
        for chunks in (1, 2, 4):
            found[f"chunks-{chunks}"] = Plan(REGISTERS, 8, chunks, 0, chunks % 2 == 0)
    elif operator in ("silu_and_mul", "gelu_tanh_and_mul"):
        for elements, repeats in ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2)):
            found[f"{elements}x{repeats}"] = Plan(REGISTERS, elements, repeats, 64 * elements, elements > 2)
    else:
        rotation, fused = ((4, 1), (4, 2), (4, 4)), ((4, 1), (8, 1), (8, 2), (8, 4))
        for elements, repeats in rotation if operator == "rotary_embedding" else fused:
            found[f"{elements}x{repeats}"] = Plan(REGISTERS, elements, repeats, 32 << repeats, elements == 4)
    return found
