"""A block draft and lookup side by side: a long match wins the round."""

from llamaspec.draft.drafter import Anchor, Drafter, Features, Proposal, Saved
from llamaspec.draft.lookup import LookupDrafter

LONG = 8
"""Tokens of a match that is followed further more often than a block is right."""


class BothDrafters:
    """Asks the lookup first, and the block draft for the sequences without a long match."""

    proposes_parked = True

    def __init__(self, block: Drafter, lookup: LookupDrafter) -> None:
        self.block = block
        self._lookup = lookup
        self.proposals = max(block.proposals, lookup.proposals)

    @property
    def seconds(self) -> float:
        return self.block.seconds

    @property
    def reads_features(self) -> bool:
        return self.block.reads_features

    def commit(self, features: Features) -> None:
        self.block.commit(features)

    def keep(self, seq: int, length: int) -> int:
        self._lookup.keep(seq, length)
        return self.block.keep(seq, length)

    def knows(self, seq: int, length: int) -> int:
        return self.block.knows(seq, length)

    def copy(self, source: int, seq: int, length: int) -> int:
        self._lookup.copy(source, seq, length)
        return self.block.copy(source, seq, length)

    def saved_size(self, seq: int) -> int | None:
        return self.block.saved_size(seq)

    def save(self, seq: int) -> Saved:
        return self.block.save(seq)

    def restore(self, seq: int, saved: Saved, length: int) -> int:
        self._lookup.restore(seq, saved, length)
        return self.block.restore(seq, saved, length)

    def propose(self, anchors: list[Anchor]) -> list[Proposal]:
        found = [self._lookup.look_up(anchor) for anchor in anchors]
        wins = [
            match >= LONG or (anchor.parked and match > 0)
            for anchor, (_, match) in zip(anchors, found, strict=True)
        ]
        rest = [
            anchor._replace(limit=0) if win else anchor
            for anchor, win in zip(anchors, wins, strict=True)
        ]
        blocks = self.block.propose(rest)
        return [
            quick if win else block
            for win, (quick, _), block in zip(wins, found, blocks, strict=True)
        ]
