"""What differs where a digest is not the golden one: the first element, what it was computed from, both patterns."""

from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from .corpus import Case
from .generate import FORMATS
from .run import Inputs, Results, bits, by_reference, digest


def difference(case: Case, results: Results, expected: Optional[str]) -> Dict[str, Any]:
    """Where `results` part from the contract's.

    A digest cannot say; the reference, computed on the CPU, stands in for the contract once its own digest is
    found to be the golden one.

    Returns:
        ``case``, ``expected`` and ``got`` (digests), ``why`` where no element can be named, or else ``result`` (which),
        ``index``, ``inputs`` (name -> pattern and value), ``got_bits``, ``expected_bits``, ``differing``, ``of``.
    """
    found: Dict[str, Any] = {"case": case.name, "expected": expected, "got": digest(results, case.dtype)}
    if expected is None:
        return {**found, "why": "golden.json has no such case: the package's files are of two versions"}
    inputs = Inputs(case, torch.device("cpu"))
    wanted = by_reference(case, inputs)
    if digest(wanted, case.dtype) != expected:
        why = "the PyTorch reference on this host does not give the golden digest either, so no element can be named"
        return {**found, "why": why}
    for name, want in wanted.items():
        got_bits, want_bits = bits(results[name].cpu(), case.dtype), bits(want, case.dtype)
        wrong = got_bits != want_bits
        if bool(wrong.any()):
            index = tuple(int(i) for i in torch.nonzero(wrong)[0])
            return {
                **found,
                "result": name,
                "index": list(index),
                "inputs": {label: shown(value) for label, value in _sources(case, inputs, name, index)},
                "got_bits": shown(results[name].cpu()[index]),
                "expected_bits": shown(want[index]),
                "differing": int(wrong.sum()),
                "of": wrong.numel(),
            }
    return {**found, "why": "the same elements in another order or number"}


def shown(value: Any) -> str:
    """A 0-d tensor as its bit pattern and value; anything else as it is."""
    if not isinstance(value, Tensor):
        return str(value)
    if not value.dtype.is_floating_point:
        return str(int(value))
    form = next(f for f in FORMATS.values() if f.dtype == value.dtype)
    pattern = int(value.reshape(1).view(form.bits)) & ((1 << form.width) - 1)
    return f"0x{pattern:0{form.width // 4}x} ({float(value):.9g})"


def _sources(case: Case, inputs: Inputs, result: str, index: Tuple[int, ...]) -> List[Tuple[str, Any]]:
    """The inputs of the element at `index` of a result."""
    row, column = index[:-1], index[-1]
    if inputs.get("gate") is not None:
        return [("gate", inputs["gate"][index]), ("up", inputs["up"][index])]
    if inputs.get("query") is None:
        found = [("x", inputs["x"][index])]
        if inputs.get("residual") is not None:
            found.append(("residual", inputs["residual"][index]))
        if inputs.get("weight") is not None:
            found.append(("weight", inputs["weight"][column]))
        return [*found, ("row of", inputs["x"].shape[-1]), *case.options.items()]
    side = result.split("_")[0]
    heads, cache, weight = inputs[side], inputs["cache"], inputs.get("q_weight" if side == "query" else "k_weight")
    position = inputs["positions"][index[:-2]]
    found = [("position", position), (side, heads[index])]
    half = cache.shape[1] // 2
    partner = column
    if column < 2 * half:
        if case.options["interleaved"]:
            pair, partner = column // 2, column ^ 1
        else:
            pair, partner = column % half, (column + half) % (2 * half)
        found.append((f"{side}[{partner}]", heads[row + (partner,)]))
        if 0 <= int(position) < len(cache):
            found += [("cos", cache[int(position), pair]), ("sin", cache[int(position), half + pair])]
    if weight is not None:
        found += [(f"weight[{c}]", weight[c]) for c in dict.fromkeys((column, partner))]
    return [*found, ("head of", heads.shape[-1]), *case.options.items()]
