#!/usr/bin/env python3
"""Drives the direct route with random calls, right and wrong, for a given time.

    python tools/harden/fuzz.py --seconds 60 [--first-seed N]
    tools/harden/sanitize.sh python tools/harden/fuzz.py --seconds 600      on a build with sanitizers

A seeded random driver (tests/support/fuzz.py), not a coverage-guided one: a seed is a call, printed where something
is wrong, so that `--first-seed N --seconds 1` repeats it. The seed at work is kept in a file beside the report
(--trace), since a crash cannot print it. Needs what testing needs, and PYTHONPATH=torch-ext or an installed wheel.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from edge_ops import native  # noqa: E402
from support import fuzz  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description="Random calls against the reference.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trace", type=Path, help="file that holds the seed of the call at work")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")  # of prototypes among PyTorch's tensor kinds
    seen: collections.Counter = collections.Counter()
    wrong = []
    seed, start = arguments.first_seed, time.monotonic()
    while time.monotonic() - start < arguments.seconds:
        if arguments.trace:
            arguments.trace.write_text(f"{seed}\n")
        try:
            seen[fuzz.run(seed)] += 1
        except AssertionError as error:
            wrong.append(seed)
            print(f"WRONG {error}", flush=True)
        seed += 1
    info = native.build_info()
    print(f"{info['build']} {info['isa_chosen']}, seeds {arguments.first_seed} to {seed - 1}: {dict(seen)}")
    print(f"{len(wrong)} wrong" if wrong else "nothing wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
