"""Command line: `run` measures, `report` turns records into Markdown."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from . import cells, report, store, targets
from .arms import NAMES
from .runner import Settings, run

SLOW_TO_START = "compile"  # compiles for seconds a cell, so a quick look leaves it out


def _names(allowed: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        chosen = tuple(part for part in text.split(",") if part)
        unknown = [part for part in chosen if part not in allowed]
        if unknown or not chosen:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown) or 'nothing'}: choose from {', '.join(allowed)}")
        return chosen

    return parse


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers") from None
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: every number must be at least 1")
    return counts


def _threads(text: str) -> tuple[int, ...]:
    """Numbers, or `all` for torch's own choice."""
    return _counts(text.replace("all", str(torch.get_num_threads())))


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)

    measure = commands.add_parser("run", help="measure and write the raw samples")
    preset = measure.add_mutually_exclusive_group()
    preset.add_argument("--quick", action="store_true", help="every operator at one geometry, under a minute")
    preset.add_argument(
        "--targets", action="store_true", help="the cells of the project's goals, one thread; pass or fail"
    )
    measure.add_argument(
        "--op", type=_names(cells.OPERATORS), default=cells.OPERATORS, help="operators, comma-separated"
    )
    measure.add_argument("--dtype", type=_names(cells.DTYPES), default=cells.DTYPES)
    measure.add_argument("--tokens", type=_counts, default=cells.TOKENS)
    measure.add_argument(
        "--shape", type=lambda text: tuple(text.split(",")), help="widths or head layouts, such as 1024,16/8x128"
    )
    measure.add_argument("--arms", type=_names(NAMES), help=f"from {', '.join(NAMES)}")
    measure.add_argument("--threads", type=_threads, default=(1,), help="such as 1 or 1,all (default 1)")
    measure.add_argument("--trials", type=int, default=Settings.trials, help="trials a pass")
    measure.add_argument("--keep", type=int, help="passes to keep for each cell (default 3, quick 1)")
    measure.add_argument("--passes", type=int, help="passes to run at most for them (default 12, quick 6)")
    measure.add_argument("--block-us", type=int, default=Settings.block_us, help="length of a block of calls")
    measure.add_argument("--host", help="what to call this machine in the record")
    measure.add_argument("--out", type=Path, help="where to write the record (.json or .json.gz)")

    tables = commands.add_parser("report", help="Markdown tables from records")
    tables.add_argument("records", nargs="+", type=Path)
    tables.add_argument("--out", type=Path, help="where to write them (default standard output)")
    tables.add_argument("--into", type=Path, help="replace the results section of this document")

    check = commands.add_parser("targets", help="the project's goals, from records")
    check.add_argument("records", nargs="+", type=Path)
    return top


def _chosen_cells(options: argparse.Namespace) -> list[cells.Cell]:
    if options.quick:
        chosen = list(cells.quick())
    elif options.targets:
        chosen = targets.needed_cells()
    else:
        return list(cells.select(options.op, options.dtype, options.tokens, options.shape))
    return [
        cell
        for cell in chosen
        if cell.operator in options.op
        and cell.dtype in options.dtype
        and cell.tokens in options.tokens
        and (options.shape is None or cell.geometry.label in options.shape)
    ]


def _default_arms(options: argparse.Namespace) -> tuple[str, ...]:
    if options.targets:
        return targets.ARMS
    return tuple(name for name in NAMES if not (options.quick and name == SLOW_TO_START))


def measure(options: argparse.Namespace) -> int:
    chosen = _chosen_cells(options)
    if not chosen:
        print("no cell matches these options", file=sys.stderr)
        return 2
    settings = Settings(
        threads=options.threads,
        arms=options.arms or _default_arms(options),
        trials=options.trials,
        keep=options.keep or (1 if options.quick else Settings.keep),
        passes=options.passes or (6 if options.quick else Settings.passes),
        block_us=options.block_us,
        host=options.host,
    )
    record = run(chosen, settings)
    if options.out:
        store.save(record, options.out)
    if options.targets:
        return _print_targets([record])
    print(report.markdown([record]))
    return 0


def _print_targets(records: list[dict[str, Any]]) -> int:
    outcomes = targets.check(records)
    print(targets.table(outcomes))
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if options.command == "run":
        return measure(options)
    try:
        records = [store.load(path) for path in options.records]
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.command == "targets":
        return _print_targets(records)
    text = report.markdown(records)
    if options.into:
        report.replace_results(options.into, text)
    elif options.out:
        options.out.write_text(text + "\n")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
