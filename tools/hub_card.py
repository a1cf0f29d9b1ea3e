"""Fills the Kernel Hub's card, CARD.md, as kernel-builder does: the functions are the package's `__all__`."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any


def exported(init: Path) -> list[str]:
    """The literal `__all__` of a module."""
    for node in ast.parse(init.read_text()).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return list(ast.literal_eval(node.value))
    raise SystemExit(f"{init}: no literal __all__")


def classes(module: Path) -> list[str]:
    """The classes that a module defines."""
    return [node.name for node in ast.parse(module.read_text()).body if isinstance(node, ast.ClassDef)]


def render(root: Path, configuration: dict[str, Any]) -> str:
    """The card's text.

    Args:
        root: the source tree, with CARD.md.
        configuration: build.toml's content.
    """
    import jinja2

    general = configuration["general"]
    package = root / "torch-ext" / general["name"].replace("-", "_")
    names = exported(package / "__init__.py")
    template = jinja2.Environment(trim_blocks=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    return template.from_string((root / "CARD.md").read_text()).render(
        repo_id=general["hub"]["repo-id"],
        version=general["version"],
        functions=[name for name in names if name != "layers"],
        layers=classes(package / "layers.py") if "layers" in names else None,
        has_benchmark=(root / "benchmarks" / "benchmark.py").is_file(),
        upstream=general.get("upstream"),
        source=general.get("source"),
        license=general["license"].lower(),
    )
