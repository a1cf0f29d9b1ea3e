"""What `patch` did to a model, module by module."""

from collections import Counter
from typing import Dict, List, NamedTuple


class Replaced(NamedTuple):
    """A module that runs on the operators now."""

    name: str  # path inside the model
    module: str  # its class
    operators: str  # what its seams became


class Kept(NamedTuple):
    """A module that `patch` looked at and left alone."""

    name: str
    module: str
    reason: str


class Report:
    """What `patch` replaced, and what it did not and why.

    Attributes:
        replaced: one `Replaced` for each module.
        kept: one `Kept` for each module that was looked at and left alone.
    """

    def __init__(self) -> None:
        self.replaced: List[Replaced] = []
        self.kept: List[Kept] = []

    def counts(self) -> Dict[str, int]:
        """How many modules of each class were replaced."""
        return dict(Counter(entry.module for entry in self.replaced))

    def __str__(self) -> str:
        lines = []
        for (module, operators), count in Counter((e.module, e.operators) for e in self.replaced).items():
            lines.append(f"{count:4d} {module}: {operators}")
        for (module, reason), count in Counter((e.module, e.reason) for e in self.kept).items():
            lines.append(f"{count:4d} {module} left as it is: {reason}")
        return "\n".join(lines)
