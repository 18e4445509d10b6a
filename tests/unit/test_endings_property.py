"""Where a text ends, over ten thousand random cases, against a slow and obvious reference."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

from llamaspec.engine.ending import Ending
from llamaspec.engine.loop import Engine
from llamaspec.engine.sequence import Request
from llamaspec.text.detokenize import Pieces
from tests.unit.fakes import FakeDrafter, FakeTarget

pytestmark = pytest.mark.native

CASES = 10_000
BATCH = 500
PROMPT = 3
END = 0
ALPHABET = ["a", "b", "ab", "aab", "\n", " ", "é", "日", "🎉", "本a", "\ufffd"]


@dataclass(frozen=True)
class Case:
    """What a model would write, token by token; token 0 ends it and adds nothing."""

    pieces: dict[int, bytes]
    tokens: list[int]
    stop: tuple[str, ...]
    limit: int
    proposals: int
    wrong: frozenset[int]
    sampled: bool


def make(rng: random.Random) -> Case:
    text = "".join(rng.choice(ALPHABET) for _ in range(rng.randint(5, 30)))
    raw = text.encode()
    if rng.random() < 0.1:
        raw = raw + bytes(rng.choices(range(256), k=rng.randint(1, 6))) + raw
    cuts = sorted(rng.sample(range(1, len(raw)), min(len(raw) - 1, rng.randint(1, len(raw)))))
    parts = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    parts = [part for part in parts for part in ([b"", part] if rng.random() < 0.1 else [part])]
    ids = {part: n for n, part in enumerate(dict.fromkeys(parts), 1)}
    tokens = [ids[part] for part in parts]
    if rng.random() < 0.4:
        tokens.insert(rng.randint(0, len(tokens)), END)
    return Case(
        pieces={END: b"", **{n: part for part, n in ids.items()}},
        tokens=tokens,
        stop=tuple(stop_text(rng, text) for _ in range(rng.choice([0, 0, 1, 1, 2, 3]))),
        limit=rng.randint(1, len(tokens)),
        proposals=rng.randint(0, 7),
        wrong=frozenset(rng.sample(range(60), rng.randint(0, 30))),
        sampled=rng.random() < 0.5,
    )


def stop_text(rng: random.Random, text: str) -> str:
    if rng.random() < 0.3:
        return "".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, 3)))
    start = rng.randrange(len(text))
    return text[start : start + rng.randint(1, 5)]


# --- the reference: the text is made anew after every token, and searched from its beginning


def certain(raw: bytes) -> str:
    """The text of all bytes but those of a character that is not complete yet."""
    for size in (3, 2, 1):
        try:
            raw[-size:].decode()
        except UnicodeDecodeError as error:
            if error.start == 0 and error.reason == "unexpected end of data":
                return raw[:-size].decode("utf-8", "replace")
    return raw.decode("utf-8", "replace")


def first_stop(text: str, stops: tuple[str, ...]) -> str | None:
    """The text before the stop text that is complete first, of two the longer."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))]
    return None


def expected(case: Case) -> tuple[str, int, str]:
    """Text, number of tokens and reason."""
    raw = b""
    for count, token in enumerate(case.tokens, 1):
        raw += case.pieces[token]
        ends = token == END
        last = ends or count == case.limit
        text = raw.decode("utf-8", "replace") if last else certain(raw)
        before = first_stop(text, case.stop)
        if before is not None and first_stop(certain(raw), case.stop) is None:
            # only what became of an unfinished character made the stop text
            return before, count, "stop" if ends else "length"
        if before is not None:
            return before, count, "stop"
        if last:
            return text, count, "stop" if ends else "length"
    raise AssertionError("the limit lies within the tokens")


# --- the loop, with a draft that is wrong at some positions


class Draws:
    """A sampler: every token of the text is drawn once, in order, from the row that is its own."""

    def __init__(self, case: Case, target: FakeTarget) -> None:
        self.case, self.target = case, target
        self.count = 0

    def __call__(self, row: int, index: int) -> int:
        assert index == self.count
        assert self.target._rows[row] == (0, PROMPT - 1 + index)
        self.count += 1
        return self.case.tokens[index]


def run(case: Case) -> tuple[str, int, str, list[str], int | None]:
    """Text, number of tokens, reason, the streamed pieces, and how many tokens were drawn."""

    def rule(position: int) -> int:
        index = position - (PROMPT - 1)
        return case.tokens[index] if index < len(case.tokens) else 1

    def guess(position: int) -> int:
        return -1 if position in case.wrong else rule(position)

    target = FakeTarget(rule)
    drafter = FakeDrafter(guess, proposals=case.proposals) if case.proposals else None
    draws = Draws(case, target) if case.sampled else None
    ending = Ending(
        pieces=Pieces(case.pieces.__getitem__), ends={END}, limit=case.limit, stop=case.stop
    )
    prompt = np.arange(PROMPT, dtype=np.int32)
    loop = Engine(cast(Any, target), cast(Any, drafter))
    sequence = loop.admit(Request(prompt, case.limit, case.proposals, ending, draw=draws))
    pieces = [ending.take()]
    while sequence.finish_reason is None:
        loop.step()
        pieces.append(ending.take())
    assert sequence.tokens == case.tokens[: len(sequence.tokens)]
    assert len(target.cache[0]) == sequence.n_past
    drawn = None if draws is None else draws.count
    return "".join(pieces), len(sequence.tokens), sequence.finish_reason, pieces, drawn


@pytest.mark.parametrize("batch", range(CASES // BATCH))
def test_a_text_ends_where_the_reference_ends_it(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        case = make(random.Random(seed))
        text, count, reason, pieces, drawn = run(case)
        assert (text, count, reason) == expected(case), (seed, case)
        if drawn is not None:
            # what comes after the end of the text inside a block is not even drawn
            assert drawn == count, (seed, case)
        if "\ufffd" not in b"".join(case.pieces[token] for token in case.tokens).decode(
            "utf-8", "replace"
        ):
            # whole characters were split over tokens: only the end may leave half a one
            assert "\ufffd" not in "".join(pieces).removesuffix("\ufffd"), (seed, case)
            assert not any("\ufffd" in piece for piece in pieces[:-1]), (seed, case)


@pytest.mark.parametrize(
    ("wanted", "least"),
    [
        (lambda case, found: found[2] == "length", 1000),
        (lambda case, found: found[2] == "stop" and END in case.tokens[: found[1]], 500),
        (lambda case, found: found[2] == "stop" and END not in case.tokens[: found[1]], 1000),
        (lambda case, found: found[1] > 8 and case.proposals > 3 and case.sampled, 500),
        # a stop text in a block whose later tokens would have reached the limit
        (
            lambda case, found: (
                found[2] == "stop" and found[1] < case.limit <= found[1] + case.proposals
            ),
            300,
        ),
    ],
    ids=["length", "end-token", "stop-text", "long-sampled", "stop-before-limit"],
)
def test_the_cases_reach_what_they_are_for(
    wanted: Callable[[Case, tuple[str, int, str]], bool], least: int
) -> None:
    cases = [make(random.Random(seed)) for seed in range(CASES)]
    assert sum(wanted(case, expected(case)) for case in cases) >= least
