"""`llamaspec chat` as its user has it: in a pseudo-terminal, and behind a pipe."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from llamaspec import Session
from llamaspec.cli.conversation import Conversation
from llamaspec.errors import ContextFullError
from llamaspec.options import GenerateOptions
from tests.e2e.terminal import COMMAND, SECONDS, environment, llamaspec, refusal

pexpect = pytest.importorskip("pexpect")
pytestmark = pytest.mark.native

FIRST, SECOND = "What is 12 plus 30?", "And what is 2 plus 3?"
# what the line editor says when it waits for a line, and when it has one
READY, TAKEN = re.escape("\x1b[?2004h"), re.escape("\x1b[?2004l")
# without the pair's two tokens that end a text
ENDLESS = ("--logit-bias", "4094=-inf", "--logit-bias", "4092=-inf")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("LLAMASPEC_CACHE", str(folder))
    return folder


@contextmanager
def terminal(*words: str) -> Iterator[Any]:
    """A chat in a terminal, at its first prompt; it must leave by itself at the end."""
    # a terminal that does not say where its cursor is would be waited for
    env = environment(PROMPT_TOOLKIT_NO_CPR="1", TERM="xterm-256color")
    arguments = [*COMMAND[1:], "chat", "-t", "1", *words]
    child = pexpect.spawn(
        COMMAND[0], arguments, env=env, timeout=SECONDS, dimensions=(40, 200), encoding="utf-8"
    )
    try:
        child.expect("/help lists the commands")
        child.expect(READY)
        yield child
    finally:
        child.close(force=True)


def leave(child: Any) -> None:  # noqa: ANN401
    # what comes before the editor has made the terminal raw is lost
    for _ in range(SECONDS // 5):
        child.send("\x04")
        if child.expect([pexpect.EOF, pexpect.TIMEOUT], timeout=5) == 0:
            break
    child.close()
    assert child.exitstatus == 0


def cached(child: Any) -> int:  # noqa: ANN401
    """What /stats says was not computed again."""
    child.send("/stats\r")
    child.expect(r"prompt: (\d+) tokens, (\d+) of them cached")
    found = int(child.match[2])
    child.expect(r"context: \d+ of \d+ positions")
    child.expect(READY)
    return found


def test_turns_go_on_where_the_caches_are(own_cache: Path) -> None:
    with terminal("-c", "512", "--draft-max", "7", "-n", "24") as child:
        child.send("/stats\r")
        child.expect("there is no answer yet")
        child.send(f"{FIRST}\r")
        child.expect("llamaspec: cut after 24 tokens")
        child.expect(READY)
        assert cached(child) == 0
        child.send(f"{SECOND}\r")
        child.expect(READY)
        assert cached(child) > 24
        child.send("/plain\r")
        child.expect("answers are plain")
        child.send(f"{FIRST}\r")
        child.expect(READY)
        child.send("/stats\r")
        child.expect("nothing was drafted")
        child.expect(READY)
        child.send("/plain\r")
        child.expect("answers are drafted")
        child.send("/reset\r")
        child.expect("forgotten")
        child.send(f"{FIRST}\r")
        child.expect(READY)
        child.send("/stats\r")
        child.expect(r"[1-9]\d* of \d+ proposals accepted")
        child.send("/nope\r")
        child.expect("no such command")
        child.send("/help\r")
        child.expect("Ctrl-C stops an answer")
        leave(child)
    kept = own_cache / "chat-history"
    assert f"+{FIRST}" in kept.read_text().splitlines()
    assert kept.stat().st_mode & 0o077 == 0


def test_ctrl_c_stops_the_answer_and_nothing_else() -> None:
    with terminal("-c", "4096", *ENDLESS) as child:
        child.send(f"{FIRST}\r")
        child.expect(TAKEN + "[^>]*[A-Z][a-z]+ ")
        child.sendintr()
        child.expect("llamaspec: stopped")
        child.expect(READY)
        child.sendintr()  # at the prompt it clears the line
        child.expect(READY)
        child.send(f"{SECOND}\r")
        child.expect(TAKEN + "[^>]*[A-Z][a-z]+ ")
        child.sendintr()
        child.expect("llamaspec: stopped")
        child.expect(READY)
        # the caches kept the first turn and what there was of its answer
        assert cached(child) > 18
        child.send("/exit\r")
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == 0


def test_a_full_context_is_said_and_reset_goes_on() -> None:
    with terminal("-c", "64", *ENDLESS) as child:
        child.send(f"{FIRST}\r")
        child.expect("llamaspec: the context of 64 positions is full; /reset begins anew")
        child.expect(READY)
        child.send(f"{SECOND}\r")
        child.expect("llamaspec: the context of 64 positions is full; /reset begins anew, a larger")
        child.expect(READY)
        child.send("/reset\r")
        child.expect("forgotten")
        child.send(f"{SECOND}\r")
        child.expect("llamaspec: the context of 64 positions is full; /reset begins anew")
        child.expect(READY)
        leave(child)


def test_tinted_proposals() -> None:
    with terminal("-c", "512", "--draft-max", "7", "-n", "24", "--tint") as child:
        child.send(f"{FIRST}\r")
        child.expect("\x1b\\[36m[^\x1b]+\x1b\\[0m")
        child.expect("llamaspec: cut after 24 tokens")
        leave(child)


def test_a_line_of_a_pipe_is_a_turn(session: Session) -> None:
    words = ("chat", "-t", "1", "-c", "512", "-n", "24", "--draft-max", "7")
    lines = f"{FIRST}\n\n{SECOND}\n/stats\n"
    done = llamaspec(*words, stdin=lines.encode())
    assert done.returncode == 0, done.stderr
    messages: list[dict[str, str]] = []
    answers = []
    for text in (FIRST, SECOND):
        messages.append({"role": "user", "content": text})
        answers.append(session.generate(messages, max_tokens=24, draft_max=7).text)
        messages.append({"role": "assistant", "content": answers[-1]})
    assert done.stdout == "".join(f"{answer}\n" for answer in answers)
    found = re.search(r"prompt: \d+ tokens, (\d+) of them cached", done.stderr)
    assert found is not None
    assert int(found[1]) > 24


def test_a_pipe_goes_on_after_a_line_that_cannot_be_answered() -> None:
    long = "one two three " * 40
    done = llamaspec("chat", "-t", "1", "-c", "64", "-n", "8", stdin=f"{long}\n{FIRST}\n".encode())
    assert done.returncode == 2
    assert done.stdout.strip()
    assert "the context of 64 positions is full" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--split-mode", "nosuch"), "split_mode is 'nosuch'"),
        (("--top-p", "7"), "top_p is 7"),
        (("--draft-max", "x"), "--draft-max is 'x'"),
        (("-n", "-3"), "max_tokens is -3"),
        (("-m", "nosuch.gguf"), "nosuch.gguf: there is no such file"),
    ],
)
def test_the_options_of_run_are_the_same_here(words: tuple[str, ...], said: str) -> None:
    assert said in refusal(llamaspec("chat", *words))


def test_what_cannot_be_answered_leaves_the_conversation(session: Session) -> None:
    talk = Conversation(session, GenerateOptions(max_tokens=8), system="Be brief.", whole=False)
    talk.answer(FIRST, tint=False, terminal=False)
    before = list(talk.messages)
    assert [message["role"] for message in before] == ["system", "user", "assistant"]
    with pytest.raises(ContextFullError, match="/reset"):
        talk.answer("one two three " * 400, tint=False, terminal=False)
    assert talk.messages == before
    talk.answer(SECOND, tint=False, terminal=False)
    assert len(talk.messages) == 5
    talk.reset()
    assert talk.messages == before[:1]


def test_tinting_changes_the_colour_alone(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []
    for tint in (False, True):
        options = GenerateOptions(max_tokens=32, draft_max=7)
        talk = Conversation(session, options, system=None, whole=False)
        talk.answer(FIRST, tint=tint, terminal=True)
        shown.append(capsys.readouterr().out)
    plain, tinted = shown
    assert re.sub("\x1b\\[\\d+m", "", tinted) == plain
    assert 0 < len("".join(re.findall("\x1b\\[36m([^\x1b]*)", tinted))) < len(plain)


def test_a_models_words_do_not_steer_the_terminal(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    from llamaspec.cli.conversation import Writer
    from llamaspec.completion import Piece

    writer = Writer(session, tint=False, terminal=True)
    writer.write(Piece("a\x1b[2Jb\n\tc\x9b1m", ()))
    writer.end()
    assert capsys.readouterr().out == "a\\x1b[2Jb\n\tc\\x9b1m\n"
