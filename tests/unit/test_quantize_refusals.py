"""Quantising that is refused or fails: the reason in one line, and nothing half-made stays."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from llamaspec.errors import LlamaSpecError, ModelLoadError, OptionError
from tests.miniature import VOCABULARY, WIDTH, ramp, write_gguf, write_target
from tests.unit.quantizable import (
    COLUMNS,
    ROWS,
    left_behind,
    loadable,
    normal,
    types_in,
    write_source,
    write_with,
)

pytest.importorskip("llamaspec._native")
from llamaspec.runtime import quantize as subject
from llamaspec.runtime import quantize_process
from llamaspec.runtime.quantize import Permit, quantize

pytestmark = pytest.mark.native


def aligned_to_64(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_custom_alignment(64)
    write_with(writer)
    return path


REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing": (lambda path: path, "there is no such file"),
    "encoder": (
        lambda path: write_target(path, loadable("bert"), arch="bert"),
        "is a bert file, neither a target nor a draft",
    ),
    "four-dimensions": (
        lambda path: write_source(path, blk__0__x=normal(2, 2, 2, 32)),
        r"has the shape \(2, 2, 2, 32\)",
    ),
    "empty-tensor": (
        lambda path: write_source(path, blk__0__x=np.zeros((2, 0), np.float32)),
        "no elements",
    ),
    "alignment": (aligned_to_64, "general.alignment is 64"),
    "unknown-architecture": (
        lambda path: write_target(path, loadable("nosuch"), arch="nosuch"),
        "unknown model architecture: 'nosuch'",
    ),
    "missing-key": (
        lambda path: write_target(path),
        r"llama.cpp cannot quantise it: .*layer_norm_rms_epsilon",
    ),
    "damaged-weights": (
        lambda path: write_source(path, blk__0__x=np.full((2, 32), np.nan, np.float32)),
        "invalid data",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_source_that_cannot_be_quantised_is_named(case: str, tmp_path: Path) -> None:
    build, reason = REFUSED[case]
    source = build(tmp_path / "in.gguf")
    with pytest.raises(ModelLoadError, match=reason) as refused:
        quantize(source, tmp_path / "out.gguf", "Q8_0")
    assert str(refused.value).startswith(str(source))
    assert not (tmp_path / "out.gguf").exists()
    assert not left_behind(tmp_path)


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (lambda path: path / "x.gguf", "there is no folder"),
        (folder, "is a folder"),
        (pipe, "not a regular file"),
        (lambda path: path.parent / "in.gguf", "is the input itself"),
    ],
)
def test_an_output_that_cannot_be_is_refused(
    place: Callable[[Path], Path], reason: str, tmp_path: Path
) -> None:
    source = write_source(tmp_path / "in.gguf")
    before = source.read_bytes()
    with pytest.raises(OptionError, match=reason):
        quantize(source, place(tmp_path / "out"), "Q8_0", permit=Permit(overwrite=True))
    assert source.read_bytes() == before
    assert not left_behind(tmp_path)


def test_an_existing_output_needs_permission(tmp_path: Path) -> None:
    source = write_source(tmp_path / "in.gguf")
    output = tmp_path / "out.gguf"
    output.write_text("mine")
    with pytest.raises(OptionError, match=r"out\.gguf: exists already; .* --force"):
        quantize(source, output, "Q8_0")
    assert output.read_text() == "mine"
    quantize(source, output, "Q8_0", permit=Permit(overwrite=True))
    assert types_in(output)["token_embd.weight"] == "Q8_0"


def test_a_full_disk_is_seen_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_source(tmp_path / "in.gguf", blk__0__ffn_up=normal(1024, 1024))
    real = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: real._replace(free=2_000_000))
    steps: list[int] = []
    with pytest.raises(LlamaSpecError, match=r"takes 2\.2 MB, and 2\.0 MB are free"):
        quantize(source, tmp_path / "o.gguf", "Q8_0", on_progress=lambda d, n, t: steps.append(d))
    assert not steps
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.gguf"]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import os; os.abort()", r"its process ended by signal 6"),
        ("import sys; sys.exit('no such luck')", "with exit code 1: no such luck"),
        ("print('[\"tensor\", 1', end='')", "with exit code 0"),
    ],
)
def test_a_child_that_ends_takes_nobody_with_it(
    program: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = write_source(tmp_path / "in.gguf"), tmp_path / "out.gguf"
    output.write_text("mine")
    monkeypatch.setattr(quantize_process, "_START", program)
    with pytest.raises(ModelLoadError, match=f"cannot quantise it: .*{reason}"):
        quantize(source, output, "Q8_0", permit=Permit(overwrite=True))
    assert output.read_text() == "mine"
    assert not left_behind(tmp_path)


def test_where_llama_cpp_aborts_the_caller_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_source(tmp_path / "in.gguf", blk__0__x=normal(2, 2, 2, 32))
    monkeypatch.setattr(subject, "_check_tensors", lambda *_: None)
    with pytest.raises(ModelLoadError, match=r"ended by signal 6 \(.*\): .*GGML_ASSERT\("):
        quantize(source, tmp_path / "out.gguf", "Q8_0")
    assert [path.name for path in tmp_path.iterdir()] == ["in.gguf"]


@pytest.mark.parametrize(
    ("written", "reason"),
    [(b"", "left a damaged file"), (b"GGUF", "left a damaged file")],
)
def test_a_damaged_result_never_gets_the_name(
    written: bytes, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = write_source(tmp_path / "in.gguf"), tmp_path / "out.gguf"

    def pretend(job: quantize_process.Job, **_: object) -> None:
        Path(job.output).write_bytes(written)

    monkeypatch.setattr(subject, "run_job", pretend)
    with pytest.raises(LlamaSpecError, match=reason):
        quantize(source, output, "Q8_0")
    assert not output.exists()
    assert not left_behind(tmp_path)


def test_a_result_of_other_tensors_never_gets_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_source(tmp_path / "in.gguf", blk__0__ffn_up=normal(2, 32))
    other = write_gguf(
        tmp_path / "other.gguf",
        "qwen3",
        {"qwen3.block_count": 1, "qwen3.embedding_length": WIDTH},
        {"token_embd.weight": ramp(VOCABULARY, WIDTH)},
    )
    monkeypatch.setattr(subject, "run_job", lambda job, **_: shutil.copyfile(other, job.output))
    with pytest.raises(LlamaSpecError, match=r"wrote 2048 weights of a qwen3 target, .* has 2144"):
        quantize(source, tmp_path / "out.gguf", "Q8_0")
    assert not (tmp_path / "out.gguf").exists()


def test_an_interrupt_ends_the_child_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = write_source(tmp_path / "in.gguf"), tmp_path / "out.gguf"
    output.write_text("mine")
    children = []
    start = subprocess.Popen

    def popen(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        children.append(start(*args, **kwargs))
        return children[-1]

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("subprocess.Popen", popen)
    with pytest.raises(KeyboardInterrupt):
        quantize(source, output, "Q8_0", permit=Permit(overwrite=True), on_progress=interrupt)
    (child,) = children
    assert child.returncode is not None
    assert output.read_text() == "mine"
    assert not left_behind(tmp_path)


def test_a_quantised_source_needs_permission(tmp_path: Path) -> None:
    source = write_source(tmp_path / "in.gguf", blk__0__ffn_up=normal(ROWS, COLUMNS))
    small = quantize(source, tmp_path / "small.gguf", "Q8_0").output
    with pytest.raises(ModelLoadError, match=r"quantised already \(2 of its 3 tensors are Q8_0\)"):
        quantize(small, tmp_path / "out.gguf", "Q4_0")
    assert not (tmp_path / "out.gguf").exists()
    again = quantize(small, tmp_path / "out.gguf", "Q4_0", permit=Permit(requantize=True))
    assert types_in(again.output)["blk.0.ffn_up.weight"] == "Q4_0"
