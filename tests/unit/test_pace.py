"""Choosing widths: against simulated drafts of every quality, on staircases of every shape."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import pytest

from llamaspec.schedule.calibration import Calibration
from llamaspec.schedule.cost import CostCurve, Surface
from llamaspec.schedule.pace import Offer, Pace
from llamaspec.schedule.prices import Prices
from llamaspec.schedule.scaling import Scaling

WIDTH = 7
STAIRS = {
    "flat": (1.0, 1.02, 1.04, 1.06, 1.08, 1.1, 1.12, 1.14),
    "gentle": (1.0, 1.4, 1.5, 1.6, 1.65, 1.7, 1.8, 1.9),
    "steep": (1.0, 1.9, 2.8, 3.7, 4.6, 5.5, 6.4, 7.3),
    "stair": (1.0, 1.1, 1.1, 1.1, 2.1, 2.1, 2.1, 2.1),
}


def curve(stairs: Sequence[float], draft: float, *, narrow: float | None = None) -> CostCurve:
    """narrow: what a block of one proposal costs, those between in proportion; None for `draft`."""
    sizes = tuple(range(1, len(stairs) + 1))
    verify = Surface((0,), sizes, (tuple(stairs),))
    least = draft if narrow is None else narrow
    return CostCurve(verify, Surface((0,), (1, WIDTH), ((least, draft),)))


def pace(stairs: Sequence[float], draft: float, *, narrow: float | None = None) -> Pace:
    found = curve(stairs, draft, narrow=narrow)
    return Pace(Prices(found, rows=WIDTH + 1, width=WIDTH, pinned=True), Calibration(WIDTH))


@dataclass
class Draft:
    """Proposals that are accepted with the probabilities they state, distorted by `heat`."""

    quality: float
    heat: float
    confident: bool = True

    def block(self, dice: random.Random) -> tuple[tuple[float, ...] | None, int]:
        """Confidences, and how many proposals the target would accept."""
        true = [min(0.999, max(0.001, dice.gauss(self.quality, 0.15))) for _ in range(WIDTH)]
        accepted = 0
        while accepted < WIDTH and dice.random() < true[accepted]:
            accepted += 1
        stated = tuple(p**self.heat / (p**self.heat + (1 - p) ** self.heat) for p in true)
        return (stated if self.confident else None), accepted


def run(chooser: Pace, draft: Draft, *, tokens: int, seed: int = 0) -> tuple[float, list[int]]:
    """Tokens a second, and the width of every round, -1 where nothing was drafted."""
    dice, seconds, done, widths = random.Random(seed), 0.0, 0, []
    while done < tokens:
        gait, left = chooser.begin(), 96
        while left > 0:
            drafted = chooser.drafts(gait)
            width = accepted = block = 0
            if drafted:
                block = chooser.block(gait, 0)
                confidence, would = draft.block(dice)
                confidence = confidence and confidence[:block]
                width = chooser.width(gait, Offer(confidence, min(block, left - 1), 0))
                accepted = min(would, width)
                chooser.calibration.learn(confidence, accepted, width)
                seconds += chooser.prices.draft(block, 0)
            seconds += chooser.prices.verify(width + 1, 0) if block else chooser.prices.plain(0)
            chooser.learn(gait, accepted + 1, width, drafted=block, depth=0)
            widths.append(width if drafted else -1)
            left -= accepted + 1
            done += accepted + 1
        chooser.end(gait)
    return done / seconds, widths


@cache
def would_accept(quality: float) -> list[int]:
    """Of 3000 blocks, how many proposals the target would accept."""
    dice, draft = random.Random(1), Draft(quality, heat=2.0)
    return [draft.block(dice)[1] for _ in range(3000)]


def fixed(chooser: Pace, quality: float, width: int) -> float:
    """Tokens a second of blocks of a width that never changes."""
    blocks, prices = would_accept(quality), chooser.prices
    tokens = sum(min(accepted, width) + 1 for accepted in blocks)
    spent = prices.verify(width + 1, 0) + prices.draft(width, 0) if width else prices.plain(0)
    return tokens / (len(blocks) * spent)


@pytest.mark.parametrize("confident", [True, False])
@pytest.mark.parametrize("quality", [0.02, 0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("narrow", [0.3, 0.1, 0.02], ids=lambda price: f"narrow-{price}")
@pytest.mark.parametrize("stairs", STAIRS.values(), ids=STAIRS)
def test_no_fixed_width_is_better_and_plain_decoding_is_not(
    stairs: Sequence[float], narrow: float, quality: float, confident: bool
) -> None:
    draft = Draft(quality, heat=2.0, confident=confident)
    chooser = pace(stairs, 0.3, narrow=narrow)
    found, _ = run(chooser, draft, tokens=6000)
    best = max(fixed(chooser, quality, width) for width in range(WIDTH + 1))
    assert found > 0.92 * best
    assert found > 0.98 / stairs[0]


def test_blocks_are_as_wide_as_pays() -> None:
    for quality, narrow in ((0.95, False), (0.35, True)):
        chooser = pace(STAIRS["gentle"], 0.7, narrow=0.1)
        run(chooser, Draft(quality, heat=1.0), tokens=2000)
        gait, blocks, dice = chooser.begin(), [], random.Random(2)
        for _ in range(200):
            block = chooser.block(gait, 0)
            blocks.append(block)
            confidence, _ = Draft(quality, heat=1.0).block(dice)
            chooser.width(gait, Offer(confidence and confidence[:block], block, 0))
        usual = sum(blocks) / len(blocks)
        assert (usual < 3.5) if narrow else (usual > 5), (quality, usual)


@pytest.mark.parametrize("deep", [True, False])
def test_a_block_that_was_accepted_to_its_end_is_followed_by_a_whole_one(deep: bool) -> None:
    chooser = pace(STAIRS["gentle"], 0.7, narrow=0.1)
    gait = chooser.begin()
    gait.narrow, gait.reach = 0, [0.0] + [1.0] * WIDTH
    assert chooser.usual(gait, 0) == 1
    # what the last whole block had at its end
    gait.drafted = WIDTH
    chooser.width(gait, Offer([0.99] * WIDTH if deep else [0.99] + [0.01] * 6, WIDTH, 0))
    assert gait.deep is deep
    followed = []
    for _ in range(6):
        block = chooser.block(gait, 0)
        chooser.learn(gait, block + 1, block, drafted=block, depth=0)
        followed.append(gait.whole)
        chooser.learn(gait, 1, block, drafted=block, depth=0)
        assert not gait.whole
        gait.wait, gait.gain = None, 0.5
    assert followed == ([True] * 6 if deep else [False, False, True] * 2)
    assert chooser.widths(gait, 0)[2] == (WIDTH if deep else chooser.usual(gait, 0))


def test_a_useless_draft_is_asked_seldom() -> None:
    _, widths = run(pace(STAIRS["gentle"], 0.5), Draft(0.02, heat=1.0), tokens=4000)
    assert sum(width >= 0 for width in widths) < 0.04 * len(widths)


def test_a_draft_that_gets_better_is_noticed() -> None:
    plain = []
    # few of the texts before asked for a draft, and how many lie before the next one is chance
    for more in range(10):
        chooser = pace(STAIRS["gentle"], 0.3)
        run(chooser, Draft(0.02, heat=1.0), tokens=2000 + 96 * more)
        rate, widths = run(chooser, Draft(0.95, heat=1.0), tokens=2000)
        assert rate > 1.5
        plain.append(sum(width < 0 for width in widths) / len(widths))
    assert sum(plain) / len(plain) < 0.25
    assert max(plain) < 0.6


def test_confidences_that_claim_too_little_are_seen_through() -> None:
    chooser = pace(STAIRS["flat"], 0.1)
    run(chooser, Draft(0.9, heat=-0.5), tokens=3000)
    rate, _ = run(chooser, Draft(0.9, heat=-0.5), tokens=3000, seed=1)
    assert rate > 3


@pytest.mark.parametrize("heat", [0.5, 1.0, 2.5])
def test_calibration_learns_how_sure_confidences_are(heat: float) -> None:
    draft, dice, calibration = Draft(0.7, heat), random.Random(0), Calibration(WIDTH)
    for _ in range(4000):
        confidence, accepted = draft.block(dice)
        calibration.learn(confidence, accepted, WIDTH)
    for true in (0.55, 0.7, 0.85):
        stated = true**heat / (true**heat + (1 - true) ** heat)
        (found,) = calibration.probabilities((stated,), 1)
        assert found == pytest.approx(true, abs=0.1)


def test_sampled_proposals_are_cut_without_looking_at_what_the_cut_admits() -> None:
    seen, rises = set(), 0
    dice = random.Random(0)
    for _ in range(700):
        chooser = pace(dice.choice(list(STAIRS.values())), 0.2)
        start = [dice.random() for _ in range(WIDTH)]
        at = dice.randrange(WIDTH)
        other = [*start[: at + 1], *(dice.random() for _ in range(WIDTH - at - 1))]
        found = []
        for confidence in (start, other):
            chosen = chooser.width(chooser.begin(), Offer(confidence, WIDTH, 0, sampled=True))
            found.append(chosen)
        # whether position at + 1 is admitted depends on confidences up to its own
        assert (found[0] > at) == (found[1] > at)
        seen.add(found[0])
        free = chooser.width(chooser.begin(), Offer(start, WIDTH, 0))
        rises += free > found[0]
    assert len(seen) > 3
    assert rises > 0


def test_the_same_rounds_give_the_same_choices() -> None:
    draft = Draft(0.6, heat=1.5)
    first = run(pace(STAIRS["gentle"], 0.3), draft, tokens=3000)
    assert first == run(pace(STAIRS["gentle"], 0.3), draft, tokens=3000)


@pytest.mark.parametrize("pinned", [False, True])
def test_prices_follow_what_passes_take_unless_they_are_pinned(pinned: bool) -> None:
    prices = Prices(curve(STAIRS["gentle"], 0.3), rows=8, width=WIDTH, pinned=pinned)
    gentle = STAIRS["gentle"]

    def found() -> list[float]:
        return [prices.plain(300), prices.verify(3, 300), prices.draft(3, 300)]

    start = [gentle[0], gentle[2], 0.3]
    assert found() == start
    # a machine that slows down slows all of it, as far as one kind of pass can tell
    for _ in range(400):
        prices.observe(4, 300, 1.3 * gentle[3])
    single, several, draft = found()
    if pinned:
        assert [single, several, draft] == start
    else:
        assert several == pytest.approx(1.3 * gentle[2], rel=0.02)
        assert single / gentle[0] == pytest.approx(draft / 0.3)
        assert 1.1 < single / gentle[0] < 1.3
    # and each kind has its own part, once it is seen
    for _ in range(2000):
        prices.observe(4, 300, 1.3 * gentle[3])
        prices.observe_plain(300, 0.9 * gentle[0])
        prices.observe_draft(2, 300, 0.4)
        prices.observe_besides(0.07, drafted=True)
    now = start if pinned else [0.9 * gentle[0], 1.3 * gentle[2], 0.4]
    assert found() == pytest.approx(now, rel=0.03)
    assert prices.besides(drafted=True) == pytest.approx(0.0 if pinned else 0.07, rel=0.02)
    assert prices.besides(drafted=False) == 0


def test_passes_that_were_timed_together_count_as_often() -> None:
    one, many = (Prices(curve(STAIRS["gentle"], 0.3), rows=8, width=WIDTH) for _ in range(2))
    for _ in range(10):
        one.observe_plain(0, 1.2)
    many.observe_plain(0, 1.2, times=10)
    assert many.plain(0) == pytest.approx(one.plain(0), rel=0.01)


def test_one_pass_that_was_held_up_hardly_moves_a_price() -> None:
    prices = Prices(curve(STAIRS["gentle"], 0.3), rows=8, width=WIDTH)
    before = prices.verify(1, 0)
    prices.observe(1, 0, 1000.0)
    assert prices.verify(1, 0) < 1.02 * before


def test_confidences_that_are_not_numbers_are_the_least_there_are() -> None:
    calibration = Calibration(WIDTH)
    (broken, least) = calibration.probabilities((math.nan, 0.0), 2)
    assert broken == least < 0.01
    for accepted in (0, 1):
        calibration.learn((math.nan, 0.9), accepted, 2)
    (low, high) = calibration.probabilities((0.5, 0.9), 2)
    assert 0.3 < low < high < 1


def test_low_confidences_can_be_right_where_high_ones_claim_too_much() -> None:
    dice, calibration = random.Random(3), Calibration(1)
    true = {0.1: 0.1, 0.3: 0.3, 0.6: 0.4, 0.8: 0.45, 0.95: 0.7, 0.999: 0.97}
    for _ in range(6000):
        c = dice.choice(list(true))
        calibration.learn((c,), int(dice.random() < true[c]), 1)
    found = calibration.probabilities(tuple(true), len(true))
    assert found == pytest.approx(list(true.values()), abs=0.1)
    assert found == sorted(found)


def test_a_calibration_starts_from_a_scaling_and_learns_slowly() -> None:
    scaling = Scaling((2.0, 2.0), (((0.0, 0.0), (1.0, 0.5)), ()))
    given, quick = Calibration(2, scaling), Calibration(2)
    first = 0.5 * (0.9**0.5 / (0.9**0.5 + 0.1**0.5))
    found = given.probabilities((0.9, 0.5), 2)
    assert found == pytest.approx([first, 0.5])
    for _ in range(20):
        given.learn((0.9, 0.5), 0, 2)
        quick.learn((0.9, 0.5), 0, 2)
    assert 0.75 * first < given.probabilities((0.9,), 1)[0] < 0.95 * first
    assert quick.probabilities((0.9,), 1)[0] < 0.6
    assert given.probabilities((math.nan, 0.5), 2)[0] < 0.01


def test_confidences_without_rates_are_learnt_however_many_there_are() -> None:
    calibration = Calibration(0)
    for _ in range(50):
        calibration.learn((0.9,) * 12, 0, 12)
    assert calibration.taught
    assert len(found := calibration.probabilities((0.9,) * 12, 12)) == 12
    assert max(found) < 0.3


@pytest.mark.parametrize("rate", [0.3, 0.9])
def test_confidences_that_mean_nothing_give_way_to_rates(rate: float) -> None:
    dice, calibration = random.Random(4), Calibration(WIDTH)
    said: tuple[float, ...] = ()
    for _ in range(300):
        said = tuple(1 / (1 + math.exp(-dice.gauss(0, 2))) for _ in range(WIDTH))
        accepted = next((i for i in range(WIDTH) if dice.random() >= rate), WIDTH)
        calibration.learn(said, accepted, WIDTH)
    assert not calibration.confident
    found = calibration.probabilities(said, WIDTH)
    # positions beyond are hardly reached
    assert found[:3] == pytest.approx([rate] * 3, abs=0.1)
    assert found == calibration.probabilities(None, WIDTH)


def test_a_position_that_was_hardly_seen_is_taken_to_be_like_the_one_before() -> None:
    calibration = Calibration(WIDTH)
    for turn in range(200):
        calibration.learn(None, 2 if turn % 10 else 1, 2)
    first, second, *beyond = calibration.probabilities(None, WIDTH)
    assert first > 0.97
    assert second == pytest.approx(0.9, abs=0.05)
    assert beyond == pytest.approx([second] * len(beyond))
