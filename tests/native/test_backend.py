"""A package whose backends cannot be loaded says why."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.native


@pytest.mark.parametrize("broken", ["missing", "damaged"])
def test_a_package_without_a_backend_names_the_reason(tmp_path: Path, broken: str) -> None:
    ignored = shutil.ignore_patterns("convert", "bench", "demo", "__pycache__", "bin")
    package = tmp_path / "llamaspec"
    shutil.copytree(ROOT / "llamaspec", package, ignore=ignored, symlinks=True)
    for backend in (package / "lib").glob("*ggml-cpu*"):
        if broken == "missing":
            backend.unlink()
        else:
            backend.write_bytes(b"not a library" * 1000)
    code = "from llamaspec.runtime import backend; backend.initialise()"
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    line = run.stderr.splitlines()[-1]
    assert line.startswith("llamaspec.errors.LlamaSpecError: no backend can be loaded: ")
    assert ("there is none" if broken == "missing" else "invalid ELF header") in line
    assert "python build.py" in line
