#!/usr/bin/env python3
"""Writes docs/gpu-results.md from the records of tools/gpu_compare.py and tools/gpu_sweep.py.

python tools/gpu_report.py benchmarks/results/gpu_compare*.json --sweep benchmarks/results/gpu_sweep.json
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any, Dict, Iterable, List, Tuple

ROOT = Path(__file__).resolve().parents[1]
OURS = ("edge", "edge_null", "edge_plain")

Record = Dict[str, Any]


def shape_of(record: Record) -> str:
    if "width" in record:
        return str(record["width"])
    query, key = record["heads"]
    rotated = "" if record["rotary"] == record["size"] else f", {record['rotary']} rotated"
    return f"{query}/{key} x {record['size']}{rotated}"


def medians(record: Record) -> Dict[str, float]:
    return {name: statistics.median(values) for name, values in record["samples"].items()}


def table(rows: Iterable[Iterable[str]], header: List[str]) -> List[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def compared(result: Dict[str, Any], name: str) -> List[str]:
    known = ("inductor", "flashinfer", "sglang", "vllm")
    peers = [arm for arm in known if any(arm in record["samples"] for record in result["records"])]
    floor = result["floor"]
    noise = [abs(m["edge"] / m["edge_null"] - 1) for m in map(medians, result["records"])]
    machine = result["machine"]
    gpu = machine["gpu"]
    lines = [
        f"## {name}",
        "",
        f"{gpu.get('name', 'GPU')}, driver {gpu.get('driver_version', '?')}, torch {machine['torch']}, "
        f"{result['dtype']}, {machine['time'][:10]}, commit {machine['commit'][:12] or 'unknown'}.",
        f"Microseconds a graph node; an empty kernel's node takes {floor['plain']:.2f}, with dependent launch "
        f"{floor['dependent']:.2f}.",
        f"The same arm twice differs by {100 * statistics.median(noise):.1f} % in the median cell and "
        f"{100 * max(noise):.0f} % in the worst.",
        "",
    ]
    groups: Dict[Tuple[str, int], List[Tuple[float, str]]] = defaultdict(list)
    rows = []
    for record in sorted(result["records"], key=lambda r: (r["operator"], r["tokens"])):
        m = medians(record)
        others = {arm: m[arm] for arm in peers if arm in m}
        if not others:
            continue
        best = min(others, key=lambda arm: others[arm])
        ratio = m["edge"] / others[best]
        groups[record["operator"], record["tokens"]].append((ratio, shape_of(record)))
        cells = [f"{others[arm]:.2f}" if arm in others else "" for arm in peers]
        shown = f"**{m['edge']:.2f}**" if ratio <= 1 else f"{m['edge']:.2f}"
        start = [record["operator"], str(record["tokens"]), shape_of(record), shown, f"{m['edge_plain']:.2f}"]
        rows.append([*start, *cells, f"{ratio:.2f}"])
    summary = []
    for (operator, tokens), ratios in sorted(groups.items()):
        mean = math.exp(statistics.fmean(math.log(ratio) for ratio, _ in ratios))
        worst, where = max(ratios)
        summary.append([operator, str(tokens), str(len(ratios)), f"{mean:.2f}", f"{worst:.2f} ({where})"])
    lines += ["Edge-ops over the best of the others, below 1 is ahead:", ""]
    lines += table(summary, ["operator", "tokens", "cells", "geometric mean", "worst cell"])
    lines += [
        "",
        "Every cell (`plain` is Edge-ops without dependent launch; the ratio is to the best of the others):",
        "",
    ]
    lines += table(rows, ["operator", "tokens", "shape", "Edge-ops", "plain", *peers, "ratio"])
    return [*lines, ""]


def swept(result: Dict[str, Any]) -> List[str]:
    """How far the plan that an operator chooses is from the best plan of the sweep."""
    groups: Dict[str, List[Tuple[float, Record]]] = defaultdict(list)
    for record in result["records"]:
        dependent = [value for plan, value in record["times"].items() if plan.endswith(",1")]
        groups[record["operator"]].append((record["times"][record["own"]] / min(dependent), record))
    rows = []
    for operator, found in sorted(groups.items()):
        ratios = [ratio for ratio, _ in found]
        worst, record = max(found, key=lambda item: item[0])
        where = f"{record['tokens']} x {shape_of(record)}"
        rows.append([operator, str(len(found)), f"{statistics.median(ratios):.2f}", f"{worst:.2f} ({where})"])
    lines = [
        "## The routes",
        "",
        "What an operator chooses by itself, over the best of the plans that were timed for the shape:",
        "",
    ]
    return [*lines, *table(rows, ["operator", "shapes", "median", "worst"]), ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("compare", type=Path, nargs="+")
    parser.add_argument("--sweep", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "gpu-results.md")
    options = parser.parse_args()
    lines = [
        "# The CUDA kernels, measured",
        "",
        "Written by `tools/gpu_report.py`; [gpu.md](gpu.md) says what is measured and how.",
        "Kernel clock only: no call overhead, no decode loop.",
        "",
    ]
    for path in options.compare:
        lines += compared(json.loads(path.read_text()), path.stem)
    if options.sweep:
        lines += swept(json.loads(options.sweep.read_text()))
    options.output.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
