"""The project's goals for one thread on an x86-64 host, each one line that a record passes or fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import cells, store
from .arms import BASE, MAIN
from .cells import Cell
from .store import Measured

NEW = "edge_ops_new"

# One token, against eager.
ONE_TOKEN = {
    "rms_norm": 12.0,
    "fused_add_rms_norm": 12.0,
    "rotary_embedding": 12.0,
    "silu_and_mul": 3.0,
    "gelu_tanh_and_mul": 4.0,
}
QK_NORM_ROPE_ONE_TOKEN = 40.0  # 16/8 x 128, bfloat16
DIRECT_CALL_NS = 700.0  # rms_norm, float32, 1 x 1024, with out
DIRECT_CALL_SPEEDUP, NEW_TENSOR_SPEEDUP = 20.0, 8.0
MANY_TOKENS = (32, 128)
NEVER_SLOWER_THAN = (BASE, "compile", "vllm", "hub")
ARMS = (MAIN, NEW, *NEVER_SLOWER_THAN)
# Prototypes that keep the numerics contract, in multiples of eager at 128 x 2560 bfloat16, and the slack allowed.
PROTOTYPES = {"rms_norm": 255 / 52, "silu_and_mul": 279 / 145}
SLACK = 1.1


@dataclass(frozen=True)
class Judged:
    """One cell under one goal: its figure, and whether it is met (None: measured, but no pass was kept)."""

    label: str
    figure: str
    met: bool | None
    margin: float = 0.0  # figure over goal: above 1 is met


@dataclass
class Outcome:
    goal: str
    wanted: int
    judged: list[Judged] = field(default_factory=list)

    @property
    def failures(self) -> list[Judged]:
        return [one for one in self.judged if one.met is False]

    @property
    def unsettled(self) -> int:
        return sum(one.met is None for one in self.judged)

    @property
    def missing(self) -> int:
        return self.wanted - len(self.judged)

    @property
    def passed(self) -> bool:
        return not self.failures and not self.unsettled and not self.missing

    @property
    def verdict(self) -> str:
        return "pass" if self.passed else "FAIL" if self.failures else "open"


def needed_cells() -> list[Cell]:
    """The cells that `check` looks at, each once."""
    hidden = ["1024"]
    wanted: list[Cell] = list(cells.select(["rms_norm"], ["float32"], [1], hidden))
    wanted += cells.select(tuple(ONE_TOKEN), tokens=[1])
    wanted += cells.select(["fused_qk_norm_rope"], ["bfloat16"], [1], ["16/8x128"])
    wanted += cells.select(tokens=MANY_TOKENS)
    return list(dict.fromkeys(wanted))


def _direct_call(one: Measured) -> Judged:
    low, median, high = one.nanoseconds(MAIN)
    figure = f"{median / 1000:.3f} µs [{low / 1000:.3f}, {high / 1000:.3f}]"
    return Judged(one.cell.key, figure, median <= DIRECT_CALL_NS, DIRECT_CALL_NS / median)


def _faster(goal: float, arm: str = MAIN) -> Callable[[Measured], Judged]:
    def judge(one: Measured) -> Judged:
        found = one.speedup(arm, BASE)
        figure = f"{found.value:.2f} x eager [{found.low:.2f}, {found.high:.2f}]"
        return Judged(one.cell.key, figure, found.value >= goal, found.value / goal)

    return judge


def _not_slower(other: str) -> Callable[[Measured], Judged]:
    def judge(one: Measured) -> Judged:
        found = one.speedup(MAIN, other)
        figure = f"{found.value:.3f} x {other} [{found.low:.3f}, {found.high:.3f}]"
        return Judged(one.cell.key, figure, not one.loses(MAIN, other), found.value)

    return judge


def _outcome(
    goal: str,
    wanted: Iterable[Cell],
    found: Sequence[Measured],
    arms: Sequence[str],
    judge: Callable[[Measured], Judged],
    optional: bool = False,
) -> Outcome:
    """Judge the cells of one goal. With `optional`, a cell where the arm has no such call is not asked for."""
    cells_wanted = list(wanted)
    outcome = Outcome(goal, len(cells_wanted))
    by_cell = {one.cell: one for one in found}
    for cell in cells_wanted:
        one = by_cell.get(cell)
        if one is None:
            continue
        if not all(one.has(arm) for arm in arms):
            outcome.wanted -= optional and one.has(MAIN)
            continue
        outcome.judged.append(judge(one) if one.settled else Judged(cell.key, "no pass kept", None))
    return outcome


def check(records: Sequence[dict[str, Any]]) -> list[Outcome]:
    """Every goal, from the one-thread cells of the records; of a cell measured twice the later one counts."""
    found = [one for record in records for one in store.measured(record) if one.threads == 1]
    first = list(cells.select(["rms_norm"], ["float32"], [1], ["1024"]))
    outcomes = [
        _outcome("rms_norm(out=) float32 1 x 1024 in at most 0.7 µs", first, found, [MAIN], _direct_call),
        _outcome(
            f"the same, at least {DIRECT_CALL_SPEEDUP:g} times faster than eager",
            first, found, [MAIN, BASE], _faster(DIRECT_CALL_SPEEDUP),
        ),
        _outcome(
            f"the same without out, at least {NEW_TENSOR_SPEEDUP:g} times",
            first, found, [NEW, BASE], _faster(NEW_TENSOR_SPEEDUP, NEW),
        ),
    ]  # fmt: skip
    for operator, goal in ONE_TOKEN.items():
        wanted = cells.select([operator], tokens=[1])
        text = f"{operator}, 1 token, at least {goal:g} times faster than eager"
        outcomes.append(_outcome(text, wanted, found, [MAIN, BASE], _faster(goal)))
    qk = cells.select(["fused_qk_norm_rope"], ["bfloat16"], [1], ["16/8x128"])
    text = f"fused_qk_norm_rope bfloat16 1 x 16/8x128, at least {QK_NORM_ROPE_ONE_TOKEN:g} times faster than eager"
    outcomes.append(_outcome(text, qk, found, [MAIN, BASE], _faster(QK_NORM_ROPE_ONE_TOKEN)))
    for operator in cells.OPERATORS:
        for other in NEVER_SLOWER_THAN:
            wanted = cells.select([operator], tokens=MANY_TOKENS)
            text = f"{operator}, 32 and 128 tokens, not slower than {other}"
            outcome = _outcome(text, wanted, found, [MAIN, other], _not_slower(other), optional=True)
            if outcome.wanted:
                outcomes.append(outcome)
    for operator, prototype in PROTOTYPES.items():
        wanted = cells.select([operator], ["bfloat16"], [128], ["2560"])
        goal = prototype / SLACK
        text = f"{operator} bfloat16 128 x 2560, at least {goal:.2f} times faster than eager"
        outcomes.append(_outcome(text, wanted, found, [MAIN, BASE], _faster(goal)))
    return outcomes


def print_outcomes(records: Sequence[dict[str, Any]]) -> int:
    """Prints the table; 1 where a goal is not met."""
    outcomes = check(records)
    print(table(outcomes))
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def table(outcomes: Sequence[Outcome]) -> str:
    """Markdown: one line a goal with its tightest cell, then every cell that fails."""
    lines = ["| goal | verdict | cells | tightest |", "|---|---|---|---|"]
    for outcome in outcomes:
        settled = [one for one in outcome.judged if one.met is not None]
        tightest = min(settled, key=lambda one: one.margin, default=None)
        counts = f"{sum(one.met is True for one in outcome.judged)} of {outcome.wanted}"
        counts += f", {outcome.unsettled} unsettled" if outcome.unsettled else ""
        counts += f", {outcome.missing} not measured" if outcome.missing else ""
        shown = f"{tightest.label}: {tightest.figure}" if tightest else ""
        lines.append(f"| {outcome.goal} | {outcome.verdict} | {counts} | {shown} |")
    failures = [(outcome, one) for outcome in outcomes for one in outcome.failures]
    if failures:
        lines += ["", "Cells that fail:", ""]
        lines += [f"- {outcome.goal}: {one.label}, {one.figure}" for outcome, one in failures]
    return "\n".join(lines)
