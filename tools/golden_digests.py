"""Writes the golden digests of the qualification's cases, computed by the numerics contract in NumPy.

    PYTHONPATH=torch-ext python tools/golden_digests.py            # writes torch-ext/edge_ops/qualify/golden.json
    PYTHONPATH=torch-ext python tools/golden_digests.py --check    # compares with it; exit status 1 where they differ

The package gives the list of cases and nothing else: inputs and results are tests/support/qualification.py's.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Dict

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "torch-ext")]

from edge_ops.qualify import corpus  # noqa: E402
from support import qualification  # noqa: E402

TARGET = ROOT / "torch-ext" / "edge_ops" / "qualify" / "golden.json"


def digests(jobs: int) -> Dict[str, str]:
    cases = corpus.cases()
    with ProcessPoolExecutor(jobs) as pool:
        return dict(zip((case.name for case in cases), pool.map(qualification.digest, cases, chunksize=8)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing: say whether the file is right")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    arguments = parser.parse_args()
    found = {"corpus": corpus.VERSION, "digests": digests(arguments.jobs)}
    if arguments.check:
        shipped = json.loads(TARGET.read_text())
        same = shipped == found
        print(f"{TARGET.name} is {'the contract' if same else 'NOT the contract'}'s: {len(found['digests'])} cases")
        return 0 if same else 1
    TARGET.write_text(json.dumps(found, indent=0) + "\n")
    print(f"wrote {len(found['digests'])} digests to {TARGET}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
