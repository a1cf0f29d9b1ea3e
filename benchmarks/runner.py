"""Runs cells: prepare every arm, check its results, then time them all interleaved, pass by pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import environment, floors, problems, store
from .arms import ALL, BASE, MAIN, OWN, Arm, NotInstalled, worst_error
from .cells import Cell
from .progress import Progress
from .stats import drop_rule
from .timing import TimedCall, run_pass

TWIN = " (twin)"


@dataclass(frozen=True)
class Settings:
    """`keep` passes with agreeing twins are wanted for each cell, and at most `passes` are run for them."""

    threads: tuple[int, ...]
    arms: tuple[str, ...]
    trials: int = 24
    keep: int = 3
    passes: int = 12
    block_us: int = 300
    host: str | None = None


def load_arms(names: Sequence[str], progress: Progress) -> tuple[list[Arm], dict[str, dict[str, Any]]]:
    """The arms that can run here, and what the record says of each."""
    loaded, record = [], {}
    for arm in ALL:
        if arm.name not in names:
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
    timed = TimedCall(call)
    timed.restore()
    results = tuple(result.clone() for result in call.results(timed.once()))
    return timed, results, worst_error(call, results, problem)


def run_cell(cell: Cell, threads: int, arms: Sequence[Arm], settings: Settings) -> dict[str, Any]:
    """The record of one cell: errors, blocks and the samples of every pass."""
    problem = problems.make(cell)
    timed: dict[str, TimedCall] = {}
    record: dict[str, Any] = {"cell": cell.to_json(), "threads": threads, "arms": {}, "passes": []}
    own_results: tuple[torch.Tensor, ...] | None = None
    for arm in arms:
        prepared = prepare(arm, problem)
        if prepared is None:
            continue
        call, results, error = prepared
        entry: dict[str, Any] = {"error": error}
        record["arms"][arm.name] = entry
        if error > 1:
            entry["wrong"] = f"error of {error:.3g} times what {call.call.roundings} roundings allow"
            continue
        if arm.name in OWN:
            own_results = own_results or results
            if not all(torch.equal(a, b) for a, b in zip(own_results, results, strict=True)):
                entry["wrong"] = "not the bits of Edge-ops' other route"
                continue
        timed[arm.name] = call
    for name, call in timed.items():
        call.calibrate(settings.block_us * 1000)
        record["arms"][name]["block"] = call.block
    if not timed:
        return record
    doubled = next((name for name in (MAIN, BASE) if name in timed), next(iter(timed)))
    record["doubled"], record["twin"] = doubled, doubled + TWIN
    timed[record["twin"]] = timed[doubled]
    kept = 0
    while kept < settings.keep and len(record["passes"]) < settings.passes:
        record["passes"].append(run_pass(timed, settings.trials))
        kept = len(drop_rule(record["passes"], doubled, record["twin"]).passes)
    return record


def run(cells: Sequence[Cell], settings: Settings) -> dict[str, Any]:
    """Measure and return the whole record, ready for `store.save`; after Ctrl-C, what there is of it."""
    progress = Progress(len(cells) * len(settings.threads))
    arms, arm_record = load_arms(settings.arms, progress)
    record = store.new(environment.host(settings.host), arm_record, settings)
    try:
        with torch.no_grad():
            for threads in settings.threads:
                _run_threads(cells, threads, arms, settings, record, progress)
    except KeyboardInterrupt:
        progress.note(f"interrupted after {progress.done} of {progress.total} cells")
    record["environment"]["load_average_end"] = environment.host()["load_average"]
    progress.close()
    return record


def _run_threads(
    cells: Sequence[Cell],
    threads: int,
    arms: Sequence[Arm],
    settings: Settings,
    record: dict[str, Any],
    progress: Progress,
) -> None:
    torch.set_num_threads(threads)
    record["floors"][str(threads)] = {
        "calls": floors.call_floors(settings.block_us * 1000),
        "copy_bytes_per_ns": floors.copy_bandwidth(settings.block_us * 1000),
    }
    for cell in cells:
        progress.show(f"{cell.key}, {threads} thread{'s' * (threads > 1)}")
        cell_record = run_cell(cell, threads, arms, settings)
        for name, entry in cell_record["arms"].items():
            if "wrong" in entry:
                progress.note(f"{cell.key}: {name} not timed: {entry['wrong']}")
        record["cells"].append(cell_record)
        progress.step()
