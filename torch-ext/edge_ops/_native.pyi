"""The native module, for type checkers.

Its name is the build's (`_edge_ops_wheel_<hash>`), and `native.extension` is it. The build installs
this file a second time under that name.
"""

from collections.abc import Callable
from typing import Any, Optional, TypedDict, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])

class _BuildInfo(TypedDict):
    isa_compiled: list[str]
    isa_offered: list[str]
    isa_chosen: str
    backends: list[str]

def bind(name: str, function: _Function, documentation: str, /) -> _Function: ...
def probe(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Optional[str]: ...
def build_info() -> _BuildInfo: ...
def grains() -> dict[str, int]: ...
def set_grains(norm: int, gate: int, heads: int, /) -> None: ...
