"""A draft without a model: what followed the last times that the text ended like this."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from llamaspec.draft.drafter import NOTHING, Anchor, NothingLearnt, Proposal

PROPOSALS = 15
_LONGEST_KEY = 4
_PLACES = 8
_LONGEST_MATCH = 64
_A_TOKEN = 4
"""Ids proposed for each token of a match."""


class LookupDrafter(NothingLearnt):
    """Looks the end of prompt and output up in the text before it, and proposes what came after
    the longest match, of equally long ones the latest: the more, the longer the match.
    """

    reads_features = False
    proposes_parked = True
    seconds = 0.0

    def __init__(self, proposals: int = PROPOSALS) -> None:
        """proposals: the most ids to propose."""
        self.proposals = proposals
        self._indexes: dict[int, _Index] = {}

    def keep(self, seq: int, length: int) -> int:
        # an index of text that may change is made anew, which costs nothing beside a pass
        self._indexes[seq] = _Index()
        return length

    def propose(self, anchors: list[Anchor]) -> list[Proposal]:
        return [self.look_up(anchor)[0] for anchor in anchors]

    def look_up(self, anchor: Anchor) -> tuple[Proposal, int]:
        """A proposal, and how many tokens at the end of the text were found again; what follows a
        match of m tokens is sure to (m + i) / (m + i + 1) at its i-th place, before calibration.
        """
        if anchor.limit <= 0:
            return NOTHING, 0
        text = anchor.text
        start, match = self._indexes[anchor.seq].find(text)
        if not match:
            return NOTHING, 0
        most = min(anchor.limit, self.proposals, _A_TOKEN * match)
        ids = list(text[start : start + most])
        # what reaches the end of the text goes on with what it has found
        period = len(text) - start
        while len(ids) < most:
            ids.append(ids[-period])
        sure = tuple((match + i) / (match + i + 1) for i in range(len(ids)))
        return Proposal(tuple(ids), sure, cheap=True), match


@dataclass
class _Index:
    """Where the text went on after its n-grams: the latest place, and of the longest several.

    read: up to where the text is indexed.
    """

    latest: dict[tuple[int, ...], int] = field(default_factory=dict)
    places: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    read: int = 1

    def find(self, text: Sequence[int]) -> tuple[int, int]:
        """The place after the longest match, and the match's length; 0 where there is none."""
        self._extend(text)
        end = len(text)
        if end >= _LONGEST_KEY:
            key = tuple(text[end - _LONGEST_KEY :])
            # of equally long matches the one that comes first here, the latest
            found = [(_match(text, place), place) for place in reversed(self.places.get(key, []))]
            if found:
                match, place = max(found, key=lambda pair: pair[0])
                return place, match
        for n in range(min(_LONGEST_KEY - 1, end), 0, -1):
            place = self.latest.get(tuple(text[end - n :]), 0)
            if place:
                return place, n
        return 0, 0

    def _extend(self, text: Sequence[int]) -> None:
        # the suffix itself has nothing after it yet, so the last token is no start
        for start in range(self.read, len(text)):
            for n in range(1, min(_LONGEST_KEY - 1, start) + 1):
                self.latest[tuple(text[start - n : start])] = start
            if start >= _LONGEST_KEY:
                places = self.places.setdefault(tuple(text[start - _LONGEST_KEY : start]), [])
                places.append(start)
                del places[:-_PLACES]
        self.read = max(1, len(text))


def _match(text: Sequence[int], place: int) -> int:
    """How many tokens before a place are those at the end of the text."""
    end, match = len(text), _LONGEST_KEY
    while match < min(place, _LONGEST_MATCH) and text[place - 1 - match] == text[end - 1 - match]:
        match += 1
    return match
