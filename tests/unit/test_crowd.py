"""Choosing widths for several texts at once: against simulated drafts of every quality, on passes
of every shape of cost.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from statistics import fmean, harmonic_mean
from typing import Literal

import pytest

from llamaspec.schedule.calibration import Calibration
from llamaspec.schedule.cost import CostCurve, Surface
from llamaspec.schedule.crowd import Crowd
from llamaspec.schedule.crowd_prices import CrowdCurve, CrowdPrices
from llamaspec.schedule.member import Member
from llamaspec.schedule.pace import Offer
from llamaspec.schedule.prices import Besides

WIDTH = 7
RAGGED = 1.15
READY = 0.04
"""Of a plain pass, what a round pays for features of texts that may be drafted for."""
BASE, EACH = 0.1, 0.01
COSTS: dict[str, Callable[[float], float]] = {
    "flat": lambda rows: 1 + 0.002 * rows,
    "linear": lambda rows: 0.5 + 0.1 * rows,
    "steep": lambda rows: 1 + 0.02 * min(rows, 8) + 0.2 * max(0.0, rows - 8),
}
# of every second text, and of the others: how likely a proposal is right
DRAFTS = {"good": (0.85, 0.85), "mixed": (0.9, 0.1), "fair": (0.6, 0.6), "useless": (0.05, 0.05)}
Lie = Literal["none", "high", "low", "random"]


def prices(cost: str, texts: int, *, pinned: bool = True) -> CrowdPrices:
    """Prices as they would be measured, of all these texts, of half and of a quarter of them."""
    seconds = COSTS[cost]
    counts = sorted({n for n in (texts // 4, texts // 2, texts) if n > 1})

    def passes(n: int) -> Surface:
        sizes = tuple(n * (1 + width) for width in range(WIDTH + 1))
        return Surface((0,), sizes, (tuple(map(seconds, sizes)),))

    def blocks(n: int) -> Surface:
        widths = tuple(range(1, WIDTH + 1))
        return Surface((0,), widths, (tuple(BASE + EACH * n * w for w in widths),))

    many = CrowdCurve(
        tuple((n, passes(n)) for n in counts), tuple((n, blocks(n)) for n in counts), None, RAGGED
    )
    alone = CostCurve(passes(1), blocks(1))
    return CrowdPrices(alone, many if counts else None, WIDTH, pinned=pinned)


def crowd(cost: str, texts: int) -> Crowd:
    return Crowd(prices(cost, texts), Calibration(WIDTH), Calibration(0), rows=texts * (WIDTH + 1))


@dataclass
class Draft:
    """Proposals that are accepted with a probability of their own, and what is said of it."""

    quality: float
    lie: Lie = "none"

    def block(self, dice: random.Random) -> tuple[tuple[float, ...], int]:
        """Confidences, and how many proposals the target would accept."""
        true = [min(0.999, max(0.001, dice.gauss(self.quality, 0.15))) for _ in range(WIDTH)]
        accepted = 0
        while accepted < WIDTH and dice.random() < true[accepted]:
            accepted += 1
        shift = {"none": 0.0, "high": 2.5, "low": -2.5, "random": 0.0}[self.lie]
        if self.lie == "random":
            return tuple(dice.random() for _ in true), accepted
        return tuple(1 / (1 + (1 - p) / p * math.exp(-shift)) for p in true), accepted


@dataclass
class Text:
    """One under way. left: tokens. spared: its features are not kept, nothing can be drafted."""

    member: Member
    draft: Draft
    left: int
    spared: bool


@dataclass
class Served:
    """What a simulation gave: tokens a second of all; the share of rounds with a draft; how often
    each width was verified, of all texts' rounds.
    """

    rate: float
    drafted: float
    widths: list[float]


def serve(
    cost: str,
    texts: int,
    drafts: str,
    *,
    lie: Lie = "none",
    tokens: int,
    chooser: Crowd | None = None,
) -> Served:
    """Decode texts of 150 tokens, always so many at once, as the crowd chooses."""
    chooser = chooser or crowd(cost, texts)
    dice, begun = random.Random(0), 0

    def new() -> Text:
        nonlocal begun
        begun += 1
        left = dice.randrange(20, 150) if begun <= texts else 150
        spared = texts > 1 and chooser.spares(texts)
        return Text(chooser.begin(), Draft(DRAFTS[drafts][begun % 2], lie), left, spared)

    slots = [new() for _ in range(texts)]
    done = rounds = drafted = 0
    seconds, widths = 0.0, [0] * (WIDTH + 1)
    while done < tokens:
        members = [slot.member for slot in slots]
        for slot in slots:
            slot.spared |= slot.member.given_up
        limits = [0 if slot.spared else min(WIDTH, slot.left - 1) for slot in slots]
        blocks = chooser.plan(members, limits, 0)
        outcomes = [slot.draft.block(dice) for slot in slots]
        offers = [
            Offer(confidence[:block], block, 0) if block else None
            for (confidence, _), block in zip(outcomes, blocks, strict=True)
        ]
        chosen = chooser.widths(offers) if any(blocks) else [0] * texts
        rounds, drafted = rounds + 1, drafted + any(blocks)
        seconds += spent(chooser.prices, cost, blocks, chosen)
        ready = sum(not slot.spared for slot in slots) / texts
        seconds += ready * readiness(cost, texts)
        for i, slot in enumerate(slots):
            width = chosen[i]
            accepted = min(outcomes[i][1], width)
            chooser.calibration.learn(outcomes[i][0], accepted, width)
            chooser.learn(slot.member, accepted, accepted + 1)
            slot.left -= accepted + 1
            done += accepted + 1
            widths[width] += 1
            if slot.left <= 0:
                slots[i] = new()
    return Served(done / seconds, drafted / rounds, [n / rounds / texts for n in widths])


def spent(known: CrowdPrices, cost: str, blocks: list[int], chosen: list[int]) -> float:
    """Seconds of a round."""
    drafting = known.draft(sum(block > 0 for block in blocks), sum(blocks), 0)
    ragged = 1.0 if len({*chosen}) == 1 else RAGGED
    return drafting + ragged * COSTS[cost](len(chosen) + sum(chosen))


@cache
def accepted(quality: float) -> tuple[int, ...]:
    """Of 4000 blocks, how many proposals the target would accept."""
    dice = random.Random(1)
    return tuple(Draft(quality).block(dice)[1] for _ in range(4000))


def fixed(cost: str, texts: int, drafts: str, width: int) -> float:
    """Tokens a second where all texts verify blocks of one width; of 0 nothing is drafted."""
    both = [accepted(quality) for quality in DRAFTS[drafts]]
    # texts are equally long, so that worse ones have more rounds
    tokens = harmonic_mean([fmean(1 + min(n, width) for n in blocks) for blocks in both])
    same = [width] * texts
    seconds = spent(prices(cost, texts), cost, same, same)
    return texts * tokens / (seconds + (readiness(cost, texts) if width else 0.0))


def readiness(cost: str, texts: int) -> float:
    """Seconds of a round that features cost; a text that is alone has them in any case."""
    return READY * COSTS[cost](texts) if texts > 1 else 0.0


@pytest.mark.parametrize("texts", [1, 4, 8, 32])
@pytest.mark.parametrize("drafts", DRAFTS)
@pytest.mark.parametrize("cost", COSTS)
def test_no_static_choice_is_better_and_plain_decoding_is_not(
    cost: str, drafts: str, texts: int
) -> None:
    found = serve(cost, texts, drafts, tokens=max(8000, min(2500 * texts, 30_000)))
    static = [fixed(cost, texts, drafts, width) for width in range(WIDTH + 1)]
    assert found.rate > 0.97 * max(static), (found, static)
    assert found.rate > 0.97 * static[0]


@pytest.mark.parametrize("lie", ["high", "low", "random"])
@pytest.mark.parametrize("drafts", ["good", "fair", "useless"])
@pytest.mark.parametrize("cost", ["flat", "linear"])
def test_confidences_that_are_wrong_are_seen_through(cost: str, drafts: str, lie: Lie) -> None:
    chooser = crowd(cost, 8)
    serve(cost, 8, drafts, lie=lie, tokens=6000, chooser=chooser)
    found = serve(cost, 8, drafts, lie=lie, tokens=12_000, chooser=chooser)
    static = [fixed(cost, 8, drafts, width) for width in range(WIDTH + 1)]
    assert found.rate > 0.97 * max(static), (found, static)


def test_good_and_useless_texts_side_by_side_are_told_apart() -> None:
    found = serve("flat", 4, "mixed", tokens=12_000)
    best = max(fixed("flat", 4, "mixed", width) for width in range(WIDTH + 1))
    assert found.rate > best
    assert found.widths[0] > 0.15


def test_a_useless_draft_is_asked_seldom_and_a_better_one_noticed() -> None:
    chooser = crowd("flat", 8)
    assert serve("flat", 8, "useless", tokens=8000, chooser=chooser).drafted < 0.05
    better = serve("flat", 8, "good", tokens=40_000, chooser=chooser)
    assert better.drafted > 0.5
    assert better.rate > 1.6 * fixed("flat", 8, "good", 0)


def test_the_same_rounds_give_the_same_choices() -> None:
    assert serve("linear", 8, "fair", tokens=6000) == serve("linear", 8, "fair", tokens=6000)


def test_texts_that_are_told_how_much_to_draft_get_it() -> None:
    chooser = crowd("linear", 4)
    for _ in range(30):
        free = [chooser.begin() for _ in range(2)]
        members = [free[0], None, free[1], None]
        blocks = chooser.plan(members, [WIDTH, 3, WIDTH, 0], 0)
        assert (blocks[1], blocks[3]) == (3, 0)
        offers = [Offer((0.9,) * n, n, 0) if n else None for n in blocks]
        widths = chooser.widths(offers)
        assert (widths[1], widths[3]) == (3, 0)
        assert all(n <= block for n, block in zip(widths, blocks, strict=True))
        for member in free:
            chooser.learn(member, 0, 1)


def test_a_pass_holds_no_more_rows_than_there_is_room_for() -> None:
    chooser = Crowd(prices("flat", 4), Calibration(WIDTH), Calibration(0), rows=11)
    for _ in range(20):
        members = [chooser.begin() for _ in range(4)]
        blocks = chooser.plan(members, [WIDTH] * 4, 0)
        widths = chooser.widths([Offer((0.99,) * n, n, 0) if n else None for n in blocks])
        assert sum(widths) + 4 <= 11
        assert sum(widths) > 0


def test_recurrent_targets_get_equal_widths() -> None:
    chooser = crowd("linear", 4)
    chooser.levels = True
    dice = random.Random(3)
    members = [chooser.begin() for _ in range(4)]
    for _ in range(60):
        blocks = chooser.plan(members, [WIDTH] * 4, 0)
        offers = [
            Offer(tuple(dice.random() for _ in range(n)), n, 0) if n else None for n in blocks
        ]
        widths = chooser.widths(offers)
        for member, width in zip(members, widths, strict=True):
            chooser.learn(member, width // 2, width // 2 + 1)
        drafted = {n for n, block in zip(widths, blocks, strict=True) if block}
        assert len({min(n, min(filter(None, blocks), default=0)) for n in drafted}) <= 1


def test_sampled_proposals_are_cut_without_looking_at_what_the_cut_admits() -> None:
    dice, seen, free = random.Random(0), set(), 0
    for _ in range(400):
        cost = dice.choice(list(COSTS))
        start = [[dice.random() ** 0.3 for _ in range(WIDTH)] for _ in range(3)]
        text, at = dice.randrange(3), dice.randrange(WIDTH)
        other = [[*row] for row in start]
        # what is drawn at a position shows in the confidences after it
        other[text][at + 1 :] = [dice.random() for _ in range(WIDTH - at - 1)]
        found = []
        for confidences, sampled in ((start, True), (other, True), (start, False)):
            chooser = crowd(cost, 3)
            members = [chooser.begin() for _ in range(3)]
            for member in members:
                # nothing is worth verifying whole
                member.chosen = [n / 2 for n in range(WIDTH + 1)]
                member.given = member.rows = [0.0] * (WIDTH + 1)
            chooser.plan(members, [WIDTH] * 3, 0)
            blocks = [Offer(tuple(row), WIDTH, 0, sampled=sampled) for row in confidences]
            found.append(chooser.widths(blocks))
        assert (found[0][text] > at) == (found[1][text] > at)
        seen.update(found[0])
        free += found[0] != found[2]
    assert len(seen) > 3
    assert free > 0


@pytest.mark.parametrize("pinned", [False, True])
def test_prices_follow_what_passes_take_unless_they_are_pinned(pinned: bool) -> None:
    known = prices("linear", 8, pinned=pinned)
    start = [known.verify(8, 8, 0), known.verify(32, 8, 0), known.draft(8, 24, 0)]
    assert start == pytest.approx([1.3, 3.7, 0.34])
    assert known.verify(20, 8, 0, even=False) == pytest.approx(RAGGED * 2.5)
    for _ in range(800):
        known.observe(8, 8, 0, 1.3)
        known.observe(32, 8, 0, 1.4 * 3.7)
        known.observe(20, 8, 0, 1.3 * known.verify(20, 8, 0), even=False)
        known.observe_draft(8, 24, 0, 0.5)
        known.observe_besides(0.08, 8, drafted=True)
    now = [known.verify(8, 8, 0), known.verify(32, 8, 0), known.draft(8, 24, 0)]
    assert now == pytest.approx(start if pinned else [1.3, 1.4 * 3.7, 0.5], rel=0.04)
    assert known.ragged == pytest.approx(RAGGED if pinned else 1.3, rel=0.04)
    assert known.besides(8, drafted=True) == pytest.approx(0.0 if pinned else 0.08, rel=0.02)
    assert known.besides(8, drafted=False) == 0
    table = known.verify_all(8, 0)
    assert table[::8] == pytest.approx([known.verify(8 + n, 8, 0) for n in range(0, 57, 8)])


def test_one_pass_that_was_held_up_hardly_moves_a_price() -> None:
    known = prices("linear", 8)
    known.pinned = False
    for _ in range(60):
        known.observe(32, 8, 0, 3.7)
    known.observe(32, 8, 0, 1000.0)
    assert known.verify(32, 8, 0) < 1.03 * 3.7


def test_a_price_that_was_measured_far_too_high_is_soon_set_right() -> None:
    known = prices("linear", 8, pinned=False)
    for _ in range(40):
        known.observe(8, 8, 0, 1.3)
        known.observe(32, 8, 0, 3.7 / 3)
    assert known.verify(32, 8, 0) == pytest.approx(3.7 / 3, rel=0.25)


def test_prices_between_what_was_measured_lie_between() -> None:
    known = prices("linear", 8)
    for texts in (2, 3, 5, 7):
        for width in (0, 1, 4, WIDTH):
            rows = texts * (1 + width)
            assert known.verify(rows, texts, 0) == pytest.approx(COSTS["linear"](rows))


def test_without_prices_of_many_texts_those_of_one_go_on() -> None:
    passes = Surface((0,), (1, 8), ((1.0, 2.4),))
    known = CrowdPrices(
        CostCurve(passes, Surface((0,), (WIDTH,), ((0.5,),))), None, WIDTH, pinned=True
    )
    assert known.verify(32, 4, 0) == pytest.approx(1.0 + 0.2 * 31)
    assert known.draft(4, 4 * WIDTH, 0) == pytest.approx(0.5 * known.verify(32, 4, 0) / 2.4)
    assert known.draft(0, 0, 0) == 0


def test_a_curve_of_many_texts_survives_json() -> None:
    many = prices("steep", 8).many
    assert many is not None
    assert CrowdCurve.of_json(many.as_json()) == many


def test_what_could_never_pay_is_never_tried() -> None:
    """With passes that cost their rows, and a draft as dear as a pass, nothing pays at 8 texts."""
    chooser = crowd("steep", 8)
    assert all(chooser.spares(8) for _ in range(200))
    for _ in range(600):
        members = [chooser.begin() for _ in range(8)]
        assert chooser.plan(members, [WIDTH] * 8, 0) == [0] * 8
        for member in members:
            chooser.learn(member, 0, 1)


def test_texts_are_spared_where_a_draft_promises_little_but_for_some_together() -> None:
    chooser = crowd("linear", 8)
    serve("linear", 8, "useless", tokens=4000, chooser=chooser)
    spared = [chooser.spares(8) for _ in range(400)]
    kept = [i for i, is_spared in enumerate(spared) if not is_spared]
    assert 0 < len(kept) <= 12
    assert any(b == a + 1 for a, b in pairwise(kept))
    good = crowd("flat", 8)
    serve("flat", 8, "good", tokens=4000, chooser=good)
    assert not any(good.spares(8) for _ in range(400))


def test_a_crowd_without_a_draft_spares_nothing() -> None:
    chooser = crowd("flat", 4)
    chooser.prices.curve = replace(chooser.prices.curve, draft=None)
    assert not chooser.spares(4)


def test_what_rounds_take_beside_passes_is_known_after_a_few() -> None:
    found = Besides()
    assert found.at(drafted=True) == 0.0
    for seconds in (0.004, 0.002, 0.002, 0.5, 0.002, 0.002, 0.002, 0.002):
        found.see(seconds, drafted=True)
    assert 0.0015 < found.at(drafted=True) < 0.003
    assert found.at(drafted=False) == 0.0
    for _ in range(400):
        found.see(0.001, drafted=True)
    assert 0.001 <= found.at(drafted=True) < 0.0011
