"""A chat's next turn on the bundled pair: both caches go on, and the text is a cold session's."""

import random
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from llamaspec import demo
from llamaspec.bench.pairs import PROMPTS
from llamaspec.checking import check
from llamaspec.completion import Completion, Piece
from llamaspec.draft.block import BlockDrafter
from llamaspec.engine.doubt import Doubt
from llamaspec.errors import DecodeError, OptionError
from llamaspec.runtime.context import TargetContext
from llamaspec.runtime.draft_context import DraftContext
from llamaspec.runtime.quantize import quantize
from llamaspec.session import Session, load
from llamaspec.text.prompt import Message

pytestmark = pytest.mark.native

NEXT = "How many are left if Ivan takes 3 of them?"
TOKENS = 48
BLOCK = 7


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMASPEC_CACHE", str(tmp_path / "cache"))


def pair(**settings: Any) -> Session:  # noqa: ANN401
    return load(**{"threads": 1, "context": 512, **settings})


def said(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def outcome(done: Completion) -> tuple[Any, ...]:
    return done.text, done.token_ids, done.finish_reason


def alike(warm: Completion, expected: Completion) -> tuple[int, int]:
    """How many rounds begin at a place where the other has one, and how many of them propose the
    same: rows of a prompt round by how it is split, and a draft's near ties fall either way.
    """
    others = {r.start: r.draft for r in expected.rounds}
    found = [r.draft == others[r.start] for r in warm.rounds if r.start in others]
    return len(found), sum(found)


def cold(session: Session, prompt: Any, **settings: Any) -> Completion:  # noqa: ANN401
    return session.generate(prompt, cache_prompt=False, **settings)


def agree(session: Session) -> None:
    """What free slots remember, what the target's cache holds and what the draft knows."""
    engine, context = session._pair.engine, session._pair.context
    for slot in engine._slots._free:
        remembered = engine._slots._held[slot].text
        assert context.length(slot) == len(remembered)
        drafter = session._pair.drafter
        if isinstance(drafter, BlockDrafter):
            assert drafter.known(slot) <= len(remembered)
            assert drafter.context.length(slot) == drafter._learnt[slot] <= drafter.known(slot)


@pytest.fixture(scope="module")
def reference() -> Iterator[Session]:
    with pair() as session:
        yield session


# --- chats


@pytest.mark.parametrize("settings", [{}, {"head": "python"}, {"max_sequences": 2}], ids=str)
def test_the_second_turn_is_a_cold_sessions(settings: dict[str, Any]) -> None:
    taus, counts = [], []
    with pair(**settings) as session, pair(**settings) as other:
        for _, question in PROMPTS:
            chat = [said("user", question)]
            first = session.generate(chat, max_tokens=TOKENS, draft_max=BLOCK)
            agree(session)
            chat += [said("assistant", first.text), said("user", NEXT)]
            second = session.generate(chat, max_tokens=TOKENS, draft_max=BLOCK)
            expected = cold(other, chat, max_tokens=TOKENS, draft_max=BLOCK)
            assert outcome(second) == outcome(expected)
            assert expected.stats.cached_tokens == 0
            assert second.stats.prompt_tokens == expected.stats.prompt_tokens
            # all but the answer's last token, what follows it and the question
            reused = second.stats.cached_tokens
            assert reused == first.stats.prompt_tokens + len(first.token_ids) - 1
            taus.append((second.stats.tau, expected.stats.tau))
            counts.append(alike(second, expected))
            agree(session)
    warm, without = (mean(tau) for tau in zip(*taus, strict=True))
    assert warm == pytest.approx(without, rel=0.03)
    found, same = (sum(count) for count in zip(*counts, strict=True))
    assert same >= 0.95 * found > 20


@pytest.mark.parametrize("drawn", [{}, {"temperature": 0.8, "seed": 5}], ids=str)
def test_turns_without_a_draft_are_bitwise_those_with_it(drawn: dict[str, Any]) -> None:
    settings = {"max_tokens": TOKENS, "logprobs": 3, **drawn}
    with load(demo.target_path(), threads=1, context=512) as plain, pair() as drafted:
        for _, question in PROMPTS:
            chat = []
            for text in (question, NEXT, question):
                chat.append(said("user", text))
                done, other = (s.generate(chat, **settings) for s in (plain, drafted))
                assert outcome(done) == outcome(other)
                assert done.logprobs == other.logprobs
                assert done.stats.cached_tokens == other.stats.cached_tokens
                assert len(chat) == 1 or done.stats.cached_tokens > 40
                chat.append(said("assistant", done.text))


def test_a_plain_turn_between_drafted_ones_costs_no_acceptance(reference: Session) -> None:
    chat = [said("user", PROMPTS[2][1])]
    with pair() as session:
        session.generate(chat, max_tokens=TOKENS, draft_max=BLOCK)
        plain = session.generate(chat, max_tokens=TOKENS, draft_max=0)
        chat += [said("assistant", plain.text), said("user", PROMPTS[3][1])]
        middle = session.generate(chat, max_tokens=TOKENS, draft_max=0)
        assert middle.stats.cached_tokens > plain.stats.prompt_tokens
        agree(session)
        chat += [said("assistant", middle.text), said("user", PROMPTS[2][1])]
        drafted = session.generate(chat, max_tokens=TOKENS, draft_max=BLOCK)
        # the draft knows the first prompt alone, and its features of the rest are the target's
        assert 0 < drafted.stats.cached_tokens < middle.stats.prompt_tokens
        agree(session)
    expected = cold(reference, chat, max_tokens=TOKENS, draft_max=BLOCK)
    assert outcome(drafted) == outcome(expected)
    found, same = alike(drafted, expected)
    assert same >= 0.9 * found > 0
    assert drafted.stats.tau == pytest.approx(expected.stats.tau, rel=0.1)


def test_two_chats_keep_a_slot_each() -> None:
    with pair(max_sequences=2) as session:
        chats = [[said("user", text)] for _, text in (PROMPTS[0], PROMPTS[2])]
        for turn in range(3):
            for chat in chats:
                done = session.generate(chat, max_tokens=24)
                if turn:
                    assert done.stats.cached_tokens > 0.5 * done.stats.prompt_tokens
                assert outcome(done) == outcome(cold_in_new(chat))
                chat += [said("assistant", done.text), said("user", NEXT)]
                agree(session)


def cold_in_new(chat: list[Message]) -> Completion:
    with pair() as session:
        return session.generate(chat, max_tokens=24)


def test_what_free_slots_hold_leaves_room_for_every_sequence() -> None:
    ids = [100 + i % 90 for i in range(250)]
    with pair(max_sequences=3, context=256) as session:
        # three full slots, then three texts that have nothing in common with them, side by side
        for first in (1, 2, 3):
            session.generate([first, *ids], max_tokens=100)
        context = session._pair.context
        assert sum(context.length(slot) for slot in range(3)) > 3 * 240
        streams = [session.stream([first, *ids], max_tokens=100) for first in (4, 5, 6)]
        for stream in streams:
            next(stream)
        for stream in streams:
            list(stream)
            assert session.last is not None
            assert session.last.stats.cached_tokens == 0
        agree(session)


def test_features_that_waited_when_a_text_was_left_serve_the_next(
    monkeypatch: pytest.MonkeyPatch, reference: Session
) -> None:
    def fail(self: DraftContext, *arguments: object) -> None:
        raise DecodeError("scripted failure", 1)

    chat = [said("user", PROMPTS[2][1])]
    with pair() as session:
        drafter: Any = session._pair.drafter
        stream = session.stream(chat, max_tokens=TOKENS, draft_max=BLOCK)
        next(stream)
        with monkeypatch.context() as patch:
            patch.setattr(DraftContext, "decode", fail)
            next(stream)
        known = drafter.known(0)
        assert drafter.context.length(0) < known
        stream.close()
        assert drafter.known(0) == known
        agree(session)
        again = session.generate(chat, max_tokens=TOKENS, draft_max=BLOCK)
        assert again.stats.cached_tokens == min(known, again.stats.prompt_tokens - 1)
    assert outcome(again) == outcome(cold(reference, chat, max_tokens=TOKENS))
    assert all(record.draft for record in again.rounds[:-1])


# --- exactness


@pytest.fixture(scope="module")
def q4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("q4") / "target.gguf"
    quantize(demo.target_path(), path, "q4_k_m", threads=1)
    return path


@pytest.mark.parametrize("alike", [True, False])
def test_in_exact_mode_a_next_turn_gives_the_logits_of_plain_cold_decoding(
    q4: Path, alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not alike:
        monkeypatch.setattr(TargetContext, "compute_rows_alike", lambda self: None)
    settings: dict[str, Any] = {"max_tokens": 40, "logprobs": 5}
    reused = 0
    with (
        load(q4, demo.draft_path(), threads=1, context=512, batch=64, exact=True) as session,
        load(q4, threads=1, context=512, batch=64) as other,
    ):
        if not alike:
            session._pair.engine.doubt = Doubt(1.0, patience=0)
        chat = [said("user", " ".join(text for _, text in PROMPTS))]
        for _ in range(3):
            done = session.generate(chat, **settings)
            reused += done.stats.cached_tokens
            plain = cold(other, chat, **settings)
            assert outcome(done) == outcome(plain)
            if alike:
                # bit by bit: the same passes over the same cache
                assert done.logprobs == plain.logprobs
            chat += [said("assistant", done.text), said("user", NEXT)]
    assert reused >= 2 * 64


def test_reuse_of_more_than_whole_parts_would_not_be_exact(q4: Path) -> None:
    with load(q4, demo.draft_path(), threads=1, context=512, exact=True) as session:
        session._pair.engine.prompts.exact = False
        chat = [said("user", PROMPTS[0][1])]
        first = session.generate(chat, max_tokens=40)
        chat += [said("assistant", first.text), said("user", NEXT)]
        warm = session.generate(chat, max_tokens=40, logprobs=5)
        assert warm.stats.cached_tokens > 0
        assert warm.logprobs != cold(session, chat, max_tokens=40, logprobs=5).logprobs


def test_comparisons_start_cold(reference: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    original = reference.generate

    def generate(prompt: Any, **settings: Any) -> Completion:  # noqa: ANN401
        found.append(original(prompt, **settings))
        return found[-1]

    monkeypatch.setattr(reference, "generate", generate)
    prompt = [said("user", PROMPTS[0][1])]
    assert check(reference, [prompt, prompt], max_tokens=8).passed
    assert [done.stats.cached_tokens for done in found] == [0] * 4
    original(prompt, max_tokens=8)
    gap = reference.plain_gap(prompt, found[0].token_ids[:3])
    assert gap == reference.plain_gap(prompt, found[0].token_ids[:3]) > 0


def test_cache_prompt_is_true_or_false(reference: Session) -> None:
    with pytest.raises(OptionError, match="cache_prompt is 1; it must be True or False"):
        reference.generate("x", cache_prompt=1)  # type: ignore[arg-type]


# --- every ending


def random_settings(rng: random.Random, text: str) -> dict[str, Any]:
    settings: dict[str, Any] = {"max_tokens": rng.randint(1, 40), "draft_max": BLOCK}
    if rng.random() < 0.4 and len(text) > 4:
        start = rng.randrange(len(text) - 3)
        settings["stop"] = text[start : start + rng.randint(1, 3)]
    if rng.random() < 0.3:
        settings["draft_max"] = rng.choice([0, 1, 3])
    if rng.random() < 0.2:
        settings |= {"temperature": 0.7, "seed": rng.randrange(1000)}
    return settings


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "loaded",
    [
        {},
        {"head": "python"},
        {"max_sequences": 2},
        {"draft": "lookup"},
        {"exact": True, "batch": 32},
    ],
    ids=str,
)
def test_whatever_ends_a_turn_the_next_one_is_a_cold_sessions(
    seed: int, loaded: dict[str, Any]
) -> None:
    rng = random.Random(seed)
    source = {"model": demo.target_path(), "draft": demo.draft_path(), **loaded}
    text, reused, counts = "", 0, []
    chat: list[Message] = [said("user", rng.choice(PROMPTS)[1])]
    with pair(**source) as session, pair(**source) as other:
        for _ in range(6):
            settings = random_settings(rng, text)
            if rng.random() < 0.25:
                stream = session.stream(chat, **settings)
                text = next(stream).text + next(stream, Piece("", ())).text
                stream.close()
            else:
                done = session.generate(chat, **settings)
                expected = cold(other, chat, **settings)
                assert outcome(done) == outcome(expected)
                assert done.rounds == expected.rounds or not loaded.get("exact")
                counts.append(alike(done, expected))
                text, reused = done.text, reused + done.stats.cached_tokens
            agree(session)
            chat += [said("assistant", text), said("user", rng.choice(PROMPTS)[1])]
            if len(session.tokenize(chat)) > 400:
                chat = chat[:1]
    assert reused > 0
    found, same = (sum(count) for count in zip(*counts, strict=True))
    assert same >= 0.9 * found > 5
