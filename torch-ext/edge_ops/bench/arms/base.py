"""What an adapter gives: calls that can be timed, and how to judge their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional, Protocol

import torch
from torch import Tensor

from ..problems import Problem

# float32 arithmetic before the last rounding: order of a sum, an approximate rsqrt or exp.
ARITHMETIC = 2.0**-17
# Below the smallest normal number a rounding is off by a fixed amount, and a factor of up to this follows it.
SUBNORMAL_FACTOR = 16.0


BOTH = ("cpu", "cuda")


class NotInstalled(Exception):
    """The arm cannot run here; the message says what is missing and how to get it."""


def no_tensors(value: Any) -> tuple[Tensor, ...]:
    raise AssertionError("a Call needs `results`")


@dataclass
class Call:
    """One call as a user writes it.

    `statement` is the Python expression that is timed, over `names`; as text, so that the timed loop holds nothing
    but the call itself. `results` turns its value into the operator's results. `restore` puts back what an
    in-place call has overwritten; it runs outside the timed region.
    `roundings` is how many roundings to the storage type the arm documents; its results are held to that.
    """

    statement: str
    names: dict[str, Any]
    results: Callable[[Any], tuple[Tensor, ...]] = field(default=no_tensors)
    restore: Callable[[], None] | None = None
    roundings: int = 1


Prepare = Callable[[Problem], Optional[Call]]


class Arm(Protocol):
    """An adapter module's object.

    `devices` are those that it has kernels for. `calls` maps an operator to the function that prepares its call; an
    operator that is not there, or a None from the function, means that this arm has no such operator (or not in this
    dtype).
    """

    name: str
    title: str
    calls: Mapping[str, Prepare]

    @property
    def devices(self) -> tuple[str, ...]: ...

    def load(self) -> str:
        """Make the arm ready and return its version.

        Raises:
            NotInstalled: with what is missing.
        """
        ...


def work_copies(problem: Problem, *names: str) -> tuple[list[Tensor], Callable[[], None]]:
    """Copies of these inputs for an in-place call, and the function that restores them."""
    pairs = [(problem.inputs[name].clone(), problem.inputs[name]) for name in names]

    def restore() -> None:
        for copy, original in pairs:
            copy.copy_(original)

    return [copy for copy, _ in pairs], restore


def gated_into(operators: Callable[[], Any], name: str, roundings: int = 1) -> Prepare:
    """For libraries whose activation takes the result first; the operators are there once the arm is loaded."""

    def prepare(problem: Problem) -> Call:
        x = problem.inputs["x"]
        out = x.new_empty(x.shape[0], x.shape[1] // 2)
        names = {"gated": getattr(operators(), name), "out": out, "x": x}
        return Call("gated(out, x)", names, lambda _: (out,), roundings=roundings)

    return prepare


def worst_error(call: Call, results: tuple[Tensor, ...], problem: Problem) -> float:
    """The largest error as a share of what `call.roundings` allows; above 1 the arm computes something else."""
    unit = torch.finfo(problem.dtype).eps / 2
    allowed = call.roundings * unit * (1 + unit) + ARITHMETIC
    floor = SUBNORMAL_FACTOR * torch.finfo(problem.dtype).smallest_normal
    if len(results) != len(problem.expected):
        raise ValueError(f"{len(results)} results, expected {len(problem.expected)}")
    worst = 0.0
    for result, expected, scale in zip(results, problem.expected, problem.scale):
        if result.shape != expected.shape:
            raise ValueError(f"result of shape {tuple(result.shape)}, expected {tuple(expected.shape)}")
        error = (result.double() - expected).abs() / (scale + floor)
        worst = max(worst, float(error.max()) / allowed)
    return worst
