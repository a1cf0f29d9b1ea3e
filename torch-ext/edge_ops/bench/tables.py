"""Tables of a report: environment, arms, floors, means, every cell against its best peer, losses, decode loops."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from . import analysis
from . import decode as decode_loops
from .analysis import LOSS, TIE, WIN, Run, best_peer, verdict
from .arms import MAIN, NAMES
from .blocks import Block, Bullets, Fold, Table, Text, table
from .stats import NULL_LIMIT, Ratio
from .store import Measured

MARKS = {WIN: "win", TIE: "tie", LOSS: "**loss**"}


def times(found: Ratio) -> str:
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


def threads_of(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


def conditions(run: Run, threads: int, clock: str) -> str:
    """What a cell's figures were taken under: threads on the CPU, the clock on a GPU."""
    return threads_of(threads) if run.device == "cpu" else clock


def microseconds(ns: float) -> str:
    return f"{ns / 1000:.2f}"


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def environment(run: Run) -> Bullets:
    host = run.environment
    own = host.get("edge_ops") or {}
    caches = ", ".join(f"{name} {size}" for name, size in host["caches"].items())
    clock = f"{host['clock_khz']} kHz" if host["clock_khz"] else f"{host['clock_mhz_reported']} MHz as reported"
    settings = run.record["settings"]
    minutes = f", {settings['minutes']:g} minutes in all" if settings.get("minutes") else ""
    gpu = host.get("gpu")
    ended = f", {host['load_average_end'][0]:.2f} at the end" if "load_average_end" in host else ""
    loops = "steps" in settings
    trials = f"{settings['steps']} tokens a pass" if loops else f"{settings['trials']} trials a pass"
    trials += "" if loops else f", blocks of {settings['block_us']} µs"
    return Bullets(
        (
            f"{host['cpu']}, {host['cores']} cores; {caches or 'caches not readable'}",
            *([f"{gpu['name']}, driver {gpu['driver']}, CUDA {gpu['cuda']}; {gpu['clocks']}"] if gpu else []),
            f"governor {host['governor'] or 'not readable'}, clock {clock};"
            f" load average {host['load_average'][0]:.2f} at the start{ended}",
            f"{host['system']}, Python {host['python']}, torch {host['torch']} ({host['torch_cpu_capability']});"
            f" Edge-ops {own.get('version', 'absent')}, ISA level {own.get('isa_chosen', 'none')};"
            f" commit {host['commit'] or 'unknown'}{' with local changes' if host['modified'] else ''}, {host['time']}",
            f"{trials}, up to {settings['passes']} passes to keep {settings['keep']}{minutes}",
        )
    )


def arms(run: Run, level: int) -> Fold:
    rows = [
        (name, arm["title"], arm.get("version") or f"not installed: {arm['not_installed']}")
        for name, arm in run.record["arms"].items()
    ]
    return Fold(level, "Arms", (table(("arm", "what", "version"), rows, labels=3),))


def floors(run: Run, level: int) -> list[Block]:
    blocks: list[Block] = []
    for threads, found in run.record["floors"].items():
        calls = [(name, f"{statistics.median(entry['samples']) / 1000:.3f}") for name, entry in found["calls"].items()]
        count = conditions(run, int(threads), "kernels and calls")
        tables = [table(("call without work", "µs"), calls)]
        rows = [(_size(int(size)), f"{value:.0f}") for size, value in found.get("copy_bytes_per_ns", {}).items()]
        if rows:
            tables.append(table(("copy, working set", "GB/s, read + written"), rows))
        blocks.append(Fold(level, f"Floors, {count}", tuple(tables)))
    return blocks


def passes(run: Run) -> Text:
    dropped = sum(one.kept.dropped for one in run.cells)
    total = dropped + sum(len(one.kept.passes) for one in run.cells)
    unsettled = sum(not one.settled for one in run.cells)
    worst = max((one.kept.resolution for one in run.cells if one.settled), default=0.0)
    return Text(
        f"{total} passes over {len(run.cells)} cells; {dropped} dropped because the twins differed by more than"
        f" {NULL_LIMIT:.0%}; {unsettled} cells kept none and are left out. The worst kept pass differs by {worst:.2%}."
    )


def _over(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def means(runs: Sequence[Run]) -> Table:
    several = len({run.host for run in runs}) > 1
    clocks = any(one.clock != "call" for run in runs for one in run.compared)
    rows = []
    for run in runs:
        for mean in analysis.means(run.compared):
            counts = [str(mean.verdicts.count(kind)) for kind in (WIN, TIE, LOSS)]
            rows.append(
                (
                    *([run.host] if several else []),
                    run.device if run.device != "cpu" else run.level,
                    str(mean.threads),
                    *([mean.clock] if clocks else []),
                    mean.operator,
                    mean.dtype,
                    str(mean.tokens),
                    _over(mean.over_base),
                    _over(mean.over_peer),
                    " / ".join(counts) if mean.verdicts else "",
                )
            )
    header = (
        *(["host"] if several else []),
        "level",
        "threads",
        *(["clock"] if clocks else []),
        *("operator", "dtype", "tokens"),
        *("times eager", "times best peer", "win / tie / loss"),
    )
    return table(header, rows, labels=len(header) - 3)


def overview(runs: Sequence[Run]) -> Table:
    """One line an operator, dtype and token count; a pair of columns a run and thread count, or a run and clock."""
    columns: dict[str, dict[tuple[str, str, int], analysis.Mean]] = {}
    for run in runs:
        for mean in analysis.means(run.compared):
            column = columns.setdefault(
                f"{run.level}, {threads_of(mean.threads)}" if run.device == "cpu" else mean.clock, {}
            )
            column[mean.operator, mean.dtype, mean.tokens] = mean
    keys = list(dict.fromkeys(key for column in columns.values() for key in column))
    order = {name: index for index, name in enumerate(dict.fromkeys(key[0] for key in keys))}
    keys.sort(key=lambda key: (order[key[0]], key[1], key[2]))
    rows = []
    for key in keys:
        values = []
        for column in columns.values():
            found = column.get(key)
            values += [_over(found.over_base), _over(found.over_peer)] if found else ["", ""]
        rows.append((key[0], key[1], str(key[2]), *values))
    titles = [f"{column}: x {what}" for column in columns for what in ("eager", "peer")]
    return table(("operator", "dtype", "tokens", *titles), rows, labels=3)


def _cell_table(run: Run, found: Sequence[Measured]) -> Table:
    """One operator, dtype, thread count and clock: a row a shape, the other arms as multiples."""
    others = [name for name in NAMES if name != MAIN and any(one.has(name) for one in found)]
    rows = []
    for one in found:
        low, median, high = map(microseconds, one.nanoseconds(MAIN))
        roof, peer = run.roof_ns(one), best_peer(one)
        against = "" if peer is None else f"{peer}: {times(one.speedup(MAIN, peer))} {MARKS[verdict(one, peer)]}"
        rows.append(
            (
                one.cell.shape,
                f"{median} [{low}, {high}]",
                "" if roof is None else microseconds(roof),
                *(_over(one.speedup(MAIN, name).value) if one.has(name) else "" for name in others),
                against,
            )
        )
    header = ("tokens x shape", "Edge-ops, µs", "copy, µs", *(f"x {name}" for name in others), "against the best peer")
    return table(header, rows)


def cells(run: Run, level: int) -> list[Block]:
    blocks: list[Block] = []
    for (operator, dtype, threads, clock), members in analysis.groups(run.compared).items():
        title = f"{operator}, {dtype}, {conditions(run, threads, clock)}"
        blocks.append(Fold(level, title, (_cell_table(run, members),)))
    return blocks


def decode(runs: Sequence[Run]) -> list[Block]:
    """Tokens a second and time to the first token of every arm, against eager; or nothing."""
    rows = []
    noise = []
    for run in runs:
        for entry in run.record["decode"]:
            found = decode_loops.kept(entry)
            name = f"{entry['model']}, {entry['dtype']}, {threads_of(entry['threads'])}"
            worst = f"twins within {found.resolution:.2%}" if found.passes else "nothing is claimed"
            noise.append(f"{run.label}: {name}: {len(found.passes)} passes kept, {found.dropped} dropped; {worst}.")
            for loop in decode_loops.loops(entry):
                low, median, high = (1e9 / value for value in reversed(loop.step))
                rows.append(
                    (
                        f"{run.label}: {name}",
                        loop.arm,
                        f"{median:.1f} [{low:.1f}, {high:.1f}]",
                        times(loop.faster) if loop.arm != decode_loops.EAGER else "",
                        loop.verdict if loop.arm != decode_loops.EAGER else "",
                        f"{loop.first[1] / 1e6:.0f}",
                        f"{loop.first_faster.value:.2f}" if loop.arm != decode_loops.EAGER else "",
                        loop.first_verdict if loop.arm != decode_loops.EAGER else "",
                        f"{loop.agree} of {entry['steps'] + 1}",
                    )
                )
    if not noise:
        return []
    header = (
        *("model", "arm", "tokens/s", "times eager", "difference"),
        *("first token, ms", "times eager", "difference", "tokens as eager"),
    )
    return [table(header, rows, labels=2), Bullets(tuple(noise))]


def losses(runs: Sequence[Run]) -> list[Block]:
    """Every cell in which eager or a peer is ahead by more than the noise, with the likely reason."""
    found = [loss for run in runs for loss in analysis.losses(run)]
    if not found:
        return [Text("No cell is slower than eager or a peer.")]
    rows = [
        (
            loss.run.label,
            conditions(loss.run, loss.one.threads, loss.one.clock),
            loss.one.cell.key,
            loss.arm,
            microseconds(loss.one.nanoseconds(MAIN)[1]),
            microseconds(loss.one.nanoseconds(loss.arm)[1]),
            times(loss.one.speedup(MAIN, loss.arm)),
            loss.reason,
        )
        for loss in found
    ]
    compared = sum(len(run.compared) for run in runs)
    cells_lost = len({(loss.run.label, loss.one.threads, loss.one.clock, loss.one.cell) for loss in found})
    header = ("run", "under", "cell", "slower than", "Edge-ops, µs", "it, µs", "ratio", "likely reason")
    return [
        Text(f"{cells_lost} of {compared} cells are slower than eager or a peer by more than their noise."),
        table(header, rows, labels=4),
    ]
