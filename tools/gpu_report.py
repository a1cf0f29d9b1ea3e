#!/usr/bin/env python3
"""Writes docs/gpu-results.md from the records of the other GPU tools in benchmarks/results.

python tools/gpu_report.py
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

# Records of kernels beside other libraries, from before `edge-ops bench --device cuda`, and their titles.
COMPARED = {
    "gpu_compare": "Kernel clock",
    "gpu_compare_inductor": "Kernel clock, torch.compile too",
    "gpu_compare_float16": "Kernel clock, float16",
    "gpu_compare_cold": "Kernel clock, rows not in the L2 cache",
}


def shape_of(record: Record) -> str:
    if "width" in record:
        return str(record["width"])
    query, key = record["heads"]
    rotated = "" if record["rotary"] == record["size"] else f", {record['rotary']} rotated"
    return f"{query}/{key} x {record['size']}{rotated}"


def medians(record: Record) -> Dict[str, float]:
    """Each arm's median; of cold rows, what it takes beyond the node that flushes the cache."""
    values = {name: statistics.median(samples) for name, samples in record["samples"].items()}
    flush = values.pop("empty", 0.0)
    return {name: value - flush for name, value in values.items()}


def table(rows: Iterable[Iterable[str]], header: List[str]) -> List[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def source(result: Dict[str, Any]) -> str:
    machine = result["machine"]
    gpu = machine["gpu"]
    return (
        f"{gpu.get('name', 'GPU')}, driver {gpu.get('driver_version', '?')}, torch {machine['torch']}, "
        f"{machine['time'][:10]}, commit {machine['commit'][:12] or 'unknown'}."
    )


def compared(result: Dict[str, Any], name: str) -> List[str]:
    known = ("inductor", "flashinfer", "sglang", "vllm")
    peers = [arm for arm in known if any(arm in record["samples"] for record in result["records"])]
    floor = result["floor"]
    noise = [abs(m["edge"] / m["edge_null"] - 1) for m in map(medians, result["records"])]
    lines = [
        f"## {name}",
        "",
        source(result),
        f"{result['dtype']}. Microseconds a graph node; an empty kernel's node takes {floor['plain']:.2f}, with "
        f"dependent launch {floor['dependent']:.2f}.",
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


def called(result: Dict[str, Any]) -> List[str]:
    """Calls from Python beside an empty kernel through the same binding."""
    rows = []
    for record in result["records"]:
        m = medians(record)
        times = [f"{m[arm]:.2f}" for arm in ("edge", "floor", "launch", "eager")]
        noise = abs(m["edge"] / m["edge_null"] - 1)
        ratios = [f"{m['edge'] / m['floor']:.2f}", f"{m['eager'] / m['edge']:.1f}"]
        rows.append([record["call"], *times, *ratios, f"{100 * noise:.1f} %"])
    lines = [
        "## Call clock",
        "",
        source(result),
        f"Microseconds a call, back to back, a synchronize after each block of {result['calls']}; bfloat16, one token.",
        "`floor` launches an empty kernel through the same binding with the same arguments, `launch` without any.",
        "",
    ]
    header = ["call", "Edge-ops", "floor", "launch", "eager", "over the floor", "eager over Edge-ops", "null arm"]
    return [*lines, *table(rows, header), ""]


def decoded(result: Dict[str, Any]) -> List[str]:
    """Decode loops of whole models."""
    lines = [
        "## Decode loops",
        "",
        source(result),
        f"Batch 1, random weights, a prompt of {result['prompt']} tokens, greedy, {result['tokens']} tokens a window,",
        "arms in turn; the median window. Joules by the board's energy counter. `graphs` replays one captured step",
        "with a static cache, `compiled` is mode reduce-overhead; the same arm twice is `_null`.",
        "",
    ]
    for name, model in result["models"].items():
        rows = []
        for arm, found in model["arms"].items():
            speeds = sorted(found["tokens_per_second"])
            speed, joules = statistics.median(speeds), statistics.median(found["joules_per_token"])
            apart = model["first_difference"][arm]
            same = "" if arm == "eager" else "all" if apart is None else str(apart)
            rows.append([arm, f"{speed:.1f}", f"{speeds[0]:.1f} to {speeds[-1]:.1f}", f"{joules:.3f}", same])
        lines += [f"### {name}, {model['dtype']}", ""]
        lines += [*table(rows, ["arm", "tokens a second", "range", "joules a token", "tokens like eager's"]), ""]
    return lines


def dependent(result: Dict[str, Any]) -> List[str]:
    """The patched step as a graph, by which operators are launched dependently."""
    rows = []
    for run in result["runs"]:
        for model, arms in run["models"].items():
            times = {
                arm: 1e6 / statistics.median(values["tokens_per_second"]) for arm, values in arms["dependent"].items()
            }
            for arm, time in times.items():
                change = f"{100 * (time / times['none'] - 1):+.1f} %"
                rows.append([model, run["machine"]["commit"][:7], arm, f"{time:.0f}", change])
    lines = [
        "## Dependent launch in a decode loop",
        "",
        "Microseconds a token of the patched step as a graph, with dependent launch for no operator, for `all`, for",
        "one, or where the capture shows a chain (`in_chains`). Two captures of the same step differ by up to 0.5 %.",
        "",
    ]
    return [*lines, *table(rows, ["model", "commit", "dependent", "us a token", "over none"]), ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "gpu-results.md")
    options = parser.parse_args()
    lines = [
        "# The CUDA kernels, measured",
        "",
        "Written by `tools/gpu_report.py`; [gpu.md](gpu.md) says what is measured and how.",
        "",
    ]

    def record(name: str) -> Dict[str, Any]:
        result: Dict[str, Any] = json.loads((options.results / f"{name}.json").read_text())
        return result

    lines += decoded(record("gpu_decode"))
    lines += dependent(record("gpu_dependent"))
    lines += called(record("gpu_call_clock"))
    for name, title in COMPARED.items():
        lines += compared(record(name), title)
    lines += swept(record("gpu_sweep"))
    options.output.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
