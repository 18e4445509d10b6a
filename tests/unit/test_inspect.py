"""`llamaspec inspect`: the table, the JSON, the verdict and the exit codes."""

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from llamaspec.cli.inspect import inspect
from tests.miniature import RANK, WIDTH, ramp, write_draft, write_target

app = typer.Typer()
app.command()(inspect)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path / "target.gguf")


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return write_draft(tmp_path / "draft.gguf")


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return result.stderr if code == 2 else result.stdout


def loaded(*arguments: object, code: int = 0) -> Any:  # noqa: ANN401
    return json.loads(run("--json", *arguments, code=code))


def rows(output: str) -> dict[str, str]:
    lines = [line[2:] for line in output.splitlines() if line.startswith("  ")]
    return {line[:16].strip(): line[16:] for line in lines}


def test_a_target(target: Path) -> None:
    output = run(target)
    assert output.startswith(f"{target}: a model that generates text by itself")
    assert rows(output)["layers x width"] == "4 x 32"
    assert rows(output)["vocabulary"] == "64 tokens, gpt2/qwen2"
    assert "block" not in rows(output)


def test_a_draft(draft: Path) -> None:
    output = run(draft)
    assert "a DSpark draft for a target of width 32, not standalone" in output
    found = rows(output)
    assert found["features"] == "64: inputs of target layers [1, 3]"
    assert found["block"] == "5 slots, anchor-first: 5 proposals"
    assert found["Markov head"] == "vanilla, rank 8"
    assert found["confidence head"] == "yes"
    assert found["output head"] == "the target's"
    assert found["mask token"] == "63"


def test_json_of_one_file(draft: Path) -> None:
    found = loaded(draft)
    assert (found["kind"], found["path"]) == ("draft", str(draft))
    details = found["draft"]
    assert (details["method"], details["layout"], details["proposals"]) == (
        "DSpark",
        "anchor-first",
        5,
    )
    assert details["taps"] == [1, 3]


def test_a_pair_in_either_order(target: Path, draft: Path) -> None:
    for order in ((target, draft), (draft, target)):
        assert run(*order).rstrip().endswith("They fit.")
        found = loaded(*order)
        assert [file["path"] for file in found["files"]] == list(map(str, order))
        assert (found["fits"], found["problems"]) == (True, [])


def test_every_reason_why_not(target: Path, tmp_path: Path) -> None:
    changes = {"dflash.target_layers": [1, 9, 11], "tokenizer.ggml.mask_token_id": None}
    misfit = write_draft(tmp_path / "misfit.gguf", changes)
    output = run(target, misfit, code=1)
    reasons = output.split("They do not fit:")[1].strip().splitlines()
    assert len(reasons) == 3
    for reason, words in zip(reasons, ("[9, 11]", "width 64", "mask_token_id"), strict=True):
        assert words in reason
    assert len(loaded(target, misfit, code=1)["problems"]) == 3
    assert "not standalone" in run(misfit, misfit, code=1)


def test_other_heads(target: Path, tmp_path: Path) -> None:
    path = tmp_path / "gated.gguf"
    shown = run(target, write_draft(path, {}, {"markov_gate.weight": ramp(RANK, WIDTH + RANK)}))
    assert rows(shown)["Markov head"] == f"gated, rank {RANK}"
    shown = run(target, write_draft(path, {}, {"markov_gate.weight": ramp(RANK, RANK)}), code=1)
    assert "markov_gate.weight has shape (8, 8), its gated head for 64 tokens" in shown


def test_a_recurrent_target(draft: Path, tmp_path: Path) -> None:
    for arch in ("mamba", "jamba", "qwen3next"):
        shown = run(write_target(tmp_path / "t.gguf", arch=arch), draft, code=1)
        assert "keeps recurrent state" in shown
    for arch in ("lfm2", "qwen35", "nemotron_h"):
        assert "They fit" in run(write_target(tmp_path / "t.gguf", arch=arch), draft)


def test_a_d2t_of_another_type(target: Path, tmp_path: Path) -> None:
    path = write_draft(tmp_path / "d.gguf", {}, {"d2t": np.arange(16, dtype=np.int32)})
    for files in ((path,), (target, path)):
        assert "d2t has type I32, llama.cpp takes I64" in run(*files, code=2)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "there is not enough memory"),
        (MemoryError("no batch of 512 rows"), "there is not enough memory (no batch of 512 rows)"),
        (OSError(errno.EIO, "Input/output error", "x.gguf"), "Input/output error: 'x.gguf'"),
        (OSError(errno.ENOSPC, "No space left on device"), "[Errno 28] No space left on device"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), "[Errno 32] Broken pipe"),
        (TimeoutError(), "TimeoutError"),
        (OSError("two\nlines"), "two lines"),
    ],
    ids=repr,
)
def test_what_fails_beside_the_output(
    monkeypatch: pytest.MonkeyPatch, target: Path, error: BaseException, words: str
) -> None:
    def fail(path: object) -> None:
        raise error

    monkeypatch.setattr("llamaspec.runtime.describe.describe", fail)
    line = run(target, code=2)
    assert words in line
    assert "output cannot" not in line
    assert line.startswith("llamaspec: ")
    assert line.count("\n") == 1


def test_what_cannot_be_read(target: Path, tmp_path: Path) -> None:
    absent = tmp_path / "absent.gguf"
    assert run(absent, code=2) == f"llamaspec: {absent}: there is no such file\n"
    assert run(target, __file__, code=2).count("\n") == 1
    assert "3 files" in run(target, target, target, code=2)
    assert "hf://owner/repo" in run("hf://x", code=2)


def test_the_trained_pairs(ggufs: Path) -> None:
    target = ggufs / "tiny-target-q8_0.gguf"
    drafts = [path for path in ggufs.glob("*.gguf") if "target" not in path.name]
    assert len(drafts) >= 4
    for path in drafts:
        assert loaded(target, path)["fits"]
