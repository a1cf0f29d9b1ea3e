"""What a person reads: the table of a run, a difference, a verdict."""

from typing import Any, Dict, List

from .compare import Verdict
from .corpus import DTYPES, OPERATORS
from .record import Record

_SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def table(record: Record) -> List[str]:
    """Operators and dtypes down, levels across: whether all digests agree, and the seconds in the operator."""
    levels: Dict[str, Any] = record["levels"]
    lines = [f"{'operator':20}{'dtype':6}{'cases':>6}{'rows':>9}" + "".join(f"{name:>18}" for name in levels)]
    for operator in OPERATORS:
        for dtype in DTYPES:
            groups = [entry["operators"].get(operator, {}).get(dtype) for entry in levels.values()]
            shown = max((g for g in groups if g), key=lambda g: g["cases"], default=None)
            if shown is None:
                continue
            cells = "".join(f"{_cell(group, shown['cases']):>18}" for group in groups)
            lines.append(f"{operator:20}{_SHORT[dtype]:6}{shown['cases']:6}{shown['rows']:9}{cells}")
    ends = "".join(f"{'ok' if e['passed'] else 'FAILED':>8}{e['seconds']:8.1f} s" for e in levels.values())
    rows = max((_sum(entry, "rows") for entry in levels.values()), default=0)
    cases = max((_sum(entry, "cases") for entry in levels.values()), default=0)
    lines.append(f"{'in all':26}{cases:6}{rows:9}{ends}")
    return lines


def _cell(group: Any, cases: int) -> str:
    if group is None:
        return "not run"
    state = f"{group['wrong']} WRONG" if group["wrong"] else "ok" if group["cases"] == cases else "cut short"
    return f"{state}{group['seconds']:8.3f} s"


def _sum(entry: Record, key: str) -> int:
    return sum(group[key] for dtypes in entry["operators"].values() for group in dtypes.values())


def differences(record: Record, most: int = 3) -> List[str]:
    """The first differences of each level in full, and how many more there are."""
    lines = []
    for level, entry in record["levels"].items():
        if "error" in entry:
            lines.append(f"{level}: {entry['error']}")
        for item in entry["differences"][:most]:
            lines += [f"{level}: {item['case']}", *(f"    {line}" for line in difference(item))]
        if len(entry["differences"]) > most:
            lines.append(f"{level}: {len(entry['differences']) - most} more cases differ (the record lists them)")
    return lines


def difference(item: Dict[str, Any]) -> List[str]:
    lines = []
    if item.get("strays"):
        lines.append(f"wrote outside its result, beside: {', '.join(item['strays'])}")
    if "index" in item:
        where = ", ".join(map(str, item["index"]))
        lines.append(f"{item['differing']} of {item['of']} elements differ, first {item['result']}[{where}]")
        lines.append("from " + ", ".join(f"{name} {value}" for name, value in item["inputs"].items()))
        lines += [f"got      {item['got_bits']}", f"expected {item['expected_bits']}"]
    elif "why" in item:
        lines += [item["why"], f"digest {item['got']}, expected {item['expected']}"]
    return lines


def summary(record: Record) -> List[str]:
    """The device, and what a pass means."""
    device, package = record["device"], record["package"]
    lines = [
        f"device    {device['name'] or 'unnamed'}: {device['cpu'] or device['machine']}, {device['cores']} cores, "
        f"{device['os'] or device['kernel']}",
        *(f"GPU       {gpu['name']}, driver {gpu['driver']}" for gpu in record["gpus"]),
        f"library   edge_ops {package['version']}, {package['build']}, torch {record['software']['torch']}",
    ]
    if device["emulated"]:
        lines.append(f"emulated  {device['emulated']}: this qualifies the library's code, not a device")
    lines += [f"not run   {level}: {why}" for level, why in record["not_run"].items()]
    return lines


def verdict(names: List[str], found: Verdict) -> List[str]:
    lines = [f"remark: {remark}" for remark in found.remarks]
    if found.may_move:
        return [
            *lines,
            f"a decode may move between {names[0]} and {names[1]}: every operator has the same bits on both",
        ]
    return [
        *lines,
        f"a decode may NOT move between {names[0]} and {names[1]}:",
        *(f"  - {reason}" for reason in found.reasons),
    ]
