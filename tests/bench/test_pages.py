"""The published tables are what the committed samples give."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "benchmark_pages.py"


def check(root: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, str(root / "tools" / TOOL.name), "--check"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_pages_are_in_step():
    done = check(TOOL.parents[1])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", ("README.md", "docs/cpu-results.md"))
def test_a_changed_page_is_noticed(page, tmp_path):
    import shutil

    for name in ("README.md", "docs/cpu-results.md", "tools/benchmark_pages.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(TOOL.parents[1] / name, tmp_path / name)
    for name in ("torch-ext", "benchmarks"):
        (tmp_path / name).symlink_to(TOOL.parents[1] / name)
    text = (tmp_path / page).read_text()
    digit = text.rindex("1.", 0, text.index("results: end") if page == "README.md" else len(text))
    (tmp_path / page).write_text(text[:digit] + "7." + text[digit + 2 :])
    done = check(tmp_path)
    assert done.returncode == 1 and page in done.stdout, done.stdout + done.stderr
