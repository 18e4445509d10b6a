"""Plain rounds that go several at once: the tokens, features and records of rounds one by one."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from llamaspec import Session, demo
from llamaspec.completion import Completion
from llamaspec.engine.pacing import Pacing
from llamaspec.engine.sequence import Sequence
from llamaspec.errors import DecodeError
from llamaspec.loading import Pair, load_pair
from llamaspec.options import LoadOptions
from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.batch import ALL_OUTPUT, NO_OUTPUT, Batch
from llamaspec.runtime.context import LONGEST_RUN, TargetContext
from tests.decoding import one_by_one as streamed

pytestmark = pytest.mark.native

MESSAGES = [{"role": "user", "content": "Write a function that adds two numbers."}]
OPTIONS = LoadOptions(threads=1, context=256)
SEVERAL = LoadOptions(threads=1, context=256, max_sequences=3)
LENGTHS = 1, 5, 40


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    loaded = load_pair(demo.target_path(), demo.draft_path(), OPTIONS)
    yield loaded
    loaded.close()


def start(pair: Pair, batch: Batch, token: int = 300) -> None:
    pair.context.truncate(0, 0)
    batch.clear()
    batch.add_tokens([token], start=0, seq=0, output=ALL_OUTPUT)


def one_by_one(pair: Pair, count: int) -> tuple[list[int], FloatArray]:
    batch, tokens, features = Batch.create(8), list[int](), []
    start(pair, batch)
    for position in range(count):
        tokens += pair.context.decode_choose(batch, 1)
        features.append(pair.context.features_view([0]).copy())
        batch.clear()
        batch.add_tokens(tokens[-1:], start=position + 1, seq=0, output=ALL_OUTPUT)
    return tokens, np.concatenate(features)


def published(pair: Pair, count: int) -> list[int]:
    pair.context.publish(True)
    tokens, _ = one_by_one(pair, count)
    pair.context.publish(False)
    return tokens


def test_a_run_gives_what_single_passes_give(pair: Pair) -> None:
    target, batch = pair.context, Batch.create(8)
    target.publish(True)
    tokens, features = one_by_one(pair, 20)
    start(pair, batch)
    assert target.decode_run(batch, 20, [], 60.0) == [tokens]
    assert np.array_equal(target.run_features(20), features)
    assert target.length(0) == 20
    target.publish(False)
    start(pair, batch)
    assert target.decode_run(batch, 20, [], 60.0) == [tokens]


def test_a_run_ends_at_an_end_at_the_most_and_in_time(pair: Pair) -> None:
    target, batch = pair.context, Batch.create(8)
    target.publish(False)
    tokens = published(pair, 100)
    end = tokens[7]
    first = tokens.index(end)
    start(pair, batch)
    assert target.decode_run(batch, 20, [-1, end], 60.0) == [tokens[: first + 1]]
    assert target.length(0) == first + 1
    start(pair, batch)
    assert target.decode_run(batch, 20, [], 0.0) == [tokens[:1]]
    start(pair, batch)
    assert target.decode_run(batch, 100, [], 60.0) == [tokens[:LONGEST_RUN]]


def test_a_run_that_runs_out_of_room_gives_what_it_has(pair: Pair) -> None:
    target, batch = pair.context, Batch.create(8)
    tokens = published(pair, 250)
    batch.clear()
    batch.add_tokens(tokens[-1:], start=250, seq=0, output=ALL_OUTPUT)
    (found,) = target.decode_run(batch, 20, [], 60.0)
    assert len(found) == target.shape.n_ctx - 250
    batch.clear()
    batch.add_tokens([300], start=target.shape.n_ctx, seq=0, output=ALL_OUTPUT)
    with pytest.raises(DecodeError):
        target.decode_run(batch, 20, [], 60.0)
    target.truncate(0, 0)


@pytest.mark.parametrize("limit", [1, 2, 3, 30, 200])
@pytest.mark.parametrize("stop", [(), ("two",), ("return", "x")])
def test_a_text_of_runs_is_the_streams(pair: Pair, limit: int, stop: tuple[str, ...]) -> None:
    session = Session(pair)
    options = {"max_tokens": limit, "stop": stop, "draft_max": 0, "cache_prompt": False}
    done = session.generate(MESSAGES, **options)  # type: ignore[arg-type]
    pieces = list(session.stream(MESSAGES, **options))  # type: ignore[arg-type]
    other = session.last
    assert other is not None
    assert (done.text, done.token_ids, done.rounds) == (other.text, other.token_ids, other.rounds)
    assert done.finish_reason == other.finish_reason
    assert all(len(piece.token_ids) <= 1 for piece in pieces)
    assert len(done.rounds) == len(done.token_ids) - 1
    # and the caches are left alike
    again = session.generate(MESSAGES, **{**options, "cache_prompt": True})  # type: ignore[arg-type]
    assert again.token_ids == done.token_ids


def test_parked_rounds_teach_the_draft_as_single_ones_do(pair: Pair) -> None:
    session = Session(pair)
    pace = session.pace
    assert pace is not None
    found = {}
    for together in (True, False):
        # as after texts in which drafting did not pay
        for _ in range(4):
            pace.end(replace(pace.begin(), wait=12, asked=True))
        if together:
            done = session.generate(MESSAGES, max_tokens=40, cache_prompt=False)
        else:
            list(session.stream(MESSAGES, max_tokens=40, cache_prompt=False))
            assert session.last is not None
            done = session.last
        silent = [not (r.offered or r.draft) for r in done.rounds]
        assert all(silent[:12])
        assert not silent[12]
        first = done.rounds[12]
        assert first.confidence is not None
        found[together] = first.start, first.draft[0], first.confidence[0]
    # a block's numbers depend on its width, which is chosen, a little
    assert found[True][:2] == found[False][:2]
    assert found[True][2] == pytest.approx(found[False][2], abs=0.01)


@pytest.fixture(scope="module")
def several() -> Iterator[Pair]:
    loaded = load_pair(demo.target_path(), demo.draft_path(), SEVERAL)
    yield loaded
    loaded.close()


def begin(target: TargetContext, batch: Batch) -> None:
    """A row for each of three sequences, at places of their own."""
    batch.clear()
    for seq, length in enumerate(LENGTHS):
        target.truncate(seq, 0)
        batch.add_tokens([300 + seq] * length, start=0, seq=seq, output=NO_OUTPUT)
    target.decode(batch)
    batch.clear()
    for seq, length in enumerate(LENGTHS):
        batch.add_tokens([400 + seq], start=length, seq=seq, output=ALL_OUTPUT)


def test_a_run_of_several_rows_gives_what_single_passes_give(several: Pair) -> None:
    target, batch = several.context, Batch.create(64)
    target.publish(True)
    begin(target, batch)
    tokens: list[list[int]] = [[], [], []]
    features = []
    for turn in range(20):
        chosen = target.decode_choose(batch, 3)
        features.append(target.features_view([0, 1, 2]).copy())
        batch.clear()
        for seq, length in enumerate(LENGTHS):
            tokens[seq].append(chosen[seq])
            at = length + turn + 1
            batch.add_tokens([chosen[seq]], start=at, seq=seq, output=ALL_OUTPUT)
    begin(target, batch)
    assert target.decode_run(batch, 20, [], 60.0) == tokens
    assert np.array_equal(target.run_features(60), np.concatenate(features))
    assert [target.length(seq) for seq in range(3)] == [21, 25, 60]
    target.publish(False)
    # an end of any of them ends the run
    others = {*tokens[0], *tokens[1], *tokens[2][:5]}
    end = next(token for token in tokens[2][5:] if token not in others)
    begin(target, batch)
    found = target.decode_run(batch, 20, [end], 60.0)
    assert found == [ids[: tokens[2].index(end) + 1] for ids in tokens]
    begin(target, batch)
    assert target.decode_run(batch, 20, [], 0.0) == [ids[:1] for ids in tokens]


TEXTS = ["Write a function that adds two numbers.", "Tell me about rivers.", "Why?", "Sum 1, 2."]


def told(done: Completion) -> tuple[object, ...]:
    rounds = [replace(r, texts=1) for r in done.rounds]
    return done.text, done.token_ids, done.finish_reason, rounds


@pytest.mark.parametrize("limit", [1, 2, 3, 30, 90])
@pytest.mark.parametrize("stop", [(), ("e",), ("return", "two", "is")])
@pytest.mark.parametrize("draft_max", [None, 0], ids=["spared", "told"])
def test_texts_of_runs_are_those_of_rounds_one_by_one(
    several: Pair, limit: int, stop: tuple[str, ...], draft_max: int | None
) -> None:
    session, prompts = Session(several), [[{"role": "user", "content": t}] for t in TEXTS]
    options = {"max_tokens": limit, "stop": stop, "cache_prompt": False, "draft_max": 0}
    alone = [told(streamed(session, prompt, **options)) for prompt in prompts]
    options["draft_max"] = draft_max
    with pytest.MonkeyPatch.context() as patch:
        crowd = several.engine.pacing.crowd
        assert crowd is not None
        patch.setattr(crowd, "spares", lambda texts: True)
        done = session.generate_batch(prompts, **options)  # type: ignore[arg-type]
    # who is alone when he comes may be drafted for
    same = slice(None) if draft_max == 0 else slice(3)
    assert [told(one)[same] for one in done] == [one[same] for one in alone]
    # stop texts end some before others begin
    assert any(r.texts > 1 for one in done for r in one.rounds) or limit < 30 or stop
    # and the caches are left alike
    again = session.generate_batch(prompts[1:], **{**options, "cache_prompt": True})  # type: ignore[arg-type]
    assert [told(one)[:3] for one in again] == [one[:3] for one in alone[1:]]


def test_several_texts_go_in_few_calls(several: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    original = TargetContext.decode_run

    def counted(self: TargetContext, batch: Batch, *arguments: object) -> list[list[int]]:
        found = original(self, batch, *arguments)  # type: ignore[arg-type]
        passes.append(len(found[0]))
        return found

    monkeypatch.setattr(TargetContext, "decode_run", counted)
    monkeypatch.setattr("llamaspec.engine.plain.SECONDS", 60.0)
    session = Session(several)
    prompts = [np.array([300 + i, 5, 6], np.int32) for i in range(3)]
    done = session.generate_batch(prompts, max_tokens=60, draft_max=0, cache_prompt=False)
    lengths = sorted(len(one.token_ids) for one in done)
    assert sum(passes) == lengths[-1] - 1
    assert len(passes) <= 3


def test_a_failure_within_a_run_of_several_is_made_good(several: Pair) -> None:
    session = Session(several)
    prompts = [np.array([300 + i, 5, 6], np.int32) for i in range(3)]
    options = {"max_tokens": 20, "draft_max": 0, "cache_prompt": False}
    wanted = [one.token_ids for one in session.generate_batch(prompts, **options)]  # type: ignore[arg-type]
    original, failures = TargetContext.decode_run, iter([True, True])

    def failing(self: TargetContext, *arguments: object) -> list[list[int]]:
        if next(failures, False):
            # as after Ctrl-C: the rows are decoded, nothing is committed
            original(self, *arguments)  # type: ignore[arg-type]
            raise KeyboardInterrupt
        return original(self, *arguments)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TargetContext, "decode_run", failing)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                session.generate_batch(prompts, **options)  # type: ignore[arg-type]
        found = session.generate_batch(prompts, **options)  # type: ignore[arg-type]
    assert [one.token_ids for one in found] == wanted


def test_a_text_that_is_given_up_goes_plainly_to_its_end(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as among many texts, after which it is alone: the pace knows it as one that drafts
    original = Pacing.begin

    def given_up(self: Pacing, sequence: Sequence, texts: int) -> None:
        original(self, sequence, texts)
        assert sequence.gait is not None
        sequence.gait.wait = None
        sequence.spared = True

    session = Session(pair)
    wanted = session.generate(MESSAGES, max_tokens=30, cache_prompt=False, draft_max=0)
    monkeypatch.setattr(Pacing, "begin", given_up)
    done = session.generate(MESSAGES, max_tokens=30, cache_prompt=False)
    assert done.token_ids == wanted.token_ids
    assert done.rounds == wanted.rounds
