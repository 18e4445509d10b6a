"""The documentation's examples run: ```python as written, ```sh as one script, with our own pair.

```console and ```py are only shown: they need other machines, downloads or hours.
"""

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from llamaspec import demo
from tests.conftest import ROOT
from tests.e2e.terminal import environment

pytestmark = pytest.mark.native

DOCS = ROOT / "docs"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = {"console", "py", "text", "ini", "nginx", "yaml", "json"}
SECONDS = 600


def blocks(page: Path, language: str) -> list[str]:
    """The code of a page in one language."""
    return [code for name, code in FENCE.findall(page.read_text("utf-8")) if name == language]


def pages(language: str) -> list[Path]:
    return [page for page in sorted(DOCS.glob("*.md")) if blocks(page, language)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a reader would be: with a pair and prompts."""
    (tmp_path / "target.gguf").symlink_to(demo.target_path())
    (tmp_path / "draft.gguf").symlink_to(demo.draft_path())
    (tmp_path / "prompts.txt").write_text("Write a Python function.\nWhat is 12 plus 30?\n")
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "llamaspec"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m llamaspec "$@"\n')
    command.chmod(0o755)
    return tmp_path


def run(folder: Path, *command: str) -> None:
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(PATH=path),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("page", pages("python"), ids=lambda page: page.name)
def test_python(page: Path, folder: Path) -> None:
    (folder / "page.py").write_text("\n".join(blocks(page, "python")), "utf-8")
    run(folder, sys.executable, "page.py")


@pytest.mark.parametrize("page", pages("sh"), ids=lambda page: page.name)
def test_shell(page: Path, folder: Path) -> None:
    run(folder, "sh", "-e", "-c", "\n".join(blocks(page, "sh")))


def test_files_for_other_programs_can_be_read() -> None:
    yaml = pytest.importorskip("yaml")
    page = DOCS / "scale-out.md"
    (scrape,) = blocks(page, "yaml")
    (job,) = yaml.safe_load(scrape)["scrape_configs"]
    assert job["static_configs"][0]["targets"] == ["127.0.0.1:8080"]
    (unit,) = blocks(page, "ini")
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(unit)
    assert "llamaspec serve" in parser["Service"]["ExecStart"]


def test_every_block_is_run_or_meant_to_be_shown() -> None:
    kinds = {name for page in DOCS.glob("*.md") for name, _ in FENCE.findall(page.read_text())}
    assert kinds <= {"python", "sh"} | SHOWN
    assert pages("python")
    assert pages("sh")
