#!/usr/bin/env python3
"""Breaks the library one way at a time in a scratch copy, and shows that the test suite notices each.

    python tools/harden/mutate.py                      every mutant of mutants.py; a table on standard output
    python tools/harden/mutate.py --only 'seam|NEON'   those whose name matches
    python tools/harden/mutate.py --json FILE          keeps the results there as well, and goes on where it stopped
    python tools/harden/mutate.py --render FILE docs/hardening.md    writes a kept result into the page

Needs what building and testing need (CONTRIBUTING.md), and the cross compiler and emulator of the AArch64 tests. The
copy is what git has at HEAD. Every selection of tests runs once on the unbroken copy first: a test that fails there
proves nothing. A mutant is caught where pytest reports a failed test, or dies of a signal. One that does not build
is an error of the list. Exits with 1 where any mutant survives.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List, Optional

sys.path.insert(0, str(Path(__file__).resolve().parent))
from mutants import CALLS, KERNELS, MUTANTS, PYTHON, Mutant  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- mutants:begin -->", "<!-- mutants:end -->"
PLACES = (("Kernels", KERNELS), ("Calls: dispatch, checks, bindings", CALLS), ("The Python package", PYTHON))


class Copy:
    """A copy of the sources, with a build of its own."""

    def __init__(self, folder: Path) -> None:
        self.root, self.build = folder / "source", folder / "build"
        self.root.mkdir()
        head = ["git", "rev-parse", "--short=10", "HEAD"]
        self.commit = subprocess.run(head, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
        subprocess.run(["tar", "-x"], cwd=self.root, check=True, input=archive)
        # -O1: half the time to compile, and the same bits as any other level
        flags = ["-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG", "-DEDGE_OPS_CUDA=OFF"]
        python = [f"-DPython_EXECUTABLE={sys.executable}"]
        configure = ["cmake", "-S", str(self.root), "-B", str(self.build), "-G", "Ninja", *python, *flags]
        subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)

    def compile(self) -> None:
        """Builds what changed, and puts it into the copy's package under the name that it has."""
        subprocess.run(["cmake", "--build", str(self.build)], check=True, stdout=subprocess.PIPE, text=True)
        package = self.root / "torch-ext" / "edge_ops"
        for old in (*package.glob("_edge_ops_wheel_*.abi3.so"), *package.glob("_ops.py")):
            old.unlink()
        install = ["cmake", "--install", str(self.build), "--prefix", str(package.parent)]
        subprocess.run(install, check=True, stdout=subprocess.DEVNULL)

    def test(self, tests: str, level: str, first: bool) -> "subprocess.CompletedProcess[str]":
        env = {k: v for k, v in os.environ.items() if not k.startswith("EDGE_OPS_")}
        env.update(PYTHONPATH=str(self.root / "torch-ext"), HF_HUB_OFFLINE="1")
        if level:
            env["EDGE_OPS_CPU_ISA"] = level
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *shlex.split(tests)]
        command += ["-x"] if first else []
        return subprocess.run(
            command, cwd=self.root, env=env, capture_output=True, text=True, timeout=1800, check=False
        )


def apply(root: Path, mutant: Mutant) -> Dict[Path, str]:
    """Makes the edits; -> what the files held before."""
    before: Dict[Path, str] = {}
    for edit in mutant.edits:
        path = root / edit.file
        text = path.read_text()
        if text.count(edit.old) != 1:
            raise SystemExit(f"{mutant.name}: {edit.file} holds its text {text.count(edit.old)} times, not once")
        before.setdefault(path, text)
        path.write_text(text.replace(edit.old, edit.new))
    return before


def verdict(done: "subprocess.CompletedProcess[str]") -> str:
    """The first failed test, or how the interpreter died; empty where everything passed."""
    if done.returncode == 0:
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+?)(?:\[.*)?(?: - .*)?$", done.stdout, re.M)
    if failed:
        return failed[1]
    if done.returncode < 0:
        return f"the interpreter dies of signal {-done.returncode}"
    raise SystemExit(
        f"pytest ended with {done.returncode} and no failed test\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    )


def check(copy: Copy, mutant: Mutant) -> Dict[str, object]:
    start = time.monotonic()
    before = apply(copy.root, mutant)
    try:
        if mutant.builds:
            copy.compile()
        caught = verdict(copy.test(mutant.tests, mutant.level, first=True))
    finally:
        for path, text in before.items():
            path.write_text(text)
    return {
        "name": mutant.name,
        "commit": copy.commit,
        "files": sorted({edit.file for edit in mutant.edits}),
        "tests": mutant.tests,
        "level": mutant.level,
        "caught_by": caught,
        "seconds": round(time.monotonic() - start, 1),
    }


def baseline(copy: Copy, chosen: List[Mutant]) -> None:
    """The tests that are to fail must pass on the unbroken copy."""
    for tests, level in dict.fromkeys((m.tests, m.level) for m in chosen):
        done = copy.test(tests, level, first=False)
        if done.returncode != 0:
            raise SystemExit(
                f"{tests} {level}: fails on the unbroken sources\n{done.stdout[-4000:]}{done.stderr[-2000:]}"
            )
        print(f"unbroken, {tests} {level}: {done.stdout.strip().splitlines()[-1]}", flush=True)


def table(results: List[Dict[str, object]]) -> str:
    """One table for each place where mistakes are made."""
    found = {str(r["name"]): r for r in results}
    lines: List[str] = []
    for title, mutants in PLACES:
        rows = [found[m.name] for m in mutants if m.name in found]
        if not rows:
            continue
        lines += ["", f"| {title} | file | caught by |", "|---|---|---|"]
        for r in rows:
            files = ", ".join(f"`{str(f).rsplit('/', 1)[-1]}`" for f in r["files"])  # type: ignore[attr-defined]
            level = f" (level {r['level']})" if r["level"] else ""
            caught = str(r["caught_by"]) or "**nothing**"
            lines.append(f"| {r['name']} | {files} | {caught.replace('tests/', '', 1)}{level} |")
    caught_count = sum(bool(r["caught_by"]) for r in results)
    return "\n".join([f"{caught_count} of {len(results)} caught.", *lines, ""])


def render(kept: Path, page: Path) -> None:
    text = page.read_text()
    head, rest = text.split(BEGIN)
    content = json.loads(kept.read_text())
    commits = ", ".join(dict.fromkeys(r["commit"] for r in content["results"]))
    where = f"Sources at {commits}; {content['host']}. "
    page.write_text(f"{head}{BEGIN}\n{where}{table(content['results'])}\n{END}{rest.split(END)[1]}")


def host() -> str:
    with open("/proc/cpuinfo") as file:
        found = re.search(r"^model name\s*: (.*)$", file.read(), re.M)
    return f"{found[1] if found else 'unknown processor'}, {os.cpu_count()} cores"


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutation check of the test suite.")
    parser.add_argument("--only", default="", help="regular expression on the names")
    parser.add_argument("--json", type=Path, help="file for the results; those in it already are not run again")
    parser.add_argument(
        "--render", nargs=2, type=Path, metavar=("FILE", "PAGE"), help="writes kept results into a page"
    )
    parser.add_argument("--skip-baseline", action="store_true", help="the unbroken sources are known to pass")
    arguments = parser.parse_args()
    if arguments.render:
        render(*arguments.render)
        return 0
    kept: Optional[dict] = None
    if arguments.json and arguments.json.exists():
        kept = json.loads(arguments.json.read_text())
    content = kept or {"host": host(), "results": []}
    known = {r["name"] for r in content["results"] if r["caught_by"]}
    content["results"] = [r for r in content["results"] if r["caught_by"]]
    chosen = [m for m in MUTANTS if re.search(arguments.only, m.name) and m.name not in known]
    with tempfile.TemporaryDirectory(prefix="edge-ops-mutants-") as folder:
        copy = Copy(Path(folder))
        copy.compile()
        if not arguments.skip_baseline:
            baseline(copy, chosen)
        for number, mutant in enumerate(chosen, 1):
            result = check(copy, mutant)
            content["results"].append(result)
            print(
                f"{number}/{len(chosen)} {mutant.name}: {result['caught_by'] or 'SURVIVES'} ({result['seconds']} s)",
                flush=True,
            )
            if arguments.json:
                arguments.json.write_text(json.dumps(content, indent=1))
    print(table(content["results"]))
    return 0 if all(r["caught_by"] for r in content["results"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
