"""Runs a list of cells in a process of its own: an ISA level is chosen when the library is loaded.

    python -m edge_ops.bench.worker JOB RESULT

JOB is a JSON file of cells and settings, RESULT where the record goes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import store
from .cells import Cell
from .runner import Settings, run

# What PyTorch calls the levels: it is lowered together with Edge-ops.
LEVELS = {"baseline": "default", "avx2": "avx2", "avx512": "avx512"}


def run_at(level: str, cells: Sequence[Cell], settings: Settings) -> list[store.Record]:
    """These cells with Edge-ops, eager PyTorch and torch.compile at an ISA level; after Ctrl-C, those that were done.

    Raises:
        RuntimeError: the process did not finish; its own message stands on standard error.
    """
    with tempfile.TemporaryDirectory() as folder:
        job, result = Path(folder, "job.json"), Path(folder, "result.json")
        job.write_text(json.dumps({"cells": [cell.to_json() for cell in cells], "settings": asdict(settings)}))
        package = str(Path(__file__).resolve().parents[2])
        search = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        changes = {"EDGE_OPS_CPU_ISA": level, "ATEN_CPU_CAPABILITY": LEVELS[level], "PYTHONPATH": search}
        command = [sys.executable, "-m", __name__, str(job), str(result)]
        process = subprocess.Popen(command, env={**os.environ, **changes})
        while True:
            try:
                status = process.wait()
                break
            except KeyboardInterrupt:  # reached the worker, too, which writes what it has
                continue
        if status != 0:
            raise RuntimeError(f"the process for level {level} ended with status {status}")
        return store.load(result)


def main(job: str, result: str) -> None:
    work = json.loads(Path(job).read_text())
    settings: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in work["settings"].items()}
    record = run([Cell.from_json(cell) for cell in work["cells"]], Settings(**settings))
    store.save([record], Path(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
