"""Two records side by side: whether a decode may move between the two devices, and why not."""

from typing import Dict, List, NamedTuple, Tuple

from .corpus import DTYPES, OPERATORS
from .record import Record, intact


class Verdict(NamedTuple):
    """``reasons`` why a decode may not move (none: it may), and ``remarks`` that do not forbid it."""

    reasons: List[str]
    remarks: List[str]

    @property
    def may_move(self) -> bool:
        return not self.reasons


def compare(first: Tuple[str, Record], second: Tuple[str, Record]) -> Verdict:
    """Holds two (name, record) together.

    A decode may move where both records are intact, full, passed and of one corpus, every level that a call on
    either device can choose was run, and each operator has the same digest at all of them.
    """
    reasons, remarks = [], []
    for name, record in (first, second):
        reasons += _alone(name, record)
        remarks += _remarks(name, record)
    (a, one), (b, other) = first, second
    if one["corpus"]["version"] != other["corpus"]["version"]:
        reasons.append(f"{a} is of corpus {one['corpus']['version']} and {b} of corpus {other['corpus']['version']}")
    elif one["corpus"]["golden_sha256"] != other["corpus"]["golden_sha256"]:
        reasons.append(f"{a} and {b} were held against different golden digests")
    elif one["scope"] == other["scope"]:  # digests over other cases would differ anyway
        reasons += _digests(first, second)
    for key, what in (("version", "versions of the package"), ("build", "builds of the library")):
        if one["package"][key] != other["package"][key]:
            remarks.append(f"two {what}: {one['package'][key]} and {other['package'][key]}")
    return Verdict(reasons, remarks)


def _alone(name: str, record: Record) -> List[str]:
    """What speaks against a record by itself."""
    reasons = []
    if not intact(record):
        reasons.append(f"{name} was changed after it was written: its SHA-256 does not fit its content")
    if record["scope"] != "full":
        reasons.append(f"{name} is of a {record['scope']} run, which does not qualify a device")
    if not record["passed"]:
        reasons.append(f"{name} did not pass")
    if not record["levels"]:
        reasons.append(f"{name} has no level that was run")
    for level in record["offered"]:
        if level not in record["levels"]:
            why = record["not_run"].get(level)
            reasons.append(f"{name} was not run at level {level}, which its device offers{f': {why}' if why else ''}")
    for level, entry in record["levels"].items():
        if "error" in entry:
            reasons.append(f"{name} at level {level}: {entry['error']}")
        missing = [f"{o} {d}" for o in OPERATORS for d in DTYPES if d not in entry["operators"].get(o, {})]
        if missing:
            reasons.append(f"{name} lacks {', '.join(missing)} at level {level}")
        wrong = [item["case"] for item in entry["differences"]]
        reasons += [f"{name} at level {level} differs from the contract in case {case!r}" for case in wrong[:3]]
        if len(wrong) > 3:
            reasons.append(f"{name} at level {level} differs in {len(wrong) - 3} more cases")
    return reasons


def _digests(first: Tuple[str, Record], second: Tuple[str, Record]) -> List[str]:
    """Operators whose digest is not one and the same at every level of both."""
    reasons = []
    for operator in OPERATORS:
        for dtype in DTYPES:
            found: Dict[str, List[str]] = {}
            for name, record in (first, second):
                for level, entry in record["levels"].items():
                    group = entry["operators"].get(operator, {}).get(dtype)
                    if group is not None:
                        found.setdefault(group["digest"], []).append(f"{name} {level}")
            if len(found) > 1:
                sides = "; ".join(f"{digest[:12]} at {', '.join(places)}" for digest, places in found.items())
                reasons.append(f"{operator} {dtype} has different digests: {sides}")
    return reasons


def _remarks(name: str, record: Record) -> List[str]:
    emulated = record["device"].get("emulated")
    if emulated:
        return [f"{name} ran under emulation ({emulated}): it qualifies the library's code, not a device"]
    return []
