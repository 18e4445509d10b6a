"""Prompts that begin alike, on the bundled pair: what they have in common is computed once, for the
draft as well, and every text is what it is alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from llamaspec.bench.pairs import PROMPTS
from llamaspec.completion import Completion
from llamaspec.engine.store import Store
from llamaspec.errors import OptionError
from llamaspec.options import DEFAULT_PREFIX_CACHE, LoadOptions
from llamaspec.runtime.cache import KVCache
from llamaspec.session import Session, load
from llamaspec.text.prompt import Prompt

pytestmark = pytest.mark.native

BLOCK = 7
TEXTS = 8
TOKENS = 24
PART = 64
CONTEXT = 512
# some 200 tokens
ALL = " ".join(prompt for _, prompt in PROMPTS) + " "
SYSTEM = ALL + "Answer what comes last. " + ALL
OTHER = "Listen. " + SYSTEM


def asked(number: int, system: str = SYSTEM) -> Prompt:
    _, prompt = PROMPTS[number % len(PROMPTS)]
    prompt = "Please! " * (number // len(PROMPTS)) + prompt
    return [{"role": "system", "content": system}, {"role": "user", "content": prompt}]


ASKED = [asked(number) for number in range(TEXTS)]


def opened(**settings: Any) -> Session:  # noqa: ANN401
    given = {"threads": 1, "context": CONTEXT, "schedule": "full", "batch": PART}
    return load(**{**given, **settings})


def said(session: Session, prompt: Prompt, **settings: Any) -> Completion:  # noqa: ANN401
    return session.generate(prompt, **{"max_tokens": TOKENS, "draft_max": BLOCK, **settings})


def common(session: Session) -> int:
    """How many tokens all the prompts begin with."""
    first, second = (session.tokenize(asked(n)) for n in (0, 1))
    return next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)


def rate(found: Sequence[Completion]) -> float:
    drafted = sum(len(r.draft) for done in found for r in done.rounds)
    return sum(r.accepted for done in found for r in done.rounds) / drafted


@pytest.fixture(scope="module", params=[False, True], ids=["", "exact"])
def alone(request: pytest.FixtureRequest) -> Iterator[tuple[bool, list[Completion]]]:
    with opened(exact=request.param) as session:
        yield request.param, [said(session, p, cache_prompt=False) for p in ASKED]


def test_texts_that_come_together_share_the_beginning(
    alone: tuple[bool, list[Completion]],
) -> None:
    exact, wanted = alone
    with opened(max_sequences=TEXTS, exact=exact) as session:
        shared = common(session)
        assert shared > 150
        # exact mode takes whole parts only, so that each prompt has the passes that it has alone
        shared -= shared % PART if exact else 0
        found = session.generate_batch(ASKED, max_tokens=TOKENS, draft_max=BLOCK)
        cached = [done.stats.cached_tokens for done in found]
        assert cached[0] == 0
        assert all(shared <= n <= shared + 5 for n in cached[1:]), (shared, cached)
        # what is free now has it as well
        again = said(session, ASKED[3])
        assert again.stats.cached_tokens >= shared
    assert [done.token_ids for done in found] == [done.token_ids for done in wanted]
    assert again.token_ids == wanted[3].token_ids
    # the draft knows the beginning as well as where each text was alone
    assert rate(found) == pytest.approx(rate(wanted), abs=0.01)


def test_one_who_comes_later_goes_on_from_one_under_way() -> None:
    with opened(max_sequences=2) as session:
        shared = common(session)
        stream = session.stream(ASKED[0], max_tokens=TOKENS, draft_max=BLOCK)
        next(stream)
        second = said(session, ASKED[1])
        list(stream)
        assert session.last is not None
        first = session.last
        cold = [said(session, p, cache_prompt=False) for p in ASKED[:2]]
    assert shared <= second.stats.cached_tokens <= shared + 3
    assert [first.token_ids, second.token_ids] == [done.token_ids for done in cold]
    assert [done.stats.cached_tokens for done in cold] == [0, 0]


def test_drawn_texts_share_too() -> None:
    settings: dict[str, Any] = {"temperature": 0.8, "max_tokens": TOKENS, "draft_max": BLOCK}
    with opened() as session:
        wanted = [
            session.generate(p, seed=5, cache_prompt=False, **settings).token_ids for p in ASKED
        ]
    with opened(max_sequences=TEXTS) as session:
        found = session.generate_batch(ASKED, seed=5, **settings)
    assert [done.token_ids for done in found] == wanted
    assert all(done.stats.cached_tokens > 150 for done in found[1:])


# --- what lost its slot


def entries(session: Session) -> Store:
    return session._pair.engine.store


@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
@pytest.mark.parametrize("draft", [True, False])
def test_a_text_that_lost_its_slot_comes_back_with_what_the_draft_knew(
    draft: bool, cache_type: str
) -> None:
    settings: dict[str, Any] = {} if draft else {"draft": None}
    with opened(prefix_cache=1 << 26, cache_type=cache_type, **settings) as session:
        cold = [said(session, p, cache_prompt=False) for p in (ASKED[0], asked(1, OTHER))]
        store = entries(session)
        assert len(store) == 1
        back = said(session, ASKED[0])
        assert back.stats.cached_tokens >= cold[0].stats.prompt_tokens - 1
        # and the other one, which had to leave its slot to it
        other = said(session, asked(1, OTHER))
        assert other.stats.cached_tokens >= cold[1].stats.prompt_tokens - 1
        assert store.size == sum(e.nbytes for e in store.entries())
    for found, wanted in ((back, cold[0]), (other, cold[1])):
        assert found.token_ids == wanted.token_ids
        if draft:
            assert [r.draft for r in found.rounds] == [r.draft for r in wanted.rounds]


def test_the_bound_is_kept_and_the_least_recently_used_goes_first() -> None:
    with opened(prefix_cache=1 << 30) as session:
        said(session, asked(0))
        said(session, asked(0, OTHER))
        room = entries(session).size
    # for the first text, and not for the second one beside it
    with opened(prefix_cache=2 * room - 1) as session:
        store = entries(session)
        sizes = []
        for system in (SYSTEM, OTHER, "One. " + SYSTEM, "Two. " + SYSTEM):
            said(session, asked(0, system))
            sizes.append(store.size)
            assert store.size <= store.limit
            held = sum(
                e.target.data.nbytes + (e.draft.nbytes if e.draft else 0) + e.held.text.nbytes
                for e in store.entries()
            )
            assert store.size == held
        assert len(store) == 1
        assert sizes[0] == 0
        assert min(sizes[1:]) > 0
        # what is left is what was lost last
        assert said(session, asked(0, "One. " + SYSTEM)).stats.cached_tokens > 150
    with opened(prefix_cache=1000) as session:
        for system in (SYSTEM, OTHER, SYSTEM):
            assert said(session, asked(0, system)).stats.cached_tokens < 32
        assert len(entries(session)) == 0


def test_exact_texts_come_back(alone: tuple[bool, list[Completion]]) -> None:
    exact, wanted = alone
    with opened(prefix_cache=1 << 26, exact=exact, max_sequences=2) as session:
        for number in range(2):
            said(session, ASKED[number])
        session.generate_batch([asked(0, OTHER), asked(1, OTHER + OTHER)], max_tokens=4)
        assert len(entries(session)) >= 1
        back = [said(session, ASKED[number]) for number in range(2)]
    assert [done.token_ids for done in back] == [done.token_ids for done in wanted[:2]]
    assert all(done.stats.cached_tokens >= PART for done in back)


def test_damage_is_computed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(prefix_cache=1 << 26) as session:
        wanted = said(session, ASKED[0])
        said(session, asked(1, OTHER))
        (entry,) = entries(session).entries()
        entry.target.data[len(entry.target.data) // 2] ^= 255
        back = said(session, ASKED[0])
        assert back.stats.cached_tokens == 0
        assert entry not in entries(session).entries()
        # a draft that does not come back is taught again
        said(session, asked(1, OTHER))
        monkeypatch.setattr(KVCache, "restore", refusing(KVCache.restore, 2))
        again = said(session, ASKED[0])
    assert back.token_ids == again.token_ids == wanted.token_ids
    assert [r.draft for r in again.rounds] == [r.draft for r in wanted.rounds]


def refusing(restore: Any, turn: int) -> Any:  # noqa: ANN401
    """`restore`, that fails at one of its calls."""
    calls = iter(range(1, 99))

    def refuse(cache: KVCache, seq: int, state: Any) -> bool:  # noqa: ANN401
        done = bool(restore(cache, seq, state))
        if next(calls) == turn:
            cache.truncate(seq, 0)
            return False
        return done

    return refuse


def test_nothing_is_kept_where_it_is_not_wanted() -> None:
    with opened(max_sequences=2, prefix_cache=0) as session:
        for system in (SYSTEM, OTHER, "One. " + SYSTEM, "Two. " + SYSTEM):
            said(session, asked(0, system))
        assert len(entries(session)) == 0
    with opened(max_sequences=2) as session:
        assert entries(session).limit == DEFAULT_PREFIX_CACHE
    assert LoadOptions().n_prefix_cache == 0
    assert replace(LoadOptions(), max_sequences=3).n_prefix_cache == DEFAULT_PREFIX_CACHE


@pytest.mark.parametrize("bad", [-1, 1.5, True, "256"])
def test_the_bound_is_checked(bad: object) -> None:
    with pytest.raises(OptionError, match="prefix_cache is"):
        LoadOptions(prefix_cache=bad)  # type: ignore[arg-type]
