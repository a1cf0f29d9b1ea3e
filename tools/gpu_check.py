#!/usr/bin/env python3
"""Runs what a GPU machine is needed for, in a few minutes, and writes JSON.

    python tools/gpu_check.py OUTPUT [--steps tests,sanitizer,...] [--quick]

    tests      tests/cuda: every plan of every kernel against the numerics contract
    sanitizer  compute-sanitizer's memcheck, racecheck, initcheck and synccheck over every plan (needs nvcc)
    sweep      tools/gpu_sweep.py: every plan timed, which is where the routes' thresholds come from
    operators  edge-ops bench --device cuda: beside eager, torch.compile and the libraries that are installed or that
               the environment names (docs/benchmarks.md); rows in DRAM
    calls      tools/gpu_call_clock.py: what a call from Python costs
    decode     tools/gpu_decode.py: decode loops of whole models, with energy
    suite      the project's tests on CUDA tensors, through the installed or in-place build: frameworks, errors, public
               faults, then exact bits
    models     tests/models on CUDA: tiny patched models of every family

The steps that check run side by side and first, those that measure one after the other and alone.

--quick gives each step that measures a share of some minutes: fewer samples, and cells left out are counted.

Each step's output goes to OUTPUT/<step>.log, the summary to OUTPUT/gpu_check.json: host, GPU, driver, versions, commit.
Exits with 1 when a step failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from gpu_timing import machine  # noqa: E402

from edge_ops.bench.arms import of_device  # noqa: E402

SUITE = (
    ("tests/public_faults", "tests/framework", "tests/errors", "tests/process", "tests/rope"),
    ("tests/exact", "tests/accuracy"),
)
MODELS = ("tests/models", "--ignore", "tests/models/test_cli.py")  # which runs the command line on the CPU
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")


def pytest_command(*arguments: str) -> List[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    if importlib.util.find_spec("xdist"):
        command += ["-n", str(max(1, (os.cpu_count() or 1) // 2)), "--dist", "loadgroup"]
    return command


def environment() -> Dict[str, str]:
    paths = [str(ROOT / "torch-ext"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "EDGE_OPS_TEST_DEVICE": "cuda", "HF_HUB_OFFLINE": "1"}


class Step:
    """Runs commands of one step, their output in one log."""

    def __init__(self, name: str, folder: Path, quick: bool) -> None:
        self.folder, self.log, self.quick = folder, folder / f"{name}.log", quick
        self.log.write_text("")

    def run(self, *command: str, seconds: float = 600) -> bool:
        with self.log.open("a") as log:
            print("$", *command, file=log, flush=True)
            try:
                done = subprocess.run(
                    command, stdout=log, stderr=subprocess.STDOUT, cwd=ROOT, env=environment(), timeout=seconds
                )
            except subprocess.TimeoutExpired:
                print(f"stopped after {seconds} s", file=log)
                return False
        return done.returncode == 0


def tests(step: Step) -> bool:
    return step.run(*pytest_command("tests/cuda"))


def sanitizer(step: Step) -> bool:
    tool = shutil.which("compute-sanitizer")
    program = os.environ.get("EDGE_OPS_SANITIZE_PROGRAM")  # already compiled
    if program is None:
        program = str(ROOT / "build" / "cuda-sanitize")
        sources = [str(path) for pattern in ("csrc/ops/*.cpp", "csrc/cuda/*.cu") for path in sorted(ROOT.glob(pattern))]
        Path(program).parent.mkdir(exist_ok=True)
        flags = ("-std=c++17", "-O3", "-lineinfo", "-fmad=false", "-arch=native", "-t", "0", "-o", program)
        if not step.run("nvcc", *flags, *sources, "tests/cuda/sanitize.cu"):
            return False
    if tool is None:
        return step.run(program) and False
    return all([step.run(tool, "--tool", name, "--error-exitcode", "1", program) for name in SANITIZERS])


def measure(step: Step, tool: str, output: str, *arguments: str, quick: Sequence[str] = ()) -> bool:
    """Runs one of the measuring programs; `quick` are its arguments where time is short."""
    target = str(step.folder / output)
    return step.run(
        sys.executable, f"tools/{tool}.py", target, *arguments, *(quick if step.quick else ()), seconds=3600
    )


def sweep(step: Step) -> bool:
    return measure(step, "gpu_sweep", "gpu_sweep.json", quick=("--samples", "3", "--budget", "40"))


def operators(step: Step) -> bool:
    """Every cell without torch.compile, which compiles for seconds a cell; one geometry with it; the same one cold."""
    bench = (sys.executable, "-m", "edge_ops", "bench", "--device", "cuda")
    libraries = ",".join(name for name in of_device("cuda") if name not in ("compile", "edge_ops_dispatcher"))
    one = ("--tokens", "1,32", "--shape", "1024,3072,16/8x128", "--dtype", "bfloat16")
    runs = {
        "gpu-operators": ("--arms", libraries, *(("--minutes", "4", "--trials", "12") if step.quick else ())),
        "gpu-compile": (*one, "--host", f"{platform.node()}, with torch.compile"),
        "gpu-cold": (*one, "--clock", "cold", "--arms", libraries, "--host", f"{platform.node()}, rows in DRAM"),
    }
    return all(
        [
            step.run(*bench, *options, "--out", str(step.folder / f"{name}.json.gz"), seconds=3600)
            for name, options in runs.items()
        ]
    )


def calls(step: Step) -> bool:
    return measure(step, "gpu_call_clock", "gpu_call_clock.json")


def decode(step: Step) -> bool:
    quick = ("--rounds", "3", "--seconds", "0.7")
    return measure(step, "gpu_decode", "gpu_decode.json", "--dependent", quick=quick)


def suite(step: Step) -> bool:
    return all([step.run(*pytest_command(*folders), seconds=1800) for folders in SUITE])


def models(step: Step) -> bool:
    return step.run(*pytest_command(*MODELS), seconds=1800)


CHECKS: Dict[str, Callable[[Step], bool]] = {"tests": tests, "sanitizer": sanitizer, "suite": suite, "models": models}
MEASUREMENTS: Dict[str, Callable[[Step], bool]] = {
    "sweep": sweep,
    "operators": operators,
    "calls": calls,
    "decode": decode,
}


class Run:
    """The steps of one run and what came of them, written down after each."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.folder, self.quick = options.output, options.quick
        self.result: Dict[str, Any] = {"machine": machine(), "quick": self.quick, "steps": {}}
        self.folder.mkdir(parents=True, exist_ok=True)
        self.writing = threading.Lock()

    def step(self, name: str, function: Callable[[Step], bool]) -> None:
        started = time.monotonic()
        passed = function(Step(name, self.folder, self.quick))
        seconds = round(time.monotonic() - started, 1)
        step = {"passed": passed, "seconds": seconds, "summary": self.summary(name)}
        print(f"{name}: {'passed' if passed else 'FAILED'} in {seconds} s", flush=True)
        with self.writing:
            self.result["steps"][name] = step
            (self.folder / "gpu_check.json").write_text(json.dumps(self.result, indent=1))

    def summary(self, name: str) -> List[str]:
        """The last lines of pytest's and the sanitizer's runs, and each failed test."""
        lines = (self.folder / f"{name}.log").read_text(errors="replace").splitlines()
        return [line for line in lines if re.match(r"FAILED|ERROR |\d+ (passed|failed)|=+ ERROR SUMMARY", line)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", default=",".join([*CHECKS, *MEASUREMENTS]))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    names = options.steps.split(",")
    unknown = set(names) - {*CHECKS, *MEASUREMENTS}
    if unknown:
        parser.error(f"--steps: no step {', '.join(sorted(unknown))}")
    run = Run(options)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: run.step(name, CHECKS[name]), [name for name in names if name in CHECKS]))
    for name in names:
        if name in MEASUREMENTS:
            run.step(name, MEASUREMENTS[name])
    return 0 if all(step["passed"] for step in run.result["steps"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
