"""The code blocks of a page of documentation, and the running of its Python."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import List, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md"))]
# What may keep a block from being run at all.
REASONS = re.compile(r"needs (a GPU|weights|the network|the Hub|a device)\b")

_FENCE = re.compile(r"^ *(`{3,}|~{3,}) *(\w*)$")
_MARK = re.compile(r"^<!-- (needs|skip): (.+?) -->$")
_ITEM = re.compile(r"^ *([-*+]|\d+\.) ")
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


class Block(NamedTuple):
    """A fenced or an indented block."""

    line: int  # of its first line, from 1
    language: str  # what its fence says; "indented" without one
    code: str
    mark: str  # "", "needs" or "skip": of the comment on the line before
    detail: str


def blocks_of(text: str) -> List[Block]:
    """Every block of a page, in order."""
    found: List[Block] = []
    lines = text.split("\n")
    number, in_list = 0, False
    while number < len(lines):
        line = lines[number]
        fence = _FENCE.match(line)
        indented = line.startswith("    ") and not in_list and (number == 0 or not lines[number - 1].strip())
        if not fence and not indented:
            if line.strip():
                in_list = bool(_ITEM.match(line)) or (in_list and line.startswith(" "))
            number += 1
            continue
        mark = _MARK.match(lines[number - 1]) if number else None
        if fence:
            first = end = number + 1
            while lines[end].strip() != fence[1]:
                end += 1
            number = end + 1
        else:
            first = end = number
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            number = end
        code = "\n".join(lines[first:end] if fence else [line[4:] for line in lines[first:end]]).rstrip("\n") + "\n"
        language = (fence[2] or "text") if fence else "indented"
        found.append(Block(first + 1, language, code, *(mark.groups() if mark else ("", ""))))
    return found


def python_blocks(text: str) -> List[Block]:
    """Those that are programs."""
    return [block for block in blocks_of(text) if block.language == "python"]


def inline_code(text: str) -> List[str]:
    """What stands between single backticks, outside of blocks."""
    prose = text.split("\n")
    for block in blocks_of(text):
        for number in range(block.line - 1, block.line - 1 + block.code.count("\n")):
            prose[number] = ""
    return _INLINE.findall("\n".join(prose))


def left_out(block: Block) -> str:
    """Why a block does not run here, or ""."""
    if block.mark == "skip":
        return block.detail
    if block.mark == "needs" and importlib.util.find_spec(block.detail) is None:
        return f"{block.detail} is not installed"
    return ""


def run_blocks(text: str, name: str) -> None:
    """Runs a page's Python blocks, in order and in one namespace; tracebacks point into the page."""
    namespace = {"__name__": "__main__"}
    for block in python_blocks(text):
        if not left_out(block):
            exec(compile("\n" * (block.line - 1) + block.code, name, "exec"), namespace)
