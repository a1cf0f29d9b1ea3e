"""The documentation does what it shows: Python blocks run, links lead somewhere, signatures and constants are right.

A file's ```python blocks run in order in one namespace. Two comments on the line before a block change that:
`<!-- needs: module -->` leaves it out where the module is not installed, `<!-- skip: reason -->` always.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from typing import List, NamedTuple

import numpy as np
import pytest

import edge_ops

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md"))]
OPERATORS = (ROOT / "docs" / "operators.md").read_text()
FUNCTIONS = (
    "rms_norm",
    "fused_add_rms_norm",
    "silu_and_mul",
    "gelu_tanh_and_mul",
    "rotary_embedding",
    "fused_qk_norm_rope",
    "rope_cache",
    "explain",
)

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- (needs|skip): (.+?) -->\n$")
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


class Block(NamedTuple):
    line: int  # of its first line, from 1
    code: str
    mark: str  # "", "needs" or "skip"
    detail: str


def blocks_of(text: str) -> List[Block]:
    found = []
    for match in _BLOCK.finditer(text):
        mark = _MARK.search(text, 0, match.start())
        kind, detail = mark.groups() if mark else ("", "")
        found.append(Block(text.count("\n", 0, match.start(1)) + 1, match.group(1), kind, detail))
    return found


def left_out(block: Block) -> str:
    """Why a block does not run here, or ""."""
    if block.mark == "skip":
        return f"line {block.line}: {block.detail}"
    if block.mark == "needs" and importlib.util.find_spec(block.detail) is None:
        return f"line {block.line}: {block.detail} is not installed"
    return ""


def run_blocks(blocks: List[Block], name: str) -> List[str]:
    """Runs them; tracebacks point into the page. -> why which were left out."""
    namespace = {"__name__": "__main__"}
    for block in blocks:
        if not left_out(block):
            exec(compile("\n" * (block.line - 1) + block.code, name, "exec"), namespace)
    return [reason for reason in map(left_out, blocks) if reason]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    missing = run_blocks(blocks_of(page.read_text()), str(page))
    if missing:
        pytest.skip("; ".join(missing))


def test_the_quick_starts_are_blocks():
    assert len(blocks_of((ROOT / "README.md").read_text())) >= 2


def test_a_block_that_fails_is_noticed():
    page = "text\n\n```python\nvalue = 1\n```\n\n```python\nassert value == 2\n```\n"
    with pytest.raises(AssertionError) as failure:
        run_blocks(blocks_of(page), "page.md")
    assert failure.traceback[-1].lineno + 1 == 8, "the traceback names the page's line"


def test_marks_leave_blocks_out():
    page = (
        "<!-- skip: no such machine -->\n```python\n1 / 0\n```\n<!-- needs: no_such_module -->\n```python\n1 / 0\n```\n"
    )
    assert run_blocks(blocks_of(page), "page.md") == [
        "line 3: no such machine",
        "line 7: no_such_module is not installed",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page):
    targets = [t for t in _LINK.findall(page.read_text()) if "://" not in t and not t.startswith("mailto:")]
    assert [t for t in targets if not (page.parent / t).exists()] == []


def without_annotations(function) -> str:
    """A signature as documentation shows it: the direct functions have no annotations, the Python ones do."""
    signature = inspect.signature(function)
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_shown_as_they_are(name):
    (section,) = re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", OPERATORS, re.MULTILINE | re.DOTALL)
    assert f"```text\n{name}{without_annotations(getattr(edge_ops, name))}\n```" in section
    assert blocks_of(section), "an example"


def test_the_numerics_page_states_every_constant():
    header = (ROOT / "csrc" / "numerics" / "constants.h").read_text()
    constants = re.findall(r"constexpr \w+ (\w+) = (-?[\d.e-]+)f?;", header)
    assert len(constants) == header.count("constexpr")
    page = (ROOT / "docs" / "numerics.md").read_text()
    stated = {np.float32(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", page)}
    assert [name for name, value in constants if np.float32(value) not in stated] == []
