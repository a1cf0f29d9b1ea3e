"""Other Python processes: with other settings of the package, or on an emulated processor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Optional, Sequence

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent


def environment(changes: Optional[Dict[str, str]] = None) -> Dict[str, str]:
    """This process's, without the package's own settings; the tests' helpers can be imported."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("EDGE_OPS_") or k == "EDGE_OPS_TEST_DEVICE"}
    env["PYTHONPATH"] = os.pathsep.join([str(TESTS), *filter(None, [env.get("PYTHONPATH")])])
    env.update(changes or {})
    return env


def python(
    arguments: Sequence[str],
    changes: Optional[Dict[str, str]] = None,
    prefix: Sequence[str] = (),
    timeout: int = 600,
) -> "subprocess.CompletedProcess[str]":
    """Runs this interpreter. The timeout only ends what hangs; nothing is measured by it."""
    command: List[str] = [*prefix, sys.executable, *arguments]
    return subprocess.run(
        command, env=environment(changes), cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False
    )


def output(arguments: Sequence[str], changes: Optional[Dict[str, str]] = None, **options) -> str:
    """What it printed; fails with its errors where it did not end well."""
    done = python(arguments, changes, **options)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout
