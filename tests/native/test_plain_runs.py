"""Plain rounds that go several at once: the tokens, features and records of rounds one by one."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from llamaspec import Session, demo
from llamaspec.errors import DecodeError
from llamaspec.loading import Pair, load_pair
from llamaspec.options import LoadOptions
from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.batch import ALL_OUTPUT, Batch
from llamaspec.runtime.context import LONGEST_RUN

pytestmark = pytest.mark.native

MESSAGES = [{"role": "user", "content": "Write a function that adds two numbers."}]
OPTIONS = LoadOptions(threads=1, context=256)


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
    assert target.decode_run(batch, 20, [], 60.0) == tokens
    assert np.array_equal(target.run_features(20), features)
    assert target.length(0) == 20
    target.publish(False)
    start(pair, batch)
    assert target.decode_run(batch, 20, [], 60.0) == tokens


def test_a_run_ends_at_an_end_at_the_most_and_in_time(pair: Pair) -> None:
    target, batch = pair.context, Batch.create(8)
    target.publish(False)
    tokens = published(pair, 100)
    end = tokens[7]
    first = tokens.index(end)
    start(pair, batch)
    assert target.decode_run(batch, 20, [-1, end], 60.0) == tokens[: first + 1]
    assert target.length(0) == first + 1
    start(pair, batch)
    assert target.decode_run(batch, 20, [], 0.0) == tokens[:1]
    start(pair, batch)
    assert target.decode_run(batch, 100, [], 60.0) == tokens[:LONGEST_RUN]


def test_a_run_that_runs_out_of_room_gives_what_it_has(pair: Pair) -> None:
    target, batch = pair.context, Batch.create(8)
    tokens = published(pair, 250)
    batch.clear()
    batch.add_tokens(tokens[-1:], start=250, seq=0, output=ALL_OUTPUT)
    assert len(target.decode_run(batch, 20, [], 60.0)) == target.shape.n_ctx - 250
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
