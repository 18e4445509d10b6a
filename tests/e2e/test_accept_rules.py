"""Acceptance by chance on the bundled pair: what is left of a text agrees with its pieces at every
kind of ending, settings of the sampler hold, and texts are distributed as plain decoding's.

A seed's text is another one than without the draft, so that nothing here is compared with that.
"""

import itertools
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from llamaspec import demo
from llamaspec.bench.acceptance import SLOTS, Misleading, Prompted, Text, counted, enumerated
from llamaspec.bench.goodness import Goodness, goodness
from llamaspec.bench.pairs import PROMPTS
from llamaspec.bench.sampling import LIST_GRAMMAR, SCHEMA, SETTINGS
from llamaspec.completion import Completion
from llamaspec.loading import load_pair
from llamaspec.options import GenerateOptions, LoadOptions
from llamaspec.runtime.sampler import Sampler
from llamaspec.session import Session, load
from llamaspec.text.prompt import Prompt
from llamaspec.verify.chance import SampledRule
from tests.e2e.test_next_turn import agree

pytestmark = [pytest.mark.native, pytest.mark.parametrize("rule", ["residual", "block"])]

MESSAGES: list[Prompt] = [[{"role": "user", "content": prompt}] for _, prompt in PROMPTS]
CODE = MESSAGES[2]
DRAWS = 800


def complete(session: Session, asked: Prompt, rule: str, **settings: Any) -> Completion:  # noqa: ANN401
    """A completion, streamed and checked; caches included."""
    given = {"max_tokens": 40, "temperature": 1.0, "seed": 0, "logprobs": 2, **settings}
    pieces = list(session.stream(asked, accept=rule, **given))  # type: ignore[arg-type]
    done = session.last
    assert done is not None
    assert "".join(piece.text for piece in pieces) == done.text
    assert tuple(i for piece in pieces for i in piece.token_ids) == done.token_ids
    logprobs = tuple(item for piece in pieces for item in piece.logprobs or ())
    assert logprobs == (done.logprobs or ())
    consistent(session, done)
    return done


def consistent(session: Session, done: Completion) -> None:
    """Ids, rounds, statistics and log-probabilities of a completion agree."""
    stats, at = done.stats, 1
    assert stats.completion_tokens == len(done.token_ids)
    assert stats.rounds == len(done.rounds)
    for record in done.rounds:
        assert record.start == stats.prompt_tokens + at - 1
        assert record.anchor == done.token_ids[at - 1]
        assert 0 <= record.accepted <= min(len(record.draft), record.committed)
        assert done.token_ids[at : at + record.accepted] == record.draft[: record.accepted]
        assert record.committed <= record.accepted + 1
        at += record.committed
    assert at == len(done.token_ids)
    assert stats.accepted == sum(r.accepted for r in done.rounds)
    assert stats.drafted == sum(len(r.draft) for r in done.rounds)
    assert sum(stats.widths) == stats.rounds
    if done.logprobs is not None:
        assert tuple(item.token_id for item in done.logprobs) == done.token_ids
        assert all(item.logprob <= 0 for item in done.logprobs)


def words(session: Session, ids: tuple[int, ...]) -> str:
    piece = session._pair.model.vocab.piece
    return b"".join(piece(token) for token in ids).decode("utf-8", "replace")


# --- endings


def test_a_stop_text_ends_a_text_anywhere_in_a_block(session: Session, rule: str) -> None:
    whole = complete(session, CODE, rule, max_tokens=48)
    text, inside = whole.text, 0
    for start in range(0, min(len(text), 110) - 6, 9):
        for length in (1, 4):
            stop = text[start : start + length]
            done = complete(session, CODE, rule, max_tokens=48, stop=stop, cache_prompt=False)
            assert done.finish_reason == "stop"
            # up to there chance went on as before
            assert done.token_ids == whole.token_ids[: len(done.token_ids)]
            assert done.text == text[: text.index(stop)]
            assert stop in words(session, done.token_ids)
            assert stop not in words(session, done.token_ids[:-1])
            if done.rounds:
                last = done.rounds[-1]
                inside += last.committed < 1 + whole.rounds[len(done.rounds) - 1].accepted
    assert inside > 3


def test_max_tokens_ends_a_text_exactly_there(session: Session, rule: str) -> None:
    for limit in range(1, 20):
        done = complete(session, CODE, rule, max_tokens=limit)
        assert (len(done.token_ids), done.finish_reason) == (limit, "length")
        assert all(
            len(r.draft) <= limit - (r.start - done.stats.prompt_tokens) for r in done.rounds
        )
        agree(session)


def test_the_end_token_ends_a_text(session: Session, rule: str) -> None:
    ends, proposed = session._pair.model.vocab.ends, 0
    for asked, seed in itertools.product((MESSAGES[0], MESSAGES[1]), range(3)):
        done = complete(session, asked, rule, max_tokens=120, temperature=0.7, seed=seed)
        if done.finish_reason == "stop":
            assert done.token_ids[-1] in ends
            assert not ends & set(done.token_ids[:-1])
            assert "<|" not in done.text
            last = done.rounds[-1]
            proposed += last.accepted == last.committed < len(last.draft)
        agree(session)
    assert proposed > 0


def test_the_end_of_the_context_ends_a_text_and_the_next_is_right(rule: str) -> None:
    settings: dict[str, Any] = {"temperature": 0.7, "cache_prompt": False}
    with load(threads=1, context=64) as small, load(threads=1, context=256) as roomy:
        room = 64 - len(small.tokenize(CODE))
        done = complete(small, CODE, rule, max_tokens=4000, **settings)
        assert done.finish_reason == "length"
        assert len(done.token_ids) == room
        assert complete(roomy, CODE, rule, max_tokens=room, **settings).token_ids == done.token_ids
        again = complete(small, CODE, rule, max_tokens=12, seed=4, **settings)
        agree(small)
        expected = complete(roomy, CODE, rule, max_tokens=12, seed=4, **settings)
        assert again.token_ids == expected.token_ids


def test_a_next_turn_goes_on_from_the_caches(session: Session, rule: str) -> None:
    chat: list[Any] = [{"role": "user", "content": PROMPTS[0][1]}]
    for turn, stop in enumerate(((), ("\n",), ())):
        done = complete(session, chat, rule, stop=stop, seed=turn, temperature=0.8)
        agree(session)
        assert turn == 0 or done.stats.cached_tokens > 30
        chat += [{"role": "assistant", "content": done.text}, {"role": "user", "content": "Why?"}]


def test_leaving_a_text_early_leaves_the_next_one_alone(session: Session, rule: str) -> None:
    settings: dict[str, Any] = {"cache_prompt": False, "temperature": 0.9}
    expected = complete(session, CODE, rule, **settings)
    for taken in range(1, 4):
        stream = session.stream(MESSAGES[0], temperature=1.0, seed=9, accept=rule)  # type: ignore[arg-type]
        list(itertools.islice(stream, taken))
        stream.close()
        agree(session)
        assert complete(session, CODE, rule, **settings).token_ids == expected.token_ids


# --- what a request asks for


@pytest.mark.parametrize("name", [n for n, s in SETTINGS.items() if s.get("temperature")])
def test_one_seed_one_text_with_every_setting(session: Session, rule: str, name: str) -> None:
    settings: dict[str, Any] = {**SETTINGS[name], "cache_prompt": False}
    accepted, texts = 0, set()
    for seed, asked in enumerate(MESSAGES):
        done = complete(session, asked, rule, seed=seed, **settings)
        if seed == 2:
            again = session.generate(asked, accept=rule, max_tokens=40, seed=seed, **settings)  # type: ignore[arg-type]
            assert again.token_ids == done.token_ids
        accepted += done.stats.accepted
        texts.add(done.text)
        if "grammar" in settings:
            assert re.fullmatch(r"(- [^\n]{1,20}\n)*(-? ?[^\n]{0,20})?", done.text), done.text
    assert accepted > 0
    assert len(texts) > 2


def test_every_text_is_one_that_its_filters_and_penalties_allow(
    session: Session, rule: str
) -> None:
    """Of every committed token plain decoding's own odds, given the text before it, are above 0."""
    settings: dict[str, Any] = {
        "temperature": 1.3,
        "top_k": 6,
        "repeat_penalty": 1.3,
        "dry_multiplier": 0.8,
        "logit_bias": {198: -2.0, 13: -math.inf},
    }
    pair = session._pair
    for seed, asked in enumerate(MESSAGES):
        done = complete(session, asked, rule, seed=seed, max_tokens=24, **settings)
        prompt = session.tokenize(asked)
        options = GenerateOptions(**settings)
        with Sampler.create(pair.model, options, seed=0, prompt=prompt, n_ctx=512) as sampler:
            for index, token in enumerate(done.token_ids):
                text = [*prompt.tolist(), *done.token_ids[:index]]
                session.generate(text, max_tokens=1, draft_max=0)
                p = sampler.odds(pair.context, _last_row(session), (), index)[0]
                assert p[token] > 0, (seed, index, token)
                assert 1 <= np.count_nonzero(p) <= 6
                sampler.take(token, index)


def _last_row(session: Session) -> int:
    engine: Any = session._pair.engine
    return int(engine._batch.size) - 1


def test_tokens_that_are_excluded_never_come(session: Session, rule: str) -> None:
    usual = complete(session, CODE, rule).token_ids
    banned = dict.fromkeys(usual[::2], -math.inf)
    for seed in range(6):
        done = complete(session, CODE, rule, seed=seed, logit_bias=banned)
        assert not banned.keys() & set(done.token_ids)


def test_json_follows_its_schema(session: Session, rule: str) -> None:
    accepted = 0
    texts = set()
    for seed, asked in enumerate(MESSAGES[:2]):
        done = complete(session, asked, rule, seed=seed, max_tokens=400, json_schema=SCHEMA)
        if done.finish_reason == "stop":
            found = json.loads(done.text)
            assert set(found) == set(SCHEMA["properties"])
            assert 0 <= found["age"] <= 120
            assert found["kind"] in ("cat", "dog", None)
            assert 1 <= len(found["name"]) <= 12
            assert len(found["tags"]) <= 3
            assert isinstance(found["home"]["big"], bool)
            texts.add(done.text)
        accepted += done.stats.accepted
    assert accepted > 0
    assert len(texts) == 2


def test_a_grammar_ends_the_text(session: Session, rule: str) -> None:
    answers, grammar = set(), 'root ::= [a-z] [a-z] [a-z] "!"'
    for seed in range(8):
        done = complete(session, CODE, rule, seed=seed, temperature=2.0, grammar=grammar)
        assert done.finish_reason == "stop"
        assert done.token_ids[-1] in session._pair.model.vocab.ends
        assert re.fullmatch("[a-z]{3}!", done.text)
        answers.add(done.text)
    assert len(answers) > 3


# --- several at once


def test_sequences_at_once_are_what_they_are_alone(rule: str) -> None:
    tasks: list[tuple[Prompt, dict[str, Any]]] = [
        (MESSAGES[0], {"seed": 1}),
        (MESSAGES[2], {"seed": 2, "stop": "return"}),
        (MESSAGES[1], {"seed": 3, "grammar": LIST_GRAMMAR, "logit_bias": {198: -1.0}}),
        (MESSAGES[3], {"seed": 4, "repeat_penalty": 1.2, "max_tokens": 9}),
    ]
    alone: list[Completion] = []
    with load(threads=1, context=256) as session:
        alone = [complete(session, asked, rule, **given) for asked, given in tasks]
    usual = {"max_tokens": 40, "temperature": 1.0, "logprobs": 2, "accept": rule}
    with load(threads=1, context=256, max_sequences=len(tasks)) as session:
        streams = [session.stream(asked, **{**usual, **given}) for asked, given in tasks]
        found = list(zip(*itertools.zip_longest(*map(collected(session), streams)), strict=True))
        for pieces, expected in zip(found, alone, strict=True):
            done = [piece for piece in pieces if piece is not None][-1]
            consistent(session, done)
            assert done.token_ids == expected.token_ids
            assert (done.text, done.finish_reason) == (expected.text, expected.finish_reason)
            assert [r.accepted for r in done.rounds] == [r.accepted for r in expected.rounds]


def collected(session: Session) -> Any:  # noqa: ANN401
    """Yields None for every piece of a stream, and its Completion at the end."""

    def each(stream: Any) -> Iterator[Completion | None]:  # noqa: ANN401
        for _ in stream:
            yield None
        yield session.last

    return each


# --- the distribution


@pytest.fixture(scope="module")
def known() -> Iterator[tuple[Prompted, dict[Text, float]]]:
    """A prompt, and the probability of every text that plain decoding goes on with."""
    options = LoadOptions(threads=1, max_sequences=SLOTS, context=256)
    pair = load_pair(demo.target_path(), demo.draft_path(), options)
    try:
        prompted = Prompted(pair, pair.model.vocab.tokenize("A yard is", add_special=True))
        yield prompted, enumerated(prompted)
    finally:
        pair.close()


def fits(counts: Counter[Text], probabilities: dict[Text, float]) -> list[Goodness]:
    """How well the texts' first two, three and four tokens go with theirs."""
    found = []
    for length in (1, 2, 3):
        some: Counter[Text] = Counter()
        for text, count in counts.items():
            some[text[:length]] += count
        sums: defaultdict[Text, float] = defaultdict(float)
        for text, probability in probabilities.items():
            sums[text[:length]] += probability
        found.append(goodness(some, sums))
    return found


def test_texts_are_distributed_as_plain_decodings_and_a_wrong_q_is_noticed(
    rule: SampledRule, known: tuple[Prompted, dict[Text, float]]
) -> None:
    """A slice of `python -m llamaspec.bench.acceptance distribution`, with its seeds."""
    prompted, probabilities = known
    assert sum(probabilities.values()) == pytest.approx(1, abs=1e-4)
    pair = prompted.pair
    assert pair.drafter is not None
    right = fits(counted(prompted, pair.drafter, rule, DRAWS), probabilities)
    # further off than the benchmark's, for so few draws
    misled = Misleading(pair.drafter, 0.2)
    wrong = fits(counted(prompted, misled, rule, DRAWS // 4), probabilities)
    assert right[-1].draws == DRAWS
    assert min(one.cells for one in right) > 4
    assert min(one.p_value for one in right) > 1e-3, right
    assert min(one.p_value for one in wrong) < 1e-4, wrong
