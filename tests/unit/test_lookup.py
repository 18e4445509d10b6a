"""The draft by lookup: the longest match, the latest of several, and the limits."""

import pytest

from llamaspec.draft.drafter import Anchor
from llamaspec.draft.lookup import LookupDrafter


def propose(drafter: LookupDrafter, text: list[int], limit: int = 9, seq: int = 0) -> list[int]:
    anchor = Anchor(seq, text[-1], len(text) - 1, 9, limit, text)
    (found,) = drafter.propose([anchor])
    return list(found.ids)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ([1], []),
        ([1, 2, 3], []),
        ([1, 2, 1], [2, 1, 2, 1]),
        ([5, 5], [5, 5, 5, 5]),
        ([1, 2, 3, 9, 1, 2], [3, 9, 1, 2, 3, 9, 1, 2]),
        # the longest suffix wins over a later, shorter one
        ([1, 2, 3, 4, 7, 3, 8, 1, 2, 3], [4, 7, 3, 8, 1, 2, 3, 4, 7]),
        # of equally long ones the latest
        ([1, 2, 7, 1, 2, 8, 1, 2], [8, 1, 2, 8, 1, 2, 8, 1]),
    ],
)
def test_what_followed_the_longest_suffix(text: list[int], expected: list[int]) -> None:
    drafter = LookupDrafter()
    drafter.keep(0, 0)
    assert propose(drafter, text) == expected


def test_it_finds_as_it_goes_what_it_finds_at_once() -> None:
    text = [(i * i) % 11 for i in range(120)]
    going = LookupDrafter()
    going.keep(0, 0)
    for end in range(1, len(text), 3):
        fresh = LookupDrafter()
        fresh.keep(0, 0)
        assert propose(going, text[:end]) == propose(fresh, text[:end])


def test_the_limits_and_the_sequences_are_kept() -> None:
    drafter = LookupDrafter(proposals=3)
    drafter.keep(0, 0)
    drafter.keep(1, 0)
    text = [1, 2, 3, 4, 5, 6, 1, 2]
    assert propose(drafter, text) == [3, 4, 5]
    assert propose(drafter, text, limit=2) == [3, 4]
    assert propose(drafter, text, limit=0) == []
    assert propose(drafter, [1, 9, 1], seq=1) == [9, 1, 9]
    drafter.keep(0, 0)
    assert propose(drafter, [7, 1, 2]) == []
    assert drafter.propose([]) == []


def test_of_several_places_the_longest_match_counts_and_says_how_sure_it_is() -> None:
    drafter = LookupDrafter()
    drafter.keep(0, 0)
    head, tail = [1, 2, 3, 4, 5, 6, 7, 70, 71], [9, 4, 5, 6, 7, 80, 81]
    text = [*head, *tail, 1, 2, 3, 4, 5, 6, 7]
    proposal, match = drafter.look_up(Anchor(0, 7, len(text) - 1, 15, 15, text))
    assert match == 7
    assert proposal.ids[:2] == (70, 71)
    assert proposal.confidence is not None
    assert proposal.confidence[:2] == (7 / 8, 8 / 9)
    assert proposal.cheap


def test_a_short_match_is_not_followed_far() -> None:
    drafter = LookupDrafter(proposals=30)
    drafter.keep(0, 0)
    text = [5, *range(100, 130), 5]
    proposal, match = drafter.look_up(Anchor(0, 5, len(text) - 1, 30, 30, text))
    assert (match, len(proposal.ids)) == (1, 4)


def test_places_of_a_text_that_repeats_itself_stay_few() -> None:
    drafter = LookupDrafter()
    drafter.keep(0, 0)
    text = [1, 2, 3, 4] * 500
    assert propose(drafter, text) == [1, 2, 3, 4, 1, 2, 3, 4, 1]
    index = drafter._indexes[0]
    assert max(map(len, index.places.values())) <= 8
