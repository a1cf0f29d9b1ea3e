"""The backends and ISA levels of a host, and a run of the cases on each.

A process keeps the ISA level that it chose at import, so every other level runs in a process of its own, which
reports case by case in lines of JSON.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

import torch

from .. import native
from . import host
from .corpus import Case, cases
from .run import CUDA, REFERENCE, Found, run

_PROGRAM = "import sys; sys.path.insert(0, {root}); from {module} import report; report()"


class Selection(NamedTuple):
    """Which cases run."""

    quick: bool = False
    only: Optional[str] = None  # part of a case's name

    @property
    def scope(self) -> str:
        return "partial" if self.only else "quick" if self.quick else "full"

    def cases(self) -> List[Case]:
        return [c for c in cases() if (c.quick or not self.quick) and (self.only is None or self.only in c.name)]


class LevelError(Exception):
    """A level did not run to its end; the message says why."""


def offered() -> List[str]:
    """What calls on this host can run on, the best CPU level first; the reference where there is no native code."""
    info = native.build_info()
    levels = list(reversed(info["isa_offered"])) or [REFERENCE]
    if "cuda" in native.DEVICES and torch.cuda.is_available():
        levels.append(CUDA)
    return levels


def known() -> List[str]:
    """All that can run here: what is offered, and the PyTorch reference, which serves what native code does not."""
    return list(dict.fromkeys([*offered(), REFERENCE]))


def hindrance(level: str) -> Optional[str]:
    """Why a level cannot run from this process, or None."""
    if runs_here(level):
        return None
    if level not in offered():
        return "this host or this build does not offer it"
    if host.emulated() is not None:
        return (
            "an emulated process cannot start another one on the same processor: "
            f"run again with EDGE_OPS_CPU_ISA={level} set"
        )
    return None


def runs_here(level: str) -> bool:
    """Whether this process itself runs that level."""
    return level == REFERENCE or level == native.build_info()["isa_chosen"] or (level == CUDA and CUDA in offered())


def found(level: str, selection: Selection) -> Iterator[Found]:
    """Runs the selected cases at a level.

    Raises:
        LevelError: another process was needed and did not finish, or did not get that level.
    """
    return run(selection.cases(), level) if runs_here(level) else _elsewhere(level, selection)


def _elsewhere(level: str, selection: Selection) -> Iterator[Found]:
    package = __package__.rpartition(".")[0]
    root = Path(native.__file__).resolve().parents[package.count(".") + 1]
    program = _PROGRAM.format(root=repr(str(root)), module=__name__)
    last = "its first case"
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "EDGE_OPS_CPU_ISA": level},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"selection": selection, "build": native.build_info()["build"]}))
        process.stdin.close()
        for line in process.stdout:
            if line.startswith('{"case"'):
                outcome = Found(**json.loads(line))
                last = f"the case after {outcome.case!r}"
                yield outcome
        if process.wait():
            errors.seek(0)
            said = _last_line(errors.read())
            raise LevelError(f"the process of level {level} {_ending(process.returncode)} in {last}{said}")


def _ending(status: int) -> str:
    if status > 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def _last_line(errors: str) -> str:
    lines = errors.strip().splitlines()
    return f": {lines[-1]}" if lines else ""


def report() -> None:
    """The other process: reads what to run from its input and writes one line a case."""
    order: Dict[str, Any] = json.load(sys.stdin)
    info = native.build_info()
    if info["build"] != order["build"] or info["isa_chosen"] != os.environ["EDGE_OPS_CPU_ISA"]:
        sys.exit(f"it found build {info['build']} at level {info['isa_chosen']}, another than was asked for")
    for outcome in run(Selection(*order["selection"]).cases(), info["isa_chosen"]):
        print(json.dumps(outcome._asdict()), flush=True)
