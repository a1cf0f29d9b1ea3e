#!/usr/bin/env python3
"""Decode loops of whole models on a GPU: tokens a second and joules a token, patched beside unpatched.

    python tools/gpu_decode.py decode.json [--models qwen3-0.6b,gemma3-1b] [--arms eager,patched,...] [--dependent]
    python tools/gpu_decode.py decode.json --device cpu --models qwen3-tiny --seconds 0.1    # to try the program out

Random weights in the shape of the named model, batch 1, greedy, a prompt of 16 tokens. Arms (what is not installed is
left out, and the record says so):

    eager             the model as transformers has it, its usual growing cache, one call after the other
    liger             the same with Liger's kernels
    patched           the same after edge_ops.patch; patched_null is the same again: the noise
    graphs            a static cache, one step captured as a CUDA graph: the launches of Python cost nothing any more
    liger_graphs, patched_graphs, patched_graphs_null
    compiled          the same step through torch.compile, mode reduce-overhead
    patched_compiled

--dependent adds the patched step as a graph with programmatic dependent launch for no operator, for all, for each
alone, and as the operators choose by themselves (needs the harness of tests/cuda). Eager, Liger's and patched arms have
weights of their own with the same values. A window is whole runs of 128 tokens until its seconds are over; windows of
all arms take turns. Tiny models in float32 come first: every arm must give eager's tokens there.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Tuple

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT), str(ROOT / "tools")]

from gpu_energy import Energy  # noqa: E402
from gpu_timing import machine, turns, warm_up  # noqa: E402

import edge_ops  # noqa: E402
from edge_ops.models import attention, blocks, mlp  # noqa: E402

PROMPT, TOKENS, CAPACITY = 16, 128, 256

QWEN3 = dict(
    vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
    num_key_value_heads=8, head_dim=128, max_position_embeddings=40960, tie_word_embeddings=True,
    rope_parameters=dict(rope_type="default", rope_theta=1e6),
)  # fmt: skip
GEMMA3 = dict(
    vocab_size=262144, hidden_size=1152, intermediate_size=6912, num_hidden_layers=26, num_attention_heads=4,
    num_key_value_heads=1, head_dim=256, max_position_embeddings=32768, sliding_window=512, query_pre_attn_scalar=256,
)  # fmt: skip
TINY = dict(
    vocab_size=499, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32,
)  # fmt: skip

# Name -> (family, arguments of its configuration, dtype)
MODELS = {
    "qwen3-0.6b": ("qwen3", QWEN3, torch.bfloat16),
    "gemma3-1b": ("gemma3", GEMMA3, torch.bfloat16),
    "qwen3-tiny": ("qwen3", {**QWEN3, **TINY}, torch.float32),
    "gemma3-tiny": ("gemma3", {**GEMMA3, **TINY, "query_pre_attn_scalar": 32}, torch.float32),
}
FAMILIES = {
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", "apply_liger_kernel_to_qwen3", "swiglu"),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", "apply_liger_kernel_to_gemma3_text", "geglu"),
}
ARMS = (
    "eager", "liger", "patched", "patched_null", "graphs", "liger_graphs", "patched_graphs", "patched_graphs_null",
    "compiled", "patched_compiled",
)  # fmt: skip

# Of an operator: where the patched models take it from.
PLACES = {
    "rms_norm": (vars(blocks), "rms_norm"),
    "fused_add_rms_norm": (vars(blocks), "fused_add_rms_norm"),
    "silu_and_mul": (mlp.PRODUCTS, "silu_and_mul"),
    "gelu_tanh_and_mul": (mlp.PRODUCTS, "gelu_tanh_and_mul"),
    "fused_qk_norm_rope": (vars(attention), "fused_qk_norm_rope"),
}
USED = {
    "qwen3": ("rms_norm", "fused_add_rms_norm", "silu_and_mul", "fused_qk_norm_rope"),
    "gemma3": ("rms_norm", "fused_add_rms_norm", "gelu_tanh_and_mul", "fused_qk_norm_rope"),
}


def build(name: str, device: str) -> torch.nn.Module:
    """The model with random weights: scaled up from transformers' own, so that tokens depend on what came before."""
    import transformers

    family, arguments, dtype = MODELS[name]
    config_class, model_class = FAMILIES[family][:2]
    config = getattr(transformers, config_class)(**arguments)
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # rather than model.to(dtype), which would round the frequencies of the rotation
    try:
        with torch.device(device):
            model = getattr(transformers, model_class)(config)
    finally:
        torch.set_default_dtype(before)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Linear) and module is not model.get_output_embeddings():
                module.weight.mul_(3.0)
            elif module.__class__.__name__.endswith("RMSNorm"):
                module.weight.add_(0.1 * torch.randn_like(module.weight))
    return model.eval()


@contextlib.contextmanager
def replaced(values: Dict[str, Any], changes: Dict[str, Any]) -> Iterator[None]:
    """Other values under some keys of a dictionary (a module's, say), for the time of the block."""
    before = {key: values[key] for key in changes}
    values.update(changes)
    try:
        yield
    finally:
        values.update(before)


def use_liger(model: torch.nn.Module, family: str) -> Callable[[], ContextManager[None]]:
    """Applies Liger to one model. Its rotation is a global of the family's module: returned as a block to run in."""
    from liger_kernel.transformers import monkey_patch

    _, _, function, gated = FAMILIES[family]
    values = vars(sys.modules[type(model).__module__])
    before = dict(values)
    options = {gated: True, "rope": True, "rms_norm": True, "fused_linear_cross_entropy": False}
    getattr(monkey_patch, function)(model=model, **options)
    rotate = values["apply_rotary_pos_emb"]
    values.update(before)
    return lambda: replaced(values, {"apply_rotary_pos_emb": rotate})


class Growing:
    """The usual loop: the model's own cache, which grows, and no preparation."""

    def __init__(self, model: torch.nn.Module, prompt: torch.Tensor) -> None:
        self.model, self.prompt = model, prompt
        self.start()

    def start(self) -> None:
        out = self.model(self.prompt, use_cache=True, logits_to_keep=1)
        self.cache, self.token = out.past_key_values, out.logits[:, -1:].argmax(-1)

    rewind = start

    def step(self) -> None:
        out = self.model(self.token, past_key_values=self.cache, use_cache=True)
        self.token = out.logits[:, -1:].argmax(-1)


class Static:
    """A cache of fixed size: token and position are tensors that a step changes in place, so it can be captured."""

    def __init__(self, model: torch.nn.Module, prompt: torch.Tensor) -> None:
        from transformers.cache_utils import Cache, StaticLayer

        self.model, self.prompt = model, prompt
        # No layer's window is shorter than the capacity, so layers with and without a window need the same.
        layers = [StaticLayer(max_cache_len=CAPACITY) for _ in range(model.config.num_hidden_layers)]
        self.cache = Cache(layers=layers)
        self.kinds = sorted(set(getattr(model.config, "layer_types", None) or ["full_attention"]))
        self.columns = torch.arange(CAPACITY, device=prompt.device)
        self.token = torch.zeros(1, 1, dtype=torch.int64, device=prompt.device)
        self.position = torch.zeros(1, 1, dtype=torch.int64, device=prompt.device)
        for state in (self.token, self.position):
            torch._dynamo.mark_static_address(state)
        self.start()

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        mask = (self.columns <= positions[..., None])[:, None]
        out = self.model(
            tokens, position_ids=positions, attention_mask=dict.fromkeys(self.kinds, mask), use_cache=True,
            past_key_values=self.cache, logits_to_keep=1,
        )  # fmt: skip
        return out.logits[:, -1:].argmax(-1)

    def start(self) -> None:
        """Runs the prompt."""
        self.set_length(0)
        length = self.prompt.shape[1]
        self.token.copy_(self.forward(self.prompt, self.columns[None, :length]))
        self.position.fill_(length)

    def rewind(self) -> None:
        """Back to the end of the prompt, whose keys and values are still there."""
        self.set_length(self.prompt.shape[1])
        self.position.fill_(self.prompt.shape[1])

    def set_length(self, length: int) -> None:
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(length)

    def step(self) -> None:
        self.token.copy_(self.forward(self.token, self.position))
        self.position.add_(1)


class Captured(Static):
    """The step as a CUDA graph."""

    def __init__(self, model: torch.nn.Module, prompt: torch.Tensor) -> None:
        super().__init__(model, prompt)
        if prompt.device.type != "cuda":  # nothing to capture: for trying the program out
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                super().step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            super().step()
        self.step = self.graph.replay  # type: ignore[method-assign]


class Compiled(Static):
    """The step through torch.compile, which captures it by itself."""

    def __init__(self, model: torch.nn.Module, prompt: torch.Tensor) -> None:
        super().__init__(model, prompt)
        eager = super().step
        step = torch.compile(lambda: eager(), mode="reduce-overhead", fullgraph=True)
        for _ in range(4):
            step()
        self.step = step  # type: ignore[method-assign]


@contextlib.contextmanager
def through_plans(dependent: Dict[str, int]) -> Iterator[None]:
    """Has the patched models launch through the test harness, with dependent launch as given for each operator."""
    from cuda import harness

    def launch(operator: str, prepared: Any) -> None:
        prepared(prepared.plan()._replace(dependent=dependent[operator]))

    def rms_norm(x, weight, eps=1e-6, *, weight_offset=0.0, out=None):
        out = torch.empty_like(x) if out is None else out
        launch("rms_norm", harness.rms_norm(x, weight, eps, weight_offset=weight_offset, out=out))
        return out

    def fused_add_rms_norm(x, residual, weight, eps=1e-6, *, weight_offset=0.0):
        prepared = harness.fused_add_rms_norm(x, residual, weight, eps, weight_offset=weight_offset)
        launch("fused_add_rms_norm", prepared)
        return x, residual

    def gated(operator):
        def call(x, *, out=None):
            out = x.new_empty(*x.shape[:-1], x.shape[-1] // 2) if out is None else out
            launch(operator, harness.gated_activation(operator, x, out=out))
            return out

        return call

    def fused_qk_norm_rope(positions, query, key, q_weight, k_weight, cos_sin_cache, eps=1e-6, **options):
        arguments = (positions, query, key, q_weight, k_weight, cos_sin_cache, eps)
        launch("fused_qk_norm_rope", harness.qk_rope(*arguments, **options))
        return query, key

    functions = {
        "rms_norm": rms_norm,
        "fused_add_rms_norm": fused_add_rms_norm,
        "silu_and_mul": gated("silu_and_mul"),
        "gelu_tanh_and_mul": gated("gelu_tanh_and_mul"),
        "fused_qk_norm_rope": fused_qk_norm_rope,
    }
    with contextlib.ExitStack() as stack:
        for operator in dependent:
            values, key = PLACES[operator]
            stack.enter_context(replaced(values, {key: functions[operator]}))
        yield


class Arm:
    """A loop, the block that it runs in, and what was measured of it."""

    def __init__(self, loop: Any, within: Callable[[], ContextManager[None]] = contextlib.nullcontext) -> None:
        self.loop, self.within = loop, within
        self.rates: List[float] = []  # tokens a second of each run
        self.joules: List[float] = []  # a token, of each window

    def tokens(self, count: int) -> List[int]:
        """A decode from the prompt, looking at every token."""
        with self.within():
            self.loop.start()
            found = [int(self.loop.token)]
            for _ in range(count):
                self.loop.step()
                found.append(int(self.loop.token))
        return found

    def window(self, seconds: float, energy: Optional[Energy], synchronize: Callable[[], None]) -> None:
        with self.within():
            synchronize()
            before, begun, runs = energy and energy.joules(), time.perf_counter(), 0
            while runs == 0 or time.perf_counter() - begun < seconds:
                self.loop.rewind()
                synchronize()
                start = time.perf_counter()
                for _ in range(TOKENS):
                    self.loop.step()
                synchronize()
                self.rates.append(TOKENS / (time.perf_counter() - start))
                runs += 1
            if energy is not None:
                self.joules.append((energy.joules() - before) / (runs * TOKENS))


def prepared(
    base: torch.nn.Module, family: str, kind: str
) -> Tuple[torch.nn.Module, Callable[[], ContextManager[None]]]:
    """The model of a kind of arm, with weights of its own, and the block that it has to run in."""
    if kind == "eager":
        return base, contextlib.nullcontext
    model = copy.deepcopy(base)
    if kind == "liger":
        return model, use_liger(model, family)
    report = edge_ops.patch(model)
    if report.kept:
        print(report, flush=True)
    return model, contextlib.nullcontext


def make_arms(base: torch.nn.Module, family: str, names: List[str], prompt: torch.Tensor, missing: dict) -> dict:
    """Name -> arm. Loops of one kind of model share its weights, each with a cache of its own."""
    loops = {"graphs": Captured, "compiled": Compiled}
    models: Dict[str, Any] = {}
    arms: Dict[str, Arm] = {}
    for name in names:
        kind = name.split("_")[0] if name.startswith(("patched", "liger")) else "eager"
        loop = next((loops[part] for part in loops if part in name.split("_")), Growing)
        started = time.perf_counter()
        try:
            if kind not in models:
                models[kind] = prepared(base, family, kind)
            model, within = models[kind]
            with within():
                arms[name] = Arm(loop(model, prompt), within)
        except Exception as problem:
            if name in ("eager", "patched"):
                raise
            missing[name] = f"{type(problem).__name__}: {problem}"[:500]
        print(f"{name}: {missing.get(name, 'ready')} after {time.perf_counter() - started:.0f} s", flush=True)
    return arms


def dependent_arms(base: torch.nn.Module, family: str, prompt: torch.Tensor) -> Dict[str, Arm]:
    """The patched step as a graph: dependent launch for no operator (twice), all, each alone, and as they choose."""
    from cuda.harness import ALWAYS, IN_CHAINS, NEVER

    model, used = copy.deepcopy(base), USED[family]
    edge_ops.patch(model)
    choices = {
        "none": dict.fromkeys(used, NEVER),
        "none_null": dict.fromkeys(used, NEVER),
        "all": dict.fromkeys(used, ALWAYS),
        "in_chains": dict.fromkeys(used, IN_CHAINS),
        **{operator: {**dict.fromkeys(used, NEVER), operator: ALWAYS} for operator in used},
    }
    arms = {}
    for name, choice in choices.items():
        with through_plans(choice):
            arms[name] = Arm(Captured(model, prompt))
    return arms


def measure(arms: Dict[str, Arm], rounds: int, seconds: float, energy: Optional[Energy], device: str) -> dict:
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    for name in turns(list(arms), rounds):
        arms[name].window(seconds, energy, synchronize)
    return {name: {"tokens_per_second": arm.rates, "joules_per_token": arm.joules} for name, arm in arms.items()}


def agreement(arms: Dict[str, Arm]) -> Dict[str, Optional[int]]:
    """Arm -> the first token that is not the first arm's, or None where all are."""
    found = {name: arm.tokens(TOKENS) for name, arm in arms.items()}
    first = next(iter(found.values()))
    return {
        name: next((i for i, (a, b) in enumerate(zip(first, tokens)) if a != b), None) for name, tokens in found.items()
    }


def run(name: str, options: argparse.Namespace, energy: Optional[Energy]) -> Dict[str, Any]:
    family, _, dtype = MODELS[name]
    device, tiny = options.device, name.endswith("-tiny")
    base = build(name, device)
    prompt = torch.arange(3, 3 + PROMPT, device=device)[None]
    result: Dict[str, Any] = {"dtype": str(dtype).split(".")[1], "missing": {}}
    result["weights_bytes"] = sum(p.numel() * p.element_size() for p in base.parameters())
    arms = make_arms(base, family, options.arms.split(","), prompt, result["missing"])
    result["graphs_left_out"] = torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]
    result["first_difference"] = agreement(arms)
    print(name, "first token that differs from eager's:", result["first_difference"], flush=True)
    if device == "cuda" and tiny:
        return result
    result["arms"] = measure(arms, options.rounds, options.seconds, energy, device)
    show(result["arms"])
    if options.dependent:
        arms = dependent_arms(base, family, prompt)
        result["dependent"] = measure(arms, options.rounds, options.seconds / 2, None, device)
        show(result["dependent"])
    return result


def show(arms: Dict[str, Dict[str, List[float]]]) -> None:
    for name, values in arms.items():
        rate, joules = statistics.median(values["tokens_per_second"]), values["joules_per_token"]
        energy = f"{statistics.median(joules):8.3f} J a token" if joules else ""
        print(f"  {name:22} {rate:8.1f} tokens a second {1e6 / rate:8.1f} us a token {energy}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--models", default=",".join(["qwen3-tiny", "gemma3-tiny", "qwen3-0.6b", "gemma3-1b"]))
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--dependent", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a window")
    options = parser.parse_args()
    names = options.models.split(",")
    if len(names) > 1:
        apart(options.output, names)
        return
    versions = {"transformers": importlib.import_module("transformers").__version__}
    energy = None
    if options.device == "cuda":
        warm_up()
        energy = Energy.open()
    result: Dict[str, Any] = {
        "machine": {**machine(), **versions},
        "build": edge_ops.native.build_info(),
        "tokens": TOKENS,
        "prompt": PROMPT,
        "capacity": CAPACITY,
        "idle_watts": energy.watts(2.0) if energy is not None else None,
        "models": {},
    }
    with torch.no_grad():
        result["models"][names[0]] = run(names[0], options, energy)
    options.output.write_text(json.dumps(result))


def apart(output: Path, names: List[str]) -> None:
    """Each model in a process of its own: the graphs of one must not outlive it into the next one's memory."""
    whole: Dict[str, Any] = {}
    for name in names:
        command = [sys.executable, __file__, *sys.argv[1:], "--models", name]  # the last of an option counts
        subprocess.run(command, check=True)
        found = json.loads(output.read_text())
        whole = {**found, "models": {**whole.get("models", {}), **found["models"]}}
        output.write_text(json.dumps(whole))


if __name__ == "__main__":
    main()
