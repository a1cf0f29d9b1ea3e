"""A report as one HTML page that needs nothing else: styles and drawings are in it, and it runs no script."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from .blocks import Block, Bullets, Figure, Heading, Table, Text

STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; color: #1b1f24; background: #fff;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 .5rem; padding-top: .5rem; border-top: 2px solid #d9dde2; }
h3 { font-size: 1.08rem; margin: 1.8rem 0 .4rem; }
p, ul { max-width: 75ch; margin: .5rem 0; }
ul { padding-left: 1.2rem; }
li { overflow-wrap: anywhere; }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: 0; list-style: none; max-width: none; }
a { color: #0b5fa5; }
code { font-size: .9em; background: #f1f3f5; padding: 0 .25em; border-radius: 3px; }
.scroll { overflow-x: auto; margin: .8rem 0; width: fit-content; max-width: 100%;
  border: 1px solid #d9dde2; border-radius: 6px; }
.scroll:focus-visible { outline: 3px solid #0b5fa5; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #e8ebee; }
th { background: #f1f3f5; vertical-align: bottom; font-weight: 600; }
thead th { white-space: normal; min-width: 4.5rem; }
.word { text-align: left; }
td.long { white-space: normal; min-width: 16rem; }
tbody tr:last-child td { border-bottom: 0; }
tbody tr:nth-child(even) { background: #fafbfc; }
tr.loss td { background: #fdecec; }
strong { color: #b3121d; }
details { margin: .5rem 0; }
summary { cursor: pointer; padding: .35rem 0; font-weight: 600; color: #0b5fa5; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(340px, 100%), 1fr)); gap: 1.2rem; }
figure { margin: 0; min-width: 0; }
figcaption { font-size: .9rem; font-weight: 600; margin-bottom: .2rem; }
figure svg { display: block; width: 100%; max-width: 380px; height: auto; }
@media (max-width: 480px) { body { font-size: 15px; } main { padding: .75rem; } h1 { font-size: 1.4rem; } }
"""


def _inline(text: str) -> str:
    text = html.escape(text, quote=False)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)


def _anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _cell(text: str, tag: str, word: bool) -> str:
    classes = ["word"] * word + ["long"] * (tag == "td" and len(text) > 40)
    attribute = f' class="{" ".join(classes)}"' if classes else ""
    return f"<{tag}{attribute}>{_inline(text)}</{tag}>"


def _table(table: Table) -> str:
    last = len(table.header) - 1

    def row(values: Sequence[str], tag: str) -> str:
        # The last column is words where it holds a sentence.
        cells = [
            _cell(text, tag, index < table.labels or index == last and any(len(r[last]) > 25 for r in table.rows))
            for index, text in enumerate(values)
        ]
        loss = ' class="loss"' if tag == "td" and any("**loss**" in text for text in values) else ""
        return f"<tr{loss}>{''.join(cells)}</tr>"

    head, body = row(table.header, "th"), "\n".join(row(values, "td") for values in table.rows)
    label = html.escape(table.header[0])
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>\n<thead>{head}</thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _figure(figure: Figure) -> str:
    caption, _, rest = figure.label.partition(": ")
    svg = figure.svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(figure.label)}" ', 1)
    return f"<figure><figcaption>{_inline(caption)}</figcaption>{svg}</figure>" if rest else f"<figure>{svg}</figure>"


def _body(blocks: Sequence[Block]) -> Iterator[str]:
    open_figures = False
    for block in blocks:
        if isinstance(block, Figure) != open_figures:
            open_figures = not open_figures
            yield '<div class="figures">' if open_figures else "</div>"
        if isinstance(block, Heading):
            yield f'<h{block.level} id="{_anchor(block.text)}">{_inline(block.text)}</h{block.level}>'
        elif isinstance(block, Text):
            yield f"<p>{_inline(block.text)}</p>"
        elif isinstance(block, Bullets):
            yield "<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in block.items) + "</ul>"
        elif isinstance(block, Table):
            yield _table(block)
        elif isinstance(block, Figure):
            yield _figure(block)
        else:
            inside = "\n".join(_body(block.blocks))
            yield f"<details><summary>{_inline(block.title)}</summary>\n{inside}\n</details>"
    if open_figures:
        yield "</div>"


def render(title: str, blocks: Sequence[Block]) -> str:
    """The page: a title, links to its sections, and the blocks."""
    sections = [block.text for block in blocks if isinstance(block, Heading) and block.level == 2]
    links = "".join(f'<li><a href="#{_anchor(text)}">{_inline(text)}</a></li>' for text in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{_inline(title)}</h1>\n<nav aria-label="Sections"><ul>{links}</ul></nav>\n'
        + "\n".join(_body(blocks))
        + "\n</main>\n</body>\n</html>\n"
    )
