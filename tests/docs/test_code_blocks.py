"""The documentation does what it shows: Python runs, commands exist, links lead somewhere, signatures are right.

A page's ```python blocks run in order in one namespace. Two comments on the line before a block change that:
`<!-- needs: module -->` leaves it out where the module is not installed, `<!-- skip: reason -->` always, and the reason
says what is missing (`markdown.REASONS`). A block that is left out is a skipped test of its own. Shell blocks are not
run, but for what is quick: each command's program, sub-command, options and files are looked up. Blocks without a fence
are shell by their first word, or formulas and trees.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path
from typing import Iterator, List, Tuple

import numpy as np
import pytest

import edge_ops
from edge_ops import cli
from support.commands import Command, commands_of, complaint, is_shell, options, sub_commands
from support.markdown import PAGES, REASONS, ROOT, Block, blocks_of, inline_code, left_out, python_blocks, run_blocks
from support.processes import output

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
# A template: its blocks run once it is filled.
CARD = ROOT / "CARD.md"
CARD_TEST = ("tests/hub/test_layout.py", "test_the_cards_programs_run")
LANGUAGES = ("indented", "json", "python", "sh", "text", "toml")

_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")
# A file named in a sentence or a tree; *.json and the like are the reader's own.
_FILE = re.compile(
    r"(?<![\w/<>.-])(?:[\w.*-]+/)*[\w*-]+\.(?:py|pyi|cpp|cu|cuh|h|inl|map|sh|md|toml|nix|yml)\b(?![\w/])"
)
_FOLDERS = ("", "benchmarks/", "csrc/**/", "docs/", "tests/**/", "tools/**/", "torch-ext/**/", "torch-ext/edge_ops/")
_KERNELS = re.compile(r"^(import|from) kernels\b", re.MULTILINE)
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def all_blocks() -> Iterator[Tuple[Path, Block]]:
    for page in PAGES:
        for block in blocks_of(page.read_text()):
            yield page, block


def all_commands() -> List[Tuple[str, Command]]:
    return [(page.name, command) for page, block in all_blocks() if is_shell(block) for command in commands_of(block)]


# --- Python -------------------------------------------------------------------------------


def run_page_apart(page: Path, folder: Path) -> None:
    """A page that uses `kernels`, in a process of its own (kernelize changes classes), beside the layout it names."""
    pytest.importorskip("jinja2", reason="the Hub layout needs jinja2")
    layout = folder / "dist" / "hub"
    objects = ["--objects", str(folder / "objects")]
    output([str(ROOT / "tools" / "build_hub.py"), "noarch", "--output", str(layout), *objects])
    repository = re.search(r'repo-id = "(.+)"', (ROOT / "build.toml").read_text())[1]
    program = (
        "import os, pathlib, support.markdown\n"
        f"os.chdir({str(folder)!r})\n"
        f"support.markdown.run_blocks(pathlib.Path({str(page)!r}).read_text(), {str(page)!r})"
    )
    output(["-c", program], {"LOCAL_KERNELS": f"{repository}={layout}", "HF_HUB_OFFLINE": "1"})


@pytest.mark.parametrize("page", [page for page in PAGES if page != CARD], ids=lambda page: page.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    text = page.read_text()
    monkeypatch.chdir(tmp_path)
    if any(_KERNELS.search(block.code) and not left_out(block) for block in python_blocks(text)):
        run_page_apart(page, tmp_path)
    else:
        run_blocks(text, str(page))


LEFT_OUT = [(page, block) for page, block in all_blocks() if block.mark]


@pytest.mark.parametrize("page, block", LEFT_OUT, ids=lambda v: v.name if isinstance(v, Path) else f"line{v.line}")
def test_blocks_with_a_mark(page, block):
    ast.parse(block.code)
    assert block.mark == "needs" or REASONS.match(block.detail), f"{page.name}:{block.line}: say what is missing"
    if left_out(block):
        pytest.skip(f"{page.name}:{block.line} is not run: {left_out(block)}")


def test_the_cards_blocks_run_elsewhere():
    assert python_blocks(CARD.read_text())
    assert f"def {CARD_TEST[1]}(" in (ROOT / CARD_TEST[0]).read_text()


def test_the_quick_starts_are_blocks():
    assert len(python_blocks((ROOT / "README.md").read_text())) >= 2
    assert len(python_blocks((ROOT / "docs" / "quickstart.md").read_text())) >= 5


def test_a_block_that_fails_is_noticed():
    page = "text\n\n```python\nvalue = 1\n```\n\n```python\nassert value == 2\n```\n"
    with pytest.raises(AssertionError) as failure:
        run_blocks(page, "page.md")
    assert failure.traceback[-1].lineno + 1 == 8, "the traceback names the page's line"


def test_marks_leave_blocks_out():
    page = "<!-- skip: needs a GPU -->\n```python\n1 / 0\n```\n<!-- needs: no_such_module -->\n```python\n1 / 0\n```\n"
    run_blocks(page, "page.md")
    assert [left_out(block) for block in blocks_of(page)] == ["needs a GPU", "no_such_module is not installed"]


# --- the other blocks ---------------------------------------------------------------------


@each_page
def test_every_block_is_of_a_known_kind(page):
    for block in blocks_of(page.read_text()):
        where = f"{page.name}:{block.line}"
        assert block.language in LANGUAGES, f"{where}: {block.language}"
        if block.language == "json":
            json.loads(block.code)
        elif block.language == "toml":
            pytest.importorskip("tomllib", reason="needs Python 3.11's tomllib").loads(block.code)
        elif block.language == "indented" and not is_shell(block):
            assert not re.search(r"^(import|from) \w", block.code, re.MULTILINE), f"{where}: a program needs a fence"


@each_page
def test_commands_exist(page):
    found = [(command.line, complaint(command)) for name, command in all_commands() if name == page.name]
    assert [(line, wrong) for line, wrong in found if wrong] == []


def test_every_kind_of_command_is_documented():
    words = [command.words for _, command in all_commands() if command.words]
    assert {found[1] for found in words if found[0] == "edge-ops"} >= set(sub_commands())
    assert {found[0] for found in words} >= {"edge-ops", "make", "pip", "python"}


@each_page
def test_inline_commands_and_options_exist(page):
    """`edge-ops bench` and `--quick` within a sentence."""
    known = options()
    everywhere = {option for names in known.values() for option in names}
    tools = "".join(path.read_text() for path in ROOT.glob("tools/**/*.py"))
    for code in inline_code(page.read_text()):
        words = code.split()
        if words[0] == "edge-ops" and len(words) > 1:
            assert words[1] in known, code
            assert [w for w in words if w.startswith("--") and w not in known[words[1]]] == [], code
        elif words[0].startswith("--") and words[0] != "--no-build-isolation":  # pip's
            assert words[0] in everywhere or f'"{words[0]}"' in tools, code


@pytest.mark.parametrize(
    "line, wrong",
    [
        ("edge-ops bench --quik", "unrecognized arguments: --quik"),
        ("edge-ops bensh", "invalid choice"),
        ("edge-ops demo --tokens 0", "must be 2 or more"),
        ("python -m edge_ops info --xml", "unrecognized arguments"),
        ("make tset", "no target"),
        ("pip install '.[model]'", "no extra"),
        ("pip install --no-such-thing torch", "option --no-such-thing"),
        ("pip install -C cmake.define.EDGE_OPS_CUDDA=OFF .", "no such CMake setting"),
        ("python tools/no_such.py", "no file"),
        ("tools/build_hub.py --chek", "knows no --chek"),
        ("python -m pytest tests/exakt", "no file"),
        ("export EDGE_OPS_" + "CPU_ISSA=avx2", "nothing reads"),
        ("edgeops info", "unknown program"),
    ],
)
def test_a_wrong_command_is_noticed(line, wrong):
    (block,) = blocks_of(f"```sh\n{line}  # a comment\n```\n")
    (command,) = commands_of(block)
    assert wrong in complaint(command)


def test_blocks_without_a_fence_are_found():
    page = "Text\n\n    make test\n    make demo\n\n- item\n\n    its text\n\nEnd\n\n    y = x\n"
    assert [(b.line, b.code, is_shell(b)) for b in blocks_of(page)] == [
        (3, "make test\nmake demo\n", True),
        (12, "y = x\n", False),
    ]


def test_quick_commands_run(capsys):
    assert cli.main(["info"]) == 0
    for name in sub_commands():
        with pytest.raises(SystemExit) as end:
            cli.main([name, "--help"])
        assert end.value.code == 0
    assert "edge-ops qualify" in capsys.readouterr().out


# --- links, signatures, constants ---------------------------------------------------------


@each_page
def test_relative_links_lead_somewhere(page):
    targets = [t for t in _LINK.findall(page.read_text()) if "://" not in t and not t.startswith("mailto:")]
    assert [t for t in targets if not (page.parent / t).exists()] == []


_MADE_BY_THE_BUILD = ("_ops.py",)


def files_that_are_not(text: str) -> List[str]:
    """Files that a page names, in code within its sentences and in its trees, and that are nowhere."""
    trees = [block.code for block in blocks_of(text) if block.language == "indented" and not is_shell(block)]
    named = [name for code in (*inline_code(text), *trees) for name in _FILE.findall(code)]
    named = [name for name in named if not name.endswith(_MADE_BY_THE_BUILD)]
    return [name for name in named if not any(found for folder in _FOLDERS for found in ROOT.glob(folder + name))]


@each_page
def test_files_named_are_there(page):
    assert files_that_are_not(page.read_text()) == []


def test_a_file_that_is_not_there_is_noticed():
    page = "See `csrc/cpu/rows.inl`, `row.inl` and `host.json`.\n\n    csrc/\n      cpu/  vec_*.h, vect_*.h\n"
    assert files_that_are_not(page) == ["row.inl", "vect_*.h"]


def without_annotations(function) -> str:
    """A signature as documentation shows it: the direct functions have no annotations, the Python ones do."""
    signature = inspect.signature(function)
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_shown_as_they_are(name):
    (section,) = re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", OPERATORS, re.MULTILINE | re.DOTALL)
    assert f"```text\n{name}{without_annotations(getattr(edge_ops, name))}\n```" in section
    assert python_blocks(section), "an example"


def test_the_numerics_page_states_every_constant():
    header = (ROOT / "csrc" / "numerics" / "constants.h").read_text()
    constants = re.findall(r"constexpr \w+ (\w+) = (-?[\d.e-]+)f?;", header)
    assert len(constants) == header.count("constexpr")
    page = (ROOT / "docs" / "numerics.md").read_text()
    stated = {np.float32(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", page)}
    assert [name for name, value in constants if np.float32(value) not in stated] == []
