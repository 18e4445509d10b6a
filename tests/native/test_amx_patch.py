"""Patch 0001: the whole AMX tile configuration is in memory when ldtilecfg reads it.

Needs a compiler that targets x86, not a processor that has AMX.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import build

pytestmark = pytest.mark.native

CONFIG_BYTES = 64
COLSB, ROWS, TILES = 16, 48, 8
WIDTHS = {"b": 1, "w": 2, "l": 4, "q": 8, "xmm": 16, "ymm": 32, "zmm": 64}
STORE = re.compile(
    r"(?P<op>\w+)\s+(?P<source>[$%]\w+),(?P<offset>-?0x[0-9a-f]+|)\((?P<base>%\w+)\)$"
)
LOAD = re.compile(r"ldtilecfg\s+(?P<offset>-?0x[0-9a-f]+|)\((?P<base>%\w+)\)")


def compiled(tree: Path, out: Path) -> str:
    """The disassembly of the file that configures the tiles."""
    compiler = next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if compiler is None or shutil.which("objdump") is None:
        pytest.skip("no C++ compiler or no objdump")
    source = tree / "ggml/src"
    flags = ["-O3", "-DNDEBUG", "-fPIC", "-std=gnu++17", "-march=sapphirerapids", "-D_GNU_SOURCE"]
    folders = [f"-I{source / f}" for f in (".", "..", "ggml-cpu", "../include")]
    probe = [compiler, *flags[:-1], "-x", "c++", "-fsyntax-only", "/dev/null"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        pytest.skip("the compiler does not target x86 with AMX")
    command = [compiler, *flags, *folders, "-c", str(source / "ggml-cpu/amx/mmq.cpp"), "-o"]
    subprocess.run([*command, str(out)], check=True)
    dump = ["objdump", "-d", "--no-show-raw-insn", str(out)]
    return subprocess.run(dump, capture_output=True, text=True, check=True).stdout


def written_before_load(lines: list[str]) -> set[int]:
    """Offsets within the configuration to which something other than a zeroed register goes."""
    load = LOAD.search(lines[-1])
    assert load is not None
    start = int(load["offset"] or "0", 16)
    zeroed: set[str] = set()
    written: set[int] = set()
    for line in lines[:-1]:
        if clear := re.search(r"v?pxorq?d?\s+(%\w+),(?:%\w+,)?%[xyz]mm(\d+)$", line):
            zeroed.add(clear[2])
        elif into := re.search(r",%[xyz]mm(\d+)$", line):
            zeroed.discard(into[1])
        store = STORE.search(line)
        if store is None or store["base"] != load["base"]:
            continue
        vector = re.match(r"%([xyz]mm)(\d+)", store["source"])
        if (vector and vector[2] in zeroed) or store["source"] == "$0x0":
            continue
        parts = {"vmovd": 4, "vmovq": 8}
        whole = WIDTHS[vector[1]] if vector else store_width(store["op"], store["source"])
        width = parts.get(store["op"], whole)
        first = int(store["offset"] or "0", 16) - start
        written.update(range(first, first + width))
    return {offset for offset in written if 0 <= offset < CONFIG_BYTES}


def store_width(operation: str, source: str) -> int:
    if re.fullmatch(r"%([a-d]x|[sd]i|[sb]p)", source):
        return 2
    if source.startswith("%r"):
        return {"d": 4, "w": 2, "b": 1}.get(source[-1], 8)
    return 4 if source.startswith("%e") else WIDTHS.get(operation[-1], 1)


def test_the_tile_configuration_reaches_memory(tmp_path: Path) -> None:
    dump = compiled(build.patched_source(), tmp_path / "mmq.o")
    lines = [line.partition("#")[0].rstrip() for line in dump.splitlines()]
    loads = [i for i, line in enumerate(lines) if LOAD.search(line)]
    assert loads
    for at in loads:
        written = written_before_load(lines[max(at - 40, 0) : at + 1])
        assert 0 in written
        assert set(range(COLSB, COLSB + 2 * TILES)) <= written
        assert set(range(ROWS, ROWS + TILES)) <= written
