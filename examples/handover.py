"""A decode handed from one process to others, at other ISA levels and on the GPU where there is one.

    python examples/handover.py                      # SmolLM2-135M, 64 tokens, handed over after 24
    python examples/handover.py --model tiny         # a tiny model made on the spot: no download, a few seconds

One process decodes at this host's best level and saves its state: tokens, position and KV cache. For every level, a
new process loads that state, calls each operator on the state's own numbers, and decodes on to the end. Each has
PyTorch limited to the same level (ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA, MKL_ENABLE_INSTRUCTIONS), as a processor
that has no more would limit it.

What is printed, and what to expect:

- operators at the seam: a digest of each at each level. They are equal, or the exit status is 1.
- operators within the decode: every call of the first step after the seam, its inputs and its results by digest.
  Two calls with equal inputs have equal results, or the exit status is 1. The first call with other inputs is where
  PyTorch's own code between the operators (the projections, attention) has other bits.
- tokens: how many the continuations share. Those may differ: the products are PyTorch's.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

ROOT = Path(__file__).resolve().parents[1]
if (ROOT / "torch-ext" / "edge_ops" / "_ops.py").exists():  # built in place
    sys.path.insert(0, str(ROOT / "torch-ext"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

OPERATORS = (
    "rms_norm",
    "fused_add_rms_norm",
    "silu_and_mul",
    "gelu_tanh_and_mul",
    "rotary_embedding",
    "fused_qk_norm_rope",
)
CUDA = "cuda"
# What limits PyTorch's own code to a level.
LIMITS = {
    "baseline": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
}


# --- the model -----------------------------------------------------------------------


def load(name: str, dtype: Any) -> Tuple[Any, List[int], Any]:
    """(patched model, prompt, tokenizer or None); `name` is smollm2, gemma3, tiny, or a folder or file."""
    import edge_ops
    from edge_ops.cli import weights

    if name == "tiny":
        loaded = weights.Loaded(tiny(dtype), None, [3, 14, 15, 92, 65, 35, 89, 79])
    elif name in weights.SOURCES:
        loaded = weights.load(name, dtype, None, lambda what: None)
    else:
        loaded = weights.load_local(Path(name), dtype, None, lambda what: None)
    edge_ops.patch(loaded.model)
    return loaded.model, loaded.prompt, loaded.tokenizer


def tiny(dtype: Any) -> Any:
    """A small Llama whose weights are the qualification's integers: the same in every process, at every level."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from edge_ops.qualify import corpus, generate

    config = LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            field = corpus.Field(name, tuple(parameter.shape), "float32", "unit")
            parameter.copy_(generate.make("tiny", field, torch.device("cpu")))
    return model.to(dtype)


def step(model: Any, ids: List[int], start: int, cache: Any) -> Any:
    """Runs tokens at positions from `start` on; -> logits [vocabulary] of the last."""
    import torch

    device = next(model.parameters()).device
    with torch.inference_mode():
        output = model(
            input_ids=torch.tensor([ids], device=device),
            position_ids=torch.arange(start, start + len(ids), device=device)[None],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
    return output.logits[0, -1]


# --- the state -----------------------------------------------------------------------


def save(path: Path, tokens: List[int], prompt: int, cache: Any) -> None:
    """Tokens, how many of them are the prompt, and the KV cache; what is in the cache says the position."""
    import torch

    layers = [(layer.keys.cpu(), layer.values.cpu()) for layer in cache.layers]
    torch.save({"tokens": tokens, "prompt": prompt, "position": layers[0][0].shape[-2], "layers": layers}, path)


def restore(path: Path, model: Any) -> Tuple[Dict[str, Any], Any]:
    """(the state, its cache on the model's device). Only tensors and numbers are read: no code comes with the file."""
    import torch
    from transformers import DynamicCache

    state = torch.load(path, weights_only=True, map_location="cpu")
    cache = DynamicCache(config=model.config)
    device = next(model.parameters()).device
    for index, (keys, values) in enumerate(state["layers"]):
        cache.update(keys.to(device), values.to(device), index)
    return state, cache


# --- digests -------------------------------------------------------------------------


def digest(*tensors: Any) -> str:
    """Of bits, shapes and dtypes."""
    found = hashlib.sha256()
    for tensor in tensors:
        dense = tensor.detach().cpu().contiguous()
        found.update(f"{tuple(dense.shape)} {dense.dtype}".encode())
        found.update(ctypes.string_at(dense.data_ptr(), dense.numel() * dense.element_size()))
    return found.hexdigest()[:16]


def at_the_seam(state: Dict[str, Any], device: str) -> Dict[str, str]:
    """Operator -> digest of its results on the state's own keys and values, on a device."""
    import torch

    import edge_ops

    keys = torch.cat([k[0].transpose(0, 1) for k, _ in state["layers"]], dim=1).to(device)  # [tokens, heads, head size]
    values = torch.cat([v[0].transpose(0, 1) for _, v in state["layers"]], dim=1).to(device)
    positions = torch.arange(len(keys), device=device)
    # Angles that any number of the state can serve as: a cosine computed here would be PyTorch's.
    angles = values[:, 0].float().contiguous()
    weight = values[0, 0].contiguous()
    with torch.inference_mode():
        q, k = keys.clone(), values.clone()
        results = {
            "rms_norm": (edge_ops.rms_norm(keys, weight),),
            "fused_add_rms_norm": edge_ops.fused_add_rms_norm(keys.clone(), values.clone(), weight),
            "silu_and_mul": (edge_ops.silu_and_mul(torch.cat((keys, values), dim=-1)),),
            "gelu_tanh_and_mul": (edge_ops.gelu_tanh_and_mul(torch.cat((keys, values), dim=-1)),),
            "rotary_embedding": edge_ops.rotary_embedding(positions, q, k, angles),
            "fused_qk_norm_rope": edge_ops.fused_qk_norm_rope(
                positions, keys.clone(), values.clone(), weight, weight, angles
            ),
        }
        return {name: digest(*tensors) for name, tensors in results.items()}


class Trace:
    """Watches the operators that a patched model calls: a digest of each call's inputs and of its results."""

    def __init__(self) -> None:
        self.calls: List[Tuple[str, str, str]] = []

    def __enter__(self) -> "Trace":
        import edge_ops

        self._put: List[Tuple[Any, str, Any]] = []
        modules = [m for name, m in list(sys.modules.items()) if name.startswith("edge_ops.models")]
        for name in OPERATORS:
            real = getattr(edge_ops, name)
            for module in modules:
                if getattr(module, name, None) is real:
                    self._put.append((module, name, real))
                    setattr(module, name, self._watched(name, real))
        return self

    def __exit__(self, *error: Any) -> None:
        for module, name, real in self._put:
            setattr(module, name, real)

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        def call(*args: Any, **kwargs: Any) -> Any:
            given = [*args, *(value for key, value in kwargs.items() if "out" not in key)]
            before = digest(*(value for value in given if isinstance(value, torch.Tensor)))
            numbers = [value for value in given if not isinstance(value, torch.Tensor)]
            returned = real(*args, **kwargs)
            results = returned if isinstance(returned, tuple) else (returned,)
            after = digest(*(value for value in results if value is not None))
            self.calls.append((name, f"{before} {numbers}", after))
            return returned

        return call


# --- the processes -------------------------------------------------------------------


def first(arguments: argparse.Namespace, dtype: Any) -> Dict[str, Any]:
    """Decodes up to the seam and saves the state."""
    from transformers import DynamicCache

    model, prompt, _ = load(arguments.model, dtype)
    cache, tokens = DynamicCache(config=model.config), list(prompt)
    given = tokens
    for _ in range(arguments.at):
        logits = step(model, given, len(tokens) - len(given), cache)
        given = [int(logits.argmax())]
        tokens += given
    save(arguments.state, tokens, len(prompt), cache)
    return {"tokens": tokens}


def second(arguments: argparse.Namespace, dtype: Any) -> Dict[str, Any]:
    """Loads the state, and decodes on from it."""
    device = CUDA if arguments.level == CUDA else "cpu"
    model, _, tokenizer = load(arguments.model, dtype)
    model.to(device)
    state, cache = restore(arguments.state, model)
    tokens, logits_digests, calls = list(state["tokens"]), [], []
    seam = at_the_seam(state, device)
    while len(tokens) < state["prompt"] + arguments.tokens:
        # the newest token is not in the cache yet
        if calls:
            logits = step(model, tokens[-1:], len(tokens) - 1, cache)
        else:
            with Trace() as trace:
                logits = step(model, tokens[-1:], len(tokens) - 1, cache)
            calls = trace.calls
        logits_digests.append(digest(logits))
        tokens.append(int(logits.argmax()))
    decoded = tokens[state["prompt"] :]
    return {
        "seam": seam,
        "calls": calls,
        "logits": logits_digests,
        "tokens": decoded,
        "text": None if tokenizer is None else tokenizer.decode(decoded, skip_special_tokens=True),
    }


def start(role: str, level: str, arguments: argparse.Namespace) -> Dict[str, Any]:
    """Runs a role in a process of its own at a level."""
    limits = {} if level == CUDA else {"EDGE_OPS_CPU_ISA": level, **LIMITS.get(level, {})}
    command = [sys.executable, __file__, "--role", role, "--level", level, "--state", str(arguments.state)]
    command += ["--model", arguments.model, "--dtype", arguments.dtype]
    command += ["--tokens", str(arguments.tokens), "--at", str(arguments.at)]
    done = subprocess.run(command, env={**os.environ, **limits}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the process at {level} ended with status {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# --- what is printed -----------------------------------------------------------------


def shared(one: List[Any], other: List[Any]) -> int:
    """How many entries two lists have in common from the start."""
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def seam_table(found: Dict[str, Dict[str, Any]]) -> Tuple[List[str], bool]:
    lines, good = [f"  {'operator':20}" + "".join(f"{level:>20}" for level in found)], True
    for name in OPERATORS:
        digests = [one["seam"][name] for one in found.values()]
        good &= len(set(digests)) == 1
        mark = "equal" if len(set(digests)) == 1 else "DIFFERENT"
        lines.append(f"  {name:20}" + "".join(f"{value:>20}" for value in digests) + f"  {mark}")
    return lines, good


def compare(base: Dict[str, Any], other: Dict[str, Any]) -> Tuple[List[str], bool]:
    """Where another continuation parts from the first level's, and whether an operator is to blame."""
    pairs = list(zip(base["calls"], other["calls"]))
    fed_alike = [(a, b) for a, b in pairs if a[1] == b[1]]
    wrong = [a[0] for a, b in fed_alike if a[2] != b[2]]
    lines = [
        f"{len(fed_alike) - len(wrong)} of {len(fed_alike)} operator calls with equal inputs have equal results "
        f"({len(pairs)} calls in the step)"
    ]
    if wrong:
        lines.append(f"OPERATORS WITH OTHER RESULTS: {', '.join(sorted(set(wrong)))}")
    parted = next((i for i, (a, b) in enumerate(pairs) if a[1] != b[1]), None)
    if parted is None:
        lines.append("no operator of that step was given other numbers")
    else:
        lines.append(
            f"call {parted + 1} ({pairs[parted][0][0]}) is the first with other inputs: PyTorch's code before it"
        )
    steps, same = len(base["logits"]), shared(base["logits"], other["logits"])
    lines.append(f"logits: the same bits in all {steps} steps" if same == steps else f"logits: part in step {same + 1}")
    count, same = len(base["tokens"]), shared(base["tokens"], other["tokens"])
    lines.append(f"tokens: all {count} the same" if same == count else f"tokens: part after {same} of {count}")
    return lines, not wrong and len(base["calls"]) == len(other["calls"])


def hand_over(arguments: argparse.Namespace) -> int:
    from edge_ops.qualify import levels

    offered = levels.offered()
    if offered == [levels.REFERENCE]:
        sys.exit("this build has no native code: there is one level, and nobody to hand over to")
    begun = start("first", offered[0], arguments)
    size = arguments.state.stat().st_size / 1e6
    print(f"{arguments.model}, {arguments.dtype}: {arguments.at} tokens decoded at {offered[0]}")
    print(f"state: {len(begun['tokens'])} tokens and their KV cache, {size:.1f} MB")
    found = {level: start("second", level, arguments) for level in offered}
    lines, good = seam_table(found)
    print("\noperators on the state's numbers, at the seam", *lines, sep="\n")
    print(f"\ncontinued to {arguments.tokens} tokens; against the continuation at {offered[0]}")
    base = found[offered[0]]
    for level in offered[1:]:
        lines, right = compare(base, found[level])
        good &= right
        print(f"  {level}", *(f"    {line}" for line in lines), sep="\n")
    if base["text"]:
        print(f"\n{base['text'].strip()}")
    print("\nthe operators have the same bits at every level" if good else "\nSOME OPERATORS DIFFER")
    return 0 if good else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="smollm2, gemma3, tiny, or a model folder or GGUF file")
    parser.add_argument("--tokens", type=int, default=64, help="tokens in all (64)")
    parser.add_argument("--at", type=int, default=24, help="after how many the decode is handed over (24)")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--state", type=Path, help="where to keep the state (a temporary file)")
    parser.add_argument("--role", choices=("first", "second"), help=argparse.SUPPRESS)
    parser.add_argument("--level", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not 1 <= arguments.at < arguments.tokens:
        parser.error(f"--at must be from 1 to {arguments.tokens - 1}, got {arguments.at}")
    if arguments.role is not None:
        import torch

        run = first if arguments.role == "first" else second
        print(json.dumps(run(arguments, getattr(torch, arguments.dtype))))
        return 0
    if arguments.state is not None:
        return hand_over(arguments)
    with tempfile.TemporaryDirectory() as folder:
        arguments.state = Path(folder) / "state.pt"
        return hand_over(arguments)


if __name__ == "__main__":
    sys.exit(main())
