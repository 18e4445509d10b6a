"""Sampling: the same seed gives the same text with the draft and without it, whatever the samplers.

`python -m llamaspec.bench.sampling` does the same with 200 seeds a setting.
"""

import gc
import itertools
import json
import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from llamaspec import demo
from llamaspec.bench.pairs import PROMPTS
from llamaspec.bench.sampling import JSON_SETTINGS, SCHEMA, SETTINGS, compare, is_whole
from llamaspec.completion import Completion, Piece
from llamaspec.engine.sequence import Sequence
from llamaspec.errors import OptionError, SamplingError
from llamaspec.options import MAX_SEED, GenerateSettings
from llamaspec.runtime.context import Context
from llamaspec.session import Session, load
from llamaspec.text.prompt import Prompt
from tests.rewrite import rewrite

pytestmark = pytest.mark.native

CODE: Prompt = [{"role": "user", "content": PROMPTS[2][1]}]
MATH: Prompt = [{"role": "user", "content": PROMPTS[0][1]}]
SEEDS = range(3)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_draft_changes_nothing(session: Session, name: str) -> None:
    cases = list(compare(session, name, SETTINGS[name], seeds=SEEDS, tokens=40))
    for case in cases:
        assert case.same
        assert case.drafted.logprobs is not None
        assert len(case.drafted.logprobs) == len(case.drafted.token_ids)
        assert case.apart < 1e-3
    assert sum(case.drafted.stats.accepted for case in cases) > 0


def test_each_setting_changes_the_text(session: Session) -> None:
    """A sampler that is not in the chain would pass every comparison of a text with itself."""
    for name, settings in SETTINGS.items():
        changed = False
        # the target is sure of itself: what a weak setting changes depends on the prompt
        for (_, prompt), seed in itertools.product(PROMPTS, range(3)):
            asked: Prompt = [{"role": "user", "content": prompt}]
            options: GenerateSettings = {**settings, "seed": seed, "max_tokens": 32}
            without: GenerateSettings = {"seed": seed, "max_tokens": 32}
            if name != "temperature":
                without["temperature"] = settings.get("temperature", 0.0)
            text = session.generate(asked, **options).text
            changed = text != session.generate(asked, **without).text
            if changed:
                break
        assert changed, name


@pytest.mark.parametrize(
    "neutral",
    [
        {"top_k": 1},
        {"top_p": 0.0},
        {"min_p": 1.0},
        {"logit_bias": {5: 0.0}},
        {"repeat_last_n": 0, "repeat_penalty": 2.0, "temperature": 1e-6},
        {"grammar": r"root ::= [\x00-\U0010FFFF]*"},
    ],
    ids=str,
)
def test_what_leaves_the_likeliest_token_gives_the_greedy_text(
    session: Session, neutral: dict[str, Any]
) -> None:
    settings: dict[str, Any] = {"temperature": 1.0, "seed": 1, **neutral}
    if "logit_bias" in neutral or "grammar" in neutral:
        settings["temperature"] = 0.0
    greedy = session.generate(CODE, max_tokens=40)
    assert session.generate(CODE, max_tokens=40, **settings).token_ids == greedy.token_ids


def test_every_seed_is_a_seed(session: Session) -> None:
    # llama.cpp takes one number for "any seed": that one is refused
    settings: GenerateSettings = {"seed": MAX_SEED, "temperature": 1.5, "cache_prompt": False}
    texts = [session.generate(CODE, **settings | {"max_tokens": 24}).text for _ in range(3)]
    assert len(set(texts)) == 1
    with pytest.raises(OptionError, match=f"0 to {MAX_SEED}"):
        session.generate(CODE, temperature=1.0, seed=MAX_SEED + 1)


# --- penalties


def test_a_penalty_counts_every_committed_token_once(session: Session) -> None:
    """A frequency penalty of a whole vocabulary's width leaves each token its fair number of turns:
    a token that was counted twice, or a rejected proposal that was, would be missing.
    """
    for draft_max in (None, 0):
        done = session.generate(
            [7],
            max_tokens=200,
            draft_max=draft_max,
            frequency_penalty=100.0,
            repeat_last_n=-1,
            logit_bias={i: 1000.0 for i in range(100, 110)},
        )
        counts = [done.token_ids.count(token) for token in range(100, 110)]
        assert sum(counts) >= 100
        assert max(counts) - min(counts) <= 1


def test_the_prompt_counts_for_penalties(session: Session) -> None:
    token = session.generate(MATH, max_tokens=1).token_ids[0]
    ids = session.tokenize(MATH)
    for settings, changes in (
        ({"presence_penalty": 100.0, "repeat_last_n": -1}, True),
        ({"presence_penalty": 100.0, "repeat_last_n": 1}, False),
    ):
        seen = [token, *ids.tolist()]
        base = session.generate(seen, max_tokens=1).token_ids[0]
        options: Any = {**settings, "logit_bias": {token: 50.0}}
        found = session.generate(seen, max_tokens=1, **options).token_ids[0]
        assert base == token
        assert (found != token) == changes


def test_dry_breaks_a_loop_and_breakers_let_it_be(session: Session) -> None:
    loop = session.tokenize("one two three four one two three four one two three").tolist()
    plain = session.generate(loop, max_tokens=8)
    options: dict[str, Any] = {"dry_multiplier": 100.0, "dry_penalty_last_n": -1}
    broken = session.generate(loop, max_tokens=8, dry_allowed_length=1, **options)
    let_be = session.generate(
        loop, max_tokens=8, dry_sequence_breakers=list("abcdefghijklmnopqrstuvwxyz "), **options
    )
    assert let_be.token_ids == plain.token_ids
    assert broken.token_ids != plain.token_ids


def test_a_bias_excludes_and_forces_tokens(session: Session) -> None:
    plain = session.generate(CODE, max_tokens=40).token_ids
    banned = dict.fromkeys(plain, -math.inf)
    without = session.generate(CODE, max_tokens=40, logit_bias=banned)
    assert not set(without.token_ids) & set(plain)
    forced = session.generate(CODE, max_tokens=5, logit_bias={300: 1000.0})
    assert forced.token_ids == (300,) * 5
    assert forced.stats.completion_tokens == 5


def test_tokens_that_a_file_suppresses_are_never_chosen(
    session: Session, tmp_path_factory: pytest.TempPathFactory
) -> None:
    plain = session.generate(CODE, max_tokens=20)
    banned = sorted(set(plain.token_ids[:3]))
    path = tmp_path_factory.mktemp("suppressed") / "t.gguf"
    rewrite(demo.target_path(), path, {"tokenizer.ggml.suppress_tokens": banned})
    with load(path, demo.draft_path(), threads=1, context=256) as other:
        done = other.generate(CODE, max_tokens=20)
        assert done.token_ids == other.generate(CODE, max_tokens=20, draft_max=0).token_ids
    biased = session.generate(CODE, max_tokens=20, logit_bias=dict.fromkeys(banned, -math.inf))
    assert done.token_ids == biased.token_ids
    assert not set(done.token_ids) & set(banned)


# --- grammars and schemas


def validate(value: object, schema: dict[str, Any]) -> None:
    """Just what SCHEMA uses of JSON schema: a dependency would be larger than this."""
    if "enum" in schema:
        assert value in schema["enum"]
        return
    kinds: dict[str, type | tuple[type, ...]] = {
        "object": dict,
        "string": str,
        "integer": int,
        "array": list,
        "boolean": bool,
    }
    assert isinstance(value, kinds[schema["type"]])
    assert isinstance(value, bool) == (schema["type"] == "boolean")
    if isinstance(value, dict):
        assert schema["additionalProperties"] is False
        assert set(schema["required"]) <= value.keys() <= schema["properties"].keys()
        for key, item in value.items():
            validate(item, schema["properties"][key])
    if isinstance(value, list):
        assert len(value) <= schema["maxItems"]
        for item in value:
            validate(item, schema["items"])
    if isinstance(value, str):
        assert schema.get("minLength", 0) <= len(value) <= schema["maxLength"]
    if schema["type"] == "integer":
        assert isinstance(value, int)
        assert schema["minimum"] <= value <= schema["maximum"]


def test_every_json_text_follows_its_schema(session: Session) -> None:
    cases = list(compare(session, "json", JSON_SETTINGS, seeds=range(8), tokens=400))
    for case in cases:
        assert case.same
        assert is_whole(case)
        validate(json.loads(case.drafted.text), SCHEMA)
    assert len({case.drafted.text for case in cases}) == len(cases)
    assert sum(case.drafted.stats.accepted for case in cases) > 0


def test_a_schema_may_be_given_as_text(session: Session) -> None:
    settings: dict[str, Any] = {"max_tokens": 300, "seed": 5, "temperature": 0.8}
    mapped = session.generate(CODE, json_schema=SCHEMA, **settings)
    assert session.generate(CODE, json_schema=json.dumps(SCHEMA), **settings).text == mapped.text


def test_a_grammar_ends_the_text(session: Session) -> None:
    for draft_max in (None, 0):
        done = session.generate(
            CODE, grammar='root ::= "yes" | "no"', temperature=1.0, seed=2, draft_max=draft_max
        )
        assert done.text in ("yes", "no")
        assert done.finish_reason == "stop"
        assert done.token_ids[-1] in session._pair.model.vocab.ends


def test_a_character_of_a_grammar_may_take_several_tokens(session: Session) -> None:
    done = session.generate(CODE, grammar='root ::= "🎉日é"', temperature=1.0, seed=2)
    assert (done.text, done.finish_reason) == ("🎉日é", "stop")
    assert len(done.token_ids) > 4


def test_a_grammar_that_allows_nothing_but_the_end(session: Session) -> None:
    done = session.generate(CODE, grammar='root ::= ""')
    assert (done.text, done.finish_reason, len(done.token_ids)) == ("", "stop", 1)


DEAD_ENDS = {
    # no token of the vocabulary is a NUL, and none has one in it
    "no-such-token": (r'root ::= "ab" [\x00]', "ab"),
    "never-ending-rule": ('root ::= "ab" loop\nloop ::= a loop\na ::= b\nb ::= ""', "a"),
    "nothing-at-all": ('root ::= a root\na ::= b\nb ::= ""', ""),
}


def until_failure(stream: Iterator[Piece]) -> tuple[str, SamplingError]:
    """The text of a stream, and the error that ends it."""
    text = ""
    try:
        for piece in stream:
            text += piece.text
    except SamplingError as error:
        return text, error
    raise AssertionError(f"no error after {text!r}")


@pytest.mark.parametrize("draft_max", [None, 0])
@pytest.mark.parametrize("name", DEAD_ENDS)
def test_a_grammar_that_cannot_go_on_is_an_error_after_the_text_so_far(
    session: Session, name: str, draft_max: int | None
) -> None:
    grammar, before = DEAD_ENDS[name]
    text, failure = until_failure(session.stream(CODE, grammar=grammar, draft_max=draft_max))
    assert text == before
    assert "within the grammar" in str(failure)
    expected = session.generate(CODE, max_tokens=10, draft_max=0)
    assert session.generate(CODE, max_tokens=10).token_ids == expected.token_ids


def test_a_bias_outside_the_vocabulary_is_refused(session: Session) -> None:
    with pytest.raises(OptionError, match="token 4096, outside the vocabulary of 4096"):
        session.generate(CODE, logit_bias={4096: 1.0})


def test_a_bias_that_excludes_everything_is_an_error(session: Session) -> None:
    banned = dict.fromkeys(range(session._pair.model.vocab.size), -math.inf)
    with pytest.raises(SamplingError, match="every token"):
        session.generate(CODE, logit_bias=banned)


def test_one_text_that_cannot_go_on_leaves_the_others_alone() -> None:
    settings: GenerateSettings = {"temperature": 0.9, "seed": 11, "max_tokens": 40}
    with load(threads=1, context=256, max_sequences=2) as session:
        alone = session.generate(CODE, **settings)
        failing = session.stream(
            MATH, grammar=r'root ::= "The answer is a number" [\x00]', max_tokens=40
        )
        staying = session.stream(CODE, **settings)
        text = next(failing).text
        pieces = list(staying)
        assert text + until_failure(failing)[0] == "The answer is a number"
        assert session.last is not None
        assert session.last.token_ids == alone.token_ids
        assert "".join(piece.text for piece in pieces) == alone.text


# --- log-probabilities


def plain_logprobs(session: Session, done: Completion, prompt: Prompt) -> Iterator[Any]:
    """The logarithm of the softmax of every position's logits, by NumPy, one row at a time."""
    context = session._pair.context
    ids = [*session.tokenize(prompt).tolist(), *done.token_ids]
    for count in range(len(ids) - len(done.token_ids), len(ids)):
        session.generate(ids[:count], max_tokens=1, draft_max=0)
        row = context.logits_view(1)[0].astype(np.float64)
        yield row - row.max() - np.log(np.exp(row - row.max()).sum())


@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 1.4, "seed": 8}, {"repeat_penalty": 1.5, "grammar": "root ::= [a-z ]+"}],
    ids=str,
)
def test_logprobs_are_those_of_the_models_own_distribution(
    session: Session, settings: dict[str, Any]
) -> None:
    done = session.generate(CODE, max_tokens=12, logprobs=4, **settings)
    assert done.logprobs is not None
    assert [token.token_id for token in done.logprobs] == list(done.token_ids)
    for found, row in zip(done.logprobs, plain_logprobs(session, done, CODE), strict=True):
        assert found.logprob == pytest.approx(row[found.token_id], abs=1e-3)
        likeliest = np.sort(row)[::-1][:4]
        assert [value for _, value in found.top] == pytest.approx(list(likeliest), abs=1e-3)
        assert [row[token] for token, _ in found.top] == pytest.approx(list(likeliest), abs=1e-3)


def test_pieces_carry_the_logprobs_of_their_tokens(session: Session) -> None:
    pieces = list(session.stream(CODE, max_tokens=30, logprobs=0))
    assert session.last is not None
    assert session.last.logprobs is not None
    joined = [token for piece in pieces for token in piece.logprobs or ()]
    assert tuple(joined) == session.last.logprobs
    for piece in pieces:
        assert piece.logprobs is not None
        assert tuple(token.token_id for token in piece.logprobs) == piece.token_ids
        assert all(token.top == () for token in piece.logprobs)
    without = session.generate(CODE, max_tokens=5)
    assert without.logprobs is None


# --- interruptions and other threads


@pytest.mark.parametrize("name", ["all mixed", "temperature"])
def test_an_interrupted_round_draws_nothing_twice(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    settings: GenerateSettings = {**SETTINGS[name], "seed": 4, "max_tokens": 40, "stop": "zzz"}
    commit, calls = Sequence.commit, 0

    def interrupted(self: Sequence, tokens: list[int]) -> int:
        nonlocal calls
        calls += 1
        if calls in (4, 9, 15):
            raise KeyboardInterrupt
        return commit(self, tokens)

    with load(threads=1, context=256, max_sequences=2) as session:
        alone = session.generate(CODE, **settings)
        staying = session.stream(CODE, **settings)
        text = next(staying).text
        monkeypatch.setattr(Sequence, "commit", interrupted)
        for _ in range(3):
            other = session.stream(MATH, max_tokens=100, temperature=1.0, seed=1)
            with pytest.raises(KeyboardInterrupt):
                # its rounds move the staying one on as well
                list(other)
        monkeypatch.undo()
        text += "".join(piece.text for piece in staying)
        assert session.last is not None
        assert session.last.token_ids == alone.token_ids
        assert text == alone.text


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "seed": 3}], ids=str)
def test_a_stream_that_the_garbage_collector_ends_in_a_step(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    compute = Context._compute
    left: list[Any] = []

    def collecting(self: Context, *arguments: Any) -> None:  # noqa: ANN401
        compute(self, *arguments)
        if left:
            left.clear()
            gc.collect()

    with load(threads=1, context=256, max_sequences=2) as session:
        alone = session.generate(CODE, max_tokens=40, **settings)
        staying = session.stream(CODE, max_tokens=40, **settings)
        text = next(staying).text
        leaving = session.stream(MATH, max_tokens=100, **settings)
        next(leaving)
        cycle: list[Any] = [leaving]
        cycle.append(cycle)
        left.append(cycle)
        del cycle, leaving
        monkeypatch.setattr(Context, "_compute", collecting)
        text += "".join(piece.text for piece in staying)
        monkeypatch.undo()
        assert left == []
        assert text == alone.text
        assert session._pair.engine._active == []
        assert session._running._runs == []
        assert session.generate(MATH, max_tokens=5).token_ids


@pytest.mark.parametrize("leave", ["close", "drop"])
def test_a_stream_left_in_another_thread_frees_its_sequence_and_no_other(leave: str) -> None:
    settings: GenerateSettings = {
        "temperature": 0.8,
        "seed": 6,
        "max_tokens": 100,
        "draft_max": 1,
        "top_k": 4,
    }
    with load(threads=1, context=256, max_sequences=2) as session:
        alone = session.generate(CODE, **settings)
        staying = session.stream(CODE, **settings)
        text = next(staying).text
        for taken in range(4):
            streams = [session.stream(MATH, max_tokens=100, temperature=1.0, seed=taken)]
            for _ in range(taken + 1):
                next(streams[0])
            text += next(staying).text
            leaver = threading.Thread(target=streams[0].close if leave == "close" else streams.pop)
            leaver.start()
            leaver.join()
            assert len(session._pair.engine._active) == 1
            text += next(staying).text
        again = session.generate(MATH, max_tokens=20)
        text += "".join(piece.text for piece in staying)
        assert text == alone.text
        assert again.token_ids == session.generate(MATH, max_tokens=20, draft_max=0).token_ids
