#!/usr/bin/env python3
"""Writes docs/cpu-results.md and README's table from the committed records in benchmarks/results.

PYTHONPATH=torch-ext python tools/benchmark_pages.py            # writes both
PYTHONPATH=torch-ext python tools/benchmark_pages.py --check    # exit status 1 where a page is not in step
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "torch-ext"))

from edge_ops.bench import analysis, report, store  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
RECORDS = ("cpu-levels.json.gz", "cpu-targets-avx512.json.gz", "cpu-compile-avx512.json.gz", "cpu-decode.json.gz")
HEAD = (
    "# CPU results\n\nWritten by `tools/benchmark_pages.py` from the raw samples in `benchmarks/results`;"
    " [benchmarks.md](benchmarks.md) says how they are taken and read.\n\n"
)


def pages() -> dict[Path, str]:
    """What each page should hold."""
    records = [record for name in RECORDS for record in store.load(RESULTS / name)]
    compared = [run for run in analysis.runs(store.load(RESULTS / RECORDS[0])) if run.compared]
    readme = ROOT / "README.md"
    table = report.markdown(report.summary(compared, level=3))
    return {
        ROOT / "docs" / "cpu-results.md": HEAD + report.markdown(report.blocks(records)) + "\n",
        readme: report.replaced(readme.read_text(), "results", table, "README.md"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text() != text]
    if not parser.parse_args().check:
        for path, text in pages().items():
            path.write_text(text)
        return 0
    for path in stale:
        print(f"{path.relative_to(ROOT)} is not in step with benchmarks/results: run tools/benchmark_pages.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
