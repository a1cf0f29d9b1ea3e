"""Markdown tables from records: means, every cell against its best peer, losses marked."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from . import floors, problems, store
from .arms import BASE, MAIN, NAMES, PEERS
from .stats import Ratio, geometric_mean
from .store import Measured

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def best_peer(one: Measured) -> str | None:
    """The fastest arm that is neither Edge-ops nor eager."""
    peers = [name for name in PEERS if one.has(name)]
    return min(peers, key=lambda name: one.nanoseconds(name)[1], default=None)


def _row(values: Iterable[str]) -> str:
    return f"| {' | '.join(values)} |"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_row(header), "|---" * len(header) + "|", *map(_row, rows)]


def _times(found: Ratio) -> str:
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


def _verdict(one: Measured, arm: str, other: str) -> str:
    value, resolution = one.speedup(arm, other).value, one.kept.resolution
    return "**loss**" if value < 1 - resolution else "win" if value > 1 + resolution else "tie"


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"


def _environment(record: dict[str, Any]) -> list[str]:
    host = record["environment"]
    own = host.get("edge_ops") or {}
    caches = ", ".join(f"{name} {size}" for name, size in host["caches"].items())
    clock = f"{host['clock_khz']} kHz" if host["clock_khz"] else f"{host['clock_mhz_reported']} MHz as reported"
    settings = record["settings"]
    return [
        f"- {host['cpu']}, {host['cores']} cores; {caches or 'caches not readable'}",
        (
            f"- governor {host['governor'] or 'not readable'}, clock {clock};"
            f" load average {host['load_average'][0]:.2f} at the start, {host['load_average_end'][0]:.2f} at the end"
        ),
        (
            f"- {host['system']}, Python {host['python']}, torch {host['torch']} ({host['torch_cpu_capability']});"
            f" Edge-ops {own.get('version', 'absent')}, ISA level {own.get('isa_chosen', 'none')};"
            f" commit {host['commit']}{' with local changes' if host['modified'] else ''}, {host['time']}"
        ),
        (
            f"- {settings['trials']} trials a pass, blocks of {settings['block_us']} µs, up to {settings['passes']}"
            f" passes to keep {settings['keep']}"
        ),
    ]


def _arms(record: dict[str, Any]) -> list[str]:
    rows = [
        (name, arm["title"], arm.get("version") or f"not installed: {arm['not_installed']}")
        for name, arm in record["arms"].items()
    ]
    return _table(("arm", "what", "version"), rows)


def _floors(record: dict[str, Any]) -> list[str]:
    lines = []
    for threads, found in record["floors"].items():
        calls = [(name, f"{statistics.median(entry['samples']) / 1000:.3f}") for name, entry in found["calls"].items()]
        lines += [*_table((f"call without work, {_threads(int(threads))}", "µs"), calls), ""]
        rows = [(_size(int(size)), f"{value:.0f}") for size, value in found["copy_bytes_per_ns"].items()]
        lines += [*_table(("copy, working set", "GB/s, read + written"), rows), ""]
    return lines


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def _passes(found: Sequence[Measured]) -> list[str]:
    dropped = sum(one.kept.dropped for one in found)
    total = dropped + sum(len(one.kept.passes) for one in found)
    unsettled = [one for one in found if not one.settled]
    lines = [
        (
            f"{total} passes over {len(found)} cells; {dropped} dropped because the twins differed by more than 1 %;"
            f" {len(unsettled)} cells kept none and are left out below."
        )
    ]
    if unsettled:
        lines.append("Left out: " + "; ".join(f"{one.cell.key}, {_threads(one.threads)}" for one in unsettled) + ".")
    return lines


def _means(found: Sequence[Measured]) -> list[str]:
    """Geometric means over the geometries of an operator, dtype, token count and thread count."""
    groups: dict[tuple[str, str, int, int], list[Measured]] = defaultdict(list)
    for one in found:
        groups[one.cell.operator, one.cell.dtype, one.cell.tokens, one.threads].append(one)
    rows = []
    for (operator, dtype, tokens, threads), members in groups.items():
        against_base = [one.speedup(MAIN, BASE).value for one in members if one.has(BASE)]
        peers = [(one, peer) for one in members if (peer := best_peer(one)) is not None]
        against_peer = [one.speedup(MAIN, peer).value for one, peer in peers]
        verdicts = [_verdict(one, MAIN, peer) for one, peer in peers]
        rows.append(
            (
                operator,
                dtype,
                str(tokens),
                str(threads),
                f"{geometric_mean(against_base):.2f}" if against_base else "",
                f"{geometric_mean(against_peer):.2f}" if against_peer else "",
                f"{verdicts.count('win')} / {verdicts.count('tie')} / {verdicts.count('**loss**')}",
            )
        )
    header = ("operator", "dtype", "tokens", "threads", "times eager", "times best peer", "win / tie / loss")
    return _table(header, rows)


def _cell_rows(found: Sequence[Measured], record: dict[str, Any]) -> list[str]:
    """One operator, dtype and thread count: a row a shape, the other arms as multiples."""
    others = [name for name in NAMES if name != MAIN and any(one.has(name) for one in found)]
    rows = []
    for one in found:
        low, median, high = one.nanoseconds(MAIN)
        bandwidth = {int(k): v for k, v in record["floors"][str(one.threads)]["copy_bytes_per_ns"].items()}
        roof = floors.roof_ns(problems.traffic(one.cell), bandwidth)
        peer = best_peer(one)
        verdict = "" if peer is None else f"{peer}: {_times(one.speedup(MAIN, peer))} {_verdict(one, MAIN, peer)}"
        rows.append(
            (
                one.cell.shape,
                f"{median / 1000:.2f} [{low / 1000:.2f}, {high / 1000:.2f}]",
                f"{roof / 1000:.2f}",
                *(f"{one.speedup(MAIN, name).value:.2f}" if one.has(name) else "" for name in others),
                verdict,
            )
        )
    header = ("tokens x shape", "Edge-ops, µs", "copy, µs", *(f"x {name}" for name in others), "against the best peer")
    return _table(header, rows)


def _losses(found: Sequence[Measured]) -> list[str]:
    rows = []
    for one in found:
        for name in (BASE, *PEERS):
            if one.has(name) and one.loses(MAIN, name):
                shown = f"{one.nanoseconds(MAIN)[1] / 1000:.2f}", f"{one.nanoseconds(name)[1] / 1000:.2f}"
                rows.append((one.cell.key, str(one.threads), name, *shown, _times(one.speedup(MAIN, name))))
    header = ("cell", "threads", "slower than", "Edge-ops, µs", "it, µs", "ratio")
    return _table(header, rows) if rows else ["No cell is slower than eager or a peer."]


def _section(record: dict[str, Any]) -> list[str]:
    everything = store.measured(record)
    with_main = [one for one in everything if one.settled and one.has(MAIN)]
    lines = [f"### {record['environment']['host']}", "", *_environment(record), ""]
    lines += [*_arms(record), "", *_floors(record), *_passes(everything), ""]
    if not with_main:
        return [*lines, "Edge-ops was not measured in this record.", ""]
    lines += ["#### Means", "", *_means(with_main), "", "#### Losses", "", *_losses(with_main), ""]
    groups: dict[tuple[str, str, int], list[Measured]] = defaultdict(list)
    for one in with_main:
        groups[one.cell.operator, one.cell.dtype, one.threads].append(one)
    for (operator, dtype, threads), members in groups.items():
        lines += [f"#### {operator}, {dtype}, {_threads(threads)}", "", *_cell_rows(members, record), ""]
    wrong = [(one, name, text) for one in everything for name, text in one.wrong.items()]
    if wrong:
        lines += ["#### Not timed", ""]
        lines += [f"- {one.cell.key}, {_threads(one.threads)}: {name}, {text}" for one, name, text in wrong] + [""]
    return lines


def markdown(records: Sequence[dict[str, Any]]) -> str:
    """The tables of each record. A multiple above 1 says how many times faster Edge-ops is."""
    return "\n".join(line for record in records for line in _section(record)).rstrip()


def replace_results(document: Path, text: str) -> None:
    """Put `text` between the document's two markers.

    Raises:
        ValueError: the document does not have both.
    """
    content = document.read_text()
    if content.count(BEGIN) != 1 or content.count(END) != 1:
        raise ValueError(f"{document}: needs one line {BEGIN} and one line {END}")
    head, rest = content.split(BEGIN)
    document.write_text(f"{head}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}")
