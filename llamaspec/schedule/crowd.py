"""What to draft and to verify for several texts at once: whatever gives most tokens a second of
all, plain decoding included.

As for one text (`pace.py`) a round is worth `tokens - rate * seconds`; here the tokens are those of
all texts, and the seconds of passes that they share.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from llamaspec.schedule.calibration import Calibration
from llamaspec.schedule.crowd_prices import CrowdPrices
from llamaspec.schedule.going import ROUNDS, Going, Stretch
from llamaspec.schedule.member import SMOOTH, TRIED, Member, Survivors
from llamaspec.schedule.pace import Offer
from llamaspec.schedule.scene import Scene, SharedPass
from llamaspec.schedule.worths import Worths

_CLEAR, _DEAR = 0.01, 0.04
"""Tokens a text by which not drafting has to be better, and drafting where nothing is drafted."""
_SURE = 3
"""Rounds in a row in which not drafting was better, before it is left for longer."""
_FIRST_WAIT, _LONGEST_WAIT = 8, 256
_NAP, _LONGEST_NAP, _KNOWN = 16, 128, 12
_WASTE = 0.7
"""A text whose proposals bring less than this part of what they cost is left out for a while."""
_READY = 0.12
"""Tokens a text's round that drafting has to promise for new texts to be made ready for it, which
costs some per cent: the target publishes features, the draft takes in those of their prompts.
Twice that of a draft that nothing is known of; half of it for two texts.
"""
_ASKED, _SPARED, _MOST_SPARED = 2, 94, 1504
"""Of so many texts one after another the features are kept all the same, then of so many not, each
time of twice as many up to the most.
"""
_FEW = 4
"""Texts, of which one is asked at most: when it was in vain, that one is spared as well."""
_AS_BEFORE = 8
"""Texts that are spared as the one before was, until it is reckoned again."""
_RESTS = 4
"""Rounds without a draft after which it is reckoned again whether one would pay."""
_TRIAL, _GOOD = 48, 1.02
"""Rounds after which drafting has to have brought more than it cost, and by how much more a stretch
of it must have brought to count as a good one.
"""
_LOOK = 48
"""Rounds with narrower blocks before some whole ones show what is beyond them."""


@dataclass
class Crowd:
    """The choices of a session while several of its texts are under way. Everything follows from
    prices and outcomes: with pinned prices the same rounds give the same choices.

    rows: the most of a target pass. levels: all texts must have equal widths.
    """

    prices: CrowdPrices
    calibration: Calibration
    lookup: Calibration
    rows: int
    levels: bool = False
    _going: dict[int, Going] = field(default_factory=dict, repr=False)
    _scene: Scene | None = field(default=None, repr=False)
    _wait: int | None = field(default=None, repr=False)
    _patience: int = field(default=_FIRST_WAIT, repr=False)
    _round: int = field(default=0, repr=False)
    _narrow: int = field(default=0, repr=False)
    _looked: int = field(default=0, repr=False)
    _turn: int = field(default=0, repr=False)
    _worse: int = field(default=0, repr=False)
    _stretch: Stretch = field(default_factory=Stretch, repr=False)
    _rested: tuple[int, int] = field(default=(0, 0), repr=False)
    _asked: int = field(default=0, repr=False)
    _spared: int = field(default=0, repr=False)
    _gap: int = field(default=_SPARED, repr=False)
    _sparing: tuple[int, int] = field(default=(0, 0), repr=False)

    def __post_init__(self) -> None:
        self._common = Member.hopeful(self.prices.width)
        self._survivors = Survivors(self.prices.width)

    @property
    def _worths(self) -> Worths:
        return Worths(self.prices, self.levels)

    def begin(self) -> Member:
        """A new text: it starts from what was usual lately."""
        return self._common.like()

    def spares(self, texts: int) -> bool:
        """Whether a new text, one of so many, is better not drafted for at all: then its features
        need not be kept. Some are not spared, for tries.
        """
        if not self.prices.drafts:
            return False
        before, left = self._sparing
        if before == texts and left > 0:
            self._sparing = texts, left - 1
            return True
        self._sparing = 0, 0
        if not self._worths.hopeless(texts, depth=0) and not self._promises_little(texts):
            self._asked, self._gap = 0, _SPARED
            return False
        return self._spare(texts)

    def _promises_little(self, texts: int) -> bool:
        rate = texts / self._worths.plain(texts, 0)
        scene = Scene([self._common] * texts, [0] * texts, 0, rate)
        least = _READY * texts * (1 + ROUNDS / (ROUNDS + self._common.seen))
        least *= min(1.0, texts / 4)
        return self._worths.best(scene, [self._common] * texts).worth <= least

    def _spare(self, texts: int) -> bool:
        """Whether it is a text's turn to be spared, where it is not to be drafted for."""
        if self._asked < _ASKED and not self._worths.hopeless(texts, depth=0):
            # together, as the target publishes features for all or for none
            self._asked, self._spared = self._asked + 1, self._gap
            self._wait = self._wait and 1
            return False
        self._sparing = texts, _AS_BEFORE - 1
        self._spared -= _AS_BEFORE
        if self._spared <= 0:
            self._asked, self._gap = 0, min(2 * self._gap, _MOST_SPARED)
        return True

    def rest(self, texts: int, rounds: int = 1) -> None:
        """Rounds of so many texts none of which can be drafted for, in place of `plan`."""
        self._close()
        going = self._going.setdefault(texts.bit_length(), Going())
        for _ in range(rounds):
            going.add(1.0, 1.0)

    def rate(self, texts: int, depth: int) -> float:
        """The going rate: tokens a second of all, that of plain decoding at least."""
        going = self._going.get(texts.bit_length(), Going())
        return max(1.0, going.tokens / going.seconds) * texts / self._worths.plain(texts, depth)

    def plan(
        self, members: Sequence[Member | None], limits: Sequence[int], depth: int
    ) -> list[int]:
        """How many proposals to draft for each text; asked once a round.

        members: of each text, None where the request says how much to draft, which is its limit
        then. limits: the most that can be drafted of each. depth: positions in the KV cache.
        """
        self._close()
        self._round += 1
        told = [0 if m is not None else limit for m, limit in zip(members, limits, strict=True)]
        rate = self.rate(len(members), depth)
        scene = Scene(members, told, depth, rate, told=sum(told))
        self._scene = scene
        for m in members:
            if m is not None:
                m.expected = 0.0
        free = [m for m, most in zip(members, limits, strict=True) if m is not None and most > 0]
        if not free:
            return scene.blocks
        scene.free = free
        if not self.prices.drafts:
            scene.blocks = [*limits]
            return scene.blocks
        if self._rests(scene):
            return scene.blocks
        self._nap(free)
        chosen = self._drafted(scene, free, self._wanted(scene, free))
        if chosen:
            looks = self._looks(scene, chosen)
            for i, m in enumerate(members):
                if m is not None and any(m is c for c in chosen):
                    wide = any(m is c for c in looks)
                    width = self.prices.width if wide else scene.plan.width
                    scene.blocks[i] = min(limits[i], width)
        return scene.blocks

    def _rests(self, scene: Scene) -> bool:
        """Whether this is another round without a draft that nothing is reckoned for."""
        texts, rounds = self._rested
        self._rested = scene.texts, rounds + 1
        if self._wait is None or self._wait <= 1 or texts != scene.texts or rounds >= _RESTS:
            self._rested = scene.texts, 0
            return False
        self._wait -= 1
        return True

    def _wanted(self, scene: Scene, free: list[Member]) -> list[Member]:
        """The texts to draft for if for any: those that are awake, unless all together are better,
        as equal widths are.
        """
        scene.plan = self._worths.best(scene, free)
        awake = [m for m in free if m.nap is None]
        if not awake or len(awake) == len(free):
            return free
        some = self._worths.best(scene, awake)
        if some.worth <= scene.plan.worth:
            return free
        scene.plan = some
        return awake

    def _drafted(self, scene: Scene, free: list[Member], wanted: list[Member]) -> list[Member]:
        """The texts to draft for: those that are wanted, or half of all for a try, or none."""
        if self._worths.hopeless(scene.texts, scene.depth):
            self._wait = self._wait or self._patience
            return []
        none = self._worths.none(scene)
        gain = (scene.plan.worth - none) / scene.texts
        # one text at its end makes one pass uneven, and says nothing of the next ones
        self._worse = self._worse + 1 if gain < -_CLEAR else 0
        if self._wait is None and self._worse:
            if self._worse < _SURE:
                return []
            self._park(scene)
        elif self._wait is None and self._stretch.rounds >= _TRIAL and self._stretch.gain < 1:
            self._park(scene)
        elif self._wait is not None and gain > _DEAR:
            self._wait, self._stretch = None, Stretch()
            self._narrow = _LOOK
        if self._wait is None:
            return wanted
        self._wait -= 1
        if self._wait > 0:
            return []
        self._patience = min(_LONGEST_WAIT, 2 * self._patience)
        self._turn += 1
        scene.tries = free[self._turn % 2 :: 2] or free
        # where most texts are spared a try costs little
        self._wait = max(_FIRST_WAIT, self._patience * len(free) // scene.texts)
        return scene.tries

    def _park(self, scene: Scene) -> None:
        """Draft no longer. What brought nothing, whatever was expected of it, is not begun again
        soon.
        """
        self._give_up(scene)
        good = self._stretch.gain > _GOOD
        self._patience = _FIRST_WAIT if good else min(_LONGEST_WAIT, 2 * self._patience)
        self._wait = self._patience

    def _give_up(self, scene: Scene) -> None:
        """Where most texts are spared, keep the features of the others no longer."""
        if _FEW * len(scene.free) <= scene.texts:
            for member in scene.free:
                member.given_up = True

    def _looks(self, scene: Scene, chosen: list[Member]) -> list[Member]:
        """Those of them whose block is to be a whole one, to see what is beyond narrower ones."""
        if scene.plan.width == self.prices.width:
            self._narrow = 0
            return []
        # a try comes seldom, and what widened blocks once is likely to go on
        self._narrow += 1 + 15 * bool(scene.tries) + 3 * (scene.plan.width > self._looked)
        if self._narrow < _LOOK:
            return []
        self._narrow, self._looked = 0, scene.plan.width
        self._turn += 1
        return chosen[self._turn % 4 :: 4] or chosen[:1]

    def _nap(self, free: list[Member]) -> None:
        for m in free:
            if m.nap is not None:
                m.nap -= 1
                if m.nap <= 0 and self._round % _NAP == 0:
                    m.nap, m.seen = None, _KNOWN - 1

    def _judge(self, scene: Scene, member: Member, row: float) -> None:
        """Leave a text out for a while where it clearly is not worth its part of the draft."""
        count = sum(block > 0 for block in scene.blocks)
        width = scene.plan.width
        if count < 2 or member.seen < _KNOWN or scene.tries:
            return
        whole = self.prices.draft(count, count * width, scene.depth)
        less = whole - self.prices.draft(count - 1, (count - 1) * width, scene.depth)
        brings = (member.given if scene.plan.even else member.chosen)[width]
        rows = width if scene.plan.even else member.rows[width]
        costs = scene.rate * (less + row * rows)
        if brings < _WASTE * costs:
            member.patience = min(_LONGEST_NAP, max(_NAP, 2 * member.patience))
            member.nap = member.patience
        else:
            member.patience = member.patience // 2

    def widths(self, offers: Sequence[Offer | None]) -> list[int]:
        """How many proposals to verify of what was drafted for each text of the plan, None where
        nothing was; of texts that are told, all.
        """
        scene = self._scene
        assert scene is not None
        found = [0 if offer is None else offer.limit for offer in offers]
        free = [i for i, m in enumerate(scene.members) if m is not None and offers[i] is not None]
        scene.told = sum(n for i, n in enumerate(found) if i not in free)
        survivals = [self._survival(scene.members[i], offers[i]) for i in free]
        prices = SharedPass(self.prices, scene, len(free), self.rows)
        sampled = any(o is not None and o.sampled for i, o in enumerate(offers) if i in free)
        paid, chosen = prices.choose(survivals, sampled=sampled, levels=self.levels)
        if scene.tries and not any(chosen):
            # a try that verifies nothing would never learn that its confidences are wrong
            chosen = [min(1, len(s)) for s in survivals]
        for i, survival, worth, width in zip(free, survivals, paid, chosen, strict=True):
            found[i] = width
            member, offer = scene.members[i], offers[i]
            if member is not None and offer is not None and not offer.cheap:
                member.stated = member.stated[:width]
                member.expected = sum(survival[:width]) / member.truth
                self._see(scene, member, survival, worth)
                self._judge(scene, member, prices.row)
        if scene.tries and not self._tried(scene, survivals, paid, prices.row):
            self._give_up(scene)
        scene.seconds = self._seconds(scene, found)
        return found

    def _survival(self, member: Member | None, offer: Offer | None) -> list[float]:
        assert member is not None
        assert offer is not None
        chances = self.calibration_of(cheap=offer.cheap).probabilities(
            offer.confidence, offer.limit
        )
        stated = list(accumulate(chances, float.__mul__))
        if offer.cheap:
            return stated
        member.stated = stated
        return self._survivors.corrected(stated, member.truth)

    def _see(self, scene: Scene, member: Member, survival: list[float], paid: int) -> None:
        """Take in a block of a text, of which so many proposals were worth a row."""
        # the first rounds of a session say most, and those of a text
        early = 1 / (2 + self._common.seen / scene.texts)
        usual = TRIED if scene.tries else max(SMOOTH, 1 / (6 + member.seen))
        member.see(survival, paid, max(early, usual))
        self._common.see(survival, paid, max(early, SMOOTH) / scene.texts)
        self._common.seen += 1
        member.seen += 1

    def _tried(
        self, scene: Scene, survivals: list[list[float]], paid: list[int], row: float
    ) -> bool:
        """Return whether a try would have paid for all: then the next one comes soon."""
        if not survivals:
            return False
        rate, count, width = scene.rate, len(survivals), scene.plan.width
        brings = max(
            sum(sum(s[:n]) - rate * row * n for s, n in zip(survivals, widths, strict=True))
            for widths in (paid, [width] * count)
        )
        texts = sum(m is not None for m in scene.members)
        spent = self.prices.draft(texts, texts * width, scene.depth)
        if brings * texts / count <= rate * spent:
            return False
        self._wait = _FIRST_WAIT
        for m in scene.members:
            # the others have not been seen for long
            if m is not None and not any(m is t for t in scene.tries):
                m.given, m.chosen, m.rows = (
                    [(a + b) / 2 for a, b in zip(mine, usual, strict=True)]
                    for mine, usual in (
                        (m.given, self._common.given),
                        (m.chosen, self._common.chosen),
                        (m.rows, self._common.rows),
                    )
                )
        return True

    def _seconds(self, scene: Scene, verified: list[int]) -> float:
        texts, total = scene.texts, sum(verified)
        blocks = sum(block > 0 for block in scene.blocks)
        even = len({*verified}) == 1
        spent = self.prices.draft(blocks, sum(scene.blocks), scene.depth)
        spent += self.prices.besides(texts, drafted=blocks > 0)
        return spent + self.prices.verify(texts + total, texts, scene.depth, even=even)

    def calibration_of(self, *, cheap: bool) -> Calibration:
        """Of block drafts, or of proposals that were looked up."""
        return self.lookup if cheap else self.calibration

    def learn(self, member: Member, accepted: int, committed: int) -> None:
        """Take in how a text's round went."""
        if member.expected > 0:
            self._survivors.learn(member.stated, accepted)
            member.learn(accepted)
        if self._scene is not None:
            self._scene.tokens += committed
            self._scene.learnt += 1

    def _close(self) -> None:
        """The round is over: what it gave and took is part of the going rate."""
        scene, self._scene = self._scene, None
        if scene is None or not scene.learnt:
            return
        seconds = scene.seconds or self._seconds(scene, [0] * scene.texts)
        going = self._going.setdefault(scene.texts.bit_length(), Going())
        plain = self._worths.plain(scene.texts, scene.depth)
        going.add(scene.tokens / scene.learnt, seconds / plain)
        if self._wait is None and any(scene.blocks):
            self._stretch.add(scene.tokens / scene.learnt, seconds / plain)
