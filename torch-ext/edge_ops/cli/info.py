"""``edge-ops info``: what was built, what this machine offers, and a self-check against the contract."""

import argparse
import json
import platform
from typing import Any, List

from .. import native
from . import selfcheck


def run(arguments: argparse.Namespace) -> int:
    """Prints the facts; 0 where every operator has the contract's bits."""
    info = native.build_info()
    outcomes = selfcheck.run()
    good = all(outcome.contract and outcome.reference for outcome in outcomes)
    if arguments.json:
        print(json.dumps({**info, "self_check": [outcome._asdict() for outcome in outcomes]}, indent=2))
        return 0 if good else 1
    rows = [
        ("edge_ops", info["version"]),
        ("build", info["build"]),
        ("direct calls", "yes" if info["direct"] else "no"),
        ("backends", _words(info["backends"])),
        ("ISA compiled", _words(info["isa_compiled"])),
        ("ISA offered here", _words(info["isa_offered"])),
        ("ISA chosen", info["isa_chosen"] or "none: plain PyTorch"),
        ("torch", info["torch"]),
        ("python", f"{platform.python_version()} on {platform.machine()} {platform.system()}"),
    ]
    for title, value in rows:
        print(f"{title:18}{value}")
    dtypes = list(selfcheck.DTYPES)
    print(f"{'self-check':20}" + "".join(f"{dtype:>10}" for dtype in dtypes))
    for operator in dict.fromkeys(outcome.operator for outcome in outcomes):
        marks = [_mark(o) for dtype in dtypes for o in outcomes if (o.operator, o.dtype) == (operator, dtype)]
        print(f"  {operator:18}" + "".join(f"{mark:>10}" for mark in marks))
    print("every operator has the contract's bits" if good else "SOME BITS ARE NOT THE CONTRACT'S")
    return 0 if good else 1


def _mark(outcome: selfcheck.Outcome) -> str:
    if outcome.contract:
        return "ok" if outcome.reference else "reference"
    return "WRONG"


def _words(values: List[Any]) -> str:
    return ", ".join(map(str, values)) if values else "none"
