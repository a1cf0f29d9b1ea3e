"""Runs cases on the operators, digests what comes out, and holds the digests against the golden ones."""

import ctypes
import hashlib
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

import torch
from torch import Tensor

from .. import ops, reference
from .corpus import Case
from .generate import FORMATS, make
from .layouts import Placed, Watch, place, place_packed

GOLDEN = Path(__file__).with_name("golden.json")

CUDA, REFERENCE = "cuda", "reference"  # the levels that are none of the CPU's
_EXPLAINED = 3  # differences of an operator and dtype that are located; the rest is counted

Results = Dict[str, Tensor]  # by the name of the argument that holds them, or "result"


def golden() -> Dict[str, Any]:
    """The shipped digests: ``{"corpus": version, "digests": {case: digest}}``."""
    return json.loads(GOLDEN.read_text())


def golden_digest() -> str:
    """SHA-256 of the shipped digests, whatever the file's white space."""
    return hashlib.sha256(json.dumps(golden(), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class Inputs:
    """A case's inputs as values: contiguous tensors on a device."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.values = {field.name: make(case.name, field, device) for field in case.fields}
        if "gate" in self.values:
            self.values["x"] = torch.cat((self.values["gate"], self.values["up"]), dim=-1)

    def __getitem__(self, name: str) -> Tensor:
        return self.values[name]

    def get(self, name: str) -> Optional[Tensor]:
        return self.values.get(name)


class Outcome(NamedTuple):
    """What one case gave."""

    results: Results
    strays: List[str]  # arguments around whose memory something was written
    seconds: float  # in the operator


def by_operator(case: Case, inputs: Inputs, threads: int, synchronize: Callable[[], None]) -> Outcome:
    """Calls the public operator, with so many threads, on tensors laid out as the case says."""
    placed = _place(case, inputs)
    watch = Watch(placed)
    arguments: Dict[str, Any] = {name: p.view for name, p in placed.items()}
    call = _CALLS[case.operator]
    synchronize()
    torch.set_num_threads(threads)
    start = time.perf_counter()
    results = call(case, arguments)
    synchronize()
    seconds = time.perf_counter() - start
    torch.set_num_threads(1)
    kept = {name: result.clone() for name, result in results.items()}
    return Outcome(kept, watch.strays({n: r for n, r in results.items() if n in placed}), seconds)


def _place(case: Case, inputs: Inputs) -> Dict[str, Placed]:
    """Every tensor of the call, outputs included, in memory of its own (query and key of a packed one share theirs)."""
    placed: Dict[str, Placed] = {}
    query, key = inputs.get("query"), inputs.get("key")
    if case.layout == "packed" and query is not None:
        placed.update(zip(("query", "key"), place_packed(query, key)))
    for name, values in inputs.values.items():
        if name in placed or name in ("gate", "up"):
            continue
        rows = name in ("x", "residual", "query", "key")
        # positions lie apart wherever rows do not lie dense
        spread = name == "positions" and case.layout in ("pitched", "packed")
        if spread:
            p = place(values[..., None], "pitched")
            placed[name] = Placed(p.view[..., 0], p.buffer)
        else:
            placed[name] = place(values, case.layout if rows or case.layout == "unaligned" else "contiguous")
    if case.target == "apart":
        outs = {"query_out": query, "key_out": key}
        if query is None:
            outs = {"out": inputs["x"] if case.operator == "rms_norm" else inputs["gate"]}
        for name, like in outs.items():
            if like is not None:
                placed[name] = place(torch.zeros_like(like), "contiguous" if case.layout == "packed" else case.layout)
    return placed


def _norm(case: Case, a: Dict[str, Any]) -> Results:
    out = a["x"] if case.target == "inside" else a.get("out")
    got = ops.rms_norm(a["x"], a.get("weight"), out=out, **case.options)
    return {"result" if out is None else "x" if case.target == "inside" else "out": got}


def _fused_norm(case: Case, a: Dict[str, Any]) -> Results:
    x, residual = ops.fused_add_rms_norm(a["x"], a["residual"], a.get("weight"), **case.options)
    return {"x": x, "residual": residual}


def _gated(case: Case, a: Dict[str, Any]) -> Results:
    out = a.get("out")
    return {"result" if out is None else "out": getattr(ops, case.operator)(a["x"], out=out)}


def _turn(case: Case, a: Dict[str, Any]) -> Results:
    query, key, outs = a["query"], a.get("key"), {}
    if case.operator == "rotary_embedding":
        got = ops.rotary_embedding(a["positions"], query, key, a["cache"], **case.options)
    else:
        if case.target == "apart":
            outs = dict(query_out=a["query_out"], key_out=a.get("key_out"))
        got = ops.fused_qk_norm_rope(
            a["positions"], query, key, a.get("q_weight"), a.get("k_weight"), a["cache"], **case.options, **outs
        )
    names = ("query_out", "key_out") if outs else ("query", "key")
    return {name: result for name, result in zip(names, got) if result is not None}


_CALLS: Dict[str, Callable[[Case, Dict[str, Any]], Results]] = {
    "rms_norm": _norm,
    "fused_add_rms_norm": _fused_norm,
    "silu_and_mul": _gated,
    "gelu_tanh_and_mul": _gated,
    "rotary_embedding": _turn,
    "fused_qk_norm_rope": _turn,
}


def by_reference(case: Case, inputs: Inputs) -> Results:
    """The same results, under the same names, from the package's PyTorch reference."""
    options, weight = dict(case.options), inputs.get("weight")
    if case.operator == "rms_norm":
        name = {"new": "result", "apart": "out", "inside": "x"}[case.target]
        return {name: reference.rms_norm(inputs["x"], weight, **options)}
    if case.operator == "fused_add_rms_norm":
        x, residual = reference.fused_add_rms_norm(inputs["x"], inputs["residual"], weight, **options)
        return {"x": x, "residual": residual}
    if case.operator in ("silu_and_mul", "gelu_tanh_and_mul"):
        name = "out" if case.target == "apart" else "result"
        return {name: getattr(reference, case.operator)(inputs["x"])}
    results: Results = {}
    for name, weight_name in (("query", "q_weight"), ("key", "k_weight")):
        heads = inputs.get(name)
        if heads is None:
            continue
        if case.operator == "rotary_embedding":
            got = reference.rotary_embedding(inputs["positions"], heads, inputs["cache"], **options)
        else:
            weight = inputs.get(weight_name)
            got = reference.qk_norm_rope(inputs["positions"], heads, weight, inputs["cache"], **options)
        results[f"{name}_out" if case.target == "apart" else name] = got
    return results


def bits(result: Tensor, dtype: str) -> Tensor:
    """The bit patterns of a result, contiguous; every NaN as one, since its sign and payload are free."""
    form = FORMATS[dtype]
    dense = result.contiguous()
    return dense.view(form.bits).masked_fill(torch.isnan(dense), form.nan)


def digest(results: Results, dtype: str) -> str:
    """SHA-256 (its first 32 digits) of all results' patterns, in order, little-endian."""
    found = hashlib.sha256()
    for result in results.values():
        patterns = bits(result, dtype).cpu()
        size = patterns.numel() * patterns.element_size()
        found.update((ctypes.c_char * size).from_address(patterns.data_ptr()))
    return found.hexdigest()[:32]


class Found(NamedTuple):
    """One case at one level."""

    case: str
    digest: str
    strays: List[str]
    seconds: float  # in the operator
    total: float  # with making the inputs and the digest
    difference: Optional[Dict[str, Any]]  # see explain.py, where the digest is not the golden one


def run(cases: List[Case], level: str) -> Iterator[Found]:
    """Runs cases at a level: "cuda", "reference", or the CPU level that this process has chosen."""
    from .explain import difference

    device = torch.device("cuda" if level == CUDA else "cpu")
    synchronize = torch.cuda.synchronize if level == CUDA else _nothing
    expected = golden()["digests"]
    explained: Counter = Counter()
    # The pool is for the operators: handed thousands of small copies, its threads would only wait for each other.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            for case in cases:
                start = time.perf_counter()
                inputs = Inputs(case, device)
                if level == REFERENCE:
                    began = time.perf_counter()
                    results = by_reference(case, inputs)
                    outcome = Outcome(results, [], time.perf_counter() - began)
                else:
                    outcome = by_operator(case, inputs, threads, synchronize)
                found = digest(outcome.results, case.dtype)
                detail: Optional[Dict[str, Any]] = None
                if found != expected.get(case.name):
                    # to find the element takes the reference's time
                    explained[case.operator, case.dtype] += 1
                    few = explained[case.operator, case.dtype] <= _EXPLAINED
                    detail = difference(case, outcome.results, expected.get(case.name)) if few else {}
                total = time.perf_counter() - start
                yield Found(case.name, found, outcome.strays, outcome.seconds, total, detail)
    finally:
        torch.set_num_threads(threads)


def _nothing() -> None:
    pass
