"""Runs the program of layer_inputs.cpp: miniature models, and the layer inputs that the evaluation
callback sees in them.
"""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import build
from llamaspec.ffi import LIBRARY_DIR
from llamaspec.runtime.arrays import FloatArray
from tests.miniature_targets import write_metadata

SOURCE = Path(__file__).with_name("layer_inputs.cpp")


@dataclass(frozen=True)
class Probe:
    """The compiled program, and a folder for the models that it makes."""

    program: Path
    folder: Path

    def model(self, arch: str) -> Path:
        """A miniature GGUF of an architecture, every tensor random."""
        path = self.folder / f"{arch}.gguf"
        if not path.exists():
            metadata = write_metadata(self.folder / f"{arch}.metadata.gguf", arch)
            self._run("make", metadata, path)
        return path

    def watch(
        self, model: Path, ids: Sequence[int], sizes: tuple[int, int, int]
    ) -> list[FloatArray]:
        """The inputs [n_layer + 1, rows, width] of the layers and the head: of all ids but the
        last, and of the last behind them. sizes: layers, rows of the first pass, width.
        """
        out = self.folder / "watched.bin"
        self._run("watch", model, out, ",".join(map(str, ids)))
        layers, rows, width = sizes
        values = np.fromfile(out, np.float32)
        first = (layers + 1) * rows * width
        return [
            values[:first].reshape(layers + 1, rows, width),
            values[first:].reshape(layers + 1, 1, width),
        ]

    def _run(self, *arguments: str | Path) -> None:
        command = [self.program, LIBRARY_DIR, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{arguments}: {done.stderr[-2000:]}"


def compile_probe(folder: Path) -> Probe:
    """Compile against the libraries in place; skips where there is no compiler or no source."""
    compiler = next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if compiler is None:
        pytest.skip("no C++ compiler")
    tree, program = build.patched_source(), folder / "layer_inputs"
    includes = [f"-I{tree / name}" for name in ("include", "ggml/include")]
    libraries = [f"-L{LIBRARY_DIR}", "-lllama", "-lggml", "-lggml-base"]
    flags = ["-std=c++17", "-O1", *includes, str(SOURCE), "-o", str(program)]
    command = [compiler, *flags, *libraries, f"-Wl,-rpath,{LIBRARY_DIR}"]
    subprocess.run(command, check=True)
    return Probe(program, folder)
