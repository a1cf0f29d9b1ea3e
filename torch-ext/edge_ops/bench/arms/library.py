"""Libraries of registered operators, by an environment variable or from an installed package."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from .base import NotInstalled


def load_operators(variable: str, package: str, patterns: Sequence[str], hint: str) -> str:
    """Loads the library that `variable` names, or the first file of the installed package that fits a pattern.

    The package itself is not imported: only its operators are wanted, and not what it depends on.

    Returns:
        Where it came from.

    Raises:
        NotInstalled: there is none, or it cannot be loaded.
    """
    given = os.environ.get(variable)
    paths = [Path(given)] if given else files_of(package, patterns)
    if not paths or not paths[0].is_file():
        raise NotInstalled(f"{hint}, or set {variable} to its library")
    load_library(paths[0], hint)
    return paths[0].name if given else f"{_version(package)}, {paths[0].name}"


def load_library(path: Path, hint: str) -> None:
    """
    Raises:
        NotInstalled: it cannot be loaded.
    """
    try:
        torch.ops.load_library(str(path))
    except OSError as error:
        raise NotInstalled(f"{error} ({hint})") from error


def files_of(package: str, patterns: Sequence[str]) -> list[Path]:
    """The files of an installed package that fit the patterns, without importing it; none where it is missing."""
    found = importlib.util.find_spec(package)
    folders = list(found.submodule_search_locations or []) if found is not None else []
    return [path for folder in folders for pattern in patterns for path in sorted(Path(folder).glob(pattern))]


def _version(package: str) -> str:
    names = importlib.metadata.packages_distributions().get(package, [package])
    return importlib.metadata.version(names[0])
