"""How many proposals to verify, and whether to draft at all: whatever gives most tokens a second,
plain decoding included.

A round earns the tokens it commits and costs its passes. The best long-run rate is reached by
taking, each round, the choice with the largest `tokens - rate * seconds`, where `rate` is the rate
that the choices reach (renewal reward; Dinkelbach's method for a ratio of sums).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from llamaspec.runtime.rule import Rule
from llamaspec.schedule.calibration import Calibration
from llamaspec.schedule.prices import Prices

_FORGET = 0.1
_SMOOTH = 0.1
_TRY, _DOUBT, _HOPE, _SURPRISE, _LENIENT = 0.15, 0.1, 0.5, 0.5, 0.1
_PROBATION, _FRUITLESS = 0.1, 5
_FIRST_WAIT, _LONGEST_WAIT = 8, 256
_MOST_CARRIED = 24
"""The longest wait that a text takes over from the one before."""
_MOST_LET_GO = 7
"""Texts that begin plainly after one in which drafting did not pay."""
_CURIOSITY = 32
_NARROW = 32
"""Rounds with a narrower block before a whole one shows what is beyond it."""
_SHALLOW = 2
"""Narrow blocks, accepted to their ends, that are not followed by a whole one."""
_FEW = 2
"""Rounds in a row in native code while it is in doubt whether drafting pays."""


@dataclass
class Gait:
    """What is known of one text. gain: by how many tokens, at the going rate, a drafted round was
    better than a plain one lately. wait: plain rounds before the next try, None while drafting.
    patience: how many it will be next time. fresh: no try of this text yet. reach [block + 1]: by
    how many a block of so many proposals was better lately than none, its own time left out.
    narrow: rounds since a whole block was drafted. whole: whether the next one is, because the last
    was accepted to its end. deep: whether the last whole block was better than a narrower one;
    missed: how many since were not followed by a whole one because it was not. drafted: proposals
    of the last block. asked: whether the text began with a try, after one that ended without
    drafting. expected: tokens of the last drafted round. promising: whether it was to be better
    than a plain one. fruitless: rounds that were not, and of which nothing was accepted, without
    one in between of which something was. together: its rounds can go several at once.
    """

    reach: list[float]
    gain: float = 0.25
    wait: int | None = None
    patience: int = _FIRST_WAIT
    fresh: bool = True
    narrow: int = _NARROW
    whole: bool = False
    deep: bool = True
    missed: int = 0
    drafted: int = 0
    asked: bool = True
    expected: float = 1.0
    promising: bool = True
    fruitless: int = 0
    together: bool = False

    @property
    def due(self) -> bool:
        """Whether the next round drafts."""
        return not self.wait or self.fresh


class Offer(NamedTuple):
    """A drafted block. limit: how many of its proposals can be verified. depth: positions in the
    KV cache. sampled: its ids are draws, so that how many are verified must not depend on what was
    drawn later. cheap: no pass was computed for it.
    """

    confidence: Sequence[float] | None
    limit: int
    depth: int
    sampled: bool = False
    cheap: bool = False


class Weighed(NamedTuple):
    """What each number of a block's proposals was worth, and how many of them are taken; at a going
    rate, at a depth.
    """

    worth: Sequence[float]
    best: int
    rate: float
    depth: int


@dataclass
class Pace:
    """The choices of a session. Everything follows from prices and outcomes: with pinned prices
    the same rounds give the same choices.
    """

    prices: Prices
    calibration: Calibration
    rate: float = 0.0
    lookup: Calibration = field(default_factory=lambda: Calibration(0))
    _declined: int = field(default=0, repr=False)
    _patience: int = field(default=0, repr=False)
    _let_go: int = field(default=0, repr=False)
    _tokens: float = field(default=1.0, repr=False)
    _seconds: float = field(default=0.0, repr=False)

    def __post_init__(self) -> None:
        # wider is better, until it is known
        self._last = Gait([0.25 + 0.1 * n for n in range(self.prices.width + 1)])
        self._seconds = self.prices.plain(0)
        self.rate = 1 / self._seconds

    def begin(self, *, together: bool = False) -> Gait:
        """A new text: it starts from where the last one ended. Where that was without drafting, it
        drafts as long as that looks well, or, if the one before had only asked, its first round
        tells whether it pays now; ever fewer texts ask as long as it does not.
        """
        last = self._last
        fresh = last.wait is None or self._let_go >= self._patience
        self._let_go = 0 if fresh else self._let_go + 1
        asked = fresh and last.wait is not None
        gain, wait = min(last.gain, _HOPE), last.wait
        if asked and self._patience == 0:
            gain, wait = _PROBATION, None
        patience = min(last.patience, _MOST_CARRIED)
        known = [*last.reach], gain, wait, patience, fresh, last.narrow
        return Gait(*known, deep=last.deep, asked=asked, together=together)

    def end(self, gait: Gait) -> None:
        """A text is over."""
        self._last = gait
        if gait.wait is None:
            self._patience = 0
        elif gait.asked:
            self._patience = min(_MOST_LET_GO, 2 * self._patience + 1)

    def drafts(self, gait: Gait) -> bool:
        """Whether to draft in this round; asked once a round."""
        if gait.due:
            return True
        assert gait.wait is not None
        gait.wait -= 1
        return False

    def idle(self, gait: Gait) -> int:
        """In how many rounds from now on `drafts` will say no, whatever they bring."""
        return 0 if gait.fresh else gait.wait or 0

    def skip(self, gait: Gait, rounds: int, depth: int) -> None:
        """So many of these rounds have gone by."""
        assert gait.wait is not None
        gait.wait -= rounds
        for _ in range(rounds):
            self.learn(gait, 1, 0, drafted=0, depth=depth)

    def block(self, gait: Gait, depth: int) -> int:
        """How many proposals to draft, as a block takes longer the wider it is."""
        return self.widths(gait, depth)[0]

    def usual(self, gait: Gait, depth: int) -> int:
        """How many, where nothing asks for a whole block."""
        rate, prices = self.rate, self.prices.draft_all(depth)
        worth = [n - rate * price for n, price in zip(gait.reach, prices, strict=True)]
        return worth.index(max(worth[1:]), 1)

    def widths(self, gait: Gait, depth: int) -> tuple[int, int, int]:
        """The same for rounds in a row: of the first block, a usual one, and one after a block that
        was accepted to its end.
        """
        usual, most = self.usual(gait, depth), self.prices.width
        gait.drafted = most if gait.whole or gait.narrow >= _NARROW else usual
        return gait.drafted, usual, most if gait.deep else usual

    def ahead(self, gait: Gait, seconds: float) -> int:
        """How many rounds, of a text whose next one drafts, will draft as far as so many seconds
        reach: few while there is a doubt whether drafting pays, a try alone.
        """
        if gait.wait is not None:
            return 1
        rounds = max(1, int(seconds / self._seconds))
        if gait.gain < 0:
            rounds = min(rounds, _FEW)
        return rounds if gait.drafted == self.prices.width else min(rounds, _NARROW - gait.narrow)

    def rule(self, gait: Gait, depth: int) -> Rule:
        """What `width` goes by now, for rounds in native code."""
        least = 0 if gait.wait is None else 1
        prices = self.prices.verify_all(depth)
        return self.calibration.rule(Rule(self.rate, prices, depth=depth, least=least))

    def width(self, gait: Gait, offer: Offer) -> int:
        """How many proposals to verify of what was drafted for one text."""
        depth, limit = offer.depth, offer.limit
        calibration = self.calibration_of(cheap=offer.cheap)
        chances = calibration.probabilities(offer.confidence, limit)
        worth = self._worth(chances, depth, stop=offer.sampled)
        if offer.cheap:
            worth[0] = 1 - self.rate * self.prices.plain(depth)
            return worth.index(max(worth)) or self._curious(limit)
        best = worth.index(max(worth))
        if self._weigh(gait, Weighed(worth, best, self.rate, depth)):
            # a try that verifies nothing would never learn that its confidences are wrong
            best = max(range(min(1, limit), len(worth)), key=worth.__getitem__)
        gait.expected = worth[best] + self.rate * self.prices.verify(best + 1, depth)
        return best

    def took(self, gait: Gait, worth: Sequence[float], verified: int, rule: Rule) -> None:
        """Take in a round in native code, where a rule for this depth has chosen."""
        self._weigh(gait, Weighed(worth, verified, rule.rate, rule.depth))
        gait.expected = worth[verified] + rule.rate * rule.prices[verified + 1]

    def _weigh(self, gait: Gait, found: Weighed) -> bool:
        """Take in what a block was worth; return whether it was a try, and in vain."""
        worth, best, rate, depth = found
        self._reached(gait, worth)
        if len(worth) > self.prices.width:
            self._saw_whole(gait, found)
        drafting = rate * self._drafting(gait, gait.drafted, depth)
        net = worth[best] - drafting - (1 - rate * self.prices.plain(depth))
        gait.promising = net > 0
        gait.gain += (_SMOOTH if gait.wait is None else _TRY) * (net - gait.gain)
        failed = False
        if gait.wait is None:
            self._judge(gait, drafting)
        elif gait.gain > 0 or (gait.fresh and net > 0):
            gait.wait, gait.gain = None, max(gait.gain, 0.0) + 0.1
            gait.patience = max(_FIRST_WAIT, gait.patience // 2)
        elif gait.wait == 0:
            gait.patience = _FIRST_WAIT if net > 0 else min(_LONGEST_WAIT, 2 * gait.patience)
            gait.wait, failed = gait.patience, True
        gait.fresh = False
        return failed

    def _saw_whole(self, gait: Gait, found: Weighed) -> None:
        """Take in whether a whole block was better than one of the usual width."""
        usual, prices = self.usual(gait, found.depth), self.prices.draft_all(found.depth)
        more = max(found.worth) - max(found.worth[: usual + 1])
        gait.deep = more > found.rate * (prices[-1] - prices[usual])

    def _judge(self, gait: Gait, drafting: float) -> None:
        # texts are short: to stop too early costs more than a few rounds that lose a little
        if gait.gain < -_LENIENT * drafting:
            self._park(gait)

    def _park(self, gait: Gait) -> None:
        # from here on one good block is not enough to begin again
        gait.wait, gait.gain, gait.fruitless = gait.patience, -_DOUBT, 0

    def _reached(self, gait: Gait, worth: Sequence[float]) -> None:
        """Take in what a block was worth, and so every narrower one."""
        reach, most, top = gait.reach, len(worth) - 1, len(gait.reach) - 1
        first = best = worth[0]
        before = reach[most]
        for n in range(1, most + 1):
            if worth[n] > best:
                best = worth[n]
            reach[n] += _SMOOTH * (best - first - reach[n])
        if most < top:
            moved = reach[most] - before
            reach[most + 1 :] = [x + moved for x in reach[most + 1 :]]
        gait.narrow = 0 if most == top else gait.narrow + 1

    def calibration_of(self, *, cheap: bool) -> Calibration:
        """Of block drafts, or of proposals that were looked up."""
        return self.lookup if cheap else self.calibration

    def _curious(self, limit: int) -> int:
        # what is never verified would never show that it has become right
        self._declined = (self._declined + 1) % _CURIOSITY
        return 0 if self._declined else min(1, limit)

    def learn(self, gait: Gait, committed: int, verified: int, *, drafted: int, depth: int) -> None:
        """Take in what a round committed of so many verified proposals, `drafted` by a block."""
        drafting = self._drafting(gait, drafted, depth) if drafted else 0.0
        if drafted:
            self._end_of(gait, reached=committed > drafted)
            gait.fruitless = 0 if committed > 1 else gait.fruitless + (not gait.promising)
        if gait.wait is None and gait.fruitless >= _FRUITLESS:
            self._park(gait)
        if drafted and verified:
            # confidences of texts unlike those before can be wrong for long
            gait.gain += _SMOOTH * _SURPRISE * (committed - gait.expected)
            if gait.wait is None:
                self._judge(gait, self.rate * drafting)
        prices, besides = self.prices, self._besides(gait, drafted=False)
        plain = seconds = prices.plain(depth) + besides
        if drafted or verified:
            seconds = prices.verify(verified + 1, depth) + besides + drafting
        self._tokens += _FORGET * (committed - self._tokens)
        self._seconds += _FORGET * (seconds - self._seconds)
        self.rate = max(1 / plain, self._tokens / self._seconds)

    def _end_of(self, gait: Gait, *, reached: bool) -> None:
        """Take in whether a block was accepted to its end: then there was more to be had, most
        likely, unless the last whole block had nothing there.
        """
        gait.whole = reached and (gait.deep or gait.missed >= _SHALLOW)
        if reached:
            gait.missed = 0 if gait.whole else gait.missed + 1

    def _drafting(self, gait: Gait, width: int, depth: int) -> float:
        """Seconds by which drafting makes a round longer, before anything is verified."""
        more = self._besides(gait, drafted=True) - self._besides(gait, drafted=False)
        return self.prices.draft(width, depth) + max(0.0, more)

    def _besides(self, gait: Gait, *, drafted: bool) -> float:
        return self.prices.besides(drafted=drafted, in_a_row=gait.together)

    def _worth(self, chances: Sequence[float], depth: int, *, stop: bool) -> list[float]:
        """Tokens less what the time could have brought, of each width from 0 on; with `stop` only
        up to the first that is worth less than the one before: confidences beyond it depend on
        tokens that it would admit.
        """
        survival, tokens = 1.0, 1.0
        rate, prices = self.rate, self.prices.verify_all(depth)
        worth = [1 - rate * prices[1]]
        for chance, price in zip(chances, prices[2:], strict=False):
            survival *= chance
            tokens += survival
            worth.append(tokens - rate * price)
            if stop and worth[-1] < worth[-2]:
                break
        return worth
