"""``edge-ops qualify``: whether every operator has the contract's bits here, as a table and a record."""

import argparse
import datetime
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from ..qualify import compare, levels, record, show


def add(commands: Any) -> None:
    """Adds the sub-command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "qualify",
        help="prove the contract's bits on this device, and compare two devices",
        description="Runs every operator on a fixed corpus, on every backend and ISA level of this host, and holds the "
        "results against the shipped digests. Exit status: 0 passed, 1 failed, 2 not run.",
    )
    parser.add_argument("--record", type=Path, metavar="FILE", help="where to write the record (a name with the time)")
    parser.add_argument("--json", action="store_true", help="print the record instead of a table; a file only if named")
    parser.add_argument(
        "--quick", action="store_true", help="a quarter of the cases, no large ones: does not qualify a device"
    )
    parser.add_argument("--levels", metavar="NAMES", help="some of this host's levels (all)")
    parser.add_argument("--only", metavar="TEXT", help="only cases with this in their name: does not qualify a device")
    parser.add_argument("--device-name", metavar="NAME", help="what to call the device in the record")
    parser.add_argument("--signed-off-by", metavar="WHO", help="who answers for the record")
    parser.add_argument("--note", metavar="TEXT", help="anything to add to the record")
    parser.add_argument("--emulated", metavar="TEXT", help="what emulates this machine (user-mode QEMU is noticed)")
    parser.add_argument(
        "--compare", nargs=2, type=Path, metavar=("A", "B"), help="whether a decode may move between two records"
    )


def run(arguments: argparse.Namespace) -> int:
    """Qualifies, or compares."""
    if arguments.compare is not None:
        return _compare(arguments.compare)
    selection = levels.Selection(arguments.quick, arguments.only)
    cases = selection.cases()
    if not cases:
        return _refuse(f"--only {arguments.only!r} is in no case's name")
    wanted = levels.known()
    if arguments.levels is not None:
        wanted = [name.strip() for name in arguments.levels.split(",")]
        unknown = [name for name in wanted if name not in levels.known()]
        if unknown:
            return _refuse(f"--levels must be some of {','.join(levels.known())}, got {','.join(unknown)}")
    started = datetime.datetime.now(datetime.timezone.utc)
    target: Optional[Path] = arguments.record
    if target is None and not arguments.json:
        target = Path(f"edge-ops-qualification-{started:%Y%m%dT%H%M%SZ}.json")
    if target is not None and not _can_write(target):
        return _refuse(f"--record {target} cannot be written")

    clock = time.perf_counter()
    hindered = {name: levels.hindrance(name) for name in wanted}
    not_run = {name: why for name, why in hindered.items() if why is not None}
    not_run.update({name: "left out by --levels" for name in levels.offered() if name not in wanted})
    entries: Dict[str, Any] = {}
    for name in wanted:
        if name not in not_run:
            entries[name] = _level(name, cases, selection)
    found = record.make(
        entries, not_run, selection, started=started, seconds=time.perf_counter() - clock,
        device_name=arguments.device_name, signed_off_by=arguments.signed_off_by, note=arguments.note,
        emulated=arguments.emulated,
    )  # fmt: skip
    if target is not None:
        record.write(found, target)
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        _print(found, target)
    return 0 if found["passed"] else 1


def _level(name: str, cases: List[Any], selection: levels.Selection) -> Dict[str, Any]:
    """Runs one level, with its progress on a terminal."""
    gathered = record.Level(cases)
    terminal = sys.stderr.isatty()
    try:
        for outcome in levels.found(name, selection):
            gathered.found.append(outcome)
            if terminal:
                print(f"\r{name}: {len(gathered.found)} of {len(cases)} cases", end="", file=sys.stderr, flush=True)
    except levels.LevelError as reason:
        gathered.error = str(reason)
    if terminal:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return gathered.entry()


def _print(found: Dict[str, Any], target: Optional[Path]) -> None:
    for line in (*show.summary(found), "", *show.table(found), *show.differences(found)):
        print(line)
    print()
    if found["scope"] != "full":
        print(f"A {found['scope']} run: it does not qualify this device.")
    if found["passed"]:
        print(f"Every operator has the contract's bits at every level that was run ({found['seconds']:.0f} s).")
    else:
        print("FAILED: some results are not the contract's.")
    if target is not None:
        print(f"record: {target}")


def _compare(paths: List[Path]) -> int:
    try:
        records = [(str(path), record.read(path)) for path in paths]
    except record.RecordError as reason:
        return _refuse(str(reason))
    verdict = compare.compare(*records)
    for line in show.verdict([name for name, _ in records], verdict):
        print(line)
    return 0 if verdict.may_move else 1


def _can_write(path: Path) -> bool:
    return os.access(path, os.W_OK) if path.is_file() else not path.exists() and os.access(path.parent, os.W_OK)


def _refuse(reason: str) -> int:
    print(f"edge-ops qualify: {reason}", file=sys.stderr)
    return 2
