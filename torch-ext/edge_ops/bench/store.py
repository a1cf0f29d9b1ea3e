"""The file of raw samples: JSON, gzipped where its name ends in .gz; and what is computed from one cell of it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cells import Cell
from .stats import Kept, Ratio, drop_rule, null_difference, quartiles, ratio

SCHEMA = 2  # a file of schema 1 is one bare record

Record = dict[str, Any]


def new(environment: dict[str, Any], arms: dict[str, Any], settings: dict[str, Any]) -> Record:
    """What one process measures."""
    return {
        "environment": environment,
        "settings": settings,
        "arms": arms,
        "floors": {},
        "cells": [],
        "decode": [],
    }


def save(records: Sequence[Record], path: Path) -> None:
    """Samples are nanoseconds a call, with five digits: far below what the clock tells apart."""
    text = json.dumps({"schema": SCHEMA, "records": _rounded(list(records))}, separators=(",", ":")) + "\n"
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
    else:
        path.write_text(text)


def load(path: Path) -> list[Record]:
    """The records of a file.

    Raises:
        OSError: the file cannot be read.
        ValueError: not a file of this program, or of a schema that it does not know.
    """
    data = path.read_bytes()
    try:
        file = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    except (ValueError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    schema = file.get("schema") if isinstance(file, dict) else None
    if schema == 1:
        return [{"decode": [], **file}]
    if schema != SCHEMA:
        raise ValueError(f"{path}: not a benchmark file of schema {SCHEMA} or 1")
    records: list[Record] = file["records"]
    return records


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value


@dataclass(frozen=True)
class Measured:
    """One cell under one thread count and one clock, with the samples of the kept passes joined.

    `differences` are the null differences of all its passes, the dropped ones included.
    """

    cell: Cell
    threads: int
    clock: str
    differences: tuple[float, ...]
    kept: Kept
    samples: dict[str, list[float]]
    wrong: dict[str, str]

    @property
    def settled(self) -> bool:
        return bool(self.kept.passes)

    def has(self, arm: str) -> bool:
        return arm in self.samples

    def nanoseconds(self, arm: str) -> tuple[float, float, float]:
        """Lower quartile, median, upper quartile."""
        return quartiles(self.samples[arm])

    def speedup(self, arm: str, over: str) -> Ratio:
        """How many times faster `arm` is than `over`."""
        return ratio(self.samples[over], self.samples[arm])

    def loses(self, arm: str, to: str) -> bool:
        """Slower by more than the cell can tell apart."""
        return self.speedup(arm, to).value < 1 - self.kept.resolution


def measured(record: dict[str, Any]) -> list[Measured]:
    """Every timed cell of a record, the drop rule applied."""
    result = []
    for entry in record["cells"]:
        if not entry["passes"]:
            continue
        kept = drop_rule(entry["passes"], entry["doubled"], entry["twin"])
        differences = tuple(null_difference(one[entry["doubled"]], one[entry["twin"]]) for one in entry["passes"])
        names = [name for name in entry["passes"][0] if name != entry["twin"]]
        samples = {name: [s for index in kept.passes for s in entry["passes"][index][name]] for name in names}
        wrong = {name: arm["wrong"] for name, arm in entry["arms"].items() if "wrong" in arm}
        cell = Cell.from_json(entry["cell"])
        clock = entry.get("clock", "call")
        result.append(Measured(cell, entry["threads"], clock, differences, kept, samples, wrong))
    return result
