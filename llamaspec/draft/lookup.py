"""A draft without a model: what followed the last time that the text ended like this."""

from llamaspec.draft.drafter import NOTHING, Anchor, Features, Proposal

LONGEST = 4
PROPOSALS = 7


class LookupDrafter:
    """Looks the longest suffix of prompt and output, at most `LONGEST` tokens, up in the text
    before it, and proposes what came after its latest occurrence.
    """

    reads_features = False
    seconds = 0.0

    def __init__(self, proposals: int = PROPOSALS) -> None:
        """proposals: the most ids to propose."""
        self.proposals = proposals
        self._after: dict[int, dict[tuple[int, ...], int]] = {}
        self._read: dict[int, int] = {}

    def keep(self, seq: int, length: int) -> int:
        # an index of text that may change is made anew, which costs nothing beside a pass
        self._after[seq] = {}
        self._read[seq] = 1
        return length

    def commit(self, features: Features) -> None:
        """Nothing is read from features."""

    def propose(self, anchors: list[Anchor]) -> list[Proposal]:
        return [self._look_up(anchor) if anchor.limit > 0 else NOTHING for anchor in anchors]

    def _look_up(self, anchor: Anchor) -> Proposal:
        text, after = anchor.text, self._after[anchor.seq]
        # the suffix itself has nothing after it yet, so the last token is no start
        for start in range(self._read[anchor.seq], len(text)):
            for n in range(1, min(LONGEST, start) + 1):
                after[tuple(text[start - n : start])] = start
        self._read[anchor.seq] = max(1, len(text))
        most = min(anchor.limit, anchor.width, self.proposals)
        for n in range(min(LONGEST, len(text)), 0, -1):
            start = after.get(tuple(text[len(text) - n :]), 0)
            if start:
                return Proposal(tuple(text[start : start + most]))
        return NOTHING
