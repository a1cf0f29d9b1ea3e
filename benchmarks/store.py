"""The file of raw samples: JSON, gzipped where its name ends in .gz; and what is computed from one cell of it."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .cells import Cell
from .stats import Kept, Ratio, drop_rule, quartiles, ratio

SCHEMA = 1


def new(environment: dict[str, Any], arms: dict[str, Any], settings: Any) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "environment": environment,
        "settings": asdict(settings),
        "arms": arms,
        "floors": {},
        "cells": [],
    }


def save(record: dict[str, Any], path: Path) -> None:
    """Samples are nanoseconds a call; a tenth of a nanosecond is far below what the clock tells apart."""
    text = json.dumps(_rounded(record), separators=(",", ":")) + "\n"
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
    else:
        path.write_text(text)


def load(path: Path) -> dict[str, Any]:
    """
    Raises:
        ValueError: not a file of this program, or of another schema.
    """
    data = path.read_bytes()
    record = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise ValueError(f"{path}: not a benchmark record of schema {SCHEMA}")
    return record


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}") if abs(value) < 1000 else round(value, 1)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value


@dataclass(frozen=True)
class Measured:
    """One cell under one thread count, with the samples of the kept passes joined."""

    cell: Cell
    threads: int
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
        names = [name for name in entry["passes"][0] if name != entry["twin"]]
        samples = {name: [s for index in kept.passes for s in entry["passes"][index][name]] for name in names}
        wrong = {name: arm["wrong"] for name, arm in entry["arms"].items() if "wrong" in arm}
        result.append(Measured(Cell.from_json(entry["cell"]), entry["threads"], kept, samples, wrong))
    return result
