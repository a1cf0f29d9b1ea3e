"""A report on the records of one or many hosts, as blocks: Markdown and the HTML page show the same ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from . import analysis, plots, store, tables
from .analysis import Run, runs
from .arms import of_device
from .blocks import Block, Bullets, Fold, Heading, Text, markdown
from .store import Measured

ALWAYS = (
    "Times are one operator's, called back to back with its data in cache: no claim about a layer follows from them.",
    "Ratios are of medians from interleaved trials; absolute times drift with the machine and its neighbours.",
)


def summary(measured: Sequence[Run], level: int = 2) -> list[Block]:
    """The means, a column pair a level and thread count of each host."""
    blocks: list[Block] = [Heading(level, "Means")]
    blocks.append(
        Text(
            "How many times faster Edge-ops is: geometric means over the shapes of each operator, dtype and token"
            " count. `peer` is the fastest other library of each cell; below 1 it is ahead."
        )
    )
    for host in dict.fromkeys(run.host for run in measured):
        blocks.append(tables.overview([run for run in measured if run.host == host]))
    return blocks


def limits(measured: Sequence[Run], level: int = 2) -> list[Block]:
    """What the figures do not say, and what was not run."""
    items = list(ALWAYS)
    for run in measured:
        absent = [name for name, arm in run.record["arms"].items() if "not_installed" in arm]
        left_out = [name for name in of_device(run.device) if name not in run.record["arms"]]
        unsettled = [
            f"{one.cell.key} ({tables.conditions(run, one.threads, one.clock)})" for one in run.cells if not one.settled
        ]
        if absent:
            items.append(f"{run.label}: not installed and skipped: {', '.join(absent)}.")
        if left_out:
            items.append(f"{run.label}: arms not asked for: {', '.join(left_out)}.")
        if unsettled:
            items.append(f"{run.label}: no pass kept, so nothing is claimed: {'; '.join(unsettled)}.")
        if not run.environment["governor"]:
            items.append(f"{run.label}: clocks could not be read or fixed.")
        if run.environment["modified"]:
            items.append(f"{run.label}: the sources had local changes.")
        items += [
            f"{run.label}: {one.cell.key}, {tables.conditions(run, one.threads, one.clock)}: {name} not timed, {text}."
            for one in run.cells
            for name, text in one.wrong.items()
        ]
    levels = {run.level for run in measured if run.device == "cpu"}
    offered = {level for run in measured for level in (run.environment.get("edge_ops") or {}).get("isa_offered", [])}
    if levels and offered - levels:
        items.append(f"ISA levels that the hosts offer and that were not run: {', '.join(sorted(offered - levels))}.")
    return [Heading(level, "Limits, and checks not run"), Bullets(tuple(items))]


def hosts(measured: Sequence[Run], level: int = 2) -> list[Block]:
    blocks: list[Block] = [Heading(level, "Machines and settings")]
    for run in measured:
        blocks += [Heading(level + 1, run.label), tables.environment(run), tables.passes(run)]
        blocks += [tables.arms(run, level + 2), *tables.floors(run, level + 2)]
    return blocks


def every_cell(measured: Iterable[Run], level: int = 2) -> list[Block]:
    blocks: list[Block] = []
    for run in measured:
        if run.compared:
            blocks += [Heading(level, f"Every cell: {run.label}"), *tables.cells(run, level + 1)]
    return blocks


def figures(measured: Sequence[Run], level: int = 2) -> list[Block]:
    """The drawings: the first run's and its first thread count's in sight, the others on demand.

    Raises:
        ImportError: matplotlib is not installed.
    """
    shapes: list[Block] = []
    latencies: list[Block] = []
    roofs: list[Block] = []
    noise: list[Block] = []
    for run in measured:
        groups = analysis.groups(run.compared)
        by_threads: dict[tuple[int, str], list[Block]] = {}
        for (operator, dtype, threads, clock), members in groups.items():
            drawn = plots.speedups(members, f"{operator}, {dtype}")
            by_threads.setdefault((threads, clock), []).append(drawn)
        for (threads, clock), drawings in by_threads.items():
            title = f"{run.label}, {tables.conditions(run, threads, clock)}"
            shapes += _shown_or_folded(title, drawings, level + 1, first=not shapes)
        curves: dict[tuple[str, str], list[Measured]] = {}
        own_time = "call" if run.device == "cpu" else "kernel"  # what grows with the rows
        for (operator, dtype, _, clock), members in groups.items():
            if clock == own_time:
                curves.setdefault((operator, dtype), []).extend(members)
        lines = [_latency(operator, dtype, members) for (operator, dtype), members in curves.items()]
        latencies += _shown_or_folded(run.label, [line for line in lines if line], level + 1, first=not latencies)
        roofs += [
            plots.roofline(run, [one for one in shown if one.threads == threads], title)
            for shown in [[one for one in run.compared if one.clock == own_time]]
            for threads in dict.fromkeys(one.threads for one in shown)
            if str(threads) in run.record["floors"]
            for title in [f"{run.label}, {tables.conditions(run, threads, own_time)}"]
        ]
        noise.append(plots.null_spread(run.cells, run.label))
    return [
        *(Heading(level, "Speedup by shape"), Text(SHAPES), *shapes),
        *(Heading(level, "Latency against tokens"), Text(LATENCIES), *latencies),
        *(Heading(level, "Distance from the roof"), Text(ROOFS), *roofs),
        *(Heading(level, "Noise"), Text(NOISE), *noise),
    ]


SHAPES = (
    "A line a shape, a section a token count. A dot to the right of 1 says that Edge-ops is faster; the bar through it"
    " spans the quartiles of the trial-by-trial ratios. Norms and activations: tokens x width; rotations: tokens x"
    " query/key heads x head size (r: rotated part)."
)
LATENCIES = (
    "One geometry an operator, both axes logarithmic. Where a line passes Edge-ops' between two measured token counts,"
    " the crossover is circled and named."
)
ROOFS = (
    "Time of each cell in multiples of a plain copy of as many bytes, at a working set of that size. Small cells are"
    " far from it because a call has a price; what stays far at many bytes is arithmetic."
)
NOISE = (
    "Every pass times one arm twice under two names. A pass whose twins differ by more than the limit is dropped; no"
    " difference below the worst kept pass of a cell is called a win or a loss."
)


LOOPS = (
    "A prompt decoded token by token, the arms in turn, on the same weights. A difference from eager that is no larger"
    " than the eager loop's own difference from its twin is `none`. The first token comes from the uncompiled model in"
    " every arm. In 16 bits, texts may part where two tokens nearly tie."
)


def _shown_or_folded(title: str, drawings: Sequence[Block], level: int, first: bool) -> list[Block]:
    return [Heading(level, title), *drawings] if first else [Fold(level, title, tuple(drawings))]


def _latency(operator: str, dtype: str, members: Sequence[Measured]) -> Block | None:
    shown = plots.representative(members)
    if len({one.cell.tokens for one in shown}) < 2:
        return None
    return plots.latencies(shown, f"{operator}, {dtype}, {shown[0].cell.geometry.label}")


def blocks(records: Sequence[store.Record], drawings: bool = False) -> list[Block]:
    """The whole report.

    Raises:
        ImportError: drawings are wanted and matplotlib is not installed.
    """
    measured = runs(records)
    compared = [run for run in measured if run.compared]
    found: list[Block] = []
    if compared:
        found += [*summary(compared), Heading(2, "Losses"), *tables.losses(compared)]
        found += figures(compared) if drawings else []
    loops = tables.decode(measured)
    if loops:
        found += [Heading(2, "Decode loops"), Text(LOOPS), *loops]
    return [*found, *limits(measured), *every_cell(compared), *hosts(measured)]


def replace_part(document: Path, name: str, text: str) -> None:
    """Puts `text` between the document's lines `<!-- NAME: begin -->` and `<!-- NAME: end -->`.

    Raises:
        ValueError: the document does not have each once.
    """
    document.write_text(replaced(document.read_text(), name, text, str(document)))


def replaced(content: str, name: str, text: str, where: str) -> str:
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if content.count(begin) != 1 or content.count(end) != 1:
        raise ValueError(f"{where}: needs one line {begin} and one line {end}")
    head, rest = content.split(begin)
    return f"{head}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}"


__all__ = ["blocks", "figures", "every_cell", "hosts", "limits", "markdown", "replace_part", "replaced", "summary"]
