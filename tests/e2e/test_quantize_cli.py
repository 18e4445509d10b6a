"""`llamaspec quantize` as it is used, and drafts that were quantised at work."""

import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from llamaspec import demo
from llamaspec.runtime.describe import describe
from llamaspec.runtime.quantize import quantize
from llamaspec.session import Session, load
from tests.e2e.terminal import (
    COMMAND,
    SECONDS,
    environment,
    llamaspec,
    refusal,
    shown_to_a_terminal,
)

pytestmark = pytest.mark.native

SOURCE = demo.target_path()
# slow enough to be interrupted: seconds on one thread
SLOW = ("quantize", "-t", 1, SOURCE)
QUESTIONS = ("What is the sum of 20, 13 and 13?", "Write a Python function that adds two numbers.")


def test_one_line_says_what_was_made(tmp_path: Path) -> None:
    done = llamaspec("quantize", SOURCE, tmp_path / "out.gguf", "q8_0")
    assert (done.returncode, done.stderr) == (0, "")
    size = (tmp_path / "out.gguf").stat().st_size
    assert done.stdout == (
        f"{tmp_path / 'out.gguf'}: Q8_0, {SOURCE.stat().st_size / 1e6:,.1f} MB -> "
        f"{size / 1e6:,.1f} MB ({size / SOURCE.stat().st_size:.0%}); tensors: Q8_0 71, F32 41\n"
    )
    assert describe(tmp_path / "out.gguf").quantisation == "Q8_0"


def test_help_names_the_options_and_the_exit_codes() -> None:
    usage = llamaspec("quantize", "--help").stdout
    for word in ("IN", "OUT", "TYPE", "-t", "--threads", "--force", "--requantize", "-v", "130"):
        assert word in usage


def test_verbose_shows_llama_cpps_own_lines(tmp_path: Path) -> None:
    done = llamaspec("quantize", "-v", SOURCE, tmp_path / "out.gguf", "F16")
    assert done.returncode == 0
    assert "token_embd.weight" in done.stderr
    assert "converting to f16" in done.stderr


def test_a_terminal_sees_the_tensors_pass(tmp_path: Path) -> None:
    words = [*COMMAND, "quantize", str(SOURCE), str(tmp_path / "out.gguf"), "F16"]
    shown = shown_to_a_terminal(words, environment())
    steps = shown.decode().split("\r")
    assert any(step.startswith("quantising 0/112 (0%)") for step in steps)
    assert any(step.startswith("quantising 112/112 (100%)") for step in steps)
    assert "".join(steps[-2:]).strip() == ""


@pytest.mark.parametrize(
    ("words", "reasons"),
    [
        ((SOURCE, "out.gguf", "Q9"), ("'Q9' is unknown", "Q4_K_M")),
        ((SOURCE, "out.gguf", "IQ2_XS"), ("importance matrix",)),
        ((SOURCE, "out.gguf", "Q8_0", "-t", "-2"), ("threads is -2",)),
        (("nosuch.gguf", "out.gguf", "Q8_0"), ("nosuch.gguf: there is no such file",)),
        ((SOURCE, "no/such/out.gguf", "Q8_0"), ("there is no folder",)),
        ((SOURCE, ".", "Q8_0"), ("is a folder",)),
        ((SOURCE, "mine.gguf", "Q8_0"), ("exists already", "--force")),
        ((SOURCE, SOURCE, "Q8_0", "--force"), ("is the input itself",)),
        ((demo.draft_path(), "out.gguf", "Q4_0"), ("quantised already", "Q8_0", "--requantize")),
    ],
    ids=lambda value: " ".join(Path(word).name for word in value[1:]) if len(value) > 2 else "",
)
def test_a_refusal_is_one_line_and_touches_nothing(
    words: tuple[str | Path, ...],
    reasons: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.gguf").write_text("mine")
    line = refusal(llamaspec("quantize", *words))
    assert all(reason in line for reason in reasons), line
    assert [path.name for path in tmp_path.iterdir()] == ["mine.gguf"]
    assert (tmp_path / "mine.gguf").read_text() == "mine"


def test_force_replaces_and_requantize_takes_a_quantised_file(tmp_path: Path) -> None:
    (tmp_path / "out.gguf").write_text("old")
    words = ("quantize", demo.draft_path(), tmp_path / "out.gguf", "Q5_0")
    assert llamaspec(*words, "--force", "--requantize").returncode == 0
    assert describe(tmp_path / "out.gguf").quantisation == "Q5_0"


def test_a_disk_that_takes_no_more_leaves_nothing(tmp_path: Path) -> None:
    limit = 1 << 20
    done = subprocess.run(
        [*COMMAND, "quantize", str(SOURCE), str(tmp_path / "out.gguf"), "Q8_0"],
        capture_output=True,
        text=True,
        env=environment(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert "is the disk full?" in refusal(done)
    assert not list(tmp_path.iterdir())


@contextmanager
def under_way(output: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """A slow command that has begun to write."""
    words = [*COMMAND, *map(str, (*SLOW, output, "IQ3_S", "--force"))]
    with subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as running:
        ending = time.monotonic() + SECONDS
        while not any(part.stat().st_size for part in output.parent.glob(".*.part")):
            assert running.poll() is None
            assert time.monotonic() < ending
            time.sleep(0.005)
        yield running


def test_ctrl_c_is_exit_code_130_and_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "out.gguf").write_text("mine")
    with under_way(tmp_path / "out.gguf") as running:
        running.send_signal(signal.SIGINT)
        shown, errors = running.communicate(timeout=SECONDS)
    assert (running.returncode, shown, errors.strip()) == (130, b"", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]
    assert (tmp_path / "out.gguf").read_text() == "mine"


def test_a_command_that_is_killed_leaves_nothing_either(tmp_path: Path) -> None:
    with under_way(tmp_path / "out.gguf") as running:
        running.kill()
        running.wait(SECONDS)
    ending = time.monotonic() + SECONDS
    while list(tmp_path.iterdir()) and time.monotonic() < ending:
        time.sleep(0.02)
    assert not list(tmp_path.iterdir())


def ask(session: Session) -> tuple[list[list[int]], float]:
    """The tokens of all answers, and the tokens a round: of whole blocks, since how much pays
    depends on what passes cost here.
    """
    whole = session.draft_limit
    done = [
        session.generate([{"role": "user", "content": question}], max_tokens=48, draft_max=whole)
        for question in QUESTIONS
    ]
    tokens = sum(answer.stats.completion_tokens for answer in done)
    return [list(answer.token_ids) for answer in done], tokens / sum(
        answer.stats.rounds for answer in done
    )


@pytest.mark.parametrize("type_name", ["Q8_0", "Q4_K_M"])
@pytest.mark.parametrize("draft", ["tiny-dspark-f32", "tiny-dspark-speculators-f32"])
def test_a_quantised_draft_proposes(
    draft: str, type_name: str, ggufs: Path, tmp_path: Path
) -> None:
    whole = ggufs / f"{draft}.gguf"
    small = quantize(whole, tmp_path / "draft.gguf", type_name).output
    with load(SOURCE, whole, threads=1, context=512) as session:
        expected, fast = ask(session)
    with load(SOURCE, small, threads=1, context=512) as session:
        found, tau = ask(session)
    assert found == expected
    assert tau > 0.8 * fast > 2


def test_a_quantised_target_answers_as_the_whole_one(tmp_path: Path) -> None:
    small = quantize(SOURCE, tmp_path / "target.gguf", "Q8_0").output
    asked = [{"role": "user", "content": QUESTIONS[0]}]
    with load(SOURCE, demo.draft_path(), threads=1, context=512) as session:
        expected = session.generate(asked, max_tokens=16).text
    with load(small, demo.draft_path(), threads=1, context=512) as session:
        done = session.generate(asked, max_tokens=16, draft_max=session.draft_limit)
    assert done.text == expected != ""
    assert done.stats.tau > 2
