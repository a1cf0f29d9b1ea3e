"""``edge-ops report``: tables and plots from files of raw samples."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Adds the command to the program's."""
    parser = commands.add_parser(
        "report",
        help="tables and plots from the files that bench wrote",
        description="Computes every table and plot from the raw samples of one or many hosts.",
    )
    parser.add_argument("files", nargs="+", type=Path, help="what `edge-ops bench --out` wrote")
    parser.add_argument("--html", type=Path, help="write one self-contained page (needs matplotlib)")
    parser.add_argument("--markdown", type=Path, nargs="?", const=Path("-"), help="write Markdown (standard output)")
    parser.add_argument("--goals", action="store_true", help="the project's goals instead: pass or fail")


def run(arguments: argparse.Namespace) -> int:
    """Writes what was asked for; 2 where a file cannot be used, 1 where a goal is missed."""
    from ..bench import goals, page, report, store

    try:
        records = [record for path in arguments.files for record in store.load(path)]
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if arguments.goals:
        return goals.print_outcomes(records)
    if arguments.html:
        try:
            shown = report.blocks(records, drawings=True)
        except ImportError as error:
            print(f"{error}: the page's drawings need matplotlib (pip install matplotlib)", file=sys.stderr)
            return 2
        arguments.html.write_text(page.render("Edge-ops: measurements", shown), encoding="utf-8")
    if arguments.markdown or not arguments.html:
        text = report.markdown(report.blocks(records))
        if arguments.markdown in (None, Path("-")):
            print(text)
        else:
            arguments.markdown.write_text(text + "\n")
    return 0
