"""``edge-ops tune``: measures from which size splitting rows over threads pays here, and writes a tuning file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Adds the command to the program's."""
    parser = commands.add_parser(
        "tune",
        help="measure from which size threads pay on this machine",
        description="Times every kind of operator with its rows on one thread and split in two, shows the curves and "
        "where they cross, and writes a file that EDGE_OPS_TUNING or edge_ops.load_tuning loads. No choice changes a "
        "bit of any result.",
    )
    parser.add_argument("--out", type=Path, help="where to write the tuning file")
    parser.add_argument("--show", type=Path, help="show the curves of a tuning file instead of measuring")
    parser.add_argument("--threads", type=int, help="threads of PyTorch's pool (its own choice)")
    parser.add_argument("--trials", type=int, default=24, help="trials a point (24)")
    parser.add_argument("--block-us", type=int, default=100, help="length of a block of calls (100)")
    parser.add_argument("--host", help="what to call this machine in the file (its name)")


def run(arguments: argparse.Namespace) -> int:
    """Measures, shows and writes; 2 where there is nothing to tune."""
    import torch

    from .. import native
    from ..bench import environment, tune
    from ..tuning import load_tuning

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    try:
        if arguments.show:
            load_tuning(arguments.show)
            content = json.loads(arguments.show.read_text(encoding="utf-8"))
        else:
            content = tune.tuning(tune.sweep(arguments.trials, arguments.block_us), environment.host(arguments.host))
    except (OSError, RuntimeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if "measured" in content:
        tune.curves(tune.medians(content["measured"]["points"]), print)
    print(f"{'kind':8}{'built in':>10}{'chosen':>10}   (elements up to which rows stay on one thread)")
    for kind, grain in content["cpu"]["grains"].items():
        print(f"{kind:8}{native.BUILT_IN_GRAINS.get(kind, ''):>10}{grain:>10}")
    if arguments.out:
        arguments.out.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")
        print(f"wrote {arguments.out}: EDGE_OPS_TUNING={arguments.out} loads it")
    return 0
