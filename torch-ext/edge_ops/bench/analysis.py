"""What records say when taken together: runs, best peers, verdicts, losses and their reasons, means."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from . import floors, problems, store
from .arms import BASE, MAIN, PEERS
from .cells import GATED, NORMS
from .stats import geometric_mean
from .store import Measured

WIN, TIE, LOSS = "win", "tie", "loss"

# Between a copy of the operator's bytes and this many times its duration a cell is bound by memory.
MEMORY_BOUND = 1.6
# Up to this many times Edge-ops' call without rows a cell is mostly call.
CALL_BOUND = 2.5


@dataclass(frozen=True)
class Run:
    """One record with what is computed from it once."""

    record: store.Record
    cells: tuple[Measured, ...]

    @property
    def environment(self) -> dict[str, Any]:
        return dict(self.record["environment"])

    @property
    def host(self) -> str:
        return str(self.environment["host"])

    @property
    def level(self) -> str:
        own = self.environment.get("edge_ops") or {}
        return str(own.get("isa_chosen") or "reference")

    @property
    def device(self) -> str:
        return str(self.record["settings"].get("device", "cpu"))

    @property
    def label(self) -> str:
        return f"{self.host}, {self.device if self.device != 'cpu' else self.level}"

    @property
    def compared(self) -> tuple[Measured, ...]:
        """The cells with a kept pass in which Edge-ops was timed."""
        return tuple(one for one in self.cells if one.settled and one.has(MAIN))

    def roof_ns(self, one: Measured) -> float | None:
        """How long a copy of as many bytes takes."""
        found = self.record["floors"].get(str(one.threads), {}).get("copy_bytes_per_ns")
        if not found:
            return None
        return floors.roof_ns(problems.traffic(one.cell), {int(size): value for size, value in found.items()})

    def empty_call_ns(self, threads: int) -> float | None:
        """Edge-ops' call without rows."""
        calls = self.record["floors"].get(str(threads), {}).get("calls", {})
        samples = sorted(calls.get(floors.OWN_CALL, {}).get("samples", []))
        return samples[len(samples) // 2] if samples else None


def runs(records: Iterable[store.Record]) -> list[Run]:
    return [Run(record, tuple(store.measured(record))) for record in records]


def best_peer(one: Measured) -> str | None:
    """The fastest arm that is neither Edge-ops nor eager."""
    peers = [name for name in PEERS if one.has(name)]
    return min(peers, key=lambda name: one.nanoseconds(name)[1], default=None)


def verdict(one: Measured, other: str) -> str:
    """Whether Edge-ops is ahead of an arm by more than the cell can tell apart."""
    value, resolution = one.speedup(MAIN, other).value, one.kept.resolution
    return LOSS if value < 1 - resolution else WIN if value > 1 + resolution else TIE


@dataclass(frozen=True)
class Mean:
    """Geometric means over the geometries of one operator, dtype, token count, thread count and clock."""

    operator: str
    dtype: str
    tokens: int
    threads: int
    clock: str
    over_base: Optional[float]
    over_peer: Optional[float]
    verdicts: tuple[str, ...]  # against each cell's best peer


def means(found: Iterable[Measured]) -> list[Mean]:
    groups: dict[tuple[str, str, int, int, str], list[Measured]] = defaultdict(list)
    for one in found:
        groups[one.cell.operator, one.cell.dtype, one.cell.tokens, one.threads, one.clock].append(one)
    result = []
    for key, members in groups.items():
        over_base = [one.speedup(MAIN, BASE).value for one in members if one.has(BASE)]
        peers = [(one, peer) for one in members if (peer := best_peer(one)) is not None]
        over_peer = [one.speedup(MAIN, peer).value for one, peer in peers]
        result.append(
            Mean(
                *key,
                geometric_mean(over_base) if over_base else None,
                geometric_mean(over_peer) if over_peer else None,
                tuple(verdict(one, peer) for one, peer in peers),
            )
        )
    return result


@dataclass(frozen=True)
class Loss:
    """A cell in which an arm is ahead of Edge-ops by more than the noise."""

    run: Run
    one: Measured
    arm: str
    reason: str


def losses(run: Run) -> Iterator[Loss]:
    for one in run.compared:
        for arm in (BASE, *PEERS):
            if one.has(arm) and verdict(one, arm) == LOSS:
                yield Loss(run, one, arm, reason(run, one, arm))


Rule = Callable[[Run, Measured, str], bool]


def _higher_level(run: Run, one: Measured, arm: str) -> bool:
    above = {"baseline": ("vllm", "hub", "onnxruntime"), "avx2": ("hub", "onnxruntime")}
    return run.device == "cpu" and arm in above.get(run.level, ())


def _memory_bound(run: Run, one: Measured, arm: str) -> bool:
    roof = run.roof_ns(one)
    return roof is not None and one.nanoseconds(MAIN)[1] < MEMORY_BOUND * roof


def _call_bound(run: Run, one: Measured, arm: str) -> bool:
    floor = run.empty_call_ns(one.threads) if one.clock == "call" else None
    return floor is not None and one.nanoseconds(MAIN)[1] < CALL_BOUND * floor


# In the order in which they are asked; the first that holds is the reason given.
REASONS: tuple[tuple[Rule, str], ...] = (
    (_higher_level, "the library chooses its ISA level by the processor, above the level of this run"),
    (_memory_bound, "bound by memory: a plain copy of as many bytes takes most of the time"),
    (_call_bound, "most of the time is the call, not the rows"),
    (
        lambda run, one, arm: one.cell.operator in GATED and one.cell.dtype == "float32",
        "the contract's exponential and correctly rounded division, without fused multiply-add",
    ),
    (
        lambda run, one, arm: one.cell.operator in GATED,
        "the contract's exponential and correctly rounded division; the other arm rounds differently",
    ),
    (
        lambda run, one, arm: one.threads > 1 and one.cell.tokens == 1,
        "one row runs on one thread here, and the other arm may split it",
    ),
    (lambda run, one, arm: one.threads > 1, "threads: the other arm splits these rows better or later"),
    (
        lambda run, one, arm: one.cell.operator in NORMS,
        "the contract's fixed order of the sum, without fused multiply-add",
    ),
)


def reason(run: Run, one: Measured, arm: str) -> str:
    """The most likely one, from what the record shows."""
    return next((text for rule, text in REASONS if rule(run, one, arm)), "not understood")


def groups(found: Sequence[Measured]) -> dict[tuple[str, str, int, str], list[Measured]]:
    """The cells of each operator, dtype, thread count and clock."""
    result: dict[tuple[str, str, int, str], list[Measured]] = defaultdict(list)
    for one in found:
        result[one.cell.operator, one.cell.dtype, one.threads, one.clock].append(one)
    return result
