"""Documented commands: do their program, sub-command, options, targets, files and variables exist?"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
from typing import Dict, List, NamedTuple, Sequence

from edge_ops import cli
from support.markdown import ROOT, Block

# Programs of others: what they do is not this project's to check.
OTHERS = (
    "apt-get",
    "auditwheel",
    "cd",
    "clang-format",
    "git",
    "grep",
    "kernels",
    "mypy",
    "nix",
    "pytest",
    "ruff",
    "taskset",
)
OTHERS_VARIABLES = ("ATEN_CPU_CAPABILITY", "HF_HUB_OFFLINE", "KERNELS_CACHE", "LOCAL_KERNELS", "PYTHONPATH")
PIP_OPTIONS = ("--no-build-isolation", "--no-deps", "-C", "-r", "--find-links", "--no-index", "--upgrade", "--target")
# Names that stand for a file of the reader's.
PLACEHOLDERS = ("app.py",)

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_BREAKS = ("|", "||", "&&", ";")


class Command(NamedTuple):
    """One command of a block."""

    line: int
    variables: Dict[str, str]
    words: List[str]


def _texts(*patterns: str) -> str:
    return "\n".join(path.read_text() for pattern in patterns for path in sorted(ROOT.glob(pattern)))


def is_shell(block: Block) -> bool:
    """By its fence, or, without one, by its first word."""
    if block.language != "indented":
        return block.language in ("sh", "bash", "shell", "console")
    first = block.code.split(maxsplit=1)[0]
    known = (*OTHERS, "edge-ops", "export", "make", "pip", "python")
    return first in known or first.startswith("tools/") or bool(re.match(r"[A-Z_]+=", first))


def commands_of(block: Block) -> List[Command]:
    """The commands of a shell block, without comments."""
    found = []
    lines = block.code.replace("\\\n", "  ").split("\n")
    for offset, line in enumerate(lines):
        words = shlex.split(line, comments=True)
        start = 0
        for end in [*[i for i, word in enumerate(words) if word in _BREAKS], len(words)]:
            part, variables = words[start:end], {}
            if part[:1] == ["export"]:
                part = part[1:]
            while part and (match := _ASSIGNMENT.fullmatch(part[0])):
                variables[match[1]] = match[2]
                part = part[1:]
            if part or variables:
                found.append(Command(block.line + offset, variables, part))
            start = end + 1
    return found


def sub_commands() -> Dict[str, argparse.ArgumentParser]:
    """The parser of each `edge-ops` command."""
    (action,) = (a for a in cli._parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(action.choices)


def options() -> Dict[str, List[str]]:
    """The options of each `edge-ops` command."""
    return {name: list(parser._option_string_actions) for name, parser in sub_commands().items()}


def _edge_ops(words: Sequence[str]) -> str:
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
            cli._parser().parse_args(list(words))
    except SystemExit as end:
        return "" if end.code == 0 else errors.getvalue().strip().rsplit("\n", 1)[-1]
    return ""


def _make(words: Sequence[str]) -> str:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    unknown = [word for word in words if "=" not in word and word not in targets]
    return f"no target {unknown}" if unknown else ""


def _pip(words: Sequence[str]) -> str:
    if words[:1] != ["install"]:
        return "only pip install is known here"
    rest = list(words[1:])
    extras = re.search(
        r"\[project.optional-dependencies\]\n(.*?)\n\[", (ROOT / "pyproject.toml").read_text(), re.DOTALL
    )
    while rest:
        word = rest.pop(0)
        if word.startswith("-"):
            if word not in PIP_OPTIONS:
                return f"option {word}"
            if word == "-r" and not (ROOT / rest.pop(0)).is_file():
                return "no such requirements file"
            if word == "-C":
                setting = re.fullmatch(r"cmake\.define\.(\w+)=\w+", rest.pop(0))
                if setting is None or setting[1] not in (ROOT / "CMakeLists.txt").read_text():
                    return "no such CMake setting"
            if word in ("--find-links", "--target"):
                rest.pop(0)
            continue
        name = re.fullmatch(r"(?:\.|[A-Za-z][\w.-]*|[\w./*-]+\.whl)(?:\[([\w,]+)\])?((==|>=|<)[\w.]+)?", word)
        if name is None:
            return f"{word!r} names no package"
        if word.startswith((".", "edge-ops")):
            missing = [
                e for e in (name[1] or "").split(",") if e and not re.search(rf"^{e} = ", extras[1], re.MULTILINE)
            ]
            if missing:
                return f"no extra {missing}"
    return ""


def _script(path: str, words: Sequence[str]) -> str:
    if path in PLACEHOLDERS:
        return ""
    file = ROOT / path
    if not file.is_file():
        return f"no file {path}"
    for at, word in enumerate(words):
        if word.startswith("python") or word.startswith("tools/"):
            return complaint(Command(0, {}, list(words[at:])))
        if word.startswith("--") and f'"{word.split("=")[0]}"' not in file.read_text():
            return f"{path} knows no {word}"
    return ""


def _python(words: Sequence[str]) -> str:
    if words[:2] == ["-m", "edge_ops"]:
        return _edge_ops(words[2:])
    if words[:2] == ["-m", "pytest"]:
        missing = [word for word in words[2:] if word.startswith("tests") and not (ROOT / word.split("::")[0]).exists()]
        return f"no file {missing}" if missing else ""
    if words[:1] == ["-m"]:
        return "" if words[1] in OTHERS else f"module {words[1]}"
    return _script(words[0], words[1:])


def _variables(variables: Dict[str, str]) -> str:
    sources = None
    for name in variables:
        if name not in OTHERS_VARIABLES:
            sources = sources or _texts(
                "torch-ext/edge_ops/**/*.py", "tests/**/*.py", "tools/**/*.py", "tools/**/*.sh", "Makefile"
            )
            if name not in sources:
                return f"nothing reads {name}"
    return ""


def complaint(command: Command) -> str:
    """What is wrong with a command, or ""."""
    wrong = _variables(command.variables)
    if wrong or not command.words:
        return wrong
    program, words = command.words[0], command.words[1:]
    known = {"edge-ops": _edge_ops, "make": _make, "pip": _pip, "python": _python}
    if program in known:
        return known[program](words)
    if program.startswith(("tools/", "examples/")):
        return _script(program, words)
    return (
        ""
        if program in OTHERS
        else f"unknown program {program!r}: tests/support/commands.py lists those that are not ours"
    )
