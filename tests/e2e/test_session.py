"""A session over its life: endings, streams, interruptions, failing drafts, closing.

The reference is always plain decoding (draft_max=0), which nothing here may differ from.
"""

import contextlib
import gc
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import gguf
import pytest

from llamaspec import demo
from llamaspec.bench.pairs import PROMPTS
from llamaspec.completion import Completion, Piece
from llamaspec.draft.block import BlockDrafter
from llamaspec.draft.waiting import Waiting
from llamaspec.engine.sequence import Sequence
from llamaspec.errors import ClosedError, DecodeError, OptionError, QueueFullError
from llamaspec.runtime.context import Context, TargetContext
from llamaspec.runtime.draft_context import DraftContext
from llamaspec.runtime.rounds import Rounds
from llamaspec.runtime.vocab import Vocab
from llamaspec.session import Session, load
from llamaspec.text.prompt import Prompt
from tests.decoding import one_by_one
from tests.rewrite import rewrite

pytestmark = pytest.mark.native

TARGET, DRAFT = demo.target_path(), demo.draft_path()
BLOCK = 7
"""The whole block in every round: what of it is worth verifying is test_pace.py's matter."""
CODE: Prompt = [{"role": "user", "content": PROMPTS[2][1]}]
QUESTIONS: list[Prompt] = [
    [{"role": "user", "content": text}]
    for text in (
        "What is the sum of 20, 13 and 13?",
        "A bus travels 10 kilometers each hour. How far does it travel in 2 hours?",
        "Kira had 53 candles and sold 49 of them at the library. How many candles are left?",
    )
]
# the bundled target answers this with one pair of tokens for ever
ENDLESS: Prompt = [{"role": "user", "content": "Translate to Japanese: 🎉 日本"}]


def pair(**settings: Any) -> Session:  # noqa: ANN401
    return load(TARGET, DRAFT, **{"threads": 1, "context": 512, **settings})


def check(done: Completion) -> Completion:
    """What must hold of every completion."""
    stats, rounds = done.stats, done.rounds
    assert stats.completion_tokens == len(done.token_ids)
    assert 1 + sum(r.committed for r in rounds) == len(done.token_ids)
    assert stats.rounds == len(rounds)
    assert stats.accepted == sum(r.accepted for r in rounds) <= stats.drafted
    position = stats.prompt_tokens
    for record in rounds:
        assert record.start == position
        assert record.anchor == done.token_ids[position - stats.prompt_tokens]
        assert 0 <= record.accepted <= min(len(record.draft), record.committed)
        accepted = record.draft[: record.accepted]
        after = position - stats.prompt_tokens + 1
        assert done.token_ids[after : after + record.accepted] == accepted
        position += record.committed
    return done


def both(session: Session, prompt: Prompt, **arguments: Any) -> Completion:  # noqa: ANN401
    """A completion with the draft, after checking that plain decoding gives the same; both from a
    cold start.
    """
    arguments["cache_prompt"] = False
    drafted = check(session.generate(prompt, draft_max=BLOCK, **arguments))
    plain = check(session.generate(prompt, draft_max=0, **arguments))
    assert plain.stats.drafted == 0
    assert outcome(drafted) == outcome(plain)
    return drafted


def outcome(done: Completion) -> tuple[str, tuple[int, ...], str]:
    return done.text, done.token_ids, done.finish_reason


# --- endings


def test_the_end_token_inside_an_accepted_block_ends_the_text(session: Session) -> None:
    for question in QUESTIONS:
        done = both(session, question, max_tokens=100)
        last = done.rounds[-1]
        assert done.finish_reason == "stop"
        assert done.token_ids[-1] == 4094
        assert done.token_ids.count(4094) == 1
        # the end token itself was a proposal, and what follows it in the block is gone
        assert last.accepted == last.committed <= len(last.draft)
        assert "<|" not in done.text


def test_max_tokens_ends_the_text_exactly_there(session: Session) -> None:
    whole = session.generate(CODE, max_tokens=60, draft_max=0).token_ids
    for limit in range(1, 21):
        done = check(session.generate(CODE, max_tokens=limit, draft_max=BLOCK))
        assert done.token_ids == whole[:limit]
        assert done.finish_reason == "length"


@pytest.mark.parametrize("draft_max", [1, 2, 3, 5, 7])
def test_any_number_of_proposals_gives_the_same_text(session: Session, draft_max: int) -> None:
    plain = session.generate(CODE, max_tokens=40, draft_max=0)
    done = check(session.generate(CODE, max_tokens=40, draft_max=draft_max))
    assert outcome(done) == outcome(plain)
    assert max(len(r.draft) for r in done.rounds) == draft_max


@pytest.mark.parametrize("context", [64, 67, 70, 256])
def test_the_end_of_the_context_ends_the_text_and_the_next_request_is_right(context: int) -> None:
    with pair(context=context) as small:
        room = context - len(small.tokenize(ENDLESS))
        assert room > 20
        for draft_max in (None, BLOCK, 0):
            done = check(small.generate(ENDLESS, max_tokens=4000, draft_max=draft_max))
            assert done.finish_reason == "length"
            assert done.stats.prompt_tokens + done.stats.completion_tokens == context
        after = both(small, ENDLESS, max_tokens=20)
    with pair() as roomy:
        assert outcome(roomy.generate(ENDLESS, max_tokens=room)) == outcome(done)
        assert outcome(roomy.generate(ENDLESS, max_tokens=20)) == outcome(after)


def stops_of(text: str) -> Iterator[str]:
    """Stop texts that begin and end at all kinds of places of a text."""
    for start in range(0, len(text) - 8, 7):
        for length in (1, 3, 8):
            yield text[start : start + length]


def test_stop_texts_end_the_text_just_before_them(session: Session) -> None:
    whole = session.generate(CODE, max_tokens=60, draft_max=0)
    inside = 0
    for stop in dict.fromkeys(stops_of(whole.text[:120])):
        done = both(session, CODE, max_tokens=60, stop=stop)
        assert done.text == whole.text[: whole.text.index(stop)]
        assert done.finish_reason == "stop"
        assert done.token_ids == whole.token_ids[: len(done.token_ids)]
        # the token that completes the stop text is the last one
        assert session_text(session, done.token_ids[:-1]).count(stop) == 0
        assert stop in session_text(session, done.token_ids)
        inside += bool(done.rounds) and done.rounds[-1].committed <= done.rounds[-1].accepted
    assert inside > 10


def session_text(session: Session, ids: tuple[int, ...]) -> str:
    piece = session._pair.model.vocab.piece
    return b"".join(piece(token) for token in ids).decode("utf-8", "replace")


def test_the_first_of_several_stop_texts_ends_the_text(session: Session) -> None:
    whole = session.generate(CODE, max_tokens=60, draft_max=0).text
    early, late = whole[30:34], whole[70:76]
    done = both(session, CODE, max_tokens=60, stop=[late, early, "never seen"])
    assert done.text == whole[: whole.index(early)]


def test_a_stop_text_that_never_comes_changes_nothing(session: Session) -> None:
    whole = session.generate(CODE, max_tokens=40)
    # its beginning is in the text, so that the stream has to hold it back and give it up again
    almost = whole.text[20:30] + "\0"
    assert outcome(both(session, CODE, max_tokens=40, stop=almost)) == outcome(whole)
    end = whole.text[-4:] + "\0"
    assert outcome(both(session, CODE, max_tokens=40, stop=end)) == outcome(whole)


def test_sampling_with_a_seed_does_not_depend_on_the_draft(session: Session) -> None:
    texts = set()
    for seed in range(20):
        done = both(session, CODE, max_tokens=32, temperature=0.8, seed=seed)
        texts.add(done.text)
    assert len(texts) > 5


def test_sampling_without_a_seed_takes_a_fresh_one(session: Session) -> None:
    drawn = {session.generate(CODE, max_tokens=16, temperature=2.0).text for _ in range(4)}
    assert len(drawn) > 1


# --- streams


def streamed(session: Session, prompt: Prompt, **arguments: Any) -> list[Piece]:  # noqa: ANN401
    return list(session.stream(prompt, **arguments))


@pytest.mark.parametrize("stop", [(), ("factorial", "13 +"), ("\n",)], ids=str)
def test_a_stream_adds_up_to_its_completion(session: Session, stop: tuple[str, ...]) -> None:
    for prompt in (CODE, *QUESTIONS, demo.PROMPT):
        for draft_max in (None, BLOCK, 0):
            pieces = streamed(session, prompt, max_tokens=50, stop=stop, draft_max=draft_max)
            done = session.last
            assert done is not None
            check(done)
            assert "".join(piece.text for piece in pieces) == done.text
            assert tuple(i for piece in pieces for i in piece.token_ids) == done.token_ids
            assert outcome(session.generate(prompt, max_tokens=50, stop=stop)) == outcome(done)


def byte_text(raw: bytes) -> str:
    """Bytes as a byte-level vocabulary spells them."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    spelled = {byte: chr(byte) for byte in plain}
    spelled |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    return "".join(spelled[byte] for byte in raw)


@pytest.fixture(scope="module", params=["🎉", "日", "é"])
def halves(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Session, list[int]]]:
    """A target whose two tokens of the endless text spell the two halves of one character."""
    folder = tmp_path_factory.mktemp("halves")
    with pair() as original:
        prompt = original.tokenize(ENDLESS).tolist()
        first, second = original.generate(ENDLESS, max_tokens=3).token_ids[1:]
        tokens = [original._pair.model.vocab.piece(i) for i in (first, second)]
    assert tokens == [b"W", b"S"]
    raw = request.param.encode()
    spelled = _tokens(TARGET)
    for token, part in ((first, raw[: len(raw) // 2]), (second, raw[len(raw) // 2 :])):
        text = byte_text(part)
        if text in spelled:
            spelled[spelled.index(text)] = f"moved {token}"
        spelled[token] = text
    path = rewrite(TARGET, folder / "t.gguf", {"tokenizer.ggml.tokens": spelled})
    with load(path, DRAFT, threads=1, context=512) as session:
        yield request.param, session, prompt


def _tokens(path: Path) -> list[str]:
    tokens: list[str] = gguf.GGUFReader(path).fields["tokenizer.ggml.tokens"].contents()
    return list(tokens)


@pytest.mark.parametrize("draft_max", [None, 0, 1, 2, BLOCK])
def test_a_stream_never_holds_half_a_character(
    halves: tuple[str, Session, list[int]], draft_max: int | None
) -> None:
    char, session, prompt = halves
    pieces = streamed(session, prompt, max_tokens=41, draft_max=draft_max)
    done = session.last
    assert done is not None
    assert done.text == "C" + char * 20
    assert "".join(piece.text for piece in pieces) == done.text
    if draft_max == 0:
        assert [piece.text for piece in pieces[:4]] == ["C", "", char, ""]


def test_only_the_end_of_the_tokens_can_cut_a_character(
    halves: tuple[str, Session, list[int]],
) -> None:
    char, session, prompt = halves
    assert both(session, prompt, max_tokens=10).text == "C" + char * 4 + "\ufffd"
    assert both(session, prompt, max_tokens=41, stop=char * 3).text == "C"


def test_leaving_a_stream_early_frees_its_sequence(session: Session) -> None:
    expected = outcome(session.generate(CODE, max_tokens=30))
    for taken in range(4):
        stream = session.stream(ENDLESS, max_tokens=100)
        for _ in range(taken):
            next(stream)
        stream.close()
        assert outcome(session.generate(CODE, max_tokens=30)) == expected
    for _ in session.stream(ENDLESS, max_tokens=100):
        break
    assert outcome(session.generate(CODE, max_tokens=30)) == expected


def test_an_abandoned_stream_leaves_the_last_completion(session: Session) -> None:
    done = session.generate(CODE, max_tokens=8)
    for _ in session.stream(ENDLESS, max_tokens=100):
        break
    assert session.last is done


def test_a_stream_that_nobody_reads_does_not_keep_the_only_place_for_ever(session: Session) -> None:
    alone = [session.generate(CODE, max_tokens=30), session.generate(ENDLESS, max_tokens=3)]
    first = session.stream(CODE, max_tokens=30)
    began = next(first)
    # its rounds are made by the one that waits for its place
    waited = session.generate(ENDLESS, max_tokens=3)
    assert waited.text == alone[1].text
    assert waited.stats.queue_s > 0
    rest = "".join(piece.text for piece in first)
    assert began.text + rest == alone[0].text


def test_a_place_is_refused_where_nobody_may_wait() -> None:
    with pair(queue=0) as session:
        first = session.stream(CODE, max_tokens=30)
        next(first)
        with pytest.raises(QueueFullError, match="0 requests wait already"):
            session.generate(ENDLESS, max_tokens=3)
        first.close()
        assert session.generate(ENDLESS, max_tokens=3).text


def test_two_streams_at_once_on_two_sequences_do_not_mix() -> None:
    with pair(max_sequences=2) as session:
        alone = [session.generate(prompt, max_tokens=40).text for prompt in (CODE, ENDLESS)]
        streams = [session.stream(prompt, max_tokens=40) for prompt in (CODE, ENDLESS)]
        together = ["", ""]
        for code, endless in zip(*streams, strict=False):
            together[0] += code.text
            together[1] += endless.text
        together = [
            text + "".join(piece.text for piece in stream)
            for text, stream in zip(together, streams, strict=True)
        ]
    assert together == alone


def test_threads_take_turns(session: Session) -> None:
    expected = outcome(session.generate(CODE, max_tokens=20))
    with pair(max_sequences=4) as shared:
        found: list[Completion] = []

        def work() -> None:
            found.extend(shared.generate(CODE, max_tokens=20) for _ in range(3))

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert [outcome(done) for done in found] == [expected] * 12


# --- interruptions


class Interrupter:
    """Raises once, before or after the n-th call of a context's method."""

    def __init__(self, call: int, *, after: bool, error: BaseException) -> None:
        self.left = call
        self.after = after
        self.error = error

    def around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def replaced(*arguments: object, **settings: object) -> object:
            self.left -= 1
            if self.left == 0 and not self.after:
                raise self.error
            result = method(*arguments, **settings)
            if self.left == 0:
                raise self.error
            return result

        return replaced


PLACES = [
    (TargetContext, "_compute"),
    (TargetContext, "decode_choose"),
    (TargetContext, "features_view"),
    (TargetContext, "truncate"),
    (DraftContext, "decode"),
    (DraftContext, "decode_block"),
    (DraftContext, "truncate"),
]
RUN_PLACES = [(BlockDrafter, "run"), (Rounds, "run"), (Waiting, "add"), (Sequence, "commit")]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("kind", "name"), PLACES, ids=lambda value: getattr(value, "__name__", value)
)
def test_ctrl_c_anywhere_leaves_the_session_usable(
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Context],
    name: str,
    after: bool,
) -> None:
    expected = outcome(session.generate(CODE, max_tokens=30))
    # a draft is truncated where a sequence begins and ends, the rest happens in every round
    for call in (1, 2) if (kind, name) == (DraftContext, "truncate") else (1, 2, 5):
        interrupter = Interrupter(call, after=after, error=KeyboardInterrupt())
        with monkeypatch.context() as patch:
            patch.setattr(kind, name, interrupter.around(getattr(kind, name)))
            with pytest.raises(KeyboardInterrupt):
                one_by_one(session, ENDLESS, max_tokens=60, draft_max=BLOCK)
        assert outcome(session.generate(CODE, max_tokens=30)) == expected


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("kind", "name"), RUN_PLACES, ids=lambda value: getattr(value, "__name__", value)
)
def test_ctrl_c_around_rounds_in_a_row_leaves_the_session_usable(
    session: Session, monkeypatch: pytest.MonkeyPatch, kind: type, name: str, after: bool
) -> None:
    prompt = {"cache_prompt": False, "max_tokens": 60, "draft_max": BLOCK}
    expected = session.generate(CODE, **prompt)  # type: ignore[arg-type]
    for call in (1, 2, 3):
        interrupter = Interrupter(call, after=after, error=KeyboardInterrupt())
        with monkeypatch.context() as patch:
            patch.setattr(kind, name, interrupter.around(getattr(kind, name)))
            with pytest.raises(KeyboardInterrupt):
                session.generate(ENDLESS, **{**prompt, "max_tokens": 150})  # type: ignore[arg-type]
        done = session.generate(CODE, **prompt)  # type: ignore[arg-type]
        # the text, and what was drafted for it
        assert (outcome(done), done.rounds) == (outcome(expected), expected.rounds)


def test_a_real_ctrl_c_in_the_loop_leaves_the_session_usable(session: Session) -> None:
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    text = ""

    def follow() -> None:
        nonlocal text
        for piece in session.stream(ENDLESS, max_tokens=100):
            text += piece.text
            if len(text) > 20:
                signal.raise_signal(signal.SIGINT)

    try:
        with pytest.raises(KeyboardInterrupt):
            follow()
    finally:
        signal.signal(signal.SIGINT, previous)
    assert 20 < len(text) < 100
    with pair() as fresh:
        expected = outcome(fresh.generate(CODE, max_tokens=40))
    assert outcome(both(session, CODE, max_tokens=40)) == expected
    assert session.generate(ENDLESS, max_tokens=100).text.startswith(text)


# --- failing drafts and targets


def failing(
    monkeypatch: pytest.MonkeyPatch, kind: type[Context], fails: Callable[[int], bool]
) -> None:
    """Let the n-th decode of a kind of context fail where fails(n); n counts from 1."""
    compute, count = kind._compute, 0

    def replaced(self: Context, *arguments: Any) -> None:  # noqa: ANN401
        nonlocal count
        count += 1
        if fails(count):
            raise DecodeError("out of luck", 1)
        compute(self, *arguments)

    monkeypatch.setattr(kind, "_compute", replaced)


# which decodes of the draft fail; each costs a round its proposals: features that could not be
# injected are injected before the next block
WINDOWS: dict[str, Callable[[int], bool]] = {
    "the-prompt": lambda n: n == 1,
    "a-block": lambda n: n == 2,
    "features": lambda n: n == 3,
    "a-while": lambda n: 4 <= n < 12,
    "every-other": lambda n: n % 2 == 0 and n < 16,
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("head", ["native", "graph", "python"])
def test_a_draft_that_fails_for_some_rounds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, head: str
) -> None:
    with pair(head=head) as session:
        healthy = check(one_by_one(session, CODE, max_tokens=60, draft_max=BLOCK))
        with monkeypatch.context() as patch:
            failing(patch, DraftContext, WINDOWS[name])
            done = check(one_by_one(session, CODE, max_tokens=60, draft_max=BLOCK))
        again = check(one_by_one(session, CODE, max_tokens=60, draft_max=BLOCK))
    assert outcome(done) == outcome(healthy)
    lost = [record for record in done.rounds if not record.draft]
    assert 0 < len(lost) < len(done.rounds) - 2
    # drafting resumes, and as well as ever: the features of the lost rounds were made good
    assert all(record.draft for record in done.rounds[-2:])
    assert again.rounds == healthy.rounds
    (warning,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert "the draft failed" in warning.message
    assert "out of luck" in warning.message


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_rounds_in_a_row_that_fail_go_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    session: Session,
    after: bool,
) -> None:
    arguments = {"max_tokens": 60, "draft_max": BLOCK, "cache_prompt": False}
    healthy = check(session.generate(CODE, **arguments))  # type: ignore[arg-type]
    interrupter = Interrupter(1, after=after, error=DecodeError("out of luck", 1))
    with monkeypatch.context() as patch:
        patch.setattr(Rounds, "run", interrupter.around(Rounds.run))
        done = check(session.generate(CODE, **arguments))  # type: ignore[arg-type]
    assert interrupter.left < 0, "later rounds go in a row again"
    # nothing is lost, so nobody is warned
    assert (outcome(done), done.rounds) == (outcome(healthy), healthy.rounds)
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []
    again = check(session.generate(CODE, **arguments))  # type: ignore[arg-type]
    assert again.rounds == healthy.rounds


def test_a_draft_resumes_with_the_proposals_of_a_healthy_one(
    monkeypatch: pytest.MonkeyPatch, session: Session
) -> None:
    whole = one_by_one(session, CODE, max_tokens=60, draft_max=BLOCK)
    healthy = {r.start: r for r in whole.rounds}
    with pair() as other, monkeypatch.context() as patch:
        failing(patch, DraftContext, lambda n: 4 <= n < 8)
        done = check(one_by_one(other, CODE, max_tokens=60, draft_max=BLOCK))
    same = [r for r in done.rounds if r.draft and r.start in healthy]
    assert same[-1].start > min(r.start for r in done.rounds if not r.draft)
    assert all(record.draft == healthy[record.start].draft for record in same)


def test_a_draft_that_always_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pair() as session:
        plain = session.generate(CODE, max_tokens=60, draft_max=0)
        failing(monkeypatch, DraftContext, lambda _: True)
        for _ in range(3):
            done = check(session.generate(CODE, max_tokens=60, draft_max=BLOCK))
            assert outcome(done) == outcome(plain)
            assert done.stats.drafted == 0
            assert done.stats.tau == 1.0
    assert [r.levelno for r in caplog.records if r.levelno >= logging.WARNING] == [logging.WARNING]


@pytest.mark.parametrize("call", [1, 2, 4])
def test_a_target_that_fails_is_an_error_and_the_session_stays_usable(
    monkeypatch: pytest.MonkeyPatch, session: Session, call: int
) -> None:
    expected = outcome(session.generate(CODE, max_tokens=30))
    with monkeypatch.context() as patch:
        failing(patch, TargetContext, lambda n: n == call)
        with pytest.raises(DecodeError, match="out of luck"):
            session.generate(ENDLESS, max_tokens=60)
    assert outcome(session.generate(CODE, max_tokens=30)) == expected


# --- closing


def test_any_use_after_close_is_refused() -> None:
    session = pair()
    begun = session.stream(CODE, max_tokens=50)
    next(begun)
    unbegun = session.stream(CODE, max_tokens=50)
    session.close()
    session.close()
    uses: list[Callable[[], object]] = [
        lambda: session.generate(CODE),
        lambda: session.generate("text"),
        lambda: session.generate([1, 2]),
        lambda: session.tokenize("text"),
        lambda: list(begun),
        lambda: list(unbegun),
        session.__enter__,
    ]
    for use in uses:
        with pytest.raises(ClosedError, match="is closed"):
            use()
    assert session.last is None
    assert (session.n_ctx, session.draft_limit, session.has_chat_template) == (512, 7, True)


@pytest.mark.parametrize(
    ("kind", "name"), [(Vocab, "tokenize"), (TargetContext, "_compute"), (DraftContext, "_compute")]
)
def test_closing_waits_for_a_native_call_of_another_thread(
    monkeypatch: pytest.MonkeyPatch, kind: type, name: str
) -> None:
    session = pair(context=128)
    closer = threading.Thread(target=session.close)
    method, closed = getattr(kind, name), []

    def slow(self: Any, *arguments: Any, **settings: Any) -> object:  # noqa: ANN401
        if not closer.ident:
            closer.start()
            closer.join(0.3)
            closed.append(session._running.closed)
        return method(self, *arguments, **settings)

    monkeypatch.setattr(kind, name, slow)
    with contextlib.suppress(ClosedError):
        session.generate(ENDLESS, max_tokens=3)
    closer.join()
    assert closed == [False]
    with pytest.raises(ClosedError):
        session.generate(ENDLESS, max_tokens=3)


def test_what_a_session_gave_outlives_it() -> None:
    with pair() as session:
        done = session.generate(CODE, max_tokens=10)
    gc.collect()
    assert check(done) is session.last
    assert done.text


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_sessions_close_in_any_order(order: tuple[int, ...]) -> None:
    sessions = [pair(context=128) for _ in range(3)]
    expected = outcome(sessions[0].generate(ENDLESS, max_tokens=12))
    for index in order:
        assert outcome(sessions[index].generate(ENDLESS, max_tokens=12)) == expected
        sessions[index].close()


@pytest.mark.parametrize("first", ["context", "model"])
def test_a_target_closed_under_a_session_is_refused(first: str) -> None:
    session = pair(context=128)
    session.generate(ENDLESS, max_tokens=3)
    getattr(session._pair, first).close()
    with pytest.raises(ClosedError):
        session.generate(ENDLESS, max_tokens=3)
    session.close()


@pytest.mark.parametrize("first", ["drafter._context", "draft_model"])
def test_a_draft_closed_under_a_session_is_a_failing_draft(first: str) -> None:
    session = pair(context=128)
    expected = outcome(session.generate(ENDLESS, max_tokens=12))
    attrgetter(first)(session._pair).close()
    assert outcome(session.generate(ENDLESS, max_tokens=12)) == expected
    session.close()


def test_a_dropped_session_is_released_with_its_stream_open() -> None:
    session = pair(context=128)
    stream = session.stream(ENDLESS, max_tokens=50)
    next(stream)
    session.cycle = session  # type: ignore[attr-defined]
    del session, stream
    gc.collect()
    with pair(context=128) as other:
        assert other.generate(ENDLESS, max_tokens=3).token_ids


@pytest.mark.parametrize(
    "settings",
    [{"device": "cpu", "device_draft": "cpu"}, {"n_gpu_layers_draft": 0}, {"split_mode": "none"}],
)
def test_a_placement_changes_no_text(settings: dict[str, Any]) -> None:
    with pair() as session:
        usual = session.generate(CODE, max_tokens=24, draft_max=BLOCK)
    with pair(**settings) as session:
        placed = session.generate(CODE, max_tokens=24, draft_max=BLOCK)
    assert placed.token_ids == usual.token_ids
    assert placed.stats.accepted == usual.stats.accepted > 0


def test_a_device_that_is_not_there_is_named() -> None:
    with pytest.raises(OptionError, match="there is no device 'CUDA77'"):
        pair(device="CUDA77")
