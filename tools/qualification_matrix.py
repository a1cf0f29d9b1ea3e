"""Writes the table of qualified devices into docs/qualification.md, from the records in docs/records.

    PYTHONPATH=torch-ext python tools/qualification_matrix.py            # writes the page
    PYTHONPATH=torch-ext python tools/qualification_matrix.py --check    # exit status 1 where the page is not in step

A record that was changed, is not a full run, or is no record at all is refused: exit status 2.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "torch-ext"))

from edge_ops.qualify import record, run  # noqa: E402

PAGE = ROOT / "docs" / "qualification.md"
RECORDS = ROOT / "docs" / "records"
BEGIN, END = "<!-- matrix:begin -->", "<!-- matrix:end -->"

NAMES = {
    "baseline": "x86-64 baseline (SSE2)",
    "avx2": "x86-64 AVX2",
    "avx512": "x86-64 AVX-512",
    "neon": "AArch64 NEON",
    "cuda": "CUDA",
    "reference": "PyTorch reference",
}


class Awaited(NamedTuple):
    """A device that has a row before there is a record of it."""

    device: str
    level: str
    there: Callable[[Dict[str, Any]], bool]


def _named(text: str) -> Callable[[Dict[str, Any]], bool]:
    return lambda found: text in f"{found['device']['name']} {found['device']['cpu']}".lower()


AWAITED = (
    Awaited("NVIDIA H200", "CUDA", lambda found: any("H200" in gpu["name"] for gpu in found["gpus"])),
    Awaited(
        "AArch64 under emulation",
        "AArch64 NEON",
        lambda found: found["device"]["machine"] == "aarch64" and bool(found["device"]["emulated"]),
    ),
    Awaited("Jetson Orin", "AArch64 NEON, CUDA", _named("orin")),
    Awaited("Apple M4", "AArch64 NEON", _named("apple m4")),
    Awaited("Orange Pi Zero 3W", "AArch64 NEON", _named("zero 3w")),
)


def matrix(records: Dict[str, Dict[str, Any]]) -> str:
    """The table, from file name -> record."""
    lines = [
        "| device | level | run on | result | rows | seconds | library | record |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, found in records.items():
        for level, entry in found["levels"].items():
            lines.append(_row([*_cells(found, level, entry), f"[{found['started'][:10]}](records/{name})"]))
    for awaited in AWAITED:
        if not any(awaited.there(found) for found in records.values()):
            lines.append(_row([awaited.device, awaited.level, "", "not run", "", "", "", ""]))
    return "\n".join(lines)


def _cells(found: Dict[str, Any], level: str, entry: Dict[str, Any]) -> List[str]:
    device = found["device"]
    title = device["name"] or device["cpu"] or device["machine"]
    if level == "cuda" and found["gpus"]:
        title = found["gpus"][0]["name"]
    if found["corpus"]["golden_sha256"] != run.golden_digest():
        result = "of another corpus"
    else:
        result = "passed" if entry["passed"] else "FAILED"
    rows = sum(group["rows"] for dtypes in entry["operators"].values() for group in dtypes.values())
    version = f"{found['package']['version']}, torch {found['software']['torch']}"
    how = f"emulated: {device['emulated']}" if device["emulated"] else "hardware"
    return [title, NAMES.get(level, level), how, result, f"{rows:,}", f"{entry['seconds']:.0f}", version]


def _row(cells: List[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |"


def read_all(folder: Path) -> Dict[str, Dict[str, Any]]:
    """File name -> record.

    Raises:
        record.RecordError: a file is none that the page can rest on.
    """
    found = {path.name: record.read(path) for path in sorted(folder.glob("*.json"))}
    for name, one in found.items():
        if not record.intact(one):
            raise record.RecordError(f"{name} was changed after it was written")
        if one["scope"] != "full":
            raise record.RecordError(f"{name} is of a {one['scope']} run")
    return found


def with_matrix(page: str, table: str) -> str:
    """The page with the table between its marks."""
    before, rest = _split(page, BEGIN)
    _, after = _split(rest, END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def _split(text: str, mark: str) -> Tuple[str, str]:
    if text.count(mark) != 1:
        sys.exit(f"{PAGE.name} must have {mark} once")
    before, _, after = text.partition(mark)
    return before, after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing: say whether the page is in step")
    arguments = parser.parse_args()
    try:
        records = read_all(RECORDS)
    except record.RecordError as reason:
        print(reason, file=sys.stderr)
        return 2
    page = PAGE.read_text()
    wanted = with_matrix(page, matrix(records))
    if arguments.check:
        print(f"{PAGE.name} is {'in step' if page == wanted else 'NOT in step'} with {len(records)} records")
        return 0 if page == wanted else 1
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
