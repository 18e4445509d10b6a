"""What a round of several texts would be worth, drafted for in one way or another: tokens, less
what its seconds could have brought at the going rate.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from llamaspec.schedule.crowd_prices import CrowdPrices
from llamaspec.schedule.member import Member
from llamaspec.schedule.scene import Plan, Scene


@dataclass(frozen=True)
class Worths:
    """Reckons by prices. levels: all texts must have equal widths."""

    prices: CrowdPrices
    levels: bool

    def hopeless(self, texts: int, depth: int) -> bool:
        """Whether drafting would cost more than it could bring if everything were accepted."""
        if not self.prices.drafts:
            return False
        plain = self.plain(texts, depth)
        besides = self.prices.besides(texts, drafted=True)
        spent = (
            self.prices.draft(texts, texts * width, depth)
            + self.prices.verify(texts * (1 + width), texts, depth)
            for width in range(1, self.prices.width + 1)
        )
        return all(s + besides > (2 + n) * plain for n, s in enumerate(spent))

    def best(self, scene: Scene, awake: Sequence[Member]) -> Plan:
        """The best way to draft for some texts, whether it is better than none or not."""
        count, best = len(awake), None
        for width in range(1, self.prices.width + 1):
            spent = self.drafting(scene, count, count * width)
            given = sum(m.given[width] for m in awake)
            ways = [(True, given, count * width)]
            if not self.levels:
                chosen = sum(m.chosen[width] for m in awake)
                ways.append((False, chosen, round(sum(m.rows[width] for m in awake))))
            for even, tokens, rows in ways:
                alike = even and count == scene.texts
                worth = self._worth(scene, tokens, rows, spent, even=alike)
                if best is None or worth > best.worth:
                    best = Plan(width, even, worth)
        assert best is not None
        return best

    def none(self, scene: Scene) -> float:
        """The worth of a round without a draft but for texts that are told."""
        return self._worth(scene, 0.0, 0, self.drafting(scene, 0, 0), even=not scene.told)

    def _worth(self, scene: Scene, tokens: float, rows: int, spent: float, *, even: bool) -> float:
        """Of a round with so many tokens more than one a text, so many rows more, and the seconds
        of drafting.
        """
        texts, depth = scene.texts, scene.depth
        rows = min(texts + scene.told + rows, texts * (1 + self.prices.width))
        seconds = spent + self.prices.verify(rows, texts, depth, even=even)
        return texts + tokens - scene.rate * seconds

    def drafting(self, scene: Scene, count: int, proposals: int) -> float:
        """Seconds beside the target's pass, with so many blocks of so many proposals in all."""
        told = sum(
            block > 0 and m is None for block, m in zip(scene.blocks, scene.members, strict=True)
        )
        drafted = self.prices.draft(count + told, proposals + scene.told, scene.depth)
        return drafted + self.prices.besides(scene.texts, drafted=count + told > 0)

    def plain(self, texts: int, depth: int) -> float:
        """Seconds of a round of plain decoding."""
        besides = self.prices.besides(texts, drafted=False)
        return self.prices.verify(texts, texts, depth) + besides
