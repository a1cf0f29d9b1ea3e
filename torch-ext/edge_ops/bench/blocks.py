"""What a report is made of: headings, paragraphs, lists, tables and figures, and their Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Union


@dataclass(frozen=True)
class Heading:
    level: int  # 2 to 4
    text: str


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Bullets:
    items: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Text cells. The first `labels` columns are words, the others figures."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int = 1


@dataclass(frozen=True)
class Figure:
    """An SVG drawing; `label` says in words what it shows. Markdown has none."""

    svg: str
    label: str


@dataclass(frozen=True)
class Fold:
    """What a page shows on demand, under its title; in Markdown a section."""

    level: int
    title: str
    blocks: tuple[Block, ...]


Block = Union[Heading, Text, Bullets, Table, Figure, Fold]


def table(header: Sequence[str], rows: Iterable[Sequence[str]], labels: int = 1) -> Table:
    return Table(tuple(header), tuple(map(tuple, rows)), labels)


def _row(values: Iterable[str]) -> str:
    return f"| {' | '.join(values)} |"


def _lines(block: Block) -> list[str]:
    if isinstance(block, Heading):
        return [f"{'#' * block.level} {block.text}"]
    if isinstance(block, Text):
        return [block.text]
    if isinstance(block, Bullets):
        return [f"- {item}" for item in block.items]
    if isinstance(block, Table):
        return [_row(block.header), "|---" * len(block.header) + "|", *map(_row, block.rows)]
    if isinstance(block, Fold):
        inside = markdown(block.blocks)
        return [f"{'#' * block.level} {block.title}", "", inside] if inside else []
    return []


def markdown(blocks: Iterable[Block]) -> str:
    return "\n\n".join("\n".join(lines) for block in blocks if (lines := _lines(block)))
