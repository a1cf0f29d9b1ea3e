"""What mkdocs needs to make one site of the repository (mkdocs.yml): pages outside docs/, linked sources, formulas.

- CONTRIBUTING.md and CHANGELOG.md stand at the root, where people look for them, and become pages.
- `<!-- README: Limits -->` and the link after it become that section of README.md, so that it is written once.
- A link to a source file leads to a page that shows the file.
- A formula becomes MathML, which browsers draw without a script.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LANGUAGES = {".py": "python", ".cpp": "cpp", ".h": "cpp", ".sh": "sh", ".toml": "toml"}

_LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_HEADING = re.compile(r"^# (.+)$", re.MULTILINE)
_SHORT_CELL = re.compile(r"<td>(?=[^<]{1,18}</td>)")
_SECTION = re.compile(r"<!-- README: (.+?) -->\n\[.*")
_FENCES = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_ONE_LINE = re.compile(r'<div class="language-text (?=highlight"><pre>(?:<[^>]+>)*[^\n]*\n</code></pre>)')
_FORMULA = re.compile(r'<(div|span) class="arithmatex">\s*\\[\[(](.*?)\\[\])]\s*</\1>', re.DOTALL)


def _rewritten(text: str, path: Path, page: str, sources: set[str]) -> str:
    """A page with its links as the site has them; the source files it links to are added to `sources`.

    Args:
        text: the page's Markdown.
        path: where it stands in the repository.
        page: where it stands in the site.
        sources: paths in the repository.
    """

    def moved(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        file = (path.parent / target).resolve()
        if not file.is_file() or not file.is_relative_to(ROOT):
            return match[0]  # mkdocs says that the link leads nowhere
        name = file.relative_to(ROOT).as_posix()
        if name in PAGES:
            to = PAGES[name]
        elif name.startswith("docs/"):
            to = name[len("docs/") :]
        else:
            sources.add(name)
            to = f"source/{name}.md"
        if label.endswith(".md") and not anchor:  # a page is named by its title
            title = _HEADING.search(file.read_text())
            label = title[1] if title else label
        return f"[{label}]({posixpath.relpath(to, posixpath.dirname(page))}{anchor})"

    parts, end = [], 0
    for fence in _FENCES.finditer(text):
        parts += [_LINK.sub(moved, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(moved, text[end:])])


def _section(title: str) -> str:
    """What README.md says under a heading, with links as a page of docs/ writes them."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", (ROOT / "README.md").read_text(), re.M | re.S)
    if found is None:
        raise ValueError(f"README.md has no section {title!r}")
    return found[1].strip().replace("](docs/", "](")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages from outside docs/."""
    sources: set[str] = set()
    for file in files.documentation_pages():
        path = Path(file.abs_src_path)
        text = _SECTION.sub(lambda match: _section(match[1]), path.read_text())
        file.content_string = _rewritten(text, path, file.src_uri, sources)
    for name, page in PAGES.items():
        if not files.get_file_from_path(page):
            text = _rewritten((ROOT / name).read_text(), ROOT / name, page, sources)
            files.append(File.generated(config, page, content=text))
    for name in sorted(sources):
        path = ROOT / name
        code = f"# {name}\n\n``````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}\n``````\n"
        text = f"---\ntitle: {name}\nsearch:\n  exclude: true\n---\n\n{code}"
        files.append(File.generated(config, f"source/{name}.md", content=text))
    return files


def on_page_content(html_text: str, **_: Any) -> str:
    """Formulas as MathML; marks for the style sheet: a table's short cells stay whole, a block of one line wraps."""

    def drawn(match: re.Match[str]) -> str:
        display = "block" if match[1] == "div" else "inline"
        formula = convert(html.unescape(match[2]).strip(), display=display)
        return f'<{match[1]} class="arithmatex">{formula}</{match[1]}>'

    html_text = _ONE_LINE.sub('<div class="language-text one-line ', html_text)
    return _SHORT_CELL.sub('<td class="short">', _FORMULA.sub(drawn, html_text))
