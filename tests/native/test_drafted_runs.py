"""Drafted rounds that go several at once: the tokens, widths and records of rounds one by one."""

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llamaspec import Session, demo
from llamaspec.draft.block import BlockDrafter
from llamaspec.errors import DecodeError
from llamaspec.loading import Pair, load_pair
from llamaspec.options import GenerateSettings, Head, LoadOptions
from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.batch import ALL_OUTPUT, Batch
from llamaspec.runtime.rounds import MOST_ROUNDS, Drafted, Rounds, Run, Start, width_by
from llamaspec.runtime.rule import Rule
from llamaspec.schedule.calibration import Calibration
from llamaspec.schedule.cost import CostCurve, Surface
from llamaspec.schedule.pace import Offer, Pace
from llamaspec.schedule.prices import Prices
from llamaspec.schedule.scaling import Scaling
from llamaspec.session import load
from llamaspec.text.prompt import Prompt
from tests.decoding import one_by_one

pytestmark = pytest.mark.native

MESSAGES: Prompt = [{"role": "user", "content": "Write a function that adds two numbers."}]
OPTIONS = LoadOptions(threads=1, context=256)
BLOCK = 7
HEADS: list[Head] = ["native", "graph"]


@pytest.fixture(scope="module", params=HEADS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    options = replace(OPTIONS, head=request.param)
    loaded = load_pair(demo.target_path(), demo.draft_path(), options)
    yield loaded
    loaded.close()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rounds every run had."""
    found, run = list[int](), Rounds.run

    def counting(self: Rounds, start: Start, waiting: FloatArray | None) -> Run:
        done = run(self, start, waiting)
        found.append(len(done.rounds))
        return done

    monkeypatch.setattr(Rounds, "run", counting)
    return found


@pytest.mark.parametrize("limit", [1, 2, 3, 8, 9, 10, 30, 200])
@pytest.mark.parametrize("stop", [(), ("two",), ("return", "x")])
@pytest.mark.parametrize("block", [1, 3, BLOCK])
def test_a_text_of_runs_is_the_streams(
    pair: Pair, counted: list[int], limit: int, stop: tuple[str, ...], block: int
) -> None:
    session = Session(pair)
    settings: GenerateSettings = {"max_tokens": limit, "stop": stop, "draft_max": block}
    settings["cache_prompt"] = False
    done = session.generate(MESSAGES, **settings)
    assert sum(counted) >= len(done.rounds) - 1
    seen = len(counted)
    other = one_by_one(session, MESSAGES, **settings)
    assert len(counted) == seen, "a stream's rounds go one by one"
    assert (done.text, done.token_ids, done.rounds) == (other.text, other.token_ids, other.rounds)
    assert done.finish_reason == other.finish_reason
    # the caches are left alike: the next turn starts from as many positions, and proposes the same
    text = [*session.tokenize(MESSAGES).tolist(), *done.token_ids, 300]
    after_stream = session.generate(text, max_tokens=20, draft_max=block)
    session.generate(MESSAGES, **settings)
    after_run = session.generate(text, max_tokens=20, draft_max=block)
    assert after_run.rounds == after_stream.rounds
    assert after_run.stats.cached_tokens == after_stream.stats.cached_tokens


@pytest.mark.parametrize(
    "draft", ["tiny-dflash-f32.gguf", "tiny-dspark-speculators-f32.gguf", "tiny-dspark-bf16.gguf"]
)
@pytest.mark.parametrize("head", ["auto", "graph"])
def test_every_layout_of_blocks(ggufs: Path, counted: list[int], draft: str, head: Head) -> None:
    options = replace(OPTIONS, head=head)
    with load(ggufs / "tiny-target-f32.gguf", ggufs / draft, options=options) as session:
        settings: GenerateSettings = {"max_tokens": 80, "draft_max": session.draft_limit}
        settings["cache_prompt"] = False
        done = session.generate(MESSAGES, **settings)
        assert max(counted) > 1
        assert done.rounds == one_by_one(session, MESSAGES, **settings).rounds


def begin(pair: Pair, token: int, most: int) -> Start:
    """From an anchor at the beginning, whose features nothing precedes."""
    pair.context.truncate(0, 0)
    assert pair.drafter is not None
    pair.drafter.keep(0, 0)
    pair.context.publish(True)
    return Start(
        seq=0,
        anchor=token,
        position=0,
        left=1000,
        width=BLOCK,
        most=most,
        ends=[],
        seconds=60.0,
        rule=None,
    )


def ids_of(rounds: list[Drafted]) -> list[int]:
    return [token for r in rounds for token in [*r.ids[: r.accepted], r.bonus]]


def test_a_run_ends_at_an_end_at_the_most_and_in_time(pair: Pair) -> None:
    drafter, target = pair.drafter, pair.context
    assert isinstance(drafter, BlockDrafter)
    rounds = drafter.run(target, begin(pair, 300, 5))
    ids = ids_of(rounds)
    assert len(rounds) == 5
    assert target.length(0) == drafter.known(0) == len(ids)
    # what the target alone chooses
    batch, plain = Batch.create(1), list[int]()
    target.truncate(0, 0)
    batch.add_tokens([300], start=0, seq=0, output=ALL_OUTPUT)
    while len(plain) < len(ids):
        plain += target.decode_run(batch, len(ids) - len(plain), [], 60.0)[0]
        batch.clear()
        batch.add_tokens(plain[-1:], start=len(plain), seq=0, output=ALL_OUTPUT)
    assert ids == plain
    end = ids[len(ids) // 2]
    stopped = drafter.run(target, replace(begin(pair, 300, 5), ends=[-1, end]))
    assert end in ids_of(stopped)[-BLOCK - 1 :]
    assert end not in ids_of(stopped[:-1])
    assert stopped == rounds[: len(stopped)] or _alike(stopped, rounds)
    timed = drafter.run(target, replace(begin(pair, 300, 5), seconds=0.0))
    assert len(timed) == 1
    short = drafter.run(target, replace(begin(pair, 300, 5), left=4))
    assert ids_of(short) == ids[: len(ids_of(short))]
    assert 3 <= len(ids_of(short)) <= 4
    assert len(drafter.run(target, begin(pair, 300, 1000))) == MOST_ROUNDS


def test_blocks_of_a_run_are_as_wide_as_the_ones_before_say(pair: Pair) -> None:
    drafter, target = pair.drafter, pair.context
    assert isinstance(drafter, BlockDrafter)
    seen = set()
    session, texts = Session(pair), list[list[int]]()
    for first, usual, whole in ((3, 2, BLOCK), (BLOCK, 1, 4), (2, 2, 2)):
        usually = begin(pair, 0, MOST_ROUNDS)
        done = session.generate(MESSAGES, max_tokens=1, draft_max=1, cache_prompt=False)
        target.publish(True)
        start = replace(usually, anchor=done.token_ids[0], position=target.length(0))
        rounds = drafter.run(target, replace(start, width=first, usual=usual, whole=whole))
        expected = first
        for r in rounds:
            assert len(r.ids) == r.verified == expected
            assert r.confidence is None or len(r.confidence) == expected
            seen.add((r.accepted == expected, expected == whole))
            expected = whole if r.accepted == len(r.ids) else usual
        texts.append(ids_of(rounds))
    assert len(seen) == 4
    assert all(a == b for text in texts[1:] for a, b in zip(texts[0], text, strict=False))


def _alike(some: list[Drafted], others: list[Drafted]) -> bool:
    """The same but for what they took."""
    return all(a[:5] == b[:5] for a, b in zip(some, others, strict=False))


def test_a_run_that_runs_out_of_room_gives_what_it_has(pair: Pair) -> None:
    drafter, target = pair.drafter, pair.context
    assert isinstance(drafter, BlockDrafter)
    n_ctx, done = target.shape.n_ctx, list[Drafted]()
    start = begin(pair, 300, MOST_ROUNDS)
    for _ in range(n_ctx):
        try:
            done += drafter.run(target, start)
        except DecodeError:
            break
        ids = ids_of(done)
        assert target.length(0) == drafter.known(0) == len(ids)
        start = replace(start, anchor=ids[-1], position=len(ids))
    held = len(ids_of(done))
    assert n_ctx - BLOCK - 1 <= held < n_ctx
    # what failed left nothing behind, and a narrower round still has room
    assert target.length(0) == held
    narrow = drafter.run(target, replace(start, width=1, most=1))
    assert target.length(0) == held + len(ids_of(narrow))


# --- the rule


def taught(dice: random.Random, scaling: Scaling | None) -> Calibration:
    """A calibration after rounds of a draft that is as good as its confidences say, or not."""
    found, honest = Calibration(BLOCK, scaling), dice.random() < 0.7
    for _ in range(dice.randrange(60)):
        confidence = [dice.random() ** 0.3 for _ in range(BLOCK)]
        accepted = 0
        while accepted < BLOCK and dice.random() < (confidence[accepted] if honest else 0.5):
            accepted += 1
        found.learn(confidence, accepted, BLOCK)
    return found


def scaled(dice: random.Random) -> Scaling | None:
    if dice.random() < 0.4:
        return None
    n = dice.randint(1, BLOCK + 1)
    levels = []
    for _ in range(n):
        places = dice.choice([0, 1, 2, 5])
        xs, ys = (sorted(dice.random() for _ in range(places)) for _ in range(2))
        levels.append(tuple(zip(xs, ys, strict=True)))
    temperatures = tuple(math.exp(dice.gauss(0, 0.7)) for _ in range(n))
    return Scaling(temperatures, tuple(levels) if dice.random() < 0.7 else ())


@pytest.mark.parametrize("seed", range(200))
def test_native_code_chooses_the_widths_of_the_pace(seed: int) -> None:
    dice = random.Random(seed)
    stairs = np.cumsum([1.0, *[dice.random() ** 2 * 0.6 for _ in range(BLOCK)]])
    verify = Surface((0,), tuple(range(1, BLOCK + 2)), (tuple(stairs.tolist()),))
    curve = CostCurve(verify, Surface((0,), (1, BLOCK), ((0.1, 0.3),)))
    prices = Prices(curve, rows=BLOCK + 1, width=BLOCK, pinned=True)
    pace = Pace(prices, taught(dice, scaled(dice)))
    pace.rate *= 0.5 + dice.random()
    kinds = set()
    for _ in range(20):
        confidence = [dice.choice([dice.random() ** 0.2, 0.0, 1.0, 0.5]) for _ in range(BLOCK)]
        confidence = np.array(confidence, np.float32).tolist()
        if dice.random() < 0.1:
            confidence[dice.randrange(BLOCK)] = math.nan
        limit = dice.randint(1, BLOCK)
        gait = pace.begin()
        gait.drafted = BLOCK
        rule = pace.rule(gait, 0)
        expected = pace.width(gait, Offer(confidence, limit, 0))
        width, worth = width_by(rule, confidence, limit)
        assert width == expected
        chances = pace.calibration.probabilities(confidence, limit)
        assert worth == pytest.approx(pace._worth(chances, 0, stop=False), abs=1e-9)
        kinds.add(expected)
    assert kinds


def test_rules_differ() -> None:
    widths = set()
    for rate in (0.0, 0.5, 1.9, 3.0):
        prices = [0.0, *[1.0 + 0.3 * n for n in range(BLOCK + 1)]]
        rule = Rule(rate, prices, rates=[0.6] * BLOCK)
        widths.add(width_by(rule, None, BLOCK)[0])
    assert widths == {0, 1, 3, BLOCK}
