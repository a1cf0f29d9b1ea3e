"""Records: what a qualification found on a device, as JSON that notices an edit.

A record carries the SHA-256 of everything else in it. That is integrity and not authenticity: it shows that a file
was changed by accident or in passing, not who wrote it.
"""

import datetime
import hashlib
import json
from pathlib import Path
from typing import Any, Dict, List, Optional

from .. import native
from . import host
from .corpus import VERSION, Case
from .levels import Selection, offered
from .run import Found, golden_digest

SCHEMA = "edge-ops qualification record, version 1"

Record = Dict[str, Any]


class RecordError(Exception):
    """A file is not a record; the message names the file and says why."""


class Level:
    """What one level gave, gathered case by case."""

    def __init__(self, cases: List[Case]) -> None:
        self._cases = {case.name: case for case in cases}
        self.found: List[Found] = []
        self.error: Optional[str] = None

    def entry(self) -> Record:
        """The level's part of a record."""
        groups: Dict[str, Dict[str, List[Found]]] = {}
        for outcome in self.found:
            case = self._cases[outcome.case]
            groups.setdefault(case.operator, {}).setdefault(case.dtype, []).append(outcome)
        operators = {
            operator: {dtype: self._group(found) for dtype, found in dtypes.items()}
            for operator, dtypes in groups.items()
        }
        differences = [
            {"case": f.case, "got": f.digest, **({"strays": f.strays} if f.strays else {}), **(f.difference or {})}
            for f in self.found
            if _wrong(f)
        ]
        entry: Record = {
            "passed": not differences and self.error is None and len(self.found) == len(self._cases),
            "seconds": round(sum(f.total for f in self.found), 3),
            "operators": operators,
            "differences": differences,
        }
        if self.error is not None:
            entry["error"] = self.error
        return entry

    def _group(self, found: List[Found]) -> Record:
        cases = [self._cases[f.case] for f in found]
        lines = "".join(f"{f.case} {f.digest}\n" for f in found)
        return {
            "cases": len(found),
            "wrong": sum(map(_wrong, found)),
            "rows": sum(case.rows for case in cases),
            "elements": sum(case.elements for case in cases),
            "seconds": round(sum(f.seconds for f in found), 4),
            "digest": hashlib.sha256(lines.encode()).hexdigest()[:32],
        }


def _wrong(found: Found) -> bool:
    return found.difference is not None or bool(found.strays)


def make(
    levels: Dict[str, Record], not_run: Dict[str, str], selection: Selection, *, started: datetime.datetime,
    seconds: float, device_name: Optional[str] = None, signed_off_by: Optional[str] = None,
    note: Optional[str] = None, emulated: Optional[str] = None,
) -> Record:  # fmt: skip
    """A sealed record.

    Args:
        levels: level -> its entry, `Level.entry()`.
        not_run: level that the host offers -> why it was left out.
        selection: which cases ran.
        started, seconds: when, and how long it took in all.
        device_name: what the device is called, instead of what the system says.
        signed_off_by, note: who answers for it, and anything to add.
        emulated: what emulates the processor, where it is known; a user-mode QEMU is noticed without.
    """
    device = host.device()
    if device_name is not None:
        device["name"] = device_name
    if emulated is not None:
        device["emulated"] = emulated
    info = native.build_info()
    record: Record = {
        "schema": SCHEMA,
        "passed": bool(levels) and all(entry["passed"] for entry in levels.values()),
        "scope": selection.scope,
        "corpus": {"version": VERSION, "golden_sha256": golden_digest()},
        "package": host.package(),
        "device": device,
        "gpus": host.gpus(),
        "software": host.software(),
        "offered": offered(),
        "chosen": info["isa_chosen"],
        "levels": levels,
        "not_run": not_run,
        "started": started.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": round(seconds, 1),
        "sign_off": {"by": signed_off_by, "note": note},
    }
    return seal(record)


def seal(record: Record) -> Record:
    """The record with its digest."""
    return {**record, "sha256": digest(record)}


def digest(record: Record) -> str:
    """SHA-256 of the canonical JSON (sorted keys, no spaces, ASCII) of all but the digest itself."""
    content = {key: value for key, value in record.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def intact(record: Record) -> bool:
    """Whether the digest is that of the content."""
    return record["sha256"] == digest(record)


# What a reader relies on: key -> type, for the record, a level and a group.
_RECORD = {
    "schema": str, "passed": bool, "scope": str, "corpus": dict, "package": dict, "device": dict, "gpus": list,
    "software": dict, "offered": list, "levels": dict, "not_run": dict, "started": str, "seconds": (int, float),
    "sign_off": dict, "sha256": str,
}  # fmt: skip
_PARTS = {
    "corpus": ("version", "golden_sha256"),
    "package": ("version", "build"),
    "device": ("name", "machine", "cpu", "emulated"),
    "software": ("torch",),
}
_LEVEL = {"passed": bool, "seconds": (int, float), "operators": dict, "differences": list}
_GROUP = {"cases": int, "wrong": int, "rows": int, "elements": int, "seconds": (int, float), "digest": str}


def read(path: Path) -> Record:
    """A record from a file.

    Raises:
        RecordError: it cannot be read, is not JSON, or is not a record of this version.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as reason:
        raise RecordError(f"{path} cannot be read: {reason.strerror or reason}") from None
    except UnicodeDecodeError:
        raise RecordError(f"{path} is not a record: it is not text") from None
    except (ValueError, RecursionError) as reason:
        raise RecordError(f"{path} is not a record: it is not whole JSON ({reason})") from None
    if not isinstance(found, dict) or "schema" not in found:
        raise RecordError(f"{path} is not a record: it has no schema")
    if found["schema"] != SCHEMA:
        raise RecordError(f"{path} has schema {found['schema']!r}; this version reads {SCHEMA!r}")
    _check(path, "the record", found, _RECORD)
    for part, keys in _PARTS.items():
        for key in keys:
            if key not in found[part]:
                raise RecordError(f"{path} is not a record: {part} has no {key}")
    if not all(isinstance(name, str) for name in found["offered"]):
        raise RecordError(f"{path} is not a record: offered must list names")
    for name, level in found["levels"].items():
        _check(path, f"level {name}", level, _LEVEL)
        for operator, dtypes in level["operators"].items():
            if not isinstance(dtypes, dict):
                raise RecordError(f"{path} is not a record: {operator} at level {name} must be an object")
            for dtype, group in dtypes.items():
                _check(path, f"{operator} {dtype} at level {name}", group, _GROUP)
        for item in level["differences"]:
            _check(path, f"a difference at level {name}", item, {"case": str, "got": str})
    return found


def _check(path: Path, what: str, value: Any, keys: Dict[str, Any]) -> None:
    if not isinstance(value, dict):
        raise RecordError(f"{path} is not a record: {what} must be an object")
    for key, kind in keys.items():
        if key not in value:
            raise RecordError(f"{path} is not a record: {what} has no {key}")
        if not isinstance(value[key], kind) or (isinstance(value[key], bool) and kind is not bool):
            raise RecordError(f"{path} is not a record: {key} of {what} has the wrong type")


def write(record: Record, path: Path) -> None:
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
