"""Runs cells: prepare every arm, check its results, then time them all interleaved, pass by pass."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Optional

import torch

from . import environment, floors, problems, store
from .arms import ALL, BASE, MAIN, OWN, Arm, NotInstalled, worst_error
from .cells import Cell
from .progress import Budget, Progress
from .stats import drop_rule
from .timing import Clock, TimedCall, run_pass

TWIN = " (twin)"


@dataclass(frozen=True)
class Settings:
    """`keep` passes with agreeing twins are wanted for each cell, and at most `passes` are run for them.

    With `minutes`, a cell starts another pass only while its share of the time that is left lasts.
    """

    threads: tuple[int, ...]
    arms: tuple[str, ...]
    trials: int = 24
    keep: int = 3
    passes: int = 12
    block_us: int = 300
    minutes: Optional[float] = None
    host: Optional[str] = None
    device: str = "cpu"
    clocks: tuple[str, ...] = ("call",)


def load_arms(settings: Settings, progress: Progress) -> tuple[list[Arm], dict[str, dict[str, Any]]]:
    """The arms that can run here, and what the record says of each."""
    loaded, record = [], {}
    for arm in ALL:
        if arm.name not in settings.arms or settings.device not in arm.devices:
            continue
        entry: dict[str, Any] = {"title": arm.title}
        try:
            entry["version"] = arm.load()
            loaded.append(arm)
        except NotInstalled as missing:
            entry["not_installed"] = str(missing)
            progress.note(f"{arm.name}: not installed, skipped: {missing}")
        record[arm.name] = entry
    return loaded, record


def prepare(arm: Arm, problem: problems.Problem) -> tuple[TimedCall, tuple[torch.Tensor, ...], float] | None:
    """The arm's call, its results and their error as a share of what is allowed, or None if it has no such call."""
    factory = arm.calls.get(problem.cell.operator)
    call = factory(problem) if factory is not None else None
    if call is None:
        return None
    timed = TimedCall(call, torch.cuda.synchronize if problem.device == "cuda" else None)
    timed.restore()
    results = tuple(result.clone() for result in call.results(timed.once()))
    return timed, results, worst_error(call, results, problem)


def _checked(cell: Cell, arms: Sequence[Arm], device: str) -> tuple[dict[str, TimedCall], dict[str, dict[str, Any]]]:
    """The calls whose results are right, and what the record says of every arm."""
    problem = problems.make(cell, device)
    timed: dict[str, TimedCall] = {}
    entries: dict[str, dict[str, Any]] = {}
    own_results: tuple[torch.Tensor, ...] | None = None
    for arm in arms:
        try:
            prepared = prepare(arm, problem)
        except RuntimeError as refusal:
            if arm.name in (*OWN, BASE):
                raise
            entries[arm.name] = {"wrong": f"refuses the cell: {str(refusal).splitlines()[0][:200]}"}
            continue
        if prepared is None:
            continue
        call, results, error = prepared
        entry = entries[arm.name] = {"error": error}
        if error > 1:
            entry["wrong"] = f"error of {error:.3g} times what {call.call.roundings} roundings allow"
            continue
        if arm.name in OWN:
            own_results = own_results or results
            if not all(map(torch.equal, own_results, results)):
                entry["wrong"] = "not the bits of Edge-ops' other route"
                continue
        timed[arm.name] = call
    return timed, entries


def run_cell(
    cell: Cell,
    threads: int,
    arms: Sequence[Arm],
    settings: Settings,
    deadline: float | None = None,
    spacers: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """The records of one cell, one a clock: errors, blocks and the samples of every pass.

    The first pass runs whatever the deadline; the clocks share the time until then.
    """
    timed, entries = _checked(cell, arms, settings.device)
    begun, records = time.monotonic(), []
    for index, clock in enumerate(settings.clocks, 1):
        clocks = _on(clock, timed, spacers or {})
        known = {name: dict(entry) for name, entry in entries.items() if name in clocks or "wrong" in entry}
        record: dict[str, Any] = {"cell": cell.to_json(), "threads": threads, "clock": clock, "arms": known}
        record["passes"] = []
        _calibrate(record, clocks, settings)
        if clocks:
            share = None if deadline is None else begun + (deadline - begun) * index / len(settings.clocks)
            _time(record, clocks, settings, share)
        records.append(record)
    return records


def _on(clock: str, timed: Mapping[str, TimedCall], spacers: Mapping[str, Any]) -> dict[str, Clock]:
    if clock == "call":
        return dict(timed)
    from .cuda import kernel_clocks

    return dict(kernel_clocks(clock, timed, spacers))


def _calibrate(record: dict[str, Any], clocks: dict[str, Clock], settings: Settings) -> None:
    """Readies every clock; an arm that a clock cannot time leaves it, and the record says why."""
    for name, clock in list(clocks.items()):
        try:
            clock.calibrate(settings.block_us * 1000)
        except RuntimeError as error:
            if record["clock"] == "call":
                raise
            record["arms"][name]["wrong"] = f"cannot be captured into a graph: {str(error).splitlines()[0][:200]}"
            del clocks[name]
            continue
        record["arms"][name]["block"] = clock.block


def _time(record: dict[str, Any], clocks: dict[str, Clock], settings: Settings, deadline: float | None) -> None:
    doubled = next((name for name in (MAIN, BASE) if name in clocks), next(iter(clocks)))
    record["doubled"], record["twin"] = doubled, doubled + TWIN
    clocks[record["twin"]] = clocks[doubled]
    passes = record["passes"]
    while len(passes) < settings.passes:
        passes.append(run_pass(clocks, settings.trials))
        if len(drop_rule(passes, doubled, record["twin"]).passes) >= settings.keep:
            break
        if deadline is not None and time.monotonic() >= deadline:
            break


def run(cells: Sequence[Cell], settings: Settings) -> store.Record:
    """Measure and return the whole record, ready for `store.save`; after Ctrl-C, what there is of it."""
    progress = Progress(len(cells) * len(settings.threads))
    arms, arm_record = load_arms(settings, progress)
    record = store.new(environment.host(settings.host), arm_record, asdict(settings))
    spacers: dict[str, Any] = {}
    if settings.device == "cuda":
        from . import cuda

        record["environment"]["gpu"] = cuda.device_record()
        cuda.warm_up()
        spacers = dict(cuda.spacers(settings.clocks))
    budget = Budget(settings.minutes, progress.total)
    try:
        with torch.no_grad():
            for threads in settings.threads:
                _run_threads(cells, threads, arms, settings, record, progress, budget, spacers)
    except KeyboardInterrupt:
        progress.note(f"interrupted after {progress.done} of {progress.total} cells")
    record["environment"]["load_average_end"] = environment.load_average()
    progress.close()
    return record


def _run_threads(
    cells: Sequence[Cell],
    threads: int,
    arms: Sequence[Arm],
    settings: Settings,
    record: store.Record,
    progress: Progress,
    budget: Budget,
    spacers: Mapping[str, Any],
) -> None:
    if settings.device == "cpu":
        torch.set_num_threads(threads)
    record["floors"][str(threads)] = floors.measure(settings.device, settings.block_us * 1000)
    for cell in cells:
        progress.show(f"{cell.key}, {threads} thread{'s' * (threads > 1)}")
        for cell_record in run_cell(cell, threads, arms, settings, budget.deadline(), spacers):
            for name, entry in cell_record["arms"].items():
                if "wrong" in entry:
                    progress.note(f"{cell.key}, {cell_record['clock']}: {name} not timed: {entry['wrong']}")
            record["cells"].append(cell_record)
        progress.step()
