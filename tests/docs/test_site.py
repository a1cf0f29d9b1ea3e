"""The documentation as a site: it builds without a warning, holds every page, and fetches nothing from elsewhere."""

from __future__ import annotations

import importlib.util
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import List, Tuple

import pytest

from support.markdown import ROOT
from support.processes import python

NEEDED = ("mkdocs", "material", "latex2mathml")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed (requirements/docs.txt)")

LOADING = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src", "form": "action"}


def build(folder: Path, config: Path = ROOT / "mkdocs.yml"):
    command = ["-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(folder)]
    return python(command, {"NO_MKDOCS_2_WARNING": "1"})


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stdout + done.stderr
    return folder


class Loads(HTMLParser):
    """What a page makes a browser load, and where it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: List[Tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        value = dict(attributes).get(LOADING.get(tag, ""))
        if value:
            self.loaded.append((tag, value))


def test_every_page_is_there_and_in_the_search(site):
    pages = {f"{path.stem}.html" for path in (ROOT / "docs").glob("*.md")} | {"contributing.html", "changelog.html"}
    assert pages <= {path.name for path in site.glob("*.html")}
    index = json.loads((site / "search" / "search_index.json").read_text())
    assert pages <= {entry["location"].split("#")[0] or "index.html" for entry in index["docs"]}


def test_nothing_is_fetched_from_elsewhere(site):
    for page in site.rglob("*.html"):
        assert [load for load in Loads(page.read_text()).loaded if "//" in load[1]] == [], page
    for sheet in site.rglob("*.css"):
        assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)\"']*", sheet.read_text()) == [], sheet


def test_the_search_runs_from_the_disk(site):
    """Without a server: the index is a script, and the worker's stand-in is the site's own."""
    assert (site / "search" / "search_index.js").read_text().startswith("var __index = {")
    for page in site.rglob("*.html"):
        (script,) = (source for tag, source in Loads(page.read_text()).loaded if "iframe-worker" in source)
        assert page.name == "404.html" or (page.parent / script).is_file(), page


def test_formulas_need_no_script(site):
    formulas = re.findall(r'class="arithmatex">(.*?)</(?:div|span)>', (site / "operators.html").read_text(), re.DOTALL)
    assert len(formulas) >= 6
    assert all(formula.startswith("<math") and "merror" not in formula for formula in formulas)
    for page in site.glob("*.html"):
        assert not re.search(r"\\\[|\$\$", page.read_text()), page


def test_linked_sources_are_pages(site):
    numerics = (site / "numerics.html").read_text()
    assert "source/tests/support/contract.py.html" in numerics
    assert "class" in (site / "source" / "tests" / "support" / "contract.py.html").read_text()


def test_the_readmes_sections_are_filled_in(site):
    home = (site / "index.html").read_text()
    assert "EDGE_OPS_CPU_ISA" in home and "version counter" in home and "README:" not in home


def test_a_broken_link_fails_the_build(tmp_path):
    config = (ROOT / "mkdocs.yml").read_text()
    config = re.sub(r"^nav:.*", "", config, flags=re.MULTILINE | re.DOTALL)
    config = re.sub(r"^hooks:\n.*\n", "", config, flags=re.MULTILINE).replace("not_in_nav: |\n  /source/\n", "")
    (tmp_path / "mkdocs.yml").write_text(config)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Home\n\n[gone](gone.md)\n")
    done = build(tmp_path / "out", tmp_path / "mkdocs.yml")
    assert done.returncode != 0 and "gone.md" in done.stdout + done.stderr
