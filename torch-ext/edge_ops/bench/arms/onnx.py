"""ONNX Runtime's fused nodes, float32, with its inputs and outputs bound to the tensors' memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..problems import EPS, Problem
from .base import Call, NotInstalled, Prepare

CONTRIB = "com.microsoft"
FLOAT, INT64 = 1, 7  # onnx.TensorProto.DataType


def _session(nodes: Sequence[Any], inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Any:
    """A session of one graph, its binding ready to run."""
    import onnxruntime
    from onnx import helper

    def described(tensors: Mapping[str, Tensor]) -> list[Any]:
        return [
            helper.make_tensor_value_info(name, INT64 if t.dtype == torch.int64 else FLOAT, list(t.shape))
            for name, t in tensors.items()
        ]

    graph = helper.make_graph(list(nodes), "cell", described(inputs), described(outputs))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(CONTRIB, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    if torch.get_num_threads() == 1:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, tensor in inputs.items():
        kind = INT64 if tensor.dtype == torch.int64 else FLOAT
        binding.bind_input(name, "cpu", 0, kind, tuple(tensor.shape), tensor.data_ptr())
    for name, tensor in outputs.items():
        binding.bind_output(name, "cpu", 0, FLOAT, tuple(tensor.shape), tensor.data_ptr())
    return session, binding


def _call(nodes: Sequence[Any], inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor], results: Any) -> Call:
    session, binding = _session(nodes, inputs, outputs)
    names = {"run": session.run_with_iobinding, "binding": binding, "kept_alive": (inputs, outputs)}
    return Call("run(binding)", names, results)


def _node(
    operator: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = CONTRIB, **attributes: Any
) -> Any:
    from onnx import helper

    return helper.make_node(operator, list(inputs), list(outputs), domain=domain, **attributes)


def _float32(prepare: Prepare) -> Prepare:
    return lambda problem: prepare(problem) if problem.dtype == torch.float32 else None


@_float32
def _rms_norm(problem: Problem) -> Call:
    out = torch.empty_like(problem.inputs["x"])
    node = _node("SimplifiedLayerNormalization", ["x", "weight"], ["out"], "", axis=-1, epsilon=EPS)
    return _call([node], problem.inputs, {"out": out}, lambda _: (out,))


@_float32
def _fused_add_rms_norm(problem: Problem) -> Call:
    x = problem.inputs["x"]
    outputs = {"out": torch.empty_like(x), "total": torch.empty_like(x)}
    slots = ["out", "", "", "total"]
    node = _node("SkipSimplifiedLayerNormalization", ["x", "residual", "weight"], slots, epsilon=EPS)
    return _call([node], problem.inputs, outputs, lambda _: (outputs["out"], outputs["total"]))


def _gated(activation: str, **attributes: Any) -> Prepare:
    @_float32
    def prepare(problem: Problem) -> Call:
        x = problem.inputs["x"]
        out = x.new_empty(x.shape[0], x.shape[1] // 2)
        nodes = [
            _node("Split", ["x"], ["gate", "up"], "", axis=-1),
            _node(activation, ["gate"], ["active"], **attributes),
            _node("Mul", ["active", "up"], ["out"], ""),
        ]
        return _call(nodes, {"x": x}, {"out": out}, lambda _: (out,))

    return prepare


def _rotation(problem: Problem, query: str, key: str) -> tuple[list[Any], dict[str, Tensor], dict[str, Tensor]]:
    """A rotation node for the query and one for the key, of `[1, tokens, heads * head_size]` rows."""
    size = problem.cell.geometry
    cos, sin = (half.contiguous() for half in problem.inputs["cache"].chunk(2, -1))
    inputs = {"positions": problem.inputs["positions"][None], "cos": cos, "sin": sin}
    outputs = {}
    nodes = []
    for source, target, heads in ((query, "query_out", size.query_heads), (key, "key_out", size.key_heads)):
        attributes: dict[str, Any] = {"num_heads": heads, "rotary_embedding_dim": size.rotary_dim % size.head_size}
        nodes.append(_node("RotaryEmbedding", [source, "positions", "cos", "sin"], [target], **attributes))
        outputs[target] = torch.empty(1, problem.cell.tokens, heads * size.head_size)
    return nodes, inputs, outputs


def _head_results(problem: Problem, outputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    shape = (problem.cell.tokens, -1, problem.cell.geometry.head_size)
    return outputs["query_out"].view(shape), outputs["key_out"].view(shape)


@_float32
def _rotary_embedding(problem: Problem) -> Call:
    nodes, inputs, outputs = _rotation(problem, "query", "key")
    inputs |= {name: problem.inputs[name].reshape(1, problem.cell.tokens, -1) for name in ("query", "key")}
    return _call(nodes, inputs, outputs, lambda _: _head_results(problem, outputs))


@_float32
def _fused_qk_norm_rope(problem: Problem) -> Call:
    """Two norms over the heads, two rotations, and the reshapes between them."""
    nodes, inputs, outputs = _rotation(problem, "query_flat", "key_flat")
    for name, weight in (("query", "q_weight"), ("key", "k_weight")):
        inputs |= {name: problem.inputs[name], weight: problem.inputs[weight]}
        shape = torch.tensor([1, problem.cell.tokens, -1])
        inputs[f"{name}_shape"] = shape
        normed = f"{name}_normed"
        nodes[:0] = [
            _node("SimplifiedLayerNormalization", [name, weight], [normed], "", axis=-1, epsilon=EPS),
            _node("Reshape", [normed, f"{name}_shape"], [f"{name}_flat"], ""),
        ]
    return _call(nodes, inputs, outputs, lambda _: _head_results(problem, outputs))


class _OnnxRuntime:
    name = "onnxruntime"
    title = "ONNX Runtime's fused nodes, float32"
    devices = ("cpu",)
    calls: Mapping[str, Prepare] = {
        "rms_norm": _rms_norm,
        "fused_add_rms_norm": _fused_add_rms_norm,
        "silu_and_mul": _gated("QuickGelu", alpha=1.0),
        "gelu_tanh_and_mul": _gated("FastGelu"),
        "rotary_embedding": _rotary_embedding,
        "fused_qk_norm_rope": _fused_qk_norm_rope,
    }

    def load(self) -> str:
        try:
            import onnx  # noqa: F401
            import onnxruntime
        except ImportError as error:
            raise NotInstalled(f"{error} (pip install onnxruntime onnx)") from error
        return str(onnxruntime.__version__)


ARMS = (_OnnxRuntime(),)
